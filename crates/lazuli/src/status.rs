//! `lazuli status`: what a running server serves, holds and lacks.

use std::fmt::Write;
use std::path::Path;

use clap::Args;
use indicatif::HumanBytes;
use lazuli_protocol::ServiceKind;

use crate::Failure;
use crate::account::output::aligned;
use crate::control;
use crate::probe::MemoryServer;
use crate::report::{AccountStatus, DiskUse, State, Status};
use crate::target::{DataArgs, DataTarget};
use crate::usage::AccountUsage;

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Leave out what the accounts hold
    #[arg(long)]
    no_counts: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Prints the state of the server of a data directory. Fails if no server is running.
pub(crate) fn run(args: StatusArgs, variable: impl Fn(&str) -> Option<String>) -> Result<(), Failure> {
    let target = DataTarget::load(args.data, variable)?;
    let directory = target.directory.display();
    let Some(reply) = control::request_status(&target.directory, !args.no_counts)? else {
        let Some(server) = MemoryServer::find(&target.config) else {
            return Err(Failure::Failed(format!("no server is running on {directory}")));
        };
        print_memory_server(&server, args.json);
        return Ok(());
    };
    let status = reply.map_err(Failure::Failed)?;
    match args.json {
        true => println!("{:#}", serde_json::json!(status)),
        false => print!("{}", status.text(&target.directory)),
    }
    Ok(())
}

/// Prints the state of a server with data in memory, which answers on its console only.
fn print_memory_server(server: &MemoryServer, as_json: bool) {
    let MemoryServer { console, readiness } = server;
    match as_json {
        true => println!("{:#}", serde_json::json!({ "console": console, "readiness": readiness })),
        false => println!(
            "a server with data in memory answers at {console}: {readiness}\nOnly a server with a data \
             directory reports its accounts and counts."
        ),
    }
}

impl Status {
    fn text(&self, directory: &Path) -> String {
        let (version, process, started) = (&self.version, self.process, &self.started);
        let mut text = format!("Lazuli {version}, process {process}, started {started}\n");
        // Writing to a String cannot fail.
        let mut line = |name: &str, value: &str| _ = writeln!(text, "  {name:<9}{value}");
        line(
            "state",
            match self.state {
                State::Ready => "ready",
                State::Degraded => "degraded",
                State::NotReady => "not ready",
            },
        );
        for reason in &self.reasons {
            line("", reason);
        }
        for (kind, address) in &self.endpoints.services {
            line(kind.name(), &address.to_string());
        }
        for (name, address) in [("smb", self.endpoints.smb), ("console", self.endpoints.console)] {
            if let Some(address) = address {
                line(name, &address.to_string());
            }
        }
        line("data", &directory.display().to_string());
        let DiskUse { used, free, total } = self.disk;
        let (used, free, total) = (HumanBytes(used), HumanBytes(free), HumanBytes(total));
        line("space", &format!("{used} in use, {free} free of {total}"));
        if !self.accounts.is_empty() {
            text.push('\n');
            const TITLES: [&str; 7] = ["ACCOUNT", "STATE", "BLOB", "QUEUE", "TABLE", "FILE", "BYTES"];
            text.push_str(&aligned(TITLES, self.accounts.iter().map(AccountStatus::row).collect()));
            let usages = self.accounts.iter().filter_map(|account| account.usage.as_ref());
            // ISO 8601 sorts by time.
            if let Some(oldest) = usages.filter_map(|usage| usage.counted_at.as_ref()).min() {
                _ = writeln!(text, "the counts are of {oldest} or later");
            }
        }
        text
    }
}

impl AccountStatus {
    fn row(&self) -> [String; 7] {
        let of_service = |kind: ServiceKind| {
            let Some(usage) = &self.usage else { return "?".to_owned() };
            let held = usage.services.get(&kind).copied().unwrap_or_default();
            format!("{} in {}", held.objects, held.resources)
        };
        let more = if self.usage.as_ref().is_some_and(|usage| usage.is_partial) { ">" } else { "" };
        let bytes = |usage: &AccountUsage| format!("{more}{}", HumanBytes(usage.bytes()));
        [
            self.name.clone(),
            if self.is_disabled { "disabled" } else { "enabled" }.into(),
            of_service(ServiceKind::Blob),
            of_service(ServiceKind::Queue),
            of_service(ServiceKind::Table),
            of_service(ServiceKind::File),
            self.usage.as_ref().map_or_else(|| "?".into(), bytes),
        ]
    }
}
