//! The page of the console of a running server, and `lazuli console`, which prints a link to it.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use lazuli_account::AccountDirectory;
use lazuli_console::{ConsoleOptions, WebConsole};
use lazuli_front::{HttpServer, Readiness};

use crate::config::{Config, TlsSource};
use crate::control::{self, Command};
use crate::endpoints::{ConsoleLink, Endpoints, reachable};
use crate::metrics::Sources;
use crate::services::Services;
use crate::target::{DataArgs, DataTarget};
use crate::{Failure, VERSION};

/// The parts that the page needs.
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) accounts: &'a AccountDirectory,
    pub(crate) services: &'a Services,
    pub(crate) server: &'a HttpServer,
    pub(crate) metrics: Arc<Sources>,
    pub(crate) readiness: Arc<dyn Fn() -> Readiness + Send + Sync>,
}

impl Parts<'_> {
    /// Starts the page, unless it is off or would cross a network without TLS.
    pub(crate) fn start(self, address: SocketAddr) -> Option<WebConsole> {
        let page = &self.config.console_page;
        let is_secure = self.config.tls != TlsSource::Off;
        if !page.is_on {
            return None;
        }
        if !(is_secure || address.ip().is_loopback() || page.is_plaintext) {
            tracing::warn!(
                %address,
                "the console serves health checks and metrics only: its page needs TLS on this address, or \
                 --console-plaintext"
            );
            return None;
        }
        let scheme = if is_secure { "https" } else { "http" };
        let services = self
            .server
            .addresses()
            .map(|(kind, address)| (kind, format!("{scheme}://{}", reachable(address))));
        let (metrics, readiness) = (self.metrics, self.readiness);
        Some(WebConsole::start(ConsoleOptions {
            address,
            names: page.names.clone(),
            is_secure,
            password: page.password.clone(),
            insecure_development_key: self.config.insecure_dev_key,
            version: VERSION,
            accounts: self.accounts.clone(),
            entry: self.server.storage_entry(),
            services: services.collect(),
            queue: self.services.queue.clone(),
            file: self.services.file.clone(),
            watch: metrics.front.watch().clone(),
            metrics: Arc::new(move || metrics.render()),
            readiness: Arc::new(move || match readiness() {
                Readiness::Ready => "ready".into(),
                Readiness::ReadyWith(remark) => format!("ready ({remark})"),
                Readiness::Degraded(reasons) => format!("degraded: {}", reasons.join("; ")),
                Readiness::NotReady(reason) => format!("not ready: {reason}"),
            }),
        }))
    }
}

/// Returns what makes links to the page, if there is one.
pub(crate) fn link(console: Option<&WebConsole>, endpoints: &Endpoints) -> Option<ConsoleLink> {
    let (console, base) = (console?.clone(), endpoints.console_url()?);
    Some(Arc::new(move || console.sign_in_link(&base)))
}

#[derive(Args)]
pub(crate) struct ConsoleArgs {
    #[command(flatten)]
    data: DataArgs,
}

/// Prints a link that signs an operator in to the console of a running server.
pub(crate) fn run(args: ConsoleArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let target = DataTarget::load(args.data, variable)?;
    let directory = target.directory.display();
    let reply = control::send_command(&target.directory, &Command::ConsoleLink)?
        .ok_or_else(|| Failure::Failed(format!("no server is running on {directory}")))?;
    println!("{}", reply.map_err(Failure::Failed)?.note.unwrap_or_default());
    Ok(())
}
