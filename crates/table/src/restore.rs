//! Imports tables of another store, for a restore.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_generations::{Generation, Incoming, Intake, Original};
use lazuli_protocol::{Account, Refusal, names};
use lazuli_service::Damage;

use crate::TableService;
use crate::table::{Table, folded};

#[async_trait]
impl Intake for TableService {
    async fn begin(&self, account: &Account, name: &str, epoch: u64) -> Result<Incoming, Refusal> {
        names::check_table(name)?;
        self.tables.begin_incoming(account, &folded(name), epoch).await
    }

    fn value(&self, _: &[u8], _: &[u8], value: Bytes) -> Result<Bytes, Damage> {
        Ok(value)
    }

    async fn finish(
        &self,
        incoming: Incoming,
        renamed: Option<&str>,
        original: Original,
    ) -> Result<(), Refusal> {
        let table = Table::decode(&original.value)?;
        self.tables
            .finish_incoming(incoming, original.deleted, |space, _, _| {
                let name = renamed.map_or_else(|| table.name.clone(), str::to_owned);
                Ok((Table { space, name, ..table.clone() }, vec![]))
            })
            .await
    }

    fn schedule_sweep(&self) {
        self.tables.schedule_sweep();
    }
}
