//! Makes content of a stream of bytes.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, MaybeDone, maybe_done};
use tokio::task::JoinHandle;

use super::edit::Edit;
use super::{Content, INLINE_BYTES};
use crate::engine::{Extents, Next, Payload};
use crate::extent::{Error, ExtentRef};
use crate::gather::Gathered;
use crate::pin::Writer;

/// Bytes after which those before are made durable in the background. So the disk works while the body arrives, the last
/// sync is short, and what is not yet on disk is bounded however long the body is.
const WRITE_BEHIND: usize = 32 << 20;

/// Extents that are being written while the next one arrives: a disk takes its time for one, and more than one at a time.
const MAX_IN_FLIGHT: usize = 3;

/// Bytes up to which a body is not worth an extent's memory.
const LITTLE: usize = 256 << 10;

/// Takes a body of any length and puts it into extents, some being written while the next one arrives: no more than those
/// and one more are in memory. What is small in all stays inline.
pub struct Upload {
    extents: Arc<dyn Extents>,
    writer: Writer,
    edit: Edit,
    /// What came so far, while it is little.
    parts: Vec<Bytes>,
    little: usize,
    /// The extent that is being filled, once it is not.
    gathered: Option<Gathered>,
    /// In the order of their bytes.
    in_flight: VecDeque<MaybeDone<BoxFuture<'static, Result<ExtentRef, Error>>>>,
    /// Whether there ever was one.
    sent: bool,
    unsynced: usize,
    syncing: Option<JoinHandle<Result<(), Error>>>,
}

impl Upload {
    /// Begins with nothing.
    pub fn new(extents: &Arc<dyn Extents>, writer: &Writer) -> Self {
        Self {
            extents: extents.clone(),
            writer: writer.clone(),
            edit: Edit::new(extents, writer, &Content::empty()),
            parts: vec![],
            little: 0,
            gathered: None,
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            sent: false,
            unsynced: 0,
            syncing: None,
        }
    }

    /// Takes the next bytes. Waits while the disk is behind.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        if self.gathered.is_none() && !self.sent && self.little + bytes.len() < LITTLE {
            self.little += bytes.len();
            self.parts.push(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let gathered = self.gathered.get_or_insert_with(|| {
                // Half of one first: the disk begins sooner, and of lengths that are usual ends sooner, too.
                let whole = self.extents.preferred_bytes();
                let mut gathered = self.extents.gather(if self.sent { whole } else { whole / 2 });
                for part in self.parts.drain(..) {
                    gathered.push(&part);
                }
                gathered
            });
            bytes.advance(gathered.push(&bytes));
            if gathered.is_full() {
                self.send(Next::Any).await?;
            }
        }
        Ok(())
    }

    /// The content. Not durable before a [`sync`](Extents::sync), unless it is inline.
    pub async fn finish(mut self) -> Result<Content, Error> {
        if !self.sent && self.gathered.is_none() && self.little <= INLINE_BYTES {
            return Ok(Content::inline(self.parts.concat()));
        }
        self.send(Next::Sync).await?;
        while !self.in_flight.is_empty() {
            self.land().await?;
        }
        self.synced().await?;
        self.edit.finish().await
    }

    /// Starts to write what there is, once few enough are being written.
    async fn send(&mut self, next: Next) -> Result<(), Error> {
        if self.in_flight.len() == MAX_IN_FLIGHT {
            self.land().await?;
        }
        let (extents, writer) = (self.extents.clone(), self.writer.clone());
        let payload = match (self.gathered.take(), std::mem::take(&mut self.parts)) {
            (Some(gathered), _) => Payload::Gathered(Box::new(gathered)),
            (None, parts) if parts.is_empty() => return Ok(()),
            (None, parts) => Payload::Parts(parts),
        };
        let append = async move { extents.append_then(&writer, payload, next).await };
        let mut append = maybe_done(append.boxed());
        // It begins when it is first asked for.
        let _ = (&mut append).now_or_never();
        self.in_flight.push_back(append);
        self.sent = true;
        Ok(())
    }

    /// Waits for the first of those that are being written.
    async fn land(&mut self) -> Result<(), Error> {
        let Some(mut append) = self.in_flight.pop_front() else { return Ok(()) };
        (&mut append).await;
        let extent = Pin::new(&mut append).take_output().unwrap_or(Err(Error::Stopped))?;
        self.edit.append(&Content::extent(extent)).await?;
        self.unsynced += extent.length as usize;
        if self.unsynced >= WRITE_BEHIND {
            self.synced().await?;
            let extents = self.extents.clone();
            self.syncing = Some(tokio::spawn(async move { extents.sync().await }));
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Waits for the sync in the background, if there is one.
    async fn synced(&mut self) -> Result<(), Error> {
        match self.syncing.take() {
            Some(sync) => sync.await.map_err(|e| Error::Io(e.to_string()))?,
            None => Ok(()),
        }
    }
}
