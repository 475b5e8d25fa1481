//! The table service: tables, entities in them, queries and entity group transactions.
//!
//! A handler reads the request, runs a rule inside a transaction on one partition, and answers.
//! [`TableService::call`] is the table of contents. Below the handlers: [`address`] and [`format`] read what a request
//! says, [`filter`] which entities a query is for, [`columns`] finds them in memory, [`json`] reads and writes bodies, [`entity`] and [`value`] are what is stored, [`keys`] says where.
//!
//! Optimistic concurrency is the default here: update, merge and delete name the version that they change.

mod address;
mod allowed;
mod batch;
mod columns;
mod continuation;
mod entity;
mod filter;
mod format;
#[doc(hidden)]
pub mod fuzz;
mod get;
mod json;
mod keys;
mod names;
mod query;
mod query_tables;
mod rows;
mod table;
mod taken_in;
mod value;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_extents::Pace;
use lazuli_generations::{Generations, Swept, unreadable};
use lazuli_protocol::policy::{AccessPolicy, PublicAccess};
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_store::{Decision, Gate, Partition, ReadSet, Reads, Store, View, transact};

pub use rows::TableRows;

use table::Table;

/// The table service on a store. Clones are the same service.
#[derive(Clone)]
pub struct TableService {
    store: Arc<dyn Store>,
    tables: Generations<Table>,
    gate: Arc<Gate>,
}

impl TableService {
    /// The service of these accounts.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let tables = Generations::new(store.clone(), accounts);
        Self { store, tables, gate: Arc::default() }
    }

    /// Attempts of transactions that had to be made again.
    pub fn retries(&self) -> u64 {
        self.gate.retries() + self.tables.retries()
    }

    /// Whether [`TableService::sweep`] may find something to do.
    pub fn sweep_due(&self) -> bool {
        self.tables.sweep_due()
    }

    /// Removes what deleted tables have left behind. May be dropped at any point.
    pub async fn sweep(&self, pace: Pace) -> Result<Swept, Refusal> {
        self.tables.sweep(pace, &()).await
    }

    /// Runs a rule on a partition of a table.
    async fn transact<T>(
        &self,
        partition: &Partition,
        reads: Reads,
        rule: impl FnMut(&View<'_>) -> Result<Decision<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let result = transact(&*self.store, &self.gate, partition, reads, rule).await;
        result.map_err(|error| lazuli_account::refusal(error, table_gone))
    }

    /// Reads rows of a partition, if its table is still there.
    async fn read(&self, partition: &Partition, reads: &Reads) -> Result<ReadSet, Refusal> {
        let set = self.store.read(partition, reads).await.map_err(unreadable)?;
        if set.space.is_some_and(|space| space.open) { Ok(set) } else { Err(table_gone()) }
    }
}

/// The table was deleted while the request was under way.
fn table_gone() -> Refusal {
    ErrorCode::TableNotFound.into()
}

#[async_trait]
impl Service for TableService {
    async fn call(&self, request: Request) -> Result<Response, Refusal> {
        match request.operation {
            Operation::QueryTables if request.object.is_empty() || request.object == "()" => {
                self.query_tables(request).await
            }
            Operation::QueryTables => self.get_table(request).await,
            Operation::CreateTable => self.create_table(request).await,
            Operation::DeleteTable => self.delete_table(request).await,
            Operation::GetTableAcl => self.get_table_acl(request).await,
            Operation::SetTableAcl => self.set_table_acl(request).await,
            Operation::QueryEntities if !request.object.is_empty() && request.object != "()" => {
                self.get_entity(request).await
            }
            Operation::QueryEntities => self.query_entities(request).await,
            Operation::InsertEntity
            | Operation::UpdateEntity
            | Operation::InsertOrReplaceEntity
            | Operation::MergeEntity
            | Operation::InsertOrMergeEntity
            | Operation::DeleteEntity => self.write_entity(request).await,
            Operation::EntityGroupTransaction => self.entity_group_transaction(request).await,
            operation => Err(Refusal::not_implemented(operation.name())),
        }
    }

    async fn access_policy(
        &self,
        account: &Account,
        table: &str,
        id: &str,
    ) -> Result<Option<AccessPolicy>, Refusal> {
        let found = self.tables.find(account, &table::folded(table)).await?;
        Ok(found.and_then(|table| table.policies.get(id).cloned()))
    }

    async fn public_access(&self, _: &Account, _: &str) -> Result<PublicAccess, Refusal> {
        Ok(PublicAccess::None)
    }
}
