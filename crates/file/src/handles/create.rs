//! Opening, creating, truncating and replacing files.
//!
//! An open enters the table first and reads the row second, so no request over REST can come between. A new
//! file enters the table under an id that is unknown until its row is committed, so no other open finds it
//! before. Of concurrent opens that create the same name one commits; the others find its file.

use std::sync::Arc;

use lazuli_concurrency::{FileAccess, FileLease, Timestamp};
use lazuli_extents::Content;
use lazuli_protocol::{ErrorCode, Metadata};
use lazuli_service::{internal_error, run_to_completion};
use tokio::runtime::Handle;
use tracing::Instrument;

use crate::FileService;
use crate::failure::Failure;
use crate::handles::info::describe;
use crate::handles::share::Tree;
use crate::handles::{Action, CreateRequest, Created, Disposition, Info, Kind};
use crate::opens::{CacheRequest, OpenId, OpenLocation, Opened, PATIENCE};
use crate::tree::children::At;
use crate::tree::names::{self, Name};
use crate::tree::permissions::Permission;
use crate::tree::record::{
    ARCHIVE, ContentHeaders, DIRECTORY, File, Node, NodeId, READ_ONLY, SmbProperties, normal,
};
use crate::tree::rules::{MAX_FILE_LENGTH, blocks_writers, extent_bytes};
use crate::tree::spot::{FileKey, Spot};
use crate::write_back::name_of;

/// Maximum number of attempts while the name keeps changing its file.
const MAX_TRIES: usize = 16;
const HIDDEN: u32 = 0x2;
const SYSTEM: u32 = 0x4;
/// Attributes that clients can set.
pub(super) const SETTABLE: u32 = 0x2_31a7;

/// The result of following a path.
struct Lookup {
    path: Vec<Name>,
    at: At,
    place: OpenLocation,
    found: Option<Node>,
}

impl Disposition {
    /// Returns whether it truncates or replaces an existing file.
    const fn overwrites(self) -> bool {
        matches!(self, Self::Supersede | Self::Overwrite | Self::OverwriteIf)
    }

    /// Returns whether it creates a missing file.
    const fn makes(self) -> bool {
        !matches!(self, Self::Open | Self::Overwrite)
    }
}

impl FileService {
    /// Opens, creates, truncates or replaces a file or directory.
    pub async fn create(&self, tree: &Tree, request: CreateRequest) -> Result<Created, Failure> {
        if request.allocation > MAX_FILE_LENGTH {
            return Err(Failure::Full);
        }
        let at = match request.snapshot {
            None => At::Now,
            Some(time) => At::Epoch(self.snapshot_epoch(tree, time).await?),
        };
        let path = names::path(&request.path, true)?;
        // Held before the row is read. Otherwise a newer quota could be noted and evicted in between.
        let _usage = self.usages.hold(tree.share.space);
        let share = self.shares.get(&tree.account, &tree.name).await?;
        if share.space != tree.share.space {
            // The name belongs to another share now.
            return Err(Failure::NoShare);
        }
        self.usages.note_quota(&share);
        let tree = &Tree { share: Arc::new(share), ..tree.clone() };
        for _ in 0..MAX_TRIES {
            let lookup = self.find_path(tree, &path, at).await?;
            let created = match &lookup.found {
                Some(node) => self.open_existing(tree, &request, &lookup, node).await?,
                None => self.open_new(tree, &request, &lookup).await?,
            };
            if let Some(created) = created {
                return Ok(created);
            }
        }
        Err(Failure::Busy)
    }

