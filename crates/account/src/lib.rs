//! Accounts: who they are, what they may do, and the operations that every service has at its own level.
//!
//! The cloud keeps accounts in a control plane of its own. Here they are rows of the store, so that they are as
//! durable as the data and change as atomically: [`AccountDirectory`]. [`ServiceLevel`] answers the requests that
//! address a service as a whole (properties, statistics, account information) and hands everything else to the service.

mod directory;
mod record;
mod refusal;
mod service_level;
mod settings;

pub use directory::{AccountDirectory, AccountError};
pub use record::{account_of_row, account_row, check_row, place_of_account};
pub use refusal::refusal;
pub use service_level::ServiceLevel;
pub use settings::{
    DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, KeySlot, Rejection, Setting, development_key, random_key,
};
