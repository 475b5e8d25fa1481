//! Bounds on what all clients together can have of something.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once, and there may be fewer.
const MAX_CONNECTIONS: usize = 4096;
/// Connections that have not logged in.
const MAX_STRANGERS: usize = 1024;
/// Sessions of all connections, those that are being set up included.
const MAX_SESSIONS: usize = 16_384;
/// Connections of sessions to shares.
const MAX_TREES: usize = 65_536;
/// Open files and directories, those that wait for lost clients included.
const MAX_OPENS: usize = 131_072;
/// Open pipes. One holds up to 4 MiB of answers.
const MAX_PIPES: usize = 1024;

/// How much all clients together can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Connections that have not logged in. One more drops the oldest of the peer that has the most.
    pub strangers: usize,
    /// Sessions.
    pub sessions: usize,
    /// Connections of sessions to shares.
    pub trees: usize,
    /// Open files and directories.
    pub opens: usize,
    /// Open pipes.
    pub pipes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: MAX_CONNECTIONS,
            strangers: MAX_STRANGERS,
            sessions: MAX_SESSIONS,
            trees: MAX_TREES,
            opens: MAX_OPENS,
            pipes: MAX_PIPES,
        }
    }
}

/// One of a bounded number of places. Dropping it gives it back.
pub(crate) type Place = OwnedSemaphorePermit;

/// A bounded number of places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    free: Arc<Semaphore>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, free: Arc::new(Semaphore::new(most)) }
    }

    /// Takes a place. None if all are taken.
    pub(crate) fn take(&self) -> Option<Place> {
        self.free.clone().try_acquire_owned().ok()
    }

    /// Returns whether all are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.free.available_permits() == 0
    }

    /// Returns how many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.most - self.free.available_permits()
    }
}
