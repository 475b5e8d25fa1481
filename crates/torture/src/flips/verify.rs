//! Verifies one directory in its own process: opening it may fail and damage may be reported, but all rows
//! that are read must be those that were written.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::SystemClock;
use lazuli_extents::{Content, DamageKind, Extents, LocalExtents, read_all};
use lazuli_store::{Directory, Embedded, Partition, Reads, Row, SpaceId, Store, embedded};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::template::{CONTENT, EXTENTS, OPTIONS, STORE};

/// Memory limit of the process in bytes.
const MEMORY: u64 = 512 << 20;
/// Maximum number of bytes of one content.
const MAX_CONTENT: usize = 64 << 10;
/// The exit code after a panic in any thread.
pub const PANICKED: i32 = 101;

/// A row, and the content to which it refers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Expected {
    space: u64,
    partition: Vec<u8>,
    key: Vec<u8>,
    value: Vec<u8>,
    stamp: u64,
    content: Option<Vec<u8>>,
}

/// The result of verifying a directory.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct VerifyOutcome {
    /// Damage that a check reported.
    pub check: Option<String>,
    /// Why the directory could not be opened.
    pub refused: Option<String>,
    /// Damage that a read reported.
    pub read: Option<String>,
    /// Data that was read and is not what was written.
    pub wrong: Option<String>,
}

/// Limits the memory of this process, and ends the process if any of its threads panics.
pub fn limit_process() {
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::As, limit).expect("limited");
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(PANICKED);
    }));
}

/// Reads all rows of an undamaged directory.
pub async fn record(dir: &Path) -> Vec<Expected> {
    let extents = LocalExtents::open_read_only(dir).expect("the extents open");
    let (mut rows, mut expected) = (vec![], vec![]);
    let checked = embedded::check(&dir.join(STORE), |space, partition, row| {
        rows.push((space, partition.clone(), row.clone()));
        Ok(())
    });
    checked.expect("the rows are sound");
    for (space, partition, row) in rows {
        let content = content(&extents, &row.key, &row.value).await.expect("readable");
        expected.push(Expected::of(space, &partition, &row, content.map(Into::into)));
    }
    expected
}

impl Expected {
    fn of(space: SpaceId, partition: &Bytes, row: &Row, content: Option<Vec<u8>>) -> Self {
        Self {
            space: space.0,
            partition: partition.to_vec(),
            key: row.key.to_vec(),
            value: row.value.to_vec(),
            stamp: row.token.0.ticks(),
            content,
        }
    }

    fn is(&self, row: &Row) -> bool {
        (&self.key[..], &self.value[..], self.stamp) == (&row.key, &row.value, row.token.0.ticks())
    }
}

async fn content(
    extents: &LocalExtents,
    key: &[u8],
    value: &Bytes,
) -> Result<Option<Bytes>, lazuli_extents::Error> {
    if !key.starts_with(CONTENT) {
        return Ok(None);
    }
    let content = Content::decode(value.clone()).expect("the row is as it was written");
    let extents: Arc<dyn Extents> = Arc::new(extents.clone());
    read_all(&extents, &content, 0..content.len(), MAX_CONTENT).await.map(Some)
}

/// Verifies a directory with a check and with an open.
pub async fn verify(dir: &Path, expected: &[Expected]) -> VerifyOutcome {
    let mut outcome = VerifyOutcome::default();
    check(dir, expected, &mut outcome).await;
    open(dir, expected, &mut outcome).await;
    outcome
}

/// Records a finding, unless there is one already.
fn record_first(place: &mut Option<String>, what: impl Display) {
    place.get_or_insert_with(|| what.to_string());
}

