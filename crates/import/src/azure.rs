//! Imports a running store through the public protocol: the cloud, Azurite, or another Lazuli.
//!
//! The source is only read. Objects are read in pieces, written, and read back: an object counts as imported
//! when the digests and the properties of both sides are equal. Objects that are equal on both sides already
//! are left alone, and the [`Journal`] remembers verified objects, so an interrupted import can be continued
//! and a finished one repeated. Each container is listed again at its end, to compare the counts.
//!
//! A source is not trusted. Lengths of answers, of listings and of pauses in a listing are limited, names are
//! checked and encoded, and redirects are refused.

mod blob_copy;
mod blobs;
mod directories;
mod entity;
mod files;
mod journal;
mod pages;
mod queues;
mod tables;
mod xml;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{HeaderMap, Method, StatusCode};
use lazuli_client::client::{Call, OperationFailure, Reply, TargetAccount};
use lazuli_protocol::ServiceKind;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use journal::Journal;
use xml::XmlElement;

use crate::destination::{Connections, Destination};
use crate::report::{ImportProgress, ImportReport};

/// Number of objects that are copied at once.
const PARALLEL: usize = 16;
/// Content is read and written in pieces of this length, unless a blob consists of longer blocks.
const PIECE: u64 = 4 << 20;
/// Maximum length of a piece.
const MAX_PIECE: u64 = 64 << 20;
/// Maximum length of an answer: a piece, or a page of a listing.
const MAX_BODY: usize = MAX_PIECE as usize;
/// The import ends after this number of failures without a success between them.
const MAX_FAILURES: u32 = 64;

/// Why an object was left out.
type Refused = String;

/// The source, the destination, and the choices of an import.
pub struct AzureImport {
    /// The account that is read.
    pub source: TargetAccount,
    /// The account that is written; `None` to count only.
    pub target: Option<TargetAccount>,
    /// Whether the destination keeps versions of blobs.
    pub versioning: bool,
    /// The services that are imported.
    pub services: Vec<ServiceKind>,
    /// Receive messages instead of peeking at them.
    pub receive_messages: bool,
    /// The records of earlier runs.
    pub journal: Journal,
}

/// State that all jobs share.
struct Shared {
    source: Destination,
    target: Destination,
    is_dry_run: bool,
    versioning: bool,
    receive_messages: bool,
    journal: Journal,
    progress: Arc<ImportProgress>,
    slots: Arc<Semaphore>,
    idle: Mutex<Vec<Links>>,
    /// Number of failures since the last success.
    failures: AtomicU32,
    /// Why the import has to end.
    fatal: Mutex<Option<String>>,
}

/// Connections of one job to one account.
struct Link {
    connections: Connections,
    account: String,
}

/// Connections of one job to both sides.
struct Links {
    source: Link,
    target: Link,
}

/// Work on one object.
trait Job: Send + 'static {
    /// Copies the object. Records it as imported or left out.
    fn run(self, import: &Arc<Shared>, links: &mut Links) -> impl Future<Output = ()> + Send;
}

/// Imports the services. Objects that cannot be imported are in the report. Returns an error if the import
/// was given up.
pub async fn import(choices: AzureImport, progress: Arc<ImportProgress>) -> Result<ImportReport, String> {
    let side = |account: &TargetAccount| {
        Destination(BTreeMap::from([(account.account.name.clone(), account.clone())]))
    };
    let source = side(&choices.source);
    let target = choices.target.as_ref().map(side);
    let shared = Arc::new(Shared {
        is_dry_run: target.is_none(),
        target: target.unwrap_or_else(|| source.clone()),
        source,
        versioning: choices.versioning,
        receive_messages: choices.receive_messages,
        journal: choices.journal,
        progress: progress.clone(),
        slots: Arc::new(Semaphore::new(PARALLEL)),
        idle: Mutex::default(),
        failures: AtomicU32::new(0),
        fatal: Mutex::default(),
    });
    for service in choices.services {
        if shared.give_up().is_some() {
            break;
        }
        match service {
            ServiceKind::Blob => blobs::import(&shared).await,
            ServiceKind::Queue => queues::import(&shared).await,
            ServiceKind::Table => tables::import(&shared).await,
            ServiceKind::File => files::import(&shared).await,
        }
    }
    match shared.give_up() {
        Some(reason) => Err(format!("{}\nthe import was given up: {reason}", progress.report())),
        None => Ok(progress.report()),
    }
}

