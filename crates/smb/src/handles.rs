//! All opens of the server, whichever session they belong to: what breaks are told through, and where durable ones wait for
//! their clients.
//!
//! The file service's table says who has to give up what. Here is who is to be told, and what becomes of an open whose
//! client is gone: a durable one stays until the client is back, its time is over, or it is in somebody's way.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, ready};
use std::time::Duration;

use lazuli_concurrency::Caching;
use lazuli_file::native::Failure;
use lazuli_file::opens::{Break, CacheKey, FileKey, OpenId};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::commands::close;
use crate::open::{LeaseKey, Open};
use crate::server::Server;
use crate::session::Session;
use crate::wire::create::oplock;
use crate::wire::oplock::{self as message, LeaseBreak};

/// After how long it is looked whether an open that is being broken is known by now, at first and at last.
const LOOK_SOON: Duration = Duration::from_millis(5);
const LOOK_LATER: Duration = Duration::from_millis(100);

/// All opens.
pub(crate) struct Handles {
    known: Mutex<Known>,
    /// What persistent ids start from: different after every start, so that none names what another client has open.
    first: u64,
    /// Where the table of opens says what has to be given up.
    pub(crate) breaks: UnboundedSender<Break>,
    heard: Mutex<UnboundedReceiver<Break>>,
    /// Opens that are under way, by what their clients named them.
    beginning: Arc<Mutex<HashSet<(u128, u128)>>>,
}

/// An open is under way.
#[derive(Debug)]
pub(crate) struct Beginning {
    all: Arc<Mutex<HashSet<(u128, u128)>>>,
    name: (u128, u128),
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

#[derive(Default)]
struct Known {
    /// By their numbers in the table of opens.
    opens: HashMap<u64, Entry>,
    /// The numbers of those that their clients named, by client and name.
    named: HashMap<(u128, u128), u64>,
    leases: HashMap<LeaseKey, Lease>,
    /// Sessions of clients that have leases, the oldest first: that is where they are told of breaks.
    clients: HashMap<u128, Vec<Weak<Session>>>,
}

struct Entry {
    open: Arc<Open>,
    /// How often its client was lost, if it is now: so that a timer knows which time it is for.
    lost: Option<u64>,
    losses: u64,
}

/// A lease, of all opens that have its key.
struct Lease {
    file: FileKey,
    is_second: bool,
    /// What the epochs of the table are to be raised by, as the client said where they start.
    epoch: u16,
    opens: Vec<u64>,
}

/// What a lease is like when an open has joined it.
pub(crate) struct Joined {
    /// Whether it is of the second version.
    pub(crate) is_second: bool,
    /// Its epoch.
    pub(crate) epoch: u16,
}

impl Handles {
    pub(crate) fn new(first: u64) -> Self {
        let (breaks, heard) = unbounded_channel();
        Self { known: Mutex::default(), first, breaks, heard: Mutex::new(heard), beginning: Arc::default() }
    }

    /// A client opens something that it gives a name. None: that is under way already.
    pub(crate) fn begin(&self, client: u128, guid: u128) -> Option<Beginning> {
        let name = (client, guid);
        let is_new = self.beginning.lock().insert(name);
        is_new.then(|| Beginning { all: self.beginning.clone(), name })
    }

    /// The persistent id of what has that number in the table.
    pub(crate) const fn persistent(&self, file: OpenId) -> u64 {
        self.first.wrapping_add(file.number)
    }

    /// Adds an open, or puts one in the place of what it was before its client came back.
    pub(crate) fn add(&self, open: &Arc<Open>) {
        let Some(file) = open.file else { return };
        let mut known = self.known.lock();
        let losses = known.opens.get(&file.number).map_or(0, |entry| entry.losses);
        known.opens.insert(file.number, Entry { open: open.clone(), lost: None, losses });
        if let Some(name) = open.named {
            known.named.insert(name, file.number);
        }
    }

