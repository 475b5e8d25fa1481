//! Incremental Copy Blob: keeps a page blob, its backup, in step with the snapshots of another one.
//!
//! Each request copies a snapshot of the source and leaves a snapshot of the target. Snapshots share what they have in
//! common, so only what differs takes space; here not even that is moved, for the target shares it with the source. Where
//! the target is encrypted in another way, what differs is read and written.
//! Nobody else writes to the target or reads its current state: what counts are its snapshots.

use lazuli_concurrency::{Access, ConditionRefusal, Stamp};
use lazuli_copy::CopyStatus;
use lazuli_extents::{Change as PageChange, Content, Diff, Edit, Writer};
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, date};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::block::drop_staged;
use crate::copy::{Copy, Wanted, copied};
use crate::history::History;
use crate::page_ranges::{Changes, Source};
use crate::precondition::{Preconditions, check_mutable, check_overwrite};
use crate::protection::Protecting;
use crate::put::ACCESS_TIER;
use crate::record::{self, Blob, BlobCopy, Damage, Kind, Tags};
use crate::sink::Stored;
use crate::source::{Here, Place};
use crate::tag_index::Indexed;
use crate::target::{Found, State, Target};
use crate::tier::check_length_in_tier;
use crate::{BlobService, keys, reply};

/// How often the place of a backup is cleared of what others delete there meanwhile.
const MAX_ATTEMPTS: usize = 16;
/// Bytes that are encrypted at once. Whole pages.
const PIECE: u64 = 1 << 20;
/// Changes after which others have their turn.
const CHANGES_AT_ONCE: usize = 64;

impl BlobService {
    /// Incremental Copy Blob.
    pub(crate) async fn incremental_copy_blob(&self, mut request: Request) -> Result<Response, Refusal> {
        // No header of this operation: the tier of a backup is its own.
        request.headers.remove(ACCESS_TIER);
        // Nor is there one for a lease id, so it asks for none.
        let preconditions = Preconditions { lease_id: None, ..Preconditions::of_write(&request)? };
        let wanted = Wanted::parse(&request)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        let source = self.source(&request).await?;
        let copy = Copy { request: &request, preconditions, access: Access::Read, wanted, seal, source };
        let Place::Here(here) = &copy.source.place else {
            return Err(ErrorCode::InvalidSourceBlobUrl.into());
        };
        let State::Snapshot(snapshot) = here.state else {
            return Err(ErrorCode::IncrementalCopySourceMustBeSnapshot.into());
        };
        if !matches!(copy.source.blob.kind, Kind::Page { .. }) {
            return Err(ErrorCode::InvalidSourceBlobType.into());
        }
        let writer = self.extents.writer();
        let content = self.backup_content(&copy, here, &target, &writer).await?;
        let history = self.history(&request.account).await?;
        let backup = Backup { copy: &copy, snapshot, content: &content, history };
        let protecting = Protecting::if_asked(&request, &target)?;
        let blob = self.back_up(&target, protecting.as_ref(), &backup, &writer).await?;
        let mut response = copied(&blob, &request);
        // Everywhere else this takes its time, so that is what clients expect; those who ask will find it done.
        reply::put(&mut response.headers, "x-ms-copy-status", CopyStatus::Pending.name());
        Ok(response)
    }

