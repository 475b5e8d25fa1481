//! Opening, and making, emptying or replacing what is opened.
//!
//! The table of opens comes first, the row second: whoever is in the table cannot be overtaken. What is new is in the table
//! under an id that nobody knows yet before its row is committed, so nobody else opens it in between. Of those who make
//! the same name at once one commits; the others find it.

use std::sync::Arc;

use lazuli_concurrency::{FileAccess, FileLease, Timestamp};
use lazuli_extents::Content;
use lazuli_generations::carry_through;
use lazuli_protocol::{ErrorCode, Metadata};
use lazuli_store::{Change, Decision, Mutation, Reads};

use super::{Action, CreateRequest, Created, Disposition, Failure, Info, Kind, MAX_LENGTH, Removed, Tree};
use crate::children::At;
use crate::file::allocated;
use crate::names::{self, Name};
use crate::opens::newest::Moment;
use crate::opens::{
    CacheRequest, FileKey, FileState, OpenId, Opened, PATIENCE, Place, Unsettled, is_only_read,
};
use crate::record::{ContentHeaders, File, Node, NodeId, Own, SmbProperties};
use crate::smb_properties::{ARCHIVE, DIRECTORY, NORMAL, Permission, READ_ONLY, normal};
use crate::tree::Spot;
use crate::{FileService, keys};

/// How often a name may come to stand for another file while it is being opened.
const MAX_TRIES: usize = 16;
const HIDDEN: u32 = 0x2;
const SYSTEM: u32 = 0x4;
/// Attributes that clients can set.
pub(super) const SETTABLE: u32 = 0x2_31a7;
/// Bytes are set aside in units of so many.
const UNIT: u64 = 4096;

/// Where something is looked for.
struct Looked {
    path: Vec<Name>,
    at: At,
    place: Place,
    found: Option<Node>,
}

impl Disposition {
    /// Whether it empties or replaces what is there.
    const fn overwrites(self) -> bool {
        matches!(self, Self::Supersede | Self::Overwrite | Self::OverwriteIf)
    }

    /// Whether it makes what is not there.
    const fn makes(self) -> bool {
        !matches!(self, Self::Open | Self::Overwrite)
    }
}

impl FileService {
    /// Opens, makes, empties or replaces a file or directory.
    pub async fn create(&self, tree: &Tree, request: CreateRequest) -> Result<Created, Failure> {
        if request.allocation > MAX_LENGTH {
            return Err(Failure::Full);
        }
        let at = match request.snapshot {
            None => At::Now,
            Some(time) => At::Epoch(self.snapshot_epoch(tree, time).await?),
        };
        let path = names::path(&request.path, true)?;
        let share = self.shares.get(&tree.account, &tree.name).await?;
        if share.space != tree.share.space {
            // Another share has this name by now.
            return Err(Failure::NoShare);
        }
        self.usages.limit(&share);
        let tree = &Tree { share: Arc::new(share), ..tree.clone() };
        for _ in 0..MAX_TRIES {
            let looked = self.look(tree, &path, at).await?;
            let created = match &looked.found {
                Some(node) => self.open_existing(tree, &request, &looked, node).await?,
                None => self.open_new(tree, &request, &looked).await?,
            };
            if let Some(created) = created {
                return Ok(created);
            }
        }
        Err(Failure::Busy)
    }

    /// The key of the permission of what is at a path, if there is something.
    pub(super) async fn permission_key_at(
        &self,
        tree: &Tree,
        path: &str,
        snapshot: Option<Timestamp>,
    ) -> Result<Option<Option<String>>, Failure> {
        let at = match snapshot {
            None => At::Now,
            Some(time) => At::Epoch(self.snapshot_epoch(tree, time).await?),
        };
        match self.look(tree, &names::path(path, true)?, at).await {
            Err(Failure::PathNotFound) => Ok(None),
            looked => Ok(looked?.found.map(|node| node.properties.permission)),
        }
    }

    async fn look(&self, tree: &Tree, path: &[Name], at: At) -> Result<Looked, Failure> {
        let space = tree.share.space;
        let Some((name, parents)) = path.split_last() else {
            let found = Some(self.root(&tree.share, at).await?);
            return Ok(Looked { path: vec![], at, place: Place::default(), found });
        };
        let parents = self.follow(space, parents, at).await?.ok_or(Failure::PathNotFound)?;
        if parents.iter().any(|parent| !parent.is_directory()) {
            return Err(Failure::PathNotFound);
        }
        let parent = parents.last().map_or(NodeId::ROOT, |parent| parent.id);
        let found = self.child(space, parent, name, at).await?;
        // As the names were given, not as they are asked for.
        let last = found.as_ref().map_or(&name.text, |found| &found.name);
        let names: Vec<_> =
            parents.iter().map(|parent| parent.name.as_str()).chain([last.as_str()]).collect();
        let place = Place { parent, path: names.join("/") };
        Ok(Looked { path: path.to_vec(), at, place, found })
    }

