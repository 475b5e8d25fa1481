//! Sign-in and sessions.
//!
//! A session has two halves. The first is in a cookie that scripts cannot read; the second, the proof, is in
//! the page's own storage and comes in a header. Neither is of use alone: a page of another port gets the
//! browser to send the cookie and does not know the proof, and a script that reads the proof cannot read the
//! cookie. The store holds only digests of both.
//!
//! Sessions are rows, so they outlive a restart:
//!
//! ```text
//! space     partition           row                       value
//! ROOT      console/sessions    DIGEST of the cookie      a session
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use lazuli_account::{AccountDirectory, DEVELOPMENT_ACCOUNT, development_key};
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::Account;
use lazuli_store::{
    Change, Decision, Gate, Mutation, Never, Partition, Reads, Row, SpaceId, Store, TransactError,
    prefix_range, transact,
};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::reply::Problem;

/// The format of the rows of this crate: the value is this byte, then JSON.
pub(crate) const FORMAT: u8 = 1;
const SESSIONS: &[u8] = b"console/sessions";
/// A session ends if it is not used for this long.
const IDLE: Span = Span::seconds(12 * 60 * 60);
/// A session ends after this time even if it is used.
const LIFE: Span = Span::seconds(7 * 24 * 60 * 60);
/// A session's last use is stored at most this often.
const TOUCH: Span = Span::seconds(10 * 60);
/// Maximum number of sessions.
const MAX_SESSIONS: usize = 64;
/// Maximum number of sessions of one account. The oldest ends if there is one more.
const MAX_OF_PRINCIPAL: usize = 16;
/// Maximum number of links that can be used.
const MAX_LINKS: usize = 32;
/// A link can be used for this long.
const LINK_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Failed sign-ins of one address before it has to wait.
const FREE_FAILURES: u32 = 5;
/// Maximum time that an address has to wait after a failed sign-in.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Maximum number of passwords that are checked at once.
const PASSWORD_CHECKS: usize = 2;
/// Addresses whose failures are remembered.
const MAX_THROTTLED: usize = 1024;

/// The subject of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Principal {
    /// Sees everything.
    Operator,
    /// Sees one account.
    Account {
        name: String,
        generation: u64,
        /// Digest of the account's keys. If they change, the session ends.
        keys: String,
    },
}

impl Principal {
    fn of(account: &Account) -> Self {
        Self::Account {
            name: account.name.clone(),
            generation: account.generation,
            keys: keys_digest(account),
        }
    }

    /// Returns the name for logs and pages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Operator => "operator",
            Self::Account { name, .. } => name,
        }
    }

    pub(crate) const fn is_operator(&self) -> bool {
        matches!(self, Self::Operator)
    }

    /// Returns the only account that the principal may see; `None` if it may see all.
    pub(crate) fn only(&self) -> Option<&str> {
        match self {
            Self::Operator => None,
            Self::Account { name, .. } => Some(name),
        }
    }

    /// Returns whether the principal may see an account.
    pub(crate) fn sees(&self, account: &str) -> bool {
        self.only().is_none_or(|only| only == account)
    }
}

/// A session as a row has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SessionRecord {
    principal: Principal,
    /// Digest of the proof.
    proof: String,
    created: u64,
    seen: u64,
    peer: String,
    agent: String,
}

impl SessionRecord {
    fn is_over(&self, now: Timestamp) -> bool {
        let at = Timestamp::from_ticks;
        at(self.created) + LIFE <= now || at(self.seen) + IDLE <= now
    }
}

/// A valid session.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The digest of the cookie, which names the session's row.
    pub(crate) id: String,
    pub(crate) principal: Principal,
}

/// The two halves of a new session.
pub(crate) struct NewSession {
    pub(crate) cookie: String,
    pub(crate) proof: String,
    pub(crate) principal: Principal,
}

/// A session in the list for operators.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedSession {
    pub(crate) id: String,
    pub(crate) principal: String,
    pub(crate) created: String,
    pub(crate) seen: String,
    pub(crate) peer: String,
    pub(crate) agent: String,
}

