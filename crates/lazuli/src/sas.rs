//! `lazuli sas`: creates shared access signatures, which clients such as AzCopy use instead of a key.

mod permissions;

use clap::{Args, ValueEnum};
use lazuli_auth::sign::{self, Resource};
use lazuli_concurrency::{Clock, Span, SystemClock, Timestamp};
use lazuli_protocol::{ServiceKind, date};
use serde_json::json;

use crate::Failure;
use crate::account::parse_slot;
use crate::endpoints::Endpoints;
use crate::target::{self, DataArgs, DataTarget};

/// The version of the signatures. All clients of the last years know it.
const VERSION: &str = "2022-11-02";

#[derive(Args)]
pub(crate) struct SasArgs {
    /// The kind of the resource to sign for
    #[arg(value_enum)]
    resource: SasResource,
    /// The name of the resource: CONTAINER, CONTAINER/BLOB, QUEUE, TABLE, SHARE or SHARE/FILE; none for an
    /// account
    #[arg(value_name = "NAME", required_if_eq_any([
        ("resource", "container"), ("resource", "blob"), ("resource", "queue"), ("resource", "table"),
        ("resource", "share"), ("resource", "file"),
    ]))]
    name: Option<String>,
    /// The account [default: the only one]
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    /// Permissions of the holder, as words (read,list) or letters (rl), or all [default: read, and list where
    /// there is something to list]
    #[arg(long, value_name = "PERMISSIONS")]
    permissions: Option<String>,
    /// How long the signature is valid (30m, 12h, 7d), or until when (2030-12-31, 2030-12-31T12:00:00Z)
    /// [default: 24h]
    #[arg(long, value_name = "TIME")]
    expiry: Option<String>,
    /// When the signature becomes valid [default: at once]
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Accept the signature from this address or range only: 10.0.0.1 or 10.0.0.1-10.0.0.9
    #[arg(long, value_name = "ADDRESS")]
    ip: Option<String>,
    /// Accept the signature over TLS only
    #[arg(long)]
    https_only: bool,
    /// The stored access policy of the resource that bounds the signature
    #[arg(long, value_name = "ID")]
    policy: Option<String>,
    /// For an account: the services, as letters of blob, queue, table, file
    #[arg(long, value_name = "bqtf", default_value = "bqtf")]
    services: String,
    /// For an account: the levels, as letters of service, container, object
    #[arg(long, value_name = "sco", default_value = "sco")]
    resource_types: String,
    /// Which of the account's keys signs
    #[arg(long, value_name = "1|2", default_value = "1", value_parser = parse_slot)]
    key: lazuli_account::KeySlot,
    /// Print only this
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "json")]
    print: Option<PrintedPart>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SasResource {
    Account,
    Container,
    Blob,
    Queue,
    Table,
    Share,
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PrintedPart {
    Query,
    Url,
    Azcopy,
}

impl SasResource {
    const fn service(self) -> Option<ServiceKind> {
        match self {
            Self::Account => None,
            Self::Container | Self::Blob => Some(ServiceKind::Blob),
            Self::Queue => Some(ServiceKind::Queue),
            Self::Table => Some(ServiceKind::Table),
            Self::Share | Self::File => Some(ServiceKind::File),
        }
    }

    /// Returns the value of `sr`, if signatures for the resource have one.
    const fn sr(self) -> Option<&'static str> {
        match self {
            Self::Account | Self::Queue | Self::Table => None,
            Self::Container => Some("c"),
            Self::Blob => Some("b"),
            Self::Share => Some("s"),
            Self::File => Some("f"),
        }
    }
}

/// A signature and its uses.
#[derive(Debug, PartialEq, Eq)]
struct Signed {
    query: String,
    /// The URL of the resource with the signature. `None` if its service is disabled.
    url: Option<String>,
    /// A command line of AzCopy, if AzCopy knows the service.
    azcopy: Option<String>,
}

