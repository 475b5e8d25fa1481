//! A walk over all rows of a store, for those who need to know what content they refer to: sweeps and checks.

use bytes::Bytes;
use lazuli_extents::Content;
use lazuli_store::{ReadError, Row, SpaceId};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What rows refer to.
pub(crate) type Contents = Vec<Content>;

/// Contents that wait to be looked at. Bounds the memory of a walk.
const WAITING: usize = 64;

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

/// Reads rows in a thread of its own, with the readers' help. `rows` hands every row to the visitor; its result is the
/// task's. The walk ends early when the receiver is dropped.
pub(crate) fn walk<T: Send + 'static>(
    mut readers: Vec<Box<dyn RecordReader>>,
    rows: impl FnOnce(Visit<'_>) -> T + Send + 'static,
) -> (mpsc::Receiver<Found>, JoinHandle<T>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let walk = tokio::task::spawn_blocking(move || {
        let nobody_listens = |_| ReadError::Io("the walk was given up".into());
        rows(&mut |space, partition, row| {
            for reader in &mut readers {
                match reader.contents(space, partition, row) {
                    Ok(contents) => {
                        for content in contents {
                            sender.blocking_send(Found::Content(content)).map_err(nobody_listens)?;
                        }
                    }
                    Err(damage) => sender.blocking_send(Found::Damage(damage)).map_err(nobody_listens)?,
                }
            }
            if sender.is_closed() { Err(ReadError::Io("the walk was given up".into())) } else { Ok(()) }
        })
    });
    (receiver, walk)
}
