//! Update Message and Delete Message: which receipts are valid.

use crate::support::{ListedMessage, count, delete, get, get_one, put, start, update, visible};

fn with_receipt(message: &ListedMessage, receipt: &str) -> ListedMessage {
    ListedMessage { receipt: Some(receipt.to_owned()), ..message.clone() }
}

#[tokio::test]
async fn update_moves_the_message_and_returns_a_new_receipt() {
    let server = start().await;
    put(&server, "a", "").await;
    let got = get_one(&server, "").await;
    let updated = update(&server, &got, 60, Some("&lt;b&gt;")).await.expect(204);
    assert_eq!(updated.header("x-ms-time-next-visible"), Some("Fri, 02 Jan 2026 03:05:05 GMT"));
    let held = with_receipt(&got, updated.header("x-ms-popreceipt").unwrap());
    assert_ne!(held.receipt, got.receipt);
    server.advance(59);
    assert!(get(&server, "").await.is_empty());
    server.advance(1);
    let seen = get_one(&server, "?peekonly=true").await;
    assert_eq!((seen.text.as_deref(), seen.dequeue_count), (Some("<b>"), Some(1)));
    // No client has got the message since, so the receipt is still valid.
    let updated = update(&server, &held, 0, None).await.expect(204);
    let held = with_receipt(&got, updated.header("x-ms-popreceipt").unwrap());
    assert_eq!(visible(&server).await, ["<b>"]);
    delete(&server, &held).await.expect(204);
    assert_eq!(count(&server).await, 0);
}

#[tokio::test]
async fn old_receipt_is_404_even_if_the_clock_stands_still() {
    let server = start().await;
    put(&server, "a", "").await;
    let got = get_one(&server, "").await;
    let updated = update(&server, &got, 30, None).await.expect(204);
    update(&server, &got, 30, Some("b")).await.refused(404, "MessageNotFound");
    delete(&server, &got).await.refused(404, "MessageNotFound");
    let held = with_receipt(&got, updated.header("x-ms-popreceipt").unwrap());
    delete(&server, &held).await.expect(204);
    delete(&server, &held).await.refused(404, "MessageNotFound");
    update(&server, &held, 0, None).await.refused(404, "MessageNotFound");
}

#[tokio::test]
async fn receipt_outlives_the_timeout_but_not_the_next_get() {
    let server = start().await;
    put(&server, "a", "").await;
    put(&server, "b", "").await;
    let (a, b) =
        (get_one(&server, "?visibilitytimeout=5").await, get_one(&server, "?visibilitytimeout=5").await);
    server.advance(10);
    delete(&server, &a).await.expect(204);
    let b_again = get_one(&server, "").await;
    assert_eq!((&b_again.id, b_again.dequeue_count), (&b.id, Some(2)));
    delete(&server, &b).await.refused(404, "MessageNotFound");
    update(&server, &b, 0, None).await.refused(404, "MessageNotFound");
    delete(&server, &b_again).await.expect(204);
}

#[tokio::test]
async fn receipt_of_a_put_is_valid_until_the_message_is_got() {
    let server = start().await;
    let (a, b) = (put(&server, "a", "").await, put(&server, "b", "?visibilitytimeout=5").await);
    delete(&server, &a).await.expect(204);
    let updated = update(&server, &b, 0, Some("c")).await.expect(204);
    assert_eq!(visible(&server).await, ["c"]);
    get_one(&server, "").await;
    let b = with_receipt(&b, updated.header("x-ms-popreceipt").unwrap());
    delete(&server, &b).await.refused(404, "MessageNotFound");
}

