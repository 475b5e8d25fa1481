//! Accounts whose rows are lost.
//!
//! The server removes the containers, tables, queues and shares of an account that does not exist. Damage may
//! lose the row of an account that was never removed. Such an account is recreated, disabled and with a new
//! key, so that its data stays.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use lazuli_account::{account_of_row, account_row, random_key};
use lazuli_concurrency::Stamp;
use lazuli_protocol::Account;
use lazuli_store::embedded::Loader;
use lazuli_store::{Row, RowPosition, SpaceId, Token};

use crate::Failure;
use crate::names;

/// The accounts of a damaged directory. Their rows are loaded last, when all owners are known.
#[derive(Default)]
pub(super) struct FoundAccounts {
    rows: BTreeMap<String, FoundAccountRow>,
    /// Accounts and their generations, as partitions of the directory name them.
    owners: BTreeSet<(String, u64)>,
}

struct FoundAccountRow {
    account: Account,
    row: Row,
    is_stale: bool,
}

impl FoundAccounts {
    /// Records the accounts in a row. Returns whether the row is an account's own, which
    /// [`FoundAccounts::load`] loads.
    pub(super) fn take(&mut self, space: SpaceId, partition: &Bytes, row: &Row, is_stale: bool) -> bool {
        if space != SpaceId::ROOT {
            return false;
        }
        self.owners.extend(names::owner(partition));
        let Some(account) = account_of_row(partition, &row.key, &row.value) else { return false };
        self.rows.insert(account.name.clone(), FoundAccountRow { account, row: row.clone(), is_stale });
        true
    }

    /// Loads the rows of all accounts. `may_be_lost` returns whether a row may have been lost to damage.
    /// Returns the names of the recreated accounts.
    pub(super) fn load(
        self,
        loader: &mut Loader,
        may_be_lost: impl Fn(&RowPosition) -> bool,
    ) -> Result<Vec<String>, Failure> {
        let mut again = BTreeMap::new();
        for (name, generation) in &self.owners {
            if self.is_missing(name, *generation, &may_be_lost) {
                // Owners come in the order of their generations: the newest counts.
                again.insert(name.clone(), *generation);
            }
        }
        for (name, found) in &self.rows {
            if !again.contains_key(name) {
                let (partition, _, _) = account_row(&found.account).map_err(Failure::Failed)?;
                loader.row(SpaceId::ROOT, &partition, &found.row).map_err(Failure::failed)?;
            }
        }
        for (name, generation) in &again {
            let account = self.made_again(name, *generation)?;
            let (partition, key, value) = account_row(&account).map_err(Failure::Failed)?;
            let row = Row { key, value, token: Token(Stamp::from_ticks(*generation)) };
            loader.row(SpaceId::ROOT, &partition, &row).map_err(Failure::failed)?;
        }
        Ok(again.into_keys().collect())
    }

    fn is_missing(&self, name: &str, generation: u64, may_be_lost: impl Fn(&RowPosition) -> bool) -> bool {
        match self.rows.get(name) {
            Some(found) => found.is_stale && found.account.generation < generation,
            // The server sweeps the remains of a removed account.
            None => {
                let (partition, key) = lazuli_account::account_row_key(name);
                may_be_lost(&RowPosition { space: SpaceId::ROOT, partition, key })
            }
        }
    }

    fn made_again(&self, name: &str, generation: u64) -> Result<Account, Failure> {
        let mut account = match self.rows.get(name) {
            Some(found) => found.account.clone(),
            None => Account {
                name: name.to_owned(),
                generation,
                keys: vec![],
                settings: Default::default(),
                roles: vec![],
            },
        };
        // The lost row may have revoked the old keys, and settings that kept data private are lost.
        account.generation = generation;
        account.keys = vec![random_key().map_err(Failure::failed)?];
        account.settings.disabled = true;
        Ok(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, generation: u64, is_stale: bool) -> (String, FoundAccountRow) {
        let account = Account {
            name: name.into(),
            generation,
            keys: vec![],
            settings: Default::default(),
            roles: vec![],
        };
        let row = Row { key: Bytes::new(), value: Bytes::new(), token: Token(Stamp::from_ticks(generation)) };
        (name.into(), FoundAccountRow { account, row, is_stale })
    }

    #[test]
    fn account_is_missing_only_if_its_row_may_be_lost_to_damage() {
        for (known, generation, lost, missing) in [
            (None, 5, true, true),
            (None, 5, false, false),
            (Some((5, false)), 5, true, false),
            (Some((5, true)), 5, true, false),
            // Remains of a removed generation.
            (Some((9, false)), 5, true, false),
            (Some((9, true)), 5, true, false),
            // The account was removed and added again, and only the old row is readable.
            (Some((3, true)), 5, true, true),
        ] {
            let rows = known.map(|(generation, is_stale)| found("lapis", generation, is_stale));
            let accounts = FoundAccounts { rows: rows.into_iter().collect(), owners: BTreeSet::new() };
            let is_missing = accounts.is_missing("lapis", generation, |place: &RowPosition| {
                assert_eq!(place.partition, "account/lapis");
                lost
            });
            assert_eq!(is_missing, missing, "{known:?} {generation} {lost}");
        }
    }
}
