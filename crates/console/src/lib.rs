//! The console: a page for people, and the API behind it, on the console port.
//!
//! The console is a client of the services. Data goes through the storage protocol itself ([`storage`]),
//! with a session instead of a key. The API has only what the protocol cannot express. Requests are
//! checked in this order: the host, the origin ([`guard`]), the session ([`session`]), the account.
//!
//! The crate is on the layer of `smb`: it uses the services, and no service refers to it. Events come from
//! [`lazuli_protocol::watch`].

mod api;
mod assets;
mod audit;
mod board;
mod guard;
mod hub;
mod reply;
mod series;
mod session;
mod state;
mod storage;
mod tickets;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use lazuli_account::AccountDirectory;
use lazuli_file::FileService;
use lazuli_front::{ConsoleBody, ConsolePages, ConsoleRequest, StorageEntry};
use lazuli_protocol::ServiceKind;
use lazuli_protocol::watch::RequestWatch;
use lazuli_queue::QueueService;
use parking_lot::Mutex;
use serde_json::json;

use crate::audit::Audit;
use crate::board::Board;
use crate::guard::AllowedHosts;
use crate::hub::{Hub, Topic};
use crate::reply::{Problem, Result, harden};
use crate::session::Sessions;
use crate::state::{ConsoleState, OptionsKept};
use crate::tickets::Tickets;

/// Pause between two readings of the metrics while a page is open, and otherwise.
const READING: Duration = Duration::from_secs(1);
const IDLE_READING: Duration = Duration::from_secs(5);
/// Pause between two looks at leases and opens for streams.
const LOOK: Duration = Duration::from_millis(500);

/// The parts and settings of a console.
pub struct ConsoleOptions {
    /// The address of the console.
    pub address: SocketAddr,
    /// Further host names under which browsers reach the console.
    pub names: Vec<String>,
    /// Whether the console port uses TLS.
    pub is_secure: bool,
    /// The argon2id hash of the operator's password, if there is one.
    pub password: Option<String>,
    /// Whether the development key is accepted from other machines.
    pub insecure_development_key: bool,
    /// The version of the program.
    pub version: &'static str,
    /// The accounts.
    pub accounts: AccountDirectory,
    /// The way to the services.
    pub entry: StorageEntry,
    /// The addresses of the services, for signatures and connection strings.
    pub services: Vec<(ServiceKind, String)>,
    /// The queues.
    pub queue: QueueService,
    /// The files, for those that are open.
    pub file: FileService,
    /// The events of requests.
    pub watch: Arc<RequestWatch>,
    /// Returns all metrics. May block.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Returns whether the server is ready, and why not.
    pub readiness: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The console of a server.
#[derive(Clone)]
pub struct WebConsole(Arc<ConsoleState>);

impl WebConsole {
    /// Starts the console. Must be called within a tokio runtime.
    pub fn start(options: ConsoleOptions) -> Self {
        let store = options.accounts.store().clone();
        let hub = Arc::new(Hub::default());
        let accounts = options.accounts;
        let state = Arc::new(ConsoleState {
            hosts: AllowedHosts::new(options.address, &options.names),
            sessions: Sessions::new(accounts.clone(), options.password, options.insecure_development_key),
            audit: Audit::new(store.clone(), hub.clone()),
            board: Board::new(hub.clone(), options.watch),
            tickets: Tickets::default(),
            series: Mutex::default(),
            started: store.now(),
            options: OptionsKept {
                address: options.address,
                is_secure: options.is_secure,
                version: options.version,
                services: options.services,
                metrics: options.metrics,
                readiness: options.readiness,
            },
            entry: options.entry,
            queue: options.queue,
            file: options.file,
            accounts,
            store,
            hub,
        });
        tokio::spawn(read_metrics(Arc::downgrade(&state)));
        tokio::spawn(look(Arc::downgrade(&state)));
        Self(state)
    }

    /// Returns what answers the requests to the console port.
    pub fn pages(&self) -> Arc<dyn ConsolePages> {
        self.0.clone()
    }

    /// Returns a link that signs an operator in once. `base` is the address of the console.
    pub fn sign_in_link(&self, base: &str) -> String {
        format!("{base}/#t={}", self.0.sessions.new_link())
    }

