//! The configuration of `lazuli serve`: its options, their sources and their defaults.
//!
//! A [`Layer`] holds the options that one source sets. The same type is parsed from the command line, from
//! `LAZULI_*` variables and from TOML, so each option has the same name in all three. [`Config`] is the
//! merged result: flags override variables, variables override the file, and the file overrides the defaults.

mod value;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::builder::BoolishValueParser;
use clap::{Args, CommandFactory, Parser};
use http::Uri;
use ipnet::IpNet;
use lazuli_account::{DEVELOPMENT_ACCOUNT, development_key};
use lazuli_outbound::Allow;
use lazuli_protocol::ServiceKind;
use lazuli_telemetry::Destination;
use serde::Deserialize;

pub(crate) use value::{
    AllowedSource, ByteSize, Collector, ConfiguredAccount, Creation, GivenAccount, Host, LogDestination,
    LogFormat, Network, Port, Share,
};

/// Path of the configuration file. This option does not exist in the file itself.
const CONFIG_VARIABLE: &str = "LAZULI_CONFIG";
/// Accounts in the format of Azurite.
const AZURITE_ACCOUNTS: &str = "AZURITE_ACCOUNTS";

/// Default rate of the scrub in bytes per second: 4.6 TiB per week.
const DEFAULT_SCRUB_RATE: u64 = 8 << 20;

/// Why the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    /// The file is not valid TOML or contains an unknown option. The message does not quote the file, because
    /// it may contain keys.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    File { path: PathBuf, line: usize, column: usize, reason: String },
    /// An environment variable has an invalid value.
    #[error("{0}")]
    Environment(String),
    /// Options contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

