//! Immutable runs of bytes, and maps of content over them.
//!
//! A service stores a body in four steps; a crash between any two leaves either the old state or the new one.
//!
//! ```text
//! let writer = extents.writer();                        // keeps what is appended until the commit is decided
//! let mut upload = Upload::new(&extents, &writer);      // body → extents, bounded memory; small bodies stay inline
//! while let Some(bytes) = body.next().await { upload.push(bytes).await?; }
//! let content = upload.finish().await?;
//! extents.sync().await?;                                // bytes durable …
//! store.commit(… content.encode() …).await?;            // … then the record that refers to them
//! ```
//!
//! To change content (a page, a block list, an append), pin before reading the record and let the writer hold what was
//! found: `let pin = extents.pin();` read, `writer.hold(pin, [&old]);` then [`Edit`], sync, commit. The same goes for
//! whoever puts content of one record into another: copy, snapshot, move. To read, pin, read the record,
//! `pin.hold([&content])`, and give the hold to a [`Reader`], which keeps it until the last byte is out.
//!
//! Nothing is freed at once. A background task runs a [`Sweep`] whenever [`Space::should_sweep`] says so.
//!
//! The parts: [`Extents`] is the trait, with [`LocalExtents`] for a directory of segment files and a
//! [`conformance`] suite for all; [`Content`] is what a record stores.

mod engine;
mod extent;
mod gather;
mod local;
mod map;
mod pin;
mod segment;
mod sweep;

pub mod conformance;
#[doc(hidden)]
pub mod fuzz;

pub use engine::{Extents, Mark, Next, Payload, SWEEP_MIN_BYTES, Space};
pub use extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
pub use gather::Gathered;
pub use local::{
    CapturedSegment, Damage, DamageKind, LocalExtents, OpenError, Options, ReadAt, ScrubProgress,
    ScrubReport, ScrubbedPart, SegmentPlace, Verifier, VerifyReport, frame_range,
};
pub use map::diff::{Change, Diff};
pub use map::edit::Edit;
pub use map::read::{Pieces, Ranges, Reader, read_all};
pub use map::upload::Upload;
pub use map::{Content, INLINE_BYTES, MAX_CONTENT_BYTES, Piece, ROOT_ENTRIES};
pub use pin::{Appended, Held, Pin, Pins, Writer};
pub use sweep::{Freed, Pace, Sweep};