impl Shared {
    /// Returns connections, new or used before.
    fn links(&self) -> Links {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| Links { source: Link::new(&self.source), target: Link::new(&self.target) })
    }

    /// Returns why the import has to end, if it has to.
    fn give_up(&self) -> Option<String> {
        self.fatal.lock().clone()
    }

    /// Counts an object that was copied and verified.
    fn imported(&self, kind: &'static str, bytes: u64) {
        self.failures.store(0, Ordering::Relaxed);
        self.progress.imported(kind, bytes);
    }

    /// Counts an object that was equal on both sides already.
    fn unchanged(&self, kind: &'static str) {
        self.failures.store(0, Ordering::Relaxed);
        self.progress.unchanged(kind);
    }

    /// Records an object that was left out.
    fn left_out(&self, object: impl Display, reason: impl Display) {
        let reason = reason.to_string();
        if self.failures.fetch_add(1, Ordering::Relaxed) >= MAX_FAILURES {
            let ending = format!("{MAX_FAILURES} objects failed one after the other, the last one: {reason}");
            self.fatal.lock().get_or_insert(ending);
        }
        self.progress.left_out(object, reason);
    }

    /// Records an object that the protocol cannot copy, which is no failure.
    fn not_possible(&self, object: impl Display, reason: impl Display) {
        self.progress.left_out(object, reason);
    }

    /// Adds a record to the journal. Without it the next run would repeat work, so a failure ends the import.
    fn remember(&self, record: u128) {
        if let Err(error) = self.journal.add(record) {
            self.fatal.lock().get_or_insert(format!("cannot write the journal: {error}"));
        }
    }
}

/// The jobs of one container, queue, table or share.
struct Jobs {
    import: Arc<Shared>,
    running: JoinSet<()>,
}

impl Jobs {
    fn new(import: &Arc<Shared>) -> Self {
        Self { import: import.clone(), running: JoinSet::new() }
    }

    /// Starts a job when fewer than [`PARALLEL`] jobs are running.
    async fn start(&mut self, job: impl Job) {
        let Ok(slot) = self.import.slots.clone().acquire_owned().await else { return };
        while let Some(ended) = self.running.try_join_next() {
            self.check(ended);
        }
        let import = self.import.clone();
        self.running.spawn(async move {
            let mut links = import.links();
            if import.give_up().is_none() {
                job.run(&import, &mut links).await;
            }
            import.idle.lock().push(links);
            drop(slot);
        });
    }

    /// Waits until all jobs have ended.
    async fn finish(&mut self) {
        while let Some(ended) = self.running.join_next().await {
            self.check(ended);
        }
    }

    fn check(&self, ended: Result<(), tokio::task::JoinError>) {
        if let Err(panicked) = ended {
            self.import.left_out("a job", panicked);
        }
    }
}

impl Link {
    fn new(side: &Destination) -> Self {
        let account = side.0.keys().next().cloned().unwrap_or_default();
        Self { connections: Connections::new(side).with_max_body(MAX_BODY), account }
    }

    /// Sends a request, and expects one of the statuses.
    async fn send(
        &mut self,
        service: ServiceKind,
        call: &Call,
        expected: &[StatusCode],
    ) -> Result<Reply, OperationFailure> {
        self.connections.send(&self.account, service, call, expected).await
    }

