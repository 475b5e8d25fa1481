//! Turns a stream of bytes into content.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use tokio::task::JoinHandle;

use super::edit::Edit;
use super::{Content, INLINE_BYTES};
use crate::engine::{AppendHint, Extents, Payload};
use crate::extent::{Error, ExtentRef};
use crate::gather::Gathered;
use crate::pin::Writer;

/// After this many bytes, the bytes before are synced in the background. The disk then works while the body
/// arrives, the last sync is short, and the amount of unsynced data is bounded for any length of the body.
const WRITE_BEHIND: usize = 32 << 20;

/// Maximum number of concurrent appends. A disk has latency, and processes several writes at once.
const MAX_IN_FLIGHT: usize = 3;

/// Bodies below this many bytes are not gathered in aligned memory.
const MIN_GATHERED_BYTES: usize = 256 << 10;

/// Takes a body of any length and writes it to extents. Only the extents being appended and one more are in
/// memory. A body of at most [`INLINE_BYTES`] stays inline.
pub struct Upload {
    extents: Arc<dyn Extents>,
    writer: Writer,
    edit: Edit,
    /// The bytes so far, while they are fewer than [`MIN_GATHERED_BYTES`].
    parts: Vec<Bytes>,
    parts_bytes: usize,
    /// The extent that is being filled, once the body is larger.
    gathered: Option<Gathered>,
    /// Appends in progress, in the order of their bytes.
    in_flight: VecDeque<MaybeDone<BoxFuture<'static, Result<ExtentRef, Error>>>>,
    /// Whether any append was started.
    has_appended: bool,
    unsynced: usize,
    syncing: Option<JoinHandle<Result<(), Error>>>,
}

impl Upload {
    /// Begins an upload without bytes.
    pub fn new(extents: &Arc<dyn Extents>, writer: &Writer) -> Self {
        Self {
            extents: extents.clone(),
            writer: writer.clone(),
            edit: Edit::new(extents, writer, &Content::empty()),
            parts: vec![],
            parts_bytes: 0,
            gathered: None,
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            has_appended: false,
            unsynced: 0,
            syncing: None,
        }
    }

    /// Adds the next bytes. Waits while the disk is slower than the caller.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        if self.gathered.is_none()
            && !self.has_appended
            && self.parts_bytes + bytes.len() < MIN_GATHERED_BYTES
        {
            self.parts_bytes += bytes.len();
            self.parts.push(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let gathered = self.gathered.get_or_insert_with(|| {
                // Begin with half an extent: the disk starts sooner, and bodies of common sizes end sooner.
                let preferred = self.extents.preferred_bytes();
                let mut gathered =
                    self.extents.gather(if self.has_appended { preferred } else { preferred / 2 });
                for part in self.parts.drain(..) {
                    gathered.push(&part);
                }
                gathered
            });
            bytes.advance(gathered.push(&bytes));
            if gathered.is_full() {
                self.start_append(AppendHint::None).await?;
            }
        }
        Ok(())
    }

    /// Returns the content. It is not durable before a [`sync`](Extents::sync), unless it is inline.
    pub async fn finish(mut self) -> Result<Content, Error> {
        if !self.has_appended && self.gathered.is_none() && self.parts_bytes <= INLINE_BYTES {
            return Ok(Content::inline(self.parts.concat()));
        }
        self.start_append(AppendHint::SyncFollows).await?;
        while !self.in_flight.is_empty() {
            self.finish_oldest_append().await?;
        }
        self.wait_for_sync().await?;
        self.edit.finish().await
    }

    /// Starts to append the gathered bytes, waiting for the oldest append if too many are in flight.
    async fn start_append(&mut self, hint: AppendHint) -> Result<(), Error> {
        if self.in_flight.len() == MAX_IN_FLIGHT {
            self.finish_oldest_append().await?;
        }
        let (extents, writer) = (self.extents.clone(), self.writer.clone());
        let payload = match (self.gathered.take(), std::mem::take(&mut self.parts)) {
            (Some(gathered), _) => Payload::Gathered(Box::new(gathered)),
            (None, parts) if parts.is_empty() => return Ok(()),
            (None, parts) => Payload::Parts(parts),
        };
        let append = async move { extents.append_with_hint(&writer, payload, hint).await };
        let mut append = maybe_done(append.boxed());
        // Polling the future once starts the append.
        let _ = (&mut append).now_or_never();
        self.in_flight.push_back(append);
        self.has_appended = true;
        Ok(())
    }

    /// Waits for the oldest append and adds its extent to the content.
    async fn finish_oldest_append(&mut self) -> Result<(), Error> {
        let Some(mut append) = self.in_flight.pop_front() else { return Ok(()) };
        (&mut append).await;
        let extent = Pin::new(&mut append).take_output().unwrap_or(Err(Error::Stopped))?;
        self.edit.append(&Content::extent(extent)).await?;
        self.unsynced += extent.length as usize;
        if self.unsynced >= WRITE_BEHIND {
            self.wait_for_sync().await?;
            let extents = self.extents.clone();
            self.syncing = Some(tokio::spawn(async move { extents.sync().await }));
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Waits for the background sync, if there is one.
    async fn wait_for_sync(&mut self) -> Result<(), Error> {
        match self.syncing.take() {
            Some(sync) => sync.await.map_err(|e| Error::Io(e.to_string()))?,
            None => Ok(()),
        }
    }
}
