//! Put Blob From URL, Put Block From URL, Append Block From URL, Put Page From URL: what their namesakes do with a body,
//! done with a source.

use http::StatusCode;
use lazuli_concurrency::Access;
use lazuli_protocol::{Headers, Refusal, Request, Response, Version};
use md5::{Digest as _, Md5};

use crate::append::{Append, NewBlock, appended, max_append};
use crate::block::BlockId;
use crate::page::{MAX_PAGE_WRITE, PageWrite, check_length, written as pages_written};
use crate::precondition::Preconditions;
use crate::put::{ContentHeaderForms, DEFAULT_CONTENT_TYPE, content_headers, max_put_blob, new_blob};
use crate::record::{ContentHeaders, Kind, StagedBlock};
use crate::source::copies_tags;
use crate::take::{WantDigest, carry_digests, write_digests};
use crate::tier::check_new_tier;
use crate::{BlobService, reply};

const MIB: u64 = 1 << 20;

impl BlobService {
    /// Put Blob From URL.
    pub(crate) async fn put_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob(&request, Kind::Block)?;
        check_new_tier(Kind::Block, new.tier.tier, 0)?;
        // Plain content headers speak of the request's body, which is empty.
        new.headers = content_headers(&request.headers, ContentHeaderForms::Own)?;
        let copies_properties = request.headers.flag("x-ms-copy-source-blob-properties")?.unwrap_or(true);
        let copies_tags = copies_tags(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        let (whole, limit) = (0..source.length, max_put_blob(request.version));
        let taken = self.take(&mut request, &source, whole, limit, WantDigest::IfSent, seal.as_ref()).await?;
        new.headers.content_md5 = new.headers.content_md5.or(taken.md5.map(Vec::from));
        if copies_properties {
            new.headers = new.headers.or(source.blob.headers.clone());
            if new.metadata.is_empty() {
                new.metadata = source.blob.metadata.clone();
            }
        }
        new.headers.content_type.get_or_insert_with(|| DEFAULT_CONTENT_TYPE.to_owned());
        if copies_tags {
            new.tags = source.blob.tags.clone();
        }
        new.encryption = seal.map(|seal| seal.encryption);
        (new.content, new.nonce) = (taken.content.clone(), taken.nonce);
        let replaced = self.replace(&request, &target, &preconditions, Access::Write, &new).await;
        let blob = replaced.inspect_err(|_| self.forget(&taken))?;
        let mut response = reply::written(StatusCode::CREATED, &blob, request.version);
        taken.write_digest(&mut response.headers, request.version);
        Ok(response)
    }

    /// Put Block From URL.
    pub(crate) async fn put_block_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let id = BlockId::of_query(&request.query)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        let (part, limit) = (source.part(&request)?, max_block(request.version));
        let taken = self.take(&mut request, &source, part, limit, WantDigest::OfBlock, seal.as_ref()).await?;
        let encryption = seal.map(|seal| seal.encryption);
        let block = StagedBlock { encryption, nonce: taken.nonce, content: taken.content.clone() };
        self.stage_block(&request, &target, &id, &block).await?;
        let mut response = Response::empty(StatusCode::CREATED);
        reply::put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        reply::encryption(&mut response.headers, block.encryption.as_ref());
        taken.write_digest(&mut response.headers, request.version);
        Ok(response)
    }

    /// Append Block From URL.
    pub(crate) async fn append_block_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let append = Append::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        let (part, limit) = (source.part(&request)?, max_append(request.version));
        let taken = self.take(&mut request, &source, part, limit, WantDigest::Md5, seal.as_ref()).await?;
        let block = NewBlock { content: &taken.content, seal: seal.as_ref(), nonce: taken.nonce };
        let blob = self.append(&target, &append, block, &taken.writer).await?;
        let mut response = appended(&blob, taken.content.len(), request.version);
        taken.write_digest(&mut response.headers, request.version);
        Ok(response)
    }

    /// Put Page From URL.
    pub(crate) async fn put_page_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let write = PageWrite::parse(&request)?;
        request.headers.required("x-ms-source-range")?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        let part = source.part(&request)?;
        check_length(Some(part.end - part.start), &write.range)?;
        let (blob, md5, crc64) = match seal {
            None => {
                let (limit, want) = (MAX_PAGE_WRITE, WantDigest::Md5);
                let taken = self.take(&mut request, &source, part, limit, want, None).await?;
                let blob = self.write_pages(&target, &write, &taken.content, &taken.writer).await?;
                (blob, taken.md5, taken.crc64)
            }
            Some(seal) => {
                source.check_online(&request)?;
                let was_sent = carry_digests(&mut request.headers)?;
                self.carry(&mut request, &source, part).await?;
                let received = self.receive_document(&mut request, MAX_PAGE_WRITE as usize).await?;
                let blob = self.write_sealed_pages(&target, &write, &seal, &received.bytes).await?;
                match was_sent {
                    true => (blob, received.md5, Some(received.crc64)),
                    false => (blob, Some(Md5::digest(&received.bytes).into()), None),
                }
            }
        };
        let mut response = pages_written(&blob, request.version);
        write_digests(&mut response.headers, md5, crc64, request.version);
        Ok(response)
    }
}

/// Refuses a body: the bytes come from the source.
pub(crate) fn check_no_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        None | Some(0) => Ok(()),
        Some(length) => Err(Refusal::invalid_header("content-length", length.to_string())),
    }
}

/// The largest block from a source.
fn max_block(version: Version) -> u64 {
    if version.at_least(2020, 4, 8) { 4000 * MIB } else { 100 * MIB }
}

impl ContentHeaders {
    /// These, and the others where there is none.
    fn or(self, other: Self) -> Self {
        Self {
            content_type: self.content_type.or(other.content_type),
            content_encoding: self.content_encoding.or(other.content_encoding),
            content_language: self.content_language.or(other.content_language),
            content_disposition: self.content_disposition.or(other.content_disposition),
            cache_control: self.cache_control.or(other.cache_control),
            content_md5: self.content_md5.or(other.content_md5),
        }
    }
}
