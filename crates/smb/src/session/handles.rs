//! The opens of all sessions. Sends breaks to the clients that have them, and keeps durable opens of
//! disconnected clients.
//!
//! The open-file table of the file service decides which cache must be broken. This module decides which
//! client is notified, and what becomes of the opens of a disconnected client. A durable open is kept until
//! the client reconnects, its timeout expires, or it conflicts with another client.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, ready};
use std::time::Duration;

use lazuli_concurrency::Caching;
use lazuli_file::handles::Failure;
use lazuli_file::opens::{Break, CacheKey, FileKey, OpenId};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::server::ServerState;
use crate::session::Session;
use crate::session::open::{LeaseKey, Open};
use crate::wire::create::{oplock, options};
use crate::wire::oplock::{self as message, LeaseBreak};

/// Delays before a break is sent again if its open is not registered yet or its client cannot be reached.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(5);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(100);

/// All opens, except those of pipes.
pub(crate) struct Handles {
    index: Mutex<HandleIndex>,
    /// Persistent ids are this number plus the number in the open-file table. Random at each start, so that
    /// no id names an open from before a restart.
    persistent_base: u64,
    /// The open-file table queues its breaks here.
    pub(crate) breaks: UnboundedSender<Break>,
    break_receiver: Mutex<UnboundedReceiver<Break>>,
    /// Client and create GUID of the CREATE requests in progress.
    creates_in_progress: Arc<Mutex<HashSet<(u128, u128)>>>,
}

/// Marks a CREATE with a create GUID as in progress until dropped.
#[derive(Debug)]
pub(crate) struct CreateInProgress {
    all: Arc<Mutex<HashSet<(u128, u128)>>>,
    name: (u128, u128),
}

impl Drop for CreateInProgress {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

#[derive(Default)]
struct HandleIndex {
    /// By number in the open-file table.
    opens: HashMap<u64, HandleEntry>,
    /// Numbers of the opens with a create GUID, by client and GUID.
    by_create_guid: HashMap<(u128, u128), u64>,
    leases: HashMap<LeaseKey, LeaseEntry>,
    /// Sessions of the clients that have leases, oldest first. Lease breaks are sent in the oldest session.
    clients: HashMap<u128, Vec<Weak<Session>>>,
}

struct HandleEntry {
    open: Arc<Open>,
    /// Set while the client is disconnected: the value of `disconnects` at the disconnect. A timer uses it to
    /// recognize a client that has come back since.
    disconnected_at: Option<u64>,
    disconnects: u64,
}

/// A lease and the opens that share its key.
struct LeaseEntry {
    file: FileKey,
    is_v2: bool,
    /// The client chooses the first epoch of a lease. This is the difference between its epochs and those of
    /// the open-file table.
    epoch: u16,
    opens: Vec<u64>,
}

/// The state of a lease after an open has joined it.
pub(crate) struct JoinedLease {
    /// Whether the lease is a version 2 lease.
    pub(crate) is_v2: bool,
    pub(crate) epoch: u16,
}

impl Handles {
    pub(crate) fn new(persistent_base: u64) -> Self {
        let (breaks, break_receiver) = unbounded_channel();
        Self {
            index: Mutex::default(),
            persistent_base,
            breaks,
            break_receiver: Mutex::new(break_receiver),
            creates_in_progress: Arc::default(),
        }
    }

    /// Begins a CREATE with a create GUID. Returns `None` if one with the same GUID is in progress.
    pub(crate) fn begin_create(&self, client: u128, guid: u128) -> Option<CreateInProgress> {
        let name = (client, guid);
        let is_new = self.creates_in_progress.lock().insert(name);
        is_new.then(|| CreateInProgress { all: self.creates_in_progress.clone(), name })
    }

    /// Returns the persistent id of an open file.
    pub(crate) const fn persistent_id(&self, file: OpenId) -> u64 {
        self.persistent_base.wrapping_add(file.number)
    }

