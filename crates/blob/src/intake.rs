//! A request's body on its way to becoming content: counted, digested, verified, stored.
//!
//! Memory is bounded whatever the length. When [`BlobService::receive`] returns, the bytes are durable and as the client
//! meant them; nothing refers to them yet, and if nothing ever does, the next sweep frees them.

use std::future::poll_fn;

use bytes::Bytes;
use crc_fast::CrcAlgorithm::Crc64Nvme;
use lazuli_extents::{Content, Upload, Writer};
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{ErrorCode, Refusal, Request, Version};
use md5::{Digest as _, Md5};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use crate::cipher::Nonce;
use crate::encryption::Seal;
use crate::sealed::SealedRun;
use crate::{BlobService, reply};

/// Of bodies of more bytes the MD5 is taken in a thread of its own, while they arrive. A CRC64 takes less than to hand the
/// bytes over.
const DIGEST_ASIDE: u64 = 64 << 10;
/// Pieces of a body that wait to be digested.
const WAITING: usize = 16;

/// A body that was received as its sender meant it, and is durable.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) content: Content,
    /// What its encryption starts from.
    pub(crate) nonce: Option<Nonce>,
    /// If it was asked for, or sent.
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) crc64: u64,
    /// Keeps the content until the commit that refers to it is decided.
    pub(crate) writer: Writer,
}

/// Whether a body's MD5 is wanted though the client sends none: it costs more than everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantMd5 {
    Always,
    IfSent,
}

impl WantMd5 {
    /// What the reply to a block needs: since 2019-02-02 a client that sends no MD5 gets a CRC64 back.
    pub(crate) fn of_block(version: Version) -> Self {
        if version.at_least(2019, 2, 2) { Self::IfSent } else { Self::Always }
    }
}

/// A small body that was received as its sender meant it.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Bytes,
    /// If it was sent, or the version knows nothing else.
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) crc64: u64,
}

impl BlobService {
    /// Receives the body of a request that may have up to `limit` bytes, and stores it encrypted if there is a seal.
    pub(crate) async fn receive(
        &self,
        request: &mut Request,
        limit: u64,
        want: WantMd5,
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
        let writer = self.extents.pins().writer();
        let mut upload = Upload::new(&self.extents, &writer);
        let mut digest = Digest::new(want == WantMd5::Always || sent.md5.is_some(), length);
        while let Some(frame) = poll_fn(|cx| request.body.as_mut().poll_frame(cx)).await {
            if let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() {
                digest.update(&bytes).await;
                let bytes = match &mut run {
                    Some(run) => run.encrypt(&bytes),
                    None => bytes,
                };
                upload.push(bytes).await.map_err(reply::extents)?;
            }
        }
        // The last bytes are digested while they become durable.
        let stored = async {
            let content = upload.finish().await.map_err(reply::extents)?;
            self.sync(&content).await?;
            Ok::<_, Refusal>(content)
        };
        let (digested, stored) = tokio::join!(digest.finish(), stored);
        let (md5, crc64) = digested?;
        sent.check(md5, crc64).inspect_err(|_| self.extents.released(length))?;
        let content = stored?;
        let nonce = run.map(|run| run.nonce);
        Ok(Received { content, nonce, md5, crc64, writer })
    }

    /// Reads the body of a request for its digests alone, which have to be those that the client sent.
    pub(crate) async fn digest(
        &self,
        request: &mut Request,
        want: WantMd5,
    ) -> Result<(Option<[u8; 16]>, u64), Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let length = request.content_length.unwrap_or(0);
        let mut digest = Digest::new(want == WantMd5::Always || sent.md5.is_some(), length);
        while let Some(frame) = poll_fn(|cx| request.body.as_mut().poll_frame(cx)).await {
            if let Ok(bytes) = frame.map_err(Refusal::from_body_error)?.into_data() {
                digest.update(&bytes).await;
            }
        }
        let (md5, crc64) = digest.finish().await?;
        sent.check(md5, crc64)?;
        Ok((md5, crc64))
    }

    /// Receives the body of a request into memory, if it has at most `limit` bytes.
    pub(crate) async fn receive_document(
        &self,
        request: &mut Request,
        limit: usize,
    ) -> Result<Document, Refusal> {
        let sent = SentDigests::parse(&request.headers)?;
        let want = WantMd5::of_block(request.version) == WantMd5::Always || sent.md5.is_some();
        let bytes = request.read_body(limit).await?;
        let mut sums = Sums::new(want);
        sums.update(&bytes);
        let (md5, crc64) = sums.finish();
        sent.check(md5, crc64)?;
        Ok(Document { bytes, md5, crc64 })
    }

    /// Makes content durable that was just written.
    pub(crate) async fn sync(&self, content: &Content) -> Result<(), Refusal> {
        if content.as_inline().is_some() {
            return Ok(());
        }
        self.extents.sync().await.map_err(reply::extents)
    }
}

/// Bodies whose digests are taken aside at a time. Each has a thread that waits for its client, and whoever stores what has
/// arrived needs threads of the same kind.
const MAX_ASIDE: usize = 32;
static ASIDE: Semaphore = Semaphore::const_new(MAX_ASIDE);

/// The digests of a body, taken where they do not hold it up.
enum Digest {
    Here(Box<Sums>),
    Aside(mpsc::Sender<Bytes>, JoinHandle<Sums>),
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
        let permit = if md5 && length > DIGEST_ASIDE { ASIDE.try_acquire().ok() } else { None };
        let Some(permit) = permit else { return Self::Here(Box::new(sums)) };
        let (sender, mut receiver) = mpsc::channel::<Bytes>(WAITING);
        let task = tokio::task::spawn_blocking(move || {
            while let Some(bytes) = receiver.blocking_recv() {
                sums.update(&bytes);
            }
            drop(permit);
            sums
        });
        Self::Aside(sender, task)
    }

    async fn update(&mut self, bytes: &Bytes) {
        match self {
            Self::Here(sums) => sums.update(bytes),
            // It only fails if the thread died, which the end finds out.
            Self::Aside(sender, _) => drop(sender.send(bytes.clone()).await),
        }
    }

    async fn finish(self) -> Result<(Option<[u8; 16]>, u64), Refusal> {
        let sums = match self {
            Self::Here(sums) => *sums,
            Self::Aside(sender, task) => {
                drop(sender);
                task.await.map_err(|_| Refusal::new(ErrorCode::InternalError))?
            }
        };
        Ok(sums.finish())
    }
}
