//! Put Block: stages a block.
//!
//! A staged block has a row of its own. Put Block reads the row of the blob and usually leaves it unchanged,
//! so concurrent Put Blocks do not conflict. Each one writes the row that counts staged blocks, even if the
//! count stays the same: if that row is unchanged, no block was staged meanwhile.

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::{Access, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads, Row, View};

use crate::access::target::Target;
use crate::content::intake::Md5Policy;
use crate::index::tag_index::TagClaim;
use crate::model::keys;
use crate::model::record::{self, Blob, Kind, StagedBlock};
use crate::model::staging::{BlockId, Staging};
use crate::rules::body::{check_body, max_block};
use crate::rules::history::History;
use crate::rules::precondition::{Preconditions, check_no_pending_copy, check_overwrite};
use crate::{BlobService, reply};

/// Maximum number of staged blocks of a blob.
const MAX_STAGED: i64 = 100_000;

impl BlobService {
    /// Handles Put Block.
    pub(crate) async fn put_block(&self, mut request: Request) -> Result<Response, Refusal> {
        let id = BlockId::of_query(&request.query)?;
        check_body(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let (limit, want) = (max_block(request.version), Md5Policy::of_block(request.version));
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

    /// Stages a block whose content is durable. The caller's writer must hold the content until this returns.
    pub(crate) async fn stage_block(
        &self,
        request: &Request,
        target: &Target,
        id: &BlockId,
        block: &StagedBlock,
    ) -> Result<(), Refusal> {
        let preconditions = Preconditions::of_lease_only(request)?;
        let value = block.encode()?;
        let (generation, count) = self.read_staging(target).await?;
        let expected = generation.map(|generation| keys::staged(generation, &id.0));
        let reads = Reads::keys([keys::BASE].into_iter().chain(expected));
        let result = self.transact(&target.partition, reads, |view| {
            let base = record::blob(view.row(&keys::BASE))?;
            let staging = base.as_ref().filter(|blob| blob.is_present(view.now));
            let staging = staging.and_then(|blob| blob.staged(view.now));
            let mut replaced = None;
            if let Some(Staging { generation, .. }) = staging {
                let key = keys::staged(generation, &id.0);
                if !view.has_read(&key) {
                    return Ok(Decision::Read(Reads::key(key)));
                }
                replaced = view.row(&key).map(|row| StagedBlock::decode(&row.value)).transpose()?;
            }
            let is_taken = replaced.is_some() || base.as_ref().is_some_and(|blob| blob.is_live(view.now));
            check_overwrite(&request.caller, is_taken)?;
            let block =
                NewBlock { id, value: &value, replaced: replaced.map(|old| old.content.extent_bytes()) };
            stage(view, base.as_ref(), staging, &preconditions, count, &block)
        });
        let result = result.await.inspect_err(|_| self.extents.released(block.content.extent_bytes()));
        let StageResult { released, unindexed } = result?;
        self.extents.released(released);
        self.unindex(&target.partition, unindexed).await;
        Ok(())
    }

    /// Returns the generation of the staged blocks and their count. Reads outside of the transaction, so that
    /// concurrent Put Blocks do not conflict; so concurrent requests may exceed the limit by their number.
    async fn read_staging(&self, target: &Target) -> Result<(Option<u64>, i64), Refusal> {
        let set = self.rows.read(&target.partition, &Reads::keys([keys::BASE, keys::STAGED_COUNT])).await?;
        let [base, count] = [0, 1].map(|at| set.rows.get(at).and_then(Option::as_ref));
        let blob = record::blob(base).map_err(|damage| damage.at(&target.partition))?;
        let staging = blob.and_then(|blob| blob.staging);
        Ok((staging.map(|staging| staging.generation), count.map_or(0, Row::count)))
    }
}

/// A block to stage.
struct NewBlock<'a> {
    id: &'a BlockId,
    /// The encoded [`StagedBlock`].
    value: &'a Bytes,
    /// Bytes of the staged block that has this id now.
    replaced: Option<u64>,
}

/// Result of staging a block.
#[derive(Default)]
struct StageResult {
    /// Bytes that no row refers to now.
    released: u64,
    /// The tag claim of the deleted blob that the block replaced.
    unindexed: TagClaim,
}

/// Decides how to stage a block. `staged` describes the blocks that are already staged.
fn stage(
    view: &View<'_>,
    base: Option<&Blob>,
    staged: Option<Staging>,
    preconditions: &Preconditions,
    count: i64,
    block: &NewBlock<'_>,
) -> Result<Decision<StageResult>, Refusal> {
    let (stamp, now) = (view.stamp, view.now);
    let admission = preconditions.admit_lease(base, Access::Write, now)?;
    let present = base.filter(|blob| blob.is_present(now));
    if let Some(blob) = present {
        check_stageable(blob, now)?;
    }
    let id_length = block.id.0.len() as u8;
    match staged {
        Some(staging) if staging.id_length != id_length => return Err(ErrorCode::InvalidBlobOrBlock.into()),
        Some(_) if block.replaced.is_none() && count >= MAX_STAGED => {
            return Err(ErrorCode::BlockCountExceedsLimit.into());
        }
        _ => {}
    }
    let staging = staged.map_or_else(|| Staging::begin(id_length, stamp, now), |staging| staging.extend(now));
    let mut result = StageResult { released: block.replaced.unwrap_or(0), ..StageResult::default() };
    let mut mutations = vec![];
    if staged.is_none() {
        mutations.extend(base.and_then(Blob::drop_staged));
    }
    match (present, base) {
        (Some(blob), _) if staged == Some(staging) && blob.lease == admission.lease => {}
        (Some(blob), _) => {
            let blob = Blob { staging: Some(staging), lease: admission.lease, ..blob.clone() };
            mutations.push(Mutation::Put(keys::BASE, blob.encode()?));
        }
        (None, gone) => {
            let kept = gone.map(|gone| History::default().retain_replaced(gone, stamp, now)).transpose()?;
            mutations.extend(kept.into_iter().flatten());
            result.unindexed = gone.map(TagClaim::of).unwrap_or_default();
            let new = Blob::new(Kind::Block, stamp, now);
            let uncommitted = Blob { committed: false, staging: Some(staging), ..new };
            mutations.push(Mutation::Put(keys::BASE, uncommitted.encode()?));
        }
    }
    mutations.push(Mutation::Put(keys::staged(staging.generation, &block.id.0), block.value.clone()));
    mutations.push(Mutation::Add(keys::STAGED_COUNT, i64::from(block.replaced.is_none())));
    Ok(Decision::Write(Change::of(mutations).until(admission.valid_until), result))
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