/// Creates a signature and prints it.
pub(crate) fn run(args: SasArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let target = DataTarget::load(args.data.clone(), variable)?;
    let account = target.account(args.account.as_deref())?;
    let key = target::key(&account, args.key as usize + 1)?;
    let signed = args.sign(&account.name, key, &target.endpoints()?, SystemClock.now())?;
    let text = match (args.json, args.print) {
        (true, _) => {
            let object = json!({ "query": signed.query, "url": signed.url, "azcopy": signed.azcopy });
            format!("{object:#}")
        }
        (false, Some(PrintedPart::Query)) => signed.query,
        (false, Some(PrintedPart::Url)) => {
            signed.url.ok_or_else(|| Failure::Failed("the service is not enabled".into()))?
        }
        (false, Some(PrintedPart::Azcopy)) => {
            signed.azcopy.ok_or_else(|| Failure::Failed("AzCopy has no command for this".into()))?
        }
        (false, None) => {
            let lines = [("query", Some(signed.query)), ("url", signed.url), ("azcopy", signed.azcopy)];
            let lines = lines.into_iter().filter_map(|(name, text)| Some(format!("{name:<8}{}", text?)));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    println!("{text}");
    Ok(())
}

impl SasArgs {
    fn sign(
        &self,
        account: &str,
        key: &lazuli_protocol::Key,
        endpoints: &Endpoints,
        now: Timestamp,
    ) -> Result<Signed, Failure> {
        let name = self.resource_name()?;
        let has_policy = self.policy.is_some();
        let permissions = match &self.permissions {
            Some(text) => permissions::parse(self.resource, text).map_err(Failure::Usage)?,
            None if has_policy => String::new(),
            None => permissions::readable(self.resource).into(),
        };
        let expiry = match &self.expiry {
            Some(text) => Some(parse_time("--expiry", text, now)?),
            None if has_policy => None,
            None => Some(now + Span::seconds(24 * 60 * 60)),
        };
        let start = self.start.as_ref().map(|text| parse_time("--start", text, now)).transpose()?;
        if let Some(expiry) = expiry.filter(|expiry| *expiry <= start.map_or(now, |start| start.max(now))) {
            let expiry = date::iso8601_seconds(expiry);
            let why = match start {
                Some(start) if start > now => format!("before --start {}", date::iso8601_seconds(start)),
                _ => "in the past".to_owned(),
            };
            return Err(Failure::Usage(format!(
                "--expiry {expiry} is {why}: no server accepts the signature"
            )));
        }
        let expiry = expiry.map(date::iso8601_seconds).unwrap_or_default();
        let start = start.map(date::iso8601_seconds);
        let mut fields = vec![("sv", VERSION)];
        let table = name.to_lowercase();
        match self.resource {
            SasResource::Account => {
                let services = letters("--services", &self.services, "bqtf")?;
                let types = letters("--resource-types", &self.resource_types, "sco")?;
                fields.extend([("ss", services), ("srt", types)]);
            }
            SasResource::Table => fields.push(("tn", &table[..])),
            resource => fields.extend(resource.sr().map(|sr| ("sr", sr))),
        }
        let optional = [
            ("sp", &permissions[..]),
            ("st", start.as_deref().unwrap_or_default()),
            ("se", &expiry[..]),
            ("sip", self.ip.as_deref().unwrap_or_default()),
            ("spr", if self.https_only { "https" } else { "" }),
            ("si", self.policy.as_deref().unwrap_or_default()),
        ];
        fields.extend(optional.into_iter().filter(|(_, value)| !value.is_empty()));
        let query = match self.resource.service() {
            None if has_policy => {
                return Err(Failure::Usage("a signature for an account has no stored access policy".into()));
            }
            None => sign::account_sas(account, key, &fields),
            Some(service) => {
                let path = if service == ServiceKind::Table { &table[..] } else { name };
                sign::service_sas(&Resource { service, account, path, timestamp: "" }, key, &fields)
            }
        };
        let with_query = |url: String| format!("{url}?{query}");
        let url = match self.resource.service() {
            Some(service) => endpoints.object_url(service, account, name),
            None => endpoints.account_url(ServiceKind::Blob, account),
        };
        let azcopy = self.azcopy(endpoints, account, name, &permissions, &query);
        Ok(Signed { url: url.map(with_query), azcopy, query })
    }

    /// Returns the name of the resource, checked for its form.
    fn resource_name(&self) -> Result<&str, Failure> {
        let name = self.name.as_deref().unwrap_or_default();
        let fits = match self.resource {
            SasResource::Account => name.is_empty(),
            SasResource::Blob | SasResource::File => {
                name.split_once('/').is_some_and(|(parent, object)| !parent.is_empty() && !object.is_empty())
            }
            SasResource::Container | SasResource::Queue | SasResource::Table | SasResource::Share => {
                !name.is_empty() && !name.contains('/')
            }
        };
        let expected = match self.resource {
            SasResource::Account => "no NAME: choose the account with --account",
            SasResource::Blob => "CONTAINER/BLOB",
            SasResource::File => "SHARE/FILE",
            SasResource::Container => "the name of a container",
            SasResource::Queue => "the name of a queue",
            SasResource::Table => "the name of a table",
            SasResource::Share => "the name of a share",
        };
        fits.then_some(name).ok_or_else(|| Failure::Usage(format!("{name:?}: expected {expected}")))
    }

    /// Returns a command line of AzCopy: an upload if the signature allows one, else a download.
    fn azcopy(
        &self,
        endpoints: &Endpoints,
        account: &str,
        name: &str,
        permissions: &str,
        query: &str,
    ) -> Option<String> {
        let (kind, called) = match self.resource.service() {
            None => (ServiceKind::Blob, "Blob"),
            Some(ServiceKind::Blob) => (ServiceKind::Blob, "Blob"),
            Some(ServiceKind::File) => (ServiceKind::File, "File"),
            Some(ServiceKind::Queue | ServiceKind::Table) => return None,
        };
        let path = if self.resource == SasResource::Account { "CONTAINER" } else { name };
        let url = format!("'{}?{query}'", endpoints.object_url(kind, account, path)?);
        let is_one = matches!(self.resource, SasResource::Blob | SasResource::File);
        let recursive = if is_one { "" } else { " --recursive" };
        Some(match permissions.contains(['w', 'c']) {
            true => {
                let from = if is_one { "FILE" } else { "FOLDER/*" };
                format!("azcopy copy '{from}' {url} --from-to=Local{called}{recursive}")
            }
            false => format!("azcopy copy {url} . --from-to={called}Local{recursive}"),
        })
    }
}

/// Checks that each letter is a known one.
fn letters<'a>(option: &str, text: &'a str, known: &str) -> Result<&'a str, Failure> {
    let is_known = !text.is_empty() && text.chars().all(|letter| known.contains(letter));
    is_known.then_some(text).ok_or_else(|| Failure::Usage(format!("{option}: letters of {known}")))
}

