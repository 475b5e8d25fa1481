//! Many concurrent clients. The outcome must be that of some order of the requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use lazuli_store::{Partition, SpaceId};

use crate::support::{TestServer, start};

const CLIENTS: usize = 32;
const BLOCK: &str = "x-ms-blob-type: BlockBlob";

async fn server() -> Arc<TestServer> {
    let server = start().await;
    server.create_container("con").await;
    Arc::new(server)
}

/// Runs this number of clients, each in its own task.
async fn clients<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    count: usize,
    client: impl Fn(usize) -> F,
) -> Vec<T> {
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(client(n))).collect();
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_updates_under_if_match_lose_no_increment() {
    let server = server().await;
    server.put_block_blob("/con/counter", "0").await;
    const EACH: usize = 5;
    clients(CLIENTS, |_| {
        let server = server.clone();
        async move {
            let mut done = 0;
            while done < EACH {
                let read = server.get("/con/counter", "").await.expect(200);
                let next = read.text().parse::<u64>().unwrap() + 1;
                let headers = format!("{BLOCK}\nif-match: {}", read.etag());
                let put = server.put("/con/counter", &headers, next.to_string()).await;
                match put.outcome() {
                    (201, _) => done += 1,
                    outcome => assert_eq!(outcome, (412, "ConditionNotMet")),
                }
            }
        }
    })
    .await;
    let total = (CLIENTS * EACH).to_string();
    assert_eq!(server.get("/con/counter", "").await.text(), total);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_concurrent_creates_succeeds() {
    let server = server().await;
    for round in 0..5 {
        let blob = format!("/con/{round}");
        let outcomes = clients(CLIENTS, |n| {
            let (server, blob) = (server.clone(), blob.clone());
            async move {
                let headers = format!("{BLOCK}\nif-none-match: *");
                let reply = server.put(&blob, &headers, n.to_string()).await;
                let outcome = reply.outcome();
                assert!(matches!(outcome, (201, _) | (409, "BlobAlreadyExists")), "{outcome:?}");
                outcome.0 == 201
            }
        })
        .await;
        let winners: Vec<_> = (0..CLIENTS).filter(|n| outcomes[*n]).collect();
        let [winner] = winners[..] else { panic!("{winners:?}") };
        assert_eq!(server.get(&blob, "").await.text(), winner.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lease_has_at_most_one_holder_even_when_it_expires() {
    let server = server().await;
    server.put_block_blob("/con/b", "").await;
    let done = Arc::new(AtomicBool::new(false));
    // Advance the time now and then, so that leases expire while they are held.
    let time = tokio::spawn({
        let (server, done) = (server.clone(), done.clone());
        async move {
            while !done.load(Ordering::SeqCst) {
                server.advance(5);
                tokio::time::sleep(std::time::Duration::from_millis(3)).await;
            }
        }
    });
    let (taken, lost) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    clients(CLIENTS, |n| {
        let (server, taken, lost) = (server.clone(), taken.clone(), lost.clone());
        async move {
            for turn in 0..8 {
                let id = format!("{n:08x}-0000-4000-8000-{turn:012x}");
                let acquire = format!(
                    "x-ms-lease-action: acquire\nx-ms-lease-duration: 15\nx-ms-proposed-lease-id: {id}"
                );
                let reply = server.put("/con/b?comp=lease", &acquire, "").await;
                if reply.outcome() == (409, "LeaseAlreadyPresent") {
                    continue;
                }
                reply.expect(201);
                taken.fetch_add(1, Ordering::SeqCst);
                // The holder of the lease appends its name to the list of holders. If there were two holders,
                // one name would be missing.
                let holders = server.get("/con/b", "").await.expect(200).text().to_owned();
                let headers = format!("{BLOCK}\nx-ms-lease-id: {id}");
                let written = server.put("/con/b", &headers, format!("{holders}{n}.{turn} ")).await;
                match written.outcome() {
                    (201, _) => {
                        let release = format!("x-ms-lease-action: release\nx-ms-lease-id: {id}");
                        let released = server.put("/con/b?comp=lease", &release, "").await;
                        let outcome = released.outcome();
                        // The lease has expired, and another client has acquired it.
                        assert!(
                            matches!(outcome, (200, _) | (409, "LeaseIdMismatchWithLeaseOperation")),
                            "{outcome:?}"
                        );
                    }
                    outcome => {
                        let ended = [
                            "LeaseLost",
                            "LeaseIdMismatchWithBlobOperation",
                            "LeaseNotPresentWithBlobOperation",
                        ];
                        assert!(outcome.0 == 412 && ended.contains(&outcome.1), "{outcome:?}");
                        lost.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        }
    })
    .await;
    done.store(true, Ordering::SeqCst);
    time.await.unwrap();
    let text = server.get("/con/b", "").await.text().to_owned();
    let holders: Vec<_> = text.split_whitespace().collect();
    assert_eq!(holders.len(), holders.iter().collect::<BTreeSet<_>>().len());
    let (taken, lost) = (taken.load(Ordering::SeqCst), lost.load(Ordering::SeqCst));
    assert_eq!(holders.len() as u64, taken - lost, "every acknowledged holder has written");
    assert!(taken > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_hundred_concurrent_appends_keep_every_byte() {
    let server = server().await;
    server.create_append_blob("/con/log").await;
    const APPENDS: usize = 400;
    let began = std::time::Instant::now();
    let offsets = clients(APPENDS, |n| {
        let server = server.clone();
        async move {
            // Use both inline content and extents.
            let line = format!("{n:03}:{}\n", "x".repeat(if n % 20 == 0 { 20_000 } else { n }));
            let reply = server.append("/con/log", "", line.clone()).await.expect(201);
            (reply.header("x-ms-blob-append-offset").unwrap().parse::<usize>().unwrap(), line)
        }
    })
    .await;
    eprintln!("{APPENDS} appends in {:?}", began.elapsed());
    let got = server.get("/con/log", "").await.expect(200);
    assert_eq!(got.header("x-ms-blob-committed-block-count"), Some("400"));
    assert_eq!(got.body.len(), offsets.iter().map(|(_, line)| line.len()).sum::<usize>());
    for (offset, line) in offsets {
        assert_eq!(&got.text()[offset..offset + line.len()], line);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn block_list_is_committed_as_a_whole() {
    let server = server().await;
    server.put_block_blob("/con/b", "").await;
    let committed = clients(CLIENTS, |n| {
        let server = server.clone();
        async move {
            let mark = char::from(b'A' + n as u8).to_string();
            let mut committed = 0;
            for _ in 0..4 {
                for part in 0..4 {
                    let body = mark.repeat(if part == 3 { 10_000 } else { 10 });
                    server.put_block("/con/b", &format!("{n:02}-{part}"), body).await.expect(201);
                }
                let words = (0..4).map(|part| format!("u:{n:02}-{part}")).collect::<Vec<_>>().join(" ");
                let reply = server.put_block_list("/con/b", "", &words).await;
                match reply.outcome() {
                    (201, _) => committed += 1,
                    // Another list was committed first, and dropped the staged blocks.
                    outcome => assert_eq!(outcome, (400, "InvalidBlockList")),
                }
                let got = server.get("/con/b", "").await.expect(200);
                let first = &got.body[..got.body.len().min(1)];
                assert!(got.body.is_empty() || got.body.len() == 10_030);
                assert!(got.body.iter().all(|byte| *byte == first[0]), "a mixture");
            }
            committed
        }
    })
    .await;
    assert!(committed.iter().sum::<i32>() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acknowledged_block_is_not_dropped_by_a_concurrent_list() {
    let server = server().await;
    server.put_block("/con/b", "x", "0").await.expect(201);
    let done = Arc::new(AtomicBool::new(false));
    let committers: Vec<_> = (0..4)
        .map(|_| {
            let (server, done) = (server.clone(), done.clone());
            tokio::spawn(async move {
                while !done.load(Ordering::SeqCst) {
                    server.put_block_list("/con/b", "", "l:x").await.expect(201);
                }
            })
        })
        .collect();
    for n in 1..100 {
        server.put_block("/con/b", "x", n.to_string()).await.expect(201);
        server.put_block_list("/con/b", "", "l:x").await.expect(201);
        assert_eq!(server.get("/con/b", "").await.text(), n.to_string());
    }
    done.store(true, Ordering::SeqCst);
    for committer in committers {
        committer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_put_blocks_do_not_conflict_and_none_is_lost() {
    let server = server().await;
    const BLOCKS: usize = 500;
    clients(BLOCKS, |n| {
        let server = server.clone();
        async move { server.put_block("/con/b", &format!("{n:03}"), format!("{n:03}")).await.expect(201) }
    })
    .await;
    let words = (0..BLOCKS).map(|n| format!("u:{n:03}")).collect::<Vec<_>>().join(" ");
    server.put_block_list("/con/b", "", &words).await.expect(201);
    let expected: String = (0..BLOCKS).map(|n| format!("{n:03}")).collect();
    assert_eq!(server.get("/con/b", "").await.text(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_lists_find_blocks_that_another_has_just_committed() {
    let server = server().await;
    for round in 0..10 {
        let blob = format!("/con/{round}");
        server.put_block(&blob, "x", "content").await.expect(201);
        let lists = |_| {
            let (server, blob) = (server.clone(), blob.clone());
            async move { server.put_block_list(&blob, "", "l:x").await.expect(201) }
        };
        clients(CLIENTS, lists).await;
        assert_eq!(server.get(&blob, "").await.text(), "content");
    }
}

#[tokio::test]
async fn request_waiting_in_a_gate_does_not_block_a_sweep() {
    let list = "<BlockList><Latest>AAAA</Latest></BlockList>";
    for (target, body) in [("/box/a?comp=appendblock", "more"), ("/box/b?comp=blocklist", list)] {
        let server = Arc::new(start().await);
        server.create_container("box").await;
        server.put("/box/a", "x-ms-blob-type: AppendBlob", "").await.expect(201);
        server.put("/box/b?comp=block&blockid=AAAA", "", "block").await.expect(201);
        let put = || {
            let server = server.clone();
            tokio::spawn(async move { server.put(target, "", body).await })
        };
        // The first request is dropped at its commit. So the second one conflicts, enters the gate, and is
        // paused at its next commit. The third one waits in the gate.
        let watch = &server.watched.interposer;
        let is_blob =
            |partition: &Partition| partition.space != SpaceId::ROOT && partition.key.starts_with(b"b");
        watch.queueing.queue_next(is_blob);
        let first = put();
        watch.queueing.queued().await;
        first.abort();
        watch.queueing.dropped().await;
        let queueing = watch.queueing.clone();
        watch.before_commit_skipping(1, move || queueing.queue_next(is_blob));
        let second = put();
        watch.queueing.queued().await;
        let third = put();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!second.is_finished() && !third.is_finished());
        let swept = tokio::time::timeout(Duration::from_secs(60), server.sweep()).await;
        assert!(swept.is_ok(), "{target}: the sweep waits");
        second.abort();
        third.abort();
    }
}
