//! Flips one bit of a small data directory and looks at what becomes of it.
//!
//! [`template`] makes a directory with every kind of file in it, at most 32 KiB of them in use. [`layout`] lists its bits.
//! [`verify`] runs in a process of its own for each flip: it checks the directory, opens it, and compares every row and
//! every content with what was written. [`run`] starts that process and judges what it says.

pub mod layout;
pub mod run;
pub mod template;
pub mod verify;
