//! Sessions: who has logged in, and what they have connected to and opened.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use lazuli_account::AccountError;
use lazuli_file::native::Tree;
use lazuli_protocol::{Account, Key};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::commands::close;
use crate::connection::Connection;
use crate::crypto::{Preauth, SessionKeys, SigningKey};
use crate::handles;
use crate::negotiated::Negotiated;
use crate::open::{FileId, Open};
use crate::places::Place;
use crate::server::Server;
use crate::spnego::Acceptor;
use crate::wire::status::Status;

/// Shares that a session can be connected to at once.
const MAX_TREES: usize = 1024;
/// Files that a session can have open at once.
const MAX_OPENS: usize = 16_384;

/// Connections that a session can be on at once.
const MAX_CHANNELS: usize = 32;
/// Connections on which a session can be set up at once. One more forgets the setup on the oldest.
const MAX_SETUPS: usize = MAX_CHANNELS;

/// A session, from the first message that sets it up. It ends with the last of its connections.
pub(crate) struct Session {
    pub(crate) id: u64,
    /// Where it is used, the connection on which it was set up first.
    channels: Mutex<Vec<Channel>>,
    /// Once it has logged in. Logging in again changes nothing of it.
    login: OnceLock<Login>,
    proof: Mutex<Proof>,
    /// While it is being set up, set up again, or bound to a connection: by the connection.
    pub(crate) setups: Mutex<BTreeMap<u64, Setup>>,
    /// Whether it has logged in again without a name. Then it can use what it has, and have nothing new.
    is_anonymous: AtomicBool,
    trees: Mutex<HashMap<u32, Arc<TreeConnect>>>,
    opens: Mutex<HashMap<u64, Arc<Open>>>,
    next_tree: AtomicU32,
    /// Cancelled when it has ended, and nothing of it is open any more but what waits for its client.
    pub(crate) ended: CancellationToken,
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    place: Place,
}

/// The key of the account that a session has logged in with, the last time.
#[derive(Default)]
struct Proof {
    key: Option<Key>,
    /// How many changes of accounts there had been when it was looked whether the key still counts.
    checked: Option<u64>,
}

/// A connection that a session is used on.
struct Channel {
    connection: Weak<Connection>,
    number: u64,
    /// What signs there; none: the session's own key.
    signing: Option<Arc<SigningKey>>,
}

/// A login that is under way.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) acceptor: Acceptor,
    /// The hash over the messages so far.
    pub(crate) preauth: Preauth,
}

/// Who has logged in, and how what they send is protected.
pub(crate) struct Login {
    pub(crate) account: Arc<Account>,
    /// The name that the client's machine gave.
    pub(crate) client_name: String,
    pub(crate) keys: SessionKeys,
    /// What was agreed on where it was set up.
    pub(crate) negotiated: Negotiated,
    /// Whether every message must be signed, or encrypted.
    pub(crate) must_sign: bool,
    /// Whether every message must be encrypted.
    pub(crate) must_encrypt: bool,
}

/// A share that a session is connected to.
#[derive(Debug)]
pub(crate) struct TreeConnect {
    pub(crate) id: u32,
    /// None is the share of pipes.
    pub(crate) tree: Option<Tree>,
    #[expect(dead_code, reason = "it is given back when it is dropped")]
    place: Place,
}

impl Session {
    /// A session that is being set up.
    pub(crate) fn new(id: u64, connection: &Arc<Connection>, place: Place) -> Self {
        Self {
            place,
            id,
            channels: Mutex::new(vec![Channel {
                connection: Arc::downgrade(connection),
                number: connection.number,
                signing: None,
            }]),
            login: OnceLock::new(),
            proof: Mutex::default(),
            setups: Mutex::default(),
            is_anonymous: AtomicBool::new(false),
            trees: Mutex::default(),
            opens: Mutex::default(),
            next_tree: AtomicU32::new(1),
            ended: CancellationToken::new(),
        }
    }

    /// Who has logged in, if somebody has.
    pub(crate) fn login(&self) -> Option<&Login> {
        self.login.get()
    }

    /// Somebody has logged in with a key. False if somebody had already.
    pub(crate) fn log_in(&self, login: Login, key: Key) -> bool {
        let mut proof = self.proof.lock();
        let is_first = self.login.set(login).is_ok();
        if is_first {
            *proof = Proof { key: Some(key), checked: None };
        }
        is_first
    }

    /// Logged in again, with a key, or without a name.
    pub(crate) fn log_in_again(&self, key: Option<Key>) {
        self.is_anonymous.store(key.is_none(), Ordering::Relaxed);
        if key.is_some() {
            *self.proof.lock() = Proof { key, checked: None };
        }
    }

    /// Whether who has logged in still could: the account is there, is enabled and has that key.
    pub(crate) async fn is_welcome(&self, server: &Server) -> Result<bool, AccountError> {
        let Some(login) = self.login() else { return Ok(true) };
        loop {
            let changes = *server.account_changes.borrow();
            let key = match &*self.proof.lock() {
                Proof { checked, .. } if *checked == Some(changes) => return Ok(true),
                Proof { key, .. } => key.clone(),
            };
            let account = server.accounts.get(&login.account.name).await?;
            let account = account.filter(|account| {
                account.generation == login.account.generation && !account.settings.disabled
            });
            let is_welcome =
                account.zip(key.as_ref()).is_some_and(|(account, key)| account.keys.contains(key));
            let mut proof = self.proof.lock();
            // A key that the session has logged in with meanwhile may be newer than what was read of the account.
            if proof.key != key || (!is_welcome && *server.account_changes.borrow() != changes) {
                continue;
            }
            if is_welcome {
                proof.checked = Some(changes);
            }
            return Ok(is_welcome);
        }
    }

