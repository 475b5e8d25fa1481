//! The public keys of an issuer: JSON web key sets, and where they are read from.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde::Deserialize;

/// Maximum size of a document. No issuer publishes a longer one.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// A source of an issuer's keys.
#[async_trait]
pub trait KeySource: Send + Sync {
    /// Returns the keys. `refresh` means that a token named a key that was missing from the last result. A
    /// caching source then reads the keys again, but not too often: any client can send such tokens.
    async fn keys(&self, refresh: bool) -> Result<Arc<KeySet>, KeySourceError>;
}

/// Why keys are not available.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The document could not be read or fetched.
    #[error("the document could not be read: {0}")]
    Unavailable(#[from] std::io::Error),
    /// The document is malformed.
    #[error("the document is malformed")]
    Malformed,
}

/// A JSON web key set.
#[derive(Debug, Default)]
pub struct KeySet(Vec<PublicKey>);

/// The fields of an OpenID Connect discovery document that are used here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Discovery {
    /// The issuer's name in the `iss` of tokens.
    pub issuer: String,
    /// Address of the key set.
    pub jwks_uri: String,
    /// Address where clients get tokens.
    pub authorization_endpoint: Option<String>,
}

impl Discovery {
    /// Parses a discovery document.
    pub fn parse(document: &[u8]) -> Result<Self, KeySourceError> {
        parse(document)
    }
}

#[derive(Debug)]
pub(super) struct PublicKey {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point of P-256.
    P256(Vec<u8>),
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(tag = "kty")]
enum Jwk {
    #[serde(rename = "RSA")]
    Rsa { n: String, e: String },
    #[serde(rename = "EC")]
    Ec { crv: String, x: String, y: String },
}

#[derive(Deserialize)]
struct Labels {
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
}

impl KeySet {
    /// Parses a key set. Skips keys of other kinds and for other uses.
    pub fn parse(document: &[u8]) -> Result<Self, KeySourceError> {
        let document: Document = parse(document)?;
        Ok(Self(document.keys.into_iter().filter_map(PublicKey::from_jwk).collect()))
    }

    /// Returns the keys with an id that can verify an algorithm. Without an id, returns all keys for the
    /// algorithm.
    pub(super) fn named<'a>(
        &'a self,
        kid: Option<&'a str>,
        alg: &'a str,
    ) -> impl Iterator<Item = &'a PublicKey> {
        let wanted = move |key: &&PublicKey| kid.is_none_or(|kid| key.id.as_deref() == Some(kid));
        self.0.iter().filter(wanted).filter(move |key| key.algorithm() == alg)
    }
}

impl PublicKey {
    fn from_jwk(jwk: serde_json::Value) -> Option<Self> {
        let labels = Labels::deserialize(&jwk).ok()?;
        if labels.usage.is_some_and(|usage| usage != "sig") {
            return None;
        }
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).ok();
        let material = match Jwk::deserialize(jwk).ok()? {
            Jwk::Rsa { n, e } => Material::Rsa { n: decode(&n)?, e: decode(&e)? },
            Jwk::Ec { crv, x, y } => {
                let (x, y) = (decode(&x)?, decode(&y)?);
                (crv == "P-256" && x.len() == 32 && y.len() == 32).then_some(())?;
                Material::P256([&[4], &x[..], &y].concat())
            }
        };
        Some(Self { id: labels.kid, material })
    }

    fn algorithm(&self) -> &'static str {
        match self.material {
            Material::Rsa { .. } => "RS256",
            Material::P256(_) => "ES256",
        }
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Rsa { n, e } => signature::RsaPublicKeyComponents { n, e }
                .verify(&signature::RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok(),
            Material::P256(point) => {
                signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
                    .is_ok()
            }
        }
    }
}

/// A fixed key set.
#[derive(Debug)]
pub struct StaticKeys(Arc<KeySet>);

impl StaticKeys {
    /// Creates a source that always returns `keys`.
    pub fn new(keys: KeySet) -> Self {
        Self(Arc::new(keys))
    }
}

