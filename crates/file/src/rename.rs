//! Rename File and Rename Directory: to another name in the same directory, or in another directory of the share.
//!
//! What is renamed stays the same file or directory, so its id and all that lies in it stay too. Within a directory it is
//! one commit; from one to another it is an intent, see [`crate::moves`].

use std::time::Duration;

use http::{StatusCode, Uri};
use lazuli_concurrency::{FileUse, LeaseId, Stamp, Timestamp};
use lazuli_generations::{carry_through, unreadable};
use lazuli_protocol::address::Address;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Query, Refusal, Request, Response, ServiceKind, SourceRead,
};
use lazuli_store::{Attempts, Change, Mutation, SpaceId, TransactError, View};

use crate::children::{self, At};
use crate::directory::written;
use crate::file::{admit_write, allocated, check_writable, with_lease};
use crate::moves::{Attempted, MAX_ATTEMPTS, Move, Place, Work};
use crate::names::{self, Name};
use crate::opens::{Admission, FileKey, PATIENCE};
use crate::record::{Node, NodeId};
use crate::smb_properties::{Purpose, SentProperties};
use crate::tree::{Entry, Spot, check_kind, entry};
use crate::usage::{Reservation, epoch};
use crate::{FileService, keys, share_gone};

const SOURCE: &str = "x-ms-file-rename-source";
/// How often a move gives way to those who write, before it has them wait.
const FAIR: usize = 2;

/// What a request asks for.
pub(crate) struct Rename {
    /// The open file that an SMB client renames.
    by: Option<FileKey>,
    space: SpaceId,
    patience: Duration,
    is_directory: bool,
    source: Vec<Name>,
    target: Vec<Name>,
    source_lease: Option<LeaseId>,
    target_lease: Option<LeaseId>,
    replaces: bool,
    ignores_read_only: bool,
    properties: SentProperties,
    permission: Option<String>,
    /// None: as it is.
    metadata: Option<Metadata>,
    content_type: Option<String>,
}

impl FileService {
    /// Rename File.
    pub(crate) async fn rename_file(&self, request: Request) -> Result<Response, Refusal> {
        self.rename(request, false).await
    }

    /// Rename Directory.
    pub(crate) async fn rename_directory(&self, request: Request) -> Result<Response, Refusal> {
        self.rename(request, true).await
    }

    async fn rename(&self, request: Request, is_directory: bool) -> Result<Response, Refusal> {
        let headers = &request.headers;
        let source = self.renamed(&request).await?;
        let properties = SentProperties::parse(headers, request.version, Purpose::Rename)?;
        let metadata = Metadata::from_headers(headers)?;
        let target = self.target(&request).await?;
        let space = target.share.space;
        let rename = Rename {
            by: None,
            space,
            patience: target.patience,
            is_directory,
            source,
            target: target.path,
            source_lease: headers.parsed("x-ms-source-lease-id")?,
            target_lease: headers.parsed("x-ms-destination-lease-id")?,
            replaces: headers.flag("x-ms-file-rename-replace-if-exists")?.unwrap_or_default(),
            ignores_read_only: headers.flag("x-ms-file-rename-ignore-readonly")?.unwrap_or_default(),
            permission: self.permission_key(space, properties.permission.as_ref()).await?,
            properties,
            metadata: Some(metadata).filter(|metadata| *metadata != Metadata::default()),
            content_type: headers.filled("x-ms-content-type")?.map(str::to_owned),
        };
        let this = self.clone();
        let (node, parent) = carry_through(async move { this.rename_admitted(&rename).await }).await?;
        Ok(written(StatusCode::OK, &node, parent))
    }

    /// Renames, once those who have something open let it. What was renamed, as it is now, and the directory it is in.
    async fn rename_admitted(&self, rename: &Rename) -> Result<(Node, NodeId), Refusal> {
        let mut admission = self.opens.admission(rename.patience);
        loop {
            let renamed = self.carry_out(rename, &mut admission).await;
            if renamed.is_ok() || !self.again(&mut admission).await {
                return renamed;
            }
        }
    }

