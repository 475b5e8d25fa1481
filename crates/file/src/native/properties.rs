//! Properties of open files: times, attributes, permission, and whether they go with their last handle.

use lazuli_concurrency::Timestamp;
use lazuli_store::{Reads, View};

use super::create::SETTABLE;
use super::writeback::{check_takes_writes, still_time};
use super::{Failure, NewTime, PropertyChange, Tree};
use crate::opens::OpenId;
use crate::opens::newest::Moment;
use crate::record::{Node, NodeId};
use crate::smb_properties::{DIRECTORY, NORMAL, Permission, READ_ONLY, normal};
use crate::{FileService, INHERITED_PERMISSION, keys};

const SPARSE: u32 = 0x200;

impl FileService {
    /// Changes properties.
    pub async fn set_properties(&self, id: OpenId, change: PropertyChange) -> Result<(), Failure> {
        if id.file.epoch.is_some() {
            return Err(Failure::Denied);
        }
        self.opens.with_open(id, |state| {
            let newest = &mut state.newest;
            newest.is_frozen |= change.written != NewTime::Kept;
            newest.keeps_change |= change.changed != NewTime::Kept;
        })?;
        self.change_open(id, move |node, _| change.apply(node)).await?;
        // What is thawed moves with what comes, not with this.
        self.opens.with_open(id, |state| {
            let newest = &mut state.newest;
            newest.is_frozen &= change.written != NewTime::Thawed;
            newest.keeps_change &= change.changed != NewTime::Thawed;
        })?;
        Ok(())
    }

    /// Marks a file as sparse, or not.
    pub async fn set_sparse(&self, id: OpenId, sparse: bool) -> Result<(), Failure> {
        self.change_open(id, move |node, _| {
            let rest = node.properties.attributes & !SPARSE;
            let attributes = if sparse { rest | SPARSE } else { rest };
            node.properties.attributes = normal(attributes, node.is_directory());
        })
        .await
    }

    /// The security descriptor, as SDDL.
    pub async fn permission_of(&self, id: OpenId) -> Result<String, Failure> {
        if !self.opens.is_open(id) {
            return Err(Failure::Closed);
        }
        let node = self.load(id.file).await?;
        let key = node.properties.permission.as_deref().unwrap_or(INHERITED_PERMISSION);
        self.permission(id.file.space, key).await?.ok_or(Failure::Failed)
    }

    /// The security descriptor of what is at a path, as SDDL; none if there is nothing.
    pub async fn permission_at(
        &self,
        tree: &Tree,
        path: &str,
        snapshot: Option<Timestamp>,
    ) -> Result<Option<String>, Failure> {
        let Some(permission) = self.permission_key_at(tree, path, snapshot).await? else { return Ok(None) };
        let key = permission.as_deref().unwrap_or(INHERITED_PERMISSION);
        Ok(Some(self.permission(tree.share.space, key).await?.ok_or(Failure::Failed)?))
    }

    /// Sets the security descriptor, given as SDDL.
    pub async fn set_permission(&self, id: OpenId, sddl: &str) -> Result<(), Failure> {
        let sent = Permission::Sddl(sddl.to_owned());
        let key = self.permission_key(id.file.space, Some(&sent)).await?;
        self.change_open(id, move |node, _| node.properties.permission = key.clone()).await
    }

    /// Changes the row of an open file, and commits what was written with it.
    async fn change_open(
        &self,
        id: OpenId,
        mut change: impl FnMut(&mut Node, &View<'_>),
    ) -> Result<(), Failure> {
        if id.file.epoch.is_some() {
            return Err(Failure::Denied);
        }
        let deadline = self.opens.deadline();
        while self.opens.is_open(id) {
            let turn = self.turn(id.file).await;
            let node = self.load_in_turn(&turn).await?;
            if node.is_directory() {
                return self.commit_directory(&turn, change).await.map(drop);
            }
            check_takes_writes(&node)?;
            if self.commit(&turn, Moment::Asked, Some(&mut change)).await?.is_some() {
                return Ok(());
            }
            drop(turn);
            // A request over REST was about to change it as a whole.
            let wait = self.opens.with_open(id, |state| state.is_changing().then(|| state.subscribe()))?;
            still_time(deadline, wait).await?;
        }
        Err(Failure::Closed)
    }

    /// Marks for deletion at the last close, or takes the mark away.
    pub async fn set_delete(&self, id: OpenId, delete: bool) -> Result<(), Failure> {
        if delete {
            if id.file.epoch.is_some() {
                return Err(Failure::Denied);
            }
            let info = self.info(id).await?;
            if info.attributes & READ_ONLY != 0 || info.id == NodeId::ROOT {
                return Err(Failure::CannotDelete);
            }
            if info.is_directory && self.has_children(id).await? {
                return Err(Failure::NotEmpty);
            }
        }
        Ok(self.opens.set_delete_pending(id, delete).await?)
    }

    async fn has_children(&self, id: OpenId) -> Result<bool, Failure> {
        let directory = keys::directory(id.file.space, id.file.node);
        let children = keys::children(&[]);
        let reads = Reads::default().and_range(children.clone(), 1);
        let set = self.read_settled(&directory, reads, &children).await?;
        Ok(set.ranges.first().is_some_and(|range| !range.rows.is_empty()))
    }
}

impl PropertyChange {
    fn apply(&self, node: &mut Node) {
        let is_directory = node.is_directory();
        let properties = &mut node.properties;
        if let Some(attributes) = self.attributes {
            let kept = properties.attributes & !(SETTABLE | NORMAL | DIRECTORY);
            properties.attributes = normal(attributes & SETTABLE | kept, is_directory);
        }
        for (place, sent) in [
            (&mut properties.created, self.created),
            (&mut properties.last_write, self.written),
            (&mut properties.change, self.changed),
        ] {
            *place = sent.time().unwrap_or(*place);
        }
        properties.accessed = self.accessed.time().or(properties.accessed);
    }
}

impl NewTime {
    /// The time that is set.
    fn time(self) -> Option<Timestamp> {
        match self {
            Self::Set(time) => Some(time),
            _ => None,
        }
    }
}
