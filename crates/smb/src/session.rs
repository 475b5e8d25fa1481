//! Sessions: the login of a client, its tree connects and its opens.

pub(crate) mod directory_scan;
pub(crate) mod handles;
pub(crate) mod open;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lazuli_account::AccountError;
use lazuli_file::handles::Tree;
use lazuli_protocol::{Account, Key};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::bind_responses::BindResponses;
use crate::connection::SmbConnection;
use crate::crypto::{Preauth, SessionKeys, SigningKey};
use crate::limits::Permit;
use crate::negotiated::Negotiated;
use crate::server::ServerState;
use crate::spnego::Acceptor;
use crate::wire::FileId;
use crate::wire::status::Status;
use open::Open;

/// Maximum number of tree connects of a session.
const MAX_TREES: usize = 1024;
/// Maximum number of opens of a session.
const MAX_OPENS: usize = 16_384;

/// Maximum number of connections of a session.
const MAX_CHANNELS: usize = 32;
/// Maximum number of concurrent setups of a session. At the limit the setup on the oldest connection is
/// dropped.
const MAX_SETUPS: usize = MAX_CHANNELS;

/// A session, from the first Session Setup until its last connection ends.
pub(crate) struct Session {
    pub(crate) id: u64,
    /// Connections of the session. The first one is where it was set up.
    channels: Mutex<Vec<Channel>>,
    /// Set by the first login. A reauthentication does not change it.
    login: OnceLock<Login>,
    login_key: Mutex<LoginKey>,
    /// Setups, reauthentications and binds in progress, by connection.
    pub(crate) setups: Mutex<BTreeMap<u64, Setup>>,
    /// Responses to binding requests, if the session signs with AES-GMAC.
    pub(crate) bind_responses: BindResponses,
    /// Whether the last reauthentication was anonymous. The session can then use its tree connects and opens,
    /// but make no new ones.
    is_anonymous: AtomicBool,
    trees: Mutex<HashMap<u32, Arc<TreeConnect>>>,
    opens: Mutex<HashMap<u64, Arc<Open>>>,
    next_tree: AtomicU32,
    /// Canceled when the session has ended and all opens except kept durable ones are closed.
    pub(crate) ended: CancellationToken,
    #[expect(dead_code, reason = "released on drop")]
    permit: Permit,
}

/// The account key of the last login or reauthentication.
#[derive(Default)]
struct LoginKey {
    key: Option<Key>,
    /// The counter of account changes at which the key was last found valid.
    checked_at: Option<u64>,
}

/// A connection of a session.
struct Channel {
    connection: Weak<SmbConnection>,
    number: u64,
    /// The channel's signing key. `None` stands for the session's own key.
    signing: Option<Arc<SigningKey>>,
}

/// A setup, reauthentication or bind in progress.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) acceptor: Acceptor,
    /// The hash over the messages so far.
    pub(crate) preauth: Preauth,
}

/// The account that has logged in, and the protection of its messages.
pub(crate) struct Login {
    pub(crate) account: Arc<Account>,
    /// The workstation name that the client gave.
    pub(crate) client_name: String,
    pub(crate) keys: SessionKeys,
    /// Id of the message that completed the login. Its response was signed, although the request was not.
    pub(crate) message_id: u64,
    /// The negotiated parameters of the first connection.
    pub(crate) negotiated: Negotiated,
    /// Whether every message must be signed, or encrypted.
    pub(crate) must_sign: bool,
    /// Whether every message must be encrypted.
    pub(crate) must_encrypt: bool,
}

/// A tree connect: a session's connection to a share.
#[derive(Debug)]
pub(crate) struct TreeConnect {
    pub(crate) id: u32,
    /// `None` for `IPC$`.
    pub(crate) tree: Option<Tree>,
    #[expect(dead_code, reason = "released on drop")]
    permit: Permit,
}

impl Session {
    /// Returns a session that is being set up on a connection.
    pub(crate) fn new(id: u64, connection: &Arc<SmbConnection>, permit: Permit) -> Self {
        Self {
            permit,
            id,
            channels: Mutex::new(vec![Channel {
                connection: Arc::downgrade(connection),
                number: connection.number,
                signing: None,
            }]),
            login: OnceLock::new(),
            login_key: Mutex::default(),
            setups: Mutex::default(),
            bind_responses: BindResponses::default(),
            is_anonymous: AtomicBool::new(false),
            trees: Mutex::default(),
            opens: Mutex::default(),
            next_tree: AtomicU32::new(1),
            ended: CancellationToken::new(),
        }
    }