    /// Adds an open, or replaces the one that its client has reconnected.
    pub(crate) fn add(&self, open: &Arc<Open>) {
        let Some(file) = open.file else { return };
        let mut index = self.index.lock();
        let disconnects = index.opens.get(&file.number).map_or(0, |entry| entry.disconnects);
        index
            .opens
            .insert(file.number, HandleEntry { open: open.clone(), disconnected_at: None, disconnects });
        if let Some(name) = open.client_create_guid {
            index.by_create_guid.insert(name, file.number);
        }
    }

    /// Adds an open to a lease before it is added itself. Returns `None` if the lease key belongs to another
    /// file.
    pub(crate) fn join_lease(
        &self,
        session: &Arc<Session>,
        key: LeaseKey,
        file: OpenId,
        file_epoch: u16,
        requested_epoch: Option<u16>,
    ) -> Option<JoinedLease> {
        let mut index = self.index.lock();
        index.add_client_session(key.client, session);
        let lease = index.leases.entry(key).or_insert_with(|| LeaseEntry {
            file: file.file,
            is_v2: requested_epoch.is_some(),
            epoch: requested_epoch.unwrap_or_default().wrapping_add(1).wrapping_sub(file_epoch),
            opens: vec![],
        });
        if lease.file != file.file {
            return None;
        }
        if !lease.opens.contains(&file.number) {
            lease.opens.push(file.number);
        }
        Some(JoinedLease { is_v2: lease.is_v2, epoch: file_epoch.wrapping_add(lease.epoch) })
    }

    /// Returns an open of a lease.
    pub(crate) fn open_with_lease(&self, key: LeaseKey) -> Option<OpenId> {
        let index = self.index.lock();
        let lease = index.leases.get(&key)?;
        Some(OpenId { file: lease.file, number: *lease.opens.first()? })
    }

    /// Removes an ended session, so that no lease break is sent in it.
    pub(crate) fn remove_session(&self, session: &Session) {
        self.index.lock().clients.retain(|_, sessions| {
            sessions.retain(|known| !std::ptr::eq(known.as_ptr(), session));
            !sessions.is_empty()
        });
    }

    /// Returns the number of clients with leases.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.index.lock().clients.len()
    }

    /// Removes an open.
    pub(crate) fn remove(&self, open: &Open) {
        self.index.lock().remove(open);
    }

    /// Removes an open that failed from its lease.
    pub(crate) fn leave_lease(&self, key: LeaseKey, file: OpenId) {
        self.index.lock().leave_lease(key, file.number);
    }

    /// Marks the client of a durable open as disconnected. Returns the number of this disconnect, or `None`
    /// if the open has been removed.
    fn mark_disconnected(&self, file: OpenId) -> Option<u64> {
        let mut index = self.index.lock();
        let entry = index.opens.get_mut(&file.number)?;
        entry.disconnects += 1;
        entry.disconnected_at = Some(entry.disconnects);
        entry.disconnected_at
    }

    /// Removes a durable open, to be closed, unless the client has come back since this disconnect.
    fn take_expired(&self, file: OpenId, disconnect: u64) -> Option<Arc<Open>> {
        self.index.lock().take_disconnected(file.number, |disconnected_at| disconnected_at == disconnect)
    }

    /// Removes a durable open, to be closed, if its client is disconnected.
    fn take_if_disconnected(&self, open: &Open) -> Option<Arc<Open>> {
        self.index.lock().take_disconnected(open.file?.number, |_| true)
    }

    /// Finds a durable open of a disconnected client by its persistent id.
    pub(crate) fn find_disconnected(&self, persistent: u64) -> Option<Arc<Open>> {
        let index = self.index.lock();
        let entry = index.opens.get(&persistent.wrapping_sub(self.persistent_base))?;
        entry.disconnected_at.is_some().then(|| entry.open.clone())
    }

