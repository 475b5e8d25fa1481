//! Containers, and blobs with their snapshots and versions.
//!
//! The states of one blob are written in the order of their times, the blob itself last. A snapshot's content
//! is written as the blob, and a snapshot of it is taken. If the blob itself cannot be copied, the snapshots
//! and the content that this run wrote are removed again.

use std::sync::Arc;

use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::{ServiceKind, names};

use super::blob_copy::{self, BlobPlace};
use super::journal::record;
use super::pages::ListingPages;
use super::xml::XmlElement;
use super::{
    Job, Jobs, Link, Links, Refused, Shared, copy_policies, copy_service_properties, exists_already,
    header_text, listed_metadata,
};
use crate::calls::{encode, metadata};

const SERVICE: ServiceKind = ServiceKind::Blob;
/// The parts of blobs that a listing contains. Some servers do not know versions.
const INCLUDED: [&str; 2] =
    ["metadata,snapshots,versions,uncommittedblobs,copy", "metadata,snapshots,uncommittedblobs,copy"];
/// Maximum number of snapshots and versions of one blob.
const MAX_STATES: usize = 100_000;

pub(super) async fn import(import: &Arc<Shared>) {
    let mut links = import.links();
    let mut pages = ListingPages::new(SERVICE, "", "comp=list&include=metadata");
    loop {
        let page = match pages.next(&mut links.source).await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(reason) => return import.left_out("the containers", reason),
        };
        for container in page {
            if import.give_up().is_some() {
                return;
            }
            let name = container.value("Name").to_owned();
            if let Err(reason) = import_container(import, &mut links, &container, &name).await {
                import.left_out(format_args!("container {name}"), reason);
            }
        }
    }
    copy_service_properties(import, &mut links, SERVICE).await;
}

async fn import_container(
    import: &Arc<Shared>,
    links: &mut Links,
    container: &XmlElement,
    name: &str,
) -> Result<(), Refused> {
    names::check_container(name).map_err(|_| "the name is invalid")?;
    let is_new = import.is_dry_run || create_container(import, links, container, name).await?;
    import.imported("containers", 0);
    if container.child("Properties").is_some_and(|properties| properties.value("LeaseState") == "leased") {
        import.progress.lost("leases: the protocol does not reveal their identifiers");
    }
    let verified = |kind| import.progress.verified(kind);
    let before = (verified("blobs"), verified("snapshots"));
    import_blobs(import, links, name, is_new).await?;
    if import.is_dry_run || import.give_up().is_some() {
        return Ok(());
    }
    let (blobs, snapshots) = count_blobs(&mut links.target, name).await?;
    for (kind, found, wanted) in [
        ("blobs", blobs, verified("blobs") - before.0),
        ("snapshots", snapshots, verified("snapshots") - before.1),
    ] {
        import.progress.compare_counts(format_args!("container {name}"), kind, found, wanted);
    }
    Ok(())
}

/// Creates the container with its properties. Returns false if it existed before.
async fn create_container(
    import: &Shared,
    links: &mut Links,
    container: &XmlElement,
    name: &str,
) -> Result<bool, Refused> {
    let values = listed_metadata(import, container);
    let path = format!("/{name}");
    let mut create = Call::new(Method::PUT, path.clone(), "restype=container");
    metadata(&mut create, Some(&values))?;
    let expected = [StatusCode::CREATED, StatusCode::CONFLICT];
    let reply =
        links.target.send(SERVICE, &create, &expected).await.map_err(|failure| failure.to_string())?;
    let is_new = reply.status == StatusCode::CREATED;
    if !is_new {
        if !exists_already(&reply) {
            return Err(header_text(&reply.headers, "x-ms-error-code"));
        }
        let mut set = Call::new(Method::PUT, path.clone(), "restype=container&comp=metadata");
        metadata(&mut set, Some(&values))?;
        let sent = links.target.send(SERVICE, &set, &[StatusCode::OK]).await;
        sent.map_err(|failure| failure.to_string())?;
    }
    copy_policies(links, SERVICE, &path, "restype=container&comp=acl", Some("x-ms-blob-public-access"))
        .await?;
    Ok(is_new)
}

/// One state of a blob in a listing.
#[derive(Clone, Debug)]
struct ListedState {
    /// The time of a snapshot or version, or an empty text.
    id: String,
    etag: String,
    length: u64,
}

/// A blob with all its states.
#[derive(Clone, Debug, Default)]
struct ListedBlob {
    container: String,
    name: String,
    /// Whether the container did not exist before this run.
    is_new: bool,
    base: Option<ListedState>,
    snapshots: Vec<ListedState>,
    versions: Vec<ListedState>,
}

