//! Incremental Copy Blob: copies snapshots of a page blob to another one, its backup.
//!
//! Each request copies a snapshot of the source and takes a snapshot of the target. Snapshots share equal
//! content, so only differences take space; the target shares even those with the source. If source and
//! target differ in encryption, the request reads the differences and stores them again. No other operation
//! writes to the target or reads its current state.

use lazuli_concurrency::{Access, ConditionRefusal, Stamp};
use lazuli_copy::CopyStatus;
use lazuli_extents::{Change as PageChange, Content, Diff, Edit, Writer};
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, date};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::access::protection::ProtectingRequest;
use crate::access::target::{PinnedState, State, Target};
use crate::content::sink::StoredContent;
use crate::content::source::{LocalSource, SourceLocation};
use crate::copy::{Copy, CopyProperties, copy_reply};
use crate::index::tag_index::TagClaim;
use crate::model::keys;
use crate::model::record::{self, Blob, BlobCopy, Damage, Kind, Tags};
use crate::page_ranges::{PageChanges, RangeSource};
use crate::rules::history::History;
use crate::rules::precondition::{Preconditions, check_mutable, check_overwrite};
use crate::rules::tier::{ACCESS_TIER, check_length_in_tier};
use crate::{BlobService, reply};

/// Maximum number of commits that turn a deleted blob into a deleted snapshot before the backup.
const MAX_ATTEMPTS: usize = 16;
/// Bytes that are encrypted at once: whole pages.
const PIECE: u64 = 1 << 20;
/// Number of changes after which the task yields.
const CHANGES_AT_ONCE: usize = 64;

impl BlobService {
    /// Handles Incremental Copy Blob.
    pub(crate) async fn incremental_copy_blob(&self, mut request: Request) -> Result<Response, Refusal> {
        // This operation ignores the header: a backup keeps its own tier.
        request.headers.remove(ACCESS_TIER);
        // The operation has no header for a lease id.
        let preconditions = Preconditions { lease_id: None, ..Preconditions::of_write(&request)? };
        let wanted = CopyProperties::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.find_source(&request).await?;
        let copy = Copy { request: &request, preconditions, access: Access::Read, wanted, seal, source };
        let SourceLocation::Local(local) = &copy.source.location else {
            return Err(ErrorCode::InvalidSourceBlobUrl.into());
        };
        let State::Snapshot(snapshot) = local.state else {
            return Err(ErrorCode::IncrementalCopySourceMustBeSnapshot.into());
        };
        if !matches!(copy.source.blob.kind, Kind::Page { .. }) {
            return Err(ErrorCode::InvalidSourceBlobType.into());
        }
        let writer = self.extents.writer();
        let content = self.backup_content(&copy, local, &target, &writer).await?;
        let history = self.history(&request.account).await?;
        let backup = Backup { copy: &copy, snapshot, content: &content, history };
        let protecting = ProtectingRequest::if_requested(&request, target.partition.space)?;
        let blob = self.back_up(&target, protecting.as_ref(), &backup, &writer).await?;
        let mut response = copy_reply(&blob, &request);
        // The copy is complete, but clients expect a pending one, because the cloud service copies later.
        reply::put(&mut response.headers, "x-ms-copy-status", CopyStatus::Pending.name());
        Ok(response)
    }

