//! The server side of the control socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lazuli_account::{AccountDirectory, ReservedAccount};
use lazuli_extents::LocalExtents;
use lazuli_protocol::Key;
use serde::Serialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::{
    Command, DevelopmentKey, Done, HELD, Intakes, MAX_COMMAND, Reply, RestoreReply, RestoredCounts, SOCKET,
    SnapshotReply, StatusReply, Target, execute, socket_path,
};
use crate::backup::snapshot::{self, Snapshot};
use crate::report::RunningServer;

/// Maximum number of concurrent clients; more wait in the kernel.
const MAX_CLIENTS: usize = 8;
/// Timeout for reading a command and for writing a reply.
const TIME: Duration = Duration::from_secs(30);
/// Timeout for the next bytes of a restore: the client fetches them from a backup.
const STREAM_TIME: Duration = Duration::from_secs(120);
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The open control socket. Dropping it closes the socket.
pub(crate) struct Control {
    path: PathBuf,
    task: AbortHandle,
}

impl Control {
    /// Opens the socket in a data directory that this process has locked.
    pub(crate) fn start(
        directory: &Path,
        extents: LocalExtents,
        accounts: AccountDirectory,
        rule: DevelopmentKey,
        intakes: Option<Intakes>,
        running: Option<RunningServer>,
    ) -> io::Result<Self> {
        snapshot::remove(directory)?;
        let (path, _held) = socket_path(directory)?;
        // An existing socket was left by a server that was killed: the lock proves that no other server is
        // running.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Until the permissions are set, the umask keeps other users out.
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let server = Server { directory: directory.into(), extents, accounts, rule, intakes, running };
        let task = tokio::spawn(accept(listener, server)).abort_handle();
        Ok(Self { path: directory.join(SOCKET), task })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The state that commands operate on.
#[derive(Clone)]
struct Server {
    directory: PathBuf,
    extents: LocalExtents,
    accounts: AccountDirectory,
    rule: DevelopmentKey,
    /// Receives restored objects; `None` if this server cannot restore.
    intakes: Option<Intakes>,
    /// Reports the state of the server; `None` in tests.
    running: Option<RunningServer>,
}

/// The object or account that a client restores.
enum RestoreTarget {
    Object(Target),
    Account { reserved: ReservedAccount, keys: Vec<Key>, rule: DevelopmentKey },
}

async fn accept(listener: UnixListener, server: Server) {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut clients = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = server.clone();
                clients.spawn(async move {
                    if let Err(error) = server.answer(stream).await {
                        tracing::debug!(%error, "a client of the control socket disconnected or was too slow");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection on the control socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        while clients.try_join_next().is_some() {}
    }
}

impl Server {
    async fn answer(&self, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read.take(MAX_COMMAND));
        let mut line = Vec::new();
        timeout(TIME, read.read_until(b'\n', &mut line)).await??;
        match serde_json::from_slice::<Command>(&line) {
            Ok(Command::Snapshot) => return self.hold_snapshot(read, write).await,
            Ok(Command::Restore(target)) => {
                return self
                    .restore(read.into_inner().into_inner(), write, RestoreTarget::Object(target))
                    .await;
            }
            Ok(Command::RestoreAccount { name, keys }) => {
                let target = match self.accounts.reserve(&name).await {
                    Ok(reserved) => RestoreTarget::Account { reserved, keys, rule: self.rule },
                    Err(error) => {
                        let reply: RestoreReply = Err(error.to_string());
                        return send(&mut write, &reply).await;
                    }
                };
                return self.restore(read.into_inner().into_inner(), write, target).await;
            }
            Ok(Command::Status { counts }) => {
                let reply: StatusReply = match &self.running {
                    Some(running) => {
                        timeout(TIME, running.status(&self.directory, &self.accounts, counts)).await?
                    }
                    None => Err("this server does not report its state".into()),
                };
                send(&mut write, &reply).await?;
            }
            Ok(Command::ConsoleLink) => {
                let link = self.running.as_ref().and_then(|running| running.console_link.clone());
                let reply: Reply = match link {
                    Some(link) => Ok(Done { note: Some(link()), ..Done::default() }),
                    None => Err("this server does not serve the console's page".into()),
                };
                send(&mut write, &reply).await?;
            }
            Ok(command) => {
                let removes = matches!(command, Command::Remove { .. });
                let counter = self.running.as_ref().map(|running| &*running.usage);
                let reply = timeout(TIME, execute(&self.accounts, counter, self.rule, command)).await;
                if let (true, Some(intakes)) = (removes, &self.intakes) {
                    // A sweep finds out whether data can be removed. A command whose time is up may still
                    // commit.
                    intakes.schedule_sweeps();
                }
                send(&mut write, &reply?).await?;
            }
            Err(error) => {
                let reply: Reply = Err(format!("the server does not understand the command: {error}"));
                send(&mut write, &reply).await?;
            }
        }
        write.shutdown().await
    }

    /// Replies that the server is ready, then restores the stream that the client sends.
    async fn restore(
        &self,
        read: OwnedReadHalf,
        mut write: OwnedWriteHalf,
        target: RestoreTarget,
    ) -> io::Result<()> {
        let Some(intakes) = self.intakes.clone() else {
            let reply: RestoreReply = Err("this server cannot restore backups".into());
            return send(&mut write, &reply).await;
        };
        let ready: RestoreReply = Ok(RestoredCounts { rows: 0, bytes: 0 });
        send(&mut write, &ready).await?;
        let stream = read.reunite(write).map_err(io::Error::other)?.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(STREAM_TIME))?;
        stream.set_write_timeout(Some(TIME))?;
        let runtime = Handle::current();
        let answered = tokio::task::spawn_blocking(move || {
            let input = io::BufReader::with_capacity(1 << 20, &stream);
            let reply: RestoreReply = match target {
                RestoreTarget::Object(target) => intakes.receive(&runtime, &target, input),
                RestoreTarget::Account { reserved, keys, rule } => {
                    intakes.receive_account(&runtime, reserved, keys, rule, input)
                }
            };
            if let Err(error) = &reply {
                tracing::warn!(error, "a restore was canceled; no restored data is visible");
            }
            let mut line = serde_json::to_vec(&reply)?;
            line.push(b'\n');
            io::Write::write_all(&mut &stream, &line)
        });
        answered.await.map_err(io::Error::other)?
    }

    /// Takes a snapshot and keeps it until the client disconnects.
    async fn hold_snapshot(
        &self,
        mut read: impl AsyncBufRead + Unpin,
        mut write: OwnedWriteHalf,
    ) -> io::Result<()> {
        let taken = Snapshot::take(&self.directory, &self.extents).await;
        let reply: SnapshotReply = taken.as_ref().map(|taken| taken.segments.clone()).map_err(String::clone);
        send(&mut write, &reply).await?;
        let mut line = Vec::new();
        while taken.is_ok() && read.read_until(b'\n', &mut line).await? > 0 {
            line.clear();
            timeout(TIME, write.write_all(HELD)).await??;
        }
        Ok(())
    }
}

async fn send(write: &mut OwnedWriteHalf, reply: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    timeout(TIME, write.write_all(&line)).await?
}
