//! Accounts: their keys, settings and roles, and the operations on a service as a whole.
//!
//! The cloud keeps accounts in a separate control plane. Here accounts are rows of the store, so they are as
//! durable as the data and change as atomically. [`AccountDirectory`] reads and changes them.
//! [`ServiceLevel`] answers the requests that address a service as a whole (properties, statistics, account
//! information) and passes all other requests to the service.

mod directory;
mod record;
mod service_level;
mod settings;

pub use directory::{AccountDirectory, AccountError, Ownership, RETENTION, ReservedAccount, RetiredAccount};
pub use record::{account_of_row, account_row, account_row_key, check_row, properties_of_row};
pub use service_level::ServiceLevel;
pub use settings::{
    DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, KeySlot, Rejection, Setting, development_key, random_key,
};