    /// Returns the URL of a service.
    fn endpoint(&mut self, service: ServiceKind) -> Result<String, Refused> {
        self.connections.endpoint(&self.account, service).map_err(|failure| failure.to_string())
    }

    /// Sends a request without a body, and expects 200.
    async fn get(&mut self, service: ServiceKind, path: &str, query: &str) -> Result<Reply, Refused> {
        let call = Call::new(Method::GET, path, query);
        self.send(service, &call, &[StatusCode::OK]).await.map_err(|failure| failure.to_string())
    }

    /// Sends a request without a body, and parses the answer.
    async fn get_xml(
        &mut self,
        service: ServiceKind,
        path: &str,
        query: &str,
    ) -> Result<XmlElement, Refused> {
        XmlElement::parse(&self.get(service, path, query).await?.body)
    }
}

/// Copies the properties of a service as they are. They come last, because retention of deleted objects would
/// apply to objects that the import replaces.
async fn copy_service_properties(import: &Shared, links: &mut Links, service: ServiceKind) {
    if import.is_dry_run {
        return;
    }
    let name = service.name();
    let query = "restype=service&comp=properties";
    let copied = async {
        let properties = links.source.get_xml(service, "", query).await?;
        let body = |kept: &dyn Fn(&str) -> bool| {
            let mut document = properties.clone();
            document.children.retain(|child| kept(&child.name));
            Call::new(Method::PUT, "", query).body(document.to_xml().into())
        };
        let expected = [StatusCode::ACCEPTED];
        if links.target.send(service, &body(&|_| true), &expected).await.is_ok() {
            return Ok(());
        }
        // Each property by itself, to name those that the destination refuses.
        for property in &properties.children {
            let call = body(&|name| name == property.name);
            if let Err(failure) = links.target.send(service, &call, &expected).await {
                import.not_possible(format_args!("{name} service property {}", property.name), failure);
            }
        }
        Ok::<_, Refused>(())
    };
    match copied.await {
        Ok(()) => import.imported("service properties", 0),
        Err(reason) => import.left_out(format_args!("{name} service properties"), reason),
    }
}

/// Copies the stored access policies of a container, queue, table or share, and one header.
async fn copy_policies(
    links: &mut Links,
    service: ServiceKind,
    path: &str,
    query: &str,
    kept_header: Option<&'static str>,
) -> Result<(), Refused> {
    let reply = links.source.get(service, path, query).await?;
    let policies = XmlElement::parse(&reply.body)?;
    let mut set = Call::new(Method::PUT, path, query).body(policies.to_xml().into());
    if let Some((name, value)) = kept_header.and_then(|name| Some((name, reply.headers.get(name)?))) {
        set.headers.insert(name, value.clone());
    }
    let expected = [StatusCode::OK, StatusCode::NO_CONTENT];
    links.target.send(service, &set, &expected).await.map_err(|failure| failure.to_string())?;
    Ok(())
}

/// Returns the value of a header, or an empty text.
fn header_text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map_or(String::new(), |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Returns the metadata in the headers of an answer.
fn metadata_of(headers: &HeaderMap) -> BTreeMap<String, String> {
    let values = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix("x-ms-meta-")?;
        Some((name.to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
    });
    values.collect()
}

/// Returns the metadata of an object in a listing. Counts capital letters of names, which are lost.
fn listed_metadata(import: &Shared, object: &XmlElement) -> BTreeMap<String, String> {
    let listed = object.child("Metadata").map(|metadata| &metadata.children[..]).unwrap_or_default();
    if listed.iter().any(|value| value.name.contains(|c: char| c.is_ascii_uppercase())) {
        import.progress.lost("capital letters in names of metadata");
    }
    listed.iter().map(|value| (value.name.clone(), value.text.clone())).collect()
}

/// Returns whether a request was refused because the object exists already.
fn exists_already(reply: &Reply) -> bool {
    reply.status == StatusCode::CONFLICT
        && header_text(&reply.headers, "x-ms-error-code").ends_with("AlreadyExists")
}
