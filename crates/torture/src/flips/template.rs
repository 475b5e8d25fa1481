//! Creates a data directory with all kinds of files, as a crash leaves it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_extents::{Content, Extents, LocalExtents};
use lazuli_store::{Commit, Directory, Embedded, Mutation, Options, Partition, SpaceHeader, SpaceId, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Prefix of the keys of rows that refer to content.
pub const CONTENT: &[u8] = b"content/";
/// The folder of the rows.
pub const STORE: &str = "store";
/// The epoch of the template's space.
const EPOCH: u64 = 1;
/// Longer than the time without commits after which the last frame of the log is marked as durable.
const DURABLE_MARK_DELAY: Duration = Duration::from_millis(500);

/// Memory and disk for a store of a few rows. An open continues in the last segment of the log, as with the
/// usual options. If segments were too small for that, the open would flush, and the additional table in the
/// first level could start a compaction.
pub const OPTIONS: Options = Options {
    cache_bytes: 1 << 20,
    run_bytes: 64 << 10,
    memtable_bytes: 256 << 10,
    log_segment_bytes: 128 << 10,
    ..Options::SMALL
};
/// Segments that grow in small steps.
pub const EXTENTS: lazuli_extents::Options =
    lazuli_extents::Options { segment_bytes: 16 << 20, grow_bytes: 32 << 10 };

/// Creates the template in `dir`, an empty directory, using an empty directory `scratch`.
pub async fn make(dir: &Path, scratch: &Path) {
    let mut random = StdRng::seed_from_u64(20);
    let space = first_tables(scratch, &mut random).await;
    // Simulate a crash: copy the open directory, so that the log holds rows that are in no table.
    let (store, extents) = open(scratch);
    commit(&store, space, "logged", random_rows(&mut random, 10)).await;
    commit(&store, space, "logged", contents(&extents, &mut random).await).await;
    let delete = vec![Mutation::Delete("row 01".into())];
    commit(&store, space, "level 6", delete).await;
    std::thread::sleep(DURABLE_MARK_DELAY);
    copy(scratch, dir, |_| true);
    drop((store, extents));
    std::fs::remove_dir_all(scratch).expect("removed");
}

/// Creates a table in the last level and one in the first.
async fn first_tables(dir: &Path, random: &mut StdRng) -> SpaceId {
    drop(Directory::open(dir).expect("a data directory"));
    std::fs::create_dir(dir.join(STORE)).expect("made");
    let (store, _) = open(dir);
    let space = store.new_space().await.expect("a space");
    store.set_space(space, None, SpaceHeader { epoch: EPOCH, open: true }).await.expect("opened");
    commit(&store, space, "level 6", random_rows(random, 24)).await;
    drop(store);
    let (store, _) = open(dir);
    store.compact().expect("compacted");
    drop(store);
    let (store, extents) = open(dir);
    commit(&store, space, "level 0", random_rows(random, 12)).await;
    commit(&store, space, "level 0", contents(&extents, random).await).await;
    drop((store, extents));
    space
}

fn open(dir: &Path) -> (Embedded, LocalExtents) {
    let store = Embedded::open(&dir.join(STORE), Arc::new(SystemClock), OPTIONS).expect("the store opens");
    (store, LocalExtents::open(dir, EXTENTS).expect("the extents open"))
}

fn random_rows(random: &mut StdRng, rows: usize) -> Vec<Mutation> {
    let row = |i| Mutation::Put(format!("row {i:02}").into(), random.random::<[u8; 24]>().to_vec().into());
    (0..rows).map(row).collect()
}

async fn contents(extents: &LocalExtents, random: &mut StdRng) -> Vec<Mutation> {
    let writer = extents.writer();
    let mut rows = vec![];
    for bytes in [200, 700] {
        let payload = Bytes::from((0..bytes).map(|_| random.random()).collect::<Vec<u8>>());
        let extent = extents.append(&writer, vec![payload]).await.expect("appended");
        let mut value = vec![];
        Content::extent(extent).encode(&mut value);
        rows.push(Mutation::Put([CONTENT, bytes.to_string().as_bytes()].concat().into(), value.into()));
    }
    extents.sync().await.expect("synced");
    rows
}

async fn commit(store: &Embedded, space: SpaceId, partition: &'static str, mutations: Vec<Mutation>) {
    let (stamp, conditions) = (store.stamp(), vec![]);
    let commit =
        Commit { stamp, epoch: EPOCH, conditions, mutations, valid_until: None, fence: None, bulk: false };
    store.commit(&Partition::new(space, partition), commit).await.expect("committed");
}

/// Copies the folders of a directory, and the files for which `wanted` returns true.
pub fn copy(from: &Path, to: &Path, wanted: fn(&Path) -> bool) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let (path, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).expect("listed");
        if path.is_dir() {
            copy(&path, &to, wanted);
        } else if wanted(&path) {
            std::fs::write(to, std::fs::read(&path).expect("read")).expect("written");
        }
    }
}
