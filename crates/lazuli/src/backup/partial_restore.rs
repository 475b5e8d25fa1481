//! `lazuli restore --only`: restores one container, table, queue, share or account of a backup into a running
//! server.
//!
//! The rows of the backup are restored into a temporary folder, and content is fetched on demand. Both are
//! sent to the server as a stream over the control socket. The server makes the object or account visible
//! once the stream has ended with the right checksum.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use bytes::Bytes;
use indicatif::{HumanBytes, HumanCount, ProgressBar};
use lazuli_account::{account_of_row, account_row_key, properties_of_row, random_key};
use lazuli_concurrency::Stamp;
use lazuli_generations::is_being_renamed;
use lazuli_generations::keys::{self, Parts};
use lazuli_protocol::{Key, ServiceKind};
use lazuli_store::embedded::transfer::{Item, StoreReader};
use lazuli_store::{ReadError, Row, SpaceId, Token};

use super::lazy::{LazyExtents, is_segment};
use super::manifest::Manifest;
use super::repository::Repository;
use super::restore::write_files;
use crate::control::{self, Command, RestoredCounts, Target};
use crate::data::STORE;
use crate::transfer::Export;
use crate::{Failure, services};

/// The services, and the names of their objects in `--only` and in messages.
const KINDS: [(ServiceKind, &str); 4] = [
    (ServiceKind::Blob, "container"),
    (ServiceKind::Table, "table"),
    (ServiceKind::Queue, "queue"),
    (ServiceKind::File, "share"),
];

/// The object to restore: `container:ACCOUNT/NAME`, or `table`, `queue` or `share`; or `account:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestoreSelection {
    Object { service: ServiceKind, account: String, name: String },
    Account(String),
}

impl FromStr for RestoreSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        let parsed = text.split_once(':').and_then(|(kind, name)| {
            if kind == "account" {
                return is_name(name).then(|| Self::Account(name.into()));
            }
            let (service, _) = KINDS.into_iter().find(|(_, called)| *called == kind)?;
            let (account, name) = name.split_once('/')?;
            let is_object = is_name(account) && is_name(name);
            is_object.then(|| Self::Object { service, account: account.into(), name: name.into() })
        });
        parsed.ok_or_else(|| {
            "expected container:ACCOUNT/NAME, or table, queue or share in its place; or account:NAME".into()
        })
    }
}

/// Restores an object or an account into the server of `data`. `target` is the new name; for an object also
/// an account and a name. Without it, an account has the name that it had.
pub(super) fn run(
    repository: Repository,
    manifest: Manifest,
    data: &Path,
    only: &RestoreSelection,
    target: Option<&str>,
) -> Result<(), Failure> {
    let fetch = || Rows::fetch(repository, manifest);
    match (only, target) {
        (RestoreSelection::Account(name), target) => {
            restore_account(fetch()?, data, name, target.unwrap_or(name))
        }
        (RestoreSelection::Object { service, account, name }, Some(target)) => {
            restore_object(fetch()?, data, *service, (account, name), target)
        }
        (RestoreSelection::Object { .. }, None) => {
            Err(Failure::Usage("--as is missing: the new name".into()))
        }
    }
}

fn restore_object(
    rows: Rows,
    data: &Path,
    service: ServiceKind,
    (account, name): (&str, &str),
    target: &str,
) -> Result<(), Failure> {
    let stored_name = match service {
        ServiceKind::Table => name.to_ascii_lowercase(),
        _ => name.to_owned(),
    };
    let is_wanted = |parts: &Parts<'_>| parts.kind == service.name() && parts.name == stored_name;
    let found = find_account(&rows.reader, account, is_wanted)?;
    let kind = KINDS.iter().find(|(of, _)| *of == service).map_or("object", |(_, kind)| kind);
    let current = found.objects()?.into_iter().find(|object| object.deleted.is_none());
    let object = current
        .ok_or_else(|| Failure::Failed(format!("the backup has no {kind} {name} in account {account}")))?;
    let (account, name) = target.split_once('/').unwrap_or((account, target));
    let wanted = Target { service, account: account.into(), name: name.into() };
    let counts = rows.send(data, &Command::Restore(wanted), |reader, export| object.send(reader, export))?;
    println!("restored {account}/{name}: {}", describe(counts));
    Ok(())
}