    /// Returns the permission key of the file at a path, if there is one.
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
        match self.find_path(tree, &names::path(path, true)?, at).await {
            Err(Failure::PathNotFound) => Ok(None),
            lookup => Ok(lookup?.found.map(|node| node.properties.permission)),
        }
    }

    async fn find_path(&self, tree: &Tree, path: &[Name], at: At) -> Result<Lookup, Failure> {
        let space = tree.share.space;
        let Some((name, parents)) = path.split_last() else {
            let found = Some(self.root(&tree.share, at).await?);
            return Ok(Lookup { path: vec![], at, place: OpenLocation::default(), found });
        };
        let parents = self.follow(space, parents, at).await?.ok_or(Failure::PathNotFound)?;
        if parents.iter().any(|parent| !parent.is_directory()) {
            return Err(Failure::PathNotFound);
        }
        let parent = parents.last().map_or(NodeId::ROOT, |parent| parent.id);
        let found = self.child(space, parent, name, at).await?;
        // The stored spelling of names, not the client's.
        let last = found.as_ref().map_or(&name.text, |found| &found.name);
        let names: Vec<_> =
            parents.iter().map(|parent| parent.name.as_str()).chain([last.as_str()]).collect();
        let place = OpenLocation { parent, path: names.join("/") };
        Ok(Lookup { path: path.to_vec(), at, place, found })
    }

    /// Creates a file or directory. Returns `None` if the name exists now.
    async fn open_new(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        lookup: &Lookup,
    ) -> Result<Option<Created>, Failure> {
        let is_directory = request.kind == Kind::Directory;
        if !request.disposition.makes() {
            return Err(Failure::NotFound);
        }
        if lookup.at != At::Now {
            return Err(Failure::Denied);
        }
        if request.open.delete_on_close && request.attributes & READ_ONLY != 0 {
            return Err(Failure::CannotDelete);
        }
        let space = tree.share.space;
        let file = FileKey::now(space, NodeId(self.store.stamp().ticks()));
        let opened = self.open_in_table(request, lookup, file).await?;
        let unfinished = UnfinishedOpen::new(self, opened.id);
        let version = self.opens.with(file, |state| {
            state.confirm_place(&lookup.place);
            state.version
        });
        let sent = request.permission.clone().map(Permission::Sddl);
        let permission = self.permission_key(space, sent.as_ref()).await?;
        if is_directory {
            self.make_directory_row(space, file.node).await?;
        }
        let name = lookup.path.last().cloned();
        let name = name.ok_or_else(|| internal_error(format_args!("{space}: the root was not found")))?;
        let spot = Spot { space, parent: lookup.place.parent, name, patience: PATIENCE, quota: u64::MAX };
        let made = self.write_row(&spot, None, |view, old| {
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
            Ok(Node {
                epoch: 0,
                id: file.node,
                name: spot.name.text.clone(),
                modified: view.now,
                etag: view.stamp.into(),
                properties,
                metadata: Metadata::default(),
                file: (!is_directory).then(|| new_file(view.stamp.ticks())),
            })
        });
        let node = match made.await {
            Ok(node) => node,
            Err(refusal) if refusal.code() == ErrorCode::ResourceAlreadyExists => {
                // The open is removed from the table. Try the existing file instead.
                return match request.disposition {
                    Disposition::Create => Err(Failure::Exists),
                    _ => Ok(None),
                };
            }
            Err(refusal) => return Err(refusal.into()),
        };
        let info = self.record_open(tree, request, opened.id, version, Arc::new(node));
        unfinished.keep();
        Ok(Some(Created { opened, action: Action::Created, info, opened_read_only: false }))
    }

    /// Opens an existing file or directory. Returns `None` if the name belongs to another file now.
    async fn open_existing(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        lookup: &Lookup,
        node: &Node,
    ) -> Result<Option<Created>, Failure> {
        let asked = request;
        let downgraded = asked.as_read_only(node);
        let request = downgraded.as_ref().unwrap_or(asked);
        check_open(request, lookup.at, node)?;
        let epoch = match lookup.at {
            At::Now => None,
            At::Epoch(epoch) => Some(epoch),
        };
        let file = FileKey { epoch, ..FileKey::now(tree.share.space, node.id) };
        let opened = self.open_in_table(request, lookup, file).await?;
        let unfinished = UnfinishedOpen::new(self, opened.id);
        let version = self.opens.with(file, |state| state.version);
        // From here on no request can delete the file. A request can acquire a lease only if this open has no
        // write or delete access and shares everything, so a truncating open checks the lease again.
        let Lookup { found, place, .. } = self.find_path(tree, &lookup.path, lookup.at).await?;
        let Some(now) = found.filter(|now| now.id == node.id) else { return Ok(None) };
        if asked.as_read_only(&now).is_some() != downgraded.is_some() {
            // The file became read-only or writable since, so other access must be requested.
            return Ok(None);
        }
        self.opens.with(file, |state| state.confirm_place(&place));
        if let Some(time) = request.snapshot
            && Some(self.snapshot_epoch(tree, time).await?) != epoch
        {
            return Err(Failure::NotFound);
        }
        check_open(request, lookup.at, &now)?;
        let writes = request.disposition.overwrites() || !request.open.mode.is_compatible_with_lease();
        if lookup.at == At::Now && blocks_writers(&now) && writes {
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
                // Run to completion: buffered writes may be dropped only together with the stored content.
                let emptied = run_to_completion(async move { Ok(this.truncate(attributes, id).await) });
                (action, emptied.await??)
            }
        };
        let info = self.record_open(tree, request, opened.id, version, node);
        unfinished.keep();
        Ok(Some(Created { opened, action, info, opened_read_only: downgraded.is_some() }))
    }

    async fn open_in_table(
        &self,
        request: &CreateRequest,
        lookup: &Lookup,
        file: FileKey,
    ) -> Result<Opened, Failure> {
        let mut open = request.open.clone();
        open.place = lookup.place.clone();
        open.at = self.store.now();
        open.overwrites = request.disposition.overwrites() && lookup.found.is_some();
        let is_directory = lookup.found.as_ref().map_or(request.kind == Kind::Directory, Node::is_directory);
        if is_directory {
            // Directories are not cached: their writers send no breaks.
            open.cache = CacheRequest::None;
        }
        Ok(self.opens.open(file, open).await?)
    }

    /// Notes the row that was read at `version`, unless a newer one is known. Returns the properties.
    fn record_open(
        &self,
        tree: &Tree,
        request: &CreateRequest,
        id: OpenId,
        version: u64,
        node: Arc<Node>,
    ) -> Info {
        let usage = self.usages.hold(id.file.space);
        self.opens.with(id.file, |state| {
            let is_still_so = state.version == version && !state.has_granted_requests();
            let buffer = &mut state.buffer;
            buffer.set_share(tree.share.clone(), usage);
            if request.allocation > 0 {
                buffer.allocation = request.allocation;
            }
            if is_still_so && buffer.node().is_none() {
                buffer.set_node(node.clone());
            }
            let node = buffer.node().unwrap_or(&node).clone();
            describe(state, &node)
        })
    }

    /// Truncates an open file. Its buffered writes are dropped afterwards.
    async fn truncate(&self, attributes: u32, id: OpenId) -> Result<Arc<Node>, Failure> {
        let lock = self.lock_file(id.file).await;
        let truncating = self.opens.begin_truncating_open(id);
        let place = self.opens.place(id).ok_or(Failure::Closed)?;
        let name = name_of(&place)?.ok_or(Failure::Invalid)?;
        let (space, parent) = (id.file.space, place.parent);
        let spot = Spot { space, parent, name, patience: PATIENCE, quota: u64::MAX };
        let mut released = 0;
        let changed = self.write_row(&spot, None, |view, old| {
            let mut node = old.filter(|old| old.id == id.file.node).ok_or(ErrorCode::ResourceNotFound)?;
            // Leased since it was opened.
            if blocks_writers(&node) {
                return Err(ErrorCode::SharingViolation.into());
            }
            released = extent_bytes(&node);
            let lease = node.file.as_ref().map_or(FileLease::AVAILABLE, |file| file.lease);
            let headers = node.file.take().map(|file| file.headers).unwrap_or_default();
            node.touch(view.stamp, view.now);
            node.properties.last_write = view.now;
            node.properties.attributes = normal(attributes & SETTABLE | ARCHIVE, false);
            let headers = ContentHeaders { content_md5: None, ..headers };
            node.file = Some(File { headers, lease, ..new_file(view.stamp.ticks()) });
            Ok(node)
        });
        let node = changed.await?;
        self.extents.released(released);
        self.discard(id.file);
        drop((truncating, lock));
        Ok(Arc::new(node))
    }
}

