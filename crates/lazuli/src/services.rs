//! Which services this program has. One line each in [`behind`] and in [`readers`], and the two go together: content
//! that no reader knows of would be freed by the next sweep.

use std::sync::Arc;

use lazuli_protocol::{Service, ServiceKind};
use lazuli_store::{Row, SpaceId};

use crate::data::Data;
use crate::records::{Contents, RecordReader};

/// The service behind an endpoint; without one it answers what all services have in common, and 501 to the rest.
pub(crate) fn behind(kind: ServiceKind, _data: &Data) -> Option<Arc<dyn Service>> {
    match kind {
        ServiceKind::Blob | ServiceKind::Queue | ServiceKind::Table | ServiceKind::File => None,
    }
}

/// Everybody who can read rows, fresh for one walk over all of them.
pub(crate) fn readers() -> Vec<Box<dyn RecordReader>> {
    vec![Box::new(AccountRows)]
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