    /// Makes the backup, once nothing that was deleted is in its place.
    async fn back_up(
        &self,
        target: &Target,
        protecting: Option<&Protecting<'_>>,
        backup: &Backup<'_>,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            let reads = Reads::key(keys::BASE);
            let step = self.transact_protecting(protecting, &target.partition, reads, |view| {
                let old = record::blob(view.row(&keys::BASE))?;
                if let Some(old) = &old {
                    writer.hold(self.pin(), old.contents());
                }
                backup.decide(view, old.as_ref())
            });
            match step.await? {
                Step::Done(blob) => return Ok(*blob),
                Step::Cleared(unindexed) => self.unindex(&target.partition, unindexed).await,
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// The content of the copy: the source's own, or the same encrypted in another way.
    async fn backup_content(
        &self,
        copy: &Copy<'_>,
        here: &Here,
        target: &Target,
        writer: &Writer,
    ) -> Result<Blob, Refusal> {
        let mut blob = copy.source.blob.clone();
        if !copy.shares(&blob) {
            let stored = match self.last_backup(copy, here, target, writer).await? {
                Some(last) => self.store_since(copy, here, &last, writer).await?,
                None => self.store_again(copy, here, writer).await?,
            };
            stored.put_into(&mut blob);
        }
        Ok(blob)
    }

    /// What the last copy made and what it made it of, if both are there and encrypted as now. The writer keeps it.
    async fn last_backup(
        &self,
        copy: &Copy<'_>,
        here: &Here,
        target: &Target,
        writer: &Writer,
    ) -> Result<Option<LastBackup>, Refusal> {
        let Some(Found { blob, held: _held, .. }) = self.find(target).await? else { return Ok(None) };
        writer.hold(self.pin(), blob.contents());
        let encryption = copy.seal.as_ref().map(|seal| &seal.encryption);
        let last = blob.copy.as_ref().filter(|last| last.incremental);
        let Some((url, Some(snapshot))) = last.map(|last| parts(&last.state.source)) else { return Ok(None) };
        if url != parts(&copy.source.shown_url).0 || blob.encryption.as_ref() != encryption {
            return Ok(None);
        }
        let source = self.find_state(&here.partition, State::Snapshot(snapshot)).await?;
        let newer = &copy.source.blob;
        let is_older = |older: &Blob| (older.incarnation, older.nonce) == (newer.incarnation, newer.nonce);
        Ok(source.filter(|source| is_older(&source.blob)).map(|source| LastBackup { blob, source }))
    }

    /// Stores what differs between two snapshots of the source. Pages keep their place, and with it the last copy's salt.
    async fn store_since(
        &self,
        copy: &Copy<'_>,
        here: &Here,
        last: &LastBackup,
        writer: &Writer,
    ) -> Result<Stored, Refusal> {
        let (source, length, salt) = (&copy.source.blob, copy.source.length, last.blob.nonce);
        let sealed = copy.seal.as_ref().map(|seal| salt.ok_or(Damage::Undecodable).map(|salt| (seal, salt)));
        let cipher = sealed.transpose()?.map(|(seal, salt)| seal.key.pages(&salt)).transpose()?;
        let mut edit = Edit::new(&self.extents, writer, &last.blob.content);
        edit.resize(length).await.map_err(reply::extents)?;
        let diff = Diff::new(&self.extents, &last.source.blob.content, &source.content, 0..length);
        let mut changes = Changes::new(Source::Since(diff));
        let mut count = 0_usize;
        while let Some(change) = changes.next().await.map_err(reply::extents)? {
            count += 1;
            if count.is_multiple_of(CHANGES_AT_ONCE) {
                tokio::task::yield_now().await;
            }
            let range = match change {
                PageChange::Written(range) => range,
                PageChange::Cleared(range) => {
                    edit.clear(range).await.map_err(reply::extents)?;
                    continue;
                }
            };
            for start in range.clone().step_by(PIECE as usize) {
                let piece = start..range.end.min(start + PIECE);
                let mut pages = self.plain_bytes(source, here.seal.as_ref(), piece).await?.to_vec();
                if let Some(cipher) = &cipher {
                    cipher.encrypt(start, &mut pages);
                }
                edit.write(start, &Content::inline(pages)).await.map_err(reply::extents)?;
            }
        }
        let content = edit.finish().await.map_err(reply::extents)?;
        self.sync(&content).await?;
        Ok(Stored::run(content, salt))
    }
}

/// What the last copy came to.
struct LastBackup {
    blob: Blob,
    /// The snapshot that it was made of.
    source: Found,
}

/// A snapshot on its way to its backup.
struct Backup<'a> {
    copy: &'a Copy<'a>,
    /// Which snapshot of the source it is.
    snapshot: Stamp,
    /// Whose content the copy has.
    content: &'a Blob,
    history: History,
}

/// What a commit came to.
enum Step {
    Done(Box<Blob>),
    /// What was deleted is a snapshot now, not to be found by its tags any more, and its place is free.
    Cleared(Indexed),
}

impl Backup<'_> {
    /// The backup; or, where a deleted blob is kept in its place, first a deleted snapshot of that. These are two commits
    /// because each makes a snapshot, and a commit has one stamp to name it by.
    fn decide(&self, view: &View<'_>, old: Option<&Blob>) -> Result<Decision<Step>, Refusal> {
        let (stamp, now) = (view.stamp, view.now);
        let admission = self.copy.preconditions.admit_lease(old, self.copy.access, now)?;
        let live = old.filter(|old| old.is_live(now));
        self.check_conditions(live, admission.by_holder)?;
        check_overwrite(&self.copy.request.caller, live.is_some())?;
        let mut blob = self.copy.shared(self.content, false, now);
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
                let kept = self.history.keep_replaced(old, stamp, now)?;
                mutations.extend(drop_staged());
                if !kept.is_empty() {
                    mutations.extend(kept);
                    mutations.push(Mutation::Delete(keys::BASE));
                    return Ok(Decision::Write(Change::of(mutations), Step::Cleared(Indexed::of(old))));
                }
            }
        }
        blob.lease = admission.lease;
        mutations.push(Mutation::Put(keys::BASE, blob.encode()?));
        mutations.push(Mutation::Put(keys::snapshot(stamp), blob.as_snapshot().encode()?));
        let change = Change::of(mutations).until(admission.valid_until);
        Ok(Decision::Write(change, Step::Done(Box::new(blob))))
    }

    /// Judges the conditions on the target. A tag that is not there has a code of its own here.
    fn check_conditions(&self, live: Option<&Blob>, by_holder: bool) -> Result<(), Refusal> {
        let conditions = &self.copy.preconditions.conditions;
        let judged = conditions.evaluate_create(live.map(Blob::validators), by_holder);
        match judged {
            Err(ConditionRefusal::ConditionNotMet) if conditions.if_match.is_some() => {
                Err(ErrorCode::TargetConditionNotMet.into())
            }
            judged => {
                judged?;
                self.copy.preconditions.check_tags(live)
            }
        }
    }

    /// Refuses a target that is not the backup of this source, or has a later state of it.
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

/// The blob and the snapshot that a URL names.
fn parts(url: &str) -> (&str, Option<Stamp>) {
    let (blob, query) = url.split_once('?').unwrap_or((url, ""));
    let query = Query::parse(query).unwrap_or_default();
    let moment = query.get("snapshot").and_then(date::parse_snapshot);
    (blob, moment.map(|moment| Stamp::from_ticks(moment.ticks())))
}