    /// Ends all streams, so that the server can stop.
    pub fn close(&self) {
        self.0.hub.close();
    }
}

/// Verifies a row of the directory space if it belongs to the console.
pub fn check_row(partition: &[u8], value: &[u8]) -> std::result::Result<(), String> {
    session::check_row(partition, value)?;
    audit::check_row(partition, value)
}

/// Reads the metrics again and again, for as long as the console exists.
async fn read_metrics(state: std::sync::Weak<ConsoleState>) {
    while let Some(state) = state.upgrade() {
        let metrics = state.options.metrics.clone();
        // Metrics read the file system, and a slow disk must not block the runtime.
        if let Ok(text) = tokio::task::spawn_blocking(move || metrics()).await {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let point = state.series.lock().add(now, &text, state.board.conflicts());
            if let Some(point) = point {
                let untraced = state.hub.take_untraced();
                state.hub.send(Topic::Metrics, None, |_| {
                    json!({ "point": point, "untraced": untraced }).to_string()
                });
            }
        }
        let pause = if state.hub.streams() > 0 { READING } else { IDLE_READING };
        drop(state);
        tokio::time::sleep(pause).await;
    }
}

/// Sends the leases and the opens to streams when they have changed.
async fn look(state: std::sync::Weak<ConsoleState>) {
    let mut sent = std::collections::HashMap::new();
    while let Some(state) = state.upgrade() {
        state.board.update_interest();
        if state.hub.is_wanted(Topic::Leases) {
            for account in state.account_names() {
                let leases = json!({
                    "account": account,
                    "leases": state.board.leases(Some(&account), state.store.now()),
                    "hot": state.board.hot(Some(&account), state.store.now()),
                });
                state.send_if_changed(&mut sent, Topic::Leases, &account, leases.to_string());
            }
        }
        if state.hub.is_wanted(Topic::Opens) {
            for (account, opens) in state.opens().await {
                let opens = json!({ "account": account, "opens": opens });
                state.send_if_changed(&mut sent, Topic::Opens, &account, opens.to_string());
            }
        }
        if !state.hub.is_wanted(Topic::Leases) && !state.hub.is_wanted(Topic::Opens) {
            sent.clear();
        }
        drop(state);
        tokio::time::sleep(LOOK).await;
    }
}

impl ConsoleState {
    async fn route(self: &Arc<Self>, request: ConsoleRequest) -> Result {
        self.hosts.check_host(&request.parts)?;
        let path = request.parts.uri.path().to_owned();
        if self.options.is_secure && !request.is_secure {
            return redirect_to_tls(&request.parts);
        }
        if let Some(path) = path.strip_prefix("/assets/") {
            only_reads(&request.parts)?;
            return assets::asset(path, &request.parts.headers).ok_or_else(Problem::not_found);
        }
        if let Some(token) = path.strip_prefix("/dl/") {
            let cookie = self.cookie(&request.parts, request.is_secure).map(str::to_owned);
            return self.download(request, token, cookie.as_deref()).await;
        }
        if path.starts_with("/storage/") {
            self.hosts.check_origin(&request.parts)?;
            let session = self.session(&request).await?;
            let target = request.parts.uri.path_and_query().map(|target| target.as_str().to_owned());
            let target = target.unwrap_or_default();
            let target = target.strip_prefix("/storage/").ok_or_else(Problem::not_found)?;
            return self.storage(request, &session, target, None).await;
        }
        if let Some(path) = path.strip_prefix("/api/v1/") {
            self.hosts.check_origin(&request.parts)?;
            guard::check_json(&request.parts)?;
            return self.api(request, path).await;
        }
        match &*path {
            "/" => {
                only_reads(&request.parts)?;
                assets::index(&request.parts.headers).ok_or_else(Problem::not_found)
            }
            _ => Err(Problem::not_found()),
        }
    }
}

impl ConsolePages for ConsoleState {
    fn call(
        self: Arc<Self>,
        request: ConsoleRequest,
    ) -> Pin<Box<dyn Future<Output = Response<ConsoleBody>> + Send>> {
        Box::pin(async move {
            let (peer, method) = (request.peer, request.parts.method.clone());
            let path: String = request.parts.uri.path().chars().take(200).collect();
            let is_content = path.starts_with("/storage/") || path.starts_with("/dl/");
            match self.route(request).await {
                Ok(mut reply) => {
                    if !is_content {
                        harden(reply.headers_mut());
                    }
                    reply
                }
                Err(problem) => {
                    tracing::debug!(%peer, %method, path, code = problem.code(), "refused a request to the console");
                    let mut reply = problem.into_reply();
                    harden(reply.headers_mut());
                    reply
                }
            }
        })
    }
}

/// Sends a browser from plain HTTP to TLS. Other clients learn that they need TLS.
fn redirect_to_tls(parts: &Parts) -> Result {
    let host = guard::host_of(parts).unwrap_or_default();
    let target = HeaderValue::try_from(format!("https://{host}/"));
    match (&parts.method, parts.uri.path(), target) {
        (&Method::GET, "/", Ok(target)) => {
            let mut reply = Response::new(lazuli_front::whole("Use https://.\n"));
            *reply.status_mut() = StatusCode::TEMPORARY_REDIRECT;
            reply.headers_mut().insert(LOCATION, target);
            Ok(reply)
        }
        _ => Err(Problem::forbidden("The console of this server needs https://.")),
    }
}

fn only_reads(parts: &Parts) -> Result<()> {
    match parts.method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "GET only.")),
    }
}
