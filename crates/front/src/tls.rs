//! TLS with a certificate from PEM files, or with a self-signed one that is created once and kept in the data
//! directory or in memory.
//!
//! Certificate files can be reloaded while they are in use, because certificates expire sooner than servers
//! restart.
//!
//! An endpoint with TLS speaks nothing else on its port. Versions (1.2 and 1.3) and cipher suites are the
//! defaults of rustls; ALPN offers HTTP/2 and HTTP/1.1.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use lazuli_concurrency::{Span, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::TlsAcceptor;

/// The ALPN name of HTTP/2.
pub(crate) const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// Files of a self-signed certificate, in their own directory.
const CERTIFICATE_FILE: &str = "self-signed.crt";
const KEY_FILE: &str = "self-signed.key";
/// Lifetime of a self-signed certificate: the longest that Apple's clients accept.
const SELF_SIGNED_LIFE: Span = Span::seconds(825 * 86_400);
/// A self-signed certificate that expires within this time is replaced when the server starts.
const RENEW_BEFORE: Span = Span::seconds(30 * 86_400);
/// A self-signed certificate is valid from one day earlier, for clients whose clock is behind.
const BACKDATED: Span = Span::seconds(86_400);

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not PEM, or holds no certificate or key.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: rustls_pki_types::pem::Error,
    },
    /// Certificate and key do not match, or cannot be used.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// A self-signed certificate cannot be created, usually because of a host name.
    #[error("cannot create a self-signed certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// The TLS configuration of an endpoint. Clones share the certificate.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ServerConfig>,
    slot: Arc<CertificateSlot>,
}

/// The certificate that new connections use.
#[derive(Debug)]
struct CertificateSlot(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CertificateSlot {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Reads a certificate chain and its private key from PEM files; both may be in one file.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::serving(read_pair(certificate, key)?)
    }

    fn serving(pair: Arc<CertifiedKey>) -> Result<Self, TlsError> {
        let slot = Arc::new(CertificateSlot(RwLock::new(pair)));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&slot) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![H2.to_vec(), HTTP_1_1.to_vec()];
        Ok(Self { config: Arc::new(config), slot })
    }

    /// Reads the files again, for new connections. If they cannot be used, the current certificate stays.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), TlsError> {
        let pair = read_pair(certificate, key)?;
        *self.slot.0.write().unwrap_or_else(PoisonError::into_inner) = pair;
        Ok(())
    }

    /// Returns the self-signed certificate in `directory`. Creates a new one if there is none, if it does not
    /// name all of `hosts`, or if it expires soon after `now`.
    pub fn self_signed(directory: &Path, hosts: &[String], now: Timestamp) -> Result<Self, TlsError> {
        let (certificate, key) = Self::self_signed_files(directory);
        if covers(&certificate, hosts, now.saturating_add(RENEW_BEFORE))
            && let Ok(tls) = Self::from_files(&certificate, &key)
        {
            return Ok(tls);
        }
        let (new_certificate, new_key) = generate(hosts, now)?;
        store(directory, &new_certificate, &new_key)?;
        Self::from_files(&certificate, &key)
    }

    /// Returns a new self-signed certificate that is not stored on disk.
    pub fn self_signed_in_memory(hosts: &[String], now: Timestamp) -> Result<Self, TlsError> {
        let (certificate, key) = generate(hosts, now)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Self::serving(Arc::new(CertifiedKey::from_der(vec![certificate.der().clone()], key, &provider())?))
    }

    /// Examines certificate files. Returns what would make clients refuse the certificate at that time, for
    /// clients that trust the last certificate of the chain and connect to one of `hosts`.
    pub fn examine(
        certificate: &Path,
        key: &Path,
        hosts: &[String],
        at: Timestamp,
    ) -> Result<Vec<String>, TlsError> {
        read_pair(certificate, key)?;
        let chain = read_chain(certificate)?;
        let mut problems = vec![];
        // Without a name to check, any name proves the chain and the dates.
        let any = ["name.invalid".to_owned()];
        let has_names = !hosts.is_empty();
        for host in if has_names { hosts } else { &any } {
            let host =
                host.strip_prefix("*.").map_or_else(|| host.clone(), |suffix| format!("account.{suffix}"));
            let problem = match verify(&chain, &host, at) {
                Ok(()) => continue,
                Err(rustls::Error::InvalidCertificate(error)) => match error {
                    CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                        "the certificate has expired".to_owned()
                    }
                    CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                        "the certificate is not valid yet".to_owned()
                    }
                    CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                        if !has_names {
                            continue;
                        }
                        format!("the certificate does not name {host}")
                    }
                    CertificateError::UnknownIssuer => {
                        "the chain has gaps or is out of order: first the certificate of the server, then each \
                         issuer"
                            .to_owned()
                    }
                    error => error.to_string(),
                },
                Err(error) => error.to_string(),
            };
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Ok(problems)
    }

    /// Returns the paths of the certificate (for clients to trust) and the key of [`Tls::self_signed`].
    pub fn self_signed_files(directory: &Path) -> (PathBuf, PathBuf) {
        (directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE))
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::File { path: path.to_owned(), source })
}

