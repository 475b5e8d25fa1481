//! Accepting writes to an open file.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::ByteRange;
use lazuli_store::SpaceId;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::FileService;
use crate::failure::Failure;
use crate::lock_order::check_client_wait;
use crate::opens::write_buffer::WriteBuffer;
use crate::opens::{FileState, OpenId};
use crate::tree::record::Node;
use crate::tree::rules::MAX_FILE_LENGTH;
use crate::tree::usage::QuotaCheck;
use crate::write_back::flush::AGE;
use crate::write_back::{FileLock, check_takes_writes};

/// Result of an attempt to write.
enum WriteStep {
    /// The write is buffered. `is_first`: it is the first since the last flush.
    Done { is_first: bool, buffered: usize },
    /// The row has to be read first.
    Load,
    /// Bytes that do not fit into the slice of the quota, which has to be renewed first.
    Renew(SpaceId, i64),
    /// A granted request has to end first.
    Wait(watch::Receiver<()>),
}

impl FileService {
    /// Buffers bytes and makes sure that they are flushed in time.
    pub(crate) async fn buffer_write(&self, id: OpenId, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= MAX_FILE_LENGTH);
        end.ok_or(Failure::OutOfBounds)?;
        let deadline = self.opens.deadline();
        let buffered = loop {
            let mut wait = None;
            match self.try_buffer_write(id, offset, &bytes)? {
                WriteStep::Done { is_first, buffered } => {
                    if is_first {
                        self.flush_after(id.file, AGE);
                    }
                    break buffered;
                }
                WriteStep::Load => check_takes_writes(&*self.load(id.file).await?)?,
                WriteStep::Renew(space, more) => self.reserve_for_buffer(space, more).await?,
                WriteStep::Wait(changed) => wait = Some(changed),
            }
            wait_to_retry(deadline, wait).await?;
        };
        self.limit_buffer(id.file, buffered).await
    }

    fn try_buffer_write(&self, id: OpenId, offset: u64, bytes: &Bytes) -> Result<WriteStep, Failure> {
        let range = ByteRange { offset, length: bytes.len() as u64 };
        self.opens.with_open(id, |state| {
            if let Some(wait) = check_write(state, id, range)? {
                return Ok(WriteStep::Wait(wait));
            }
            let buffer = &mut state.buffer;
            let Some(node) = buffer.node().cloned() else { return Ok(WriteStep::Load) };
            if node.is_directory() {
                return Err(Failure::IsDirectory);
            }
            let length = buffer.length(&node).max(offset + range.length);
            if let Some(first) = self.reserve_quota(buffer, id.file.space, length)? {
                return Ok(first);
            }
            buffer.write(offset, bytes.clone());
            let is_first = !std::mem::replace(&mut buffer.timed, true);
            let buffered = buffer.buffered();
            state.break_other_caches(id.number);
            Ok(WriteStep::Done { is_first, buffered })
        })?
    }

    /// Reserves quota for a file that grows to `length`. Returns what to do first if it does not fit.
    fn reserve_quota(
        &self,
        buffer: &mut WriteBuffer,
        space: SpaceId,
        length: u64,
    ) -> Result<Option<WriteStep>, Failure> {
        match buffer.reserve_quota(length, |more| self.usages.reserve_buffered(space, more)) {
            QuotaCheck::Reserved => Ok(None),
            QuotaCheck::NeedsRenewal(more) => Ok(Some(WriteStep::Renew(space, more))),
        }
    }

    /// Locks a file to change its content, while no granted request may change the row. Reserves quota for a
    /// file that grows to at least `grows_to` bytes.
    pub(crate) async fn lock_to_write(
        &self,
        id: OpenId,
        range: ByteRange,
        grows_to: u64,
    ) -> Result<(FileLock, Arc<Node>), Failure> {
        let deadline = self.opens.deadline();
        loop {
            let lock = self.lock_file(id.file).await;
            check_takes_writes(&*self.load_locked(&lock).await?)?;
            let begun = self.opens.with_open(id, |state| -> Result<_, Failure> {
                if let Some(wait) = check_write(state, id, range)? {
                    return Ok(WriteStep::Wait(wait));
                }
                let buffer = &mut state.buffer;
                let Some(node) = buffer.node().cloned() else { return Ok(WriteStep::Load) };
                let length = buffer.length(&node).max(grows_to);
                if let Some(first) = self.reserve_quota(buffer, id.file.space, length)? {
                    return Ok(first);
                }
                // From now on a request over REST has the file flushed first, which takes the file lock.
                buffer.change(|_| {});
                let is_first = !std::mem::replace(&mut buffer.timed, true);
                state.break_other_caches(id.number);
                Ok(WriteStep::Done { is_first, buffered: 0 })
            })?;
            let mut wait = None;
            match begun? {
                WriteStep::Done { is_first, .. } => {
                    if is_first {
                        self.flush_after(id.file, AGE);
                    }
                    self.spill(&lock).await?;
                    let node = self.opens.with(id.file, |state| state.buffer.node().cloned());
                    return Ok((lock, node.ok_or(Failure::Closed)?));
                }
                WriteStep::Load => {}
                WriteStep::Renew(space, more) => {
                    drop(lock);
                    self.reserve_for_buffer(space, more).await?;
                }
                WriteStep::Wait(changed) => {
                    drop(lock);
                    wait = Some(changed);
                }
            }
            wait_to_retry(deadline, wait).await?;
        }
    }
}

/// Waits for a granted request to end, if there is one, before an attempt is repeated. Fails after the
/// deadline.
pub(crate) async fn wait_to_retry(
    deadline: Instant,
    wait: Option<watch::Receiver<()>>,
) -> Result<(), Failure> {
    if let Some(mut wait) = wait {
        check_client_wait();
        let _ = timeout_at(deadline, wait.changed()).await;
    }
    if Instant::now() < deadline { Ok(()) } else { Err(Failure::Busy) }
}

/// Checks that an open may change bytes of its file. Returns what to wait for first, if anything.
fn check_write(
    state: &mut FileState,
    id: OpenId,
    range: ByteRange,
) -> Result<Option<watch::Receiver<()>>, Failure> {
    if id.file.epoch.is_some() {
        return Err(Failure::Denied);
    }
    if !state.locks().admits_write(Some(id.number), range) {
        return Err(Failure::Locked);
    }
    Ok(state.has_granted_requests().then(|| state.subscribe()))
}
