//! Imports queues of another store, for a restore.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_generations::{Generation, Incoming, Intake, Original};
use lazuli_protocol::{Account, Refusal, names};
use lazuli_service::Damage;

use crate::QueueService;
use crate::record::Queue;

#[async_trait]
impl Intake for QueueService {
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal> {
        names::check_queue(name)?;
        self.queues.begin_incoming(account, name, epoch).await
    }

    fn value(&self, _: &[u8], _: &[u8], value: Bytes) -> Result<Bytes, Damage> {
        Ok(value)
    }

    async fn finish(&self, incoming: Incoming, _: Option<&str>, original: Original) -> Result<(), Refusal> {
        let queue = Queue::decode(&original.value)?;
        let space = incoming.space();
        self.queues
            .finish_incoming(incoming, original.deleted, |space, _, _| {
                Ok((Queue { space, ..queue.clone() }, vec![]))
            })
            .await?;
        // Some messages may have expired since they were put.
        self.expiry.expect(space, Timestamp::default());
        Ok(())
    }

    fn schedule_sweep(&self) {
        self.queues.schedule_sweep();
    }
}