    /// Whether it has logged in again without a name.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.is_anonymous.load(Ordering::Relaxed)
    }

    /// A connection on which its client can be reached.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        let channels = self.channels.lock();
        let mut connections = channels.iter().filter_map(|channel| channel.connection.upgrade());
        connections.find(|connection| !connection.is_closed())
    }

    /// Returns the key that signs its messages on a connection, once it has logged in. None if it is not on the connection.
    pub(crate) fn signing(&self, connection: &Connection) -> Option<Arc<SigningKey>> {
        let login = self.login()?;
        let channels = self.channels.lock();
        let channel = channels.iter().find(|channel| channel.number == connection.number)?;
        Some(channel.signing.clone().unwrap_or_else(|| login.keys.signing.clone()))
    }

    /// Returns the key that signs the answer to a Session Setup on a connection that the session is not on, to a client that
    /// has shown that it has the key: clients drop a bind that is answered otherwise.
    pub(crate) fn signing_elsewhere(&self) -> Option<Arc<SigningKey>> {
        let login = self.login()?;
        Some(login.keys.signing.clone())
    }

    /// It is used on another connection from now on.
    pub(crate) fn join(&self, connection: &Arc<Connection>, signing: Arc<SigningKey>) -> Result<(), Status> {
        let mut channels = self.channels.lock();
        let number = connection.number;
        if channels.len() >= MAX_CHANNELS || channels.iter().any(|channel| channel.number == number) {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        let connection = Arc::downgrade(connection);
        channels.push(Channel { connection, number, signing: Some(signing) });
        Ok(())
    }

    /// Whether it is on another connection, too.
    pub(crate) fn is_elsewhere(&self, connection: &Connection) -> bool {
        self.channels.lock().iter().any(|channel| channel.number != connection.number)
    }

    /// A connection is lost. Whether it was the last.
    pub(crate) fn leave(&self, connection: &Connection) -> bool {
        let mut channels = self.channels.lock();
        channels.retain(|channel| channel.number != connection.number);
        self.forget_setup(connection.number);
        channels.is_empty()
    }

    /// Begins a setup on a connection, unless one is under way.
    pub(crate) fn begin_setup(&self, connection: &Connection) {
        let mut setups = self.setups.lock();
        if setups.len() >= MAX_SETUPS && !setups.contains_key(&connection.number) {
            setups.pop_first();
        }
        setups
            .entry(connection.number)
            .or_insert_with(|| Setup { acceptor: Acceptor::default(), preauth: *connection.preauth.lock() });
    }

    /// Forgets the setup on a connection.
    pub(crate) fn forget_setup(&self, connection: u64) {
        self.setups.lock().remove(&connection);
    }

    /// Connects it to a share, or to the pipes.
    pub(crate) fn connect(&self, tree: Option<Tree>, place: Place) -> Result<Arc<TreeConnect>, Status> {
        let mut trees = self.trees.lock();
        if trees.len() >= MAX_TREES {
            return Err(Status::INSUFFICIENT_RESOURCES);
        }
        let id = self.next_tree.fetch_add(1, Ordering::Relaxed);
        let connected = Arc::new(TreeConnect { id, tree, place });
        trees.insert(id, connected.clone());
        Ok(connected)
    }

    /// A share that it is connected to.
    pub(crate) fn tree(&self, id: u32) -> Option<Arc<TreeConnect>> {
        self.trees.lock().get(&id).cloned()
    }

    /// Takes a share away, and what is open in it, to be closed.
    pub(crate) fn disconnect(&self, id: u32) -> Vec<Arc<Open>> {
        let Some(tree) = self.trees.lock().remove(&id) else { return vec![] };
        let mut opens = self.opens.lock();
        opens.extract_if(|_, open| Arc::ptr_eq(&open.tree, &tree)).map(|(_, open)| open).collect()
    }

    /// Takes everything away that is open, to be closed.
    pub(crate) fn clear(&self) -> Vec<Arc<Open>> {
        self.trees.lock().clear();
        self.opens.lock().drain().map(|(_, open)| open).collect()
    }

    /// An open of this session.
    pub(crate) fn open(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().get(&id.volatile).filter(|open| open.id == id).cloned()
    }

    /// Whether it can have another open.
    pub(crate) fn has_room(&self) -> bool {
        self.opens.lock().len() < MAX_OPENS
    }

    /// Adds an open.
    pub(crate) fn add(&self, open: Arc<Open>) {
        self.opens.lock().insert(open.id.volatile, open);
    }

    /// Takes an open away.
    pub(crate) fn remove(&self, id: FileId) -> Option<Arc<Open>> {
        self.opens.lock().remove(&id.volatile)
    }

    /// Ends it: everything that is open is closed. `lost`: because its connection is gone, so what is durable stays. If it is
    /// ending already, waits for that.
    pub(crate) async fn end(&self, server: &Arc<Server>, lost: bool) {
        let Some(ending) = server.sessions.end(self.id) else { return self.ended.cancelled().await };
        let connections: Vec<_> =
            self.channels.lock().iter().filter_map(|channel| channel.connection.upgrade()).collect();
        for connection in connections {
            connection.forget_session(self.id, self.signing(&connection));
        }
        // Before anything is waited for: a client that is back soon gets all that is durable.
        let (kept, closed): (Vec<_>, Vec<_>) =
            self.clear().into_iter().partition(|open| lost && handles::keep(server, open));
        for open in closed {
            close::discard(server, &open).await;
        }
        for open in kept {
            handles::flush(server, &open).await;
        }
        drop(ending);
        server.handles.end(self);
    }
}
