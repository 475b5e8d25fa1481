//! Put Blob, of any type.

use http::StatusCode;
use lazuli_extents::Content;
use lazuli_protocol::digest::SentDigests;
use lazuli_protocol::{Headers, Refusal, Request, Response};

use crate::access::replace::ReplaceRequest;
use crate::content::cipher::new_nonce;
use crate::content::intake::{Md5Policy, Received};
use crate::model::record::Kind;
use crate::rules::body::{check_empty_body, max_put_blob};
use crate::rules::new_blob::{new_blob, page_blob_length};
use crate::rules::precondition::Preconditions;
use crate::rules::tier::check_new_tier;
use crate::{BlobService, reply};

impl BlobService {
    /// Handles Put Blob, for any type of blob.
    pub(crate) async fn put_blob(&self, mut request: Request) -> Result<Response, Refusal> {
        let kind = blob_type(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob(&request, kind)?;
        let pages = match kind {
            Kind::Page { .. } => page_blob_length(&request.headers)?,
            Kind::Block | Kind::Append { .. } => 0,
        };
        check_new_tier(kind, new.tier.tier, pages)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        new.encryption = seal.as_ref().map(|seal| seal.encryption.clone());
        let mut digests = None;
        let writer = match kind {
            Kind::Block => {
                // The declared MD5 of a new block blob must be the MD5 of the body.
                let sent = SentDigests { md5: request.headers.md5("x-ms-blob-content-md5")?, crc64: None };
                let limit = max_put_blob(request.version);
                let received = self.receive(&mut request, limit, Md5Policy::Always, seal.as_ref()).await?;
                let Received { content, nonce, md5, crc64, writer } = received;
                sent.check_md5(md5).inspect_err(|_| self.extents.released(content.extent_bytes()))?;
                new.headers.content_md5 = md5.map(Vec::from);
                (new.content, new.nonce) = (content, nonce);
                digests = Some((md5, crc64));
                writer
            }
            Kind::Page { .. } => {
                check_empty_body(&request)?;
                new.content = Content::hole(pages);
                new.nonce = seal.as_ref().map(|_| new_nonce()).transpose()?;
                self.extents.writer()
            }
            Kind::Append { .. } => {
                check_empty_body(&request)?;
                self.extents.writer()
            }
        };
        let replace = ReplaceRequest::write(&request, &target, &preconditions, kind, writer);
        let replaced = self.replace(replace, |_, _| Ok(new.clone())).await;
        let blob = replaced.inspect_err(|_| self.extents.released(new.content.extent_bytes()))?;
        let mut response = reply::write_reply(StatusCode::CREATED, &blob, request.version);
        if let Some((md5, crc64)) = digests {
            reply::digests(&mut response.headers, md5, crc64, request.version);
        }
        Ok(response)
    }
}

fn blob_type(request: &Request) -> Result<Kind, Refusal> {
    #[derive(Clone, Copy)]
    enum Type {
        Block,
        Page,
        Append,
    }
    let types = [("BlockBlob", Type::Block), ("PageBlob", Type::Page), ("AppendBlob", Type::Append)];
    match request.headers.one_of("x-ms-blob-type", &types)? {
        Some(Type::Block) => Ok(Kind::Block),
        Some(Type::Page) => {
            let number = request.headers.number("x-ms-blob-sequence-number", 0..=i64::MAX)?;
            Ok(Kind::Page { sequence_number: number.unwrap_or(0).unsigned_abs() })
        }
        Some(Type::Append) => Ok(Kind::Append { blocks: 0, sealed: false }),
        // Older versions have only block blobs.
        None if !request.version.at_least(2009, 9, 19) => Ok(Kind::Block),
        None => Err(Refusal::missing_header("x-ms-blob-type")),
    }
}
