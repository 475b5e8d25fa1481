//! Finds and changes the blob that a request addresses. [`target`] finds it, and [`replace`] is the write
//! path of all operations that create a whole blob. Changes of content are in [`crate::content::edit`].

mod holds;
pub(crate) mod protection;
pub(crate) mod replace;
pub(crate) mod target;

use lazuli_protocol::{Account, Refusal, ServiceKind};

use crate::BlobService;
use crate::rules::history::History;

impl BlobService {
    /// Returns the current retention of an account. Call this after the body was received: a request that
    /// began before soft delete was turned on must not destroy what it replaces afterwards.
    pub(crate) async fn history(&self, account: &Account) -> Result<History, Refusal> {
        let properties = self.accounts.properties(&account.name, ServiceKind::Blob).await?;
        Ok(History::of(&account.settings, &properties))
    }
}
