//! Write-back: bytes that SMB clients write go into memory at once, into extents in the background, and into
//! the row on a flush.
//!
//! The states and transitions are in [`crate::opens::write_buffer`]; this module does the I/O. Why no write
//! is lost between REST and SMB: docs/decisions/0016.
//!
//! Invariants:
//!
//! - SMB operations change the content and row of an open file only while they hold its file lock
//!   ([`FileLock`]). A REST request changes the row without that lock, while it holds a grant of the
//!   open-file table. Buffering a write and reading need only the lock of the table's shard.
//! - The holder of a file lock never waits for a client or a granted request ([`crate::lock_order`]).
//! - A write is acknowledged only after quota is reserved for it, so a flush never fails for lack of quota.
//! - A failed flush keeps the writes and is repeated. Until a repetition succeeds, the next flush or close
//!   returns its error. The last close drops the writes that it cannot flush.

mod buffering;
mod commit;
mod file_lock;
mod flush;
mod spill;

pub(crate) use buffering::wait_to_retry;
pub(crate) use file_lock::{FileLock, check_takes_writes, name_of};
