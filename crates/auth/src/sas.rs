//! Shared access signatures: account SAS, service SAS and user delegation SAS.
//!
//! Checks are made in this order: malformed fields, the signature, the stored access policy, the time, the
//! client's address, the protocol, the permissions. Only signed fields have an effect: a parameter that the
//! signature's version does not sign is ignored. Checks that a [`Grant`] leaves to the services are described
//! there and in [`crate::permission`].

mod limits;
pub(crate) mod string_to_sign;

use http::{HeaderName, HeaderValue, header};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::account::Role;
use lazuli_protocol::address::name_as_sent;
use lazuli_protocol::policy::AccessPolicy;
use lazuli_protocol::request::{Grant, TableRange};
use lazuli_protocol::{Operation, Query, Refusal, ServiceKind, Version, date};
use uuid::Uuid;

use crate::refusal::authentication_failed;
use crate::user_delegation::{KeyClaims, MasterSecret};
use crate::{Head, letter, mac, permission, shared_key};
use limits::ValidityWindow;
use string_to_sign::{Bound, Resource};

/// The fields of signatures. None may contain a line feed, because strings to sign would be ambiguous.
const FIELDS: &[&str] = &[
    "sv",
    "sr",
    "sp",
    "st",
    "se",
    "si",
    "sip",
    "spr",
    "ses",
    "sdd",
    "sig",
    "ss",
    "srt",
    "tn",
    "spk",
    "srk",
    "epk",
    "erk",
    "rscc",
    "rscd",
    "rsce",
    "rscl",
    "rsct",
    "snapshot",
    "versionid",
    "skoid",
    "sktid",
    "skt",
    "ske",
    "sks",
    "skv",
    "saoid",
    "suoid",
    "scid",
    "skdutid",
    "sduoid",
    "srh",
    "srq",
];

/// The kind of a shared access signature.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SasKind {
    /// Signed with an account key, for services and resource types.
    Account,
    /// Signed with an account key, for one resource.
    Service,
    /// Signed with a user delegation key, for one resource.
    UserDelegation,
}

/// A shared access signature as sent. Its fields are well-formed; nothing is verified yet.
pub(crate) struct Sas<'a> {
    query: &'a Query,
    kind: SasKind,
    /// The value of `sv`, which decides which fields are signed.
    version: Version,
    signature: &'a str,
}

/// A shared access signature whose MAC was verified. Its permissions are not checked yet.
pub(crate) struct VerifiedSas<'a> {
    sas: Sas<'a>,
    target: SasTarget,
}

/// The resource that a service or user delegation SAS is signed for.
#[derive(Default)]
struct SasTarget {
    /// The signed path, and another spelling of it that is accepted.
    paths: Vec<String>,
    timestamp: String,
    /// The directory that contains every accessible object.
    directory: Option<String>,
    /// The only accessible table.
    table: Option<String>,
}

impl<'a> Sas<'a> {
    /// Reads the fields. Refuses malformed fields, and signatures without the mandatory fields of their kind.
    pub(crate) fn parse(service: ServiceKind, query: &'a Query) -> Result<Self, Refusal> {
        if let Some((name, _)) = query.iter().find(|(name, v)| FIELDS.contains(name) && v.contains('\n')) {
            return Err(authentication_failed(format!("{name} has a line feed.")));
        }
        let version = match query.get("sv") {
            Some(sv) => Version::parse(sv).ok_or_else(|| authentication_failed("sv is not a version."))?,
            None => Version::OLDEST,
        };
        let (kind, oldest, mandatory): (_, _, &[&str]) = if query.contains("skoid") {
            (
                SasKind::UserDelegation,
                Version::new(2018, 11, 9),
                &["sp", "se", "sktid", "skt", "ske", "sks", "skv"],
            )
        } else if query.contains("ss") || query.contains("srt") {
            (SasKind::Account, Version::new(2015, 4, 5), &["sp", "se", "ss", "srt"])
        } else {
            match service {
                // The first signatures had no version.
                ServiceKind::Blob if !query.contains("sv") => (SasKind::Service, Version::OLDEST, &["sr"]),
                ServiceKind::Blob => (SasKind::Service, Version::new(2012, 2, 12), &["sr"]),
                ServiceKind::File => (SasKind::Service, Version::new(2015, 2, 21), &["sr"]),
                ServiceKind::Queue => (SasKind::Service, Version::new(2012, 2, 12), &[]),
                ServiceKind::Table => (SasKind::Service, Version::new(2012, 2, 12), &["tn"]),
            }
        };
        if version < oldest {
            return Err(authentication_failed("sv is older than signatures of this kind."));
        }
        let sas = Self { query, kind, version, signature: query.get("sig").unwrap_or_default() };
        if let Some(name) = mandatory.iter().chain(&["sig"]).find(|name| sas.field(name).is_empty()) {
            return Err(mandatory_field(name));
        }
        if !sas.field("ses").is_empty() && !version.at_least(2020, 12, 6) {
            return Err(authentication_failed("ses is not a field of this version."));
        }
        if kind == SasKind::Service && service == ServiceKind::Table {
            sas.check_bounds()?;
        }
        if kind == SasKind::UserDelegation {
            sas.check_delegated()?;
        }
        Ok(sas)
    }

