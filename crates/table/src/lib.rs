//! The table service: tables, entities, queries and entity group transactions.
//!
//! A handler reads the request, runs a rule in a transaction on one partition, and replies.
//! [`TableService::call`] is the table of contents. Below the handlers, [`address`] and [`mod@format`] read
//! addresses and headers, [`filter`] parses and evaluates `$filter`, [`columns`] evaluates filters on rows in
//! memory, [`json`] reads and writes bodies, [`entity`] and [`value`] define what rows hold, and [`keys`]
//! defines their keys.
//!
//! Concurrency control is optimistic: update, merge and delete may name the version that they change.

mod address;
mod authorization;
mod batch;
mod columns;
mod continuation;
mod entity;
mod filter;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod get;
mod json;
mod keys;
mod names;
mod query;
mod query_tables;
mod restore;
mod rows;
mod table;
mod value;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Pace;
use lazuli_generations::{Generations, Swept};
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::{Account, ErrorCode, Operation, Refusal, Request, Response, Service};
use lazuli_service::Rows;
use lazuli_store::Store;

pub use rows::TableRows;

use table::Table;

/// The table service on a store. Clones share their state.
#[derive(Clone)]
pub struct TableService {
    store: Arc<dyn Store>,
    rows: Rows,
    tables: Generations<Table>,
}

impl TableService {
    /// Creates the service for the given accounts.
    pub fn new(store: Arc<dyn Store>, accounts: AccountDirectory) -> Self {
        let tables = Generations::new(store.clone(), accounts);
        let rows = Rows::new(store.clone(), ErrorCode::TableNotFound);
        Self { store, rows, tables }
    }

    /// Returns the number of transaction attempts that had to be repeated.
    pub fn retries(&self) -> u64 {
        self.rows.retries() + self.tables.retries()
    }

    /// Returns the number of transactions that wait for others.
    pub fn waiting(&self) -> usize {
        self.rows.waiting() + self.tables.waiting()
    }

    /// Returns the number of spaces that are being filled before they have a name.
    pub fn incoming_spaces(&self) -> usize {
        self.tables.incoming_spaces()
    }

    /// Returns whether [`TableService::sweep`] may find garbage.
    pub fn sweep_due(&self) -> bool {
        self.tables.sweep_due()
    }

    /// Removes the rows of deleted tables. The future may be dropped at any point.
    pub async fn sweep(&self, pace: Pace) -> Result<Swept, Refusal> {
        self.tables.sweep(pace, &()).await
    }
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
}