/// Parses a span from now, or a time.
fn parse_time(option: &str, text: &str, now: Timestamp) -> Result<Timestamp, Failure> {
    let parsed = span(text).map(|span| now + span).or_else(|| date::parse_iso8601(text));
    parsed.filter(|time| *time <= Timestamp::MAX).ok_or_else(|| {
        Failure::Usage(format!("{option} {text}: neither a span such as 30m, 12h or 7d nor a time"))
    })
}

fn span(text: &str) -> Option<Span> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return None,
    };
    let number: u64 = text[..text.len() - 1].parse().ok()?;
    // A hundred years, so that the sum with the time is a time.
    (number <= 100 * 366 * 24 * 60 * 60 / seconds).then(|| Span::seconds(number * seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_a_span_or_a_moment() {
        let now = Timestamp::from_unix_seconds(1_767_323_045);
        for (text, expected) in [
            ("90s", Some("2026-01-02T03:05:35Z")),
            ("30m", Some("2026-01-02T03:34:05Z")),
            ("24h", Some("2026-01-03T03:04:05Z")),
            ("7d", Some("2026-01-09T03:04:05Z")),
            ("2030-12-31", Some("2030-12-31T00:00:00Z")),
            ("2030-12-31T12:00:00Z", Some("2030-12-31T12:00:00Z")),
            ("", None),
            ("h", None),
            ("-1h", None),
            ("5y", None),
            ("99999999999999999999d", None),
            ("18446744073709551615d", None),
            ("soon", None),
        ] {
            let parsed = parse_time("--expiry", text, now).ok().map(date::iso8601_seconds);
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }
}
