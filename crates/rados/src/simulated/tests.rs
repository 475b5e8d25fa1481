use std::time::Duration;

use super::*;
use crate::{Cluster, OmapRange, ReadStep, ReadValue, WriteStep};

const TIMEOUT: Duration = Duration::from_secs(10);

fn object() -> ObjectName {
    ObjectName("object".into())
}

fn set(key: &str) -> WriteOp {
    WriteOp::new([WriteStep::SetOmap(vec![(Bytes::copy_from_slice(key.as_bytes()), "v".into())])])
}

async fn keys(connection: &Connection) -> Result<usize, ReadFailure> {
    let range = OmapRange { from: Bytes::new(), end: "~".into(), limit: 100 };
    let reply = connection.read(Pool::Meta, &object(), ReadOp::new([ReadStep::OmapRange(range)])).await?;
    match &reply[0] {
        ReadValue::OmapRange(page) => Ok(page.entries.len()),
        other => panic!("{other:?}"),
    }
}

/// Sends ten ops through two connections, and returns the results and the digest.
async fn run(seed: u64) -> (Vec<bool>, u64) {
    let faults = Faults {
        lost_request_per_mille: 200,
        lost_reply_per_mille: 200,
        late_per_mille: 100,
        slow_per_mille: 300,
        slow_millis: 500,
        short_page_per_mille: 300,
    };
    let cluster = SimulatedCluster::new(seed, faults);
    let connections = [cluster.connect("a"), cluster.connect("b")];
    let writes = (0..10).map(|i| {
        let connection = connections[i % 2].clone();
        tokio::spawn(async move {
            connection.write(Pool::Meta, &object(), set(&i.to_string()), TIMEOUT).await.is_ok()
        })
    });
    let mut results = vec![];
    for write in writes.collect::<Vec<_>>() {
        results.push(write.await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    (results, cluster.fingerprint())
}

#[tokio::test(start_paused = true)]
async fn seed_always_gives_the_same_run_and_another_seed_another_one() {
    let first = run(1).await;
    assert_eq!(run(1).await, first);
    assert_ne!(run(2).await.1, first.1);
    let mut failed = vec![];
    for seed in 0..10 {
        failed.push(run(seed).await.0.iter().filter(|ok| !**ok).count());
    }
    assert!(failed.iter().sum::<usize>() > 20, "half of the ops have no reply: {failed:?}");
}

#[tokio::test(start_paused = true)]
async fn op_without_reply_may_take_effect_after_its_sender_gave_up() {
    let cluster = SimulatedCluster::new(1, Faults { late_per_mille: 1000, ..Faults::NONE });
    let connection = cluster.connect("a");
    let result = connection.write(Pool::Meta, &object(), set("a"), TIMEOUT).await;
    assert!(matches!(result, Err(WriteError::InDoubt(_))));
    assert!(cluster.object_names(Pool::Meta).is_empty());
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(cluster.object_names(Pool::Meta), [object()]);
}

#[tokio::test(start_paused = true)]
async fn fenced_connection_may_write_until_the_machine_knows_the_map_and_never_after_a_read() {
    let mut written_late = 0;
    for seed in 0..50 {
        let cluster = SimulatedCluster::new(seed, Faults::NONE);
        let (fenced, successor) = (cluster.connect("a"), cluster.connect("b"));
        successor.write(Pool::Meta, &object(), set("first"), TIMEOUT).await.unwrap();
        successor.fence(fenced.address()).await.unwrap();
        written_late += u32::from(fenced.write(Pool::Meta, &object(), set("late"), TIMEOUT).await.is_ok());
        let found = keys(&successor).await.unwrap();
        let refused = fenced.write(Pool::Meta, &object(), set("later"), TIMEOUT).await;
        assert_eq!(refused, Err(WriteError::Fenced));
        assert_eq!(keys(&successor).await, Ok(found), "the read after the fence was final");
        assert_eq!(keys(&fenced).await, Err(ReadFailure::Fenced));
    }
    assert!((5..50).contains(&written_late), "{written_late}");
}

#[tokio::test(start_paused = true)]
async fn frozen_connection_sends_nothing_and_stopped_machine_performs_ops_when_it_returns() {
    let cluster = SimulatedCluster::new(1, Faults::NONE);
    let connection = cluster.connect("a");
    connection.freeze();
    let writer = connection.clone();
    let write = tokio::spawn(async move { writer.write(Pool::Meta, &object(), set("a"), TIMEOUT).await });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!write.is_finished() && cluster.object_names(Pool::Meta).is_empty());
    (0..MACHINES).for_each(|machine| cluster.stop_machine(machine, Duration::from_secs(5)));
    connection.wake();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(cluster.object_names(Pool::Meta).is_empty());
    assert_eq!(write.await.unwrap(), Ok(()));
    assert_eq!(keys(&connection).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn watcher_receives_messages() {
    let cluster = SimulatedCluster::new(1, Faults::NONE);
    let connection = cluster.connect("a");
    let mut watch = connection.watch(Pool::Meta, &object()).await.unwrap();
    connection.notify(Pool::Meta, &object(), "changed".into(), TIMEOUT).await;
    assert_eq!(watch.next().await, Some("changed".into()));
}
