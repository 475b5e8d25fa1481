//! The server: what all connections share.

use std::sync::Arc;

use lazuli_account::AccountDirectory;
use lazuli_file::FileService;

use crate::changes::Changes;

/// How the endpoint behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether sessions have to be encrypted.
    pub require_encryption: bool,
}

/// The endpoint. Clones are the same endpoint.
#[derive(Clone)]
pub struct SmbServer(Arc<Server>);

/// What all connections share.
pub(crate) struct Server {
    pub(crate) files: FileService,
    pub(crate) accounts: AccountDirectory,
    pub(crate) options: Options,
    pub(crate) changes: Arc<Changes>,
}

impl SmbServer {
    /// An endpoint for the shares of these accounts.
    pub fn new(files: FileService, accounts: AccountDirectory, options: Options) -> Self {
        Self(Arc::new(Server { files, accounts, options, changes: Arc::default() }))
    }
}
