//! The properties of a service: what Get and Set Service Properties read and write.
//!
//! One type serves all services; which roots a service has is decided where they are parsed and rendered. A Set
//! changes only the roots that it names. Logging and metrics settings are kept and given back, and do nothing else.

mod parse;
mod render;

use serde::{Deserialize, Serialize};

use crate::cors::CorsRule;
use crate::version::Version;

/// The properties of one service of an account. The default is what a new account has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceProperties {
    /// `Logging`; not for files.
    pub logging: Logging,
    /// `HourMetrics`.
    pub hour_metrics: Metrics,
    /// `MinuteMetrics`.
    pub minute_metrics: Metrics,
    /// `Cors`, in the order that they are tried.
    pub cors: Vec<CorsRule>,
    /// `DefaultServiceVersion`: the version of a blob request that names none.
    pub default_service_version: Option<Version>,
    /// `DeleteRetentionPolicy`: soft delete of blobs.
    pub delete_retention: DeleteRetention,
    /// `StaticWebsite`, of blobs.
    pub static_website: StaticWebsite,
    /// `ShareDeleteRetentionPolicy`: days that a deleted share is kept; none = off.
    pub share_delete_retention_days: Option<u16>,
    /// `ProtocolSettings`, of files.
    pub protocol_settings: ProtocolSettings,
}

/// What to log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logging {
    /// The version of the log format.
    pub version: String,
    /// Deletions.
    pub delete: bool,
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
    /// Days that logs are kept; none = for ever.
    pub retention_days: Option<u16>,
}

/// What to count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// The version of the metrics.
    pub version: String,
    /// Whether to count at all.
    pub enabled: bool,
    /// Whether to count by operation. Present only if enabled.
    pub include_apis: Option<bool>,
    /// Days that metrics are kept; none = for ever.
    pub retention_days: Option<u16>,
}

/// Soft delete of blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRetention {
    /// Days that a deleted blob is kept; none = off.
    pub days: Option<u16>,
    /// Whether a soft-deleted snapshot or version may be deleted for good before that.
    pub allow_permanent_delete: bool,
}

/// Serving `$web` as a website.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticWebsite {
    /// Whether to.
    pub enabled: bool,
    /// The name of the index page in every directory.
    pub index_document: Option<String>,
    /// The page for what does not exist.
    pub error_document_404_path: Option<String>,
    /// The page for every directory.
    pub default_index_document_path: Option<String>,
}

/// Settings of SMB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolSettings {
    /// Whether a client may use several connections for one session.
    pub smb_multichannel: bool,
    /// Whether SMB without encryption is refused; none = as the server is configured.
    pub smb_encryption_required: Option<bool>,
}

impl Default for Logging {
    fn default() -> Self {
        Self { version: "1.0".into(), delete: false, read: false, write: false, retention_days: None }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { version: "1.0".into(), enabled: false, include_apis: None, retention_days: None }
    }
}

/// What a Set Service Properties request changes: the roots that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    logging: Option<Logging>,
    hour_metrics: Option<Metrics>,
    minute_metrics: Option<Metrics>,
    cors: Option<Vec<CorsRule>>,
    default_service_version: Option<Version>,
    delete_retention: Option<DeleteRetention>,
    static_website: Option<StaticWebsite>,
    share_delete_retention_days: Option<Option<u16>>,
    protocol_settings: Option<ProtocolSettings>,
}

impl ServiceProperties {
    /// Takes over every root that the update names and leaves the others.
    pub fn apply(&mut self, update: Update) {
        fn set<T>(current: &mut T, new: Option<T>) {
            if let Some(new) = new {
                *current = new;
            }
        }
        set(&mut self.logging, update.logging);
        set(&mut self.hour_metrics, update.hour_metrics);
        set(&mut self.minute_metrics, update.minute_metrics);
        set(&mut self.cors, update.cors);
        set(&mut self.default_service_version, update.default_service_version.map(Some));
        set(&mut self.delete_retention, update.delete_retention);
        set(&mut self.static_website, update.static_website);
        set(&mut self.share_delete_retention_days, update.share_delete_retention_days);
        set(&mut self.protocol_settings, update.protocol_settings);
    }
}
