//! Expired messages: invisible to all clients at once, and removed from the disk a little later.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderMap;
use lazuli_concurrency::Pace;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Operation, Query, Request, Service, Version};
use lazuli_queue::QueueRows;
use lazuli_store::{Commit, MAX_MUTATIONS, Mutation, Partition, Row, SpaceId};
use lazuli_testing::{ACCOUNT, AllRows};

use crate::support::{Server, count, delete, get, get_one, put, start, update, visible};

/// Returns the number of messages stored in all queues.
fn message_rows(server: &Server) -> usize {
    let (mut rows, mut check) = (0, QueueRows::default());
    let visit = |space, partition: &Bytes, row: &Row| {
        check.check(space, partition, row).unwrap();
        rows += usize::from(space != SpaceId::ROOT && row.key.starts_with(b"m"));
        Ok(())
    };
    server.store.for_each_row(visit).unwrap();
    rows
}

#[tokio::test]
async fn expired_message_disappears_from_every_operation_at_once() {
    let server = start().await;
    put(&server, "short", "?messagettl=10").await;
    put(&server, "long", "").await;
    let held = put(&server, "held", "?messagettl=10&visibilitytimeout=5").await;
    let ever = put(&server, "ever", "?messagettl=-1").await;
    server.advance(9);
    assert_eq!(visible(&server).await, ["short", "long", "ever", "held"]);
    assert_eq!(count(&server).await, 4);
    server.advance(1);
    assert_eq!(visible(&server).await, ["long", "ever"]);
    assert_eq!(count(&server).await, 2);
    delete(&server, &held).await.refused(404, "MessageNotFound");
    update(&server, &held, 0, None).await.refused(404, "MessageNotFound");
    assert_eq!(get(&server, "?numofmessages=32").await.len(), 2);
    server.advance(8 * 24 * 60 * 60);
    let got = get_one(&server, "?numofmessages=32").await;
    assert_eq!((got.id, got.text.as_deref()), (ever.id, Some("ever")));
}

