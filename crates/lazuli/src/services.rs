//! Which services this program has. One line each in [`behind`] and in [`readers`], and those whose rows refer to content in
//! [`content_readers`]: content that no reader knows of would be freed by the next sweep.

use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_blob::{BlobRows, BlobService};
use lazuli_copy::{CopySources, Neighbours};
use lazuli_file::{FileRows, FileService};
use lazuli_generations::content::ContentReader;
use lazuli_protocol::{Service, ServiceKind};
use lazuli_queue::{QueueRows, QueueService};
use lazuli_store::{Row, SpaceId};
use lazuli_table::{TableRows, TableService};

use crate::data::Data;
use crate::records::{Contents, RecordReader};

/// The service behind an endpoint; without one it answers what all services have in common, and 501 to the rest.
pub(crate) fn behind(kind: ServiceKind, services: &Services) -> Option<Arc<dyn Service>> {
    match kind {
        ServiceKind::Blob => Some(Arc::new(services.blob.clone())),
        ServiceKind::Table => Some(Arc::new(services.table.clone())),
        ServiceKind::Queue => Some(Arc::new(services.queue.clone())),
        ServiceKind::File => Some(Arc::new(services.file.clone())),
    }
}

/// The services of one data directory.
pub(crate) struct Services {
    pub(crate) blob: BlobService,
    pub(crate) queue: QueueService,
    pub(crate) table: TableService,
    pub(crate) file: FileService,
    /// Where they are reached, as copies have to know.
    pub(crate) neighbours: Neighbours,
}

impl Services {
    /// All services on these rows and bytes.
    pub(crate) fn new(data: &Data, accounts: &AccountDirectory, sources: CopySources) -> Self {
        let extents = Arc::new(data.extents.clone());
        let blob = BlobService::new(data.store.clone(), extents.clone(), accounts.clone());
        let table = TableService::new(data.store.clone(), accounts.clone());
        let queue = QueueService::new(data.store.clone(), accounts.clone());
        let file = FileService::new(data.store.clone(), extents, accounts.clone());
        // Each may copy from the other, as it is without copies of its own.
        let neighbours = Neighbours::new([
            (ServiceKind::Blob, Arc::new(blob.clone()) as Arc<dyn Service>),
            (ServiceKind::File, Arc::new(file.clone())),
        ]);
        let sources = CopySources { neighbours: neighbours.clone(), ..sources };
        let (blob, file) = (blob.with_copy_sources(sources.clone()), file.with_copy_sources(sources));
        Self { blob, queue, table, file, neighbours }
    }
}

/// The space that a row of the directory names, whichever service it is of.
pub(crate) fn space_named_by(partition: &[u8], row: &Row) -> Option<SpaceId> {
    [BlobRows::named_space, QueueRows::named_space, TableRows::named_space, FileRows::named_space]
        .iter()
        .find_map(|named_space| named_space(partition, row))
}

/// Readers of the rows that refer to content. Rows outside the directory say by the first byte of their partition key whose
/// they are, and no two services share one.
pub(crate) const fn content_readers() -> [ContentReader; 2] {
    [lazuli_blob::content_of_row, lazuli_file::content_of_row]
}

/// Everybody who can read rows, fresh for one walk over all of them.
pub(crate) fn readers() -> Vec<Box<dyn RecordReader>> {
    vec![
        Box::new(AccountRows),
        Box::new(BlobRecords::default()),
        Box::new(QueueRecords::default()),
        Box::new(TableRecords::default()),
        Box::new(FileRecords::default()),
    ]
}

/// Accounts refer to no content.
struct AccountRows;

impl RecordReader for AccountRows {
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String> {
        if space == SpaceId::ROOT {
            lazuli_account::check_row(partition, &row.key, &row.value)?;
        }
        Ok(Contents::new())
    }
}

#[derive(Default)]
struct BlobRecords(BlobRows);

impl RecordReader for BlobRecords {
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String> {
        self.0.contents(space, partition, row).map_err(|damage| describe(partition, row, damage))
    }
}

#[derive(Default)]
struct QueueRecords(QueueRows);

impl RecordReader for QueueRecords {
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String> {
        let checked = self.0.check(space, partition, row);
        checked.map(|()| Contents::new()).map_err(|damage| describe(partition, row, damage))
    }
}

#[derive(Default)]
struct TableRecords(TableRows);

impl RecordReader for TableRecords {
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String> {
        let checked = self.0.check(space, partition, row);
        checked.map(|()| Contents::new()).map_err(|damage| describe(partition, row, damage))
    }
}

#[derive(Default)]
struct FileRecords(FileRows);

impl RecordReader for FileRecords {
    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Contents, String> {
        let found = self.0.contents(space, partition, row);
        found.map(|content| content.into_iter().collect()).map_err(|damage| describe(partition, row, damage))
    }
}

fn describe(partition: &[u8], row: &Row, damage: impl std::fmt::Display) -> String {
    format!("row {:?} of {:?}: {damage}", row.key, String::from_utf8_lossy(partition))
}
