//! `lazuli restore --only`: one container, table, queue or share of a backup, into a running server under a new name.
//!
//! The rows of the backup are restored into a temporary folder, content is fetched as it is needed, and both go to the
//! server as a stream over the control socket. The server gives the new object its name when the stream has ended and its
//! checksum is right.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use indicatif::{HumanBytes, HumanCount, ProgressBar};
use lazuli_account::{account_of_row, place_of_account};
use lazuli_concurrency::Stamp;
use lazuli_generations::keys;
use lazuli_protocol::ServiceKind;
use lazuli_store::embedded::transfer::{Item, StoreReader};
use lazuli_store::{ReadError, Row, SpaceId, Token};

use super::lazy::{LazyExtents, is_segment};
use super::manifest::Manifest;
use super::repository::Repository;
use super::restore::write_files;
use crate::control::{self, Target};
use crate::data::STORE;
use crate::transfer::Export;
use crate::{Failure, services};

/// What to restore: `container:ACCOUNT/NAME`, or `table`, `queue` or `share`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Only {
    service: ServiceKind,
    account: String,
    name: String,
}

impl FromStr for Only {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(kind, name)| {
            let service = match kind {
                "container" => ServiceKind::Blob,
                "table" => ServiceKind::Table,
                "queue" => ServiceKind::Queue,
                "share" => ServiceKind::File,
                _ => return None,
            };
            let (account, name) = name.split_once('/')?;
            let is_name = !account.is_empty() && !name.is_empty() && !name.contains('/');
            is_name.then(|| Self { service, account: account.into(), name: name.into() })
        });
        parsed.ok_or_else(|| "expected container:ACCOUNT/NAME, or table, queue or share in its place".into())
    }
}

/// Restores one object into the server of `data`. `target` is a name, or an account and a name.
pub(super) fn run(
    repository: Repository,
    manifest: Manifest,
    data: &Path,
    only: &Only,
    target: &str,
) -> Result<(), Failure> {
    let (account, name) = target.split_once('/').unwrap_or((&only.account, target));
    let wanted = Target { service: only.service, account: account.into(), name: name.into() };
    let folder = tempfile::tempdir().map_err(Failure::failed)?;
    let progress = ProgressBar::new(manifest.chunks().count() as u64);
    write_files(&repository, &manifest, folder.path(), &progress, |path| !is_segment(path))?;
    progress.finish_and_clear();
    let reader = StoreReader::open(&folder.path().join(STORE)).map_err(Failure::failed)?;
    let found = find(&reader, only)?;
    let extents = Arc::new(LazyExtents::new(repository, manifest, folder.path())?);
    let counts = control::restore(data, &wanted, |out| {
        let mut export = Export::new(extents, out)?;
        send(&reader, &found, &mut export).map_err(Failure::failed)?;
        export.finish()
    })?;
    println!(
        "restored {account}/{name}: {} rows, {} of content",
        HumanCount(counts.rows),
        HumanBytes(counts.bytes)
    );
    Ok(())
}

/// Writes an object: its space, its rows of the directory, then all of its rows.
fn send(reader: &StoreReader, found: &Found, export: &mut Export<'_>) -> Result<(), ReadError> {
    let mut put = |item: Item| export.item(item).map_err(ReadError::Io);
    let header = reader.header(found.space)?;
    let header = header.ok_or_else(|| ReadError::Damaged("its space has no header".into()))?;
    put(Item::Space { space: found.space, header, token: Token(Stamp::from_ticks(0)) })?;
    for (partition, row) in &found.rows {
        put(Item::Row { space: SpaceId::ROOT, partition: partition.clone(), row: row.clone() })?;
    }
    reader.rows(found.space, |partition, row| put(Item::Row { space: found.space, partition, row }))
}

/// An object of a backup.
struct Found {
    space: SpaceId,
    /// Its row in the directory, and those of its snapshots.
    rows: Vec<(bytes::Bytes, Row)>,
}

fn find(reader: &StoreReader, only: &Only) -> Result<Found, Failure> {
    let (account_partition, account_key) = place_of_account(&only.account);
    let (mut generation, mut candidates) = (None, vec![]);
    let name = match only.service {
        ServiceKind::Table => only.name.to_ascii_lowercase(),
        _ => only.name.clone(),
    };
    let (kind, ends) = (keys::kind(only.service.name()), format!("/{name}"));
    let read = reader.rows(SpaceId::ROOT, |partition, row| {
        if partition == account_partition && row.key == account_key {
            generation = account_of_row(&partition, &row.key, &row.value).map(|account| account.generation);
        } else if partition.starts_with(&kind) && partition.ends_with(ends.as_bytes()) {
            candidates.push((partition, row));
        }
        Ok(())
    });
    read.map_err(Failure::failed)?;
    let missing = |what: String| Failure::Failed(format!("the backup has no {what}"));
    let generation = generation.ok_or_else(|| missing(format!("account {}", only.account)))?;
    let wanted = format!("{}/{}/{generation:016x}/{name}", only.service.name(), only.account);
    candidates.retain(|(partition, _)| partition == wanted.as_bytes());
    let current = candidates.iter().find(|(_, row)| row.key == keys::CURRENT);
    let space = current.and_then(|(partition, row)| services::space_named_by(partition, row));
    let space = space.ok_or_else(|| missing(format!("{} in account {}", only.name, only.account)))?;
    candidates.retain(|(_, row)| {
        let snapshot = keys::snapshot_parts(&row.key);
        row.key == keys::CURRENT || snapshot.is_some_and(|(of, _)| of == space)
    });
    Ok(Found { space, rows: candidates })
}

/// Where the data directory of the server is.
pub(super) fn data_of(data: Option<PathBuf>) -> PathBuf {
    data.unwrap_or_else(|| "lazuli-data".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_restore_is_a_kind_an_account_and_a_name() {
        let only =
            |service, account: &str, name: &str| Only { service, account: account.into(), name: name.into() };
        for (text, expected) in [
            ("container:acc/con", Some(only(ServiceKind::Blob, "acc", "con"))),
            ("table:acc/Tab", Some(only(ServiceKind::Table, "acc", "Tab"))),
            ("queue:acc/q", Some(only(ServiceKind::Queue, "acc", "q"))),
            ("share:acc/s", Some(only(ServiceKind::File, "acc", "s"))),
            ("acc/con", None),
            ("blob:acc/con", None),
            ("container:acc", None),
            ("container:acc/", None),
            ("container:acc/con/blob", None),
        ] {
            assert_eq!(text.parse::<Only>().ok(), expected, "{text}");
        }
    }
}
