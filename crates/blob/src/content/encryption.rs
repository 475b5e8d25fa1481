//! The key that a request encrypts its data with: a customer-provided key, or the key of an encryption scope.
//!
//! A customer-provided key comes with every request; only its SHA-256 is stored. A scope is a name in the
//! settings of the account, and its key belongs to the server. The scope of a request is the one in its
//! headers, or that of its signature, or the default of the container. Without any of these, content is not
//! encrypted here; disk encryption can do that.
//!
//! The cloud service accepts customer-provided keys only over HTTPS. This server also accepts them over HTTP,
//! like signatures: it often runs without TLS, and clients insist on HTTPS themselves.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::HeaderMap;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{Account, ErrorCode, Headers, Refusal, Request};
use zeroize::Zeroizing;

use crate::BlobService;
use crate::content::cipher::Key;
use crate::model::container::Container;
use crate::model::record::{Blob, Encryption};

/// The headers with a key, its SHA-256, and its algorithm.
type KeyHeaders = [&'static str; 3];
/// The scope name that stands for the key of the account.
pub(crate) const ACCOUNT_KEY_SCOPE: &str = "$account-encryption-key";
const KEY: KeyHeaders = ["x-ms-encryption-key", "x-ms-encryption-key-sha256", "x-ms-encryption-algorithm"];
const SOURCE_KEY: KeyHeaders =
    ["x-ms-source-encryption-key", "x-ms-source-encryption-key-sha256", "x-ms-source-encryption-algorithm"];
const SCOPE: &str = "x-ms-encryption-scope";
const DEFAULT_SCOPE: &str = "x-ms-default-encryption-scope";

/// An encryption with its key.
#[derive(Debug)]
pub(crate) struct Seal {
    /// The encryption as it is stored in rows.
    pub(crate) encryption: Encryption,
    pub(crate) key: Key,
    /// Whether this is the default of the container and not named by the request.
    is_default: bool,
}

impl BlobService {
    /// Returns the encryption of the data that a request writes.
    pub(crate) fn seal(&self, request: &Request, container: &Container) -> Result<Option<Seal>, Refusal> {
        let chosen = RequestedEncryption::of(request)?;
        check_policy(&chosen, container)?;
        let (name, is_default) = match (chosen, &container.default_encryption_scope) {
            (RequestedEncryption::Customer(key), _) => return Ok(Some(Seal::customer(key))),
            (RequestedEncryption::Scope(name), _) => (name, false),
            (RequestedEncryption::Nothing, Some(name)) => (name.clone(), true),
            (RequestedEncryption::Nothing | RequestedEncryption::NoScope, _) => return Ok(None),
        };
        check_known(&request.account, SCOPE, &name)?;
        let key = self.scope_key(&request.account, &name)?;
        Ok(Some(Seal { encryption: Encryption::Scope { name }, key, is_default }))
    }

    /// Returns the encryption of a blob that a request reads.
    pub(crate) fn unseal(&self, request: &Request, blob: &Blob) -> Result<Option<Seal>, Refusal> {
        self.unseal_with(customer_key(&request.headers, KEY)?, &request.account, blob)
    }

    /// Returns the encryption of a blob that a client reads with an optional customer-provided key.
    pub(crate) fn unseal_with(
        &self,
        customer: Option<Key>,
        account: &Account,
        blob: &Blob,
    ) -> Result<Option<Seal>, Refusal> {
        match (&blob.encryption, customer) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(ErrorCode::BlobDoesNotUseCustomerSpecifiedEncryption.into()),
            (Some(Encryption::Customer { .. }), None) => {
                Err(ErrorCode::BlobUsesCustomerSpecifiedEncryption.into())
            }
            (Some(Encryption::Customer { key_sha256 }), Some(key)) if key.sha256() == *key_sha256 => {
                Ok(Some(Seal::customer(key)))
            }
            (Some(_), Some(_)) => Err(ErrorCode::BlobCustomerSpecifiedEncryptionMismatch.into()),
            (Some(Encryption::Scope { name }), None) => self.unseal_scope(account, name).map(Some),
        }
    }

    /// Returns the encryption of a scope. Refuses if the account no longer has the scope.
    pub(crate) fn unseal_scope(&self, account: &Account, name: &str) -> Result<Seal, Refusal> {
        if !account.settings.encryption_scopes.iter().any(|scope| scope == name) {
            return Err(Refusal::new(ErrorCode::AuthorizationFailure)
                .message("The encryption scope of the blob is disabled."));
        }
        let key = self.scope_key(account, name)?;
        Ok(Seal { encryption: Encryption::Scope { name: name.to_owned() }, key, is_default: false })
    }

    fn scope_key(&self, account: &Account, name: &str) -> Result<Key, Refusal> {
        Key::of_scope(&Zeroizing::new(self.accounts.master_secret()), account, name)
    }
}

impl Seal {
    fn customer(key: Key) -> Self {
        Self { encryption: Encryption::Customer { key_sha256: key.sha256() }, key, is_default: false }
    }
}