    /// Gives a durable open to the client that has come back. Returns false if it was removed meanwhile.
    pub(crate) fn reclaim(&self, old: &Arc<Open>, new: &Arc<Open>) -> bool {
        let Some(file) = old.file else { return false };
        let mut index = self.index.lock();
        match index.opens.get_mut(&file.number) {
            Some(entry) if entry.disconnected_at.is_some() && Arc::ptr_eq(&entry.open, old) => {
                (entry.open, entry.disconnected_at) = (new.clone(), None);
                index.remove_create_guid(old, file.number);
                true
            }
            _ => false,
        }
    }

    /// Finds an open by its create GUID, unless the client has used it already. Also returns whether its
    /// client is disconnected.
    pub(crate) fn find_by_create_guid(&self, client: u128, guid: u128) -> Option<(Arc<Open>, bool)> {
        let index = self.index.lock();
        let entry = index.opens.get(index.by_create_guid.get(&(client, guid))?)?;
        let is_used = entry.open.is_used.load(Ordering::Relaxed);
        (!is_used).then(|| (entry.open.clone(), entry.disconnected_at.is_some()))
    }

    /// Removes all opens of disconnected clients, to be closed.
    fn take_all_disconnected(&self) -> Vec<Arc<Open>> {
        let mut index = self.index.lock();
        let opens: Vec<_> = index
            .opens
            .values()
            .filter(|entry| entry.disconnected_at.is_some())
            .map(|entry| entry.open.clone())
            .collect();
        opens.iter().for_each(|open| index.remove(open));
        opens
    }

    /// Returns the opens that share the broken cache, and whether their clients are disconnected. Returns
    /// `None` if no such open has been added yet.
    fn opens_with_cache(&self, notice: &Break) -> Option<Vec<(Arc<Open>, bool)>> {
        let index = self.index.lock();
        let numbers = match notice.key {
            CacheKey::Oplock(number) => vec![number],
            CacheKey::Lease { client, key } => index.leases.get(&LeaseKey { client, key })?.opens.clone(),
        };
        let found = numbers.iter().filter_map(|number| index.opens.get(number));
        let found: Vec<_> =
            found.map(|entry| (entry.open.clone(), entry.disconnected_at.is_some())).collect();
        (!found.is_empty()).then_some(found)
    }

    /// Returns the sessions of a client with leases, oldest first.
    fn sessions_of(&self, server: &ServerState, client: u128) -> Vec<Arc<Session>> {
        let index = self.index.lock();
        let sessions = index.clients.get(&client).into_iter().flatten().filter_map(Weak::upgrade);
        sessions.filter(|session| server.sessions.get(session.id).is_some()).collect()
    }

    /// Returns the epoch of a lease as its client counts it, or 0 for a version 1 lease.
    fn lease_epoch(&self, key: LeaseKey, file_epoch: u16) -> u16 {
        let index = self.index.lock();
        let lease = index.leases.get(&key).filter(|lease| lease.is_v2);
        lease.map_or(0, |lease| file_epoch.wrapping_add(lease.epoch))
    }
}

impl HandleIndex {
    /// Remembers a session of a client with a lease.
    fn add_client_session(&mut self, client: u128, session: &Arc<Session>) {
        // A session added after its end would never be removed.
        if session.ended.is_cancelled() {
            return;
        }
        let sessions = self.clients.entry(client).or_default();
        if !sessions.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(session))) {
            sessions.push(Arc::downgrade(session));
        }
    }

    fn leave_lease(&mut self, key: LeaseKey, number: u64) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.opens.retain(|other| *other != number);
            if lease.opens.is_empty() {
                self.leases.remove(&key);
            }
        }
    }

    fn remove(&mut self, open: &Open) {
        let Some(file) = open.file else { return };
        self.opens.remove(&file.number);
        self.remove_create_guid(open, file.number);
        if let Some(key) = open.lease {
            self.leave_lease(key, file.number);
        }
    }

    /// Removes an open if its client is disconnected and the number of the disconnect matches.
    fn take_disconnected(&mut self, number: u64, matches: impl Fn(u64) -> bool) -> Option<Arc<Open>> {
        let entry = self.opens.get(&number).filter(|entry| entry.disconnected_at.is_some_and(matches))?;
        let open = entry.open.clone();
        self.remove(&open);
        Some(open)
    }

    /// Removes the create GUID of an open.
    fn remove_create_guid(&mut self, open: &Open, number: u64) {
        if let Some(name) = open.client_create_guid
            && self.by_create_guid.get(&name) == Some(&number)
        {
            self.by_create_guid.remove(&name);
        }
    }
}