async fn import_blobs(
    import: &Arc<Shared>,
    links: &mut Links,
    container: &str,
    is_new: bool,
) -> Result<(), Refused> {
    let listing = |included| {
        let query = format!("restype=container&comp=list&include={}", encode(included));
        ListingPages::new(SERVICE, format!("/{container}"), query)
    };
    let mut pages = listing(INCLUDED[0]);
    let mut page = pages.next(&mut links.source).await;
    if page.as_ref().is_err_and(|reason| reason.starts_with("400")) {
        pages = listing(INCLUDED[1]);
        page = pages.next(&mut links.source).await;
    }
    let mut jobs = Jobs::new(import);
    let mut blob = ListedBlob::default();
    // Jobs that are running are finished before an error is returned.
    let listed = loop {
        let objects = match page {
            Ok(Some(objects)) => objects,
            Ok(None) => break Ok(()),
            Err(reason) => break Err(reason),
        };
        let taken = take_page(import, objects, container, is_new, &mut blob);
        let complete = match taken {
            Ok(complete) => complete,
            Err(reason) => break Err(reason),
        };
        for complete in complete {
            start(import, &mut jobs, complete).await;
        }
        if import.give_up().is_some() {
            break Ok(());
        }
        page = pages.next(&mut links.source).await;
    };
    start(import, &mut jobs, blob).await;
    jobs.finish().await;
    listed
}

/// Adds the objects of a page to the current blob. Returns the blobs that are complete.
fn take_page(
    import: &Shared,
    objects: Vec<XmlElement>,
    container: &str,
    is_new: bool,
    current: &mut ListedBlob,
) -> Result<Vec<ListedBlob>, Refused> {
    let mut complete = vec![];
    for object in objects {
        // A prefix is not listed, because the listing has no delimiter; a deleted blob was not asked for.
        if object.name != "Blob" || object.value("Deleted") == "true" {
            continue;
        }
        let name = object.object_name()?;
        if name != current.name {
            let fresh = ListedBlob { container: container.into(), name, is_new, ..ListedBlob::default() };
            complete.push(std::mem::replace(current, fresh));
        }
        let states = current.snapshots.len() + current.versions.len();
        if states > MAX_STATES {
            return Err(format!("blob {} has more than {MAX_STATES} snapshots and versions", current.name));
        }
        let properties = object.child("Properties").ok_or("a blob of the listing has no properties")?;
        let length = properties.value("Content-Length").parse().unwrap_or(0);
        let state = |id: &str| ListedState { id: id.into(), etag: properties.value("Etag").into(), length };
        let (snapshot, version) = (object.value("Snapshot"), object.value("VersionId"));
        if !snapshot.is_empty() {
            current.snapshots.push(state(snapshot));
        } else if version.is_empty() || object.value("IsCurrentVersion") == "true" {
            listed_metadata(import, &object);
            current.base = Some(state(""));
        } else {
            current.versions.push(state(version));
        }
    }
    Ok(complete)
}

/// Starts the job that copies a blob, or only counts the blob.
async fn start(import: &Arc<Shared>, jobs: &mut Jobs, mut blob: ListedBlob) {
    if blob.name.is_empty() {
        return;
    }
    blob.snapshots.sort_by(|a, b| a.id.cmp(&b.id));
    blob.versions.sort_by(|a, b| a.id.cmp(&b.id));
    if !import.is_dry_run {
        return jobs.start(blob).await;
    }
    for (kind, states) in [
        ("blobs", blob.base.as_slice()),
        ("snapshots", &blob.snapshots),
        ("versions of blobs", &blob.versions),
    ] {
        states.iter().for_each(|state| import.imported(kind, state.length));
    }
}

/// Older states of a blob that a run has written before the blob itself.
#[derive(Debug, Default)]
struct WrittenStates {
    /// Whether the blob has the content of an older state, or a part of it.
    has_begun: bool,
    /// The times of the snapshots that were taken.
    snapshots: Vec<String>,
}

impl Job for ListedBlob {
    async fn run(self, import: &Arc<Shared>, links: &mut Links) {
        let mut written = WrittenStates::default();
        let Err(reason) = self.copy(import, links, &mut written).await else { return };
        let object = format!("blob {}/{}", self.container, self.name);
        if written.has_begun {
            // The blob would have the content of an older state.
            let removed = remove_written(links, &self.place(String::new()).path, &written.snapshots).await;
            let count = written.snapshots.len();
            import.progress.retract("snapshots", count as u64);
            match removed {
                Ok(()) => import.left_out(&object, format_args!("{reason} ({count} snapshots with it)")),
                Err(second) => import.left_out(
                    &object,
                    format_args!(
                        "{reason}; the blob has the content of an older state now, because: {second}"
                    ),
                ),
            }
            return;
        }
        import.left_out(object, reason);
    }
}

