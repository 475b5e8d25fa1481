//! The issuer of bearer tokens and the source of its keys.
//!
//! A URL names an issuer by OpenID Connect discovery; its documents are fetched when a token needs them, so a
//! server starts whether or not its issuer can be reached. A file holds the discovery document itself, for
//! issuers without a web address. The key set that it names may be a file in the same folder.

mod fetch;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use http::Uri;
use lazuli_auth::bearer::{Discovery, FileKeys, Issuer, KeySet, KeySource, KeySourceError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Failure;
use crate::config::Oidc;

/// Keys are refreshed after this time.
const FRESH: Duration = Duration::from_secs(3600);
/// Minimum interval between two requests to the issuer, independent of the tokens that arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time that a token with an unknown key waits for the issuer.
const WAIT: Duration = Duration::from_secs(3);

/// Returns the configured issuer.
pub(crate) fn issuer(oidc: &Oidc) -> Result<Issuer, Failure> {
    let Oidc { issuer, audiences } = oidc.clone();
    if issuer.contains("://") {
        let url = issuer.trim_end_matches('/');
        let discovery = web_address(&format!("{url}/.well-known/openid-configuration"))?;
        let keys =
            Arc::new(WebKeys::new(IssuerKeys::Discovery { document: discovery, issuer: issuer.clone() }));
        return Ok(Issuer { authorization_uri: issuer.clone(), name: issuer, audiences, keys });
    }
    let path = Path::new(&issuer);
    let document = std::fs::read(path).map_err(|error| Failure::Failed(format!("{issuer}: {error}")))?;
    let discovery =
        Discovery::parse(&document).map_err(|error| Failure::Failed(format!("{issuer}: {error}")))?;
    let keys: Arc<dyn KeySource> = if discovery.jwks_uri.contains("://") {
        Arc::new(WebKeys::new(IssuerKeys::Keys(web_address(&discovery.jwks_uri)?)))
    } else {
        Arc::new(FileKeys::new(path.parent().unwrap_or(Path::new("")).join(&discovery.jwks_uri)))
    };
    let authorization_uri = discovery.authorization_endpoint.unwrap_or_else(|| discovery.issuer.clone());
    Ok(Issuer { name: discovery.issuer, audiences, authorization_uri, keys })
}

/// Parses an address whose replies can be trusted: HTTPS, or this machine.
fn web_address(text: &str) -> Result<Uri, Failure> {
    let uri: Uri = text.parse().map_err(|error| Failure::Usage(format!("{text}: {error}")))?;
    let local = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match uri.scheme_str() {
        Some("https") if uri.host().is_some() => Ok(uri),
        Some("http") if local => Ok(uri),
        _ => Err(Failure::Usage(format!("{text}: an issuer must have an https address"))),
    }
}

/// The location of a key set.
enum IssuerKeys {
    /// The key set that a discovery document names. The document must be this issuer's own.
    Discovery { document: Uri, issuer: String },
    /// The address of the key set itself.
    Keys(Uri),
}

/// Cached keys of a web issuer. A separate task fetches them, so a request whose key is cached does not wait
/// for a slow issuer.
struct WebKeys(Arc<Shared>);

struct Shared {
    source: IssuerKeys,
    cached: Mutex<CachedKeys>,
    /// Notified when a fetch has succeeded or failed.
    fetched: watch::Sender<()>,
}

#[derive(Default)]
struct CachedKeys {
    keys: Option<(Instant, Arc<KeySet>)>,
    /// Time of the last request to the issuer.
    requested: Option<Instant>,
    /// Whether a fetch is in progress.
    fetching: bool,
}

impl WebKeys {
    fn new(source: IssuerKeys) -> Self {
        Self(Arc::new(Shared { source, cached: Mutex::default(), fetched: watch::Sender::default() }))
    }

    /// Starts a fetch if one is due. Returns whether the caller should wait for the fetch in progress.
    fn request_if_due(&self, refresh: bool) -> bool {
        let mut cached = self.0.cached();
        let fresh = cached.keys.as_ref().is_some_and(|(fetched, _)| fetched.elapsed() < FRESH);
        let requested_recently = cached.requested.is_some_and(|requested| requested.elapsed() < PATIENCE);
        if (!fresh || refresh) && !requested_recently && !cached.fetching {
            cached.requested = Some(Instant::now());
            cached.fetching = true;
            tokio::spawn(Arc::clone(&self.0).fetch());
        }
        cached.fetching && (refresh || cached.keys.is_none())
    }
}

impl Shared {
    fn cached(&self) -> MutexGuard<'_, CachedKeys> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(self: Arc<Self>) {
        let fetched = self.source.fetch().await;
        let mut cached = self.cached();
        cached.fetching = false;
        match fetched {
            Ok(keys) => cached.keys = Some((Instant::now(), Arc::new(keys))),
            // Keep the old keys.
            Err(error) => {
                tracing::warn!(%error, "could not fetch the issuer's signing keys (JWKS); keeping the old keys")
            }
        }
        drop(cached);
        self.fetched.send_replace(());
    }
}

impl IssuerKeys {
    async fn fetch(&self) -> Result<KeySet, KeySourceError> {
        let at = match self {
            Self::Keys(at) => at.clone(),
            Self::Discovery { document, issuer } => {
                let discovery = Discovery::parse(&fetch::get(document).await?)?;
                if discovery.issuer != *issuer {
                    tracing::error!(
                        issuer,
                        says = discovery.issuer,
                        "the discovery document is another issuer's"
                    );
                    return Err(KeySourceError::Malformed);
                }
                web_address(&discovery.jwks_uri).map_err(|_| KeySourceError::Malformed)?
            }
        };
        KeySet::parse(&fetch::get(&at).await?)
    }
}

#[async_trait]
impl KeySource for WebKeys {
    async fn keys(&self, refresh: bool) -> Result<Arc<KeySet>, KeySourceError> {
        // Subscribe before the fetch starts, so that its end is not missed.
        let mut fetched = self.0.fetched.subscribe();
        if self.request_if_due(refresh) {
            let _ = tokio::time::timeout(WAIT, fetched.changed()).await;
        }
        match &self.0.cached().keys {
            Some((_, keys)) => Ok(keys.clone()),
            None => Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into()),
        }
    }
}

#[cfg(test)]
mod tests;
