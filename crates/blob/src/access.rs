//! How operations find and change the blob that a request addresses: [`target`] finds it, [`replace`] is the
//! write path of everything that makes a whole blob. Changes of content are in [`crate::content::edit`].

mod keep;
pub(crate) mod protection;
pub(crate) mod replace;
pub(crate) mod target;

use lazuli_protocol::{Account, Refusal, ServiceKind};

use crate::BlobService;
use crate::rules::history::History;

impl BlobService {
    /// Returns the retention that an account wants now. Call it after the body was received: a request that
    /// began before soft delete was turned on must not destroy what it replaces afterwards.
    pub(crate) async fn history(&self, account: &Account) -> Result<History, Refusal> {
        let properties = self.accounts.properties(&account.name, ServiceKind::Blob).await?;
        Ok(History::of(&account.settings, &properties))
    }
}