/// Sends queued breaks until the server stops.
pub(crate) async fn send_breaks(server: Arc<ServerState>, closing: CancellationToken) {
    let notice = poll_fn(|context| {
        let mut break_receiver = server.handles.break_receiver.lock();
        while let Some(notice) = ready!(break_receiver.poll_recv(context)) {
            send_break_or_retry(&server, notice);
        }
        Poll::Ready(())
    });
    tokio::select! {
        () = notice => {}
        () = closing.cancelled() => {}
    }
}

/// Sends the breaks that a request has just caused, before the next request starts. Clients receive them
/// before the responses to later requests.
pub(crate) fn send_queued_breaks(server: &Arc<ServerState>) {
    // If another task holds the lock, it sends these breaks, too.
    let Some(mut break_receiver) = server.handles.break_receiver.try_lock() else { return };
    while let Ok(notice) = break_receiver.try_recv() {
        send_break_or_retry(server, notice);
    }
}

/// Sends a break. If its open has not been added yet or its client cannot be reached, retries later, but only
/// if the break needs an acknowledgment. Otherwise the response to the open reports the reduced cache.
pub(crate) fn send_break_or_retry(server: &Arc<ServerState>, notice: Break) {
    if !send_break(server, &notice) && notice.acknowledge {
        tokio::spawn(retry_break(server.clone(), notice));
    }
}

/// Closes the opens of disconnected clients when the server stops.
pub(crate) async fn close_disconnected(server: &Arc<ServerState>) {
    for open in server.handles.take_all_disconnected() {
        discard(server, &open).await;
    }
}

/// Retries a break until it was sent or is no longer current.
async fn retry_break(server: Arc<ServerState>, notice: Break) {
    let mut pause = MIN_RETRY_DELAY;
    while server.files.opens().is_current(&notice) {
        tokio::time::sleep(pause).await;
        if send_break(&server, &notice) {
            return;
        }
        pause = MAX_RETRY_DELAY.min(pause * 2);
    }
}

/// Sends a break to the client that has the cache. If the client is disconnected, closes its opens instead.
/// Returns false if the open has not been added yet, or if no connection of the client is left.
fn send_break(server: &Arc<ServerState>, notice: &Break) -> bool {
    let Some(opens) = server.handles.opens_with_cache(notice) else { return false };
    let connected = |(open, is_disconnected): &(Arc<Open>, bool)| {
        let session = open.session.upgrade().filter(|_| !is_disconnected)?;
        Some((open.id, session))
    };
    let connected: Vec<_> = opens.iter().filter_map(connected).collect();
    let Some((open, _)) = connected.first() else {
        for open in opens.iter().filter_map(|(open, _)| server.handles.take_if_disconnected(open)) {
            let server = server.clone();
            tokio::spawn(async move { discard(&server, &open).await });
        }
        return true;
    };
    let (body, oldest) = match notice.key {
        CacheKey::Oplock(_) => (message::oplock(oplock_level(notice.to), *open), vec![]),
        CacheKey::Lease { client, key } => {
            let body = LeaseBreak {
                epoch: server.handles.lease_epoch(LeaseKey { client, key }, notice.epoch),
                acknowledge: notice.acknowledge,
                key,
                from: notice.from.bits(),
                to: notice.to.bits(),
            };
            (body.write(), server.handles.sessions_of(server, client))
        }
    };
    let mut sessions = oldest.iter().chain(connected.iter().map(|(_, session)| session));
    sessions.any(|session| send_in_session(server, notice, session, &body))
}

