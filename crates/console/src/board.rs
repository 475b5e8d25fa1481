//! The console's knowledge of requests: which request wrote a version, which client holds a lease or a
//! message, and which requests were refused because of them.
//!
//! Everything is in memory and bounded, and begins with the process. An ETag is the stamp of a commit, so the
//! first successful reply that names an ETag is that of the request that wrote the version.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::ServiceKind;
use lazuli_protocol::conflict::Conflict;
use lazuli_protocol::watch::{Interest, MessageEvent, Observer, RequestEvent, RequestWatch};
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::hub::{Hub, Topic};
use crate::reply::time_text;

/// Writes that are remembered.
const MAX_WRITES: usize = 65_536;
/// Clients that are remembered. A client is an address with a user agent and credentials.
const MAX_CLIENTS: usize = 4096;
/// Leases that are remembered.
const MAX_LEASES: usize = 10_000;
/// Consumed messages that are remembered.
const MAX_MESSAGES: usize = 16_384;
/// Conflicts that count for hot objects.
const MAX_RECENT: usize = 4096;
/// For how long a conflict counts for hot objects.
const HOT: Span = Span::seconds(60);
/// For how long a lease is shown after its end.
const KEPT_LEASE: Span = Span::seconds(60);

/// A client, as far as requests show it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ObservedClient {
    peer: IpAddr,
    caller: String,
    agent: Option<String>,
}

/// A request that others are compared with.
#[derive(Clone, Debug)]
struct Deed {
    client: Arc<ObservedClient>,
    port: u16,
    request_id: Uuid,
    at: Timestamp,
    operation: &'static str,
}

impl Deed {
    fn json(&self) -> Value {
        json!({
            "client": client_json(&self.client, self.port, self.request_id, None),
            "at": time_text(self.at),
            "operation": self.operation,
        })
    }
}

/// A lease as its requests show it.
#[derive(Clone, Debug)]
struct KnownLease {
    account: String,
    holder: Deed,
    /// The id, masked.
    id: String,
    state: &'static str,
    acquired: Timestamp,
    /// `None` if infinite.
    until: Option<Timestamp>,
    renewals: u32,
    refused: u32,
}

#[derive(Debug, Default)]
struct Known {
    /// By the hash of an ETag.
    writes: HashMap<u64, Deed>,
    /// The keys of `writes`, oldest first.
    order: VecDeque<u64>,
    clients: HashSet<Arc<ObservedClient>>,
    /// By service and path.
    leases: BTreeMap<(ServiceKind, String), KnownLease>,
    /// By message id: the request that got it, when it is visible again, and how often it was got.
    messages: HashMap<String, (Deed, Timestamp, u32)>,
    message_order: VecDeque<String>,
    /// Conflicts of the last minute.
    recent: VecDeque<(Timestamp, ServiceKind, String, Option<String>)>,
    conflicts: u64,
}

/// Observes requests.
#[derive(Debug)]
pub(crate) struct Board {
    hub: Arc<Hub>,
    watch: Arc<RequestWatch>,
    hasher: RandomState,
    known: Mutex<Known>,
}

impl Board {
    pub(crate) fn new(hub: Arc<Hub>, watch: Arc<RequestWatch>) -> Arc<Self> {
        let board = Arc::new(Self { hub, watch, hasher: RandomState::new(), known: Mutex::default() });
        board.watch.observe(board.clone());
        board.update_interest();
        board
    }

    /// Asks for all requests while a page shows the trace, else for those that write.
    pub(crate) fn update_interest(&self) {
        let is_traced = self.hub.is_wanted(Topic::Trace);
        self.watch.set_interest(if is_traced { Interest::ALL } else { Interest::WRITES });
    }

    /// Returns the number of conflicts since the process began.
    pub(crate) fn conflicts(&self) -> u64 {
        self.known.lock().conflicts
    }