/// Reads a certificate chain and its matching key.
fn read_pair(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = read_chain(certificate)?;
    let pem = read(key)?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|source| TlsError::Pem { path: key.to_owned(), source })?;
    Ok(Arc::new(CertifiedKey::from_der(chain, key, &provider())?))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem_error = |source| TlsError::Pem { path: path.to_owned(), source };
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(pem_error)?;
    if chain.is_empty() {
        return Err(pem_error(rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(chain)
}

/// Returns whether a client that trusts exactly this certificate would accept it for all of `hosts` at that
/// time.
fn covers(certificate: &Path, hosts: &[String], at: Timestamp) -> bool {
    let Ok(chain) = read_chain(certificate) else { return false };
    let [certificate] = chain.as_slice() else { return false };
    let mut roots = rustls::RootCertStore::empty();
    if roots.add(certificate.clone()).is_err() {
        return false;
    }
    let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()
    else {
        return false;
    };
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.unix_seconds()));
    hosts.iter().all(|host| {
        ServerName::try_from(host.as_str())
            .is_ok_and(|name| verifier.verify_server_cert(certificate, &[], &name, &[], at).is_ok())
    })
}

/// Verifies a chain for a host name, as a client would that trusts the last certificate of the chain.
fn verify(chain: &[CertificateDer<'_>], host: &str, at: Timestamp) -> Result<(), rustls::Error> {
    let (first, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(chain.last().unwrap_or(first).clone().into_owned())?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let name =
        ServerName::try_from(host.to_owned()).map_err(|error| rustls::Error::General(error.to_string()))?;
    let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.unix_seconds()));
    verifier.verify_server_cert(first, rest, &name, &[], at).map(drop)
}

fn generate(hosts: &[String], now: Timestamp) -> Result<(rcgen::Certificate, rcgen::KeyPair), TlsError> {
    let at = |time: Timestamp| {
        time::OffsetDateTime::from_unix_timestamp(time.unix_seconds().cast_signed())
            .map_err(|_| rcgen::Error::Time)
    };
    let mut params = rcgen::CertificateParams::new(hosts)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "Lazuli self-signed");
    params.not_before = at(now - BACKDATED)?;
    params.not_after = at(now - BACKDATED + SELF_SIGNED_LIFE)?;
    let key = rcgen::KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok((certificate, key))
}

