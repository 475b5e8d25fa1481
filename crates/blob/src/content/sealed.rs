//! Encrypts content that is written, and decrypts content that is read.
//!
//! The `nonce` of a blob record is that of all its bytes, or the salt of the keys for its pages. A record
//! without it has a block list with a nonce for each run.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use lazuli_extents::{ContentHold, ContentReader, Error, Ranges};
use lazuli_protocol::request::BodyError;
use lazuli_protocol::{Body, Refusal};

use crate::content::cipher::{Nonce, PageCipher, RunCipher, new_nonce};
use crate::content::encryption::Seal;
use crate::model::record::{Blob, Damage, Kind, PAGE};
use crate::{BlobService, reply};

/// A run that is being written.
pub(crate) struct SealedRun {
    cipher: RunCipher,
    pub(crate) nonce: Nonce,
    written: u64,
}

impl SealedRun {
    /// Begins a run.
    pub(crate) fn begin(seal: &Seal) -> Result<Self, Refusal> {
        Ok(Self { cipher: seal.key.runs()?, nonce: new_nonce()?, written: 0 })
    }

    /// Encrypts the next bytes.
    pub(crate) fn encrypt(&mut self, bytes: &[u8]) -> Bytes {
        let mut sealed = BytesMut::from(bytes);
        self.cipher.apply(&self.nonce, self.written, &mut sealed);
        self.written += bytes.len() as u64;
        sealed.freeze()
    }
}

impl BlobService {
    /// Returns a body that streams a part of a blob. `held` keeps the content until the body ends. `seal` is
    /// the encryption of the blob.
    pub(crate) async fn body(
        &self,
        blob: &Blob,
        seal: Option<&Seal>,
        part: Range<u64>,
        held: ContentHold,
    ) -> Result<Body, Refusal> {
        if let (Some(bytes), None) = (blob.content.as_inline(), seal) {
            return Ok(Body::Whole(bytes.slice(part.start as usize..part.end as usize)));
        }
        let reader = self.read_plain(blob, seal, part, held).await?;
        let frames = stream::try_unfold(reader, |mut reader| async {
            let bytes = reader.next().await.map_err(reply::content_refusal)?;
            Ok::<_, BodyError>(bytes.map(|bytes| (Frame::data(bytes), reader)))
        });
        Ok(Body::stream(StreamBody::new(frames)))
    }

    /// Starts reading a part of a blob. `seal` is its encryption. Without `held`, the caller must hold the
    /// content.
    pub(crate) async fn read_plain(
        &self,
        blob: &Blob,
        seal: Option<&Seal>,
        part: Range<u64>,
        held: impl Into<Option<ContentHold>>,
    ) -> Result<PlainReader, Refusal> {
        debug_assert_eq!(blob.encryption.as_ref(), seal.map(|seal| &seal.encryption));
        let content = &blob.content;
        let (around, cipher) = match (seal, blob.kind, blob.nonce) {
            (None, _, _) => (part.clone(), Cipher::None),
            (Some(seal), Kind::Page { .. }, Some(salt)) => {
                let around = part.start - part.start % PAGE..part.end.next_multiple_of(PAGE);
                let written = Ranges::new(&self.extents, content, around.clone());
                let pages =
                    Pages { cipher: seal.key.pages(&salt)?, written, run: 0..0, rest: BytesMut::new() };
                (around, Cipher::Pages(Box::new(pages)))
            }
            (Some(_), Kind::Page { .. }, None) => return Err(Damage::Undecodable.into()),
            (Some(seal), _, Some(nonce)) => {
                (part.clone(), Cipher::Runs(Runs::new(seal, vec![(content.len(), nonce)])?))
            }
            (Some(seal), _, None) => (part.clone(), Cipher::Runs(Runs::new(seal, self.runs(blob).await?)?)),
        };
        let reader = ContentReader::new(&self.extents, content, around.clone(), held);
        Ok(PlainReader { reader, cipher, at: around.start, part })
    }

