//! Renaming what is open.

use super::Failure;
use crate::FileService;
use crate::opens::OpenId;

impl FileService {
    /// Gives an open file or directory another path, in place of what is there if `replace`.
    pub async fn rename_open(&self, id: OpenId, path: &str, replace: bool) -> Result<(), Failure> {
        let _ = (id, path, replace);
        Err(Failure::Failed)
    }
}
