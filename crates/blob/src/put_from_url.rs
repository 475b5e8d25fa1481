//! Put Blob From URL, Put Block From URL, Append Block From URL and Put Page From URL. They work like Put
//! Blob, Put Block, Append Block and Put Page, but read the bytes from a source.

use http::StatusCode;
use lazuli_protocol::{Headers, Refusal, Request, Response};
use md5::{Digest as _, Md5};

use crate::access::replace::ReplaceRequest;
use crate::append::{Append, NewBlock, append_reply};
use crate::content::read_source::{ReplyDigest, adopt_source_digests, write_digests};
use crate::content::source::copies_tags;
use crate::model::record::{DEFAULT_CONTENT_TYPE, Kind, StagedBlock};
use crate::model::staging::BlockId;
use crate::page::{MAX_PAGE_WRITE, PageWrite, check_length, pages_reply};
use crate::rules::body::{check_no_body, max_append, max_block_from_url, max_put_blob};
use crate::rules::new_blob::{ContentHeaderForms, content_headers, new_blob};
use crate::rules::precondition::Preconditions;
use crate::rules::tier::check_new_tier;
use crate::{BlobService, reply};

impl BlobService {
    /// Handles Put Blob From URL.
    pub(crate) async fn put_blob_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob(&request, Kind::Block)?;
        check_new_tier(Kind::Block, new.tier.tier, 0)?;
        // Plain content headers describe the body of the request, which is empty.
        new.headers = content_headers(&request.headers, ContentHeaderForms::Own)?;
        let copies_properties = request.headers.flag("x-ms-copy-source-blob-properties")?.unwrap_or(true);
        let copies_tags = copies_tags(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        let (whole, limit) = (0..source.length, max_put_blob(request.version));
        let read =
            self.read_source(&mut request, &source, whole, limit, ReplyDigest::None, seal.as_ref()).await?;
        new.headers.content_md5 = new.headers.content_md5.or(read.md5.map(Vec::from));
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
        (new.content, new.nonce) = (read.content.clone(), read.nonce);
        let writer = read.writer.clone();
        let replace = ReplaceRequest::write(&request, &target, &preconditions, Kind::Block, writer);
        let replaced = self.replace(replace, |_, _| Ok(new.clone())).await;
        let blob = replaced.inspect_err(|_| self.release(&read))?;
        let mut response = reply::write_reply(StatusCode::CREATED, &blob, request.version);
        read.write_digests(&mut response.headers, request.version);
        Ok(response)
    }

    /// Handles Put Block From URL.
    pub(crate) async fn put_block_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let id = BlockId::of_query(&request.query)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        let (part, limit) = (source.part(&request)?, max_block_from_url(request.version));
        let read =
            self.read_source(&mut request, &source, part, limit, ReplyDigest::OfBlock, seal.as_ref()).await?;
        let encryption = seal.map(|seal| seal.encryption);
        let block = StagedBlock { encryption, nonce: read.nonce, content: read.content.clone() };
        self.stage_block(&request, &target, &id, &block).await?;
        let mut response = Response::empty(StatusCode::CREATED);
        reply::put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        reply::encryption(&mut response.headers, block.encryption.as_ref());
        read.write_digests(&mut response.headers, request.version);
        Ok(response)
    }

    /// Handles Append Block From URL.
    pub(crate) async fn append_block_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let append = Append::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        let (part, limit) = (source.part(&request)?, max_append(request.version));
        let read =
            self.read_source(&mut request, &source, part, limit, ReplyDigest::Md5, seal.as_ref()).await?;
        let block = NewBlock { content: &read.content, seal: seal.as_ref(), nonce: read.nonce };
        let blob = self.append(&target, &append, block, &read.writer).await?;
        let mut response = append_reply(&blob, read.content.len(), request.version);
        read.write_digests(&mut response.headers, request.version);
        Ok(response)
    }

    /// Handles Put Page From URL.
    pub(crate) async fn put_page_from_url(&self, mut request: Request) -> Result<Response, Refusal> {
        check_no_body(&request)?;
        let write = PageWrite::parse(&request)?;
        request.headers.required("x-ms-source-range")?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        let part = source.part(&request)?;
        check_length(Some(part.end - part.start), &write.range)?;
        let (blob, md5, crc64) = match seal {
            None => {
                let (limit, digest) = (MAX_PAGE_WRITE, ReplyDigest::Md5);
                let read = self.read_source(&mut request, &source, part, limit, digest, None).await?;
                let blob = self.write_pages(&target, &write, &read.content, &read.writer).await?;
                (blob, read.md5, read.crc64)
            }
            Some(seal) => {
                source.check_online(&request)?;
                let was_sent = adopt_source_digests(&mut request.headers)?;
                self.attach_body(&mut request, &source, part).await?;
                let received = self.receive_document(&mut request, MAX_PAGE_WRITE as usize).await?;
                let blob = self.write_sealed_pages(&target, &write, &seal, &received.bytes).await?;
                match was_sent {
                    true => (blob, received.md5, Some(received.crc64)),
                    false => (blob, Some(Md5::digest(&received.bytes).into()), None),
                }
            }
        };
        let mut response = pages_reply(&blob, request.version);
        write_digests(&mut response.headers, md5, crc64, request.version);
        Ok(response)
    }
}
