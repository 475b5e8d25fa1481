//! Properties of open files: times, attributes, permission, deletion mark.

use lazuli_concurrency::Timestamp;
use lazuli_service::internal_error;
use lazuli_store::{Reads, SpaceId, View};

use crate::FileService;
use crate::failure::Failure;
use crate::handles::create::SETTABLE;
use crate::handles::share::Tree;
use crate::handles::{NewTime, PropertyChange};
use crate::opens::OpenId;
use crate::opens::write_buffer::FlushReason;
use crate::tree::keys;
use crate::tree::permissions::{INHERITED_PERMISSION, Permission};
use crate::tree::record::{DIRECTORY, NORMAL, Node, NodeId, READ_ONLY, normal};
use crate::write_back::{check_takes_writes, wait_to_retry};

const SPARSE: u32 = 0x200;

impl FileService {
    /// Changes properties.
    pub async fn set_properties(&self, id: OpenId, change: PropertyChange) -> Result<(), Failure> {
        if id.file.epoch.is_some() {
            return Err(Failure::Denied);
        }
        self.opens.with_open(id, |state| {
            let buffer = &mut state.buffer;
            buffer.is_frozen |= change.written != NewTime::Kept;
            buffer.keeps_change |= change.changed != NewTime::Kept;
        })?;
        self.change_open(id, move |node, _| change.apply(node)).await?;
        // Thawed times change with later operations, not with this one.
        self.opens.with_open(id, |state| {
            let buffer = &mut state.buffer;
            buffer.is_frozen &= change.written != NewTime::Thawed;
            buffer.keeps_change &= change.changed != NewTime::Thawed;
        })?;
        Ok(())
    }

    /// Sets or clears the sparse attribute.
    pub async fn set_sparse(&self, id: OpenId, sparse: bool) -> Result<(), Failure> {
        self.change_open(id, move |node, _| {
            let rest = node.properties.attributes & !SPARSE;
            let attributes = if sparse { rest | SPARSE } else { rest };
            node.properties.attributes = normal(attributes, node.is_directory());
        })
        .await
    }

    /// Returns the security descriptor as SDDL.
    pub async fn permission_of(&self, id: OpenId) -> Result<String, Failure> {
        if !self.opens.is_open(id) {
            return Err(Failure::Closed);
        }
        let node = self.load(id.file).await?;
        let key = node.properties.permission.as_deref().unwrap_or(INHERITED_PERMISSION);
        self.permission(id.file.space, key).await?.ok_or_else(|| missing_permission(id.file.space, key))
    }

    /// Returns the security descriptor of the file at a path as SDDL, if there is a file.
    pub async fn permission_at(
        &self,
        tree: &Tree,
        path: &str,
        snapshot: Option<Timestamp>,
    ) -> Result<Option<String>, Failure> {
        let Some(permission) = self.permission_key_at(tree, path, snapshot).await? else { return Ok(None) };
        let key = permission.as_deref().unwrap_or(INHERITED_PERMISSION);
        let space = tree.share.space;
        Ok(Some(self.permission(space, key).await?.ok_or_else(|| missing_permission(space, key))?))
    }

    /// Sets the security descriptor, given as SDDL.
    pub async fn set_permission(&self, id: OpenId, sddl: &str) -> Result<(), Failure> {
        let sent = Permission::Sddl(sddl.to_owned());
        let key = self.permission_key(id.file.space, Some(&sent)).await?;
        self.change_open(id, move |node, _| node.properties.permission = key.clone()).await
    }

    /// Changes the row of an open file together with its buffered writes.
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
            let lock = self.lock_file(id.file).await;
            let node = self.load_locked(&lock).await?;
            if node.is_directory() {
                return self.commit_directory(&lock, change).await.map(drop);
            }
            check_takes_writes(&node)?;
            if self.commit(&lock, FlushReason::Requested, Some(&mut change)).await?.is_some() {
                return Ok(());
            }
            drop(lock);
            // A granted request may be changing the row.
            let wait =
                self.opens.with_open(id, |state| state.has_granted_requests().then(|| state.subscribe()))?;
            wait_to_retry(deadline, wait).await?;
        }
        Err(Failure::Closed)
    }

    /// Marks a file for deletion at its last close, or removes the mark.
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
        let set = self.read_between_moves(&directory, reads, &children).await?;
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

/// Logs that the permission of a file is missing, and returns the failure.
fn missing_permission(space: SpaceId, key: &str) -> Failure {
    internal_error(format_args!("{space}: there is no permission with the key {key}")).into()
}

impl NewTime {
    /// Returns the time to set.
    fn time(self) -> Option<Timestamp> {
        match self {
            Self::Set(time) => Some(time),
            _ => None,
        }
    }
}