    /// Returns the value of a field, or an empty string if it is absent.
    pub(crate) fn field(&self, name: &str) -> &'a str {
        self.query.get(name).unwrap_or_default()
    }

    /// Refuses a row key without its partition key, which would bound nothing.
    fn check_bounds(&self) -> Result<(), Refusal> {
        for (partition, row) in [("spk", "srk"), ("epk", "erk")] {
            if self.query.contains(row) && !self.query.contains(partition) {
                return Err(authentication_failed(format!("{row} is given without {partition}.")));
            }
        }
        Ok(())
    }

    /// Checks the fields that only a user delegation SAS has or must not have.
    fn check_delegated(&self) -> Result<(), Refusal> {
        if !self.field("si").is_empty() {
            return Err(authentication_failed("A user delegation SAS cannot name a stored access policy."));
        }
        let agents: &[_] = if self.version.at_least(2020, 2, 10) { &["saoid", "suoid", "scid"] } else { &[] };
        let is_guid = |value: &str| value.is_empty() || Uuid::try_parse(value).is_ok();
        if let Some(name) = agents.iter().find(|name| !is_guid(self.field(name))) {
            return Err(authentication_failed(format!("{name} is not a GUID.")));
        }
        // A key that was requested for another tenant may be used only by a user of that tenant. The
        // signature names the user.
        if !self.field("skdutid").is_empty() {
            if !self.version.at_least(2025, 7, 5) {
                return Err(authentication_failed("skdutid is not a field of this version."));
            }
            self.mandatory("sduoid")?;
        }
        self.check_bound()
    }

    /// Refuses lists and values whose signed lines could be split at another place. The lists of names are
    /// not signed, so the holder of the signature can choose them.
    fn check_bound(&self) -> Result<(), Refusal> {
        if !self.version.at_least(2026, 4, 6) {
            return Ok(());
        }
        for list in ["srh", "srq"] {
            if !names(self.field(list)).all(is_token) {
                return Err(authentication_failed(format!("{list} has a name that is not a token.")));
            }
        }
        for name in names(self.field("srq")) {
            if self.field(name).contains('\n') {
                return Err(authentication_failed(format!("{name} has a line feed.")));
            }
            // The signature covers one value. Operations may join all values, so more could add to it.
            if self.query.get_all(name).nth(1).is_some() {
                return Err(authentication_failed(format!("{name} is bound and occurs more than once.")));
            }
        }
        Ok(())
    }

    /// Refuses a bound header that occurs more than once: the signature covers one value.
    fn check_bound_headers(&self, head: &Head<'_>) -> Result<(), Refusal> {
        let is_repeated = |name: &&str| head.headers.get_all(*name).iter().nth(1).is_some();
        match names(self.field("srh")).find(is_repeated) {
            Some(name) => Err(authentication_failed(format!("{name} is bound and occurs more than once."))),
            None => Ok(()),
        }
    }

    /// Verifies the signature.
    pub(crate) fn verify(self, head: &Head<'_>, secret: &MasterSecret) -> Result<VerifiedSas<'a>, Refusal> {
        let target = self.target(head)?;
        if self.kind == SasKind::UserDelegation && self.version.at_least(2026, 4, 6) {
            self.check_bound_headers(head)?;
        }
        let strings = self.strings_to_sign(head, &target);
        let signature = mac::decode(self.signature).unwrap_or_default();
        let valid = if self.kind == SasKind::UserDelegation {
            let key = secret.derive(&self.key_claims(head)?);
            mac::matches_any(&signature, [&key[..]].into_iter(), &strings)
        } else {
            mac::matches_any(&signature, shared_key::keys(head.account), &strings)
        };
        if valid {
            return Ok(VerifiedSas { sas: self, target });
        }
        let signed = strings.first().map(String::as_str).unwrap_or_default();
        Err(authentication_failed(format!("Signature did not match. String to sign used was {signed}")))
    }

    /// Returns the signature that the account key, or the user delegation key that the fields name, would
    /// create.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn sign(&self, head: &Head<'_>, account_key: &[u8], secret: &MasterSecret) -> Option<String> {
        let target = self.target(head).ok()?;
        let key = match self.kind {
            SasKind::UserDelegation => secret.derive(&self.key_claims(head).ok()?).to_vec(),
            SasKind::Account | SasKind::Service => account_key.to_vec(),
        };
        self.strings_to_sign(head, &target).first().map(|string| mac::sign(&key, string.as_bytes()))
    }

    fn strings_to_sign(&self, head: &Head<'_>, target: &SasTarget) -> Vec<String> {
        let field = |name: &str| self.field(name);
        let resource = |path| Resource {
            service: head.operation.service(),
            account: &head.account.name,
            path,
            timestamp: &target.timestamp,
        };
        let paths = target.paths.iter().map(|path| resource(path));
        match self.kind {
            SasKind::Account => vec![string_to_sign::account(&head.account.name, self.version, &field)],
            SasKind::Service => paths.map(|r| string_to_sign::service(&r, self.version, &field)).collect(),
            SasKind::UserDelegation => {
                let bound = self.bound(head);
                paths
                    .flat_map(|r| string_to_sign::user_delegation(&r, self.version, &bound, &field))
                    .collect()
            }
        }
    }

    /// Returns the resource that the signature must be for, so that it covers the addressed resource.
    fn target(&self, head: &Head<'_>) -> Result<SasTarget, Refusal> {
        if self.kind == SasKind::Account {
            return Ok(SasTarget::default());
        }
        let (container, object) = (head.container, head.object);
        let of_container = || SasTarget { paths: vec![container.to_owned()], ..SasTarget::default() };
        let of_object = |timestamp: &str| match object {
            "" => Err(authentication_failed("sr is for an object, but the request addresses none.")),
            _ => Ok(SasTarget {
                paths: spellings(head, object).map(|name| format!("{container}/{name}")).collect(),
                timestamp: timestamp.to_owned(),
                ..SasTarget::default()
            }),
        };
        let since = |year, month, day| self.version.at_least(year, month, day);
        match (head.operation.service(), self.field("sr")) {
            (ServiceKind::Queue, _) => Ok(of_container()),
            (ServiceKind::Table, _) => self.table(head),
            (ServiceKind::Blob, "c") | (ServiceKind::File, "s") => Ok(of_container()),
            (ServiceKind::Blob, "b") | (ServiceKind::File, "f") => of_object(""),
            // Older signatures do not cover `sr`: the holder of one for a blob could present it as one for
            // a directory.
            (ServiceKind::Blob, "bs") if since(2018, 11, 9) => of_object(self.mandatory("snapshot")?),
            (ServiceKind::Blob, "bv") if since(2019, 12, 12) => of_object(self.mandatory("versionid")?),
            (ServiceKind::Blob, "d") if since(2020, 2, 10) => self.directory(head),
            _ => Err(authentication_failed("sr is not a resource of this service.")),
        }
    }

    /// Returns the table that a table SAS names: a transaction does not address a table.
    fn table(&self, head: &Head<'_>) -> Result<SasTarget, Refusal> {
        let table = self.field("tn").to_lowercase();
        if head.operation != Operation::EntityGroupTransaction && !head.container.eq_ignore_ascii_case(&table)
        {
            return Err(authentication_failed("tn is not the table that the request addresses."));
        }
        Ok(SasTarget { paths: vec![table.clone()], table: Some(table), ..SasTarget::default() })
    }

    /// Returns the directory of a directory SAS: the first `sdd` segments of the path, or of the listed
    /// prefix.
    fn directory(&self, head: &Head<'_>) -> Result<SasTarget, Refusal> {
        use lazuli_protocol::ErrorCode::{QueryParameterSasMandatory, QueryParameterSddInvalid};
        let sdd = Some(self.field("sdd")).filter(|sdd| !sdd.is_empty()).ok_or(QueryParameterSasMandatory)?;
        let depth: usize = sdd.parse().map_err(|_| QueryParameterSddInvalid)?;
        let path = match head.operation {
            Operation::ListBlobs => self.field("prefix"),
            _ => head.object,
        };
        let segments: Vec<_> = path.split('/').take(depth).collect();
        if segments.len() < depth {
            return Err(authentication_failed("The path is not as deep as sdd says."));
        }
        // When signed, `a/` means the directory `a` with a closing slash. It must not also mean the directory
        // without a name in `a`: the depth is not signed, so a signature for one would open the other.
        if segments.last().is_some_and(|last| last.is_empty()) {
            return Err(authentication_failed("sdd counts a directory without a name."));
        }
        let directory = segments.join("/");
        let container = head.container;
        let signed = spellings(head, path).filter_map(|name| {
            let directory = name.get(..directory.len())?;
            Some(if depth == 0 { container.to_owned() } else { format!("{container}/{directory}") })
        });
        // Some clients sign the path of a directory with a closing slash.
        let paths = signed.flat_map(|path| [format!("{path}/"), path]).collect();
        Ok(SasTarget { paths, directory: Some(directory), ..SasTarget::default() })
    }

    fn mandatory(&self, name: &str) -> Result<&'a str, Refusal> {
        Some(self.field(name)).filter(|value| !value.is_empty()).ok_or_else(|| mandatory_field(name))
    }

    fn bound(&self, head: &Head<'_>) -> Bound {
        let header = |name: &str| head.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
        Bound {
            headers: names(self.field("srh"))
                .map(|name| format!("{name}:{}\n", header(name).unwrap_or_default()))
                .collect(),
            parameters: names(self.field("srq"))
                .map(|name| format!("\n{name}:{}", self.field(name)))
                .collect(),
        }
    }

    /// Returns the claims of the user delegation key that must have signed.
    fn key_claims<'h>(&self, head: &'h Head<'_>) -> Result<KeyClaims<'h>, Refusal>
    where
        'a: 'h,
    {
        Ok(KeyClaims {
            account: &head.account.name,
            object_id: self.field("skoid"),
            tenant_id: self.field("sktid"),
            start: self.moment("skt")?.ok_or_else(|| mandatory_field("skt"))?,
            expiry: self.moment("ske")?.ok_or_else(|| mandatory_field("ske"))?,
            service: self.field("sks"),
            version: self.field("skv"),
            delegated_tenant_id: self.field("skdutid"),
        })
    }

    fn moment(&self, name: &str) -> Result<Option<Timestamp>, Refusal> {
        match self.field(name) {
            "" => Ok(None),
            text => date::parse_iso8601(text)
                .map(Some)
                .ok_or_else(|| authentication_failed(format!("{name} is not a date."))),
        }
    }
}

