//! The client's side of the control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    Command, HELD, MAX_REPLY, Reply, RestoreReply, RestoredCounts, SnapshotReply, Target, socket_path,
};
use crate::Failure;
use crate::backup::snapshot::Segment;

/// How long to wait for the server.
const TIME: Duration = Duration::from_secs(60);
/// The same for a snapshot, which waits for a sweep of content to end.
const SNAPSHOT_TIME: Duration = Duration::from_secs(900);

/// Asks the server of a data directory; `None` if there is no server.
pub(crate) fn ask(directory: &Path, command: &Command) -> Result<Option<Reply>, Failure> {
    let Some(stream) = connect(directory)? else { return Ok(None) };
    talk(stream, command).map(Some).map_err(|error| no_answer(directory, &error))
}

/// Connects to the server of a data directory; `None` if there is no server.
fn connect(directory: &Path) -> Result<Option<UnixStream>, Failure> {
    match socket_path(directory).and_then(|(path, _held)| UnixStream::connect(path)) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(no_answer(directory, &error)),
    }
}

/// A snapshot that a server keeps as long as this exists.
pub(crate) struct HeldSnapshot {
    stream: BufReader<UnixStream>,
    directory: PathBuf,
}

/// Asks the server of a data directory for a snapshot; `None` if there is no server.
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

    /// Fails if the server did not keep the snapshot until now.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        let mut said = Vec::new();
        let asked = self.stream.get_mut().write_all(b"\n");
        let heard = asked.and_then(|()| (&mut self.stream).take(64).read_until(b'\n', &mut said));
        match heard {
            Ok(_) if said == HELD => Ok(()),
            _ => Err(Failure::Failed(format!(
                "the server of {} stopped meanwhile: try again",
                self.directory.display()
            ))),
        }
    }
}

/// Sends an object to the server of a data directory. `write` writes the stream.
pub(crate) fn restore<T>(
    directory: &Path,
    target: &Target,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Failure>,
) -> Result<RestoredCounts, Failure> {
    let stream = connect(directory)?.ok_or_else(|| {
        Failure::Failed(format!("no server serves {}: start it first", directory.display()))
    })?;
    let failed = |error: io::Error| no_answer(directory, &error);
    let answer = |time| -> Result<RestoreReply, io::Error> {
        stream.set_read_timeout(Some(time))?;
        let mut reply = Vec::new();
        // Nothing follows a reply before the client has spoken again.
        BufReader::new((&stream).take(MAX_REPLY)).read_until(b'\n', &mut reply)?;
        Ok(serde_json::from_slice(&reply)?)
    };
    stream.set_write_timeout(Some(SNAPSHOT_TIME)).map_err(failed)?;
    let mut line = serde_json::to_vec(&Command::Restore(target.clone())).map_err(Failure::failed)?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    answer(TIME).map_err(failed)?.map_err(Failure::Failed)?;
    let mut out = io::BufWriter::with_capacity(1 << 20, &stream);
    let written = write(&mut out);
    let flushed = out.flush();
    drop(out);
    let ended = flushed.and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    // If the server has given up, its answer says why.
    match (written, answer(SNAPSHOT_TIME)) {
        (Err(failure), Ok(Err(why))) => Err(Failure::Failed(format!("{failure} (the server says: {why})"))),
        (Err(failure), _) => Err(failure),
        (Ok(_), Ok(Err(why))) => Err(Failure::Failed(why)),
        (Ok(_), answer) => {
            ended.map_err(failed)?;
            answer.map_err(failed)?.map_err(Failure::Failed)
        }
    }
}

fn talk(mut stream: UnixStream, command: &Command) -> io::Result<Reply> {
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