/// The options that one source sets. For absent options the next source counts.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(crate) struct Layer {
    /// The data directory [default: ./lazuli-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Keep all data in memory and write nothing to disk; all data is lost when the process ends
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) in_memory: Option<bool>,
    /// With --in-memory: the memory limit for data [default: half of the memory of the machine or cgroup]
    #[arg(long, value_name = "BYTES")]
    pub(crate) memory_bytes: Option<ByteSize>,
    /// The address to listen on [default: 127.0.0.1]
    #[arg(long, value_name = "ADDR")]
    pub(crate) host: Option<Host>,
    /// The address of the blob service [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) blob_host: Option<Host>,
    /// The address of the queue service [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) queue_host: Option<Host>,
    /// The address of the table service [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) table_host: Option<Host>,
    /// The address of the file service (REST) [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) file_host: Option<Host>,
    /// The address of the file service (SMB) [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) smb_host: Option<Host>,
    /// The address of the console, health checks and metrics [default: that of --host]
    #[arg(long, value_name = "ADDR")]
    pub(crate) console_host: Option<Host>,
    /// The port of the blob service; 0 = any free port, off = not served [default: 10000]
    #[arg(long, value_name = "PORT")]
    pub(crate) blob_port: Option<Port>,
    /// The port of the queue service [default: 10001]
    #[arg(long, value_name = "PORT")]
    pub(crate) queue_port: Option<Port>,
    /// The port of the table service [default: 10002]
    #[arg(long, value_name = "PORT")]
    pub(crate) table_port: Option<Port>,
    /// The port of the file service (REST) [default: 10003]
    #[arg(long, value_name = "PORT")]
    pub(crate) file_port: Option<Port>,
    /// The port of the Data Lake service; only off in this version
    #[arg(long, value_name = "PORT")]
    pub(crate) dfs_port: Option<Port>,
    /// The port of the file service (SMB) [default: 10445]
    #[arg(long, value_name = "PORT")]
    pub(crate) smb_port: Option<Port>,
    /// Allow unencrypted but signed SMB from remote hosts (always allowed from localhost)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) smb_unencrypted: Option<bool>,
    /// Require signing or encryption from all SMB clients, including those on localhost
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) smb_require_signing: Option<bool>,
    /// Enforce file ACLs over SMB [default: account keys bypass ACLs]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) smb_enforce_permissions: Option<bool>,
    /// The port of the console, health checks and metrics [default: 10080]
    #[arg(long, value_name = "PORT")]
    pub(crate) console_port: Option<Port>,
    /// Serve the console's page; off leaves health checks and metrics [default: on]
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) console: Option<bool>,
    /// A host name under which browsers reach the console, in addition to localhost and its address;
    /// repeatable
    #[arg(long, value_name = "NAME", value_delimiter = ';')]
    pub(crate) console_name: Option<Vec<String>>,
    /// A file with the argon2id hash of a password with which an operator signs in to the console
    #[arg(long, value_name = "FILE")]
    pub(crate) console_password_file: Option<PathBuf>,
    /// Serve the console's page to other machines without TLS
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) console_plaintext: Option<bool>,
    /// An account and its keys; repeatable [default: the development account, if there is no other]
    #[arg(long, value_name = "NAME:KEY1[:KEY2]", value_delimiter = ';')]
    #[serde(deserialize_with = "value::accounts_from_toml")]
    pub(crate) account: Option<Vec<GivenAccount>>,
    /// A file with an account and its keys in each line, as for --account; for keys from a secret
    #[arg(long, value_name = "FILE")]
    pub(crate) account_file: Option<PathBuf>,
    /// Create containers, queues, tables and shares that do not exist: blob:a,b queue:c table:t share:s; in
    /// another account than the first with ACCOUNT/blob:a
    #[arg(long, value_name = "KIND:NAME[,NAME]", num_args = 1.., value_delimiter = ' ')]
    pub(crate) create: Option<Vec<Creation>>,
    /// Load the objects of a folder that do not exist: blob/CONTAINER/PATH, share/SHARE/PATH, queue/NAME.txt
    /// with a message in each line, table/NAME.json with an array of entities
    #[arg(long, value_name = "DIR")]
    pub(crate) seed: Option<PathBuf>,
    /// A host name suffix for host-style URLs: with example.com, the server answers
    /// `http://ACCOUNT.example.com/`
    #[arg(long, value_name = "NAME", value_delimiter = ';')]
    pub(crate) host_suffix: Option<Vec<String>>,
    /// A proxy, or a network of proxies, that is believed when it names its client with X-Forwarded-For,
    /// X-Forwarded-Proto or the PROXY protocol; repeatable
    #[arg(long, value_name = "ADDR|CIDR", value_delimiter = ';')]
    pub(crate) trusted_proxy: Option<Vec<Network>>,
    /// The certificate chain for TLS, a PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key for TLS, a PEM file
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Use TLS with a self-signed certificate, which is created and kept in the data directory
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) tls_self_signed: Option<bool>,
    /// The OpenID Connect issuer whose bearer tokens are accepted: its URL, or a file with its discovery
    /// document
    #[arg(long, value_name = "URL|FILE")]
    pub(crate) oidc_issuer: Option<String>,
    /// An additional audience to accept in bearer tokens; repeatable
    #[arg(long, value_name = "AUDIENCE", value_delimiter = ';')]
    pub(crate) oidc_audience: Option<Vec<String>>,
    /// An allowed source of server-side copies, in addition to this server: a host, a network, public for all
    /// public addresses, or * for all addresses; repeatable [default: public]
    #[arg(long, value_name = "HOST[:PORT]|CIDR", value_delimiter = ';')]
    pub(crate) copy_source_allow: Option<Vec<AllowedSource>>,
    /// The log format [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log: Option<LogFormat>,
    /// The log level, or directives such as info,lazuli_smb=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log_level: Option<String>,
    /// Write a line for each request to this file, or to stderr with - [default: no such lines]
    #[arg(long, value_name = "FILE|-", allow_hyphen_values = true)]
    pub(crate) access_log: Option<LogDestination>,
    /// Send traces to the OpenTelemetry collector at this URL, with OTLP over HTTP [default: no traces]
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<Collector>,
    /// With --otlp-endpoint: the share of requests to trace, from 0 to 1; a caller's decision in traceparent
    /// has priority [default: 1]
    #[arg(long, value_name = "SHARE")]
    pub(crate) otlp_sample: Option<Share>,
    /// Memory for all caches [default: 1/8 of the memory of the machine or cgroup, 16 MiB to 4 GiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) cache_bytes: Option<ByteSize>,
    /// Trust the machine's clock unconditionally; without this option, the server refuses to start if the
    /// clock is a day behind or years ahead of the stored data, and ignores forward steps of more than an
    /// hour
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) accept_time: Option<bool>,
    /// The rate of the background scrub in bytes per second; 0 = no scrub [default: 8MiB]
    #[arg(long, value_name = "BYTES")]
    pub(crate) scrub_rate: Option<ByteSize>,
    /// Accept the well-known development key from remote hosts
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    pub(crate) insecure_dev_key: Option<bool>,
}

