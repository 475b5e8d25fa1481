//! Restarts: all state survives, because what is only in memory can be read again.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use lazuli_queue::QueueService;
use lazuli_store::interposed::{Interposed, Interposer};
use lazuli_store::{Commit, CommitError, Partition, Store};
use tokio::sync::Notify;

use crate::support::{count, delete, get, get_one, make, put, start, update, visible};

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
async fn old_queue_is_read_from_its_floor_and_loses_nothing() {
    let server = start().await;
    let early = put(&server, "early", "").await;
    update(&server, &early, 100_000, None).await.expect(204);
    // Get enough messages for the floor to be written several times.
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

/// Delays each commit until the test releases it.
struct HeldCommit {
    reached: Notify,
    release: Notify,
}

#[async_trait]
impl Interposer for &'static HeldCommit {
    async fn commit(
        &self,
        store: &dyn Store,
        partition: &Partition,
        commit: Commit,
    ) -> Result<(), CommitError> {
        self.reached.notify_one();
        self.release.notified().await;
        store.commit(partition, commit).await
    }
}

#[tokio::test]
async fn floor_is_not_raised_past_a_message_of_another_front_end() {
    static HELD: HeldCommit = HeldCommit { reached: Notify::const_new(), release: Notify::const_new() };
    let server = start().await;
    let other = server.other_front_end(|parts| {
        QueueService::new(Arc::new(Interposed::new(parts.store, &HELD)), parts.accounts)
    });
    let cache_passes_the_slot = async {
        HELD.reached.notified().await;
        server.advance(1);
        assert_eq!(get(&server, "").await, [], "the message is not committed yet");
        HELD.release.notify_one();
    };
    tokio::join!(put(&other, "other", ""), cache_passes_the_slot);
    let mut texts = vec![];
    for _ in 0..40 {
        server.advance(60);
        join_all((0..64).map(|_| put(&server, "x", ""))).await;
        for _ in 0..2 {
            let got = get(&server, "?numofmessages=32").await;
            for deleted in join_all(got.iter().map(|message| delete(&server, message))).await {
                deleted.expect(204);
            }
            texts.extend(got.into_iter().filter_map(|message| message.text));
        }
    }
    let later = server.other_front_end(make);
    texts.extend(visible(&later).await);
    assert_eq!(texts.iter().filter(|text| *text == "other").count(), 1);
}
