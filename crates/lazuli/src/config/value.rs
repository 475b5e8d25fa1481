//! Types of option values. Each has one textual form, the same on the command line, in a variable and in
//! TOML.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use http::Uri;
use ipnet::IpNet;
use lazuli_outbound::Allow;
use lazuli_protocol::{Key, ServiceKind, names};
use lazuli_telemetry::Destination;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

/// A port to listen on, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// The service is disabled.
    Off,
    /// The port number. 0 means any free port.
    On(u16),
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Host(pub(crate) IpAddr);

/// A number of bytes, optionally with a unit: `KiB`, `MiB` or `GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

/// An account as `NAME:KEY1[:KEY2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredAccount {
    /// The name of the account.
    pub(crate) name: String,
    /// One or two keys.
    pub(crate) keys: Vec<Key>,
}

/// An account option, valid or not. An error message of clap would show the invalid value, which contains a
/// key. So parsing never fails here, and the configuration reports the error without the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenAccount(pub(crate) Result<ConfiguredAccount, String>);

/// An entry of the list of allowed copy sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedSource(pub(crate) Allow);

/// An address, or a network as CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(pub(crate) IpNet);

/// Containers, queues, tables or shares to create: `KIND:NAME[,NAME…]`, with an account as `ACCOUNT/KIND:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Creation {
    /// The account; `None` means the first one.
    pub(crate) account: Option<String>,
    /// The service.
    pub(crate) kind: ServiceKind,
    /// The names.
    pub(crate) names: Vec<String>,
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The address of a collector of traces: the base of its URLs for OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collector(pub(crate) Uri);

impl FromStr for Collector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a URL such as http://localhost:4318".to_owned();
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let is_valid = matches!(uri.scheme_str(), Some("http" | "https")) && !authority.is_empty();
        // A password would show up in the log.
        if !is_valid || authority.contains('@') || uri.query().is_some() {
            return Err(expected());
        }
        let path = uri.path().trim_end_matches('/');
        let scheme = uri.scheme_str().unwrap_or_default();
        format!("{scheme}://{authority}{path}/v1/traces").parse().map(Self).map_err(|_| expected())
    }
}

/// A share from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| "not a number from 0 to 1".into())
    }
}

/// Where the access log is written to: a path, or `-` or `stderr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogDestination(pub(crate) Destination);

impl FromStr for LogDestination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("expected a path, or - for stderr".into()),
            "-" | "stderr" => Ok(Self(Destination::Stderr)),
            path => Ok(Self(Destination::File(path.into()))),
        }
    }
}

impl Port {
    /// Returns the port number, unless the service is disabled.
    pub(crate) const fn number(self) -> Option<u16> {
        match self {
            Self::Off => None,
            Self::On(port) => Some(port),
        }
    }
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            number => number.parse().map(Self::On).map_err(|_| "neither a port nor off".into()),
        }
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "localhost" => Ok(Self(IpAddr::V4(Ipv4Addr::LOCALHOST))),
            address => address.parse().map(Self).map_err(|_| "not an IP address".into()),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match text[digits.len()..].trim() {
            "" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            _ => return Err("neither a number of bytes nor one of KiB, MiB or GiB".into()),
        };
        let number: u64 = digits.parse().map_err(|_| "not a number of bytes".to_owned())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| "too large".into())
    }
}

impl FromStr for AllowedSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<IpAddr>().map(|address| IpNet::from(address.to_canonical()));
        let network = address.or_else(|_| text.parse::<IpNet>());
        network.map(Self).map_err(|_| "neither an IP address nor a network such as 10.0.0.0/8".into())
    }
}

impl FromStr for Creation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || "not KIND:NAME[,NAME…]".to_owned();
        let (kind, list) = text.split_once(':').ok_or_else(malformed)?;
        let (account, kind) = match kind.split_once('/') {
            Some((account, kind)) => (Some(account.to_owned()), kind),
            None => (None, kind),
        };
        let kind = match kind {
            "blob" | "container" => ServiceKind::Blob,
            "queue" => ServiceKind::Queue,
            "table" => ServiceKind::Table,
            "share" | "file" => ServiceKind::File,
            _ => return Err(format!("{kind:?} is not blob, queue, table or share")),
        };
        let names: Vec<_> = list.split(',').map(str::to_owned).collect();
        for name in &names {
            let checked = match kind {
                ServiceKind::Blob => names::check_container(name),
                ServiceKind::Queue => names::check_queue(name),
                ServiceKind::Table => names::check_table(name),
                ServiceKind::File => names::check_share(name),
            };
            checked.map_err(|_| match name.contains('_') {
                true => format!("{name:?} is not a valid name: use hyphens instead of underscores"),
                false => format!("{name:?} is not a valid name"),
            })?;
        }
        Ok(Self { account, kind, names })
    }
}

impl FromStr for ConfiguredAccount {
    type Err = String;

    /// Parses an account. Error messages never contain a key.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default().to_owned();
        if !names::is_account(&name) {
            // Do not quote the text: it may be a key in the wrong place.
            return Err(
                "an account begins with its name and a colon: 3 to 24 lower-case letters and digits".into()
            );
        }
        let keys: Option<Vec<_>> = parts.map(Key::from_base64).collect();
        match keys {
            Some(keys) if (1..=2).contains(&keys.len()) => Ok(Self { name, keys }),
            Some(keys) if keys.is_empty() => Err(format!("account {name} has no key")),
            Some(_) => Err(format!("account {name} has more than two keys")),
            None => Err(format!("a key of account {name} is not Base64")),
        }
    }
}

impl FromStr for GivenAccount {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.parse()))
    }
}