/// The complete configuration of `lazuli serve`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Config {
    /// Location of the data. Default: `lazuli-data` in the working directory.
    pub(crate) data: Storage,
    /// The enabled services and their addresses. Default: 127.0.0.1, 10000 to 10003.
    pub(crate) services: Vec<(ServiceKind, SocketAddr)>,
    /// The address of the file service over SMB, if it is enabled. Default: 127.0.0.1:10445.
    pub(crate) smb: Option<SocketAddr>,
    /// Whether SMB clients on other machines may connect without encryption. Default: no.
    pub(crate) smb_unencrypted: bool,
    /// Whether unencrypted SMB messages must be signed. Default: no. Implied by `smb_unencrypted`.
    pub(crate) smb_require_signing: bool,
    /// Whether file ACLs are enforced over SMB. Default: no.
    pub(crate) smb_enforce_permissions: bool,
    /// The address of the console, health checks and metrics, if it is enabled. Default: 127.0.0.1:10080.
    pub(crate) console: Option<SocketAddr>,
    /// The page of the console.
    pub(crate) console_page: ConsolePage,
    /// Accounts that must exist with exactly these keys. Default: none.
    pub(crate) accounts: Vec<ConfiguredAccount>,
    /// Containers, queues, tables and shares to create. Default: none.
    pub(crate) create: Vec<Creation>,
    /// The folder of objects to load. Default: none.
    pub(crate) seed: Option<PathBuf>,
    /// Host names whose first label is an account. Default: none.
    pub(crate) host_suffixes: Vec<String>,
    /// Proxies that are believed when they name a client. Default: none.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// Default: plain HTTP.
    pub(crate) tls: TlsSource,
    /// The issuer of bearer tokens. Default: none, so bearer tokens are refused.
    pub(crate) oidc: Option<Oidc>,
    /// Allowed sources of copies in addition to this server. Default: every public address.
    pub(crate) copy_source_allow: Vec<Allow>,
    /// Default: text.
    pub(crate) log: LogFormat,
    /// Default: `info`.
    pub(crate) log_level: String,
    /// Where each request has a line. Default: nowhere.
    pub(crate) access_log: Option<Destination>,
    /// Where traces are sent to. Default: nowhere.
    pub(crate) traces: Option<Traces>,
    /// Memory for rows read from disk. Default: the store's own choice.
    pub(crate) cache_bytes: Option<u64>,
    /// Whether the machine's clock is trusted unconditionally. Default: no.
    pub(crate) accept_time: bool,
    /// Rate of the scrub in bytes per second; 0 disables it. Default: 8 MiB.
    pub(crate) scrub_rate: u64,
    /// Whether the development key is accepted from other machines. Default: no.
    pub(crate) insecure_dev_key: bool,
}

/// The page of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsolePage {
    /// Whether there is a page. Default: yes.
    pub(crate) is_on: bool,
    /// Host names under which browsers reach the console. Default: none.
    pub(crate) names: Vec<String>,
    /// The argon2id hash of the operator's password. Default: none.
    pub(crate) password: Option<String>,
    /// Whether other machines get the page without TLS. Default: no.
    pub(crate) is_plaintext: bool,
}

/// Location of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In a directory.
    Directory(PathBuf),
    /// In memory, with this limit in bytes. Default: the engine decides.
    Memory { max_bytes: Option<u64> },
}

/// The export of traces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Traces {
    /// The URL for OTLP requests.
    pub(crate) collector: Uri,
    /// The share of requests that are traced, from 0 to 1.
    pub(crate) share: f64,
}

/// Source of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsSource {
    /// No TLS.
    Off,
    /// PEM files.
    Files { certificate: PathBuf, key: PathBuf },
    /// Created by the server and kept in the data directory.
    SelfSigned,
}

