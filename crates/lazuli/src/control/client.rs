//! The client side of the control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{
    Command, HELD, MAX_REPLY, Reply, RestoreReply, RestoredCounts, SnapshotReply, StatusReply, socket_path,
};
use crate::Failure;
use crate::backup::snapshot::Segment;

/// Timeout for replies of the server.
const TIME: Duration = Duration::from_secs(60);
/// Timeout for a snapshot, which waits for the end of a content sweep.
const SNAPSHOT_TIME: Duration = Duration::from_secs(900);

/// Sends a command to the server of a data directory. Returns `None` if no server is running.
pub(crate) fn send_command(directory: &Path, command: &Command) -> Result<Option<Reply>, Failure> {
    let Some(stream) = connect(directory)? else { return Ok(None) };
    talk(stream, command).map(Some).map_err(|error| no_answer(directory, &error))
}

/// Asks the server of a data directory for its state. Returns `None` if no server is running.
pub(crate) fn request_status(directory: &Path, counts: bool) -> Result<Option<StatusReply>, Failure> {
    let Some(stream) = connect(directory)? else { return Ok(None) };
    let status = talk(stream, &Command::Status { counts });
    status.map(Some).map_err(|error| no_answer(directory, &error))
}

/// Connects to the server of a data directory. Returns `None` if no server is running.
fn connect(directory: &Path) -> Result<Option<UnixStream>, Failure> {
    match socket_path(directory).and_then(|(path, _held)| UnixStream::connect(path)) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(no_answer(directory, &error)),
    }
}

/// The connection over which the server keeps a snapshot. Dropping it ends the snapshot.
pub(crate) struct HeldSnapshot {
    stream: BufReader<UnixStream>,
    directory: PathBuf,
}

/// Requests a snapshot from the server of a data directory. Returns `None` if no server is running.
pub(crate) fn hold_snapshot(directory: &Path) -> Result<Option<(HeldSnapshot, Vec<Segment>)>, Failure> {
    let Some(stream) = connect(directory)? else { return Ok(None) };
    let mut held = HeldSnapshot { stream: BufReader::new(stream), directory: directory.into() };
    let reply: SnapshotReply = held.request().map_err(|error| no_answer(directory, &error))?;
    Ok(Some((held, reply.map_err(Failure::Failed)?)))
}

impl HeldSnapshot {
    fn request(&mut self) -> io::Result<SnapshotReply> {
        let stream = self.stream.get_mut();
        stream.set_read_timeout(Some(SNAPSHOT_TIME))?;
        stream.set_write_timeout(Some(TIME))?;
        let mut line = serde_json::to_vec(&Command::Snapshot)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut reply = Vec::new();
        (&mut self.stream).take(MAX_REPLY).read_until(b'\n', &mut reply)?;
        Ok(serde_json::from_slice(&reply)?)
    }

    /// Returns an error unless the server has kept the snapshot until now.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let mut reply = Vec::new();
        let sent = self.stream.get_mut().write_all(b"\n");
        let received = sent.and_then(|()| (&mut self.stream).take(64).read_until(b'\n', &mut reply));
        match received {
            Ok(_) if reply == HELD => Ok(()),
            _ => Err(Failure::Failed(format!(
                "the server of {} stopped during the backup: try again",
                self.directory.display()
            ))),
        }
    }
}

/// Sends a restore command and its stream, which `write` writes, to the server of a data directory.
pub(crate) fn restore<T>(
    directory: &Path,
    command: &Command,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<RestoredCounts, Failure> {
    let stream = connect(directory)?.ok_or_else(|| {
        Failure::Failed(format!("no server is running on {}: start it first", directory.display()))
    })?;
    let failed = |error: io::Error| no_answer(directory, &error);
    // One buffer for both replies: a server that refuses at once has sent the second before the first is
    // read.
    let mut replies = BufReader::new(&stream);
    let mut answer = |time| -> Result<RestoreReply, io::Error> {
        stream.set_read_timeout(Some(time))?;
        let mut reply = Vec::new();
        (&mut replies).take(MAX_REPLY).read_until(b'\n', &mut reply)?;
        Ok(serde_json::from_slice(&reply)?)
    };
    stream.set_write_timeout(Some(SNAPSHOT_TIME)).map_err(failed)?;
    let mut line = serde_json::to_vec(command).map_err(Failure::failed)?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    answer(TIME).map_err(failed)?.map_err(Failure::Failed)?;
    let mut out = io::BufWriter::with_capacity(1 << 20, &stream);
    let written = write(&mut out);
    let flushed = out.flush();
    drop(out);
    let ended = flushed.and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    // If the server has canceled the restore, its reply says why.
    match (written, answer(SNAPSHOT_TIME)) {
        (Err(failure), Ok(Err(why))) if failure.to_string().contains("Broken pipe") => {
            Err(Failure::Failed(why))
        }
        (Err(failure), Ok(Err(why))) => Err(Failure::Failed(format!("{failure} (the server says: {why})"))),
        (Err(failure), _) => Err(failure),
        (Ok(_), Ok(Err(why))) => Err(Failure::Failed(why)),
        (Ok(_), answer) => {
            ended.map_err(failed)?;
            answer.map_err(failed)?.map_err(Failure::Failed)
        }
    }
}

fn talk<R: DeserializeOwned>(mut stream: UnixStream, command: &Command) -> io::Result<R> {
    stream.set_read_timeout(Some(TIME))?;
    stream.set_write_timeout(Some(TIME))?;
    let mut line = serde_json::to_vec(command)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = Vec::new();
    BufReader::new(stream.take(MAX_REPLY)).read_until(b'\n', &mut reply)?;
    Ok(serde_json::from_slice(&reply)?)
}

fn no_answer(directory: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("the server of {} does not answer: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use lazuli_protocol::ServiceKind;

    use super::super::{SOCKET, Target};
    use super::*;

    #[test]
    fn refusal_that_arrives_with_the_first_reply_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join(SOCKET)).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_until(b'\n', &mut Vec::new()).unwrap();
            let ready: RestoreReply = Ok(RestoredCounts { rows: 0, bytes: 0 });
            let refusal: RestoreReply = Err("it already exists".into());
            let lines = [ready, refusal].map(|reply| serde_json::to_string(&reply).unwrap() + "\n");
            stream.write_all(lines.concat().as_bytes()).unwrap();
        });
        let target = Target { service: ServiceKind::Blob, account: "a".into(), name: "con".into() };
        let failed = restore(dir.path(), &Command::Restore(target), |out| {
            out.write_all(b"rows").map_err(Failure::failed)
        });
        server.join().unwrap();
        let said = failed.unwrap_err().to_string();
        assert!(said.contains("it already exists"), "{said}");
    }
}