/// Reads accounts from TOML: a list or a single account. Accepting a single text also keeps the TOML error
/// message, which would quote an unexpected text, from revealing a key.
pub(crate) fn accounts_from_toml<'de, D>(deserializer: D) -> Result<Option<Vec<GivenAccount>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Accounts;

    impl<'de> Visitor<'de> for Accounts {
        type Value = Vec<GivenAccount>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of accounts")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            let account = text.parse().map_err(E::custom)?;
            Ok(vec![GivenAccount(Ok(account))])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let mut accounts = vec![];
            while let Some(account) = list.next_element()? {
                accounts.push(GivenAccount(Ok(account)));
            }
            Ok(accounts)
        }
    }

    deserializer.deserialize_any(Accounts).map(Some)
}

/// Reads a value from TOML, given as text or as a number.
fn from_text_or_number<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err = String>,
    D: Deserializer<'de>,
{
    struct TextOrNumber<T>(std::marker::PhantomData<T>);

    impl<T: FromStr<Err = String>> Visitor<'_> for TextOrNumber<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a text or a number")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }
    }

    deserializer.deserialize_any(TextOrNumber(std::marker::PhantomData))
}

macro_rules! from_toml {
    ($($value:ident),+) => {$(
        impl<'de> Deserialize<'de> for $value {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                from_text_or_number(deserializer)
            }
        }
    )+};
}

from_toml!(
    Port,
    Host,
    ByteSize,
    AllowedSource,
    Collector,
    ConfiguredAccount,
    Creation,
    LogDestination,
    Network,
    Share
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_a_number_or_off() {
        for (text, port) in [
            ("off", Ok(Port::Off)),
            ("0", Ok(Port::On(0))),
            ("65535", Ok(Port::On(65535))),
            ("65536", Err(())),
            ("-1", Err(())),
            ("on", Err(())),
            ("", Err(())),
        ] {
            assert_eq!(text.parse::<Port>().map_err(drop), port, "{text}");
        }
    }

    #[test]
    fn host_is_an_address_or_localhost() {
        for (text, host) in [
            ("localhost", Some("127.0.0.1")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("::1", Some("::1")),
            ("example.com", None),
        ] {
            let expected = host.map(|host| Host(host.parse().unwrap()));
            assert_eq!(text.parse::<Host>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn collector_is_a_url_without_secrets_and_gets_the_path_of_traces() {
        for (text, uri) in [
            ("http://localhost:4318", Some("http://localhost:4318/v1/traces")),
            ("https://collector/otlp/", Some("https://collector/otlp/v1/traces")),
            ("http://user:secret@collector", None),
            ("http://collector/?key=secret", None),
            ("localhost:4318", None),
            ("ftp://collector", None),
            ("", None),
        ] {
            let parsed = text.parse::<Collector>().ok().map(|collector| collector.0.to_string());
            assert_eq!(parsed.as_deref(), uri, "{text}");
        }
    }

    #[test]
    fn share_is_a_number_from_0_to_1() {
        for (text, share) in
            [("0", Some(0.0)), ("0.25", Some(0.25)), ("1", Some(1.0)), ("1.1", None), ("NaN", None)]
        {
            assert_eq!(text.parse::<Share>().ok(), share.map(Share), "{text}");
        }
    }

    #[test]
    fn network_is_an_address_or_has_a_prefix_length() {
        for (text, network) in [
            ("10.0.0.1", Some("10.0.0.1/32")),
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("::1", Some("::1/128")),
            ("fd00::/8", Some("fd00::/8")),
            ("10.0.0.0/33", None),
            ("proxy", None),
            ("*", None),
        ] {
            let parsed = text.parse::<Network>().ok().map(|network| network.0.to_string());
            assert_eq!(parsed.as_deref(), network, "{text}");
        }
    }

    #[test]
    fn byte_size_may_have_a_unit() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("65536", Some(65536)),
            ("64KiB", Some(64 << 10)),
            ("64 MiB", Some(64 << 20)),
            ("2GiB", Some(2 << 30)),
            ("2TB", None),
            ("MiB", None),
            ("", None),
            ("18446744073709551615GiB", None),
        ] {
            assert_eq!(text.parse::<ByteSize>().ok(), bytes.map(ByteSize), "{text}");
        }
    }

    #[test]
    fn creation_names_a_kind_and_valid_names() {
        let creation =
            |text: &str| text.parse::<Creation>().map(|found| (found.account, found.kind, found.names));
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(creation("blob:aaa,bbb"), Ok((None, ServiceKind::Blob, names(&["aaa", "bbb"]))));
        assert_eq!(creation("acc/share:sss"), Ok((Some("acc".into()), ServiceKind::File, names(&["sss"]))));
        for text in ["blob", "blob:", "blob:aaa,", "tape:aaa", "queue:Aaa", "table:a-b"] {
            assert!(creation(text).is_err(), "{text}");
        }
        assert!(creation("blob:my_photos").unwrap_err().contains("hyphens"));
    }

    #[test]
    fn account_has_a_name_and_one_or_two_keys_and_no_error_contains_a_key() {
        for (text, keys) in [
            ("abc:AAAA", Some(1)),
            ("abc:AAAA:BBBB", Some(2)),
            ("abc:ab+/cQ==", Some(1)),
            ("abc", None),
            ("abc:", None),
            ("abc:secret*", None),
            ("abc:AAAA:BBBB:CCCC", None),
            ("ABC:AAAA", None),
            (":AAAA", None),
        ] {
            let parsed = text.parse::<ConfiguredAccount>();
            assert_eq!(parsed.as_ref().ok().map(|account| account.keys.len()), keys, "{text}");
            if let Err(reason) = parsed {
                assert!(!reason.contains("AAAA") && !reason.contains("secret"), "{reason}");
            }
        }
    }
}
