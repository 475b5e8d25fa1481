//! The state that all parts of the console share.

use std::net::SocketAddr;
use std::sync::Arc;

use http::HeaderValue;
use http::header::{COOKIE, HeaderName};
use http::request::Parts;
use lazuli_account::AccountDirectory;
use lazuli_concurrency::Timestamp;
use lazuli_file::FileService;
use lazuli_front::{ConsoleRequest, StorageEntry};
use lazuli_protocol::ServiceKind;
use lazuli_queue::QueueService;
use lazuli_store::Store;
use parking_lot::Mutex;

use crate::audit::Audit;
use crate::board::Board;
use crate::guard::AllowedHosts;
use crate::hub::{Hub, Topic};
use crate::reply::Result;
use crate::series::Series;
use crate::session::{Session, Sessions};
use crate::tickets::Tickets;

/// The header with the second half of a session.
pub(crate) const PROOF: HeaderName = HeaderName::from_static("x-lazuli-proof");

/// The parts of the console.
pub(crate) struct ConsoleState {
    pub(crate) options: OptionsKept,
    pub(crate) hosts: AllowedHosts,
    pub(crate) accounts: AccountDirectory,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) entry: StorageEntry,
    pub(crate) queue: QueueService,
    pub(crate) file: FileService,
    pub(crate) sessions: Sessions,
    pub(crate) tickets: Tickets,
    pub(crate) audit: Audit,
    pub(crate) hub: Arc<Hub>,
    pub(crate) board: Arc<Board>,
    pub(crate) series: Mutex<Series>,
    pub(crate) started: Timestamp,
}

/// The options that are needed later.
pub(crate) struct OptionsKept {
    pub(crate) address: SocketAddr,
    pub(crate) is_secure: bool,
    pub(crate) version: &'static str,
    pub(crate) services: Vec<(ServiceKind, String)>,
    pub(crate) metrics: Arc<dyn Fn() -> String + Send + Sync>,
    pub(crate) readiness: Arc<dyn Fn() -> String + Send + Sync>,
}

impl ConsoleState {
    /// Sends an event unless the last one of its topic and account was the same.
    pub(crate) fn send_if_changed(
        &self,
        sent: &mut std::collections::HashMap<(&'static str, String), String>,
        topic: Topic,
        account: &str,
        json: String,
    ) {
        let key = (topic.name(), account.to_owned());
        if sent.get(&key) != Some(&json) {
            self.hub.send(topic, Some(account), |_| json.clone());
            sent.insert(key, json);
        }
    }

    /// Returns the options.
    pub(crate) fn options(&self) -> &OptionsKept {
        &self.options
    }

    /// Returns the name of the cookie. Cookies ignore ports, so the name has the port.
    fn cookie_name(&self, is_secure: bool) -> String {
        let port = self.options.address.port();
        if is_secure { format!("__Host-lazuli_{port}") } else { format!("lazuli_{port}") }
    }

    /// Returns the cookie of a request.
    pub(crate) fn cookie<'a>(&self, parts: &'a Parts, is_secure: bool) -> Option<&'a str> {
        let name = self.cookie_name(is_secure);
        let headers = parts.headers.get_all(COOKIE).iter();
        let pairs = headers.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(';'));
        pairs
            .filter_map(|pair| pair.trim().split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Returns the header that sets the cookie, or removes it if there is no value.
    pub(crate) fn set_cookie(&self, value: Option<&str>, is_secure: bool) -> Option<HeaderValue> {
        let (name, secure) = (self.cookie_name(is_secure), if is_secure { "; Secure" } else { "" });
        let (value, age) = value.map_or(("", 0), |value| (value, 7 * 24 * 60 * 60));
        let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}");
        HeaderValue::try_from(text).ok()
    }

    /// Returns the session of a request, by its cookie and its proof.
    pub(crate) async fn session(&self, request: &ConsoleRequest) -> Result<Session> {
        let cookie = self.cookie(&request.parts, request.is_secure);
        let proof = request.parts.headers.get(PROOF).and_then(|value| value.to_str().ok());
        self.sessions.verify(cookie, proof).await
    }
}