    /// The path that a request names as the source, if the caller may write there.
    async fn renamed(&self, request: &Request) -> Result<Vec<Name>, Refusal> {
        let text = request.headers.required(SOURCE)?;
        let keeps_dots = request.headers.flag("x-ms-source-allow-trailing-dot")?.unwrap_or_default();
        let found = source_in(text, &request.endpoint, &request.account.name, &request.container);
        let (address, query) = found.ok_or_else(|| Refusal::invalid_header(SOURCE, text))?;
        // A signature for one file does not speak of another, so that has to bring its own.
        if matches!(request.caller, Caller::Sas(_)) && request.query.get("sr") == Some("f") {
            if !query.contains("sig") {
                return Err(ErrorCode::AuthorizationResourceTypeMismatch.into());
            }
            let read = SourceRead {
                operation: request.operation,
                address: &address,
                query: &query,
                authorization: None,
                intent: None,
                version: request.version,
                secure: request.secure,
                peer: request.peer,
            };
            self.copies.sources()?.access.admit(&read, self).await?;
        }
        names::existing_path(&address.object, keeps_dots)
    }

    /// Renames, if those who have something open let it now.
    pub(crate) async fn carry_out(
        &self,
        rename: &Rename,
        admission: &mut Admission,
    ) -> Result<(Node, NodeId), Refusal> {
        let (space, is_directory) = (rename.space, rename.is_directory);
        let _turn = if is_directory { Some(self.turns.take(space).await) } else { None };
        let (source, sources) = rename.source.split_last().ok_or(ErrorCode::ResourceNotFound)?;
        let (target, targets) = rename.target.split_last().ok_or(ErrorCode::ResourceAlreadyExists)?;
        for attempt in 0..MAX_ATTEMPTS {
            let from = self.directories(sources, rename).await?.ok_or(ErrorCode::ResourceNotFound)?;
            let to = self.directories(targets, rename).await?.ok_or(ErrorCode::ParentNotFound)?;
            let parent = |path: &[NodeId]| path.last().copied().unwrap_or(NodeId::ROOT);
            let spot = |path, name: &Name| Spot {
                space,
                parent: parent(path),
                name: name.clone(),
                patience: rename.patience,
                // Nothing grows.
                quota: 0,
            };
            let (from, spot) = (spot(&from, source), spot(&to, target));
            admission.check(spot.file(spot.parent))?;
            let renamed = match from.parent == spot.parent {
                true => self.rename_within(rename, admission, &from, &spot).await?,
                false => {
                    // While directories are summed up, nothing goes from one to another.
                    let freed = self.usages.still(space).await;
                    let partitions = [from.partition(), spot.partition()];
                    let _alone = match attempt {
                        ..FAIR => None,
                        _ => Some(self.writers.none(&partitions).await),
                    };
                    self.rename_across(rename, admission, &from, &spot, &to, freed).await?
                }
            };
            if let Some(node) = renamed {
                return Ok((node, spot.parent));
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// The directories on a path.
    async fn directories(&self, path: &[Name], rename: &Rename) -> Result<Option<Vec<NodeId>>, Refusal> {
        let nodes = match rename.is_directory {
            true => self.follow_once(rename.space, path, At::Now).await?,
            false => self.follow(rename.space, path, At::Now).await?,
        };
        let nodes = nodes.filter(|nodes| nodes.iter().all(Node::is_directory));
        Ok(nodes.map(|nodes| nodes.iter().map(|node| node.id).collect()))
    }

    /// Renames within a directory. None: begin again.
    async fn rename_within(
        &self,
        rename: &Rename,
        admission: &mut Admission,
        from: &Spot,
        to: &Spot,
    ) -> Result<Option<Node>, Refusal> {
        let refusal = |error: TransactError<_>| lazuli_account::refusal(error.widen(), share_gone);
        let (partition, is_same) = (to.partition(), from.name.folded == to.name.folded);
        let mut reads = children::reads_to_change(&from.name);
        if !is_same {
            reads.keys.extend([keys::child(&to.name.folded), keys::moving(&to.name.folded)]);
        }
        let mut writes = self.writers.one(&partition).await;
        let mut attempts = Attempts::new(&*self.store, &self.gate, &partition);
        let mut freed: Option<Reservation> = None;
        loop {
            // A sweep waits for pins, so none is held in a line.
            attempts.wait_turn().await;
            // Whoever looks for content row by row must not miss what goes from one row to another.
            let pin = self.extents.pins().pin();
            let attempt = attempts.begin(reads.clone()).await.map_err(refusal)?;
            let view = attempt.view();
            let (old, replaced) = match (entry(from, &view)?, entry(to, &view)?) {
                (Entry::Free(old), Entry::Free(replaced)) => (old, replaced.filter(|_| !is_same)),
                (Entry::Reserved(reservation), _) | (_, Entry::Reserved(reservation)) => {
                    drop(attempts);
                    self.end(from.space, &reservation).await?;
                    return Ok(None);
                }
            };
            let old = old.ok_or(ErrorCode::ResourceNotFound)?;
            let _held = pin.hold(old.file.as_ref().map(|file| &file.content));
            let new = rename.admitted(admission, &old, replaced.as_ref(), |rename| {
                rename.judge(&old, replaced.as_ref(), &to.name, view.stamp, view.now)
            })?;
            let mutations = rows(&view, from, to, &old, replaced.as_ref(), &new)?;
            let grown = children::growth(replaced.as_ref(), None);
            if !self.usages.admit(&mut freed, from, grown, &view) {
                // Leave the line first: a request that holds a reservation may wait in it.
                drop((attempts, writes));
                freed = Some(self.reserve(from.space, grown, None, epoch(&view)).await?);
                writes = self.writers.one(&partition).await;
                attempts = Attempts::new(&*self.store, &self.gate, &partition);
                continue;
            }
            if attempts.commit(attempt, Change::of(mutations)).await.map_err(refusal)? {
                freed.into_iter().for_each(Reservation::keep);
                self.extents.released(replaced.as_ref().map_or(0, allocated));
                return Ok(Some(new));
            }
        }
    }

    /// Moves to another directory, which lies below `path`. None: begin again.
    async fn rename_across(
        &self,
        rename: &Rename,
        admission: &mut Admission,
        from: &Spot,
        to: &Spot,
        path: &[NodeId],
        mut freed: Reservation,
    ) -> Result<Option<Node>, Refusal> {
        let space = rename.space;
        let pin = self.extents.pins().pin();
        let old = self.child(space, from.parent, &from.name, At::Now).await?;
        let old = old.ok_or(ErrorCode::ResourceNotFound)?;
        let _held = pin.hold(old.file.as_ref().map(|file| &file.content));
        let replaced = self.child(space, to.parent, &to.name, At::Now).await?;
        let (stamp, now) = (self.store.stamp(), self.store.now());
        if path.contains(&old.id) {
            return Err(ErrorCode::InvalidRenameSourcePath.into());
        }
        let new = rename.admitted(admission, &old, replaced.as_ref(), |rename| {
            rename.judge(&old, replaced.as_ref(), &to.name, stamp, now)
        })?;
        let place = |spot: &Spot| Place { parent: spot.parent, name: spot.name.folded.to_vec() };
        let record = |node: &Node| node.encode().map(Vec::from);
        let work = Work::Move(Move {
            source: place(from),
            target: place(to),
            before: record(&old)?,
            after: record(&new)?,
            replaced: replaced.as_ref().map(record).transpose()?,
        });
        let grown = children::growth(replaced.as_ref(), None);
        let before = self.store.space(space).await.map_err(unreadable)?;
        let attempted = self.attempt(space, &work).await;
        if matches!(attempted, Ok(Attempted::Again)) {
            return Ok(None);
        }
        if grown != 0 {
            // Admitted afterwards, for the epoch of its commits, if they were all of one.
            let after = self.store.space(space).await.map_err(unreadable)?;
            let epoch = before.filter(|before| after == Some(*before)).map(|header| header.epoch);
            match attempted.is_ok() && freed.ask(grown, None, epoch) {
                true => freed.keep(),
                false => freed.freed_unseen(),
            }
        }
        attempted?;
        self.extents.released(replaced.as_ref().map_or(0, allocated));
        Ok(Some(new))
    }
}

impl Rename {
    /// A new path for a file or directory that an SMB client has open.
    pub(crate) fn of_open(
        file: FileKey,
        is_directory: bool,
        source: Vec<Name>,
        target: Vec<Name>,
        replaces: bool,
    ) -> Self {
        Self {
            by: Some(file),
            space: file.space,
            patience: PATIENCE,
            is_directory,
            source,
            target,
            source_lease: None,
            target_lease: None,
            replaces,
            ignores_read_only: false,
            properties: SentProperties::preserving(),
            permission: None,
            metadata: None,
            content_type: None,
        }
    }

    /// Judges, and asks SMB clients last: asking makes them give up what they cache.
    fn admitted(
        &self,
        admission: &mut Admission,
        old: &Node,
        replaced: Option<&Node>,
        judge: impl FnOnce(&Self) -> Result<Node, Refusal>,
    ) -> Result<Node, Refusal> {
        if self.by.is_some_and(|by| by.node != old.id) {
            return Err(ErrorCode::ResourceNotFound.into());
        }
        let files = [Some(old), replaced].into_iter().flatten().map(|node| FileKey::now(self.space, node.id));
        for file in files.clone() {
            match Some(file) == self.by {
                // What is written to it meanwhile stays ahead of the row: only who renames it, who has its turn, could commit it.
                true => admission.check_stays(file)?,
                false => admission.check(file)?,
            }
        }
        let new = judge(self)?;
        // Whoever renames what he has open was let to by those who have it open too.
        for file in files.filter(|file| Some(*file) != self.by) {
            admission.admit(file, FileUse::Delete)?;
        }
        if self.is_directory {
            let path: Vec<_> = self.source.iter().map(|name| name.text.as_str()).collect();
            admission.admit_move(self.space, &path.join("/"), self.by)?;
        }
        Ok(new)
    }

    /// Whether this may be renamed so, and what it is then.
    fn judge(
        &self,
        old: &Node,
        replaced: Option<&Node>,
        name: &Name,
        stamp: Stamp,
        now: Timestamp,
    ) -> Result<Node, Refusal> {
        check_kind(old, self.is_directory)?;
        let lease = admit_write(old, self.source_lease)?;
        match replaced {
            None if self.target_lease.is_some() => {
                return Err(ErrorCode::LeaseNotPresentWithFileOperation.into());
            }
            None => {}
            Some(_) if !self.replaces => return Err(ErrorCode::ResourceAlreadyExists.into()),
            Some(there) if there.is_directory() && self.is_directory => {
                return Err(ErrorCode::ResourceAlreadyExists.into());
            }
            Some(there) => {
                check_kind(there, false)?;
                admit_write(there, self.target_lease)?;
                if !self.ignores_read_only {
                    check_writable(there)?;
                }
            }
        }
        let mut new = with_lease(old.clone(), lease);
        new.name = name.text.clone();
        new.touch(stamp, now);
        self.properties.apply(&mut new.properties, self.is_directory, self.permission.clone(), now);
        if let Some(metadata) = &self.metadata {
            new.metadata = metadata.clone();
        }
        if let (Some(file), Some(content_type)) = (&mut new.file, &self.content_type) {
            file.headers.content_type = Some(content_type.clone());
        }
        Ok(new)
    }
}

/// The rows of a directory in which something gets another name.
fn rows(
    view: &View<'_>,
    from: &Spot,
    to: &Spot,
    old: &Node,
    replaced: Option<&Node>,
    new: &Node,
) -> Result<Vec<Mutation>, Refusal> {
    if from.name.folded == to.name.folded {
        return children::replace(view, &to.name, Some(old), Some(new.clone()));
    }
    let mut mutations = children::replace(view, &from.name, Some(old), None)?;
    mutations.extend(children::replace(view, &to.name, replaced, Some(new.clone()))?);
    Ok(mutations)
}

/// What a URL addresses in a share, and its query, if it is of that share. The client reached us at `endpoint`. Java does
/// not encode the source of a directory. A `#` would cut the name off there, and another file would be renamed.
pub(crate) fn source_in(text: &str, endpoint: &str, account: &str, share: &str) -> Option<(Address, Query)> {
    if text.contains('#') {
        return None;
    }
    let uri: Uri = lazuli_copy::with_stray_encoded(text).parse().ok()?;
    let query = Query::parse(uri.query().unwrap_or_default()).ok()?;
    // A host by which the client reached us in path style names no account.
    let host = uri.authority()?.as_str();
    let host = if is_path_style(endpoint, host) { "" } else { host };
    let suffix = own_suffix(endpoint);
    let address = Address::of_source(ServiceKind::File, host, uri.path(), &query, suffix.as_slice()).ok()?;
    let is_here = address.account == account && address.container == share;
    (is_here && !query.contains("sharesnapshot")).then_some((address, query))
}

/// Whether the client reached us at that host with the account in the path.
fn is_path_style(endpoint: &str, host: &str) -> bool {
    endpoint.parse::<Uri>().is_ok_and(|endpoint| {
        endpoint.path() != "/" && endpoint.authority().is_some_and(|own| own.as_str() == host)
    })
}

/// What comes after the account in the host name that the client reached us by, if it names the account there.
fn own_suffix(endpoint: &str) -> Option<String> {
    let endpoint: Uri = endpoint.parse().ok()?;
    if endpoint.path() != "/" {
        return None;
    }
    Some(endpoint.host()?.split_once('.')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_url_of_the_share_in_any_style() {
        const PATH: &str = "http://127.0.0.1:10004/lapis";
        const CLUSTER: &str = "http://lazuli.file.svc.cluster.local:10004/lapis";
        const HOST: &str = "https://lapis.file.example.org";
        const OWN: &str = "https://lapis.mine.example";
        for (endpoint, text, object) in [
            (PATH, "http://127.0.0.1:10004/lapis/docs/a/b%20c", Some("a/b c")),
            (PATH, "http://lapis.file.localhost:10004/docs/%C3%A9?sv=1&sig=x", Some("é")),
            (PATH, "http://127.0.0.1:10004/lapis/docs%2Fa%20b%2Fc", Some("a b/c")),
            (HOST, "https://lapis.file.example.org/docs%2fd%2F%C3%A4", Some("d/ä")),
            (HOST, "https://lapis.file.example.org/docs/a%252Fb", Some("a%2Fb")),
            (HOST, "https://lapis.file.example.org/docs/my dir/é{1}", Some("my dir/é{1}")),
            (HOST, "https://lapis.file.example.org/docs/a%23b", Some("a#b")),
            (HOST, "https://lapis.file.example.org/docs/a#b", None),
            (HOST, "https://lapis.file.example.org/do cs/a", None),
            (HOST, "https://lapis.file.example.org/other%2Fdocs%2Fa", None),
            (HOST, "https://lapis.file.example.org/docs%2F..%2Fother%2Fa", Some("../other/a")),
            (CLUSTER, "http://lazuli.file.svc.cluster.local:10004/lapis/docs/a", Some("a")),
            (HOST, "https://lapis.file.example.org/docs/a", Some("a")),
            (OWN, "https://lapis.mine.example/docs/a", Some("a")),
            (PATH, "http://127.0.0.1:10004/lapis/docs", Some("")),
            (PATH, "http://127.0.0.1:10004/lapis/other/a", None),
            (PATH, "http://127.0.0.1:10004/malachite/docs/a", None),
            (HOST, "https://malachite.file.example.org/docs/a", None),
            (HOST, "https://lapis.file.example.org/docs/a?sharesnapshot=x", None),
            (PATH, "/lapis/docs/a", None),
            (PATH, "docs/a", None),
            (PATH, "http://127.0.0.1:10004/lapis/docs/%zz", None),
            (PATH, "", None),
        ] {
            let found = source_in(text, endpoint, "lapis", "docs").map(|(address, _)| address.object);
            assert_eq!(found.as_deref(), object, "{endpoint} {text}");
        }
    }
}
