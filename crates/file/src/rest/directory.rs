//! Directories: create, properties, metadata, delete.

use http::StatusCode;
use lazuli_concurrency::{Conditions, FileUse};
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response};
use lazuli_service::reply::{put, put_validators};
use lazuli_service::run_to_completion;
use lazuli_store::View;

use crate::FileService;
use crate::opens::Admission;
use crate::rest::smb_properties::{Purpose, SentProperties, written};
use crate::rest::target::{Target, check_kind_for_read};
use crate::tree::children::At;
use crate::tree::move_record::{Delete, DirectoryEntryName, IntentWork};
use crate::tree::moves::{IntentOutcome, MAX_ATTEMPTS};
use crate::tree::record::{Node, NodeId};
use crate::tree::rules::{check_kind, check_writable};
use crate::tree::spot::FileKey;

impl FileService {
    /// Handles Create Directory.
    pub(crate) async fn create_directory(&self, request: Request) -> Result<Response, Refusal> {
        let sent = SentProperties::parse(&request.headers, request.version, Purpose::Create)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let target = self.target(&request).await?;
        let permission = self.permission_key(target.share.space, sent.permission.as_ref()).await?;
        // The root exists.
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceAlreadyExists)?;
        // Its own row first: no path leads to it before its parent names it.
        let id = NodeId(self.store.stamp().ticks());
        self.make_directory_row(spot.space, id).await?;
        let created = self.write_child(&spot, FileUse::ReadAttributes, |view, old| {
            if let Some(old) = &old {
                check_kind(old, true)?;
                return Err(ErrorCode::ResourceAlreadyExists.into());
            }
            Ok(Node {
                epoch: 0,
                id,
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties: sent.create(true, permission.clone(), view.now),
                metadata: metadata.clone(),
                file: None,
            })
        });
        let node = created.await?;
        Ok(written(StatusCode::CREATED, &node, spot.parent))
    }

    /// Handles Delete Directory.
    pub(crate) async fn delete_directory(&self, request: Request) -> Result<Response, Refusal> {
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let target = self.target(&request).await?;
        let this = self.clone();
        let deleted = run_to_completion(async move {
            let mut admission = this.opens.admission(target.patience);
            loop {
                let deleted = this.delete_empty(&target, &conditions, &mut admission).await;
                if deleted.is_ok() || !this.flush_or_wait(&mut admission).await {
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
            let place = DirectoryEntryName { parent, name: name.folded.to_vec() };
            let delete = Delete { place, directory: node.id, before: node.encode()?.into() };
            if self.run_intent(space, &IntentWork::Delete(delete)).await? == IntentOutcome::Done {
                return Ok(());
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Handles Get Directory Properties.
    pub(crate) async fn get_directory_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (node, parent) = self.find(&request).await?;
        check_kind_for_read(&node, true)?;
        let mut response = written(StatusCode::OK, &node, parent);
        node.metadata.write_headers(&mut response.headers);
        put(&mut response.headers, "x-ms-server-encrypted", "true");
        Ok(response)
    }

    /// Handles Get Directory Metadata.
    pub(crate) async fn get_directory_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (node, _) = self.find(&request).await?;
        check_kind_for_read(&node, true)?;
        let mut response = Response::empty(StatusCode::OK);
        put_validators(&mut response.headers, node.validators());
        node.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Handles Set Directory Properties.
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

    /// Handles Set Directory Metadata.
    pub(crate) async fn set_directory_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let (node, _) = self.change_directory(&request, |node, _| node.metadata = metadata.clone()).await?;
        let mut response = Response::empty(StatusCode::OK);
        put_validators(&mut response.headers, node.validators());
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
        Ok(response)
    }

    /// Changes the directory that a request addresses. Returns it and the id of its parent.
    async fn change_directory(
        &self,
        request: &Request,
        mut change: impl FnMut(&mut Node, &View<'_>),
    ) -> Result<(Node, NodeId), Refusal> {
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let target = self.target(request).await?;
        if target.path.is_empty() {
            let changed = self.change_root(&target.share, |node, view| {
                conditions.evaluate_write(node.validators())?;
                node.touch(view.stamp, view.now);
                change(node, view);
                Ok(())
            });
            return Ok((changed.await?, NodeId::ROOT));
        }
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceNotFound)?;
        let changed = self.write_child(&spot, FileUse::Write, |view, old| {
            let mut node = old.ok_or(ErrorCode::ResourceNotFound)?;
            check_kind(&node, true)?;
            conditions.evaluate_write(node.validators())?;
            node.touch(view.stamp, view.now);
            change(&mut node, view);
            Ok(node)
        });
        Ok((changed.await?, spot.parent))
    }
}
