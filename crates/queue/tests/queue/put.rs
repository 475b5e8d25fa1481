//! Put Message: what is stored, and what is refused.

use crate::support::{body, count, get_one, messages, put, start, visible};

#[tokio::test]
async fn reply_contains_everything_but_the_text() {
    let server = start().await;
    let shown = put(&server, "a", "?visibilitytimeout=10&messagettl=100").await;
    assert_eq!(shown.id.len(), 36);
    assert_eq!(shown.inserted, "Fri, 02 Jan 2026 03:04:05 GMT");
    assert_eq!(shown.expires, "Fri, 02 Jan 2026 03:05:45 GMT");
    assert_eq!(shown.next_visible.as_deref(), Some("Fri, 02 Jan 2026 03:04:15 GMT"));
    assert!(shown.receipt.is_some() && shown.dequeue_count.is_none() && shown.text.is_none());
    let shown = put(&server, "b", "").await;
    assert_eq!(shown.expires, "Fri, 09 Jan 2026 03:04:05 GMT");
    let shown = put(&server, "c", "?messagettl=-1").await;
    assert_eq!(shown.expires, "Fri, 31 Dec 9999 23:59:59 GMT");
}

#[tokio::test]
async fn reply_before_2016_is_empty() {
    let server = start().await;
    let reply = server.post("/jobs/messages", "x-ms-version: 2015-12-11", body("a")).await.expect(201);
    assert_eq!(reply.text(), "");
    let reply = server.post("/jobs/messages", "x-ms-version: 2016-05-31", body("a")).await.expect(201);
    assert_eq!(messages(&reply).len(), 1);
}

#[tokio::test]
async fn delayed_message_is_invisible_until_its_time() {
    let server = start().await;
    put(&server, "later", "?visibilitytimeout=10").await;
    put(&server, "now", "").await;
    assert_eq!(visible(&server).await, ["now"]);
    assert_eq!(count(&server).await, 2);
    server.advance(9);
    assert_eq!(visible(&server).await, ["now"]);
    server.advance(1);
    assert_eq!(visible(&server).await, ["now", "later"]);
    // Putting a message does not count as getting it.
    assert_eq!(get_one(&server, "").await.dequeue_count, Some(1));
}

#[tokio::test]
async fn text_comes_back_unchanged() {
    let server = start().await;
    let long = "&lt;é😀".repeat(7000);
    for (sent, meant) in [
        ("", ""),
        ("plain", "plain"),
        ("  \t spaces \n", "  \t spaces \n"),
        ("a\r\nb\rc\n", "a\r\nb\rc\n"),
        ("&#13;&#10;&#9;", "\r\n\t"),
        ("&lt;a href=&quot;x&quot;&gt;&amp;amp;&apos;&lt;/a&gt;", "<a href=\"x\">&amp;'</a>"),
        ("😀👩‍👩‍👧‍👦\u{10FFFD}日本語é\u{FFFD}", "😀👩‍👩‍👧‍👦\u{10FFFD}日本語é\u{FFFD}"),
        ("PFF1ZXVlPis+/w==", "PFF1ZXVlPis+/w=="),
        ("<![CDATA[<b>]]>", "<b>"),
        (&long, &long.replace("&lt;", "<")),
    ] {
        put(&server, sent, "").await;
        assert_eq!(visible(&server).await, [meant]);
        let got = get_one(&server, "").await;
        assert_eq!(got.text.as_deref(), Some(meant), "{sent:.40}");
    }
}

#[tokio::test]
async fn text_of_64_kib_is_accepted_however_it_is_escaped() {
    let server = start().await;
    for text in ["&amp;".repeat(65_536), "a".repeat(65_536), "é".repeat(32_768)] {
        put(&server, &text, "").await;
        assert_eq!(get_one(&server, "").await.text.unwrap().len(), 65_536);
    }
    for text in ["a".repeat(65_537), "é".repeat(32_769), "a".repeat(600_000)] {
        let refused = server.post("/jobs/messages", "", body(&text)).await;
        assert_eq!(refused.outcome(), (413, "RequestBodyTooLarge"));
    }
    let old = "x-ms-version: 2009-09-19";
    server.post("/jobs/messages", old, body(&"a".repeat(8192))).await.expect(201);
    let refused = server.post("/jobs/messages", old, body(&"a".repeat(8193))).await;
    refused.refused(413, "RequestBodyTooLarge");
}

#[tokio::test]
async fn invalid_message_documents_are_refused() {
    let server = start().await;
    for (document, code) in [
        ("", "MissingRequiredXmlNode"),
        ("<QueueMessage/>", "MissingRequiredXmlNode"),
        ("text", "InvalidXmlDocument"),
        ("<QueueMessage><MessageText>a</MessageText>", "InvalidXmlDocument"),
        ("<Message><MessageText>a</MessageText></Message>", "InvalidXmlDocument"),
        ("<QueueMessage><MessageText>\u{1}</MessageText></QueueMessage>", "InvalidXmlDocument"),
        ("<QueueMessage><MessageText>&#0;</MessageText></QueueMessage>", "InvalidXmlDocument"),
        ("{\"MessageText\":\"a\"}", "InvalidXmlDocument"),
    ] {
        server.post("/jobs/messages", "", document).await.refused(400, code);
    }
    server
        .post("/jobs/messages", "", &b"<QueueMessage><MessageText>\xff</MessageText></QueueMessage>"[..])
        .await
        .refused(400, "InvalidXmlDocument");
    assert_eq!(count(&server).await, 0);
}

#[tokio::test]
async fn times_out_of_range_are_refused() {
    let server = start().await;
    for (query, code) in [
        ("visibilitytimeout=-1", "OutOfRangeQueryParameterValue"),
        ("visibilitytimeout=604801", "OutOfRangeQueryParameterValue"),
        ("visibilitytimeout=604800", "InvalidQueryParameterValue"),
        ("visibilitytimeout=x", "InvalidQueryParameterValue"),
        ("visibilitytimeout=5&messagettl=5", "InvalidQueryParameterValue"),
        ("messagettl=0", "InvalidQueryParameterValue"),
        ("messagettl=-2", "OutOfRangeQueryParameterValue"),
    ] {
        server.post(&format!("/jobs/messages?{query}"), "", body("a")).await.refused(400, code);
    }
}