/// The issuer of bearer tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Oidc {
    /// A URL, or a file with a discovery document.
    pub(crate) issuer: String,
    /// Audiences in addition to those of the protocol.
    pub(crate) audiences: Vec<String>,
}

impl ConfiguredAccount {
    /// Returns the development account that is built into every client.
    pub(crate) fn development() -> Self {
        Self { name: DEVELOPMENT_ACCOUNT.into(), keys: vec![development_key()] }
    }
}

impl Config {
    /// Merges flags, environment variables and the file. `file` is the value of `--config`.
    pub(crate) fn load(
        flags: Layer,
        file: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        Self::load_with_defaults(flags, Layer::default(), file, variable)
    }

    /// Like [`load`](Self::load), with `defaults` for options that no source sets.
    pub(crate) fn load_with_defaults(
        flags: Layer,
        defaults: Layer,
        file: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let environment = Layer::from_environment(&variable)?;
        let from_variable = variable(CONFIG_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let file = match file.or(from_variable.as_deref()) {
            Some(path) => Layer::from_file(path)?,
            None => Layer::default(),
        };
        Self::resolve(flags.or(environment).or(file).or(defaults))
    }

    /// Returns the data directory for a command that needs one. Ignores `in-memory`, which only concerns
    /// `serve`.
    pub(crate) fn directory(
        data: Option<PathBuf>,
        file: Option<&Path>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<PathBuf, ConfigError> {
        let layer = Layer { data, in_memory: Some(false), ..Layer::default() };
        match Self::load(layer, file, variable)?.data {
            Storage::Directory(path) => Ok(path),
            Storage::Memory { .. } => contradiction("--in-memory: this command requires a data directory"),
        }
    }

    fn resolve(layer: Layer) -> Result<Self, ConfigError> {
        if let Some(Port::On(_)) = layer.dfs_port {
            return contradiction("--dfs-port: not served by this version");
        }
        let data = storage(&layer)?;
        let address = |host: Option<Host>, port: Option<Port>, default| {
            let host = host.or(layer.host).map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |host| host.0);
            port.unwrap_or(Port::On(default)).number().map(|port| SocketAddr::new(host, port))
        };
        let addresses = [
            address(layer.blob_host, layer.blob_port, 10_000),
            address(layer.queue_host, layer.queue_port, 10_001),
            address(layer.table_host, layer.table_port, 10_002),
            address(layer.file_host, layer.file_port, 10_003),
        ];
        let services = ServiceKind::ALL.into_iter().zip(addresses);
        let services = services.filter_map(|(kind, address)| Some((kind, address?))).collect();
        let smb = address(layer.smb_host, layer.smb_port, 10_445);
        let console = address(layer.console_host, layer.console_port, 10_080);
        let tls = tls(layer.tls_cert, layer.tls_key, layer.tls_self_signed.unwrap_or_default())?;
        let audiences = layer.oidc_audience.unwrap_or_default();
        let oidc = match layer.oidc_issuer {
            Some(issuer) => Some(Oidc { issuer, audiences }),
            None if audiences.is_empty() => None,
            None => return contradiction("--oidc-audience requires --oidc-issuer"),
        };
        let mut accounts = understood(layer.account.unwrap_or_default())
            .map_err(|reason| ConfigError::Contradiction(format!("--account: {reason}")))?;
        if let Some(path) = &layer.account_file {
            accounts.extend(accounts_of_file(path)?);
        }
        if let Some(twice) = repeated(&accounts) {
            return contradiction(format!("account {twice} is configured twice"));
        }
        let traces = match (layer.otlp_endpoint, layer.otlp_sample) {
            (Some(Collector(collector)), share) => {
                Some(Traces { collector, share: share.map_or(1.0, |share| share.0) })
            }
            (None, Some(_)) => return contradiction("--otlp-sample requires --otlp-endpoint"),
            (None, None) => None,
        };
        let log_level = layer.log_level.unwrap_or_else(|| "info".into());
        if let Some(word) = unknown_level(&log_level) {
            return contradiction(format!(
                "--log-level {log_level}: {word} is neither a level (error, warn, info, debug, trace, off) nor a \
                 directive such as lazuli_smb=debug"
            ));
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&log_level) {
            return contradiction(format!("--log-level {log_level}: {error}"));
        }
        Ok(Self {
            data,
            services,
            smb,
            smb_unencrypted: layer.smb_unencrypted.unwrap_or_default(),
            smb_require_signing: layer.smb_require_signing.unwrap_or_default(),
            smb_enforce_permissions: layer.smb_enforce_permissions.unwrap_or_default(),
            console,
            console_page: ConsolePage {
                is_on: layer.console.unwrap_or(true),
                names: layer.console_name.unwrap_or_default().iter().map(|name| host_name(name)).collect(),
                password: layer.console_password_file.as_deref().map(password_hash).transpose()?,
                is_plaintext: layer.console_plaintext.unwrap_or_default(),
            },
            accounts,
            create: layer.create.unwrap_or_default(),
            seed: layer.seed,
            host_suffixes: layer.host_suffix.unwrap_or_default().iter().map(|name| host_name(name)).collect(),
            trusted_proxies: layer.trusted_proxy.unwrap_or_default().into_iter().map(|net| net.0).collect(),
            tls,
            oidc,
            copy_source_allow: match layer.copy_source_allow {
                Some(entries) => entries.into_iter().map(|entry| entry.0).collect(),
                None => vec![Allow::Public],
            },
            log: layer.log.unwrap_or_default(),
            log_level,
            access_log: layer.access_log.map(|destination| destination.0),
            traces,
            cache_bytes: layer.cache_bytes.map(|size| size.0),
            accept_time: layer.accept_time.unwrap_or_default(),
            scrub_rate: layer.scrub_rate.map_or(DEFAULT_SCRUB_RATE, |rate| rate.0),
            insecure_dev_key: layer.insecure_dev_key.unwrap_or_default(),
        })
    }
}

impl Config {
    /// Returns an address at which other machines may reach the services, if there is one. The console does
    /// not accept the development key from other machines, so it does not count.
    pub(crate) fn exposed_host(&self) -> Option<IpAddr> {
        let services = self.services.iter().map(|(_, address)| *address);
        services.chain(self.smb).map(|address| address.ip()).find(|host| !host.is_loopback())
    }
}

impl Layer {
    /// Fills in the options that are absent here from `other`.
    fn or(self, other: Self) -> Self {
        Self {
            data: self.data.or(other.data),
            in_memory: self.in_memory.or(other.in_memory),
            memory_bytes: self.memory_bytes.or(other.memory_bytes),
            host: self.host.or(other.host),
            blob_host: self.blob_host.or(other.blob_host),
            queue_host: self.queue_host.or(other.queue_host),
            table_host: self.table_host.or(other.table_host),
            file_host: self.file_host.or(other.file_host),
            smb_host: self.smb_host.or(other.smb_host),
            console_host: self.console_host.or(other.console_host),
            blob_port: self.blob_port.or(other.blob_port),
            queue_port: self.queue_port.or(other.queue_port),
            table_port: self.table_port.or(other.table_port),
            file_port: self.file_port.or(other.file_port),
            dfs_port: self.dfs_port.or(other.dfs_port),
            smb_port: self.smb_port.or(other.smb_port),
            smb_unencrypted: self.smb_unencrypted.or(other.smb_unencrypted),
            smb_require_signing: self.smb_require_signing.or(other.smb_require_signing),
            smb_enforce_permissions: self.smb_enforce_permissions.or(other.smb_enforce_permissions),
            console_port: self.console_port.or(other.console_port),
            console: self.console.or(other.console),
            console_name: self.console_name.or(other.console_name),
            console_password_file: self.console_password_file.or(other.console_password_file),
            console_plaintext: self.console_plaintext.or(other.console_plaintext),
            account: self.account.or(other.account),
            account_file: self.account_file.or(other.account_file),
            create: self.create.or(other.create),
            seed: self.seed.or(other.seed),
            host_suffix: self.host_suffix.or(other.host_suffix),
            trusted_proxy: self.trusted_proxy.or(other.trusted_proxy),
            tls_cert: self.tls_cert.or(other.tls_cert),
            tls_key: self.tls_key.or(other.tls_key),
            tls_self_signed: self.tls_self_signed.or(other.tls_self_signed),
            oidc_issuer: self.oidc_issuer.or(other.oidc_issuer),
            oidc_audience: self.oidc_audience.or(other.oidc_audience),
            copy_source_allow: self.copy_source_allow.or(other.copy_source_allow),
            log: self.log.or(other.log),
            log_level: self.log_level.or(other.log_level),
            access_log: self.access_log.or(other.access_log),
            otlp_endpoint: self.otlp_endpoint.or(other.otlp_endpoint),
            otlp_sample: self.otlp_sample.or(other.otlp_sample),
            cache_bytes: self.cache_bytes.or(other.cache_bytes),
            accept_time: self.accept_time.or(other.accept_time),
            scrub_rate: self.scrub_rate.or(other.scrub_rate),
            insecure_dev_key: self.insecure_dev_key.or(other.insecure_dev_key),
        }
    }

