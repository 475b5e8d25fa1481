//! Parts of imports through the protocol: a server on the data directory, a progress bar, and the report.

use std::io::{BufRead, BufReader, IsTerminal, stderr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use lazuli_import::report::{ImportProgress, ImportReport};
use rustix::process::{Pid, Signal, kill_process};

use crate::Failure;

/// How often the progress bar is redrawn.
const REDRAW: Duration = Duration::from_millis(200);

/// Prints the report. Fails if anything was left out.
pub(super) fn finish(report: &ImportReport) -> Result<(), Failure> {
    print!("{report}");
    match report.left_out {
        0 => Ok(()),
        left_out => Err(Failure::Failed(format!("{left_out} objects were left out: see above"))),
    }
}

/// A server of this program on the data directory, for the time of the import.
pub(super) struct ImportServer {
    child: Child,
    /// The addresses of the services by name.
    pub(super) endpoints: Vec<(String, String)>,
}

impl ImportServer {
    /// Starts the server and waits until it is ready.
    pub(super) fn start(into: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe().map_err(Failure::failed)?);
        // Variables that are set for another server must not affect this one.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("LAZULI_") || name.starts_with("AZURITE_") {
                command.env_remove(&*name);
            }
        }
        command
            .args(["serve", "--stop-with-parent", "--host", "127.0.0.1", "--log-level", "warn", "--data"])
            .arg(into);
        command.args(["--blob-port", "0", "--queue-port", "0", "--table-port", "0"]);
        command.args(["--file-port", "0", "--smb-port", "off", "--console-port", "off"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(Failure::failed)?;
        let mut server = Self { endpoints: vec![], child };
        let lines = server.child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        for line in lines.map_while(Result::ok) {
            if let Some((name, value)) = line.trim().split_once(' ') {
                if name == "connect" {
                    return Ok(server);
                }
                // http://127.0.0.1:10000/ACCOUNT, without the account.
                if let Some((address, _)) = value.trim().rsplit_once('/') {
                    server.endpoints.push((name.to_owned(), address.to_owned()));
                }
            }
        }
        Err(Failure::Failed(format!("cannot serve {}: see the message above", into.display())))
    }

    /// Stops the server in an orderly way, so that everything is in tables when it is started next.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).map_err(Failure::failed)?;
        let status = self.child.wait().map_err(Failure::failed)?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("the server ended with {status}")))
        }
    }
}

impl Drop for ImportServer {
    fn drop(&mut self) {
        // Ignore errors: after `stop` the process is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a bar that shows the number of objects on a terminal.
pub(super) fn progress_bar(progress: &Arc<ImportProgress>) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) =
        ProgressStyle::with_template("{spinner} {human_pos} objects imported, {msg}, {per_sec}, {elapsed}")
    {
        bar.set_style(style);
    }
    let (progress, shown) = (Arc::downgrade(progress), bar.clone());
    std::thread::spawn(move || {
        while let Some(progress) = progress.upgrade().filter(|_| !shown.is_finished()) {
            shown.set_position(progress.count());
            shown.set_message(HumanBytes(progress.bytes()).to_string());
            drop(progress);
            std::thread::sleep(REDRAW);
        }
    });
    bar
}