/// Checks the directory like `lazuli check`.
async fn check(dir: &Path, expected: &[Expected], outcome: &mut VerifyOutcome) {
    let _lock = match Directory::open_read_only(dir) {
        Ok(lock) => lock,
        Err(error) => return record_first(&mut outcome.check, error),
    };
    let store = dir.join(STORE);
    match embedded::damaged_tables(&store, |_, _| ()) {
        Ok(tables) => tables.iter().for_each(|(table, what)| {
            record_first(&mut outcome.check, format!("{}: {what}", table.display()))
        }),
        Err(error) => record_first(&mut outcome.check, error),
    }
    let (mut at, mut wrong) = (0, None);
    let checked = embedded::check(&store, |space, partition, row| {
        let is_next =
            expected.get(at).is_some_and(|e| e.space == space.0 && e.partition == *partition && e.is(row));
        if !is_next {
            record_first(&mut wrong, format!("check: row {at} is {:?}", row.key));
        }
        at += 1;
        Ok(())
    });
    outcome.wrong = wrong;
    match checked {
        Err(error) => record_first(&mut outcome.check, error),
        Ok(()) if at != expected.len() => record_first(&mut outcome.wrong, format!("check: {at} rows")),
        Ok(()) => {}
    }
    let extents = match LocalExtents::open_read_only(dir) {
        Ok(extents) => extents,
        Err(error) => return record_first(&mut outcome.check, error),
    };
    let mut verifier = extents.verifier();
    for row in expected.iter().filter(|row| row.content.is_some()) {
        let content = Content::decode(row.value.clone().into()).expect("decoded before");
        for (_, error) in verifier.content(&content).await.expect("the content can be read") {
            record_first(&mut outcome.check, error);
        }
    }
    for damage in extents.scrub(|_| ()).await.expect("the content can be read").damage {
        if damage.kind != DamageKind::Unclaimed {
            record_first(&mut outcome.check, format!("{damage:?}"));
        }
    }
}

/// Opens the directory like a server, and reads every row by its key and in order.
async fn open(dir: &Path, expected: &[Expected], outcome: &mut VerifyOutcome) {
    let _lock = match Directory::open(dir) {
        Ok(lock) => lock,
        Err(error) => return record_first(&mut outcome.refused, error),
    };
    let store = match Embedded::open(&dir.join(STORE), Arc::new(SystemClock), OPTIONS) {
        Ok(store) => store,
        Err(error) => return record_first(&mut outcome.refused, error),
    };
    let extents = match LocalExtents::open(dir, EXTENTS) {
        Ok(extents) => extents,
        Err(error) => return record_first(&mut outcome.refused, error),
    };
    for rows in expected.chunk_by(|a, b| (a.space, &a.partition) == (b.space, &b.partition)) {
        let partition = Partition::new(SpaceId(rows[0].space), rows[0].partition.clone());
        let all = Reads { keys: vec![], ranges: vec![(Bytes::new()..Bytes::from_static(&[0xff; 8]), 1000)] };
        match store.read(&partition, &all).await {
            Ok(set) => {
                let found = &set.ranges[0].rows;
                if found.len() != rows.len() || !rows.iter().zip(found).all(|(row, found)| row.is(found)) {
                    record_first(
                        &mut outcome.wrong,
                        format!("{:?}: {} rows in order", partition.key, found.len()),
                    );
                }
            }
            Err(error) => record_first(&mut outcome.read, error),
        }
        for row in rows {
            let key = Reads { keys: vec![row.key.clone().into()], ranges: vec![] };
            match store.read(&partition, &key).await.map(|mut set| set.rows.remove(0)) {
                Ok(Some(found)) if row.is(&found) => {}
                Ok(found) => record_first(
                    &mut outcome.wrong,
                    format!("{:?}: {found:?}", String::from_utf8_lossy(&row.key)),
                ),
                Err(error) => record_first(&mut outcome.read, error),
            }
            match content(&extents, &row.key, &row.value.clone().into()).await {
                Ok(found) if found.as_deref() == row.content.as_deref() => {}
                Ok(_) => record_first(
                    &mut outcome.wrong,
                    format!("content of {:?}", String::from_utf8_lossy(&row.key)),
                ),
                Err(error) => record_first(&mut outcome.read, error),
            }
        }
    }
    store.close();
}