    /// An open that is about to be added has a lease. None: the key is that of another file.
    pub(crate) fn join(
        &self,
        session: &Arc<Session>,
        key: LeaseKey,
        file: OpenId,
        table_epoch: u16,
        asked: Option<u16>,
    ) -> Option<Joined> {
        let mut known = self.known.lock();
        known.meet(key.client, session);
        let lease = known.leases.entry(key).or_insert_with(|| Lease {
            file: file.file,
            is_second: asked.is_some(),
            epoch: asked.unwrap_or_default().wrapping_add(1).wrapping_sub(table_epoch),
            opens: vec![],
        });
        if lease.file != file.file {
            return None;
        }
        if !lease.opens.contains(&file.number) {
            lease.opens.push(file.number);
        }
        Some(Joined { is_second: lease.is_second, epoch: table_epoch.wrapping_add(lease.epoch) })
    }

    /// An open of a lease, and its file.
    pub(crate) fn leased(&self, key: LeaseKey) -> Option<OpenId> {
        let known = self.known.lock();
        let lease = known.leases.get(&key)?;
        Some(OpenId { file: lease.file, number: *lease.opens.first()? })
    }

    /// A session has ended: its client is not told of breaks there any more.
    pub(crate) fn end(&self, session: &Session) {
        self.known.lock().clients.retain(|_, sessions| {
            sessions.retain(|known| !std::ptr::eq(known.as_ptr(), session));
            !sessions.is_empty()
        });
    }

    /// How many clients are known.
    #[cfg(test)]
    pub(crate) fn clients(&self) -> usize {
        self.known.lock().clients.len()
    }

    /// Takes an open away.
    pub(crate) fn remove(&self, open: &Open) {
        self.known.lock().forget(open);
    }

    /// An open that came to nothing leaves its lease.
    pub(crate) fn leave(&self, key: LeaseKey, file: OpenId) {
        self.known.lock().leave(key, file.number);
    }

    /// The client of a durable open is gone. Which time this is; none if it is not there any more.
    fn lose(&self, file: OpenId) -> Option<u64> {
        let mut known = self.known.lock();
        let entry = known.opens.get_mut(&file.number)?;
        entry.losses += 1;
        entry.lost = Some(entry.losses);
        entry.lost
    }

    /// Takes away a durable open that nobody has come back for, to be closed.
    fn expire(&self, file: OpenId, loss: u64) -> Option<Arc<Open>> {
        self.known.lock().take_lost(file.number, |lost| lost == loss)
    }

    /// Takes away a durable open whose client is gone, because it is in somebody's way.
    fn give_up(&self, open: &Open) -> Option<Arc<Open>> {
        self.known.lock().take_lost(open.file?.number, |_| true)
    }

    /// A durable open whose client is gone, by its persistent id.
    pub(crate) fn find_lost(&self, persistent: u64) -> Option<Arc<Open>> {
        let known = self.known.lock();
        let entry = known.opens.get(&persistent.wrapping_sub(self.first))?;
        entry.lost.is_some().then(|| entry.open.clone())
    }

    /// The client is back: the open belongs to it again. False if it was taken away meanwhile.
    pub(crate) fn reclaim(&self, old: &Arc<Open>, new: &Arc<Open>) -> bool {
        let Some(file) = old.file else { return false };
        let mut known = self.known.lock();
        match known.opens.get_mut(&file.number) {
            Some(entry) if entry.lost.is_some() && Arc::ptr_eq(&entry.open, old) => {
                (entry.open, entry.lost) = (new.clone(), None);
                known.unname(old, file.number);
                true
            }
            _ => false,
        }
    }

    /// The open that a client named so when it opened it, as long as it has not used it.
    pub(crate) fn find_named(&self, client: u128, guid: u128) -> Option<(Arc<Open>, bool)> {
        let known = self.known.lock();
        let entry = known.opens.get(known.named.get(&(client, guid))?)?;
        let is_used = entry.open.is_used.load(Ordering::Relaxed);
        (!is_used).then(|| (entry.open.clone(), entry.lost.is_some()))
    }

    /// Takes away all opens whose clients are gone, to be closed.
    fn take_lost(&self) -> Vec<Arc<Open>> {
        let mut known = self.known.lock();
        let lost: Vec<_> = known
            .opens
            .values()
            .filter(|entry| entry.lost.is_some())
            .map(|entry| entry.open.clone())
            .collect();
        lost.iter().for_each(|open| known.forget(open));
        lost
    }

