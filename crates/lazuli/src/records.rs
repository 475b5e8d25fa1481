//! Readers of rows, for walks over a whole store.

use lazuli_extents::Content;
use lazuli_store::{Row, SpaceId};

/// What rows refer to.
pub(crate) type Contents = Vec<Content>;

/// Reads the rows of one service.
pub(crate) trait RecordReader: Send {
    /// The content that a row refers to; none for a row of somebody else. Fails with what is wrong with a row that
    /// cannot be understood. Rows come in order of space, partition and key, those of the directory of accounts first.
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String>;
}