impl ListedBlob {
    fn place(&self, selector: String) -> BlobPlace {
        BlobPlace::new(&self.container, &self.name, selector)
    }

    /// Returns the record of the blob and all its states. `None` if the blob itself does not exist.
    async fn record(&self, links: &mut Links) -> Result<Option<u128>, Refused> {
        let Some(base) = &self.base else { return Ok(None) };
        let Some(found) = blob_copy::head(&mut links.target, &self.place(String::new())).await? else {
            return Ok(None);
        };
        let found = header_text(&found, "etag");
        let mut parts = vec!["blob", &self.container, &self.name, &base.etag, &found];
        for state in self.snapshots.iter().chain(&self.versions) {
            parts.extend([state.id.as_str(), &state.etag]);
        }
        Ok(Some(record(&parts)))
    }

    async fn copy(
        &self,
        import: &Arc<Shared>,
        links: &mut Links,
        written: &mut WrittenStates,
    ) -> Result<(), Refused> {
        if !self.is_new && self.record(links).await?.is_some_and(|record| import.journal.has(record)) {
            import.unchanged("blobs");
            self.snapshots.iter().for_each(|_| import.unchanged("snapshots"));
            self.versions.iter().for_each(|_| import.unchanged("versions of blobs"));
            return Ok(());
        }
        let older = self.versions_to_copy(import);
        let existing = match self.snapshots.is_empty() && older.is_empty() || self.is_new {
            true => vec![],
            false => self.existing_states(links).await?,
        };
        if self.base.is_some() && !(self.snapshots.is_empty() && older.is_empty()) {
            blob_copy::check_readable(&mut links.source, &self.place(String::new())).await?;
        }
        self.copy_versions(import, links, older, &existing, written).await?;
        self.copy_snapshots(import, links, &existing, written).await?;
        let Some(base) = &self.base else { return self.delete_base(import, links, older).await };
        let place = self.place(String::new());
        let may_be_equal = !self.is_new && !written.has_begun;
        match blob_copy::copy(import, links, &place, may_be_equal).await {
            Ok(Some(bytes)) => import.imported("blobs", bytes),
            Ok(None) => import.unchanged("blobs"),
            Err(_) if base.length == 0 && self.is_uncommitted(links).await => {
                let reason = "it has only uncommitted blocks, which the protocol does not reveal";
                import.not_possible(format_args!("blob {}/{}", self.container, self.name), reason);
                return Ok(());
            }
            Err(reason) => return Err(reason),
        }
        if let Some(record) = self.record(links).await? {
            import.remember(record);
        }
        Ok(())
    }

    async fn is_uncommitted(&self, links: &mut Links) -> bool {
        let query = "comp=blocklist&blocklisttype=uncommitted";
        let blocks = links.source.get_xml(SERVICE, &self.place(String::new()).path, query).await;
        blocks.is_ok_and(|list| list.child("UncommittedBlocks").is_some_and(|all| !all.children.is_empty()))
    }

    /// Returns the versions that can be created on the destination. Records the others.
    fn versions_to_copy(&self, import: &Shared) -> &[ListedState] {
        let reason = if !import.versioning {
            "the destination keeps no versions (lazuli account set NAME --blob-versioning on)"
        } else if !self.snapshots.is_empty() {
            "blobs with snapshots are imported without versions"
        } else {
            return &self.versions;
        };
        for version in &self.versions {
            let object = format_args!("version {} of blob {}/{}", version.id, self.container, self.name);
            import.not_possible(object, reason);
        }
        &[]
    }

