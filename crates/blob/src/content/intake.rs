//! Receives the body of a request: checks its length and digests, and stores it as content.
//!
//! Memory is bounded for bodies of any length. When [`BlobService::receive`] returns, the content is durable
//! and matches the digests that the client sent. No row refers to it yet. If no commit follows, the next
//! sweep frees it.

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc64Nvme;
use lazuli_extents::{Content, Upload, Writer};
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::request::next_data;
use lazuli_protocol::{ErrorCode, Refusal, Request, Version};
use lazuli_service::internal_error;
use md5::{Digest as _, Md5};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::content::cipher::Nonce;
use crate::content::encryption::Seal;
use crate::content::sealed::SealedRun;
use crate::{BlobService, reply};

/// The MD5 of longer bodies is computed in a separate thread while they arrive. Computing a CRC64 takes less
/// time than passing the bytes to a thread.
const THREAD_MIN_BYTES: u64 = 64 << 10;
/// Maximum number of pieces of a body that wait for the thread.
const WAITING: usize = 16;

/// A received body that matches its digests. Durable.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) content: Content,
    /// The nonce of the content's encryption.
    pub(crate) nonce: Option<Nonce>,
    /// Set if the client sent an MD5, or the caller wanted one.
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) crc64: u64,
    /// Keeps the content until the commit that refers to it is decided.
    pub(crate) writer: Writer,
}

/// Whether to compute the MD5 of a body even if the client sends none. The MD5 costs more than all other work
/// on the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Md5Policy {
    Always,
    IfSent,
}

impl Md5Policy {
    /// Returns what the reply to Put Block needs: since version 2019-02-02 it reports a CRC64 if the client
    /// sends no MD5.
    pub(crate) fn of_block(version: Version) -> Self {
        if version.at_least(2019, 2, 2) { Self::IfSent } else { Self::Always }
    }
}

/// A small received body that matches its digests.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    /// Set if the client sent an MD5, or the version has no other digest.
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) crc64: u64,
}

impl BlobService {
    /// Receives a body of at most `limit` bytes and stores it. Encrypts it if there is a seal.
    pub(crate) async fn receive(
        &self,
        request: &mut Request,
        limit: u64,
        want: Md5Policy,
        seal: Option<&Seal>,
    ) -> Result<Received, Refusal> {
        let Some(length) = request.content_length else {
            return Err(ErrorCode::MissingContentLengthHeader.into());
        };
        if length > limit {
            return Err(Refusal::new(ErrorCode::RequestBodyTooLarge).detail("MaxLimit", limit.to_string()));
        }
        let sent = SentDigests::parse(&request.headers)?;
        let mut run = seal.map(SealedRun::begin).transpose()?;
        let writer = self.extents.writer();
        let mut upload = Upload::new(&self.extents, &writer);
        let mut digest = Digest::new(want == Md5Policy::Always || sent.md5.is_some(), length);
        while let Some(bytes) = next_data(request.body.as_mut()).await? {
            digest.update(&bytes).await;
            let bytes = match &mut run {
                Some(run) => run.encrypt(&bytes),
                None => bytes,
            };
            upload.push(bytes).await.map_err(reply::content_refusal)?;
        }
        // Digest the last bytes while they become durable.
        let stored = async {
            let content = upload.finish().await.map_err(reply::content_refusal)?;
            self.sync(&content).await?;
            Ok::<_, Refusal>(content)
        };
        let (digested, stored) = tokio::join!(digest.finish(), stored);
        let (md5, crc64) = digested?;
        let content = stored?;
        sent.check(md5, crc64).inspect_err(|_| self.extents.released(content.extent_bytes()))?;
        let nonce = run.map(|run| run.nonce);
        Ok(Received { content, nonce, md5, crc64, writer })
    }

    /// Computes the digests of a body without storing it, and checks them.
    pub(crate) async fn digest(
        &self,
        request: &mut Request,
        want: Md5Policy,
    ) -> Result<(Option<[u8; 16]>, u64), Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let length = request.content_length.unwrap_or(0);
        let mut digest = Digest::new(want == Md5Policy::Always || sent.md5.is_some(), length);
        while let Some(bytes) = next_data(request.body.as_mut()).await? {
            digest.update(&bytes).await;
        }
        let (md5, crc64) = digest.finish().await?;
        sent.check(md5, crc64)?;
        Ok((md5, crc64))
    }

    /// Receives a body of at most `limit` bytes into memory.
    pub(crate) async fn receive_document(
        &self,
        request: &mut Request,
        limit: usize,
    ) -> Result<Document, Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let want = Md5Policy::of_block(request.version) == Md5Policy::Always || sent.md5.is_some();
        let bytes = request.read_body(limit).await?;
        let mut sums = Sums::new(want);
        sums.update(&bytes);
        let (md5, crc64) = sums.finish();
        sent.check(md5, crc64)?;
        Ok(Document { bytes, md5, crc64 })
    }

    /// Makes new content durable.
    pub(crate) async fn sync(&self, content: &Content) -> Result<(), Refusal> {
        if content.as_inline().is_some() {
            return Ok(());
        }
        self.extents.sync().await.map_err(reply::content_refusal)
    }
}

/// Maximum number of digest threads. Each waits for its client, and storing bodies needs threads of the same
/// pool.
const MAX_THREADS: usize = 32;
static THREADS: Semaphore = Semaphore::const_new(MAX_THREADS);

/// Computes the digests of a body, in a separate thread if that is faster.
enum Digest {
    Inline(Box<Sums>),
    Thread(mpsc::Sender<Bytes>, JoinHandle<Sums>),
}

struct Sums {
    md5: Option<Md5>,
    crc64: crc_fast::Digest,
}

impl Sums {
    fn new(md5: bool) -> Self {
        Self { md5: md5.then(Md5::new), crc64: crc_fast::Digest::new(Crc64Nvme) }
    }

    fn finish(self) -> (Option<[u8; 16]>, u64) {
        (self.md5.map(|md5| md5.finalize().into()), self.crc64.finalize())
    }

    fn update(&mut self, bytes: &[u8]) {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        self.crc64.update(bytes);
    }
}

impl Digest {
    fn new(md5: bool, length: u64) -> Self {
        let mut sums = Sums::new(md5);
        let permit = if md5 && length > THREAD_MIN_BYTES { THREADS.try_acquire().ok() } else { None };
        let Some(permit) = permit else { return Self::Inline(Box::new(sums)) };
        let (sender, mut receiver) = mpsc::channel::<Bytes>(WAITING);
        let task = tokio::task::spawn_blocking(move || {
            while let Some(bytes) = receiver.blocking_recv() {
                sums.update(&bytes);
            }
            drop(permit);
            sums
        });
        Self::Thread(sender, task)
    }

    async fn update(&mut self, bytes: &Bytes) {
        match self {
            Self::Inline(sums) => sums.update(bytes),
            // Sending fails only if the thread has died, which `finish` reports.
            Self::Thread(sender, _) => drop(sender.send(bytes.clone()).await),
        }
    }

    async fn finish(self) -> Result<(Option<[u8; 16]>, u64), Refusal> {
        let sums = match self {
            Self::Inline(sums) => *sums,
            Self::Thread(sender, task) => {
                drop(sender);
                task.await
                    .map_err(|error| internal_error(format_args!("a digest of a body failed: {error}")))?
            }
        };
        Ok(sums.finish())
    }
}
