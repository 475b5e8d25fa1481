//! Put Block: blocks that wait to be committed.
//!
//! A staged block is a row of its own, and putting it only reads the row of the blob, so blocks that are put in parallel
//! do not get in each other's way. Each one adds to the row that counts them, if only nothing: whoever has seen that row
//! unchanged knows that no block was staged meanwhile.

use std::fmt;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{Access, Timestamp};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, Version};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::history::History;
use crate::intake::WantMd5;
use crate::precondition::{Preconditions, check_overwrite};
use crate::put::check_no_pending_copy;
use crate::record::{self, Blob, Kind, StagedBlock, Staging};
use crate::tag_index::Indexed;
use crate::target::Target;
use crate::{BlobService, keys, reply};

const MIB: u64 = 1 << 20;
/// Bytes of a block id.
const MAX_ID: usize = 64;
/// Blocks that can be staged for one blob.
const MAX_STAGED: i64 = 100_000;

/// What a block is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId(pub(crate) Bytes);

/// Base64 as the cloud service reads it: padded, whatever the bits are that nothing depends on.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

impl BlockId {
    /// Reads the text of an id.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64.decode(text).ok()?;
        (1..=MAX_ID).contains(&bytes.len()).then(|| Self(bytes.into()))
    }

    /// The `blockid` of a query.
    pub(crate) fn of_query(query: &Query) -> Result<Self, Refusal> {
        const NAME: &str = "blockid";
        let text = query.required(NAME)?;
        Self::parse(text).ok_or_else(|| {
            let reason = match BASE64.decode(text) {
                Ok(_) => "It has to be the Base64 form of 1 to 64 bytes.",
                Err(_) => "Not a valid base64 string.",
            };
            Refusal::invalid_query(NAME, text, reason)
        })
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl BlobService {
    /// Put Block.
    pub(crate) async fn put_block(&self, mut request: Request) -> Result<Response, Refusal> {
        let id = BlockId::of_query(&request.query)?;
        check_body(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let (limit, want) = (max_block(request.version), WantMd5::of_block(request.version));
        let received = self.receive(&mut request, limit, want, seal.as_ref()).await?;
        let encryption = seal.map(|seal| seal.encryption);
        let block = StagedBlock { encryption, nonce: received.nonce, content: received.content };
        self.stage_block(&request, &target, &id, &block).await?;
        let mut response = Response::empty(StatusCode::CREATED);
        reply::put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        reply::encryption(&mut response.headers, block.encryption.as_ref());
        reply::digests(&mut response.headers, received.md5, received.crc64, request.version);
        Ok(response)
    }

    /// Stages a block whose content is durable, and kept by its writer until this returns.
    pub(crate) async fn stage_block(
        &self,
        request: &Request,
        target: &Target,
        id: &BlockId,
        block: &StagedBlock,
    ) -> Result<(), Refusal> {
        let preconditions = Preconditions::of_lease_only(request)?;
        let staged = keys::staged(&id.0);
        let put = Mutation::Put(staged.clone(), block.encode()?);
        let count = self.staged_count(target).await?;
        let result = self.transact(&target.partition, Reads::keys([keys::BASE, staged.clone()]), |view| {
            let base = record::blob(view.row(&keys::BASE))?;
            let replaced = view.row(&staged).map(|row| StagedBlock::decode(&row.value)).transpose()?;
            let replaced = replaced.map(|block| block.content.allocated());
            check_create_only(&request.caller, base.as_ref(), replaced.is_some(), view.now)?;
            stage(view, base.as_ref(), replaced, &preconditions, id, count, put.clone())
        });
        let result = result.await.inspect_err(|_| self.extents.released(block.content.allocated()));
        let Staged { released, unindexed } = result?;
        self.extents.released(released);
        self.unindex(&target.partition, unindexed).await;
        Ok(())
    }

    /// How many blocks are staged. Read aside: those who put the next ones meanwhile are not in the way of each other, so
    /// the limit may be passed by as many as there are.
    async fn staged_count(&self, target: &Target) -> Result<i64, Refusal> {
        let set = self.read(&target.partition, &Reads::key(keys::STAGED_COUNT)).await?;
        let count = set.rows.first().and_then(Option::as_ref).and_then(|row| row.value.first_chunk());
        Ok(count.map_or(0, |bytes| i64::from_le_bytes(*bytes)))
    }
}

/// What staging a block came to.
#[derive(Default)]
struct Staged {
    /// Bytes that no row refers to any more.
    released: u64,
    /// What is not to be found by its tags any more.
    unindexed: Indexed,
}

/// Stages a block: `put` is its row; `replaced` are the bytes of the block of this id, if there is one.
fn stage(
    view: &View<'_>,
    base: Option<&Blob>,
    replaced: Option<u64>,
    preconditions: &Preconditions,
    id: &BlockId,
    count: i64,
    put: Mutation,
) -> Result<Decision<Staged>, Refusal> {
    let (stamp, now) = (view.stamp, view.now);
    let admission = preconditions.admit_lease(base, Access::Write, now)?;
    let there = base.filter(|blob| blob.is_there(now));
    if let Some(blob) = there {
        check_stageable(blob, now)?;
    }
    let staged = there.and_then(|blob| blob.staged(now));
    let replaced = replaced.filter(|_| staged.is_some());
    let id_length = id.0.len() as u8;
    match staged {
        Some(staging) if staging.id_length != id_length => return Err(ErrorCode::InvalidBlobOrBlock.into()),
        Some(_) if replaced.is_none() && count >= MAX_STAGED => {
            return Err(ErrorCode::BlockCountExceedsLimit.into());
        }
        _ => {}
    }
    let staging = staged.map_or_else(|| Staging::begin(id_length, now), |staging| staging.go_on(now));
    let mut result = Staged { released: replaced.unwrap_or(0), ..Staged::default() };
    let mut mutations = vec![];
    if staged.is_none() && base.is_some_and(|base| base.staging.is_some()) {
        mutations.extend(drop_staged());
    }
    match (there, base) {
        (Some(blob), _) if staged == Some(staging) && blob.lease == admission.lease => {}
        (Some(blob), _) => {
            let blob = Blob { staging: Some(staging), lease: admission.lease, ..blob.clone() };
            mutations.push(Mutation::Put(keys::BASE, blob.encode()?));
        }
        (None, gone) => {
            let kept = gone.map(|gone| History::default().keep_replaced(gone, stamp, now)).transpose()?;
            mutations.extend(kept.into_iter().flatten());
            result.unindexed = gone.map(Indexed::of).unwrap_or_default();
            let new = Blob::new(Kind::Block, stamp, now);
            let uncommitted = Blob { committed: false, staging: Some(staging), ..new };
            mutations.push(Mutation::Put(keys::BASE, uncommitted.encode()?));
        }
    }
    mutations.push(put);
    mutations.push(Mutation::Add(keys::STAGED_COUNT, i64::from(replaced.is_none())));
    Ok(Decision::Write(Change::of(mutations).until(admission.valid_until), result))
}

/// Refuses to stage a block for a caller with create permission only if the blob exists or the block id is taken. Expired
/// staged blocks do not count.
fn check_create_only(
    caller: &Caller,
    base: Option<&Blob>,
    taken: bool,
    now: Timestamp,
) -> Result<(), Refusal> {
    let taken = taken && base.is_some_and(|blob| blob.is_there(now) && blob.staged(now).is_some());
    check_overwrite(caller, taken || base.is_some_and(|blob| blob.is_live(now)))
}

/// Removes everything that is staged.
pub(crate) fn drop_staged() -> [Mutation; 2] {
    [Mutation::DeleteRange(keys::all_staged()), Mutation::Delete(keys::STAGED_COUNT)]
}

fn check_stageable(blob: &Blob, now: Timestamp) -> Result<(), Refusal> {
    if blob.kind != Kind::Block {
        return Err(ErrorCode::InvalidBlobType.into());
    }
    if blob.tier.is_archived(now) {
        return Err(ErrorCode::BlobArchived.into());
    }
    check_no_pending_copy(blob)
}

/// Refuses a request without a body: there are no empty blocks.
pub(crate) fn check_body(request: &Request) -> Result<(), Refusal> {
    match request.content_length {
        Some(0) => Err(Refusal::invalid_header("Content-Length", "0")),
        Some(_) => Ok(()),
        None => Err(ErrorCode::MissingContentLengthHeader.into()),
    }
}

/// The largest block.
pub(crate) fn max_block(version: Version) -> u64 {
    match version {
        version if version.at_least(2019, 12, 12) => 4000 * MIB,
        version if version.at_least(2016, 5, 31) => 100 * MIB,
        _ => 4 * MIB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_padded_base64_form_of_1_to_64_bytes() {
        let long = BASE64.encode([7; 64]);
        for (text, length) in [("AA==", 1), ("AAA=", 2), ("AAAA", 3), ("YWJj/w==", 4), (&long, 64)] {
            assert_eq!(BlockId::parse(text).map(|id| id.0.len()), Some(length), "{text}");
        }
        for text in ["", "A", "AA", "AA=", "AAAA====", "A A=", "AA-_", "é", &BASE64.encode([7; 65])] {
            assert_eq!(BlockId::parse(text), None, "{text}");
        }
        assert_eq!(BlockId::parse("AB==").unwrap().to_string(), "AA==");
    }
}