    /// Who is to be told of a break. None: nobody is known yet.
    fn addressees(&self, told: &Break) -> Option<Vec<(Arc<Open>, bool)>> {
        let known = self.known.lock();
        let numbers = match told.key {
            CacheKey::Oplock(number) => vec![number],
            CacheKey::Lease { client, key } => known.leases.get(&LeaseKey { client, key })?.opens.clone(),
        };
        let found = numbers.iter().filter_map(|number| known.opens.get(number));
        let found: Vec<_> = found.map(|entry| (entry.open.clone(), entry.lost.is_some())).collect();
        (!found.is_empty()).then_some(found)
    }

    /// The sessions of a client, the oldest first.
    fn sessions_of(&self, server: &Server, client: u128) -> Vec<Arc<Session>> {
        let known = self.known.lock();
        let sessions = known.clients.get(&client).into_iter().flatten().filter_map(Weak::upgrade);
        sessions.filter(|session| server.sessions.get(session.id).is_some()).collect()
    }

    /// The epoch of a lease as its client counts; 0 for the first version.
    fn epoch(&self, key: LeaseKey, table_epoch: u16) -> u16 {
        let known = self.known.lock();
        let lease = known.leases.get(&key).filter(|lease| lease.is_second);
        lease.map_or(0, |lease| table_epoch.wrapping_add(lease.epoch))
    }
}

impl Known {
    /// A client has a lease in a session.
    fn meet(&mut self, client: u128, session: &Arc<Session>) {
        // Nobody would take it away again.
        if session.ended.is_cancelled() {
            return;
        }
        let sessions = self.clients.entry(client).or_default();
        if !sessions.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(session))) {
            sessions.push(Arc::downgrade(session));
        }
    }

    fn leave(&mut self, key: LeaseKey, number: u64) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.opens.retain(|other| *other != number);
            if lease.opens.is_empty() {
                self.leases.remove(&key);
            }
        }
    }

    fn forget(&mut self, open: &Open) {
        let Some(file) = open.file else { return };
        self.opens.remove(&file.number);
        self.unname(open, file.number);
        if let Some(key) = open.lease {
            self.leave(key, file.number);
        }
    }

    /// Takes away an open whose client is gone, if it is that loss: the client may have come back.
    fn take_lost(&mut self, number: u64, is_it: impl Fn(u64) -> bool) -> Option<Arc<Open>> {
        let entry = self.opens.get(&number).filter(|entry| entry.lost.is_some_and(is_it))?;
        let open = entry.open.clone();
        self.forget(&open);
        Some(open)
    }

    /// An open is not found by its name any more.
    fn unname(&mut self, open: &Open, number: u64) {
        if let Some(name) = open.named
            && self.named.get(&name) == Some(&number)
        {
            self.named.remove(&name);
        }
    }
}

/// Tells clients what they have to give up, until the server stops.
pub(crate) async fn tell_all(server: Arc<Server>, closing: CancellationToken) {
    let told = poll_fn(|context| {
        let mut heard = server.handles.heard.lock();
        while let Some(told) = ready!(heard.poll_recv(context)) {
            tell_soon(&server, told);
        }
        Poll::Ready(())
    });
    tokio::select! {
        () = told => {}
        () = closing.cancelled() => {}
    }
}

/// Tells clients what they have to give up because of what has begun just now, before anything else is begun: they hear of it
/// before they are answered what they have asked for later.
pub(crate) fn tell_now(server: &Arc<Server>) {
    // Whoever else does it just now tells of these, too.
    let Some(mut heard) = server.handles.heard.try_lock() else { return };
    while let Ok(told) = heard.try_recv() {
        tell_soon(server, told);
    }
}

/// Tells of a break, or does so in a moment, when the open that was granted is known, or its client can be reached. What
/// needs no answer is told by the answer to that open.
pub(crate) fn tell_soon(server: &Arc<Server>, told: Break) {
    if !tell(server, &told) && told.acknowledge {
        tokio::spawn(tell_later(server.clone(), told));
    }
}