    /// Parses the environment variables: `LAZULI_BLOB_PORT=0` is `--blob-port=0`. An empty variable is
    /// ignored.
    fn from_environment(variable: &impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut arguments = vec!["lazuli".to_owned()];
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        for option in OnlyOptions::command().get_arguments().filter_map(|argument| argument.get_long()) {
            let name = variable_of(option);
            let Some(value) = set(&name) else { continue };
            let argument = format!("--{option}={value}");
            // Parse the variables one at a time, so that the error can name the variable.
            let one = OnlyOptions::try_parse_from(["lazuli", &argument])
                .map_err(|error| environment(&name, &error))?;
            understood(one.layer.account.unwrap_or_default())
                .map_err(|reason| ConfigError::Environment(format!("{name}: {reason}")))?;
            arguments.push(argument);
        }
        let parsed =
            OnlyOptions::try_parse_from(arguments).map_err(|error| environment("LAZULI_*", &error))?;
        let mut layer = parsed.layer;
        if layer.account.is_none()
            && let Some(accounts) = set(AZURITE_ACCOUNTS)
        {
            let accounts = accounts.split(';').map(str::trim).filter(|account| !account.is_empty());
            let accounts = accounts.map(|account| GivenAccount(account.parse())).collect::<Vec<_>>();
            understood(accounts.clone())
                .map_err(|reason| ConfigError::Environment(format!("{AZURITE_ACCOUNTS}: {reason}")))?;
            layer.account = Some(accounts);
        }
        Ok(layer)
    }

    fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { path: path.into(), error })?;
        toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let before = text.get(..at).unwrap_or(&text);
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            ConfigError::File {
                path: path.into(),
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                reason: with_hint(error.message()),
            }
        })
    }
}

/// A command line that consists of options only.
#[derive(Parser)]
struct OnlyOptions {
    #[command(flatten)]
    layer: Layer,
}

/// Adds the right spelling to the message for an unknown option with underscores.
fn with_hint(message: &str) -> String {
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    let spelled = unknown.map(|option| option.replace('_', "-"));
    let (Some(unknown), Some(spelled)) = (unknown, spelled) else { return message.to_owned() };
    let command = OnlyOptions::command();
    match command.get_arguments().any(|argument| argument.get_long() == Some(&spelled)) {
        true => format!("unknown option {unknown}: write {spelled}"),
        false => message.to_owned(),
    }
}

/// Returns a warning for each `LAZULI_*` variable that no option has.
pub(crate) fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let command = OnlyOptions::command();
    let mut known: Vec<_> =
        command.get_arguments().filter_map(|argument| argument.get_long()).map(variable_of).collect();
    known.push(CONFIG_VARIABLE.into());
    let plain = |name: &str| name.to_ascii_uppercase().replace(['_', '-'], "");
    let unknown = names.into_iter().filter(|name| {
        name.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("LAZULI_")) && !known.contains(name)
    });
    let warn = |name: String| match known.iter().find(|known| plain(known) == plain(&name)) {
        Some(meant) => format!("the variable {name} has no effect: write {meant}"),
        None => format!("the variable {name} has no effect: there is no such option"),
    };
    unknown.map(warn).collect()
}