/// The sessions, and what is needed to sign in.
pub(crate) struct Sessions {
    store: Arc<dyn Store>,
    gate: Gate,
    accounts: AccountDirectory,
    /// Digests of links that can be used.
    links: Mutex<Vec<(String, Instant)>>,
    failures: Mutex<HashMap<IpAddr, (u32, Instant)>>,
    /// The hash of the operator's password, if there is one.
    password: Option<String>,
    /// A permit for each password that may be checked at once, because a check takes 19 MiB.
    password_checks: Semaphore,
    /// Whether the development key is accepted from other machines.
    insecure_development_key: bool,
}

impl Sessions {
    pub(crate) fn new(
        accounts: AccountDirectory,
        password: Option<String>,
        insecure_development_key: bool,
    ) -> Self {
        let store = accounts.store().clone();
        let (links, failures) = Default::default();
        Self {
            store,
            gate: Gate::default(),
            accounts,
            links,
            failures,
            password,
            password_checks: Semaphore::new(PASSWORD_CHECKS),
            insecure_development_key,
        }
    }

    /// Returns a token that signs an operator in once.
    pub(crate) fn new_link(&self) -> String {
        let token = random();
        let mut links = self.links.lock();
        links.retain(|(_, until)| *until > Instant::now());
        if links.len() >= MAX_LINKS {
            links.remove(0);
        }
        links.push((hash(&token), Instant::now() + LINK_LIFE));
        token
    }

    /// Returns whether an operator can sign in with a password.
    pub(crate) fn has_password(&self) -> bool {
        self.password.is_some()
    }

    /// Returns the principal of a link, and makes the link useless.
    pub(crate) fn redeem_link(&self, token: &str) -> Option<Principal> {
        let (wanted, now) = (hash(token), Instant::now());
        let mut links = self.links.lock();
        let found = links.iter().position(|(link, until)| *until > now && same(link, &wanted))?;
        links.remove(found);
        Some(Principal::Operator)
    }

    /// Returns the principal of an account's key.
    pub(crate) async fn check_key(
        &self,
        name: &str,
        key: &str,
        peer: IpAddr,
    ) -> Result<Option<Principal>, Problem> {
        let account = self.accounts.get(name).await.map_err(Problem::internal)?;
        let account = account.filter(|account| !account.settings.disabled);
        let Some(account) = account else { return Ok(None) };
        // Compare with all keys, so that the time does not tell which one is close.
        let matching = account.keys.iter().filter(|known| same(&known.to_base64(), key.trim())).count();
        // The development key is public, so it opens nothing to other machines.
        let is_public = key.trim() == development_key().to_base64();
        let is_usable = !is_public || peer.is_loopback() || self.insecure_development_key;
        Ok((matching > 0 && is_usable).then(|| Principal::of(&account)))
    }

    /// Returns the principal of the operator's password.
    pub(crate) async fn check_password(&self, password: String) -> Option<Principal> {
        let stored = self.password.clone()?;
        // The semaphore is never closed.
        let _permit = self.password_checks.acquire().await.ok()?;
        let is_right = tokio::task::spawn_blocking(move || {
            use argon2::{Argon2, PasswordHash, PasswordVerifier};
            let parsed = PasswordHash::new(&stored);
            parsed.is_ok_and(|hash| Argon2::default().verify_password(password.as_bytes(), &hash).is_ok())
        });
        is_right.await.unwrap_or_default().then_some(Principal::Operator)
    }

    /// Returns the development account if its public key suffices to sign in: it is the only account, and the
    /// client is on this machine.
    pub(crate) async fn development(&self, peer: IpAddr) -> Result<Option<Principal>, Problem> {
        if !(peer.is_loopback() || self.insecure_development_key) || self.accounts.len() != 1 {
            return Ok(None);
        }
        let account = self.accounts.get(DEVELOPMENT_ACCOUNT).await.map_err(Problem::internal)?;
        let account =
            account.filter(|account| !account.settings.disabled && account.keys.contains(&development_key()));
        Ok(account.map(|account| Principal::of(&account)))
    }

    /// Refuses a sign-in of an address that has failed too often.
    pub(crate) fn check_throttle(&self, peer: IpAddr) -> Result<(), Problem> {
        match self.failures.lock().get(&peer) {
            Some((_, until)) if *until > Instant::now() => Err(Problem::new(
                http::StatusCode::TOO_MANY_REQUESTS,
                "TooManyFailures",
                "Too many failed sign-ins from this address. Wait a minute.",
            )),
            _ => Ok(()),
        }
    }

