//! Imports the folder of a stopped Azurite: blobs of all types with snapshots, queues with messages, tables
//! with entities, and the properties of the services.
//!
//! The databases are read several times, each time for one kind of document, because what a document needs
//! may come later in the file. Documents of one blob, queue or table always go to the same worker, so they
//! are imported in the order of the file.

mod blobs;
mod document;
mod folder;
mod queues;
mod service_properties;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::mpsc;

pub use document::Chunk;
use document::SignedIdentifier;
pub use folder::{Database, Folder, FolderError};

use crate::calls::{element, encode, header, metadata, now_milliseconds, unix_milliseconds};
use crate::destination::{Connections, Destination};
use crate::report::{ImportProgress, ImportReport};

/// Number of requests in flight.
const WORKERS: usize = 16;
/// Number of documents that wait for a worker.
const WAITING_DOCUMENTS: usize = 64;

/// Returns the names of the accounts in a folder.
pub fn accounts(folder: &Folder) -> Result<BTreeSet<String>, FolderError> {
    let mut names = BTreeSet::new();
    for database in [Database::Blob, Database::Queue, Database::Table] {
        folder.documents(database, |_, document| {
            let name = document.get("accountName").or_else(|| document.get("account"));
            if let Some(name) = name.and_then(Value::as_str) {
                names.insert(name.to_owned());
            }
            true
        })?;
    }
    Ok(names)
}

/// State that all workers share.
struct Import {
    folder: Folder,
    destination: Destination,
    progress: Arc<ImportProgress>,
}

/// Imports a folder. Objects that cannot be imported are in the report.
pub async fn import(
    folder: Folder,
    destination: Destination,
    progress: Arc<ImportProgress>,
) -> Result<ImportReport, FolderError> {
    let import = Arc::new(Import { folder, destination, progress });
    blobs::import(&import).await?;
    queues::import(&import).await?;
    tables::import(&import).await?;
    Ok(import.progress.report())
}

/// A step of the import: which documents it takes, and what a worker does with one.
trait Step: Send + Sync + 'static {
    type Document: Send + 'static;

    /// Returns the document with the key that decides about its worker, or `None` if the step ignores it.
    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, Self::Document)>;

    /// Imports a document.
    fn run(
        &self,
        import: &Import,
        connections: &mut Connections,
        document: Self::Document,
    ) -> impl Future<Output = ()> + Send;
}

/// Reads a database and lets the workers run the step on its documents.
async fn run_step<S: Step>(import: &Arc<Import>, database: Database, step: S) -> Result<(), FolderError> {
    let step = Arc::new(step);
    let mut queues = vec![];
    let mut workers = vec![];
    for _ in 0..WORKERS {
        let (sender, mut documents) = mpsc::channel(WAITING_DOCUMENTS);
        let (import, step) = (import.clone(), step.clone());
        queues.push(sender);
        workers.push(tokio::spawn(async move {
            let mut connections = Connections::new(&import.destination);
            while let Some(document) = documents.recv().await {
                step.run(&import, &mut connections, document).await;
            }
        }));
    }
    let reader = import.clone();
    let read = tokio::task::spawn_blocking(move || {
        reader.folder.documents(database, |collection, document| {
            let Some((key, document)) = step.select(&reader, collection, document) else { return true };
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            let worker = hasher.finish() as usize % queues.len();
            queues[worker].blocking_send(document).is_ok()
        })
    });
    let read = read.await;
    for worker in workers {
        if let Err(panicked) = worker.await {
            import.progress.left_out("a worker", panicked);
        }
    }
    read.unwrap_or_else(|panicked| {
        import.progress.left_out("the reader", panicked);
        Ok(())
    })
}

impl Import {
    /// Converts a document. Records it as left out if its shape is unknown.
    fn parse<T: DeserializeOwned>(&self, collection: &str, document: Value) -> Option<T> {
        match serde_json::from_value(document) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.progress.left_out(format_args!("a document of {collection}"), error);
                None
            }
        }
    }
}

/// Returns the body of a request that sets stored access policies.
fn access_policies(identifiers: &[SignedIdentifier]) -> Bytes {
    let mut xml = String::from("<SignedIdentifiers>");
    for identifier in identifiers {
        xml += "<SignedIdentifier>";
        element(&mut xml, "Id", &identifier.id);
        xml += "<AccessPolicy>";
        let policy = &identifier.policy;
        for (name, value) in
            [("Start", &policy.start), ("Expiry", &policy.expiry), ("Permission", &policy.permission)]
        {
            if let Some(value) = value {
                element(&mut xml, name, value);
            }
        }
        xml += "</AccessPolicy></SignedIdentifier>";
    }
    xml += "</SignedIdentifiers>";
    xml.into()
}

/// Counts objects whose metadata has names with capital letters: the client sends names in lower case.
fn count_lost_capitals(import: &Import, metadata: Option<&BTreeMap<String, String>>) {
    let has_capitals = |name: &String| name.contains(|c: char| c.is_ascii_uppercase());
    if metadata.into_iter().flatten().any(|(name, _)| has_capitals(name)) {
        import.progress.lost("capital letters in names of metadata");
    }
}

#[cfg(test)]
mod tests {
    use super::document::AccessPolicy;
    use super::*;

    #[test]
    fn access_policies_are_escaped_and_leave_out_what_is_absent() {
        let policy = AccessPolicy { permission: Some("r".into()), ..AccessPolicy::default() };
        let xml = access_policies(&[SignedIdentifier { id: "a<b".into(), policy }]);
        let expected = "<SignedIdentifiers><SignedIdentifier><Id>a&lt;b</Id><AccessPolicy>\
                        <Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>";
        assert_eq!(xml, expected);
    }
}
