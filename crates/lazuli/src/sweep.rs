//! Gives back the space of content that no row refers to any more.

use std::sync::Arc;
use std::time::Duration;

use lazuli_extents::{Extents, Freed, Pace, Sweep};
use lazuli_store::{Embedded, ReadError};

use crate::records::{self, Found, RecordReader};

/// Rows read between two pauses.
const STRIDE: u64 = 1024;

/// Looks at all rows, then frees what none of them refers to. If one cannot be understood, nothing is freed, because
/// what it refers to is not known. Nothing is freed either if the future is dropped before it gets to that.
pub(crate) async fn sweep(
    store: &Arc<Embedded>,
    extents: &Arc<dyn Extents>,
    readers: Vec<Box<dyn RecordReader>>,
    pace: Pace,
) -> Result<Freed, String> {
    let mut sweep = Sweep::begin(extents, pace).await.map_err(|error| error.to_string())?;
    // A client that went away took its writer along, but not what it had submitted. That is in the rows now, or never will
    // be; what is submitted later has a writer that the sweep knows of.
    store.settled().await.map_err(|error| error.to_string())?;
    let store = Arc::clone(store);
    let (mut finds, walk) = records::walk(readers, move |visit| {
        let mut rows = 0u64;
        store.for_each_row(|space, partition, row| {
            rows += 1;
            if rows.is_multiple_of(STRIDE) && pace.pause > Duration::ZERO {
                std::thread::sleep(pace.pause);
            }
            visit(space, partition, row)
        })
    });
    while let Some(found) = finds.next().await {
        match found {
            Found::Content(content) => sweep.live(&content).await.map_err(|error| error.to_string())?,
            Found::Damage(damage) => return Err(damage),
        }
    }
    // Only a walk that came to its end has seen everything.
    let walked: Result<(), ReadError> = walk.await.map_err(|error| error.to_string())?;
    walked.map_err(|error| error.to_string())?;
    sweep.finish().await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use lazuli_concurrency::SystemClock;
    use lazuli_extents::{Content, LocalExtents, Upload, read_all};
    use lazuli_store::{
        Change, Decision, Gate, Mutation, Options, Partition, Reads, Row, SpaceHeader, SpaceId, Store, View,
        transact,
    };

    use super::*;
    use crate::records::Contents;

    const BODY: usize = 1 << 20;

    /// Takes every row but `broken` for content.
    struct EveryRow;

    impl RecordReader for EveryRow {
        fn contents(&mut self, _: SpaceId, _: &[u8], row: &Row) -> Result<Contents, String> {
            if row.key == "broken" {
                return Err("a broken row".into());
            }
            Content::decode(row.value.clone()).map(|content| vec![content]).ok_or_else(|| "no content".into())
        }
    }

    fn open(dir: &Path) -> (Arc<Embedded>, Arc<dyn Extents>) {
        let options = Options { cache_bytes: 1 << 20, ..Options::default() };
        let store = Embedded::open(dir, Arc::new(SystemClock), options).unwrap();
        (Arc::new(store), Arc::new(LocalExtents::open(dir, Default::default()).unwrap()))
    }

    async fn upload(extents: &Arc<dyn Extents>, byte: u8) -> Content {
        let writer = extents.writer();
        let mut upload = Upload::new(extents, &writer);
        upload.push(vec![byte; BODY].into()).await.unwrap();
        let content = upload.finish().await.unwrap();
        extents.sync().await.unwrap();
        content
    }

    async fn change(store: &Embedded, mutation: Mutation) {
        // A new store makes its root space behind the scenes; this waits for it.
        let _ = store.set_space(SpaceId::ROOT, None, SpaceHeader { epoch: 0, open: true }).await;
        put(store, mutation).await;
    }

    async fn put(store: &Embedded, mutation: Mutation) {
        let rule = |_: &View<'_>| Ok::<_, ()>(Decision::Write(Change::of([mutation.clone()]), ()));
        let partition = Partition::new(SpaceId::ROOT, "p");
        transact(store, &Gate::default(), &partition, Reads::default(), rule).await.unwrap();
    }

    async fn sweep_all(store: &Arc<Embedded>, extents: &Arc<dyn Extents>) -> Result<Freed, String> {
        sweep(store, extents, vec![Box::new(EveryRow)], Pace::FULL).await
    }

    #[tokio::test]
    async fn what_a_row_refers_to_stays_and_the_rest_is_freed_unless_a_row_cannot_be_understood() {
        let dir = tempfile::tempdir().unwrap();
        let (store, extents) = open(dir.path());
        let kept = upload(&extents, 1).await;
        upload(&extents, 2).await;
        let mut row = Vec::new();
        kept.encode(&mut row);
        change(&store, Mutation::Put("kept".into(), row.into())).await;
        change(&store, Mutation::Put("broken".into(), Bytes::new())).await;
        // Segments are freed once they are no longer written to.
        drop((store, extents));
        let (store, extents) = open(dir.path());

        let allocated = extents.space().allocated_bytes;
        assert!(allocated >= 2 * BODY as u64);
        assert_eq!(sweep_all(&store, &extents).await, Err("a broken row".into()));
        assert_eq!(extents.space().allocated_bytes, allocated);

        change(&store, Mutation::Delete("broken".into())).await;
        let freed = sweep_all(&store, &extents).await.unwrap();
        assert!(freed.bytes >= BODY as u64 && freed.live_bytes >= BODY as u64, "{freed:?}");
        assert!(extents.space().allocated_bytes < allocated);
        assert_eq!(read_all(&extents, &kept, 0..BODY as u64, BODY).await.unwrap(), vec![1; BODY]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_a_client_has_submitted_that_went_away_is_not_freed() {
        let dir = tempfile::tempdir().unwrap();
        let (store, extents) = open(dir.path());
        change(&store, Mutation::Delete("row".into())).await;
        for round in 0..100u8 {
            let writer = extents.writer();
            let extent = extents.append(&writer, vec![vec![round; 70_000].into()]).await.unwrap();
            extents.sync().await.unwrap();
            let content = Content::extent(extent);
            let mut row = Vec::new();
            content.encode(&mut row);
            let row = Mutation::Put("row".into(), row.into());
            tokio::select! {
                biased;
                () = put(&store, row) => unreachable!("it waits for its commit"),
                () = std::future::ready(()) => {}
            }
            drop(writer);
            sweep_all(&store, &extents).await.unwrap();
            let read = read_all(&extents, &content, 0..70_000, 70_000).await;
            assert_eq!(read.unwrap(), vec![round; 70_000], "round {round}");
        }
    }
}