    /// Returns the login, if the session is set up.
    pub(crate) fn login(&self) -> Option<&Login> {
        self.login.get()
    }

    /// Completes the setup. Returns false if the session is set up already.
    pub(crate) fn set_login(&self, login: Login, key: Key) -> bool {
        let mut login_key = self.login_key.lock();
        let is_first = self.login.set(login).is_ok();
        if is_first {
            *login_key = LoginKey { key: Some(key), checked_at: None };
        }
        is_first
    }

    /// Records a reauthentication, with a key or anonymous.
    pub(crate) fn set_reauthenticated(&self, key: Option<Key>) {
        self.is_anonymous.store(key.is_none(), Ordering::Relaxed);
        if key.is_some() {
            *self.login_key.lock() = LoginKey { key, checked_at: None };
        }
    }

    /// Returns whether the login would still succeed: the account exists, is enabled and has the key.
    pub(crate) async fn is_authorized(&self, server: &ServerState) -> Result<bool, AccountError> {
        let Some(login) = self.login() else { return Ok(true) };
        loop {
            let changes = *server.account_changes.borrow();
            let key = match &*self.login_key.lock() {
                LoginKey { checked_at, .. } if *checked_at == Some(changes) => return Ok(true),
                LoginKey { key, .. } => key.clone(),
            };
            let account = server.accounts.get(&login.account.name).await?;
            let account = account.filter(|account| {
                account.generation == login.account.generation && !account.settings.disabled
            });
            let is_authorized =
                account.zip(key.as_ref()).is_some_and(|(account, key)| account.keys.contains(key));
            let mut login_key = self.login_key.lock();
            // Retry if the session has reauthenticated or the accounts have changed meanwhile: the account
            // that was read may be outdated.
            if login_key.key != key || (!is_authorized && *server.account_changes.borrow() != changes) {
                continue;
            }
            if is_authorized {
                login_key.checked_at = Some(changes);
            }
            return Ok(is_authorized);
        }
    }

