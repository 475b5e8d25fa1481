//! `lazuli azurite`, also as a program called `azurite`: serves with Azurite's options, ports and output.
//!
//! Azurite's options become a [`Layer`]. Variables and the configuration file of Lazuli come after them, and
//! the defaults of this module last: only the services that Azurite has, so that several instances on one
//! machine need no other ports than Azurite's.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use lazuli_protocol::ServiceKind;

use crate::config::{ByteSize, Host, Layer, Port};

/// Names of the program, and the service to which a name is restricted.
const PROGRAMS: [(&str, Option<ServiceKind>); 4] = [
    ("azurite", None),
    ("azurite-blob", Some(ServiceKind::Blob)),
    ("azurite-queue", Some(ServiceKind::Queue)),
    ("azurite-table", Some(ServiceKind::Table)),
];
/// The services that Azurite has.
const SERVICES: [ServiceKind; 3] = [ServiceKind::Blob, ServiceKind::Queue, ServiceKind::Table];
/// Name of the data directory in `--location`.
const DATA: &str = "lazuli-data";

/// The program `azurite` and its options.
#[derive(Parser, Debug)]
#[command(name = "azurite", version, about = "Lazuli with Azurite's options")]
struct Program {
    #[command(flatten)]
    args: AzuriteArgs,
}

/// The options of Azurite. Names and defaults are Azurite's.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(rename_all = "camelCase")]
pub(crate) struct AzuriteArgs {
    /// The folder in which the data directory lazuli-data is
    #[arg(short = 'l', long, value_name = "DIR", default_value = ".")]
    location: PathBuf,
    /// The address of the blob service
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    blob_host: String,
    /// The port of the blob service
    #[arg(long, value_name = "PORT", default_value_t = 10_000)]
    blob_port: u16,
    /// The address of the queue service
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    queue_host: String,
    /// The port of the queue service
    #[arg(long, value_name = "PORT", default_value_t = 10_001)]
    queue_port: u16,
    /// The address of the table service
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    table_host: String,
    /// The port of the table service
    #[arg(long, value_name = "PORT", default_value_t = 10_002)]
    table_port: u16,
    /// Keep all data in memory
    #[arg(long)]
    in_memory_persistence: bool,
    /// With --inMemoryPersistence: the memory limit for data in megabytes
    #[arg(long, value_name = "MB")]
    extent_memory_limit: Option<f64>,
    /// The certificate for HTTPS, a PEM file
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// The key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The password of a PFX file (not supported: convert the file to PEM)
    #[arg(long, value_name = "PASSWORD")]
    pwd: Option<String>,
    /// Accept bearer tokens; needs the option --oidc-issuer of lazuli serve, or LAZULI_OIDC_ISSUER
    #[arg(long, value_name = "LEVEL")]
    oauth: Option<String>,
    /// Write a debug log (no counterpart: see LAZULI_LOG_LEVEL)
    #[arg(short = 'd', long, value_name = "FILE", num_args = 0..=1, default_missing_value = "debug.log")]
    debug: Option<PathBuf>,
    /// Do not log requests, which is the default
    #[arg(short = 's', long)]
    silent: bool,
    /// Accept unknown headers and parameters, which is the default
    #[arg(short = 'L', long)]
    loose: bool,
    /// Accept all API versions, which is the default
    #[arg(long)]
    skip_api_version_check: bool,
    /// Take the account from the path of the URL, which is the default
    #[arg(long)]
    disable_product_style_url: bool,
    /// Send no telemetry, which is always so
    #[arg(long)]
    disable_telemetry: bool,
    /// Keep-alive timeout of the blob service in seconds (no counterpart)
    #[arg(long, value_name = "SECONDS")]
    blob_keep_alive_timeout: Option<u32>,
    /// Keep-alive timeout of the queue service in seconds (no counterpart)
    #[arg(long, value_name = "SECONDS")]
    queue_keep_alive_timeout: Option<u32>,
    /// Keep-alive timeout of the table service in seconds (no counterpart)
    #[arg(long, value_name = "SECONDS")]
    table_keep_alive_timeout: Option<u32>,
}

/// The options of a server, and notes that the user sees once.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    /// The options that Azurite's options set.
    pub(crate) flags: Layer,
    /// Options for which neither a flag nor a variable nor the file has a value.
    pub(crate) defaults: Layer,
    /// Notes about options without a counterpart.
    pub(crate) notes: Vec<String>,
}