/// Returns a word of a log filter that is no level. The filter would take it for the name of a module, and
/// log nothing else.
fn unknown_level(filter: &str) -> Option<&str> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let mut words = filter.split(',').map(str::trim);
    words.find(|word| !word.is_empty() && !word.contains(['=', '[', ':']) && !is_level(word))
}

/// Reads accounts from a file: one in each line. Empty lines and lines that begin with # are skipped.
/// Messages never quote the file, because it contains keys.
fn accounts_of_file(path: &Path) -> Result<Vec<ConfiguredAccount>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Contradiction(format!("--account-file {}: {error}", path.display())))?;
    let mut accounts = vec![];
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let account = line.parse().map_err(|reason| {
            ConfigError::Contradiction(format!("--account-file {}:{number}: {reason}", path.display()))
        })?;
        accounts.push(account);
    }
    // An empty secret must not lead to the development account, whose key is public.
    if accounts.is_empty() {
        return contradiction(format!(
            "--account-file {}: no account in it; expected lines NAME:KEY1[:KEY2]",
            path.display()
        ));
    }
    Ok(accounts)
}

/// Reads the hash of a password from a file.
fn password_hash(path: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        ConfigError::Contradiction(format!("--console-password-file {}: {error}", path.display()))
    })?;
    match text.trim() {
        hash if hash.starts_with("$argon2id$") && hash.lines().count() == 1 => Ok(hash.to_owned()),
        _ => contradiction(format!(
            "--console-password-file {}: expected one line that begins with $argon2id$, as `argon2 SALT -id -e` \
             prints it",
            path.display()
        )),
    }
}

/// Returns the name of the environment variable for an option.
fn variable_of(option: &str) -> String {
    format!("LAZULI_{}", option.to_ascii_uppercase().replace('-', "_"))
}

fn environment(variable: &str, error: &clap::Error) -> ConfigError {
    let text = error.to_string();
    let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
    ConfigError::Environment(format!("{variable}: {reason}"))
}

fn storage(layer: &Layer) -> Result<Storage, ConfigError> {
    if layer.in_memory.is_none() && layer.memory_bytes.is_some() {
        return contradiction("--memory-bytes requires --in-memory");
    }
    if !layer.in_memory.unwrap_or_default() {
        return Ok(Storage::Directory(layer.data.clone().unwrap_or_else(|| "lazuli-data".into())));
    }
    // Options that apply to a data directory only.
    let given = [
        ("--data", layer.data.is_some()),
        ("--cache-bytes", layer.cache_bytes.is_some()),
        ("--scrub-rate", layer.scrub_rate.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => contradiction(format!("--in-memory cannot be combined with {option}")),
        None => Ok(Storage::Memory { max_bytes: layer.memory_bytes.map(|size| size.0) }),
    }
}

fn tls(cert: Option<PathBuf>, key: Option<PathBuf>, self_signed: bool) -> Result<TlsSource, ConfigError> {
    match (cert, key, self_signed) {
        (None, None, false) => Ok(TlsSource::Off),
        (None, None, true) => Ok(TlsSource::SelfSigned),
        (Some(certificate), Some(key), false) => Ok(TlsSource::Files { certificate, key }),
        (_, _, true) => contradiction("--tls-self-signed cannot be combined with --tls-cert or --tls-key"),
        _ => contradiction("--tls-cert and --tls-key must be set together"),
    }
}

/// Normalizes a host name for comparison.
fn host_name(name: &str) -> String {
    name.trim_matches('.').to_ascii_lowercase()
}

/// Returns the configured accounts, or the error of the first invalid one.
fn understood(accounts: Vec<GivenAccount>) -> Result<Vec<ConfiguredAccount>, String> {
    accounts.into_iter().map(|account| account.0).collect()
}

fn repeated(accounts: &[ConfiguredAccount]) -> Option<&str> {
    let mut rest = accounts;
    while let [first, others @ ..] = rest {
        if others.iter().any(|other| other.name == first.name) {
            return Some(&first.name);
        }
        rest = others;
    }
    None
}

fn contradiction<T>(reason: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Contradiction(reason.into()))
}

#[cfg(test)]
mod tests;