    /// Reads a small part of a blob into memory.
    pub(crate) async fn read_plain_bytes(
        &self,
        blob: &Blob,
        seal: Option<&Seal>,
        part: Range<u64>,
    ) -> Result<Bytes, Refusal> {
        let mut reader = self.read_plain(blob, seal, part, None).await?;
        let mut bytes = BytesMut::new();
        while let Some(more) = reader.next().await.map_err(reply::content_refusal)? {
            bytes.extend_from_slice(&more);
        }
        Ok(bytes.freeze())
    }

    /// Returns the lengths and nonces of the runs of a blob that is made of blocks.
    async fn runs(&self, blob: &Blob) -> Result<Vec<(u64, Nonce)>, Refusal> {
        let blocks = self.read_block_list(&blob.block_list).await?;
        let runs: Option<_> = blocks.into_iter().map(|block| Some((block.size, block.nonce?))).collect();
        Ok(runs.ok_or(Damage::Undecodable)?)
    }
}

/// Reads a part of a blob and decrypts it.
pub(crate) struct PlainReader {
    reader: ContentReader,
    cipher: Cipher,
    /// The offset of the next byte to read.
    at: u64,
    /// The requested range.
    part: Range<u64>,
}

enum Cipher {
    None,
    Runs(Runs),
    Pages(Box<Pages>),
}

struct Runs {
    cipher: RunCipher,
    /// The end and the nonce of each run.
    runs: Vec<(u64, Nonce)>,
}

struct Pages {
    cipher: PageCipher,
    /// The ranges that were written. All other pages read as zeros, and are not encrypted.
    written: Ranges,
    /// The last range that was taken from `written`.
    run: Range<u64>,
    /// The first bytes of an incomplete page.
    rest: BytesMut,
}

impl PlainReader {
    /// Reads the next bytes. Returns `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some(bytes) = self.reader.next().await? else { return Ok(None) };
            let at = self.at;
            let bytes = match &mut self.cipher {
                Cipher::None => bytes,
                Cipher::Runs(runs) => runs.decrypt(at, bytes),
                Cipher::Pages(pages) => pages.decrypt(at, bytes).await?,
            };
            self.at += bytes.len() as u64;
            // The request may need only a part of the first and the last page.
            let cut = |to: u64| (to.clamp(at, at + bytes.len() as u64) - at) as usize;
            let wanted = bytes.slice(cut(self.part.start)..cut(self.part.end));
            if !wanted.is_empty() {
                return Ok(Some(wanted));
            }
        }
    }
}

impl Runs {
    fn new(seal: &Seal, runs: Vec<(u64, Nonce)>) -> Result<Self, Refusal> {
        let ends = runs.into_iter().scan(0, |end, (length, nonce)| {
            *end += length;
            Some((*end, nonce))
        });
        Ok(Self { cipher: seal.key.runs()?, runs: ends.collect() })
    }

    fn decrypt(&self, at: u64, bytes: Bytes) -> Bytes {
        let mut bytes = BytesMut::from(bytes);
        let mut done = 0;
        let first = self.runs.partition_point(|(end, _)| *end <= at);
        let mut start = first.checked_sub(1).map_or(0, |before| self.runs[before].0);
        for (end, nonce) in &self.runs[first..] {
            let from = at + done as u64;
            let length = (bytes.len() - done).min((end - from) as usize);
            self.cipher.apply(nonce, from - start, &mut bytes[done..done + length]);
            done += length;
            start = *end;
            if done == bytes.len() {
                break;
            }
        }
        bytes.freeze()
    }
}

impl Pages {
    /// Decrypts the complete pages of the bytes read so far.
    async fn decrypt(&mut self, at: u64, bytes: Bytes) -> Result<Bytes, Error> {
        self.rest.extend_from_slice(&bytes);
        let whole = self.rest.len() - self.rest.len() % PAGE as usize;
        let mut pages = self.rest.split_to(whole);
        for (index, page) in pages.chunks_mut(PAGE as usize).enumerate() {
            let offset = at + index as u64 * PAGE;
            while self.run.end <= offset {
                self.run = match self.written.next().await? {
                    Some(run) => run,
                    None => u64::MAX..u64::MAX,
                };
            }
            if self.run.contains(&offset) {
                self.cipher.decrypt(offset, page);
            }
        }
        Ok(pages.freeze())
    }
}
