//! The stored tree of each share: rows of directories and files, their content, and the quota.
//!
//! Everything here reads and commits rows. It knows neither HTTP nor which files are open: callers ask the
//! [open-file table](crate::opens) before they change a row.
//!
//! Invariants:
//!
//! - A directory's own row is made before its parent names it and removed in one intent with its name, so a
//!   directory that can be reached can be written to.
//! - A node is in one directory. During a move a reader may find it in two, but never in none ([`moves`]).
//! - What a snapshot can show is kept in the commit that changes it ([`children`]).
//! - Every commit that changes the length of a file counts it in its directory and is covered by the quota
//!   ([`usage`]).

pub(crate) mod change;
pub(crate) mod children;
pub(crate) mod content;
pub(crate) mod directory_locks;
pub(crate) mod keys;
pub(crate) mod listing;
pub(crate) mod move_locks;
pub(crate) mod move_record;
pub(crate) mod moves;
pub(crate) mod names;
pub(crate) mod paths;
pub(crate) mod permissions;
pub(crate) mod record;
pub(crate) mod row_names;
pub(crate) mod rows;
pub(crate) mod rules;
pub(crate) mod snapshots;
pub(crate) mod spot;
pub(crate) mod usage;
