//! The names of the four services.

use serde::{Deserialize, Serialize};

/// The services. Each has its own endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// Containers and blobs.
    Blob,
    /// Queues and messages.
    Queue,
    /// Tables and entities.
    Table,
    /// Shares, directories and files over REST.
    File,
}

impl ServiceKind {
    /// All services, in the order of their default ports.
    pub const ALL: [Self; 4] = [Self::Blob, Self::Queue, Self::Table, Self::File];

    /// Returns the name used in host names, SAS resources and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Blob => "blob",
            Self::Queue => "queue",
            Self::Table => "table",
            Self::File => "file",
        }
    }
}
