//! Immutable sequences of bytes, and content maps over them.
//!
//! Records stay small: a row refers to its bytes by a [`Content`], and the bytes lie in extents. A service
//! stores a body in four steps. A crash between any two of them leaves either the old state or the new one.
//!
//! ```
//! # use std::sync::Arc;
//! # use bytes::Bytes;
//! # use lazuli_extents::*;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! # let extents: Arc<dyn Extents> = Arc::new(InMemoryExtents::new(1 << 20));
//! # let body = [Bytes::from(vec![1; 100_000]), Bytes::from(vec![2; 100_000])];
//! let writer = extents.writer(); // keeps extents until the commit is decided
//! let mut upload = Upload::new(&extents, &writer); // bounded memory; small bodies stay inline
//! for bytes in body {
//!     upload.push(bytes).await?;
//! }
//! let content = upload.finish().await?;
//! extents.sync().await?; // the bytes are durable before the record that refers to them
//!
//! let mut record = vec![];
//! content.encode(&mut record); // the record's bytes, which a commit stores
//! drop(writer); // the commit is decided
//!
//! let content = Content::decode(record.into()).expect("encoded above");
//! let read = read_all(&extents, &content, 99_999..100_001, 2).await?;
//! assert_eq!(&read[..], [1, 2]);
//! # Ok(())
//! # }
//! ```
//!
//! To change content (a page, a block list, an append), pin before reading the record and let the writer hold
//! the old content: `let pin = extents.pin();` read, `writer.hold(pin, [&old]);` then [`Edit`], sync, commit.
//! The same applies to requests that put content of one record into another: copy, snapshot, move. To read,
//! pin, read the record, `pin.hold([&content])`, and pass the hold to a [`ContentReader`], which keeps it
//! until the last byte.
//!
//! Nothing is freed immediately. A background task runs a [`Sweep`] when [`StorageUse::should_sweep`]
//! returns true.
//!
//! [`Extents`] is the trait of an engine. [`LocalExtents`] keeps a directory of segment files,
//! [`InMemoryExtents`] serves tests, and the [`conformance`] suite checks any engine.

mod engine;
mod extent;
mod gather;
mod in_memory;
mod local;
mod map;
mod pin;
mod segment;
mod sweep;

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;

pub use engine::{AppendHint, Extents, Freed, Mark, Payload, SWEEP_MIN_BYTES, StorageUse};
pub use extent::{Error, ExtentId, ExtentRef, MAX_EXTENT_BYTES};
pub use gather::Gathered;
pub use in_memory::InMemoryExtents;
pub use local::{
    CapturedSegment, Damage, DamageKind, LocalExtents, OpenError, Options, ReadAt, ScrubProgress,
    ScrubReport, ScrubbedPart, SegmentPosition, Verifier, VerifyReport, frame_range,
};
pub use map::diff::{Change, Diff};
pub use map::edit::Edit;
pub use map::read::{ContentReader, Pieces, Ranges, read_all};
pub use map::upload::Upload;
pub use map::{Content, INLINE_BYTES, MAX_CONTENT_BYTES, Piece, ROOT_ENTRIES};
pub use pin::{Appended, ContentHold, Pin, Pins, Writer};
pub use sweep::Sweep;
