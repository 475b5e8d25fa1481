//! Reads the folder of a stopped Azurite.
//!
//! Its databases are JSON of LokiJS, `{"collections":[{"name":…,"data":[…]},…]}`, up to hundreds of
//! megabytes in one line. They are streamed: one document at a time is in memory. Content is in chunks of the
//! files of `__blobstorage__` and `__queuestorage__`.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::document::Chunk;

/// The identifier of chunks that consist of zeros and are not stored.
const ZEROS: &str = "*ZERO*";
/// Maximum number of bytes that are read at once: the longest block of the protocol.
const MAX_READ: usize = 4000 << 20;

/// A folder of Azurite.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

/// A database of Azurite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// Containers, blobs, blocks.
    Blob,
    /// Queues, messages.
    Queue,
    /// Tables, entities.
    Table,
}

/// Why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is no database of Azurite.
    #[error("{}: there is no __azurite_db_blob__.json, __azurite_db_queue__.json or __azurite_db_table__.json", .0.display())]
    Empty(PathBuf),
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A database is not what LokiJS writes.
    #[error("{}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: serde_json::Error,
    },
}

impl Folder {
    /// Opens a folder that holds at least one database.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let folder = Self(path.to_owned());
        let databases = [Database::Blob, Database::Queue, Database::Table];
        if databases.iter().all(|database| !folder.database(*database).exists()) {
            return Err(FolderError::Empty(path.to_owned()));
        }
        Ok(folder)
    }

    /// Passes every document of a database to `on_document`, in the order of the file, with the name of its
    /// collection. Stops early if `on_document` returns false. A missing database has no documents.
    pub fn documents(
        &self,
        database: Database,
        mut on_document: impl FnMut(&str, Value) -> bool,
    ) -> Result<(), FolderError> {
        let path = self.database(database);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(FolderError::Unreadable { path, error }),
        };
        let mut reader = serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 20, file));
        let mut go_on = true;
        let mut sink = |collection: &str, document| {
            go_on = go_on && on_document(collection, document);
        };
        reader.deserialize_map(Top(&mut sink)).map_err(|error| FolderError::Malformed { path, error })
    }

    /// Reads a part of a chunk of blob content.
    pub fn blob_content(&self, chunk: &Chunk, from: u64, length: usize) -> io::Result<Bytes> {
        self.read("__blobstorage__", chunk, from, length)
    }

    /// Reads the text of a message.
    pub fn message_text(&self, chunk: &Chunk) -> io::Result<Bytes> {
        self.read("__queuestorage__", chunk, 0, usize::try_from(chunk.count).unwrap_or(usize::MAX))
    }

    fn read(&self, storage: &str, chunk: &Chunk, from: u64, length: usize) -> io::Result<Bytes> {
        // A damaged database must not decide how much memory is taken.
        if length > MAX_READ {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the chunk is too long"));
        }
        if chunk.id == ZEROS {
            return Ok(vec![0; length].into());
        }
        // The identifier comes from the database and must not lead out of the folder.
        if chunk.id.is_empty() || chunk.id.contains(['/', '\\']) || chunk.id.starts_with('.') {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the chunk has an invalid identifier"));
        }
        let file = File::open(self.0.join(storage).join(&chunk.id))?;
        let start = chunk.offset.saturating_add(from);
        if start.saturating_add(length as u64) > file.metadata()?.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }

    fn database(&self, database: Database) -> PathBuf {
        let name = match database {
            Database::Blob => "blob",
            Database::Queue => "queue",
            Database::Table => "table",
        };
        self.0.join(format!("__azurite_db_{name}__.json"))
    }
}

type Sink<'a> = &'a mut dyn FnMut(&str, Value);

/// The whole file: a map whose field `collections` is a list.
struct Top<'a>(Sink<'a>);
/// The list of collections.
struct Collections<'a>(Sink<'a>);
/// A collection: a map with `name` before `data`.
struct Collection<'a>(Sink<'a>);
/// The documents of a collection.
struct Documents<'a>(&'a str, Sink<'a>);

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a database of LokiJS")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key::<String>()? {
            if field == "collections" {
                map.next_value_seed(Collections(self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Collections<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Collections<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of collections")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(Collection(&mut *self.0))?.is_some() {}
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Collection<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Collection<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a collection")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut name: Option<String> = None;
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "name" => name = Some(map.next_value()?),
                "data" => {
                    let name = name.as_deref().ok_or_else(|| A::Error::missing_field("name"))?;
                    map.next_value_seed(Documents(name, &mut *self.0))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Documents<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Documents<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(document) = list.next_element()? {
            (self.1)(self.0, document);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn folder(blob: &str) -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("__azurite_db_blob__.json"), blob).unwrap();
        let folder = Folder::open(dir.path()).unwrap();
        (dir, folder)
    }

    #[test]
    fn documents_come_with_the_name_of_their_collection() {
        let text = r#"{"filename":"x","collections":[{"name":"a","data":[1,{"b":[2]}],"idIndex":[1]},{"name":"c","data":[]}],"ENV":"NODEJS"}"#;
        let (_dir, folder) = folder(text);
        let mut seen = vec![];
        folder
            .documents(Database::Blob, |collection, document| {
                seen.push(format!("{collection} {document}"));
                true
            })
            .unwrap();
        assert_eq!(seen, ["a 1", r#"a {"b":[2]}"#]);
        folder.documents(Database::Queue, |_, _| panic!("there is no such database")).unwrap();
    }

    #[test]
    fn truncated_and_foreign_files_are_reported() {
        for text in
            ["", "[]", r#"{"collections":[{"data":[1]}]}"#, r#"{"collections":[{"name":"a","data":[1"#]
        {
            let (_dir, folder) = folder(text);
            let read = folder.documents(Database::Blob, |_, _| true);
            assert!(matches!(read, Err(FolderError::Malformed { .. })), "{text}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(matches!(Folder::open(empty.path()), Err(FolderError::Empty(_))));
    }

    #[test]
    fn content_is_a_part_of_a_file_or_zeros_and_never_outside_of_the_folder() {
        let (dir, folder) = folder("{}");
        std::fs::create_dir(dir.path().join("__blobstorage__")).unwrap();
        std::fs::write(dir.path().join("__blobstorage__/one"), b"0123456789").unwrap();
        let chunk = |id: &str| Chunk { id: id.into(), offset: 2, count: 5 };
        assert_eq!(folder.blob_content(&chunk("one"), 1, 3).unwrap(), "345");
        assert_eq!(folder.blob_content(&chunk(ZEROS), 0, 2).unwrap(), "\0\0");
        for id in ["../__azurite_db_blob__.json", "..", "", "/etc/hostname", "missing"] {
            assert!(folder.blob_content(&chunk(id), 0, 1).is_err(), "{id}");
        }
        assert!(folder.blob_content(&chunk("one"), 5, 20).is_err(), "the file is too short");
        for id in ["one", ZEROS] {
            assert!(folder.blob_content(&chunk(id), 0, usize::MAX).is_err(), "{id}");
        }
    }
}
