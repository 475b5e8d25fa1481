//! Service properties, as Get and Set Service Properties read and write them.
//!
//! One type serves all services; the parser and the renderer know which elements a service has. Set changes
//! only the elements that it contains. Logging and metrics settings are stored and returned, and have no
//! effect.

mod parse;
mod render;

use serde::{Deserialize, Serialize};

use crate::cors::CorsRule;
use crate::version::Version;

/// The properties of one service of an account. The default applies to a new account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceProperties {
    /// `Logging`; not for files.
    pub logging: Logging,
    /// `HourMetrics`.
    pub hour_metrics: Metrics,
    /// `MinuteMetrics`.
    pub minute_metrics: Metrics,
    /// `Cors`: rules in the order in which they are tried.
    pub cors: Vec<CorsRule>,
    /// `DefaultServiceVersion`: the version of blob requests without a version.
    pub default_service_version: Option<Version>,
    /// `DeleteRetentionPolicy`: soft delete of blobs.
    pub delete_retention: DeleteRetention,
    /// `StaticWebsite`, for blobs.
    pub static_website: StaticWebsite,
    /// `ShareDeleteRetentionPolicy`: days for which a deleted share is kept; `None` if off.
    pub share_delete_retention_days: Option<u16>,
    /// `ProtocolSettings`, for files.
    pub protocol_settings: ProtocolSettings,
}

/// Settings of request logging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logging {
    /// The version of the log format.
    pub version: String,
    /// Log deletions.
    pub delete: bool,
    /// Log reads.
    pub read: bool,
    /// Log writes.
    pub write: bool,
    /// Days for which logs are kept; `None` means forever.
    pub retention_days: Option<u16>,
}

/// Settings of request metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// The version of the metrics format.
    pub version: String,
    /// Metrics are enabled.
    pub enabled: bool,
    /// Count by operation. Present only if metrics are enabled.
    pub include_apis: Option<bool>,
    /// Days for which metrics are kept; `None` means forever.
    pub retention_days: Option<u16>,
}

/// Soft delete of blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRetention {
    /// Days for which a deleted blob is kept; `None` if off.
    pub days: Option<u16>,
    /// A soft-deleted snapshot or version may be deleted permanently before that.
    pub allow_permanent_delete: bool,
}

/// Settings of the static website in `$web`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticWebsite {
    /// The website is enabled.
    pub enabled: bool,
    /// The name of the index page in every directory.
    pub index_document: Option<String>,
    /// The page for missing resources.
    pub error_document_404_path: Option<String>,
    /// The page for every directory.
    pub default_index_document_path: Option<String>,
}

/// Settings of SMB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProtocolSettings {
    /// A client may use several connections for one session.
    pub smb_multichannel: bool,
    /// Refuse SMB without encryption; `None` means as the server is configured.
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

/// The elements that a Set Service Properties request changes.
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
    /// Replaces every element that the update contains and keeps the others.
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