/// Sends a break in a session. Returns false if the session has no connection.
fn send_in_session(server: &ServerState, notice: &Break, session: &Session, body: &[u8]) -> bool {
    // `connection` does not return a connection that has ended, so the loop ends.
    while let Some(connection) = session.connection() {
        if connection.send_break(server, notice, session, body.to_vec()) {
            return true;
        }
    }
    false
}

/// Returns the oplock level of a caching state.
pub(crate) fn oplock_level(caching: Caching) -> u8 {
    match caching {
        Caching::RWH => oplock::BATCH,
        Caching::RW => oplock::EXCLUSIVE,
        Caching::R => oplock::II,
        _ => oplock::NONE,
    }
}

/// Keeps a durable open of a disconnected client until its timeout. Returns false if the open cannot be kept
/// and must be closed.
pub(crate) fn keep_durable(server: &Arc<ServerState>, open: &Arc<Open>) -> bool {
    let (Some(durable), Some(file)) = (open.durable, open.file) else { return false };
    let is_cached = || {
        let opened = server.files.opens().opened(file);
        opened.is_some_and(|opened| opened.caching.contains(Caching::H) && !opened.breaking)
    };
    if !is_cached() {
        return false;
    }
    let Some(disconnect) = server.handles.mark_disconnected(file) else { return false };
    // A break that began meanwhile was sent to no client, so close the open.
    if !is_cached() && server.handles.take_expired(file, disconnect).is_some() {
        return false;
    }
    open.closed.cancel();
    let server: Weak<ServerState> = Arc::downgrade(server);
    tokio::spawn(async move {
        tokio::time::sleep(durable.timeout).await;
        let Some(server) = server.upgrade() else { return };
        if let Some(open) = server.handles.take_expired(file, disconnect) {
            discard(&server, &open).await;
        }
    });
    true
}

/// Flushes the dirty data of an open that waits for its client.
pub(crate) async fn flush_disconnected(server: &ServerState, open: &Open) {
    let Some(file) = open.file else { return };
    match server.files.flush(file).await {
        // The open was closed meanwhile, which flushed it.
        Ok(()) | Err(Failure::Closed) => {}
        Err(failure) => {
            tracing::warn!(
                %failure,
                ?file,
                "could not flush the data of a disconnected SMB client; the flush is retried",
            )
        }
    }
}

/// Closes an open that was removed from its session, and notifies watchers if this deletes the file.
pub(crate) async fn close(server: &Arc<ServerState>, open: &Arc<Open>) -> Result<(), Failure> {
    server.handles.remove(open);
    open.closed.cancel();
    let Some(file) = open.file else { return Ok(()) };
    let dooms = open.is_directory && open.options & options::DELETE_ON_CLOSE != 0;
    let doomed = if dooms { server.files.path_of(file) } else { None };
    if let Some(removed) = server.files.close_open(file).await? {
        server.notifier.notify_removed(file.file.space, &removed.path, removed.is_directory);
    } else if let Some(path) = doomed {
        // Other opens keep the directory, but no entry can be created in it.
        server.notifier.notify_deleting(file.file.space, &path);
    }
    Ok(())
}

/// Closes an open whose tree connect, session or connection has ended.
pub(crate) async fn discard(server: &Arc<ServerState>, open: &Arc<Open>) {
    match close(server, open).await {
        // The open was force-closed before.
        Ok(()) | Err(Failure::Closed) => {}
        Err(failure) => {
            tracing::warn!(
                %failure,
                file = ?open.file,
                "could not close a file of an ended SMB session; its unflushed writes may be lost",
            )
        }
    }
}