    /// Notes the outcome of a sign-in.
    pub(crate) fn note_attempt(&self, peer: IpAddr, succeeded: bool) {
        let mut failures = self.failures.lock();
        if succeeded {
            failures.remove(&peer);
            return;
        }
        if failures.len() >= MAX_THROTTLED {
            let now = Instant::now();
            failures.retain(|_, (_, until)| *until > now);
        }
        if failures.len() < MAX_THROTTLED || failures.contains_key(&peer) {
            let (count, until) = failures.entry(peer).or_insert((0, Instant::now()));
            *count = count.saturating_add(1);
            let excess = count.saturating_sub(FREE_FAILURES).min(6);
            let wait =
                if excess == 0 { Duration::ZERO } else { Duration::from_secs(1 << excess).min(MAX_WAIT) };
            *until = Instant::now() + wait;
        }
    }

    /// Begins a session.
    pub(crate) async fn begin(
        &self,
        principal: Principal,
        peer: IpAddr,
        agent: &str,
    ) -> Result<NewSession, Problem> {
        let (cookie, proof) = (random(), random());
        let key = Bytes::from(hash(&cookie));
        let agent: String = agent.chars().filter(|c| !c.is_control()).take(200).collect();
        let reads = Reads::default().and_range(all(), MAX_SESSIONS + 1);
        let partition = partition();
        let begun = transact(&*self.store, &self.gate, &partition, reads, |view| {
            let record = SessionRecord {
                principal: principal.clone(),
                proof: hash(&proof),
                created: view.now.ticks(),
                seen: view.now.ticks(),
                peer: peer.to_string(),
                agent: agent.clone(),
            };
            let Some(value) = encode(&record) else { return Ok(Decision::Answer(false)) };
            let mut known: Vec<_> = view.rows().map(|row| (row.key.clone(), decode(&row.value))).collect();
            let mut mutations = vec![];
            known.retain(|(key, record)| match record {
                Some(record) if !record.is_over(view.now) => true,
                _ => {
                    mutations.push(Mutation::Delete(key.clone()));
                    false
                }
            });
            let own = known.iter().filter(|(_, known)| {
                known.as_ref().is_some_and(|it| it.principal.name() == principal.name())
            });
            let own: Vec<_> = own.cloned().collect();
            let used_last =
                |(_, record): &&(Bytes, Option<SessionRecord>)| record.as_ref().map_or(0, |it| it.seen);
            let is_full = known.len() >= MAX_SESSIONS;
            let evicted = match own.len() >= MAX_OF_PRINCIPAL || (is_full && !own.is_empty()) {
                true => own.iter().min_by_key(used_last),
                false if is_full && principal.is_operator() => known.iter().min_by_key(used_last),
                false if is_full => return Ok(Decision::Answer(false)),
                false => None,
            };
            mutations.extend(evicted.map(|(key, _)| Mutation::Delete(key.clone())));
            mutations.push(Mutation::Put(key.clone(), value));
            Ok::<_, Never>(Decision::Write(Change::of(mutations), true))
        });
        match begun.await.map_err(failed)? {
            true => Ok(NewSession { cookie, proof, principal }),
            false => Err(Problem::new(
                http::StatusCode::SERVICE_UNAVAILABLE,
                "TooManySessions",
                "There are too many console sessions. An operator can end some.",
            )),
        }
    }

    /// Returns the session of a cookie, if it is valid.
    pub(crate) async fn find(&self, cookie: &str) -> Result<Option<(Session, String)>, Problem> {
        let id = hash(cookie);
        let set = self.store.read(&partition(), &Reads::key(Bytes::from(id.clone()))).await;
        let set = set.map_err(Problem::internal)?;
        let record = set.rows.into_iter().flatten().next().and_then(|row| decode(&row.value));
        let now = self.store.now();
        let Some(record) = record.filter(|record| !record.is_over(now)) else { return Ok(None) };
        if let Principal::Account { name, generation, keys } = &record.principal {
            let account = self.accounts.get(name).await.map_err(Problem::internal)?;
            let is_same = account.is_some_and(|account| {
                account.generation == *generation
                    && !account.settings.disabled
                    && keys_digest(&account) == *keys
            });
            if !is_same {
                self.end(&id).await?;
                return Ok(None);
            }
        }
        if Timestamp::from_ticks(record.seen) + TOUCH <= now {
            self.touch(&id).await;
        }
        Ok(Some((Session { id, principal: record.principal }, record.proof)))
    }

