//! The client's side of the control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{Command, MAX_REPLY, Reply, socket_path};
use crate::Failure;

/// How long to wait for the server.
const TIME: Duration = Duration::from_secs(60);

/// Asks the server of a data directory; `None` if there is no server.
pub(crate) fn ask(directory: &Path, command: &Command) -> Result<Option<Reply>, Failure> {
    let stream = socket_path(directory).and_then(|(path, _held)| UnixStream::connect(path));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(no_answer(directory, &error)),
    };
    talk(stream, command).map(Some).map_err(|error| no_answer(directory, &error))
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
