//! Delete, Restore and Rename Container. They move the row of a container, and open or close its space.

use http::StatusCode;
use lazuli_concurrency::{Access, Lease, LeaseId, Stamp};
use lazuli_copy::TargetSpace;
use lazuli_generations::Removal;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, names};
use lazuli_service::run_to_completion;

use lazuli_store::View;

use super::check_new_name;
use crate::BlobService;
use crate::access::protection::MAX_SEARCHES;
use crate::model::container::Container;
use crate::model::record::Deleted;
use crate::rules::precondition::{Preconditions, admit_container};

impl BlobService {
    /// Handles Delete Container.
    pub(crate) async fn delete_container(&self, request: Request) -> Result<Response, Refusal> {
        names::check_container(&request.container)?;
        let preconditions = Preconditions::of_write(&request)?;
        let days = request.account.settings.container_delete_retention_days;
        let (account, name) = (&request.account, &request.container);
        for _ in 0..MAX_SEARCHES {
            let unprotected = self.unprotected(account, name).await?;
            let (preconditions, checked) = (preconditions.clone(), unprotected.clone());
            let rule = move |container: &mut Container, view: &View<'_>| {
                let valid_until = preconditions.admit_container(container, Access::Manage, view.now)?;
                checked.check(container, view)?;
                if let Some(days) = days {
                    container.lease = Lease::AVAILABLE;
                    container.deleted = Some(Deleted::keep(days, view.now));
                }
                Ok(Removal { keep: days.is_some(), valid_until })
            };
            let removed =
                self.containers.remove_with_reads(account.clone(), name, unprotected.reads(), rule).await;
            if !unprotected.is_outdated() {
                return removed.map(|()| Response::empty(StatusCode::ACCEPTED));
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Handles Restore Container.
    pub(crate) async fn restore_container(&self, request: Request) -> Result<Response, Refusal> {
        const NAME: &str = "x-ms-deleted-container-name";
        names::check_container(&request.container)?;
        let name = request.headers.required(NAME)?;
        let version = request.headers.required("x-ms-deleted-container-version")?;
        if name != request.container {
            return Err(Refusal::invalid_header(NAME, name)
                .message("A container is restored under the name that it had."));
        }
        let deleted = parse_version(version).ok_or_else(no_deleted_container)?;
        let this = self.clone();
        let restored = async move {
            let (account, name) = (request.account, &request.container);
            let restored = this.containers.restore(account.clone(), name, deleted, |kept, view| {
                let mut container: Container = kept.ok_or_else(no_deleted_container)?;
                match container.deleted.take() {
                    Some(deleted) if deleted.until > view.now => Ok(container),
                    _ => Err(no_deleted_container()),
                }
            });
            restored.await?;
            if let Ok(Some(container)) = this.containers.find(&account, name).await {
                let target_space = TargetSpace { space: container.space, account: account.name.clone() };
                this.copies.resume_in(&this, &target_space).await;
            }
            Ok(())
        };
        run_to_completion(restored).await?;
        Ok(Response::empty(StatusCode::CREATED))
    }

    /// Handles Rename Container. For the old name this is a delete, so a lease prevents it without the lease
    /// id. The lease and all other properties move to the new name.
    pub(crate) async fn rename_container(&self, request: Request) -> Result<Response, Refusal> {
        const SOURCE: &str = "x-ms-source-container-name";
        check_new_name(&request.container)?;
        let source = request.headers.required(SOURCE)?;
        names::check_container(source).map_err(|_| Refusal::invalid_header(SOURCE, source))?;
        let id: Option<LeaseId> = request.headers.parsed("x-ms-source-lease-id")?;
        let renamed =
            self.containers.rename(request.account, source, &request.container, move |container, now| {
                admit_container(container, Access::Manage, id, now).map(|admission| admission.valid_until)
            });
        renamed.await?;
        Ok(Response::empty(StatusCode::OK))
    }
}

/// Formats the version of a deleted container for clients.
pub(crate) fn version_text(deleted: Stamp) -> String {
    format!("{:016X}", deleted.ticks())
}

fn parse_version(text: &str) -> Option<Stamp> {
    u64::from_str_radix(text, 16).ok().map(Stamp::from_ticks)
}

/// Returns the refusal for a deleted container that does not exist, with the status that the documentation
/// has for this operation.
fn no_deleted_container() -> Refusal {
    Refusal::new(ErrorCode::ContainerNotFound).with_status(StatusCode::CONFLICT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_version_round_trips() {
        let stamp = Stamp::from_ticks(0x08DE_0102_0304_0506);
        assert_eq!(version_text(stamp), "08DE010203040506");
        assert_eq!(parse_version(&version_text(stamp)), Some(stamp));
        for text in ["", "x", "108DE010203040506"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
