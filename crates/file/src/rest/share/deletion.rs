//! Delete Share and Restore Share.
//!
//! Deleting a share deletes everything in it, and its snapshots if the request says so. If the account keeps
//! deleted shares, the share can be restored for a while, with its snapshots.

use http::StatusCode;
use lazuli_concurrency::{Lease, LeaseStatus, Stamp, Timestamp};
use lazuli_copy::TargetSpace;
use lazuli_generations::{Removal, keys};
use lazuli_protocol::lease::lease_id;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, ServiceKind, names};
use lazuli_service::run_to_completion;
use lazuli_store::{Reads, View};

use crate::FileService;
use crate::lock_order::{Rank, Ranked};
use crate::rest::share::{admit_manage, written};
use crate::rest::snapshot_id;
use crate::tree::record::{Deleted, Share};
use crate::tree::snapshots;

/// The treatment of the snapshots of a deleted share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshots {
    /// There must be none.
    Keep,
    /// Deleted, unless one is leased.
    Include,
    /// Deleted.
    IncludeLeased,
}

const SNAPSHOTS: [(&str, Snapshots); 2] =
    [("include", Snapshots::Include), ("include-leased", Snapshots::IncludeLeased)];
const DELETE_SNAPSHOTS: &str = "x-ms-delete-snapshots";

impl FileService {
    /// Handles Delete Share: a share, or one of its snapshots.
    pub(crate) async fn delete_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let id = lease_id(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let snapshots = request.headers.one_of(DELETE_SNAPSHOTS, &SNAPSHOTS)?;
        if let Some(stamp) = snapshot_id::named(&request.query)? {
            if let Some(value) = request.headers.filled(DELETE_SNAPSHOTS)? {
                return Err(Refusal::invalid_header(DELETE_SNAPSHOTS, value));
            }
            let this = self.clone();
            let deleted = async move { this.delete_snapshot(&request, stamp, id).await };
            run_to_completion(deleted).await?;
            return Ok(Response::empty(StatusCode::ACCEPTED));
        }
        let snapshots = snapshots.unwrap_or(Snapshots::Keep);
        let properties = self.accounts.properties(&request.account.name, ServiceKind::File).await?;
        let days = properties.share_delete_retention_days;
        let space = self.share(&request.account, &request.container).await?.space;
        let rule = move |share: &mut Share, view: &View<'_>| {
            if share.space != space {
                // Deleted and created again meanwhile.
                return Err(ErrorCode::ShareNotFound.into());
            }
            let valid_until = admit_manage(share, id, view.now)?;
            conditions.evaluate_write(share.validators())?;
            check_snapshots(&snapshots::taken(view)?, snapshots, view.now)?;
            share.deleted = days.map(|days| Deleted::keep(days, view.now));
            share.lease = Lease::AVAILABLE;
            Ok(Removal { keep: days.is_some(), valid_until })
        };
        let reads = Reads::default().and_range(keys::snapshots(space), snapshots::MAX_ROWS);
        let this = self.clone();
        let deleted = async move {
            let _deleting = Ranked::wait(Rank::ShareDeletion, this.share_deletions.read()).await;
            let (account, name) = (request.account, &request.container);
            let removed = this.shares.remove_with_reads(account.clone(), name, reads, rule).await;
            // The row may be deleted although this failed. Then the sweep closes the space.
            let is_other = |found: Option<Share>| found.is_none_or(|share| share.space != space);
            if removed.is_ok() || this.shares.find(&account, name).await.is_ok_and(is_other) {
                this.close_share(space);
            }
            removed?;
            Ok(Response::empty(StatusCode::ACCEPTED))
        };
        run_to_completion(deleted).await
    }

    /// Handles Restore Share.
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
            let restoring = Ranked::wait(Rank::ShareDeletion, this.share_deletions.write()).await;
            let restored = this.shares.restore(account.clone(), &name, deleted, |kept, view| {
                let mut share: Share = kept.ok_or(ErrorCode::ShareNotFound)?;
                match share.deleted.take() {
                    Some(deleted) if deleted.until > view.now => Ok(share),
                    _ => Err(ErrorCode::ShareNotFound.into()),
                }
            });
            restored.await?;
            drop(restoring);
            this.snapshot_garbage.schedule(None);
            let share = this.share(&account, &name).await?;
            let target_space = TargetSpace { space: share.space, account: account.name.clone() };
            this.copies.resume_in(&this, &target_space).await;
            Ok(share)
        };
        let share = run_to_completion(restored).await?;
        Ok(written(StatusCode::CREATED, &share))
    }
}

/// Checks that a share with these snapshots may be deleted.
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

/// Returns the version of a deleted share.
pub(crate) fn version_text(deleted: Stamp) -> String {
    format!("{:016X}", deleted.ticks())
}

/// Parses the version of a deleted share.
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