#[tokio::test]
async fn inconsistent_ids_receipts_and_timeouts_are_refused() {
    let server = start().await;
    put(&server, "a", "").await;
    put(&server, "b", "").await;
    let (a, b) = (get_one(&server, "").await, get_one(&server, "").await);
    let (id, receipt) = (a.id.as_str(), a.receipt.as_deref().unwrap());
    let elsewhere = "d63bddb4-1b1a-4f07-9c02-3e3d0f0e0a01";
    for (id, receipt, status, code) in [
        (id, b.receipt.as_deref().unwrap(), 400, "PopReceiptMismatch"),
        (&b.id, receipt, 400, "PopReceiptMismatch"),
        (id, &format!("{receipt}Random"), 400, "InvalidQueryParameterValue"),
        (id, "x", 400, "InvalidQueryParameterValue"),
        (id, "AAAAAAAAAAAAAAAAAAAAAAA", 404, "MessageNotFound"),
        (&format!("{id}Random"), receipt, 404, "MessageNotFound"),
        (elsewhere, receipt, 404, "MessageNotFound"),
        // An invalid receipt is refused before the id is checked.
        (elsewhere, "x", 400, "InvalidQueryParameterValue"),
        ("x", "x", 400, "InvalidQueryParameterValue"),
        (id, "", 400, "MissingRequiredQueryParameter"),
    ] {
        let target = format!("/jobs/messages/{id}?popreceipt={receipt}");
        server.delete(&target, "").await.refused(status, code);
        server.put(&format!("{target}&visibilitytimeout=0"), "", "").await.refused(status, code);
    }
    let refused = server.delete(&format!("/jobs/messages/{id}?popreceipt=x"), "").await;
    assert!(refused.text().contains("<Reason>"), "{}", refused.text());
    server.delete(&format!("/jobs/messages/{id}"), "").await.refused(400, "MissingRequiredQueryParameter");
    for (query, code) in [
        ("", "MissingRequiredQueryParameter"),
        ("&visibilitytimeout=", "MissingRequiredQueryParameter"),
        ("&visibilitytimeout=-1", "OutOfRangeQueryParameterValue"),
        ("&visibilitytimeout=604801", "OutOfRangeQueryParameterValue"),
        ("&visibilitytimeout=x", "InvalidQueryParameterValue"),
    ] {
        let target = format!("/jobs/messages/{id}?popreceipt={receipt}{query}");
        server.put(&target, "", "").await.refused(400, code);
    }
    let target = format!("/jobs/messages/{id}?popreceipt={receipt}&visibilitytimeout=0");
    server.put(&target, "", "<QueueMessage>").await.refused(400, "InvalidXmlDocument");
    let long = crate::support::body(&"a".repeat(65_537));
    server.put(&target, "", long).await.refused(413, "RequestBodyTooLarge");
    // The refused requests changed nothing.
    for message in [a, b] {
        delete(&server, &message).await.expect(204);
    }
}

#[tokio::test]
async fn message_cannot_be_hidden_beyond_its_expiry() {
    let server = start().await;
    let sent = put(&server, "a", "?messagettl=100").await;
    update(&server, &sent, 101, None).await.refused(400, "InvalidQueryParameterValue");
    update(&server, &sent, 99, None).await.expect(204);
}

#[tokio::test]
async fn update_without_a_text_keeps_the_old_one_and_an_empty_text_replaces_it() {
    let server = start().await;
    let sent = put(&server, "a", "").await;
    let updated = update(&server, &sent, 0, None).await.expect(204);
    assert_eq!(visible(&server).await, ["a"]);
    let held = with_receipt(&sent, updated.header("x-ms-popreceipt").unwrap());
    update(&server, &held, 0, Some("")).await.expect(204);
    assert_eq!(visible(&server).await, [""]);
}

#[tokio::test]
async fn ids_and_receipts_of_another_queue_are_refused() {
    let server = start().await;
    server.put("/other", "", "").await.expect(201);
    let sent = put(&server, "a", "").await;
    let target = format!("/other/messages/{}?popreceipt={}", sent.id, sent.receipt.as_deref().unwrap());
    server.delete(&target, "").await.refused(404, "MessageNotFound");
    delete(&server, &sent).await.expect(204);
}