    /// Lists the leases that a principal may see, with the next to end first.
    pub(crate) fn leases(&self, only: Option<&str>, now: Timestamp) -> Vec<Value> {
        let mut known = self.known.lock();
        known.leases.retain(|_, lease| lease.until.is_none_or(|until| until + KEPT_LEASE > now));
        let seen = known.leases.iter().filter(|(_, lease)| only.is_none_or(|only| lease.account == only));
        let mut seen: Vec<_> = seen.collect();
        seen.sort_by_key(|(_, lease)| lease.until.unwrap_or(Timestamp::MAX));
        let listed = seen.into_iter().take(500).map(|((service, path), lease)| {
            let is_over = lease.until.is_some_and(|until| until <= now);
            let state = match (lease.state, is_over) {
                ("breaking", true) => "broken",
                ("leased", true) => "expired",
                (state, _) => state,
            };
            json!({
                "account": lease.account,
                "service": service.name(),
                "resource": path,
                "state": state,
                "id": lease.id,
                "acquired": time_text(lease.acquired),
                "until": lease.until.map(time_text),
                "renewals": lease.renewals,
                "refused": lease.refused,
                "holder": lease.holder.json(),
            })
        });
        listed.collect()
    }

    /// Lists the objects with the most conflicts in the last minute.
    pub(crate) fn hot(&self, only: Option<&str>, now: Timestamp) -> Vec<Value> {
        let mut known = self.known.lock();
        known.forget_recent(now);
        let mut counts: HashMap<(ServiceKind, &str), u64> = HashMap::new();
        for (_, service, resource, account) in &known.recent {
            if only.is_none_or(|only| account.as_deref() == Some(only)) {
                *counts.entry((*service, resource)).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by(|(a, more), (b, less)| less.cmp(more).then(a.cmp(b)));
        let listed = counts.into_iter().take(10).map(|((service, resource), conflicts)| {
            json!({ "service": service.name(), "resource": resource, "conflicts": conflicts })
        });
        listed.collect()
    }

    /// Returns the request that got a message last.
    pub(crate) fn consumer(&self, message: &str) -> Option<Value> {
        self.known.lock().messages.get(message).map(|(deed, ..)| deed.json())
    }

    fn hash(&self, etag: &str) -> u64 {
        // Versions before 2011-08-18 omit the quotes.
        self.hasher.hash_one(etag.trim_matches('"'))
    }

    fn note_write(&self, event: &RequestEvent) {
        let Some(etag) = &event.etag else { return };
        let key = self.hash(etag);
        let mut known = self.known.lock();
        if known.writes.contains_key(&key) {
            return;
        }
        let deed = known.deed(event);
        known.writes.insert(key, deed);
        known.order.push_back(key);
        if known.order.len() > MAX_WRITES
            && let Some(oldest) = known.order.pop_front()
        {
            known.writes.remove(&oldest);
        }
    }

    fn note_lease(&self, event: &RequestEvent) {
        let (Some(account), Some(action)) = (&event.account, event.lease.action.as_deref()) else { return };
        let key = (event.service, resource(event));
        let mut known = self.known.lock();
        let duration = event.lease.duration.unwrap_or(60);
        let length = u64::try_from(duration).ok().map(Span::seconds);
        match action {
            "acquire" => {
                if known.leases.len() >= MAX_LEASES && !known.leases.contains_key(&key) {
                    return;
                }
                let lease = KnownLease {
                    account: account.clone(),
                    holder: known.deed(event),
                    id: masked(event.lease.granted.as_deref().unwrap_or_default()),
                    state: "leased",
                    acquired: event.at,
                    until: length.map(|length| event.at + length),
                    renewals: 0,
                    refused: 0,
                };
                known.leases.insert(key, lease);
            }
            "renew" => {
                let Some(lease) = known.leases.get_mut(&key) else { return };
                // A renewal has the length of the lease that it renews.
                let length = lease.until.map(|until| until.since(lease.acquired.max(lease.holder.at)));
                (lease.until, lease.state) = (length.map(|length| event.at + length), "leased");
                lease.renewals = lease.renewals.saturating_add(1);
                lease.holder.at = event.at;
            }
            "change" => {
                let holder = known.deed(event);
                let Some(lease) = known.leases.get_mut(&key) else { return };
                lease.id = masked(event.lease.granted.as_deref().unwrap_or_default());
                lease.holder = Deed { at: lease.holder.at, ..holder };
            }
            "release" => drop(known.leases.remove(&key)),
            "break" => match (event.lease.broken_in.unwrap_or_default(), known.leases.get_mut(&key)) {
                (_, None) => {}
                (seconds, Some(lease)) => {
                    lease.state = if seconds == 0 { "broken" } else { "breaking" };
                    lease.until = Some(event.at + Span::seconds(seconds));
                }
            },
            _ => {}
        }
    }

    fn note_conflict(&self, event: &RequestEvent) {
        let resource = resource(event);
        let empty = Conflict::default();
        let why = event.conflict.as_deref().unwrap_or(&empty);
        let (other, lease) = {
            let mut known = self.known.lock();
            known.conflicts += 1;
            known.forget_recent(event.at);
            if known.recent.len() < MAX_RECENT {
                known.recent.push_back((event.at, event.service, resource.clone(), event.account.clone()));
            }
            let winner =
                why.current.as_ref().and_then(|etag| known.writes.get(&self.hash(etag))).map(Deed::json);
            let held =
                known.leases.get_mut(&(event.service, resource.clone())).filter(|_| why.lease.is_some());
            let held = held.map(|lease| {
                lease.refused = lease.refused.saturating_add(1);
                let until = lease.until.map(time_text);
                (lease.holder.json(), json!({ "id": lease.id, "until": until }))
            });
            let message = resource.rsplit_once("/messages/").map(|(_, id)| id);
            let consumer = message.and_then(|id| known.messages.get(id)).map(|(deed, visible, count)| {
                let mut other = deed.json();
                other["visibleAt"] = json!(time_text(*visible));
                other["dequeueCount"] = json!(count);
                other
            });
            let (holder, lease) = held.unzip();
            (winner.or(holder).or(consumer), lease)
        };
        let opens: Vec<_> = why
            .opens
            .iter()
            .map(|open| {
                json!({
                    "peer": open.peer.to_string(),
                    "name": open.name,
                    "access": open.access,
                    "shared": open.shared,
                    "since": time_text(open.since),
                })
            })
            .collect();
        let why = json!({
            "condition": why.condition,
            "given": why.given.clone().or_else(|| event.lease.sent.as_deref().map(masked)),
            "current": why.current,
            "lastModified": why.last_modified.map(time_text),
            "lease": why.lease.map(|state| json!({
                "state": state,
                "until": why.lease_until.map(time_text),
                "ended": why.lease_ended.map(time_text),
                "known": lease,
            })),
            "receiptEnded": why.condition.filter(|name| *name == "popreceipt")
                .and(why.lease_ended).map(time_text),
            "opens": opens,
        });
        let account = event.account.as_deref();
        self.hub.send(Topic::Conflicts, account, |id| {
            let mut row = request_json(event);
            (row["id"], row["why"], row["other"]) = (json!(id), why, json!(other));
            row.to_string()
        });
    }
}

impl Known {
    /// Returns a request as others are compared with it.
    fn deed(&mut self, event: &RequestEvent) -> Deed {
        let operation = event.operation.map_or("", |operation| operation.name());
        let (peer, port) = event.peer;
        let client = ObservedClient { peer, caller: event.caller.clone(), agent: event.agent.clone() };
        let client = self.client(client);
        Deed { client, port, request_id: event.request_id, at: event.at, operation }
    }

    /// Returns a shared copy, because few clients send many requests.
    fn client(&mut self, client: ObservedClient) -> Arc<ObservedClient> {
        if let Some(known) = self.clients.get(&client) {
            return known.clone();
        }
        if self.clients.len() >= MAX_CLIENTS {
            self.clients.clear();
        }
        let client = Arc::new(client);
        self.clients.insert(client.clone());
        client
    }

    fn forget_recent(&mut self, now: Timestamp) {
        while self.recent.front().is_some_and(|(at, ..)| *at + HOT < now) {
            self.recent.pop_front();
        }
    }
}

impl Observer for Board {
    fn answered(&self, event: &RequestEvent) {
        let Some(status) = event.status else { return };
        if status == StatusCode::CONFLICT || status == StatusCode::PRECONDITION_FAILED {
            return self.note_conflict(event);
        }
        if event.conflict.is_some() && status != StatusCode::NOT_MODIFIED {
            return self.note_conflict(event);
        }
        let is_read = event.operation.is_none_or(|operation| operation.row().read);
        if !status.is_success() || is_read {
            return;
        }
        match event.lease.action {
            Some(_) => self.note_lease(event),
            None => self.note_write(event),
        }
    }

    fn ended(&self, event: Box<RequestEvent>) {
        let account = event.account.as_deref();
        self.hub.send(Topic::Trace, account, |id| {
            let mut row = request_json(&event);
            row["id"] = json!(id);
            row["headers"] = json!(event.headers);
            row["message"] = json!(event.message);
            row["query"] = json!(event.query);
            row["bytesIn"] = json!(event.received);
            row["bytesOut"] = json!(event.sent);
            row["firstByteUs"] = json!(event.first_byte.map(|time| time.as_micros() as u64));
            row["totalUs"] = json!(event.total.map(|time| time.as_micros() as u64));
            row["aborted"] = json!(event.is_aborted);
            row.to_string()
        });
    }

    fn got(&self, event: MessageEvent) {
        let mut known = self.known.lock();
        let known = &mut *known;
        let client = ObservedClient { peer: event.peer, caller: String::new(), agent: event.agent };
        let client = known.client(client);
        let deed =
            Deed { client, port: 0, request_id: event.request_id, at: event.at, operation: "Get Messages" };
        let value = (deed, event.visible_at, event.dequeue_count);
        match known.messages.entry(event.message.clone()) {
            Entry::Occupied(mut old) => _ = old.insert(value),
            Entry::Vacant(vacant) => {
                vacant.insert(value);
                known.message_order.push_back(event.message);
            }
        }
        if known.message_order.len() > MAX_MESSAGES
            && let Some(oldest) = known.message_order.pop_front()
        {
            known.messages.remove(&oldest);
        }
    }
}

/// Returns what all events of requests have in common.
fn request_json(event: &RequestEvent) -> Value {
    let client =
        ObservedClient { peer: event.peer.0, caller: event.caller.clone(), agent: event.agent.clone() };
    json!({
        "at": time_text(event.at),
        "account": event.account,
        "service": event.service.name(),
        "operation": event.operation.map(|operation| operation.name()),
        "method": event.method,
        "resource": resource(event),
        "status": event.status.map(|status| status.as_u16()),
        "code": event.code.map(|code| code.name()),
        "client": client_json(&client, event.peer.1, event.request_id, event.client_request_id.as_deref()),
    })
}

fn client_json(
    client: &ObservedClient,
    port: u16,
    request_id: Uuid,
    client_request_id: Option<&str>,
) -> Value {
    json!({
        "peer": client.peer.to_string(),
        "port": port,
        "caller": client.caller,
        "agent": client.agent,
        "requestId": request_id.to_string(),
        "clientRequestId": client_request_id,
    })
}

/// Returns the path below the account, decoded.
fn resource(event: &RequestEvent) -> String {
    let path = percent_encoding::percent_decode_str(&event.path).decode_utf8_lossy();
    let below = event.account.as_deref().and_then(|account| {
        let rest = path.strip_prefix('/')?.strip_prefix(account)?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    });
    below.unwrap_or(&path).to_owned()
}

/// Returns the first characters of a lease id. The whole id would let its reader write.
fn masked(id: &str) -> String {
    match id.get(..8) {
        Some(start) => format!("{start}…"),
        None => id.to_owned(),
    }
}
