//! Stores a stream of bytes as the content of a blob of any type. Copies that cannot share the content of
//! their source use this.

use bytes::Bytes;
use lazuli_copy::{Encrypt, SparseWriter};
use lazuli_extents::{Content, Upload, Writer};
use lazuli_protocol::Refusal;

use super::block_list::encode_run;
use super::cipher::{Nonce, new_nonce};
use super::encryption::Seal;
use super::sealed::SealedRun;
use crate::model::record::{Blob, Kind};
use crate::{BlobService, reply};

/// Content that is being stored.
pub(crate) struct Sink {
    to: SinkTarget,
    kind: Kind,
    nonce: Option<Nonce>,
}

enum SinkTarget {
    Run(Box<Upload>, Option<SealedRun>),
    Pages(Box<SparseWriter>),
}

/// Content that was stored and is durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredContent {
    pub(crate) content: Content,
    block_list: Content,
    nonce: Option<Nonce>,
}

impl StoredContent {
    /// Returns the content of a block or page blob, with its nonce if it is encrypted.
    pub(crate) fn run(content: Content, nonce: Option<Nonce>) -> Self {
        Self { content, block_list: Content::empty(), nonce }
    }

    /// Sets the content of a blob. The blob must have the type that the content was stored for.
    pub(crate) fn set_on(&self, blob: &mut Blob) {
        blob.content = self.content.clone();
        blob.block_list = self.block_list.clone();
        blob.nonce = self.nonce;
    }
}

impl BlobService {
    /// Begins to store the content of a blob of this type and length. Encrypts it if there is a seal.
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
            return Ok(Sink {
                to: SinkTarget::Run(Box::new(Upload::new(&self.extents, writer)), run),
                kind,
                nonce,
            });
        };
        let nonce = seal.map(|_| new_nonce()).transpose()?;
        let cipher = seal.zip(nonce.as_ref()).map(|(seal, salt)| seal.key.pages(salt)).transpose()?;
        let encrypt = cipher.map(|cipher| -> Encrypt {
            Box::new(move |offset, bytes: &mut [u8]| cipher.encrypt(offset, bytes))
        });
        let pages = SparseWriter::new(&self.extents, writer, length, encrypt);
        Ok(Sink { to: SinkTarget::Pages(Box::new(pages)), kind, nonce })
    }

    /// Finishes the upload and makes the content durable.
    pub(crate) async fn store(&self, sink: Sink) -> Result<StoredContent, Refusal> {
        let Sink { to, kind, nonce } = sink;
        let content = match to {
            SinkTarget::Run(upload, _) => upload.finish().await,
            SinkTarget::Pages(pages) => pages.finish().await,
        };
        let content = content.map_err(reply::content_refusal)?;
        self.sync(&content).await?;
        Ok(match (kind, nonce) {
            // Later appends have their own nonces.
            (Kind::Append { .. }, Some(nonce)) => {
                let block_list = Content::inline(encode_run(content.len(), nonce));
                StoredContent { content, block_list, nonce: None }
            }
            _ => StoredContent { content, block_list: Content::empty(), nonce },
        })
    }
}

impl Sink {
    pub(crate) async fn push(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        let pushed = match &mut self.to {
            SinkTarget::Run(upload, None) => upload.push(bytes).await,
            SinkTarget::Run(upload, Some(run)) => upload.push(run.encrypt(&bytes)).await,
            SinkTarget::Pages(pages) => pages.push(bytes).await,
        };
        pushed.map_err(reply::content_refusal)
    }
}
