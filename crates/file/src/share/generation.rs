//! Delete Share and Restore Share.
//!
//! A share is deleted with all that is in it, its snapshots included if the request says so. If the account keeps deleted
//! shares, the share can be restored for a while, with its snapshots.

use http::StatusCode;
use lazuli_concurrency::{Access, Lease, LeaseId, LeaseStatus, Stamp, Timestamp};
use lazuli_generations::{Removal, carry_through, keys, unreadable};
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, ServiceKind, names};
use lazuli_store::{Reads, SpaceId, View};

use super::written;
use crate::record::{Deleted, Share};
use crate::{FileService, snapshot};

/// What is to become of the snapshots of a share that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshots {
    /// There must be none.
    Keep,
    /// They go too, unless one is leased.
    Include,
    /// They go too.
    IncludeLeased,
}

const SNAPSHOTS: [(&str, Snapshots); 2] =
    [("include", Snapshots::Include), ("include-leased", Snapshots::IncludeLeased)];
const DELETE_SNAPSHOTS: &str = "x-ms-delete-snapshots";

impl FileService {
    /// Delete Share: a share, or one of its snapshots.
    pub(crate) async fn delete_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let id = lease_id(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let snapshots = request.headers.one_of(DELETE_SNAPSHOTS, &SNAPSHOTS)?;
        if let Some(stamp) = snapshot::named(&request.query)? {
            if let Some(value) = request.headers.filled(DELETE_SNAPSHOTS)? {
                return Err(Refusal::invalid_header(DELETE_SNAPSHOTS, value));
            }
            let this = self.clone();
            let deleted = async move { this.delete_snapshot(&request, stamp, id).await };
            carry_through(deleted).await?;
            return Ok(Response::empty(StatusCode::ACCEPTED));
        }
        let snapshots = snapshots.unwrap_or(Snapshots::Keep);
        let properties = self.accounts.properties(&request.account.name, ServiceKind::File).await?;
        let days = properties.share_delete_retention_days;
        let space = self.share(&request.account, &request.container).await?.space;
        let rule = move |share: &mut Share, view: &View<'_>| {
            if share.space != space {
                // Deleted and made again meanwhile: it was gone for a moment.
                return Err(ErrorCode::ShareNotFound.into());
            }
            let valid_until = admit_manage(share, id, view.now)?;
            conditions.evaluate_write(share.validators())?;
            check_snapshots(&snapshot::taken(view)?, snapshots, view.now)?;
            share.deleted = days.map(|days| Deleted::keep(days, view.now));
            share.lease = Lease::AVAILABLE;
            Ok(Removal { keep: days.is_some(), valid_until })
        };
        let reads = Reads::default().and_range(keys::snapshots(space), snapshot::MAX_ROWS);
        let this = self.clone();
        let deleted = async move {
            let _deleting = this.deletions.read().await;
            let (account, name) = (request.account, &request.container);
            let removed = this.shares.remove_reading(account.clone(), name, reads, rule).await;
            // The row may have gone although this failed: then its space is closed by the sweep.
            let is_other = |found: Option<Share>| found.is_none_or(|share| share.space != space);
            if removed.is_ok() || this.shares.find(&account, name).await.is_ok_and(is_other) {
                this.close_share(space);
            }
            removed?;
            Ok(Response::empty(StatusCode::ACCEPTED))
        };
        carry_through(deleted).await
    }

    /// Closes what is open of shares that are gone, as far as their deletion did not come to that. May be dropped at any point.
    pub(crate) async fn close_gone(&self) -> Result<(), Refusal> {
        // None is restored meanwhile.
        let _deleting = self.deletions.read().await;
        for space in self.opens.spaces().union(&self.usages.spaces()) {
            let header = self.store.space(*space).await.map_err(unreadable)?;
            if header.is_none_or(|header| !header.open) {
                self.close_share(*space);
            }
        }
        Ok(())
    }

    fn close_share(&self, space: SpaceId) {
        self.close_deleted(space, None);
        self.usages.forget(space);
    }

    /// Restore Share.
    pub(crate) async fn restore_share(&self, request: Request) -> Result<Response, Refusal> {
        const NAME: &str = "x-ms-deleted-share-name";
        names::check_share(&request.container)?;
        let name = request.headers.required(NAME)?;
        let version = request.headers.required("x-ms-deleted-share-version")?;
        if name != request.container {
            let refusal = Refusal::invalid_header(NAME, name);
            return Err(refusal.message("A share is restored under the name that it had."));
        }
        let deleted = parse_version(version).ok_or(ErrorCode::ShareNotFound)?;
        let (this, account, name) = (self.clone(), request.account.clone(), name.to_owned());
        let restored = async move {
            let alone = this.deletions.write().await;
            let restored = this.shares.restore(account.clone(), &name, deleted, |kept, view| {
                let mut share: Share = kept.ok_or(ErrorCode::ShareNotFound)?;
                match share.deleted.take() {
                    Some(deleted) if deleted.until > view.now => Ok(share),
                    _ => Err(ErrorCode::ShareNotFound.into()),
                }
            });
            restored.await?;
            drop(alone);
            this.kept.arises(None);
            let share = this.share(&account, &name).await?;
            this.copies.resume_in(&this, share.space).await;
            Ok(share)
        };
        let share = carry_through(restored).await?;
        Ok(written(StatusCode::CREATED, &share))
    }
}

/// Judges the lease of a share, or of a snapshot, that is to be deleted, and says until when that holds.
pub(crate) fn admit_manage(
    share: &Share,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Refusal> {
    let admission = share.lease.admits(Access::Manage, id, now);
    let admission = admission.map_err(|refusal| Refusal::lease(refusal, Leased::Container))?;
    Ok(admission.valid_until)
}

/// Whether a share with these snapshots may be deleted so.
fn check_snapshots(taken: &[Share], how: Snapshots, now: Timestamp) -> Result<(), Refusal> {
    let is_leased = |snapshot: &Share| snapshot.lease.status(now) == LeaseStatus::Locked;
    match how {
        Snapshots::Keep if !taken.is_empty() => Err(ErrorCode::ShareHasSnapshots.into()),
        Snapshots::Include if taken.iter().any(is_leased) => {
            Err(ErrorCode::DeleteShareWhenSnapshotLeased.into())
        }
        _ => Ok(()),
    }
}

/// How a deleted share is told from others of its name.
pub(crate) fn version_text(deleted: Stamp) -> String {
    format!("{:016X}", deleted.ticks())
}

/// The stamp that a version stands for, if it is one of ours.
fn parse_version(text: &str) -> Option<Stamp> {
    if text.len() != 16 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok().map(Stamp::from_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_sixteen_hexadecimal_digits() {
        let stamp = Stamp::from_ticks(0x08DE_4A5B_0000_0001);
        assert_eq!(parse_version(&version_text(stamp)), Some(stamp));
        for text in ["", "1", "+8DE4A5B00000001", "08DE4A5B0000000g", "08DE4A5B000000011"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
