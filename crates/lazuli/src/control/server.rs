//! The server's side of the control socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazuli_account::AccountDirectory;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::{Command, DevelopmentKey, MAX_COMMAND, Reply, SOCKET, execute, socket_path};

/// How many may ask at once; more wait in the kernel.
const ASKERS: usize = 8;
/// How long one may take to ask and to take the answer.
const TIME: Duration = Duration::from_secs(30);
/// The pause after accepting failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control socket, open. Dropping it closes it.
pub(crate) struct Control {
    path: PathBuf,
    task: AbortHandle,
}

impl Control {
    /// Opens the socket in a data directory that this process has locked.
    pub(crate) fn start(
        directory: &Path,
        accounts: AccountDirectory,
        rule: DevelopmentKey,
    ) -> io::Result<Self> {
        let (path, _held) = socket_path(directory)?;
        // What is there was left by a server that was killed: the lock says that there is no other.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The umask keeps others out until this is done.
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let task = tokio::spawn(accept(listener, accounts, rule)).abort_handle();
        Ok(Self { path: directory.join(SOCKET), task })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, accounts: AccountDirectory, rule: DevelopmentKey) {
    let places = Arc::new(Semaphore::new(ASKERS));
    let mut askers = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let accounts = accounts.clone();
                askers.spawn(async move {
                    if !matches!(
                        tokio::time::timeout(TIME, answer(stream, &accounts, rule)).await,
                        Ok(Ok(()))
                    ) {
                        tracing::debug!("somebody at the control socket went away or was too slow");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept at the control socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while askers.try_join_next().is_some() {}
    }
}

async fn answer(mut stream: UnixStream, accounts: &AccountDirectory, rule: DevelopmentKey) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = Vec::new();
    BufReader::new(read.take(MAX_COMMAND)).read_until(b'\n', &mut line).await?;
    let reply: Reply = match serde_json::from_slice::<Command>(&line) {
        Ok(command) => execute(accounts, rule, command).await,
        Err(error) => Err(format!("the server does not understand the command: {error}")),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    write.shutdown().await
}
