//! A walk over all rows of a store, for those who need to know what content they refer to: sweeps and checks.

use bytes::Bytes;
use lazuli_extents::Content;
use lazuli_store::{ReadError, Row, SpaceId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What rows refer to.
pub(crate) type Contents = Vec<Content>;

/// As much of what was found is handed over at once: to wake somebody for each row would cost more than to read it.
const TOGETHER: usize = 64;
/// Such lots that wait to be looked at. Bounds the memory of a walk.
const WAITING: usize = 4;

/// Reads the rows of one service.
pub(crate) trait RecordReader: Send {
    /// The content that a row refers to; none for a row of somebody else. Fails with what is wrong with a row that
    /// cannot be understood. Rows come in order of space, partition and key, those of the directory of accounts first.
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String>;
}

/// Something that a walk came across.
pub(crate) enum Found {
    /// A row refers to this.
    Content(Content),
    /// A row cannot be understood.
    Damage(String),
}

/// How a walk is given its rows: it returns early when the visitor fails.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(SpaceId, &Bytes, &Row) -> Result<(), ReadError>;

/// What a walk under way comes across.
pub(crate) struct Finds {
    lots: mpsc::Receiver<Vec<Found>>,
    lot: std::vec::IntoIter<Found>,
}

impl Finds {
    /// The next one. `None` when the walk is over, whether it got to its end or not.
    pub(crate) async fn next(&mut self) -> Option<Found> {
        loop {
            if let Some(found) = self.lot.next() {
                return Some(found);
            }
            self.lot = self.lots.recv().await?.into_iter();
        }
    }
}

/// Reads rows in a thread of its own, with the readers' help. `rows` hands every row to the visitor; its result is the
/// task's. The walk ends early when the finds are dropped.
pub(crate) fn walk<T: Send + 'static>(
    mut readers: Vec<Box<dyn RecordReader>>,
    rows: impl FnOnce(Visit<'_>) -> T + Send + 'static,
) -> (Finds, JoinHandle<T>) {
    let (sender, lots) = mpsc::channel(WAITING);
    let walk = tokio::task::spawn_blocking(move || {
        let given_up = || ReadError::Io("the walk was given up".into());
        let mut lot = vec![];
        let walked = rows(&mut |space, partition, row| {
            for reader in &mut readers {
                match reader.contents(space, partition, row) {
                    Ok(contents) => lot.extend(contents.into_iter().map(Found::Content)),
                    Err(damage) => lot.push(Found::Damage(damage)),
                }
            }
            if lot.len() >= TOGETHER {
                sender.blocking_send(std::mem::take(&mut lot)).map_err(|_| given_up())?;
            }
            if sender.is_closed() { Err(given_up()) } else { Ok(()) }
        });
        // If nobody listens any more, nobody misses it.
        let _ = sender.blocking_send(lot);
        walked
    });
    (Finds { lots, lot: vec![].into_iter() }, walk)
}
