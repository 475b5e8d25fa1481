//! The issuer of bearer tokens: where its keys are read from.
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
/// How long a token with an unknown key waits for the issuer's answer.
const WAIT: Duration = Duration::from_secs(3);

/// The issuer that the configuration names.
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

/// An address whose answer can be trusted: HTTPS, or this machine.
fn web_address(text: &str) -> Result<Uri, Failure> {
    let uri: Uri = text.parse().map_err(|error| Failure::Usage(format!("{text}: {error}")))?;
    let local = matches!(uri.host(), Some("localhost" | "127.0.0.1" | "[::1]"));
    match uri.scheme_str() {
        Some("https") if uri.host().is_some() => Ok(uri),
        Some("http") if local => Ok(uri),
        _ => Err(Failure::Usage(format!("{text}: an issuer is reached over https"))),
    }
}

/// Where a key set is.
enum IssuerKeys {
    /// Where a discovery document says, which has to be this issuer's own.
    Discovery { document: Uri, issuer: String },
    /// Here.
    Keys(Uri),
}

/// Keys that are fetched and kept for a while. A separate task fetches them, so a request whose key is known
/// does not wait for an issuer that does not answer.
struct WebKeys(Arc<Shared>);

struct Shared {
    source: IssuerKeys,
    held: Mutex<Held>,
    /// Changes when the issuer has answered, or will not.
    fetched: watch::Sender<()>,
}

#[derive(Default)]
struct Held {
    keys: Option<(Instant, Arc<KeySet>)>,
    /// When the issuer was asked last.
    asked: Option<Instant>,
    /// Whether an answer of the issuer is pending.
    fetching: bool,
}

impl WebKeys {
    fn new(source: IssuerKeys) -> Self {
        Self(Arc::new(Shared { source, held: Mutex::default(), fetched: watch::Sender::default() }))
    }

    /// Sees to it that the issuer is asked if that is due. Returns whether an answer is awaited that matters
    /// here.
    fn ask(&self, refresh: bool) -> bool {
        let mut held = self.0.held();
        let fresh = held.keys.as_ref().is_some_and(|(fetched, _)| fetched.elapsed() < FRESH);
        let asked_just_now = held.asked.is_some_and(|asked| asked.elapsed() < PATIENCE);
        if (!fresh || refresh) && !asked_just_now && !held.fetching {
            held.asked = Some(Instant::now());
            held.fetching = true;
            tokio::spawn(Arc::clone(&self.0).fetch());
        }
        held.fetching && (refresh || held.keys.is_none())
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn fetch(self: Arc<Self>) {
        let fetched = self.source.fetch().await;
        let mut held = self.held();
        held.fetching = false;
        match fetched {
            Ok(keys) => held.keys = Some((Instant::now(), Arc::new(keys))),
            // Keep the old keys.
            Err(error) => {
                tracing::warn!(%error, "could not fetch the issuer's signing keys (JWKS); keeping the old keys")
            }
        }
        drop(held);
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
        // Before it is asked, so that no answer is missed.
        let mut fetched = self.0.fetched.subscribe();
        if self.ask(refresh) {
            let _ = tokio::time::timeout(WAIT, fetched.changed()).await;
        }
        match &self.0.held().keys {
            Some((_, keys)) => Ok(keys.clone()),
            None => Err(std::io::Error::from(std::io::ErrorKind::NotConnected).into()),
        }
    }
}

#[cfg(test)]
mod tests;
