//! Everything survives a restart: nothing that is known only in memory matters.

use futures_util::future::join_all;

use crate::support::{count, delete, get, get_one, put, start, update, visible};

#[tokio::test]
async fn messages_receipts_counts_and_order_survive() {
    let server = start().await;
    server.put("/jobs?comp=metadata", "x-ms-meta-a: 1", "").await.expect(204);
    for n in 0..100 {
        put(&server, &n.to_string(), "").await;
    }
    put(&server, "later", "?visibilitytimeout=60").await;
    let held = get(&server, "?numofmessages=3&visibilitytimeout=10").await;
    delete(&server, &held[0]).await.expect(204);
    let server = server.restart().await;
    assert_eq!(count(&server).await, 100);
    assert_eq!(visible(&server).await[0], "3");
    delete(&server, &held[0]).await.refused(404, "MessageNotFound");
    delete(&server, &held[1]).await.expect(204);
    let updated = update(&server, &held[2], 0, Some("two")).await.expect(204);
    assert!(updated.header("x-ms-popreceipt").is_some());
    assert_eq!(get_one(&server, "").await.text.as_deref(), Some("3"));
    server.advance(61);
    let mut all = vec![];
    loop {
        let got = get(&server, "?numofmessages=32&visibilitytimeout=600").await;
        if got.is_empty() {
            break;
        }
        all.extend(got.into_iter().map(|message| message.text.unwrap()));
    }
    assert_eq!((all.len(), all.iter().filter(|text| *text == "two").count()), (99, 1));
    assert!(all.contains(&"later".to_owned()) && all.contains(&"3".to_owned()));
}

#[tokio::test]
async fn a_queue_that_has_lived_long_is_read_from_where_it_begins_and_loses_nothing() {
    let server = start().await;
    let early = put(&server, "early", "").await;
    update(&server, &early, 100_000, None).await.expect(204);
    // Enough is handed out for the floor to be written, more than once.
    for _ in 0..40 {
        server.advance(60);
        join_all((0..64).map(|_| put(&server, "x", ""))).await;
        for _ in 0..2 {
            let got = get(&server, "?numofmessages=32").await;
            assert_eq!(got.len(), 32);
            for deleted in join_all(got.iter().map(|message| delete(&server, message))).await {
                deleted.expect(204);
            }
        }
    }
    put(&server, "last", "").await;
    let server = server.restart().await;
    assert_eq!(visible(&server).await, ["last"]);
    server.advance(100_000);
    assert_eq!(visible(&server).await, ["last", "early"]);
    assert_eq!(count(&server).await, 2);
}