fn store(directory: &Path, certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Result<(), TlsError> {
    let file_error = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    fs::create_dir_all(directory).map_err(file_error(directory))?;
    let (certificate_file, key_file) = Tls::self_signed_files(directory);
    // A crash between the two leaves a mismatched pair, which the next start replaces.
    replace(&key_file, key.serialize_pem().as_bytes(), 0o600).map_err(file_error(&key_file))?;
    replace(&certificate_file, certificate.pem().as_bytes(), 0o644).map_err(file_error(&certificate_file))
}

/// Writes a file atomically.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::{Clock, SystemClock};

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_800_000_000);

    fn hosts(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_self_signed_certificate_is_kept_until_a_host_is_missing_or_it_expires_soon() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = Tls::self_signed_files(directory.path());
        let made = |names: &[&str], now| {
            Tls::self_signed(directory.path(), &hosts(names), now).unwrap();
            fs::read(&certificate).unwrap()
        };

        let first = made(&["localhost", "127.0.0.1", "::1"], NOW);
        assert_eq!(made(&["localhost", "127.0.0.1", "::1"], NOW), first);
        assert_eq!(made(&["127.0.0.1"], NOW), first, "fewer hosts are still covered");
        assert_eq!(made(&["localhost"], NOW + Span::seconds(790 * 86_400)), first);

        let second = made(&["localhost", "store.example"], NOW);
        assert_ne!(second, first, "a host that it does not name");
        let third = made(&["localhost"], NOW + Span::seconds(800 * 86_400));
        assert_ne!(third, second, "about to run out");

        fs::write(&key, "not a key").unwrap();
        assert_ne!(made(&["localhost"], NOW + Span::seconds(800 * 86_400)), third, "the key file is missing");
    }

    #[test]
    fn examination_finds_what_clients_would_refuse() {
        let directory = tempfile::tempdir().unwrap();
        Tls::self_signed(directory.path(), &hosts(&["localhost", "*.store.example"]), NOW).unwrap();
        let (certificate, key) = Tls::self_signed_files(directory.path());
        let later = NOW + SELF_SIGNED_LIFE;
        for (names, at, expected) in [
            (&[][..], NOW, None),
            (&["*.store.example"], NOW, None),
            (&["*.other.example"], NOW, Some("the certificate does not name account.other.example")),
            (&[], later, Some("the certificate has expired")),
            (&[], NOW - BACKDATED - BACKDATED, Some("the certificate is not valid yet")),
        ] {
            let found = Tls::examine(&certificate, &key, &hosts(names), at).unwrap();
            assert_eq!(found.first().map(String::as_str), expected, "{names:?}");
        }
        fs::write(&key, "not a key").unwrap();
        assert!(Tls::examine(&certificate, &key, &[], NOW).is_err());
    }

    #[test]
    fn unstored_certificate_is_accepted_by_clients_that_trust_it() {
        let tls = Tls::self_signed_in_memory(&hosts(&["localhost"]), SystemClock.now()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(tls.slot.0.read().unwrap().cert[0].clone()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(provider());
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let name = ServerName::try_from("localhost").unwrap();
        let config = Arc::new(config.with_no_client_auth());
        let mut client: rustls::Connection = rustls::ClientConnection::new(config, name).unwrap().into();
        let mut server: rustls::Connection = rustls::ServerConnection::new(tls.config).unwrap().into();
        let transfer = |from: &mut rustls::Connection, to: &mut rustls::Connection| {
            let mut bytes = vec![];
            while from.wants_write() {
                from.write_tls(&mut bytes).unwrap();
            }
            let mut left = &bytes[..];
            while !left.is_empty() {
                to.read_tls(&mut left).unwrap();
                to.process_new_packets().unwrap();
            }
        };
        while client.is_handshaking() || server.is_handshaking() {
            transfer(&mut client, &mut server);
            transfer(&mut server, &mut client);
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_private_key_is_readable_by_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        Tls::self_signed(directory.path(), &hosts(&["localhost"]), NOW).unwrap();
        let (_, key) = Tls::self_signed_files(directory.path());
        assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn unusable_certificate_files_are_named_in_the_error() {
        let directory = tempfile::tempdir().unwrap();
        Tls::self_signed(directory.path(), &hosts(&["localhost"]), NOW).unwrap();
        let (certificate, key) = Tls::self_signed_files(directory.path());
        let other = tempfile::tempdir().unwrap();
        Tls::self_signed(other.path(), &hosts(&["localhost"]), NOW).unwrap();
        let (_, other_key) = Tls::self_signed_files(other.path());
        let missing = directory.path().join("missing.pem");

        assert!(Tls::from_files(&certificate, &key).is_ok());
        assert!(
            matches!(Tls::from_files(&missing, &key), Err(TlsError::File { path, .. }) if path == missing)
        );
        assert!(matches!(Tls::from_files(&key, &key), Err(TlsError::Pem { path, .. }) if path == key));
        assert!(matches!(Tls::from_files(&certificate, &certificate), Err(TlsError::Pem { .. })));
        assert!(matches!(Tls::from_files(&certificate, &other_key), Err(TlsError::Unusable(_))));
    }
}
