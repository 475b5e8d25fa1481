//! Get Messages and Peek Messages.

use crate::support::{count, delete, get, get_one, put, start, visible};

#[tokio::test]
async fn getting_hides_a_message_until_its_timeout() {
    let server = start().await;
    let sent = put(&server, "a", "").await;
    server.advance(5);
    let got = get_one(&server, "").await;
    assert_eq!((&got.id, &got.inserted, &got.expires), (&sent.id, &sent.inserted, &sent.expires));
    assert_eq!((got.text.as_deref(), got.dequeue_count), (Some("a"), Some(1)));
    // Thirty seconds after the get.
    assert_eq!(got.next_visible.as_deref(), Some("Fri, 02 Jan 2026 03:04:40 GMT"));
    assert_ne!(got.receipt, sent.receipt);
    assert!(get(&server, "").await.is_empty() && visible(&server).await.is_empty());
    assert_eq!(count(&server).await, 1);
    server.advance(29);
    assert!(get(&server, "").await.is_empty());
    server.advance(1);
    let again = get_one(&server, "?visibilitytimeout=1").await;
    assert_eq!((again.dequeue_count, &again.id), (Some(2), &got.id));
    assert_ne!(again.receipt, got.receipt);
    server.advance(1);
    assert_eq!(get_one(&server, "?visibilitytimeout=604800").await.dequeue_count, Some(3));
    server.advance(600_000);
    assert!(get(&server, "").await.is_empty());
}

#[tokio::test]
async fn messages_come_in_order_up_to_the_requested_number() {
    let server = start().await;
    for n in 0..70 {
        put(&server, &n.to_string(), "").await;
    }
    let texts = |got: Vec<crate::support::ListedMessage>| -> Vec<u32> {
        got.into_iter().map(|message| message.text.unwrap().parse().unwrap()).collect()
    };
    assert_eq!(texts(get(&server, "?numofmessages=32").await), (0..32).collect::<Vec<_>>());
    assert_eq!(texts(get(&server, "").await), [32]);
    assert_eq!(texts(get(&server, "?numofmessages=2&peekonly=true").await), [33, 34]);
    assert_eq!(texts(get(&server, "?numofmessages=32").await), (33..65).collect::<Vec<_>>());
    assert_eq!(texts(get(&server, "?numofmessages=32").await), (65..70).collect::<Vec<_>>());
    assert!(get(&server, "?numofmessages=32").await.is_empty());
    // All messages become visible again, in the order in which they were got.
    server.advance(31);
    let mut all = vec![];
    for _ in 0..3 {
        all.extend(texts(get(&server, "?numofmessages=32").await));
    }
    assert_eq!(all, (0..70).collect::<Vec<_>>());
}

#[tokio::test]
async fn each_message_of_one_get_has_its_own_receipt() {
    let server = start().await;
    for n in 0..32 {
        put(&server, &n.to_string(), "").await;
    }
    let got = get(&server, "?numofmessages=32").await;
    for message in &got {
        delete(&server, message).await.expect(204);
        delete(&server, message).await.refused(404, "MessageNotFound");
    }
    assert_eq!((got.len(), count(&server).await), (32, 0));
}

#[tokio::test]
async fn peeking_changes_nothing_and_shows_no_receipt() {
    let server = start().await;
    let sent = put(&server, "a", "").await;
    for _ in 0..3 {
        let seen = get_one(&server, "?peekonly=true").await;
        assert_eq!(
            (seen.id, seen.inserted, seen.expires),
            (sent.id.clone(), sent.inserted.clone(), sent.expires.clone())
        );
        assert_eq!((seen.dequeue_count, seen.receipt, seen.next_visible), (Some(0), None, None));
        assert_eq!(seen.text.as_deref(), Some("a"));
    }
    let got = get_one(&server, "?visibilitytimeout=5").await;
    assert_eq!(got.dequeue_count, Some(1));
    server.advance(5);
    assert_eq!(get_one(&server, "?peekonly=true").await.dequeue_count, Some(1));
    delete(&server, &got).await.expect(204);
    assert!(get(&server, "?peekonly=true").await.is_empty());
}

#[tokio::test]
async fn parameters_out_of_range_are_refused_with_the_range() {
    let server = start().await;
    for (query, code, range) in [
        ("numofmessages=0", "OutOfRangeQueryParameterValue", Some((1, 32))),
        ("numofmessages=33", "OutOfRangeQueryParameterValue", Some((1, 32))),
        ("numofmessages=33&peekonly=true", "OutOfRangeQueryParameterValue", Some((1, 32))),
        ("numofmessages=0&peekonly=true", "OutOfRangeQueryParameterValue", Some((1, 32))),
        ("numofmessages=x", "InvalidQueryParameterValue", None),
        ("visibilitytimeout=0", "OutOfRangeQueryParameterValue", Some((1, 604_800))),
        ("visibilitytimeout=604801", "OutOfRangeQueryParameterValue", Some((1, 604_800))),
        ("visibilitytimeout=-5", "OutOfRangeQueryParameterValue", Some((1, 604_800))),
        ("visibilitytimeout=1.5", "InvalidQueryParameterValue", None),
    ] {
        let refused = server.get(&format!("/jobs/messages?{query}"), "").await.refused(400, code);
        if let Some((least, most)) = range {
            let elements =
                format!("<MinimumAllowed>{least}</MinimumAllowed><MaximumAllowed>{most}</MaximumAllowed>");
            assert!(refused.text().contains(&elements), "{}", refused.text());
        }
    }
    let old = "x-ms-version: 2009-09-19";
    server.get("/jobs/messages?visibilitytimeout=7200", old).await.expect(200);
    server
        .get("/jobs/messages?visibilitytimeout=7201", old)
        .await
        .refused(400, "OutOfRangeQueryParameterValue");
}