    /// Commits the backup. First turns a deleted blob of this name into a deleted snapshot.
    async fn back_up(
        &self,
        target: &Target,
        protecting: Option<&ProtectingRequest<'_>>,
        backup: &Backup<'_>,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let reads = Reads::key(keys::BASE);
            let step = self.transact_protecting(protecting, &target.partition, reads, |view| {
                let old = record::blob(view.row(&keys::BASE))?;
                if let Some(old) = &old {
                    self.hold_contents(writer, old);
                }
                backup.decide(view, old.as_ref())
            });
            match step.await? {
                BackupStep::Done(blob) => return Ok(*blob),
                BackupStep::Cleared(unindexed) => self.unindex(&target.partition, unindexed).await,
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Returns the content of the copy: that of the source, or the same bytes encrypted for the target.
    async fn backup_content(
        &self,
        copy: &Copy<'_>,
        local: &LocalSource,
        target: &Target,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        let mut blob = copy.source.blob.clone();
        if !copy.shares(&blob) {
            let stored = match self.last_backup(copy, local, target, writer).await? {
                Some(last) => self.reencrypt_changes(copy, local, &last, writer).await?,
                None => self.reencrypt(copy, local, writer).await?,
            };
            stored.set_on(&mut blob);
        }
        Ok(blob)
    }

    /// Returns the last backup and its source, if both exist and are encrypted as `copy` demands. `writer`
    /// holds the backup's content.
    async fn last_backup(
        &self,
        copy: &Copy<'_>,
        local: &LocalSource,
        target: &Target,
        writer: &Writer,
    ) -> Result<Option<LastBackup>, Refusal> {
        let Some(PinnedState { blob, held: _held, .. }) = self.find(target).await? else { return Ok(None) };
        self.hold_contents(writer, &blob);
        let encryption = copy.seal.as_ref().map(|seal| &seal.encryption);
        let last = blob.copy.as_ref().filter(|last| last.incremental);
        let Some((url, Some(snapshot))) = last.map(|last| parts(&last.state.source)) else { return Ok(None) };
        if url != parts(&copy.source.shown_url).0 || blob.encryption.as_ref() != encryption {
            return Ok(None);
        }
        let source = self.find_state(&local.partition, State::Snapshot(snapshot)).await?;
        let newer = &copy.source.blob;
        let is_older = |older: &Blob| (older.incarnation, older.nonce) == (newer.incarnation, newer.nonce);
        Ok(source.filter(|source| is_older(&source.blob)).map(|source| LastBackup { blob, source }))
    }

    /// Stores the differences between two snapshots of the source. Pages keep their offsets, so the last
    /// copy's salt is reused.
    async fn reencrypt_changes(
        &self,
        copy: &Copy<'_>,
        local: &LocalSource,
        last: &LastBackup,
        writer: &Writer,
    ) -> Result<StoredContent, Refusal> {
        let (source, length, salt) = (&copy.source.blob, copy.source.length, last.blob.nonce);
        let sealed = copy.seal.as_ref().map(|seal| salt.ok_or(Damage::Undecodable).map(|salt| (seal, salt)));
        let cipher = sealed.transpose()?.map(|(seal, salt)| seal.key.pages(&salt)).transpose()?;
        let mut edit = Edit::new(&self.extents, writer, &last.blob.content);
        edit.resize(length).await.map_err(reply::content_refusal)?;
        let diff = Diff::new(&self.extents, &last.source.blob.content, &source.content, 0..length);
        let mut changes = PageChanges::new(RangeSource::Since(diff));
        let mut count = 0_usize;
        while let Some(change) = changes.next().await.map_err(reply::content_refusal)? {
            count += 1;
            if count.is_multiple_of(CHANGES_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let range = match change {
                PageChange::Written(range) => range,
                PageChange::Cleared(range) => {
                    edit.clear(range).await.map_err(reply::content_refusal)?;
                    continue;
                }
            };
            for start in range.clone().step_by(PIECE as usize) {
                let piece = start..range.end.min(start + PIECE);
                let mut pages = self.read_plain_bytes(source, local.seal.as_ref(), piece).await?.to_vec();
                if let Some(cipher) = &cipher {
                    cipher.encrypt(start, &mut pages);
                }
                edit.write(start, &Content::inline(pages)).await.map_err(reply::content_refusal)?;
            }
        }
        let content = edit.finish().await.map_err(reply::content_refusal)?;
        self.sync(&content).await?;
        Ok(StoredContent::run(content, salt))
    }
}

/// The last backup.
struct LastBackup {
    blob: Blob,
    /// The snapshot that the backup is a copy of.
    source: PinnedState,
}

/// The backup that a request makes.
struct Backup<'a> {
    copy: &'a Copy<'a>,
    /// The snapshot of the source.
    snapshot: Stamp,
    /// The source blob, with the content of the copy.
    content: &'a Blob,
    history: History,
}

/// Result of one commit.
enum BackupStep {
    Done(Box<Blob>),
    /// The deleted blob has become a deleted snapshot. Its tags can be removed from the index.
    Cleared(TagClaim),
}

impl Backup<'_> {
    /// Decides the backup. If a deleted blob has its name, first makes a deleted snapshot of that blob. These
    /// are two commits because each makes a snapshot, which is named by the stamp of its commit.
    fn decide(&self, view: &View<'_>, old: Option<&Blob>) -> Result<Decision<BackupStep>, Refusal> {
        let (stamp, now) = (view.stamp, view.now);
        let admission = self.copy.preconditions.admit_lease(old, self.copy.access, now)?;
        let live = old.filter(|old| old.is_live(now));
        self.check_conditions(live, admission.by_holder)?;
        check_overwrite(&self.copy.request.caller, live.is_some())?;
        let mut blob = self.copy.shared_target(self.content, false, now);
        blob.touch(stamp, now);
        blob.copy =
            blob.copy.map(|copy| BlobCopy { incremental: true, destination_snapshot: Some(stamp), ..copy });
        let mut mutations = vec![];
        if let Some(live) = live {
            self.check_target(live)?;
            check_mutable(live, now)?;
            (blob.created, blob.incarnation) = (live.created, live.incarnation);
            (blob.tags, blob.tags_claim) = (live.tags.clone(), live.tags_claim);
            check_length_in_tier(live.tier.tier, blob.content.len())?;
            blob.tier = live.tier;
        } else {
            (blob.created, blob.incarnation, blob.tags) = (now, stamp, Tags::default());
            if let Some(old) = old {
                let kept = self.history.retain_replaced(old, stamp, now)?;
                mutations.extend(old.drop_staged());
                if !kept.is_empty() {
                    mutations.extend(kept);
                    mutations.push(Mutation::Delete(keys::BASE));
                    return Ok(Decision::Write(
                        Change::of(mutations),
                        BackupStep::Cleared(TagClaim::of(old)),
                    ));
                }
            }
        }
        blob.lease = admission.lease;
        mutations.push(Mutation::Put(keys::BASE, blob.encode()?));
        mutations.push(Mutation::Put(keys::snapshot(stamp), blob.as_snapshot().encode()?));
        let change = Change::of(mutations).until(admission.valid_until);
        Ok(Decision::Write(change, BackupStep::Done(Box::new(blob))))
    }

    /// Checks the conditions on the target. This operation has its own error code for `If-Match`.
    fn check_conditions(&self, live: Option<&Blob>, by_holder: bool) -> Result<(), Refusal> {
        let conditions = &self.copy.preconditions.conditions;
        let checked = conditions.evaluate_create(live.map(Blob::validators), by_holder);
        match checked {
            Err(ConditionRefusal::ConditionNotMet) if conditions.if_match.is_some() => {
                Err(ErrorCode::TargetConditionNotMet.into())
            }
            checked => {
                checked?;
                self.copy.preconditions.check_tags(live)
            }
        }
    }

    /// Refuses a target that is not a backup of this source, or is a backup of a later snapshot.
    fn check_target(&self, live: &Blob) -> Result<(), Refusal> {
        if !matches!(live.kind, Kind::Page { .. }) {
            return Err(ErrorCode::InvalidBlobType.into());
        }
        let last = live.copy.as_ref().filter(|copy| copy.incremental);
        let last = last.ok_or(ErrorCode::IncrementalCopyBlobMismatch)?;
        let (blob, snapshot) = parts(&last.state.source);
        if blob != parts(&self.copy.source.shown_url).0 {
            return Err(ErrorCode::IncrementalCopyBlobMismatch.into());
        }
        if snapshot.is_some_and(|last| last > self.snapshot) {
            return Err(ErrorCode::IncrementalCopyOfEarlierVersionSnapshotNotAllowed.into());
        }
        Ok(())
    }
}

/// Splits a URL into the blob and the snapshot that it names.
fn parts(url: &str) -> (&str, Option<Stamp>) {
    let (blob, query) = url.split_once('?').unwrap_or((url, ""));
    let query = Query::parse(query).unwrap_or_default();
    let moment = query.get("snapshot").and_then(date::parse_snapshot);
    (blob, moment.map(|moment| Stamp::from_ticks(moment.ticks())))
}