#[tokio::test]
async fn request_that_skips_many_expired_messages_yields_to_other_tasks() {
    for operation in [Operation::GetMessages, Operation::PeekMessages] {
        let server = start().await;
        put(&server, "short", "?messagettl=1").await;
        multiply(&server, 8000).await;
        server.advance(1);
        let yields = Arc::new(AtomicUsize::new(0));
        let counter = yields.clone();
        let others = tokio::spawn(async move {
            loop {
                counter.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        server.service.call(request(&server, operation).await).await.unwrap();
        let yields = yields.load(Ordering::Relaxed);
        others.abort();
        assert!(yields > 5, "{operation:?}: {yields}");
    }
}

/// Adds `times` copies of the only message, in the slots that follow it.
async fn multiply(server: &Server, times: u64) {
    let mut found = None;
    let visit = |space, partition: &Bytes, row: &Row| {
        if space != SpaceId::ROOT && row.key.starts_with(b"m") {
            found = Some((Partition::new(space, partition.clone()), row.clone()));
        }
        Ok(())
    };
    server.store.for_each_row(visit).unwrap();
    let (partition, message) = found.unwrap();
    let epoch = server.store.space(partition.space).await.unwrap().unwrap().epoch;
    let (before, stamp) = message.key.split_at(message.key.len() - 9);
    let first = stamp[..8].iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let copies: Vec<_> = (1..=times).map(|n| [before, &(first + n).to_be_bytes(), &[0]].concat()).collect();
    for some in copies.chunks(MAX_MUTATIONS) {
        let put = |key: &Vec<u8>| Mutation::Put(key.clone().into(), message.value.clone());
        let commit = Commit {
            stamp: server.store.stamp(),
            epoch,
            conditions: vec![],
            mutations: some.iter().map(put).collect(),
            valid_until: None,
            fence: None,
            bulk: false,
        };
        server.store.commit(&partition, commit).await.unwrap();
    }
}

/// Builds a request as the HTTP front end does.
async fn request(server: &Server, operation: Operation) -> Request {
    Request {
        operation,
        account: server.accounts.get(ACCOUNT).await.unwrap().unwrap(),
        properties: Arc::default(),
        container: "jobs".into(),
        object: "messages".into(),
        query: Query::default(),
        headers: HeaderMap::default(),
        version: Version::NEWEST,
        caller: Caller::Key,
        body: full(""),
        content_length: None,
        now: server.store.now(),
        request_id: uuid::Uuid::nil(),
        endpoint: String::new(),
        secure: false,
        peer: server.address.ip(),
        sub_requests: None,
    }
}

#[tokio::test]
async fn invisible_message_expires_too() {
    let server = start().await;
    put(&server, "a", "?messagettl=40").await;
    let got = get_one(&server, "?visibilitytimeout=604800").await;
    server.advance(39);
    let updated = update(&server, &got, 0, None).await.expect(204);
    let held = crate::support::ListedMessage {
        receipt: updated.header("x-ms-popreceipt").map(str::to_owned),
        ..got
    };
    server.advance(1);
    delete(&server, &held).await.refused(404, "MessageNotFound");
    assert!(get(&server, "").await.is_empty());
}

#[tokio::test]
async fn expired_rows_of_an_unread_queue_are_removed() {
    let server = start().await;
    server.put("/other", "", "").await.expect(201);
    for n in 0..300 {
        put(&server, &n.to_string(), if n % 3 == 0 { "?messagettl=-1" } else { "?messagettl=100" }).await;
    }
    server.post("/other/messages?messagettl=50", "", crate::support::body("x")).await.expect(201);
    assert_eq!(message_rows(&server), 301);
    assert!(!server.service.expiry_due());
    server.advance(60);
    assert!(server.service.expiry_due());
    assert_eq!(server.service.expire(Pace::FULL).await.unwrap(), 1);
    assert!(!server.service.expiry_due());
    server.advance(50);
    assert!(server.service.expiry_due());
    assert_eq!(server.service.expire(Pace::FULL).await.unwrap(), 200);
    assert_eq!((message_rows(&server), count(&server).await), (100, 100));
    server.advance(1_000_000);
    assert!(!server.service.expiry_due());

    // After a start no expiry times are known, so all queues are walked once.
    put(&server, "last", "?messagettl=10").await;
    let server = server.restart().await;
    server.advance(100);
    assert!(server.service.expiry_due());
    assert_eq!(server.service.expire(Pace::FULL).await.unwrap(), 1);
    assert_eq!(message_rows(&server), 100);
}

#[tokio::test]
async fn expired_messages_at_the_front_do_not_hide_later_ones() {
    let server = start().await;
    for _ in 0..200 {
        put(&server, "x", "?messagettl=1").await;
    }
    put(&server, "alive", "").await;
    server.advance(1);
    assert_eq!(visible(&server).await, ["alive"]);
    assert_eq!(get_one(&server, "").await.text.as_deref(), Some("alive"));
}

#[tokio::test]
async fn candidates_that_expire_or_are_deleted_do_not_hide_later_messages() {
    let server = start().await;
    let mut doomed = vec![];
    for n in 0..200 {
        doomed.push(put(&server, "x", if n % 2 == 0 { "?messagettl=2" } else { "" }).await);
    }
    put(&server, "alive", "").await;
    assert_eq!(visible(&server).await.len(), 32, "the messages are candidates");
    for message in doomed.iter().skip(1).step_by(2) {
        delete(&server, message).await.expect(204);
    }
    server.advance(2);
    assert_eq!(get_one(&server, "").await.text.as_deref(), Some("alive"));
}

#[tokio::test]
async fn rows_of_deleted_and_cleared_queues_are_removed() {
    let server = start().await;
    for n in 0..50 {
        put(&server, &n.to_string(), "").await;
    }
    server.delete("/jobs/messages", "").await.expect(204);
    put(&server, "kept", "").await;
    assert_eq!(message_rows(&server), 51);
    assert!(server.service.garbage_due());
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
    assert_eq!((message_rows(&server), visible(&server).await), (1, vec!["kept".to_owned()]));
    server.delete("/jobs", "").await.expect(204);
    assert_eq!(server.service.sweep_garbage(Pace::FULL).await.unwrap().spaces, 1);
    assert_eq!(message_rows(&server), 0);
    assert!(!server.service.garbage_due());
}
