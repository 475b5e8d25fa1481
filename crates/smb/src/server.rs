//! The state that all connections share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli_account::AccountDirectory;
use lazuli_concurrency::{Clock, SystemClock};
use lazuli_file::FileService;
use lazuli_protocol::peers::Peers;
use lazuli_telemetry::Telemetry;
use parking_lot::Mutex;
use tokio::sync::watch;
use uuid::Uuid;

use crate::change_notifier::ChangeNotifier;
use crate::failed_logins::FailedLogins;
use crate::limits::{AccountLimiter, Limiter, Limits};
use crate::request_counters::RequestCounters;
use crate::session::Session;
use crate::session::handles::Handles;
use crate::throttle::Throttle;
use crate::unauthenticated::UnauthenticatedClients;

/// The configuration of the endpoint.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether sessions of remote clients must be encrypted.
    pub require_encryption: bool,
    /// Whether sessions of clients on this machine must be encrypted.
    pub require_encryption_on_loopback: bool,
    /// Whether messages that are not encrypted must be signed.
    pub require_signing: bool,
    /// Whether access lists apply to clients that log in with an account key. Otherwise a key grants full
    /// access.
    pub enforce_permissions: bool,
    /// Limits for all clients together.
    pub limits: Limits,
    /// Whether the limit of connections per peer also applies to this machine.
    pub limit_loopback: bool,
    /// Receives a report of each request.
    pub telemetry: Telemetry,
}

/// The state of the endpoint.
pub(crate) struct ServerState {
    pub(crate) files: FileService,
    pub(crate) accounts: AccountDirectory,
    pub(crate) account_changes: watch::Receiver<u64>,
    pub(crate) options: Options,
    pub(crate) notifier: Arc<ChangeNotifier>,
    /// Identifies the server to clients. New at each start.
    pub(crate) guid: Uuid,
    pub(crate) sessions: Sessions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) throttle: Throttle,
    pub(crate) failed_logins: FailedLogins,
    pub(crate) requests: RequestCounters,
    pub(crate) unauthenticated: Arc<UnauthenticatedClients>,
    pub(crate) handles: Handles,
    pub(crate) session_limit: Limiter,
    pub(crate) tree_limit: Limiter,
    pub(crate) open_limit: AccountLimiter,
    pub(crate) pipe_limit: AccountLimiter,
    next_id: AtomicU64,
    pub(crate) connection_limit: Limiter,
    pub(crate) peers: Arc<Peers>,
}

/// All sessions, by id.
#[derive(Default)]
pub(crate) struct Sessions {
    live: Mutex<HashMap<u64, Arc<Session>>>,
    /// Sessions whose opens are being closed. No request can use them.
    ending: Mutex<HashMap<u64, Arc<Session>>>,
}

impl Sessions {
    /// Returns a session that is not ending.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<Session>> {
        self.live.lock().get(&id).cloned()
    }

    /// Returns a session, even if it is ending.
    pub(crate) fn get_including_ending(&self, id: u64) -> Option<Arc<Session>> {
        self.get(id).or_else(|| self.ending.lock().get(&id).cloned())
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.live.lock().values().cloned().collect()
    }

    /// Returns the number of sessions that are ending.
    pub(crate) fn ending(&self) -> usize {
        self.ending.lock().len()
    }

    /// Adds a session.
    pub(crate) fn add(&self, session: Arc<Session>) {
        self.live.lock().insert(session.id, session);
    }

    /// Starts to end a session. Returns `None` if it is ending already.
    pub(crate) fn end(&self, id: u64) -> Option<EndingSession<'_>> {
        let mut live = self.live.lock();
        let session = live.remove(&id)?;
        // While `live` is locked, so that a lookup of both maps cannot miss the session.
        self.ending.lock().insert(id, session.clone());
        Some(EndingSession { sessions: self, session })
    }
}

/// A session that is ending. Its end is complete when this is dropped.
pub(crate) struct EndingSession<'a> {
    sessions: &'a Sessions,
    session: Arc<Session>,
}

impl Drop for EndingSession<'_> {
    fn drop(&mut self) {
        self.sessions.ending.lock().remove(&self.session.id);
        self.session.ended.cancel();
    }
}

impl ServerState {
    /// Returns the state of a new endpoint.
    pub(crate) fn new(files: FileService, accounts: AccountDirectory, options: Options) -> Self {
        let limits = options.limits;
        Self {
            files,
            account_changes: accounts.changes(),
            accounts,
            peers: Peers::new(limits.connections, options.limit_loopback),
            options,
            notifier: Arc::default(),
            guid: Uuid::new_v4(),
            handles: Handles::new(Uuid::new_v4().as_u64_pair().1),
            sessions: Sessions::default(),
            clock: Arc::new(SystemClock),
            throttle: Throttle::default(),
            failed_logins: FailedLogins::default(),
            requests: RequestCounters::default(),
            unauthenticated: UnauthenticatedClients::new(limits.unauthenticated),
            session_limit: Limiter::new(limits.sessions),
            tree_limit: Limiter::new(limits.trees),
            open_limit: AccountLimiter::new(limits.opens),
            pipe_limit: AccountLimiter::new(limits.pipes),
            next_id: AtomicU64::new(1),
            connection_limit: Limiter::new(limits.connections),
        }
    }

    /// Returns a new unique number greater than 0.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether a client at this address must encrypt.
    pub(crate) fn must_encrypt(&self, peer: SocketAddr) -> bool {
        if peer.ip().to_canonical().is_loopback() {
            self.options.require_encryption_on_loopback
        } else {
            self.options.require_encryption
        }
    }
}