#[async_trait]
impl KeySource for StaticKeys {
    async fn keys(&self, _refresh: bool) -> Result<Arc<KeySet>, KeySourceError> {
        Ok(self.0.clone())
    }
}

/// A key file is checked for changes at most once in this time, unless a key is missing.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Keys in a local file, read again when the file has changed. The file system may be slow, so the file is
/// checked on a thread for blocking work. Requests that arrive during a check share the next one.
#[derive(Debug)]
pub struct FileKeys {
    file: Arc<KeyFile>,
    /// Minimum time between two checks of the file, unless a key is missing.
    check_interval: Duration,
    /// Held during a check.
    check: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct KeyFile {
    path: PathBuf,
    cached: Mutex<Option<Cached>>,
}

#[derive(Clone, Debug)]
struct Cached {
    /// Begin of the last check of the file.
    checked: Instant,
    /// Modification time of the file.
    modified: SystemTime,
    keys: Arc<KeySet>,
}

impl FileKeys {
    /// Creates a source for a key set file. The file is read when it is first needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let file = KeyFile { path: path.into(), cached: Mutex::new(None) };
        Self { file: Arc::new(file), check_interval: CHECK_INTERVAL, check: tokio::sync::Mutex::default() }
    }

    /// Creates a source that checks the file on every call.
    #[cfg(test)]
    pub(super) fn watched(path: impl Into<PathBuf>) -> Self {
        Self { check_interval: Duration::ZERO, ..Self::new(path) }
    }
}

impl KeyFile {
    fn cached(&self) -> MutexGuard<'_, Option<Cached>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys if the last check is one that `is_recent` accepts.
    fn checked(&self, is_recent: impl Fn(Instant) -> bool) -> Option<Arc<KeySet>> {
        self.cached().as_ref().filter(|cached| is_recent(cached.checked)).map(|cached| cached.keys.clone())
    }

    /// Checks the file, and reads it if it has changed. Blocks.
    fn read(&self) -> Result<Arc<KeySet>, KeySourceError> {
        let checked = Instant::now();
        let before = self.cached().clone();
        let (modified, keys) = match (self.read_if_changed(before.as_ref()), before) {
            (Ok(found), _) => found,
            // The file may be half written, so keep the last keys.
            (Err(error), Some(before)) => {
                tracing::warn!(%error, path = %self.path.display(), "could not read the key file; the last keys stay in use");
                (before.modified, before.keys)
            }
            (Err(error), None) => return Err(error),
        };
        *self.cached() = Some(Cached { checked, modified, keys: keys.clone() });
        Ok(keys)
    }

    /// Reads the keys from the file, unless the file is unchanged.
    fn read_if_changed(&self, before: Option<&Cached>) -> Result<(SystemTime, Arc<KeySet>), KeySourceError> {
        let modified = std::fs::metadata(&self.path)?.modified()?;
        if let Some(before) = before.filter(|before| before.modified == modified) {
            return Ok((modified, before.keys.clone()));
        }
        Ok((modified, Arc::new(KeySet::parse(&std::fs::read(&self.path)?)?)))
    }
}

#[async_trait]
impl KeySource for FileKeys {
    async fn keys(&self, refresh: bool) -> Result<Arc<KeySet>, KeySourceError> {
        let asked = Instant::now();
        let in_interval = |checked: Instant| !refresh && checked.elapsed() < self.check_interval;
        if let Some(keys) = self.file.checked(in_interval) {
            return Ok(keys);
        }
        let _check = self.check.lock().await;
        // A check that began after this call has seen what this call has to see.
        if let Some(keys) = self.file.checked(|checked| checked >= asked) {
            return Ok(keys);
        }
        let file = Arc::clone(&self.file);
        let read = tokio::task::spawn_blocking(move || file.read()).await;
        read.map_err(|error| KeySourceError::Unavailable(std::io::Error::other(error)))?
    }
}

fn parse<T: for<'de> Deserialize<'de>>(document: &[u8]) -> Result<T, KeySourceError> {
    if document.len() > MAX_DOCUMENT_BYTES {
        return Err(KeySourceError::Malformed);
    }
    serde_json::from_slice(document).map_err(|_| KeySourceError::Malformed)
}