/// Parses the command line if the program was started as one of Azurite's programs.
pub(crate) fn from_program_name(
    mut arguments: impl Iterator<Item = std::ffi::OsString>,
) -> Option<(AzuriteArgs, Option<ServiceKind>)> {
    let program = arguments.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    let (name, only) = PROGRAMS.into_iter().find(|(known, _)| *known == name)?;
    // Azurite's short option for its version is in lower case.
    let arguments = arguments.map(|argument| if argument == "-v" { "-V".into() } else { argument });
    let program = Program::parse_from(std::iter::once(name.into()).chain(arguments));
    Some((program.args, only))
}

impl AzuriteArgs {
    /// Translates the options. With `only`, the other services are not served.
    pub(crate) fn plan(self, only: Option<ServiceKind>) -> Result<Plan, String> {
        let mut notes = self.notes();
        let host = |name: &str, text: &str| {
            text.parse::<Host>().map_err(|reason| format!("--{name}Host {text}: {reason}"))
        };
        let port = |kind, port| match only {
            Some(only) if only != kind => Port::Off,
            _ => Port::On(port),
        };
        let hosts = [
            host("blob", &self.blob_host)?,
            host("queue", &self.queue_host)?,
            host("table", &self.table_host)?,
        ];
        if hosts.iter().any(|host| !host.0.is_loopback()) {
            notes.push(
                "other machines can reach accounts that have the public development key; AZURITE_ACCOUNTS adds other \
                 accounts, and lazuli account rotate-key devstoreaccount1 replaces that key"
                    .into(),
            );
        }
        if self.cert.as_deref().is_some_and(is_pfx) || self.pwd.is_some() {
            return Err("--cert with a PFX file is not supported. Convert it: openssl pkcs12 -in cert.pfx -nodes -out cert.pem, \
                        then use --cert cert.pem --key cert.pem"
                .into());
        }
        if self.cert.is_some() && self.key.is_none() {
            return Err("--cert needs --key".into());
        }
        let [blob_host, queue_host, table_host] = hosts;
        let flags = Layer {
            data: (!self.in_memory_persistence).then(|| self.location.join(DATA)),
            in_memory: self.in_memory_persistence.then_some(true),
            memory_bytes: match self.extent_memory_limit {
                Some(megabytes) if self.in_memory_persistence => {
                    Some(ByteSize((megabytes * 1048576.0) as u64))
                }
                _ => None,
            },
            blob_host: Some(blob_host),
            blob_port: Some(port(ServiceKind::Blob, self.blob_port)),
            queue_host: Some(queue_host),
            queue_port: Some(port(ServiceKind::Queue, self.queue_port)),
            table_host: Some(table_host),
            table_port: Some(port(ServiceKind::Table, self.table_port)),
            tls_cert: self.cert,
            tls_key: self.key,
            ..Layer::default()
        };
        let defaults = Layer {
            file_port: Some(Port::Off),
            smb_port: Some(Port::Off),
            console_port: Some(Port::Off),
            insecure_dev_key: Some(true),
            ..Layer::default()
        };
        Ok(Plan { flags, defaults, notes })
    }

    /// Returns a note for each given option without a counterpart.
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![];
        let mut note = |given: bool, text: &str| {
            if given {
                notes.push(text.to_owned());
            }
        };
        note(
            self.oauth.is_some(),
            "--oauth has no effect: bearer tokens are verified, so their issuer must be known; set LAZULI_OIDC_ISSUER",
        );
        note(self.debug.is_some(), "--debug has no effect; set LAZULI_LOG_LEVEL=debug, and redirect stderr");
        note(
            self.extent_memory_limit.is_some() && !self.in_memory_persistence,
            "--extentMemoryLimit has no effect without --inMemoryPersistence",
        );
        let keep_alive =
            [self.blob_keep_alive_timeout, self.queue_keep_alive_timeout, self.table_keep_alive_timeout];
        note(keep_alive.iter().any(Option::is_some), "the keep-alive timeouts cannot be changed");
        if has_azurite_data(&self.location) && !self.in_memory_persistence {
            let location = self.location.display();
            notes.push(format!(
                "{location} contains data of Azurite, which is not served. Import it while nothing is running on it: \
                 lazuli import azurite {location} --into {}",
                self.location.join(DATA).display()
            ));
        }
        notes
    }
}

/// Whether Azurite has stored data in a folder, and Lazuli has not yet.
fn has_azurite_data(location: &Path) -> bool {
    let azurite = ["blob", "queue", "table"].map(|name| location.join(format!("__azurite_db_{name}__.json")));
    azurite.iter().any(|path| path.exists()) && !location.join(DATA).exists()
}

fn is_pfx(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        extension.eq_ignore_ascii_case("pfx") || extension.eq_ignore_ascii_case("p12")
    })
}