/// Refuses to change a blob whose encryption differs from that of the request.
pub(crate) fn check_update(used: Option<&Encryption>, seal: Option<&Seal>) -> Result<(), Refusal> {
    let code = match (used, seal) {
        (None, None) => return Ok(()),
        (Some(used), Some(seal)) if *used == seal.encryption => return Ok(()),
        (Some(_), Some(seal)) if !seal.is_default => ErrorCode::BlobCustomerSpecifiedEncryptionMismatch,
        (Some(_), _) => ErrorCode::BlobUsesCustomerSpecifiedEncryption,
        (None, Some(_)) => ErrorCode::BlobDoesNotUseCustomerSpecifiedEncryption,
    };
    Err(code.into())
}

/// Like [`check_update`], for changes that need no key. Checks a key or scope only if the request names one.
pub(crate) fn check_keyless_update(used: Option<&Encryption>, seal: Option<&Seal>) -> Result<(), Refusal> {
    match seal {
        Some(seal) if !seal.is_default => check_update(used, Some(seal)),
        _ => Ok(()),
    }
}

/// Returns the default encryption scope of a new container, and whether blobs must not use another.
pub(crate) fn container_default(request: &Request) -> Result<(Option<String>, bool), Refusal> {
    let scope = request.headers.filled(DEFAULT_SCOPE)?.filter(|scope| *scope != ACCOUNT_KEY_SCOPE);
    if let Some(scope) = scope {
        check_known(&request.account, DEFAULT_SCOPE, scope)?;
    }
    let deny = request.headers.flag("x-ms-deny-encryption-scope-override")?.unwrap_or(false);
    Ok((scope.map(str::to_owned), deny))
}

/// Refuses the name of a scope that the account does not have.
fn check_known(account: &Account, header: &str, name: &str) -> Result<(), Refusal> {
    if account.settings.encryption_scopes.iter().any(|scope| scope == name) {
        return Ok(());
    }
    Err(Refusal::invalid_header(header, name))
}

/// The encryption that a request names.
#[derive(Debug)]
enum RequestedEncryption {
    Nothing,
    Customer(Key),
    Scope(String),
    /// The request explicitly names no scope.
    NoScope,
}

impl RequestedEncryption {
    fn of(request: &Request) -> Result<Self, Refusal> {
        let granted = match &request.caller {
            Caller::Sas(grant) => grant.encryption_scope.as_deref(),
            _ => None,
        };
        let scope = request.headers.filled(SCOPE)?.or(granted);
        match (customer_key(&request.headers, KEY)?, scope) {
            (None, None) => Ok(Self::Nothing),
            (None, Some(ACCOUNT_KEY_SCOPE)) => Ok(Self::NoScope),
            (None, Some(name)) => Ok(Self::Scope(name.to_owned())),
            (Some(key), None) => Ok(Self::Customer(key)),
            (Some(_), Some(name)) => Err(Refusal::invalid_header(SCOPE, name)),
        }
    }
}

/// Refuses an encryption other than the container's default, if the container allows only that.
fn check_policy(chosen: &RequestedEncryption, container: &Container) -> Result<(), Refusal> {
    let default = container.default_encryption_scope.as_deref();
    let is_default = match chosen {
        RequestedEncryption::Nothing => true,
        RequestedEncryption::Customer(_) => false,
        RequestedEncryption::Scope(name) => Some(name.as_str()) == default,
        RequestedEncryption::NoScope => default.is_none(),
    };
    if container.deny_encryption_scope_override && !is_default {
        return Err(ErrorCode::RequestForbiddenByContainerEncryptionPolicy.into());
    }
    Ok(())
}

/// Returns the customer-provided key for the source of a copy.
pub(crate) fn source_key(headers: &HeaderMap) -> Result<Option<Key>, Refusal> {
    customer_key(headers, SOURCE_KEY)
}

/// Returns the customer-provided key of a request. Refusals never contain the value of a key. An algorithm
/// without a key or hash is ignored, because clients of 2020 and 2021 send it with every request.
fn customer_key(headers: &HeaderMap, names: KeyHeaders) -> Result<Option<Key>, Refusal> {
    let [key, sha256, _] = names;
    if [key, sha256].iter().all(|name| matches!(headers.filled(name), Ok(None))) {
        return Ok(None);
    }
    let [key, sha256, algorithm] = names.map(|name| headers.required(name));
    let key = key.map_err(|refusal| Refusal::new(refusal.code()).detail("HeaderName", names[0]))?;
    let key = Zeroizing::new(BASE64.decode(key).unwrap_or_default());
    let key = Key::from_client(&key).ok_or_else(|| Refusal::invalid_header(names[0], ""))?;
    let sha256 = sha256?;
    if BASE64.decode(sha256).ok().as_deref() != Some(&key.sha256()[..]) {
        return Err(Refusal::invalid_header(names[1], sha256));
    }
    match algorithm? {
        "AES256" => Ok(Some(key)),
        other => Err(Refusal::invalid_header(names[2], other)),
    }
}
