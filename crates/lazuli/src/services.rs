//! The services of this program. Each service appears in [`Services::get`] and [`readers`]. Services whose
//! rows refer to content also appear in [`content_readers`]: the sweep frees content that no reader reports.

use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_blob::{BlobRows, BlobService};
use lazuli_content::sweep::ContentReader;
use lazuli_copy::{CopySources, LocalServices};
use lazuli_extents::{Content, Extents};
use lazuli_file::{FileRows, FileService};
use lazuli_protocol::watch::RequestWatch;
use lazuli_protocol::{Service, ServiceKind};
use lazuli_queue::{QueueRows, QueueService};
use lazuli_service::Damage;
use lazuli_store::{Row, SpaceId, Store};
use lazuli_table::{TableRows, TableService};

/// The services of one server.
pub(crate) struct Services {
    pub(crate) blob: BlobService,
    pub(crate) queue: QueueService,
    pub(crate) table: TableService,
    pub(crate) file: FileService,
    /// The services as copy sources, with their ports.
    pub(crate) local_services: LocalServices,
}

impl Services {
    /// Creates all services.
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        extents: &Arc<dyn Extents>,
        accounts: &AccountDirectory,
        sources: CopySources,
        watch: &Arc<RequestWatch>,
    ) -> Self {
        let blob = BlobService::new(store.clone(), extents.clone(), accounts.clone());
        let table = TableService::new(store.clone(), accounts.clone());
        let queue = QueueService::new(store.clone(), accounts.clone()).with_watch(watch.clone());
        let file = FileService::new(store.clone(), extents.clone(), accounts.clone());
        // Each may copy from the other. The sources are instances without copy sources, which avoids a cycle.
        let local_services = LocalServices::new([
            (ServiceKind::Blob, Arc::new(blob.clone()) as Arc<dyn Service>),
            (ServiceKind::File, Arc::new(file.clone())),
        ]);
        let sources = CopySources { local_services: local_services.clone(), ..sources };
        let (blob, file) = (blob.with_copy_sources(sources.clone()), file.with_copy_sources(sources));
        Self { blob, queue, table, file, local_services }
    }

    /// Returns the service of that kind.
    pub(crate) fn get(&self, kind: ServiceKind) -> Arc<dyn Service> {
        match kind {
            ServiceKind::Blob => Arc::new(self.blob.clone()),
            ServiceKind::Table => Arc::new(self.table.clone()),
            ServiceKind::Queue => Arc::new(self.queue.clone()),
            ServiceKind::File => Arc::new(self.file.clone()),
        }
    }
}

/// Returns the space that a row of the directory names, for any service.
pub(crate) fn space_named_by(partition: &[u8], row: &Row) -> Option<SpaceId> {
    [BlobRows::named_space, QueueRows::named_space, TableRows::named_space, FileRows::named_space]
        .iter()
        .find_map(|named_space| named_space(partition, row))
}

/// Returns the readers of rows that refer to content. Outside the directory, the first byte of a partition
/// key identifies the service; no two services share a byte.
pub(crate) const fn content_readers() -> [ContentReader; 2] {
    [lazuli_blob::content_of_row, lazuli_file::content_of_row]
}

/// Reads rows of one service during a scan of the whole store. Returns the content that a row refers to, none
/// for a row of another service, or a description of the damage. Rows must come in order of space, partition
/// and key, so the directory of accounts comes first.
pub(crate) type RowReader = Box<dyn FnMut(SpaceId, &[u8], &Row) -> Result<Vec<Content>, String> + Send>;

/// Returns the readers of all services, for one scan.
pub(crate) fn readers() -> [RowReader; 5] {
    let (mut blobs, mut queues) = (BlobRows::default(), QueueRows::default());
    let (mut tables, mut files) = (TableRows::default(), FileRows::default());
    [
        Box::new(|space, partition, row| match space {
            SpaceId::ROOT => lazuli_account::check_row(partition, &row.key, &row.value)
                .and_then(|()| lazuli_console::check_row(partition, &row.value))
                .map(|()| vec![]),
            _ => Ok(vec![]),
        }),
        describing(move |space, partition, row| blobs.contents(space, partition, row)),
        describing(move |space, partition, row| queues.check(space, partition, row).map(|()| vec![])),
        describing(move |space, partition, row| tables.check(space, partition, row).map(|()| vec![])),
        describing(move |space, partition, row| {
            files.contents(space, partition, row).map(|content| content.into_iter().collect())
        }),
    ]
}

/// Wraps a reader so that its error names the damaged row.
fn describing(
    mut read: impl FnMut(SpaceId, &[u8], &Row) -> Result<Vec<Content>, Damage> + Send + 'static,
) -> RowReader {
    Box::new(move |space, partition, row| {
        read(space, partition, row).map_err(|damage| {
            format!("row {:?} of {:?}: {damage}", row.key, String::from_utf8_lossy(partition))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::process::Command;

    use bytes::Bytes;
    use lazuli_store::embedded;

    use super::*;

    // A damaged row of a queue or a table must not keep content from being freed.
    #[test]
    fn only_rows_that_may_refer_to_content_take_part_in_sweeps() {
        let dir = tempfile::tempdir().unwrap();
        let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-1.tar.gz");
        let status = Command::new("tar").args(["-xzf", archive, "-C"]).arg(dir.path()).status().unwrap();
        assert!(status.success());
        let data = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let data = data.chain([dir.path().to_owned()]).find(|path| path.join("store").is_dir()).unwrap();
        let (mut kinds, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let visit = |space, partition: &Bytes, row: &Row| {
            if let Some(named) = space_named_by(partition, row) {
                let kind = partition.split(|byte| *byte == b'/').next().unwrap();
                kinds.insert(named, String::from_utf8(kind.to_vec()).unwrap());
            }
            let damaged = Row { value: Bytes::from_static(b"\xFF\xFF"), ..row.clone() };
            let found =
                content_readers().map(|read| read(space, partition, &damaged).map(|found| found.len()));
            let kind = kinds.get(&space).map_or("", String::as_str);
            let takes_part = found.iter().any(Result::is_err);
            assert!(found.iter().all(|found| found.as_ref().is_ok_and(|found| *found == 0)) || takes_part);
            assert!(!takes_part || matches!(kind, "blob" | "file"), "{kind} {partition:?} {row:?}");
            seen.insert((kind.to_owned(), takes_part));
            Ok(())
        };
        embedded::check(&data.join("store"), visit).unwrap();
        for expected in [("", false), ("blob", true), ("file", true), ("queue", false), ("table", false)] {
            assert!(seen.contains(&(expected.0.to_owned(), expected.1)), "{expected:?} of {seen:?}");
        }
    }
}