    /// Returns whether it has logged in again without a name.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.is_anonymous.load(Ordering::Relaxed)
    }

    /// Returns a connection of the session that has not ended.
    pub(crate) fn connection(&self) -> Option<Arc<SmbConnection>> {
        let channels = self.channels.lock();
        let mut connections = channels.iter().filter_map(|channel| channel.connection.upgrade());
        connections.find(|connection| !connection.is_closed())
    }

    /// Returns the key that signs the session's messages on a connection. `None` before the login, and if the
    /// session is not on the connection.
    pub(crate) fn signing_key(&self, connection: &SmbConnection) -> Option<Arc<SigningKey>> {
        let login = self.login()?;
        let channels = self.channels.lock();
        let channel = channels.iter().find(|channel| channel.number == connection.number)?;
        Some(channel.signing.clone().unwrap_or_else(|| login.keys.signing.clone()))
    }

    /// Returns the key that signs the response to a binding request on a connection that the session is not
    /// on. Clients drop the response if it is not signed. Returns `None` if the key has signed the response
    /// to the login under the same message id, unless the client has signed different requests with that id
    /// itself.
    pub(crate) fn bind_signing_key(&self, message_id: u64) -> Option<Arc<SigningKey>> {
        let login = self.login()?;
        let would_reuse = self.needs_unique_message_ids() && login.message_id == message_id;
        (!would_reuse || self.bind_responses.has_reused(message_id)).then(|| login.keys.signing.clone())
    }

    /// Returns whether signing two different messages under one message id reveals the session's key.
    pub(crate) fn needs_unique_message_ids(&self) -> bool {
        self.login().is_some_and(|login| login.keys.signing.needs_unique_message_ids())
    }

    /// Adds a connection, on which `signing` signs. Fails if the session has too many connections or is on
    /// this one already.
    pub(crate) fn add_channel(
        &self,
        connection: &Arc<SmbConnection>,
        signing: Arc<SigningKey>,
    ) -> Result<(), Status> {
        let mut channels = self.channels.lock();
        let number = connection.number;
        if channels.len() >= MAX_CHANNELS || channels.iter().any(|channel| channel.number == number) {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        let connection = Arc::downgrade(connection);
        channels.push(Channel { connection, number, signing: Some(signing) });
        Ok(())
    }

    /// Returns whether the session has another connection.
    pub(crate) fn has_other_channel(&self, connection: &SmbConnection) -> bool {
        self.channels.lock().iter().any(|channel| channel.number != connection.number)
    }

    /// Removes a connection that has ended. Returns whether it was the last.
    pub(crate) fn remove_channel(&self, connection: &SmbConnection) -> bool {
        let mut channels = self.channels.lock();
        channels.retain(|channel| channel.number != connection.number);
        self.remove_setup(connection.number);
        channels.is_empty()
    }

    /// Begins a setup on a connection, unless one is in progress there.
    pub(crate) fn begin_setup(&self, connection: &SmbConnection) {
        let mut setups = self.setups.lock();
        if setups.len() >= MAX_SETUPS && !setups.contains_key(&connection.number) {
            setups.pop_first();
        }
        setups
            .entry(connection.number)
            .or_insert_with(|| Setup { acceptor: Acceptor::default(), preauth: *connection.preauth.lock() });
    }

    /// Removes the setup on a connection.
    pub(crate) fn remove_setup(&self, connection: u64) {
        self.setups.lock().remove(&connection);
    }

    /// Adds a tree connect. `None` connects to `IPC$`.
    pub(crate) fn add_tree_connect(
        &self,
        tree: Option<Tree>,
        permit: Permit,
    ) -> Result<Arc<TreeConnect>, Status> {
        let mut trees = self.trees.lock();
        if trees.len() >= MAX_TREES {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        let id = self.next_tree.fetch_add(1, Ordering::Relaxed);
        let connected = Arc::new(TreeConnect { id, tree, permit });
        trees.insert(id, connected.clone());
        Ok(connected)
    }

    /// Returns a tree connect.
    pub(crate) fn tree(&self, id: u32) -> Option<Arc<TreeConnect>> {
        self.trees.lock().get(&id).cloned()
    }

    /// Removes a tree connect. Returns its opens, which the caller must close.
    pub(crate) fn remove_tree_connect(&self, id: u32) -> Vec<Arc<Open>> {
        let Some(tree) = self.trees.lock().remove(&id) else { return vec![] };
        let mut opens = self.opens.lock();
        opens.extract_if(|_, open| Arc::ptr_eq(&open.tree, &tree)).map(|(_, open)| open).collect()
    }

    /// Removes all tree connects and opens. The caller must close the opens.
    pub(crate) fn take_all_opens(&self) -> Vec<Arc<Open>> {
        self.trees.lock().clear();
        self.opens.lock().drain().map(|(_, open)| open).collect()
    }

    /// Returns an open of this session.
    pub(crate) fn find_open(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().get(&id.volatile).filter(|open| open.id == id).cloned()
    }

    /// Returns whether the session can have another open.
    pub(crate) fn can_open(&self) -> bool {
        self.opens.lock().len() < MAX_OPENS
    }

    /// Adds an open.
    pub(crate) fn add_open(&self, open: Arc<Open>) {
        self.opens.lock().insert(open.id.volatile, open);
    }

    /// Removes an open.
    pub(crate) fn remove_open(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().remove(&id.volatile)
    }

    /// Ends the session and closes its opens. If `is_lost`, the connection was lost, so durable opens are
    /// kept. If the session is ending already, waits for that.
    pub(crate) async fn end(&self, server: &Arc<ServerState>, is_lost: bool) {
        let Some(ending) = server.sessions.end(self.id) else { return self.ended.cancelled().await };
        let connections: Vec<_> =
            self.channels.lock().iter().filter_map(|channel| channel.connection.upgrade()).collect();
        for connection in connections {
            connection.forget_session(self.id, self.signing_key(&connection));
        }
        // Mark durable opens before anything waits, so that a client that reconnects soon finds all of them.
        let (kept, closed): (Vec<_>, Vec<_>) = self
            .take_all_opens()
            .into_iter()
            .partition(|open| is_lost && handles::keep_durable(server, open));
        for open in closed {
            handles::discard(server, &open).await;
        }
        for open in kept {
            handles::flush_disconnected(server, &open).await;
        }
        drop(ending);
        server.handles.remove_session(self);
    }
}
