//! Delete Container and Restore Container: what happens to a container's space when the row that names it goes or comes
//! back.
//!
//! Deleting moves the row aside and closes the space, so it costs the same whatever the container holds, and the name is
//! free at once: whoever creates it again gets a new space and never sees the old one. The row and the space's header are
//! two commits, and **the row decides**: a space is to be open if the current row names it, and closed otherwise. Whoever
//! moves a row makes the header follow before it answers, raising the epoch even if the header is right already: somebody
//! whose move came earlier may be about to change it on the strength of what it saw. A header is always read before the
//! row, and replaced only as it was read, so the last one to change it has seen the last move.
//!
//! A crash between the two leaves a header that lags. [`crate::sweep`] finds it when the server starts.

use std::sync::Arc;

use http::StatusCode;
use lazuli_concurrency::{Access, Lease, Stamp};
use lazuli_protocol::{Account, ErrorCode, Headers, Refusal, Request, Response, names};
use lazuli_store::{Change, CommitError, Decision, Mutation, Partition, Reads, SpaceHeader, SpaceId};

use crate::precondition::Preconditions;
use crate::record::{Container, Deleted};
use crate::{BlobService, keys, reply};

/// How often a header is read anew because somebody else changed it.
const MAX_ATTEMPTS: usize = 64;

/// Why a space's header is made to follow its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settle {
    /// The row was moved just now.
    Moved,
    /// The header may have been left behind by somebody else.
    Repair,
}

impl BlobService {
    /// Delete Container.
    pub(crate) async fn delete_container(&self, request: Request) -> Result<Response, Refusal> {
        names::check_container(&request.container)?;
        let preconditions = Preconditions::of_write(&request.headers)?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        // Two commits: a client that goes away in between must not leave the second one undone.
        carry_through(async move { service.remove_container(&account, &name, &preconditions).await }).await?;
        Ok(Response::empty(StatusCode::ACCEPTED))
    }

    async fn remove_container(
        &self,
        account: &Account,
        name: &str,
        preconditions: &Preconditions,
    ) -> Result<(), Refusal> {
        let partition = keys::container(account, name);
        let days = account.settings.container_delete_retention_days;
        let moved = self.transact(&partition, Reads::key(keys::CONTAINER), |view| {
            let row = view.row(&keys::CONTAINER).ok_or_else(crate::container_gone)?;
            let mut container = Container::decode(&row.value)?;
            let until = preconditions.admit_container(&container, Access::Manage, view.now)?;
            let space = container.space;
            let aside = match days {
                None => Mutation::Put(keys::garbage(space), bytes::Bytes::new()),
                Some(days) => {
                    container.lease = Lease::AVAILABLE;
                    container.deleted = Some(Deleted::keep(days, view.now));
                    Mutation::Put(keys::deleted_container(view.stamp), container.encode()?)
                }
            };
            let change = Change::of([Mutation::Delete(keys::CONTAINER), aside]).until(until);
            Ok(Decision::Write(change, (space, container.deleted)))
        });
        let (space, deleted) = moved.await?;
        self.garbage.arises(deleted.map(|deleted| deleted.until));
        self.settle(&partition, space, Settle::Moved).await
    }

    /// Restore Container.
    pub(crate) async fn restore_container(&self, request: Request) -> Result<Response, Refusal> {
        const NAME: &str = "x-ms-deleted-container-name";
        names::check_container(&request.container)?;
        let name = request.headers.required(NAME)?;
        let version = request.headers.required("x-ms-deleted-container-version")?;
        if name != request.container {
            return Err(Refusal::invalid_header(NAME, name)
                .message("A container is restored under the name that it had."));
        }
        let deleted = parse_version(version).ok_or_else(nothing_to_restore)?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        carry_through(async move { service.bring_back(account, &name, deleted).await }).await?;
        Ok(Response::empty(StatusCode::CREATED))
    }

    async fn bring_back(&self, account: Arc<Account>, name: &str, deleted: Stamp) -> Result<(), Refusal> {
        let partition = keys::container(&account, name);
        let key = keys::deleted_container(deleted);
        let moved = self.transact(&partition, Reads::keys([keys::CONTAINER, key.clone()]), |view| {
            if view.row(&keys::CONTAINER).is_some() {
                return Err(ErrorCode::ContainerAlreadyExists.into());
            }
            let row = view.row(&key).ok_or_else(nothing_to_restore)?;
            let mut container = Container::decode(&row.value)?;
            if container.deleted.take().is_none_or(|deleted| deleted.until <= view.now) {
                return Err(nothing_to_restore());
            }
            let put = Mutation::Put(keys::CONTAINER, container.encode()?);
            Ok(Decision::Write(Change::of([put, Mutation::Delete(key.clone())]), container.space))
        });
        self.settle(&partition, moved.await?, Settle::Moved).await
    }

    /// Opens or closes a space, as the row of the container says.
    pub(crate) async fn settle(
        &self,
        partition: &Partition,
        space: SpaceId,
        why: Settle,
    ) -> Result<(), Refusal> {
        for _ in 0..MAX_ATTEMPTS {
            // A space without a header is swept: nothing is left to be opened or closed.
            let Some(header) = self.store.space(space).await.map_err(reply::unreadable)? else {
                return Ok(());
            };
            let open = self.container_at(partition).await?.is_some_and(|container| container.space == space);
            if header.open == open && why == Settle::Repair {
                return Ok(());
            }
            let to = SpaceHeader { epoch: header.epoch + 1, open };
            match self.store.set_space(space, Some(header), to).await {
                Err(CommitError::Conflict) => {}
                settled => return settled.map_err(reply::not_opened),
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

/// The version of a deleted container as clients see it.
pub(crate) fn version_text(deleted: Stamp) -> String {
    format!("{:016X}", deleted.ticks())
}

fn parse_version(text: &str) -> Option<Stamp> {
    u64::from_str_radix(text, 16).ok().map(Stamp::from_ticks)
}

/// There is no deleted container of that name and version. The code says what is missing; the status is the one that is
/// documented for this operation.
fn nothing_to_restore() -> Refusal {
    Refusal::new(ErrorCode::ContainerNotFound).with_status(StatusCode::CONFLICT)
}

/// Does something to its end, although the request that asked for it may be dropped.
async fn carry_through<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(ErrorCode::InternalError.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_back_as_it_was_shown() {
        let stamp = Stamp::from_ticks(0x08DE_0102_0304_0506);
        assert_eq!(version_text(stamp), "08DE010203040506");
        assert_eq!(parse_version(&version_text(stamp)), Some(stamp));
        for text in ["", "x", "108DE010203040506"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
