//! The public keys of an issuer: a JSON web key set, and where it is read from.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature;
use serde::Deserialize;

/// More than any issuer publishes.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;

/// Where the keys of an issuer come from.
#[async_trait]
pub trait KeySource: Send + Sync {
    /// The keys. With `refresh`, a token named a key that was not among those given last: a source that caches asks
    /// again, unless it did so a moment ago, since anybody can send such tokens.
    async fn keys(&self, refresh: bool) -> Result<Arc<KeySet>, KeySourceError>;
}

/// Why keys could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The document could not be read or fetched.
    #[error("the document could not be read: {0}")]
    Unavailable(#[from] std::io::Error),
    /// The document is not what it should be.
    #[error("the document is malformed")]
    Malformed,
}

/// A JSON web key set.
#[derive(Debug, Default)]
pub struct KeySet(Vec<PublicKey>);

/// An OpenID Connect discovery document, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Discovery {
    /// What tokens say in `iss`.
    pub issuer: String,
    /// Where the key set is.
    pub jwks_uri: String,
    /// Where clients get tokens.
    pub authorization_endpoint: Option<String>,
}

impl Discovery {
    /// Reads a discovery document.
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
    /// Reads a key set. Keys of other kinds or for other uses are passed over.
    pub fn parse(document: &[u8]) -> Result<Self, KeySourceError> {
        let document: Document = parse(document)?;
        Ok(Self(document.keys.into_iter().filter_map(PublicKey::from_jwk).collect()))
    }

    /// The keys of that name, or all if the token names none, that can verify the algorithm.
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

/// Keys that never change.
#[derive(Debug)]
pub struct StaticKeys(Arc<KeySet>);

impl StaticKeys {
    /// These keys.
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

/// A key file is looked at no more often than this, unless a key is missed.
const LOOK: Duration = Duration::from_secs(1);

/// Keys in a local file, read again when the file has changed.
#[derive(Debug)]
pub struct FileKeys {
    path: PathBuf,
    /// See [`LOOK`].
    look: Duration,
    cached: Mutex<Option<Cached>>,
}

#[derive(Clone, Debug)]
struct Cached {
    /// When the file was looked at last.
    looked: Instant,
    /// When it was written, as it said.
    modified: SystemTime,
    keys: Arc<KeySet>,
}

impl FileKeys {
    /// The key set in that file. It is read when it is first needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), look: LOOK, cached: Mutex::new(None) }
    }

    /// The same, looked at whenever keys are asked for.
    #[cfg(test)]
    pub(super) fn watched(path: impl Into<PathBuf>) -> Self {
        Self { look: Duration::ZERO, ..Self::new(path) }
    }

    fn read(&self, refresh: bool) -> Result<Arc<KeySet>, KeySourceError> {
        let mut cached = self.cached.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(cached) = cached.as_ref().filter(|cached| !refresh && cached.looked.elapsed() < self.look)
        {
            return Ok(cached.keys.clone());
        }
        let looked = Instant::now();
        let found = self.look(cached.as_ref());
        let (modified, keys) = match (found, &*cached) {
            (Ok(found), _) => found,
            // It may be in the middle of being written: what was read before stays good.
            (Err(error), Some(cached)) => {
                tracing::warn!(%error, path = %self.path.display(), "the key file cannot be used");
                (cached.modified, cached.keys.clone())
            }
            (Err(error), None) => return Err(error),
        };
        *cached = Some(Cached { looked, modified, keys: keys.clone() });
        Ok(keys)
    }

    /// The keys, read from the file unless it is the one that was read before.
    fn look(&self, before: Option<&Cached>) -> Result<(SystemTime, Arc<KeySet>), KeySourceError> {
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
        self.read(refresh)
    }
}

fn parse<T: for<'de> Deserialize<'de>>(document: &[u8]) -> Result<T, KeySourceError> {
    if document.len() > MAX_DOCUMENT_BYTES {
        return Err(KeySourceError::Malformed);
    }
    serde_json::from_slice(document).map_err(|_| KeySourceError::Malformed)
}
