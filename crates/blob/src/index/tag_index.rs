//! The index of blob tags. `docs/decisions/0008-tag-index.md` has the reasons for its design.
//!
//! Each tag has a partition with one row for each blob that has the tag, ordered by value and name. A blob
//! and its index rows are in different partitions, so one commit cannot change both. Instead, a write that
//! sets tags
//!
//! 1. draws a stamp, the *claim*, and inserts index rows with this claim in their keys,
//! 2. commits the blob, whose row names the claim,
//! 3. removes the rows of the blob's former claim.
//!
//! A query ignores index rows whose claim the blob does not have. So the index is correct between any two
//! steps, and after a crash between them: surplus rows are ignored, and no row is missing, because the rows
//! of a claim are removed only after the blob has another claim. A sweep removes the rows that a crash left,
//! once their claim is too old to be committed.

use bytes::Bytes;
use futures_util::future::join_all;
use lazuli_concurrency::{Pace, Span, Stamp, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::SpaceScan;
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, SpaceId, View, Which};

use crate::BlobService;
use crate::model::keys;
use crate::model::record::{self, Blob, Tags};

/// Rows that a sweep reads at once.
const READ_AT_ONCE: usize = 256;
/// Time after which a claim cannot be committed. No request takes that long.
const CLAIM_LASTS: Span = Span::seconds(3600);

/// Tags of a blob that are indexed under one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagClaim {
    pub(crate) tags: Tags,
    /// `None` if there are no tags.
    pub(crate) claim: Option<Stamp>,
}

impl TagClaim {
    /// Returns the claim of a current state.
    pub(crate) fn of(blob: &Blob) -> Self {
        Self { tags: blob.tags.clone(), claim: blob.tags_claim }
    }

    /// Returns the time before which the claim must be committed.
    pub(crate) fn valid_until(&self) -> Option<Timestamp> {
        self.claim.map(|claim| claim.timestamp() + CLAIM_LASTS)
    }
}

impl BlobService {
    /// Indexes tags of a blob under a new claim.
    pub(crate) async fn index(&self, blob: &Partition, tags: Tags) -> Result<TagClaim, Refusal> {
        if tags.is_empty() {
            return Ok(TagClaim::default());
        }
        let indexed = TagClaim { tags, claim: Some(self.store.stamp()) };
        let inserts = entries(blob, &indexed).map(|(partition, key)| async move {
            let put = Mutation::Put(key, Bytes::new());
            let rule = |_: &View<'_>| Ok(Decision::Write(Change::of([put.clone()]), ()));
            self.transact(&partition, Reads::default(), rule).await
        });
        let inserted: Result<(), Refusal> = join_all(inserts).await.into_iter().collect();
        if let Err(refusal) = inserted {
            self.unindex(blob, indexed).await;
            return Err(refusal);
        }
        Ok(indexed)
    }

    /// Removes the rows of a claim that the blob does not have and cannot get. Rows whose removal fails
    /// remain, and queries ignore them.
    pub(crate) async fn unindex(&self, blob: &Partition, indexed: TagClaim) {
        if indexed.claim.is_none() {
            return;
        }
        let removals = entries(blob, &indexed)
            .map(|(partition, row)| async move { self.remove_entry(&partition, row).await });
        for refusal in join_all(removals).await.into_iter().filter_map(Result::err) {
            tracing::debug!(%refusal, "could not remove a row from the tag index");
        }
    }

    /// Removes the rows of a claim whose blob was not written. After an internal error the blob may have been
    /// written, so the rows remain; a sweep removes them if it was not.
    pub(crate) async fn unindex_refused(&self, blob: &Partition, claim: TagClaim, refusal: &Refusal) {
        if refusal.code() != ErrorCode::InternalError {
            self.unindex(blob, claim).await;
        }
    }

    /// Removes the index rows of a container whose claim no blob has or can get.
    pub(crate) async fn sweep_index(&self, space: SpaceId, pace: Pace) -> Result<(), Refusal> {
        let mut scan = SpaceScan::new(&*self.store, space, keys::TAGS, Which::All, READ_AT_ONCE).paced(pace);
        while let Some(rows) = scan.next().await? {
            for (partition, row) in rows {
                let Some((name, claim)) = keys::blob_of_tag_entry(&row.key) else { continue };
                if claim.timestamp() + CLAIM_LASTS > self.store.now() {
                    continue;
                }
                let blob = keys::blob(space, name);
                let base = self.rows.read(&blob, &Reads::key(keys::BASE)).await?;
                let base = record::blob(base.rows.first().and_then(Option::as_ref));
                let base = base.map_err(|damage| damage.at(&blob))?;
                if base.is_none_or(|base| base.tags_claim != Some(claim)) {
                    self.remove_entry(&Partition::new(space, partition), row.key).await?;
                }
            }
        }
        Ok(())
    }

    async fn remove_entry(&self, index: &Partition, row: Bytes) -> Result<(), Refusal> {
        let rule = |_: &View<'_>| Ok(Decision::Write(Change::of([Mutation::Delete(row.clone())]), ()));
        self.transact(index, Reads::default(), rule).await
    }
}

/// Returns the partitions and keys of a claim's rows.
fn entries(blob: &Partition, indexed: &TagClaim) -> impl Iterator<Item = (Partition, Bytes)> {
    let name = keys::blob_name(&blob.key).unwrap_or_default();
    let entry = |claim: Stamp, (tag, value): &(String, String)| {
        (keys::tag(blob.space, tag), keys::tag_entry(value, name, claim))
    };
    let entries: Vec<_> =
        indexed.claim.iter().flat_map(|claim| indexed.tags.0.iter().map(|tag| entry(*claim, tag))).collect();
    entries.into_iter()
}