fn restore_account(rows: Rows, data: &Path, name: &str, target: &str) -> Result<(), Failure> {
    let found = find_account(&rows.reader, name, |_| true)?;
    let objects = found.objects()?;
    // A copy is another account, so keys of the original must not open it.
    let is_copy = target != name;
    let new_key = || random_key().map_err(Failure::failed);
    let keys: Vec<Key> = if is_copy { vec![new_key()?, new_key()?] } else { vec![] };
    let command = Command::RestoreAccount { name: target.into(), keys: keys.clone() };
    let counts = rows.send(data, &command, |reader, export| {
        for row in &found.rows {
            let partition = account_row_key(name).0;
            put(export, Item::Row { space: SpaceId::ROOT, partition, row: row.clone() })?;
        }
        objects.iter().try_for_each(|object| object.send(reader, export))
    })?;
    println!("restored account {name} as {target}: {}; {}", count_kinds(&objects), describe(counts));
    for (key, number) in keys.iter().zip(1..) {
        println!("{target} key {number}: {}", key.to_base64());
    }
    Ok(())
}

fn describe(counts: RestoredCounts) -> String {
    format!("{} rows, {} of content", HumanCount(counts.rows), HumanBytes(counts.bytes))
}

/// Describes the number of objects of each kind, and of deleted objects.
fn count_kinds(objects: &[Object]) -> String {
    let of_kind = |(service, called): (ServiceKind, &str)| {
        let is_of_kind =
            |object: &&Object| keys::parts(&object.partition).is_some_and(|p| p.kind == service.name());
        let count = objects.iter().filter(|object| object.deleted.is_none()).filter(is_of_kind).count();
        format!("{count} {called}{}", if count == 1 { "" } else { "s" })
    };
    let deleted = objects.iter().filter(|object| object.deleted.is_some()).count();
    format!("{}, {deleted} deleted and kept", KINDS.map(of_kind).join(", "))
}

/// The rows of a backup in a temporary folder, and its content, which is fetched on demand.
struct Rows {
    repository: Repository,
    manifest: Manifest,
    reader: StoreReader,
    folder: tempfile::TempDir,
}

impl Rows {
    fn fetch(repository: Repository, manifest: Manifest) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(Failure::failed)?;
        let progress = ProgressBar::new(manifest.chunks().count() as u64);
        write_files(&repository, &manifest, folder.path(), &progress, |path| !is_segment(path))?;
        progress.finish_and_clear();
        let reader = StoreReader::open(&folder.path().join(STORE)).map_err(Failure::failed)?;
        Ok(Self { repository, manifest, reader, folder })
    }

    /// Sends rows and their content to the server of `data`.
    fn send(
        self,
        data: &Path,
        command: &Command,
        write: impl FnOnce(&StoreReader, &mut Export<'_>) -> Result<(), ReadError>,
    ) -> Result<RestoredCounts, Failure> {
        let extents = Arc::new(LazyExtents::new(self.repository, self.manifest, self.folder.path())?);
        control::restore(data, command, |out| {
            let mut export = Export::new(extents, out)?;
            write(&self.reader, &mut export).map_err(Failure::failed)?;
            export.finish()
        })
    }
}

/// An account of a backup.
struct FoundAccount {
    /// The rows of the account itself: keys, settings, the properties of the services.
    rows: Vec<Row>,
    /// The rows of its containers, tables, queues and shares, by partition.
    partitions: BTreeMap<Bytes, Vec<Row>>,
}