    /// Returns the times of the snapshots, or else of the versions, of the blob on the destination.
    async fn existing_states(&self, links: &mut Links) -> Result<Vec<BlobPlace>, Refused> {
        let (included, element, selector) = match self.snapshots.is_empty() {
            false => ("snapshots", "Snapshot", "snapshot"),
            true => ("versions", "VersionId", "versionid"),
        };
        let query = format!("restype=container&comp=list&include={included}&prefix={}", encode(&self.name));
        let mut pages = ListingPages::new(SERVICE, format!("/{}", self.container), query);
        let mut times = vec![];
        // Blobs are listed by name, and the shortest name with this prefix comes first.
        'pages: while let Some(page) = pages.next(&mut links.target).await? {
            for object in page {
                if object.object_name()? != self.name {
                    break 'pages;
                }
                let is_current = object.value("IsCurrentVersion") == "true";
                if !object.value(element).is_empty() && (included == "snapshots" || !is_current) {
                    times.push(object.value(element).to_owned());
                }
            }
        }
        times.sort();
        Ok(times.iter().map(|time| self.place(format!("{selector}={}", encode(time)))).collect())
    }

    /// Writes the versions that the destination does not have yet. Each write creates a version of the state
    /// before it.
    async fn copy_versions(
        &self,
        import: &Shared,
        links: &mut Links,
        older: &[ListedState],
        existing: &[BlobPlace],
        written: &mut WrittenStates,
    ) -> Result<(), Refused> {
        if older.is_empty() {
            return Ok(());
        }
        // The newest state that a run wrote before it was interrupted is the blob itself.
        let mut existing = existing.to_vec();
        let base = self.place(String::new());
        let has_base = blob_copy::head(&mut links.target, &base).await?.is_some();
        let known = existing.len() + usize::from(has_base);
        if has_base {
            existing.push(base);
        }
        for (number, version) in older.iter().enumerate() {
            let place = self.place(format!("versionid={}", encode(&version.id)));
            if number < known {
                let Some(found) = existing.get(number) else { break };
                if !blob_copy::is_equal(links, &place, found).await? {
                    return Err("the destination has other versions of this blob".into());
                }
                import.unchanged("versions of blobs");
                continue;
            }
            written.has_begun = true;
            let copied = blob_copy::copy(import, links, &place, false).await?;
            import.imported("versions of blobs", copied.unwrap_or(0));
        }
        Ok(())
    }

    /// Writes the snapshots that the destination does not have yet. The snapshots that it has must be the
    /// first ones of the source.
    async fn copy_snapshots(
        &self,
        import: &Shared,
        links: &mut Links,
        existing: &[BlobPlace],
        written: &mut WrittenStates,
    ) -> Result<(), Refused> {
        for (number, snapshot) in self.snapshots.iter().enumerate() {
            let place = self.place(format!("snapshot={}", encode(&snapshot.id)));
            if let Some(found) = existing.get(number) {
                if !blob_copy::is_equal(links, &place, found).await? {
                    return Err("the destination has other snapshots of this blob".into());
                }
                import.unchanged("snapshots");
                continue;
            }
            written.has_begun = true;
            let bytes = blob_copy::copy(import, links, &place, false).await?.unwrap_or(0);
            let take = Call::new(Method::PUT, place.path, "comp=snapshot");
            let taken = links.target.send(SERVICE, &take, &[StatusCode::CREATED]).await;
            let taken = taken.map_err(|failure| format!("snapshot {}: {failure}", snapshot.id))?;
            written.snapshots.push(header_text(&taken.headers, "x-ms-snapshot"));
            import.imported("snapshots", bytes);
        }
        Ok(())
    }

    /// Deletes the blob, if the source has only older versions of it.
    async fn delete_base(
        &self,
        import: &Shared,
        links: &mut Links,
        older: &[ListedState],
    ) -> Result<(), Refused> {
        if older.is_empty() {
            return Ok(());
        }
        let delete = Call::new(Method::DELETE, self.place(String::new()).path, "");
        let sent = links.target.send(SERVICE, &delete, &[StatusCode::ACCEPTED, StatusCode::NOT_FOUND]).await;
        sent.map_err(|failure| failure.to_string())?;
        import.progress.note("blobs that exist only in older versions", 1);
        Ok(())
    }
}

/// Removes snapshots by their times, and then the blob. Fails if the blob has other snapshots.
async fn remove_written(links: &mut Links, path: &str, snapshots: &[String]) -> Result<(), Refused> {
    let queries = snapshots.iter().map(|time| format!("snapshot={}", encode(time)));
    for query in queries.chain([String::new()]) {
        let delete = Call::new(Method::DELETE, path, query);
        let sent = links.target.send(SERVICE, &delete, &[StatusCode::ACCEPTED, StatusCode::NOT_FOUND]).await;
        sent.map_err(|failure| failure.to_string())?;
    }
    Ok(())
}

/// Returns the numbers of blobs and of snapshots.
async fn count_blobs(link: &mut Link, container: &str) -> Result<(u64, u64), Refused> {
    let query = "restype=container&comp=list&include=snapshots";
    let mut pages = ListingPages::new(SERVICE, format!("/{container}"), query);
    let (mut blobs, mut snapshots) = (0, 0);
    while let Some(page) = pages.next(link).await? {
        for blob in page {
            match blob.value("Snapshot") {
                "" => blobs += 1,
                _ => snapshots += 1,
            }
        }
    }
    Ok((blobs, snapshots))
}