    /// Returns the session of a cookie if the proof belongs to it.
    pub(crate) async fn verify(&self, cookie: Option<&str>, proof: Option<&str>) -> Result<Session, Problem> {
        let (Some(cookie), Some(proof)) = (cookie, proof) else { return Err(Problem::signed_out()) };
        match self.find(cookie).await? {
            Some((session, stored)) if same(&stored, &hash(proof)) => Ok(session),
            _ => Err(Problem::signed_out()),
        }
    }

    /// Stores that a session was used. A failure only shortens the session.
    async fn touch(&self, id: &str) {
        let key = Bytes::from(id.to_owned());
        let partition = partition();
        let touched = transact(&*self.store, &self.gate, &partition, Reads::key(key.clone()), |view| {
            let record = view.row(&key).and_then(|row: &Row| decode(&row.value));
            let value = record.map(|record| SessionRecord { seen: view.now.ticks(), ..record });
            match value.and_then(|record| encode(&record)) {
                Some(value) => Ok(Decision::Write(Change::of([Mutation::Put(key.clone(), value)]), ())),
                None => Ok::<_, Never>(Decision::Answer(())),
            }
        });
        if let Err(error) = touched.await {
            tracing::warn!(%error, "could not store that a console session was used");
        }
    }

    /// Ends a session.
    pub(crate) async fn end(&self, id: &str) -> Result<(), Problem> {
        let key = Bytes::from(id.to_owned());
        let partition = partition();
        let ended = transact(&*self.store, &self.gate, &partition, Reads::key(key.clone()), |_| {
            Ok::<_, Never>(Decision::Write(Change::of([Mutation::Delete(key.clone())]), ()))
        });
        ended.await.map_err(failed)
    }

    /// Lists the valid sessions.
    pub(crate) async fn list(&self) -> Result<Vec<ListedSession>, Problem> {
        let reads = Reads::default().and_range(all(), MAX_SESSIONS + 1);
        let set = self.store.read(&partition(), &reads).await.map_err(Problem::internal)?;
        let now = self.store.now();
        let rows = set.ranges.into_iter().flat_map(|range| range.rows);
        let listed = rows.filter_map(|row| {
            let record = decode(&row.value).filter(|record| !record.is_over(now))?;
            Some(ListedSession {
                id: String::from_utf8_lossy(&row.key).into_owned(),
                principal: record.principal.name().to_owned(),
                created: crate::reply::time_text(Timestamp::from_ticks(record.created)),
                seen: crate::reply::time_text(Timestamp::from_ticks(record.seen)),
                peer: record.peer,
                agent: record.agent,
            })
        });
        Ok(listed.collect())
    }
}

fn failed(error: TransactError<Never>) -> Problem {
    Problem::internal(error)
}

fn partition() -> Partition {
    Partition::new(SpaceId::ROOT, SESSIONS)
}

/// Returns the range of the keys of all sessions, which are digests in hexadecimal.
fn all() -> std::ops::Range<Bytes> {
    prefix_range(b"").start..Bytes::from_static(b"g")
}

fn encode(record: &SessionRecord) -> Option<Bytes> {
    let mut value = vec![FORMAT];
    serde_json::to_writer(&mut value, record).ok()?;
    Some(value.into())
}

fn decode(value: &[u8]) -> Option<SessionRecord> {
    value.strip_prefix(&[FORMAT]).and_then(|json| serde_json::from_slice(json).ok())
}

/// Verifies a row of [`SpaceId::ROOT`] if it belongs to this module.
pub(crate) fn check_row(partition: &[u8], value: &[u8]) -> Result<(), String> {
    match partition == SESSIONS && decode(value).is_none() {
        true => Err("a session of the console cannot be decoded".into()),
        false => Ok(()),
    }
}

/// Returns 256 random bits as text.
pub(crate) fn random() -> String {
    BASE64.encode(rand::random::<[u8; 32]>())
}

/// Returns the SHA-256 of a text in hexadecimal.
pub(crate) fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn keys_digest(account: &Account) -> String {
    hash(&account.keys.iter().map(|key| key.to_base64()).collect::<Vec<_>>().join(" "))
}

/// Compares in a time that does not depend on the contents.
fn same(a: &str, b: &str) -> bool {
    a.as_bytes().ct_eq(b.as_bytes()).into()
}
