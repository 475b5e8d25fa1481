//! Imports shares of another store, for a restore.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::{FileLease, Lease, Stamp};
use lazuli_generations::{Generation, Incoming, Intake, Original};
use lazuli_protocol::{Account, Refusal, names};
use lazuli_service::Damage;

use crate::FileService;
use crate::tree::keys;
use crate::tree::record::{Node, Share};

#[async_trait]
impl Intake for FileService {
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal> {
        names::check_share(name)?;
        self.shares.begin_incoming(account, name, epoch).await
    }

    fn value(&self, partition: &[u8], key: &[u8], value: Bytes) -> Result<Bytes, Damage> {
        if keys::directory_id(partition).is_none() || !keys::is_child(key) {
            return Ok(value);
        }
        let mut node = Node::decode(&value)?;
        match &mut node.file {
            Some(file) if file.lease != FileLease::AVAILABLE => file.lease = FileLease::AVAILABLE,
            _ => return Ok(value),
        }
        node.encode().map_err(|_| Damage::Undecodable)
    }

    async fn finish(&self, incoming: Incoming, _: Option<&str>, original: Original) -> Result<(), Refusal> {
        let share = Share::decode(&original.value)?;
        let snapshots: Result<Vec<(Stamp, Share)>, Damage> =
            original.snapshots.iter().map(|(stamp, value)| Ok((*stamp, Share::decode(value)?))).collect();
        let snapshots = snapshots?;
        self.shares
            .finish_incoming(incoming, original.deleted, |space, stamp, now| {
                let lease = Lease::AVAILABLE;
                let encoded = snapshots
                    .iter()
                    .map(|(id, snapshot)| Ok((*id, Share { space, lease, ..snapshot.clone() }.encode()?)));
                let encoded: Result<Vec<_>, Refusal> = encoded.collect();
                let (modified, etag) = (now, stamp.into());
                Ok((Share { space, modified, etag, lease, ..share.clone() }, encoded?))
            })
            .await
    }

    fn schedule_sweep(&self) {
        self.shares.schedule_sweep();
    }
}