/// An open in the table whose row is still being made or read. Removes the open when dropped.
struct UnfinishedOpen<'a> {
    service: &'a FileService,
    id: Option<OpenId>,
}

impl<'a> UnfinishedOpen<'a> {
    fn new(service: &'a FileService, id: OpenId) -> Self {
        Self { service, id: Some(id) }
    }

    /// Keeps the open.
    fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for UnfinishedOpen<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let removal = self.service.opens.abandon(id);
        // Another open may have marked the file for deletion and closed meanwhile.
        if let (Some(removal), Ok(runtime)) = (removal, Handle::try_current()) {
            let service = self.service.clone();
            let remove = async move {
                if let Err(refusal) = service.remove(&removal).await {
                    let file = removal.file;
                    tracing::warn!(%refusal, ?file, "could not delete a file marked for deletion");
                }
            };
            runtime.spawn(remove.in_current_span());
        }
    }
}

/// Makes an empty file.
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
    /// Returns the request to use if the file is read-only and the client has asked for other access in that
    /// case.
    fn as_read_only(&self, node: &Node) -> Option<Self> {
        let is_read_only = !node.is_directory() && node.properties.attributes & READ_ONLY != 0;
        let access = self.if_read_only.filter(|_| is_read_only)?;
        let mut downgraded = self.clone();
        downgraded.open.mode.access = access;
        Some(downgraded)
    }
}

/// Checks that the existing file may be opened like this.
fn check_open(request: &CreateRequest, at: At, node: &Node) -> Result<(), Failure> {
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
    // Hidden and system files are truncated only by requests that name these attributes.
    if overwrites && attributes & (HIDDEN | SYSTEM) & !request.attributes != 0 {
        return Err(Failure::Denied);
    }
    debug_assert!(attributes & DIRECTORY == 0, "a file is no directory");
    Ok(())
}
