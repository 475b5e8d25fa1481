//! Sessions: who has logged in, and what they have connected to and opened.

use std::collections::HashMap;
use std::sync::Arc;

use lazuli_file::native::Tree;
use lazuli_protocol::Account;
use parking_lot::Mutex;

use crate::open::{FileId, Open};

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) account: Arc<Account>,
    trees: Mutex<HashMap<u32, Arc<TreeConnect>>>,
    opens: Mutex<HashMap<u64, Arc<Open>>>,
}

/// A share that a session is connected to.
#[derive(Debug)]
pub(crate) struct TreeConnect {
    pub(crate) id: u32,
    /// None is the share of pipes.
    pub(crate) tree: Option<Tree>,
}

impl Session {
    /// An open of this session.
    pub(crate) fn open(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().get(&id.volatile).filter(|open| open.id == id).cloned()
    }

    /// Adds an open.
    pub(crate) fn add(&self, open: Arc<Open>) {
        self.opens.lock().insert(open.id.volatile, open);
    }

    /// Takes an open away.
    pub(crate) fn remove(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().remove(&id.volatile)
    }
}
