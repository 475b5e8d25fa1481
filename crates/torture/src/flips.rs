//! Flips one bit of a small data directory and verifies that the flip is reported or harmless.
//!
//! [`template`] creates a directory with every kind of file, of which at most 32 KiB are in use. [`layout`]
//! lists its bits. [`verify`] runs in its own process for each flip: it checks the directory, opens it, and
//! compares every row and all content with what was written. [`run`] starts that process and evaluates its
//! result.

pub mod layout;
pub mod run;
pub mod template;
pub mod verify;
