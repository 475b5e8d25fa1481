//! Append Block and Append Blob Seal.

use http::StatusCode;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_extents::{Content, Writer};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, Version};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::access::target::Target;
use crate::content::block_list::encode_run;
use crate::content::cipher::Nonce;
use crate::content::edit::{BlobChange, ContentEdit};
use crate::content::encryption::{Seal, check_update};
use crate::content::intake::Md5Policy;
use crate::model::keys;
use crate::model::record::{self, Blob, Kind};
use crate::rules::body::{check_body, max_append};
use crate::rules::precondition::{Preconditions, check_changeable, check_mutable, not_found};
use crate::{BlobService, reply};

/// Maximum number of blocks of an append blob.
const MAX_BLOCKS: u32 = 50_000;
const POSITION: &str = "x-ms-blob-condition-appendpos";
const MAX_SIZE: &str = "x-ms-blob-condition-maxsize";

impl BlobService {
    /// Handles Append Block.
    pub(crate) async fn append_block(&self, mut request: Request) -> Result<Response, Refusal> {
        let append = Append::parse(&request)?;
        check_body(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let (limit, want) = (max_append(request.version), Md5Policy::of_block(request.version));
        let received = self.receive(&mut request, limit, want, seal.as_ref()).await?;
        let block = NewBlock { content: &received.content, seal: seal.as_ref(), nonce: received.nonce };
        let blob = self.append(&target, &append, block, &received.writer).await?;
        let mut response = append_reply(&blob, received.content.len(), request.version);
        reply::digests(&mut response.headers, received.md5, received.crc64, request.version);
        Ok(response)
    }

    /// Appends a block to an append blob. The block's content is durable, and `writer` holds it.
    pub(crate) async fn append(
        &self,
        target: &Target,
        append: &Append,
        block: NewBlock<'_>,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        let edited = self
            .edit(&target.partition, writer, |view, blob| append.decide(blob, block, view.stamp, view.now));
        edited.await.inspect_err(|_| self.extents.released(block.content.extent_bytes()))
    }

    /// Handles Append Blob Seal, which changes neither `ETag` nor `Last-Modified`.
    pub(crate) async fn seal_append_blob(&self, request: Request) -> Result<Response, Refusal> {
        let append = Append::parse(&request)?;
        let target = self.write_target(&request).await?;
        let sealed = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let blob = record::blob(view.row(&keys::BASE))?;
            let admission = append.preconditions.admit_write_to(blob.as_ref(), is_append, view.now)?;
            let mut blob = blob.ok_or_else(not_found)?;
            append.check_position(blob.content.len())?;
            check_mutable(&blob, view.now)?;
            check_changeable(&blob, view.now)?;
            blob.lease = admission.lease;
            if let Kind::Append { sealed, .. } = &mut blob.kind {
                *sealed = true;
            }
            let change = Change::of([Mutation::Put(keys::BASE, blob.encode()?)]);
            Ok(Decision::Write(change.until(admission.valid_until), blob))
        });
        let blob = sealed.await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::validators(&mut response.headers, blob.validators(), request.version);
        reply::put(&mut response.headers, "x-ms-blob-sealed", "true");
        Ok(response)
    }
}

/// A block to append.
#[derive(Clone, Copy)]
pub(crate) struct NewBlock<'a> {
    pub(crate) content: &'a Content,
    /// The encryption of the content, and its nonce.
    pub(crate) seal: Option<&'a Seal>,
    pub(crate) nonce: Option<Nonce>,
}

/// Returns the reply to an append of `length` bytes.
pub(crate) fn append_reply(blob: &Blob, length: u64, version: Version) -> Response {
    let mut response = reply::write_reply(StatusCode::CREATED, blob, version);
    let offset = blob.content.len() - length;
    reply::put(&mut response.headers, "x-ms-blob-append-offset", offset.to_string());
    if let Kind::Append { blocks, .. } = blob.kind {
        reply::put(&mut response.headers, "x-ms-blob-committed-block-count", blocks.to_string());
    }
    response
}

/// The preconditions of an append.
#[derive(Debug, Default)]
pub(crate) struct Append {
    preconditions: Preconditions,
    /// The length that the blob must have.
    position: Option<u64>,
    /// The length that the blob must not exceed after the append.
    max_size: Option<u64>,
}

