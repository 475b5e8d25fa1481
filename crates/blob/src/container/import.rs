//! Imports containers of another store, to restore a backup.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Lease;
use lazuli_generations::{Generation, Incoming, Intake, Original};
use lazuli_protocol::{Account, Refusal, names};
use lazuli_service::Damage;

use crate::BlobService;
use crate::model::container::Container;
use crate::model::keys::{self, RowKind};
use crate::model::record::Blob;

#[async_trait]
impl Intake for BlobService {
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal> {
        names::check_container(name)?;
        self.containers.begin_incoming(account, name, epoch).await
    }

    fn value(&self, partition: &[u8], key: &[u8], value: Bytes) -> Result<Bytes, Damage> {
        if keys::blob_name(partition).is_none() || keys::row_kind(key) != Some(RowKind::Base) {
            return Ok(value);
        }
        let mut blob = Blob::decode(&value)?;
        if blob.lease == Lease::AVAILABLE {
            return Ok(value);
        }
        blob.lease = Lease::AVAILABLE;
        blob.encode().map_err(|_| Damage::Undecodable)
    }

    async fn finish(&self, incoming: Incoming, _: Option<&str>, original: Original) -> Result<(), Refusal> {
        let container = Container::decode(&original.value)?;
        self.containers
            .finish_incoming(incoming, original.deleted, |space, stamp, now| {
                let (modified, etag, lease) = (now, stamp.into(), Lease::AVAILABLE);
                Ok((Container { space, modified, etag, lease, ..container.clone() }, vec![]))
            })
            .await
    }

    fn schedule_sweep(&self) {
        self.containers.schedule_sweep();
    }
}