/// Finds an account and the selected objects in it.
fn find_account(
    reader: &StoreReader,
    name: &str,
    is_wanted: impl Fn(&Parts<'_>) -> bool,
) -> Result<FoundAccount, Failure> {
    let (account_partition, account_key) = account_row_key(name);
    let (mut generation, mut found) = (None, FoundAccount { rows: vec![], partitions: BTreeMap::new() });
    let read = reader.rows(SpaceId::ROOT, |partition, row| {
        if partition == account_partition {
            if row.key == account_key {
                generation =
                    account_of_row(&partition, &row.key, &row.value).map(|account| account.generation);
            }
            let is_of_service = properties_of_row(&partition, &row.key, &row.value).is_some();
            // The partition also has rows of removed accounts of that name.
            if row.key == account_key || is_of_service {
                found.rows.push(row);
            }
        } else if keys::parts(&partition).is_some_and(|parts| parts.account == name && is_wanted(&parts)) {
            found.partitions.entry(partition).or_default().push(row);
        }
        Ok(())
    });
    read.map_err(Failure::failed)?;
    let generation =
        generation.ok_or_else(|| Failure::Failed(format!("the backup has no account {name}")))?;
    // An earlier account of that name may have left rows.
    found
        .partitions
        .retain(|partition, _| keys::parts(partition).is_some_and(|parts| parts.generation == generation));
    Ok(found)
}

impl FoundAccount {
    /// Returns the objects of the account. Deleted objects come before the current one of the same name.
    fn objects(&self) -> Result<Vec<Object>, Failure> {
        let mut objects = vec![];
        for (partition, rows) in &self.partitions {
            let is_object = |row: &&Row| row.key == keys::CURRENT || keys::deleted_at(&row.key).is_some();
            let mut of_name: Vec<Object> = rows
                .iter()
                .filter(is_object)
                .map(|row| Object::of(partition, row, rows))
                .collect::<Result<_, _>>()?;
            of_name.sort_by_key(|object| (object.deleted.is_none(), object.deleted));
            objects.extend(of_name);
        }
        Ok(objects)
    }
}

/// A container, table, queue or share of a backup.
struct Object {
    partition: Bytes,
    space: SpaceId,
    /// Time of deletion, if the object is soft-deleted.
    deleted: Option<Stamp>,
    /// The row of the object in the directory, and the rows of its snapshots.
    rows: Vec<Row>,
}

impl Object {
    /// Returns the object that a row of the directory names. `rows` are all rows of the partition.
    fn of(partition: &Bytes, row: &Row, rows: &[Row]) -> Result<Self, Failure> {
        let failed = |why: &str| Failure::Failed(format!("{}: {why}", String::from_utf8_lossy(partition)));
        if is_being_renamed(row) {
            return Err(failed("it was being renamed when the backup was made: use another backup"));
        }
        let space = services::space_named_by(partition, row).ok_or_else(|| failed("its row is damaged"))?;
        let is_snapshot = |row: &&Row| keys::snapshot_parts(&row.key).is_some_and(|(of, _)| of == space);
        let snapshots = rows.iter().filter(is_snapshot);
        let rows = std::iter::once(row).chain(snapshots).cloned().collect();
        Ok(Self { partition: partition.clone(), space, deleted: keys::deleted_at(&row.key), rows })
    }

    /// Writes an object: its space, its rows of the directory, then all of its rows.
    fn send(&self, reader: &StoreReader, export: &mut Export<'_>) -> Result<(), ReadError> {
        let space = self.space;
        let header = reader.header(space)?;
        let header = header.ok_or_else(|| ReadError::Damaged("a space has no header".into()))?;
        put(export, Item::Space { space, header, token: Token(Stamp::from_ticks(0)) })?;
        for row in &self.rows {
            let (partition, row) = (self.partition.clone(), row.clone());
            put(export, Item::Row { space: SpaceId::ROOT, partition, row })?;
        }
        reader.rows(space, |partition, row| put(export, Item::Row { space, partition, row }))
    }
}

fn put(export: &mut Export<'_>, item: Item) -> Result<(), ReadError> {
    export.item(item).map_err(ReadError::Io)
}

/// Returns the data directory of the server.
pub(super) fn server_directory(data: Option<PathBuf>) -> PathBuf {
    data.unwrap_or_else(|| "lazuli-data".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_is_an_account_or_a_kind_with_account_and_name() {
        let only = |service, account: &str, name: &str| RestoreSelection::Object {
            service,
            account: account.into(),
            name: name.into(),
        };
        for (text, expected) in [
            ("container:acc/con", Some(only(ServiceKind::Blob, "acc", "con"))),
            ("table:acc/Tab", Some(only(ServiceKind::Table, "acc", "Tab"))),
            ("queue:acc/q", Some(only(ServiceKind::Queue, "acc", "q"))),
            ("share:acc/s", Some(only(ServiceKind::File, "acc", "s"))),
            ("account:acc", Some(RestoreSelection::Account("acc".into()))),
            ("account:", None),
            ("account:acc/con", None),
            ("acc/con", None),
            ("blob:acc/con", None),
            ("container:acc", None),
            ("container:acc/", None),
            ("container:acc/con/blob", None),
        ] {
            assert_eq!(text.parse::<RestoreSelection>().ok(), expected, "{text}");
        }
    }
}
