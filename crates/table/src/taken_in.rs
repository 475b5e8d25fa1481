//! Takes in tables of another store, for a restore.

use async_trait::async_trait;
use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_generations::{Damage, Generation, Incoming, Intake};
use lazuli_protocol::{Account, Refusal, names};

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
        name: &str,
        value: &Bytes,
        _: Vec<(Stamp, Bytes)>,
    ) -> Result<(), Refusal> {
        let table = Table::decode(value)?;
        self.tables
            .finish_incoming(incoming, |space, _, _| {
                Ok((Table { space, name: name.to_owned(), ..table.clone() }, vec![]))
            })
            .await
    }

    fn look_for_garbage(&self) {
        self.tables.look_for_garbage();
    }
}
