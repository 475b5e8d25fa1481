//! Makes content of a stream of bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::edit::Edit;
use super::{Content, INLINE_BYTES};
use crate::engine::Extents;
use crate::extent::{Error, ExtentRef};
use crate::pin::Writer;

/// Bytes after which those before are made durable in the background. So the disk works while the body arrives, the last
/// sync is short, and what is not yet on disk is bounded however long the body is.
const WRITE_BEHIND: usize = 32 << 20;

/// Extents that are being written while the next one arrives: a disk takes its time for one, and more than one at a time.
const MAX_IN_FLIGHT: usize = 3;

/// Takes a body of any length and puts it into extents, some being written while the next one arrives: no more than those
/// and one more are in memory. What is small in all stays inline.
pub struct Upload {
    extents: Arc<dyn Extents>,
    writer: Writer,
    edit: Edit,
    parts: Vec<Bytes>,
    gathered: usize,
    /// In the order of their bytes.
    in_flight: VecDeque<JoinHandle<Result<ExtentRef, Error>>>,
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
            gathered: 0,
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            sent: false,
            unsynced: 0,
            syncing: None,
        }
    }

    /// Takes the next bytes. Waits while the disk is behind.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), Error> {
        let most = self.extents.preferred_bytes();
        while self.gathered + bytes.len() >= most {
            let now = bytes.split_to(most - self.gathered);
            self.gather(now);
            self.send().await?;
        }
        self.gather(bytes);
        Ok(())
    }

    /// The content. Not durable before a [`sync`](Extents::sync), unless it is inline.
    pub async fn finish(mut self) -> Result<Content, Error> {
        if !self.sent && self.gathered <= INLINE_BYTES {
            return Ok(Content::inline(self.parts.concat()));
        }
        if self.gathered > 0 {
            self.send().await?;
        }
        while !self.in_flight.is_empty() {
            self.land().await?;
        }
        self.synced().await?;
        self.edit.finish().await
    }

    fn gather(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.gathered += bytes.len();
            self.parts.push(bytes);
        }
    }

    /// Starts to write what was gathered, once few enough are being written.
    async fn send(&mut self) -> Result<(), Error> {
        if self.in_flight.len() == MAX_IN_FLIGHT {
            self.land().await?;
        }
        let (extents, writer) = (self.extents.clone(), self.writer.clone());
        let payload = std::mem::take(&mut self.parts);
        self.gathered = 0;
        self.in_flight.push_back(tokio::spawn(async move { extents.append(&writer, payload).await }));
        self.sent = true;
        Ok(())
    }

    /// Waits for the first of those that are being written.
    async fn land(&mut self) -> Result<(), Error> {
        let Some(append) = self.in_flight.pop_front() else { return Ok(()) };
        let extent = append.await.map_err(|e| Error::Io(e.to_string()))??;
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
