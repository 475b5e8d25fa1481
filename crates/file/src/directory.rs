//! Directories: create, properties, metadata, delete.

use http::StatusCode;
use lazuli_concurrency::{Conditions, FileUse};
use lazuli_generations::carry_through;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response};
use lazuli_store::{Change, Decision, Mutation, Reads, View};

use crate::children::{self, At};
use crate::file::check_writable;
use crate::moves::{Attempted, Delete, MAX_ATTEMPTS, Place, Work};
use crate::opens::{Admission, FileKey};
use crate::record::{Node, NodeId, Own};
use crate::reply::{put, validators};
use crate::smb_properties::{self, Purpose, SentProperties};
use crate::tree::{Entry, Spot, Target, check_kind, check_seen, entry};
use crate::usage::{Reservation, epoch};
use crate::{FileService, INHERITED_PERMISSION, keys};

impl FileService {
    /// Create Directory.
    pub(crate) async fn create_directory(&self, request: Request) -> Result<Response, Refusal> {
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Create)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let target = self.target(&request).await?;
        let permission = self.permission_key(target.share.space, sent.permission.as_ref()).await?;
        // The root is there already.
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceAlreadyExists)?;
        // Its own partition first: nobody can know of it before the parent names it.
        let id = NodeId(self.store.stamp().ticks());
        let own = keys::directory(spot.space, id);
        let made = self.transact(&own, Reads::default(), |_| {
            let put = Mutation::Put(keys::OWN, Own { root: None }.encode()?);
            Ok(Decision::Write(Change::of([put]), ()))
        });
        made.await?;
        let created = self.change_child(&spot, FileUse::Look, |view, old| {
            if let Some(old) = &old {
                check_kind(old, true)?;
                return Err(ErrorCode::ResourceAlreadyExists.into());
            }
            let node = Node {
                epoch: 0,
                id,
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties: sent.create(true, permission.clone(), view.now),
                metadata: metadata.clone(),
                file: None,
            };
            Ok(Some(node))
        });
        let node = created.await?.ok_or(ErrorCode::InternalError)?;
        Ok(written(StatusCode::CREATED, &node, spot.parent))
    }

    /// Delete Directory.
    pub(crate) async fn delete_directory(&self, request: Request) -> Result<Response, Refusal> {
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let target = self.target(&request).await?;
        let this = self.clone();
        let deleted = carry_through(async move {
            let mut admission = this.opens.admission(target.patience);
            loop {
                let deleted = this.delete_empty(&target, &conditions, &mut admission).await;
                if deleted.is_ok() || !this.again(&mut admission).await {
                    return deleted;
                }
            }
        });
        deleted.await?;
        Ok(Response::empty(StatusCode::ACCEPTED))
    }

    async fn delete_empty(
        &self,
        target: &Target,
        conditions: &Conditions,
        admission: &mut Admission,
    ) -> Result<(), Refusal> {
        let space = target.share.space;
        let Some((name, parents)) = target.path.split_last() else {
            let refusal = Refusal::new(ErrorCode::CannotDeleteFileOrDirectory);
            return Err(refusal.message("The root directory of a share cannot be deleted."));
        };
        for _ in 0..MAX_ATTEMPTS {
            let parent = self.walk(space, parents, At::Now).await?.ok_or(ErrorCode::ParentNotFound)?;
            let node = self.child(space, parent, name, At::Now).await?;
            let node = node.ok_or(ErrorCode::ResourceNotFound)?;
            check_kind(&node, true)?;
            let file = FileKey::now(space, node.id);
            admission.check(file)?;
            conditions.evaluate_write(node.validators())?;
            check_writable(&node)?;
            admission.admit(file, FileUse::Delete)?;
            let place = Place { parent, name: name.folded.to_vec() };
            let delete = Delete { place, directory: node.id, before: node.encode()?.into() };
            if self.attempt(space, &Work::Delete(delete)).await? == Attempted::Done {
                return Ok(());
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Get Directory Properties.
    pub(crate) async fn get_directory_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (node, parent) = self.find(&request).await?;
        check_seen(&node, true)?;
        let mut response = written(StatusCode::OK, &node, parent);
        node.metadata.write_headers(&mut response.headers);
        put(&mut response.headers, "x-ms-server-encrypted", "true");
        Ok(response)
    }

    /// Get Directory Metadata.
    pub(crate) async fn get_directory_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (node, _) = self.find(&request).await?;
        check_seen(&node, true)?;
        let mut response = Response::empty(StatusCode::OK);
        validators(&mut response.headers, node.validators());
        node.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Set Directory Properties.
    pub(crate) async fn set_directory_properties(&self, request: Request) -> Result<Response, Refusal> {
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Set)?;
        let share = self.share(&request.account, &request.container).await?;
        let permission = self.permission_key(share.space, sent.permission.as_ref()).await?;
        let (node, parent) = self
            .change_directory(&request, |node, view| {
                sent.apply(&mut node.properties, true, permission.clone(), view.now);
            })
            .await?;
        Ok(written(StatusCode::OK, &node, parent))
    }

    /// Set Directory Metadata.
    pub(crate) async fn set_directory_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let (node, _) = self.change_directory(&request, |node, _| node.metadata = metadata.clone()).await?;
        let mut response = Response::empty(StatusCode::OK);
        validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        Ok(response)
    }

    /// Changes the directory that a request addresses, and says which directory it is in.
    async fn change_directory(
        &self,
        request: &Request,
        mut change: impl FnMut(&mut Node, &View<'_>),
    ) -> Result<(Node, NodeId), Refusal> {
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let target = self.target(request).await?;
        if target.path.is_empty() {
            let partition = keys::directory(target.share.space, NodeId::ROOT);
            let changed = self.transact(&partition, Reads::key(keys::OWN), |view| {
                let old = children::current_root(view)?;
                let mut node = old.clone().unwrap_or_else(|| Node::root(&target.share));
                conditions.evaluate_write(node.validators())?;
                node.touch(view.stamp, view.now);
                change(&mut node, view);
                let mutations = children::replace_root(view, old.as_ref(), node.clone())?;
                Ok(Decision::Write(Change::of(mutations), node))
            });
            return Ok((changed.await?, NodeId::ROOT));
        }
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceNotFound)?;
        let changed = self.change_child(&spot, FileUse::Write, |view, old| {
            let mut node = old.ok_or(ErrorCode::ResourceNotFound)?;
            check_kind(&node, true)?;
            conditions.evaluate_write(node.validators())?;
            node.touch(view.stamp, view.now);
            change(&mut node, view);
            Ok(Some(node))
        });
        Ok((changed.await?.ok_or(ErrorCode::InternalError)?, spot.parent))
    }

    /// Changes a child of a directory: the rule is given what is there, and says what is to be. SMB clients that have it
    /// open are asked if they let it be used so.
    pub(crate) async fn change_child(
        &self,
        spot: &Spot,
        usage: FileUse,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Option<Node>, Refusal>,
    ) -> Result<Option<Node>, Refusal> {
        let mut admission = self.admission(spot);
        loop {
            let changed = self.change_row(spot, |view, old| {
                let Some(old) = old else {
                    admission.check(spot.file(spot.parent))?;
                    return rule(view, None);
                };
                let (file, is_directory) = (spot.file(old.id), old.is_directory());
                admission.check(file)?;
                let new = rule(view, Some(old))?;
                // Asked last, as asking makes clients give up what they cache. What a directory is like is nobody's secret.
                if !is_directory || usage == FileUse::Delete {
                    admission.admit(file, usage)?;
                }
                Ok(new)
            });
            let changed = changed.await;
            if changed.is_ok() || !self.again(&mut admission).await {
                admission.done();
                return changed;
            }
        }
    }

    /// Changes a child of a directory without asking anybody.
    pub(crate) async fn change_row(
        &self,
        spot: &Spot,
        rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Option<Node>, Refusal>,
    ) -> Result<Option<Node>, Refusal> {
        self.change_row_with(spot, None, rule).await
    }

    /// The same with what was reserved already for a new length.
    pub(crate) async fn change_row_with(
        &self,
        spot: &Spot,
        mut reserved: Option<Reservation>,
        mut rule: impl FnMut(&View<'_>, Option<Node>) -> Result<Option<Node>, Refusal>,
    ) -> Result<Option<Node>, Refusal> {
        let partition = spot.partition();
        let mut writes = self.writers.one(&partition).await;
        for _ in 0..MAX_ATTEMPTS {
            let changed = self.transact(&partition, children::reads_to_change(&spot.name), |view| {
                let old = match entry(spot, view)? {
                    Entry::Free(old) => old,
                    Entry::Reserved(reservation) => return Ok(Decision::Answer(Changed::Met(reservation))),
                };
                let new = rule(view, old.clone())?;
                let mutations = children::replace(view, &spot.name, old.as_ref(), new.clone())?;
                let grown = children::growth(old.as_ref(), new.as_ref());
                if !self.usages.admit(&mut reserved, spot, grown, view) {
                    return Ok(Decision::Answer(Changed::Length(grown, epoch(view))));
                }
                Ok(Decision::Write(Change::of(mutations), Changed::Done(new)))
            });
            match changed.await? {
                Changed::Done(new) => {
                    reserved.into_iter().for_each(Reservation::keep);
                    return Ok(new);
                }
                Changed::Met(reservation) => self.end(spot.space, &reservation).await?,
                Changed::Length(grown, epoch) => {
                    drop(writes);
                    reserved = Some(self.reserve(spot.space, grown, spot.limit(), epoch).await?);
                    writes = self.writers.one(&partition).await;
                }
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }
}

/// What came of an attempt to change a child.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Changed {
    Done(Option<Node>),
    /// Somebody has reserved it.
    Met(crate::moves::Reservation),
    /// It changes a length by so many bytes in an epoch, and has to reserve them first.
    Length(i64, Option<u64>),
}

/// A reply with the tag, the date and the SMB properties of a directory or file.
pub(crate) fn written(status: StatusCode, node: &Node, parent: NodeId) -> Response {
    let mut response = Response::empty(status);
    validators(&mut response.headers, node.validators());
    smb_properties::write(&mut response.headers, node, parent, INHERITED_PERMISSION);
    if status == StatusCode::CREATED || status == StatusCode::OK {
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
    }
    response
}
