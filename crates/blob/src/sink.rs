//! Content of a blob of any type, made of a stream of bytes: where a copy puts bytes that it cannot share.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use lazuli_extents::{Content, Edit, Upload, Writer};
use lazuli_protocol::Refusal;

use crate::block_list::encode_run;
use crate::cipher::{Nonce, PageCipher, new_nonce};
use crate::encryption::Seal;
use crate::put::PAGE;
use crate::record::{Blob, Kind};
use crate::sealed::SealedRun;
use crate::{BlobService, reply};

/// Bytes of a page blob that are gathered before they are written.
const PAGES: usize = 1 << 20;

/// Content in the making.
pub(crate) struct Sink {
    to: To,
    kind: Kind,
    nonce: Option<Nonce>,
}

enum To {
    Run(Box<Upload>, Option<SealedRun>),
    Pages(Box<Pages>),
}

/// Content that was made, and is durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stored {
    pub(crate) content: Content,
    block_list: Content,
    nonce: Option<Nonce>,
}

impl Stored {
    /// The content of a block blob that starts from a nonce, if it is encrypted.
    pub(crate) fn run(content: Content, nonce: Option<Nonce>) -> Self {
        Self { content, block_list: Content::empty(), nonce }
    }

    /// Makes it the content of a blob of the type that it was made for.
    pub(crate) fn put_into(&self, blob: &mut Blob) {
        blob.content = self.content.clone();
        blob.block_list = self.block_list.clone();
        blob.nonce = self.nonce;
    }
}

impl BlobService {
    /// Begins the content of a blob of that type and length, encrypted if there is a seal.
    pub(crate) fn sink(
        &self,
        writer: &Writer,
        kind: Kind,
        length: u64,
        seal: Option<&Seal>,
    ) -> Result<Sink, Refusal> {
        let Kind::Page { .. } = kind else {
            let run = seal.map(SealedRun::begin).transpose()?;
            let nonce = run.as_ref().map(|run| run.nonce);
            return Ok(Sink { to: To::Run(Box::new(Upload::new(&self.extents, writer)), run), kind, nonce });
        };
        let nonce = seal.map(|_| new_nonce()).transpose()?;
        let cipher = seal.zip(nonce.as_ref()).map(|(seal, salt)| seal.key.pages(salt)).transpose()?;
        let edit = Edit::new(&self.extents, writer, &Content::hole(length));
        let pages = Pages { edit, cipher, gathered: BytesMut::with_capacity(PAGES), at: 0 };
        Ok(Sink { to: To::Pages(Box::new(pages)), kind, nonce })
    }

    /// Ends the content.
    pub(crate) async fn store(&self, sink: Sink) -> Result<Stored, Refusal> {
        let Sink { to, kind, nonce } = sink;
        let content = match to {
            To::Run(upload, _) => upload.finish().await,
            To::Pages(pages) => pages.finish().await,
        };
        let content = content.map_err(reply::extents)?;
        self.sync(&content).await?;
        Ok(match (kind, nonce) {
            // What is appended later has nonces of its own.
            (Kind::Append { .. }, Some(nonce)) => {
                let block_list = Content::inline(encode_run(content.len(), nonce));
                Stored { content, block_list, nonce: None }
            }
            _ => Stored { content, block_list: Content::empty(), nonce },
        })
    }
}

impl Sink {
    /// Takes the next bytes.
    pub(crate) async fn push(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        let pushed = match &mut self.to {
            To::Run(upload, None) => upload.push(bytes).await,
            To::Run(upload, Some(run)) => upload.push(run.encrypt(&bytes)).await,
            To::Pages(pages) => pages.push(&bytes).await,
        };
        pushed.map_err(reply::extents)
    }
}

/// A page blob in the making: pages of zeros stay holes.
struct Pages {
    edit: Edit,
    cipher: Option<PageCipher>,
    gathered: BytesMut,
    /// Where what is gathered begins.
    at: u64,
}

impl Pages {
    async fn push(&mut self, mut bytes: &[u8]) -> Result<(), lazuli_extents::Error> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PAGES - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            bytes = later;
            if self.gathered.len() == PAGES {
                self.write().await?;
            }
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Content, lazuli_extents::Error> {
        self.write().await?;
        self.edit.finish().await
    }

    async fn write(&mut self) -> Result<(), lazuli_extents::Error> {
        let mut gathered = std::mem::replace(&mut self.gathered, BytesMut::with_capacity(PAGES));
        let runs = written(&gathered);
        if let Some(cipher) = &self.cipher {
            for run in &runs {
                cipher.encrypt(self.at + run.start as u64, &mut gathered[run.clone()]);
            }
        }
        let gathered = gathered.freeze();
        for run in runs {
            let offset = self.at + run.start as u64;
            self.edit.write(offset, &Content::inline(gathered.slice(run))).await?;
        }
        self.at += gathered.len() as u64;
        Ok(())
    }
}

/// The runs of pages that are not all zeros.
fn written(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for (at, page) in bytes.chunks(PAGE as usize).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = at * PAGE as usize;
        match runs.last_mut() {
            Some(run) if run.end == start => run.end += page.len(),
            _ => runs.push(start..start + page.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_not_written() {
        let mut bytes = vec![0; 6 * 512];
        assert_eq!(written(&bytes), []);
        for at in [512, 1024, 5 * 512 + 511] {
            bytes[at] = 1;
        }
        assert_eq!(written(&bytes), [512..1536, 2560..3072]);
    }
}