/// Returns the lines that Azurite prints when its services listen. Scripts and test frameworks wait for them.
pub(crate) fn listening(services: &[(ServiceKind, SocketAddr)], tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    let mut text = String::new();
    for (kind, address) in services.iter().filter(|(kind, _)| SERVICES.contains(kind)) {
        let name = match kind {
            ServiceKind::Blob => "Blob",
            ServiceKind::Queue => "Queue",
            ServiceKind::Table => "Table",
            ServiceKind::File => "File",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Azurite {name} service is starting at {scheme}://{address}");
        let _ = writeln!(text, "Azurite {name} service is successfully listening at {scheme}://{address}");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(arguments: &[&str]) -> Result<AzuriteArgs, clap::Error> {
        Program::try_parse_from(std::iter::once(&"azurite").chain(arguments)).map(|program| program.args)
    }

    #[test]
    fn options_of_azurite_are_translated() {
        let arguments = [
            "--silent",
            "--location",
            "/data",
            "--blobHost",
            "0.0.0.0",
            "--blobPort=11000",
            "--queueHost=0.0.0.0",
            "--tablePort",
            "0",
            "--loose",
            "--skipApiVersionCheck",
            "--disableProductStyleUrl",
            "--debug",
            "/d.log",
        ];
        let plan = parse(&arguments).unwrap().plan(None).unwrap();
        assert_eq!(plan.flags.data, Some("/data/lazuli-data".into()));
        assert_eq!(plan.flags.blob_host, Some("0.0.0.0".parse().unwrap()));
        assert_eq!(plan.flags.blob_port, Some(Port::On(11_000)));
        assert_eq!(plan.flags.queue_port, Some(Port::On(10_001)));
        assert_eq!(plan.flags.table_host, Some("127.0.0.1".parse().unwrap()));
        assert_eq!(plan.flags.table_port, Some(Port::On(0)));
        assert_eq!(plan.flags.file_port, None);
        assert_eq!(plan.defaults.smb_port, Some(Port::Off));
        assert_eq!(plan.notes.len(), 2, "{:?}", plan.notes);
    }

    #[test]
    fn short_options_of_azurite_are_understood() {
        let args = parse(&["-s", "-L", "-l", "/x", "-d"]).unwrap();
        assert!(args.silent && args.loose);
        assert_eq!((args.location, args.debug), (PathBuf::from("/x"), Some("debug.log".into())));
    }

    #[test]
    fn memory_limit_is_in_megabytes_and_needs_data_in_memory() {
        let layer = |arguments: &[&str]| parse(arguments).unwrap().plan(None).unwrap();
        let plan = layer(&["--inMemoryPersistence", "--extentMemoryLimit", "1.5"]);
        assert_eq!((plan.flags.data, plan.flags.in_memory), (None, Some(true)));
        assert_eq!(plan.flags.memory_bytes, Some(ByteSize(1_572_864)));
        let plan = layer(&["--extentMemoryLimit", "100"]);
        assert_eq!((plan.flags.memory_bytes, plan.notes.len()), (None, 1));
    }

    #[test]
    fn certificates_are_pem_files() {
        let plan = |arguments: &[&str]| parse(arguments).unwrap().plan(None);
        let pem = plan(&["--cert", "c.pem", "--key", "k.pem"]).unwrap();
        assert_eq!((pem.flags.tls_cert, pem.flags.tls_key), (Some("c.pem".into()), Some("k.pem".into())));
        for refused in
            [&["--cert", "c.pfx", "--pwd", "x"][..], &["--cert", "c.PFX", "--key", "k"], &["--cert", "c.pem"]]
        {
            assert!(plan(refused).is_err(), "{refused:?}");
        }
    }

    #[test]
    fn program_name_selects_the_services() {
        let program = |arguments: &[&str]| from_program_name(arguments.iter().map(Into::into));
        assert_eq!(program(&["lazuli", "serve"]), None);
        let (args, only) = program(&["/usr/bin/azurite-queue", "--queuePort", "9"]).unwrap();
        let flags = args.plan(only).unwrap().flags;
        assert_eq!((flags.blob_port, flags.queue_port), (Some(Port::Off), Some(Port::On(9))));
    }

    #[test]
    fn listening_services_are_printed_as_azurite_prints_them() {
        let services = [
            (ServiceKind::Blob, "127.0.0.1:10000".parse().unwrap()),
            (ServiceKind::File, "127.0.0.1:10003".parse().unwrap()),
        ];
        let expected = "Azurite Blob service is starting at http://127.0.0.1:10000\n\
                        Azurite Blob service is successfully listening at http://127.0.0.1:10000\n";
        assert_eq!(listening(&services, false), expected);
    }
}