impl VerifiedSas<'_> {
    /// Returns the container and the id of the stored access policy that must be looked up.
    pub(crate) fn policy<'h>(&'h self, head: &'h Head<'_>) -> Option<(&'h str, &'h str)> {
        if self.sas.kind != SasKind::Service || self.sas.field("si").is_empty() {
            return None;
        }
        let container = match head.operation.service() {
            ServiceKind::Table => self.sas.field("tn"),
            _ => head.container,
        };
        Some((container, self.sas.field("si")))
    }

    /// Returns what the signature grants, or refuses the operation. `policy` is the policy that `si` names.
    pub(crate) fn grant(&self, head: &Head<'_>, policy: &AccessPolicy) -> Result<Grant, Refusal> {
        let Self { sas, target } = self;
        let mut permissions = self.permissions(head, policy)?;
        let start = in_one_place("st", sas.moment("st")?, policy.start)?;
        let expiry =
            in_one_place("se", sas.moment("se")?, policy.expiry)?.ok_or_else(|| mandatory_field("se"))?;
        let window = ValidityWindow { start, expiry };
        window.check(head.now)?;
        if !sas.query.contains("sv") && sas.field("si").is_empty() {
            window.check_length(head.now)?;
        }
        if sas.version.at_least(2015, 4, 5) {
            limits::check_source(sas.field("sip"), head.peer, head.version)?;
            limits::check_protocol(sas.field("spr"), head.secure, head.version)?;
        }
        match sas.kind {
            SasKind::Account => {
                permission::check_account(
                    head,
                    sas.field("ss"),
                    sas.field("srt"),
                    &permissions,
                    sas.version,
                )?;
            }
            SasKind::Service => permission::check_service(head, &permissions, sas.version)?,
            SasKind::UserDelegation => {
                let role = self.check_delegation(head)?;
                permission::check_delegated(head, &permissions, sas.version)?;
                // The services check this letter: an owner without the right to read tags cannot delegate it.
                permissions.retain(|letter| letter != 't' || role >= Operation::GetBlobTags.row().role);
            }
        }
        Ok(Grant {
            permissions,
            table: target.table.clone(),
            table_range: self.table_range(head),
            encryption_scope: self.encryption_scope(head)?,
            response_headers: self.response_headers(head)?,
            directory: target.directory.clone(),
        })
    }

    fn permissions(&self, head: &Head<'_>, policy: &AccessPolicy) -> Result<String, Refusal> {
        let sp = Some(self.sas.field("sp")).filter(|sp| !sp.is_empty());
        if let Some(letters) = sp {
            match self.sas.kind {
                SasKind::Account => permission::check_account_letters(letters)?,
                _ => permission::check_service_letters(head.operation.service(), letters)?,
            }
        }
        let letters = in_one_place("sp", sp, policy.permissions.as_deref())?;
        letters.map(str::to_owned).ok_or_else(|| mandatory_field("sp"))
    }

    /// Checks that the key is valid now and for this service, and that its owner has the delegated right.
    /// Returns the owner's role.
    fn check_delegation(&self, head: &Head<'_>) -> Result<Role, Refusal> {
        let key = self.sas.key_claims(head)?;
        ValidityWindow { start: Some(key.start), expiry: key.expiry }.check(head.now)?;
        if key.service != letter(head.operation.service()) {
            return Err(authentication_failed("sks is not the letter of this service."));
        }
        permission::check_role(head, key.object_id)
    }

    fn table_range(&self, head: &Head<'_>) -> TableRange {
        if head.operation.service() != ServiceKind::Table || self.sas.kind != SasKind::Service {
            return TableRange::default();
        }
        // An empty bound is signed like an absent one, so it could be left out and must not bound anything.
        // The partition key of a given row key cannot be left out, so it may be empty.
        let bound = |partition, row| {
            let row = Some(self.sas.field(row)).filter(|key| !key.is_empty());
            let partition = Some(self.sas.field(partition)).filter(|key| !key.is_empty() || row.is_some());
            (partition.map(str::to_owned), row.map(str::to_owned))
        };
        let (start_partition, start_row) = bound("spk", "srk");
        let (end_partition, end_row) = bound("epk", "erk");
        TableRange { start_partition, start_row, end_partition, end_row }
    }

    fn encryption_scope(&self, head: &Head<'_>) -> Result<Option<String>, Refusal> {
        let ses = self.sas.field("ses");
        if ses.is_empty() || head.operation.service() != ServiceKind::Blob {
            return Ok(None);
        }
        const SCOPE: &str = "x-ms-encryption-scope";
        match head.headers.get(SCOPE) {
            Some(scope) if scope != ses => {
                Err(Refusal::invalid_header(SCOPE, String::from_utf8_lossy(scope.as_bytes())))
            }
            _ => Ok(Some(ses.to_owned())),
        }
    }

    fn response_headers(&self, head: &Head<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, Refusal> {
        let signed = self.sas.kind != SasKind::Account
            && matches!(head.operation.service(), ServiceKind::Blob | ServiceKind::File)
            && self.sas.version.at_least(2013, 8, 15);
        let overrides = [
            ("rscc", header::CACHE_CONTROL),
            ("rscd", header::CONTENT_DISPOSITION),
            ("rsce", header::CONTENT_ENCODING),
            ("rscl", header::CONTENT_LANGUAGE),
            ("rsct", header::CONTENT_TYPE),
        ];
        let given = |(parameter, name)| {
            let value = self.sas.field(parameter);
            let parsed = || {
                HeaderValue::from_bytes(value.as_bytes())
                    .map(|value| (name, value))
                    .map_err(|_| Refusal::invalid_query(parameter, value, "The value cannot be a header."))
            };
            (signed && !value.is_empty()).then(parsed)
        };
        overrides.into_iter().filter_map(given).collect()
    }
}

/// Returns a name, and its spelling in the path of the request: clients sign the one or the other.
fn spellings(head: &Head<'_>, name: &str) -> impl Iterator<Item = String> + use<> {
    std::iter::once(name.to_owned()).chain(name_as_sent(head.path, name))
}

/// Splits a comma-separated list of names.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|name| !name.is_empty())
}

/// Returns whether a name is an HTTP token, without colons and control characters.
fn is_token(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn mandatory_field(name: &str) -> Refusal {
    authentication_failed(format!("{name} is mandatory. Cannot be empty"))
}

/// Returns a term that may be in the signature or in the stored access policy. Refuses a term that is in
/// both.
fn in_one_place<T>(name: &str, sas: Option<T>, policy: Option<T>) -> Result<Option<T>, Refusal> {
    match (sas, policy) {
        (Some(_), Some(_)) => Err(Refusal::invalid_query(
            name,
            "",
            "The stored access policy of the signature has this field already.",
        )),
        (sas, policy) => Ok(sas.or(policy)),
    }
}