/// Closes what waits for clients that are gone: the server stops.
pub(crate) async fn close_lost(server: &Arc<Server>) {
    for open in server.handles.take_lost() {
        close::discard(server, &open).await;
    }
}

/// Tells of a break to an open that was granted and is not known yet, but will be, as long as others wait for it.
async fn tell_later(server: Arc<Server>, told: Break) {
    let mut pause = LOOK_SOON;
    while server.files.opens().is_current(&told) {
        tokio::time::sleep(pause).await;
        if tell(&server, &told) {
            return;
        }
        pause = LOOK_LATER.min(pause * 2);
    }
}

/// Tells a client, or closes what nobody is there to be told for. False: it is not known who has it, or nobody can be reached
/// just now.
fn tell(server: &Arc<Server>, told: &Break) -> bool {
    let Some(opens) = server.handles.addressees(told) else { return false };
    let connected = |(open, is_lost): &(Arc<Open>, bool)| {
        let session = open.session.upgrade().filter(|_| !is_lost)?;
        Some((open.id, session))
    };
    let connected: Vec<_> = opens.iter().filter_map(connected).collect();
    let Some((open, _)) = connected.first() else {
        for open in opens.iter().filter_map(|(open, _)| server.handles.give_up(open)) {
            let server = server.clone();
            tokio::spawn(async move { close::discard(&server, &open).await });
        }
        return true;
    };
    let (body, oldest) = match told.key {
        CacheKey::Oplock(_) => (message::oplock(level(told.to), *open), vec![]),
        CacheKey::Lease { client, key } => {
            let body = LeaseBreak {
                epoch: server.handles.epoch(LeaseKey { client, key }, told.epoch),
                acknowledge: told.acknowledge,
                key,
                from: told.from.bits(),
                to: told.to.bits(),
            };
            (body.write(), server.handles.sessions_of(server, client))
        }
    };
    let mut sessions = oldest.iter().chain(connected.iter().map(|(_, session)| session));
    sessions.any(|session| send(server, told, session, &body))
}

/// Tells a client in one of its sessions. False: that is on no connection any more.
fn send(server: &Server, told: &Break, session: &Session, body: &[u8]) -> bool {
    // One that is lost just now is not found again.
    while let Some(connection) = session.connection() {
        if connection.tell(server, told, session, body.to_vec()) {
            return true;
        }
    }
    false
}

/// The level of an oplock.
pub(crate) fn level(caching: Caching) -> u8 {
    match caching {
        Caching::RWH => oplock::BATCH,
        Caching::RW => oplock::EXCLUSIVE,
        Caching::R => oplock::II,
        _ => oplock::NONE,
    }
}

/// Keeps an open whose client is gone, if it is durable and can be. False: it is to be closed.
pub(crate) fn keep(server: &Arc<Server>, open: &Arc<Open>) -> bool {
    let (Some(durable), Some(file)) = (open.durable, open.file) else { return false };
    let is_cached = || {
        let opened = server.files.opens().opened(file);
        opened.is_some_and(|opened| opened.caching.contains(Caching::H) && !opened.breaking)
    };
    if !is_cached() {
        return false;
    }
    let Some(loss) = server.handles.lose(file) else { return false };
    // Nobody has heard of a break that began meanwhile.
    if !is_cached() && server.handles.expire(file, loss).is_some() {
        return false;
    }
    open.closed.cancel();
    let server: Weak<Server> = Arc::downgrade(server);
    tokio::spawn(async move {
        tokio::time::sleep(durable.timeout).await;
        let Some(server) = server.upgrade() else { return };
        if let Some(open) = server.handles.expire(file, loss) {
            close::discard(&server, &open).await;
        }
    });
    true
}

/// Makes durable what a client that is gone has written to what it may come back for.
pub(crate) async fn flush(server: &Server, open: &Open) {
    let Some(file) = open.file else { return };
    match server.files.flush(file).await {
        // Somebody has closed it meanwhile, which is as good.
        Ok(()) | Err(Failure::Closed) => {}
        Err(failure) => tracing::warn!(%failure, "what a lost client has written could not be made durable"),
    }
}