    /// Makes it. None: somebody else has.
    async fn open_new(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        looked: &Looked,
    ) -> Result<Option<Created>, Failure> {
        let is_directory = request.kind == Kind::Directory;
        if !request.disposition.makes() {
            return Err(Failure::NotFound);
        }
        if looked.at != At::Now {
            return Err(Failure::Denied);
        }
        if request.open.delete_on_close && request.attributes & READ_ONLY != 0 {
            return Err(Failure::CannotDelete);
        }
        let space = tree.share.space;
        let file = FileKey::now(space, NodeId(self.store.stamp().ticks()));
        let opened = self.enter_table(request, looked, file).await?;
        let unsettled = Unsettled::new(self, opened.id);
        let version = self.opens.with(file, |state| {
            state.found(&looked.place);
            state.version
        });
        let sent = request.permission.clone().map(Permission::Sddl);
        let permission = self.permission_key(space, sent.as_ref()).await?;
        if is_directory {
            self.make_partition(file).await?;
        }
        let name = looked.path.last().cloned().ok_or(Failure::Failed)?;
        let spot = Spot { space, parent: looked.place.parent, name, patience: PATIENCE, quota: u64::MAX };
        let made = self.change_row(&spot, |view, old| {
            if old.is_some() {
                return Err(ErrorCode::ResourceAlreadyExists.into());
            }
            if self.opens.is_delete_pending(spot.file(spot.parent)) {
                return Err(ErrorCode::SMBDeletePending.into());
            }
            let kept = if is_directory { request.attributes } else { request.attributes | ARCHIVE };
            let properties = SmbProperties {
                attributes: normal(kept & SETTABLE, is_directory),
                created: view.now,
                last_write: view.now,
                change: view.now,
                accessed: None,
                permission: permission.clone(),
            };
            Ok(Some(Node {
                epoch: 0,
                id: file.node,
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties,
                metadata: Metadata::default(),
                file: (!is_directory).then(|| new_file(view.stamp.ticks())),
            }))
        });
        let node = match made.await {
            Ok(node) => node.ok_or(Failure::Failed)?,
            Err(refusal) if refusal.code() == ErrorCode::ResourceAlreadyExists => {
                // The open goes without a trace, and whatever is there is looked at.
                return match request.disposition {
                    Disposition::Create => Err(Failure::Exists),
                    _ => Ok(None),
                };
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let info = self.settle(tree, request, opened.id, version, Arc::new(node));
        unsettled.settled();
        Ok(Some(Created { opened, action: Action::Created, info, is_only_read: false }))
    }

    /// The partition of a new directory: nobody can know of it before the parent names it.
    async fn make_partition(&self, directory: FileKey) -> Result<(), Failure> {
        let own = keys::directory(directory.space, directory.node);
        let made = self.transact(&own, Reads::default(), |_| {
            let put = Mutation::Put(keys::OWN, Own { root: None }.encode()?);
            Ok(Decision::Write(Change::of([put]), ()))
        });
        Ok(made.await?)
    }

    /// Opens what is there. None: it is something else by now.
    async fn open_existing(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        looked: &Looked,
        node: &Node,
    ) -> Result<Option<Created>, Failure> {
        let asked = request;
        let spared = asked.sparing(node);
        let request = spared.as_ref().unwrap_or(asked);
        judge(request, looked.at, node)?;
        let epoch = match looked.at {
            At::Now => None,
            At::Epoch(epoch) => Some(epoch),
        };
        let file = FileKey { epoch, ..FileKey::now(tree.share.space, node.id) };
        let opened = self.enter_table(request, looked, file).await?;
        let unsettled = Unsettled::new(self, opened.id);
        let version = self.opens.with(file, |state| state.version);
        // Only now is it sure that it stays, and what it is like.
        let Looked { found, place, .. } = self.look(tree, &looked.path, looked.at).await?;
        let Some(now) = found.filter(|now| now.id == node.id) else { return Ok(None) };
        if asked.sparing(&now).is_some() != spared.is_some() {
            // It has become read-only since, or is so no more: what is asked for is something else.
            return Ok(None);
        }
        self.opens.with(file, |state| state.found(&place));
        if let Some(time) = request.snapshot
            && Some(self.snapshot_epoch(tree, time).await?) != epoch
        {
            return Err(Failure::NotFound);
        }
        judge(request, looked.at, &now)?;
        let writes = request.disposition.overwrites() || !request.open.mode.fits_lease();
        if looked.at == At::Now && is_only_read(&now) && writes {
            return Err(Failure::Sharing);
        }
        let (action, node) = match request.disposition {
            Disposition::Open | Disposition::OpenIf | Disposition::Create => (Action::Opened, Arc::new(now)),
            disposition => {
                let action = match disposition {
                    Disposition::Supersede => Action::Superseded,
                    _ => Action::Overwritten,
                };
                let (this, attributes, id) = (self.clone(), request.attributes, opened.id);
                // To its end: what others have written is dropped only together with what is stored.
                let emptied = carry_through(async move { Ok(this.empty(attributes, id).await) });
                (action, emptied.await??)
            }
        };
        let info = self.settle(tree, request, opened.id, version, node);
        unsettled.settled();
        Ok(Some(Created { opened, action, info, is_only_read: spared.is_some() }))
    }

    async fn enter_table(
        &self,
        request: &CreateRequest,
        looked: &Looked,
        file: FileKey,
    ) -> Result<Opened, Failure> {
        let mut open = request.open.clone();
        open.place = looked.place.clone();
        open.at = self.store.now();
        open.overwrites = request.disposition.overwrites() && looked.found.is_some();
        let is_directory = looked.found.as_ref().map_or(request.kind == Kind::Directory, Node::is_directory);
        if is_directory {
            // Nothing of a directory is cached, and nobody would answer a break.
            open.cache = CacheRequest::None;
        }
        Ok(self.opens.open(file, open).await?)
    }

    /// Notes what was found of an open file since that version, unless more is known. What there is to know then.
    fn settle(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        id: OpenId,
        version: u64,
        node: Arc<Node>,
    ) -> Info {
        self.opens.with(id.file, |state| {
            let is_still_so = state.version == version && !state.is_changing();
            let newest = &mut state.newest;
            newest.tree = Some(tree.clone());
            if request.allocation > 0 {
                newest.allocation = request.allocation;
            }
            if is_still_so && newest.node().is_none() {
                newest.know(node.clone());
            }
            let node = newest.node().unwrap_or(&node).clone();
            describe(state, &node)
        })
    }

    /// Empties an open file. What is not durable of it does not matter any more, once it is empty.
    async fn empty(&self, attributes: u32, id: OpenId) -> Result<Arc<Node>, Failure> {
        let turn = self.turn(id.file).await;
        let emptying = self.opens.emptying(id);
        let place = self.opens.place(id).ok_or(Failure::Closed)?;
        let name = super::writeback::name_of(&place)?.ok_or(Failure::Invalid)?;
        let (space, parent) = (id.file.space, place.parent);
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: u64::MAX };
        let mut released = 0;
        let changed = self.change_row(&spot, |view, old| {
            let mut node = old.filter(|old| old.id == id.file.node).ok_or(ErrorCode::ResourceNotFound)?;
            // Since it was opened.
            if is_only_read(&node) {
                return Err(ErrorCode::SharingViolation.into());
            }
            released = allocated(&node);
            let lease = node.file.as_ref().map_or(FileLease::AVAILABLE, |file| file.lease);
            let headers = node.file.take().map(|file| file.headers).unwrap_or_default();
            node.touch(view.stamp, view.now);
            node.properties.last_write = view.now;
            node.properties.attributes = normal(attributes & SETTABLE | ARCHIVE, false);
            let headers = ContentHeaders { content_md5: None, ..headers };
            node.file = Some(File { headers, lease, ..new_file(view.stamp.ticks()) });
            Ok(Some(node))
        });
        let node = changed.await?.ok_or(Failure::Failed)?;
        self.extents.released(released);
        self.discard(id.file);
        drop((emptying, turn));
        Ok(Arc::new(node))
    }

    /// Where an open file is, from the root of the share, without waiting.
    pub fn path_of(&self, id: OpenId) -> Option<String> {
        self.opens.place(id).map(|place| place.path)
    }

    /// What there is to know of an open file: the newest.
    pub async fn info(&self, id: OpenId) -> Result<Info, Failure> {
        let described = |stored: Option<&Arc<Node>>| {
            self.opens.with_open(id, |state| {
                let node = state.newest.node().or(stored).cloned()?;
                Some(describe(state, &node))
            })
        };
        if let Some(info) = described(None)? {
            return Ok(info);
        }
        let stored = self.load(id.file).await?;
        described(Some(&stored))?.ok_or(Failure::Closed)
    }

    /// Makes what was written durable, and closes. A file that was marked for deletion goes with its last handle.
    ///
    /// What was removed by that, if anything. The handle is closed even if this fails: then something that was written may be
    /// lost.
    pub async fn close_open(&self, id: OpenId) -> Result<Option<Removed>, Failure> {
        let is_going = self.opens.with_open(id, |state| state.goes_with(id.number))?;
        let mut flushed = Ok(());
        if !is_going {
            flushed = self.flush(id).await;
        }
        let removal = self.opens.close(id);
        let Some(removal) = removal else {
            if flushed.is_err() && !self.opens.with(id.file, |state| state.has_opens()) {
                self.discard(id.file);
            } else if is_going {
                // Somebody has opened it in the last moment.
                flushed = self.flush_file(id.file, Moment::Asked).await;
            }
            return flushed.map(|()| None);
        };
        self.discard(id.file);
        let path = removal.place.path.clone();
        let removed = self.remove_at_last(removal).await?;
        Ok(removed.map(|is_directory| Removed { path, is_directory }))
    }
}

/// What there is to know of an open file that is stored so.
pub(super) fn describe(state: &FileState, stored: &Node) -> Info {
    let mut info = Info::of(stored, state.place.parent, &state.place.path);
    if !info.is_directory {
        info.length = state.newest.length(stored);
        info.allocated =
            info.length.next_multiple_of(UNIT).max(state.newest.allocation.next_multiple_of(UNIT));
        // Its row will say so once it is committed.
        if state.newest.is_dirty() {
            info.attributes = info.attributes & !NORMAL | ARCHIVE;
        }
    }
    info.delete_pending = state.is_delete_pending();
    info
}

impl Info {
    /// Of what is stored so, at that path.
    pub(super) fn of(node: &Node, parent: NodeId, path: &str) -> Self {
        let properties = &node.properties;
        let accessed: Option<Timestamp> = properties.accessed;
        Self {
            id: node.id,
            parent,
            name: node.name.clone(),
            path: path.to_owned(),
            is_directory: node.is_directory(),
            attributes: properties.attributes,
            created: properties.created,
            accessed: accessed.unwrap_or(properties.last_write),
            written: properties.last_write,
            changed: properties.change,
            length: node.length(),
            allocated: node.length().next_multiple_of(UNIT),
            delete_pending: false,
        }
    }
}

/// A file that nothing was written to.
fn new_file(incarnation: u64) -> File {
    File {
        headers: ContentHeaders::default(),
        lease: FileLease::AVAILABLE,
        incarnation,
        copy: None,
        content: Content::empty(),
    }
}

impl CreateRequest {
    /// What is asked for of a file that is read-only, if that is something else.
    fn sparing(&self, node: &Node) -> Option<Self> {
        let is_read_only = !node.is_directory() && node.properties.attributes & READ_ONLY != 0;
        let access = self.if_read_only.filter(|_| is_read_only)?;
        let mut spared = self.clone();
        spared.open.mode.access = access;
        Some(spared)
    }
}

/// Whether what is there can be opened so.
fn judge(request: &CreateRequest, at: At, node: &Node) -> Result<(), Failure> {
    let overwrites = request.disposition.overwrites();
    if request.disposition == Disposition::Create {
        return Err(Failure::Exists);
    }
    match (request.kind, node.is_directory()) {
        (Kind::Directory, false) => return Err(Failure::NotDirectory),
        (Kind::File, true) => return Err(Failure::IsDirectory),
        (_, true) if overwrites => return Err(Failure::Invalid),
        _ => {}
    }
    let changes = FileAccess::WRITE | FileAccess::DELETE;
    if at != At::Now
        && (overwrites || request.open.delete_on_close || request.open.mode.access.intersects(changes))
    {
        return Err(Failure::Denied);
    }
    let attributes = node.properties.attributes;
    let is_read_only = attributes & READ_ONLY != 0;
    if request.open.delete_on_close && (is_read_only || node.id == NodeId::ROOT) {
        return Err(Failure::CannotDelete);
    }
    if node.is_directory() {
        return Ok(());
    }
    if is_read_only && (overwrites || request.open.mode.access.contains(FileAccess::WRITE)) {
        return Err(Failure::Denied);
    }
    // What is hidden or belongs to the system is emptied only by those who know it.
    if overwrites && attributes & (HIDDEN | SYSTEM) & !request.attributes != 0 {
        return Err(Failure::Denied);
    }
    debug_assert!(attributes & DIRECTORY == 0, "a file is no directory");
    Ok(())
}