impl Append {
    /// Reads the conditions in the headers of a request.
    pub(crate) fn parse(request: &Request) -> Result<Self, Refusal> {
        let number =
            |name| Ok::<_, Refusal>(request.headers.number(name, 0..=i64::MAX)?.map(i64::unsigned_abs));
        Ok(Self {
            preconditions: Preconditions::of_write(request)?,
            position: number(POSITION)?,
            max_size: number(MAX_SIZE)?,
        })
    }

    fn decide(
        &self,
        blob: Option<Blob>,
        block: NewBlock<'_>,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<BlobChange, Refusal> {
        let admission = self.preconditions.admit_write_to(blob.as_ref(), is_append, now)?;
        let mut blob = blob.ok_or_else(not_found)?;
        self.check(blob.content.len(), block.content.len())?;
        check_update(blob.encryption.as_ref(), block.seal)?;
        check_mutable(&blob, now)?;
        check_changeable(&blob, now)?;
        if let Kind::Append { blocks, sealed } = &mut blob.kind {
            if *sealed {
                return Err(ErrorCode::BlobIsSealed.into());
            }
            if *blocks >= MAX_BLOCKS {
                return Err(ErrorCode::BlockCountExceedsLimit.into());
            }
            *blocks += 1;
        }
        blob.touch(stamp, now);
        blob.lease = admission.lease;
        let run = block.nonce.map(|nonce| encode_run(block.content.len(), nonce));
        let content = ContentEdit::Append { content: block.content.clone(), run };
        Ok(BlobChange { blob, content, valid_until: admission.valid_until })
    }

    /// Checks the conditions that only appends have.
    fn check(&self, length: u64, more: u64) -> Result<(), Refusal> {
        self.check_position(length)?;
        if self.max_size.is_some_and(|max_size| length.saturating_add(more) > max_size) {
            return Err(ErrorCode::MaxBlobSizeConditionNotMet.into());
        }
        Ok(())
    }

    fn check_position(&self, length: u64) -> Result<(), Refusal> {
        match self.position {
            Some(position) if position != length => Err(ErrorCode::AppendPositionConditionNotMet.into()),
            _ => Ok(()),
        }
    }
}

fn is_append(kind: Kind) -> bool {
    matches!(kind, Kind::Append { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(blocks: u32, sealed: bool) -> Blob {
        let kind = Kind::Append { blocks, sealed };
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        Blob { content: Content::inline("12345"), ..Blob::new(kind, Stamp::from_ticks(1), now) }
    }

    fn decide(append: &Append, blob: Blob) -> Result<u32, ErrorCode> {
        let content = Content::inline("678");
        let block = NewBlock { content: &content, seal: None, nonce: None };
        let edited = append.decide(Some(blob), block, Stamp::from_ticks(2), Timestamp::from_ticks(3));
        edited.map_err(|refusal| refusal.code()).map(|edited| match edited.blob.kind {
            Kind::Append { blocks, .. } => blocks,
            _ => 0,
        })
    }

    #[test]
    fn position_size_seal_and_block_count_are_checked_in_this_order() {
        let append = |position, max_size| Append { position, max_size, ..Append::default() };
        for (position, max_size, blob, expected) in [
            (None, None, blob(0, false), Ok(1)),
            (Some(5), Some(8), blob(7, false), Ok(8)),
            (Some(4), Some(1), blob(0, true), Err(ErrorCode::AppendPositionConditionNotMet)),
            (None, Some(7), blob(0, true), Err(ErrorCode::MaxBlobSizeConditionNotMet)),
            (None, Some(4), blob(0, false), Err(ErrorCode::MaxBlobSizeConditionNotMet)),
            (None, None, blob(MAX_BLOCKS, true), Err(ErrorCode::BlobIsSealed)),
            (None, None, blob(MAX_BLOCKS, false), Err(ErrorCode::BlockCountExceedsLimit)),
            (None, None, blob(MAX_BLOCKS - 1, false), Ok(MAX_BLOCKS)),
        ] {
            assert_eq!(decide(&append(position, max_size), blob), expected, "{position:?} {max_size:?}");
        }
    }
}
