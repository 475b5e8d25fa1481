//! The operations of the file service over REST: each reads its request, runs a rule in a commit, and
//! answers.
//!
//! Invariants:
//!
//! - A request asks the [open-file table](crate::opens) inside the rule of its commit. Its grants last until
//!   the commit is decided.
//! - A request never waits for an SMB client while it holds a lock.
//! - A read sees all SMB writes from before the request: it has the file flushed first.

mod change;
mod content;
mod copy;
mod digest;
mod directory;
mod file;
mod lease;
mod list;
mod list_ranges;
mod open_handles;
mod pending;
mod permission;
mod range_from_url;
pub(crate) mod rename;
mod share;
mod smb_properties;
mod snapshot_id;
mod source;
mod target;
