//! Worker processes that can be killed at any moment.
//!
//! [`Child::spawn`] runs this executable again with a role in its environment. The worker's code calls
//! [`Parent::connect`] first, then does its work and calls [`Parent::ack`] after each acknowledged operation
//! and before the next one. Lines that the child sent before it was killed are never lost: they are in the
//! socket, not in a buffer of the child.
//!
//! Both sides exchange lines over a socket pair, which is the child's standard input. The child's standard
//! output and error go to a file, for failure messages. A child dies with the thread that spawned it: it is
//! killed when its [`Child`] is dropped, or by the kernel if the parent is killed first. No call waits
//! forever.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, PidfdFlags, Signal};

const ROLE: &str = "LAZULI_TORTURE_ROLE";
const ARGUMENTS: &str = "LAZULI_TORTURE_ARGUMENTS";
const PARENT: &str = "LAZULI_TORTURE_PARENT";
/// Separates arguments in the environment: the ASCII unit separator.
const SEPARATOR: &str = "\x1f";
/// Maximum length of a line, in bytes.
const MAX_LINE: u64 = 64 << 10;
/// Maximum number of acknowledgments that wait for the parent; then the child waits.
const MAX_UNREAD: usize = 1 << 16;
/// Bytes of the child's output that are kept for messages.
const MAX_OUTPUT: u64 = 64 << 10;
/// Time within which a killed process must have ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the worker's code begins in this executable.
#[derive(Debug, Clone, Copy)]
pub enum EntryPoint<'a> {
    /// The `#[test]` with exactly this name. It must return at once if [`Parent::connect`] finds no parent,
    /// as in an ordinary test run.
    Test(&'a str),
    /// `main`, which must call [`Parent::connect`] first.
    Main,
}

/// An operation that the child reported as acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// A number that the worker chose.
    pub number: u64,
    /// The rest of the line.
    pub detail: String,
}

/// Why there is no acknowledgment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckError {
    /// None came in time; the child may still run.
    TimedOut,
    /// The child has ended or closed its socket.
    Ended,
}

/// A child that has ended.
#[derive(Debug)]
pub struct FinishedChild {
    /// All acknowledgments, in order.
    pub acks: Vec<Ack>,
    /// The exit status.
    pub status: ExitStatus,
    /// The end of the child's output.
    pub output: String,
}

/// A running worker, as the parent sees it.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    pidfd: OwnedFd,
    socket: UnixStream,
    received: Receiver<Ack>,
    acks: Vec<Ack>,
    output: File,
}

impl Child {
    /// Runs this executable again with the given role.
    pub fn spawn(entry: EntryPoint<'_>, role: &str, arguments: &[&str]) -> io::Result<Child> {
        let (socket, theirs) = UnixStream::pair()?;
        let output = tempfile::tempfile()?;
        let mut command = Command::new(std::env::current_exe()?);
        if let EntryPoint::Test(name) = entry {
            command.args([name, "--exact", "--nocapture", "--test-threads=1"]);
        }
        let process = command
            .env(ROLE, role)
            .env(ARGUMENTS, arguments.join(SEPARATOR))
            .env(PARENT, std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        let (send_line, received) = sync_channel(MAX_UNREAD);
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        let child = Child { process, pidfd, socket, received, acks: Vec::new(), output };
        let reader = BufReader::new(child.socket.try_clone()?);
        std::thread::Builder::new()
            .name("acks".to_owned())
            .spawn(move || receive_acks(reader, &send_line))?;
        Ok(child)
    }

    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line, for [`Parent::receive_line`].
    pub fn send_line(&mut self, line: &str) -> io::Result<()> {
        send(&self.socket, line)
    }

    /// Returns all acknowledgments read so far.
    pub fn acks(&self) -> &[Ack] {
        &self.acks
    }

    /// Waits for the next acknowledgment.
    pub fn next_ack(&mut self, timeout: Duration) -> Result<Ack, AckError> {
        let ack = self.received.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => AckError::TimedOut,
            RecvTimeoutError::Disconnected => AckError::Ended,
        })?;
        self.acks.push(ack.clone());
        Ok(ack)
    }

    /// Waits until `count` acknowledgments were read in total.
    pub fn wait_acks(&mut self, count: usize, timeout: Duration) -> Result<(), AckError> {
        let deadline = Instant::now() + timeout;
        while self.acks.len() < count {
            self.next_ack(deadline.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    }

    /// Waits up to `timeout` for the child to end. Then kills it, which the status shows.
    pub fn finish(mut self, timeout: Duration) -> io::Result<FinishedChild> {
        let deadline = Instant::now() + timeout;
        // Keep reading, else a child with many acknowledgments would wait for its parent.
        while self.next_ack(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        wait(&self.pidfd, deadline)?;
        self.kill()
    }

    /// Kills the child with `SIGKILL` and reads its remaining acknowledgments.
    pub fn kill(mut self) -> io::Result<FinishedChild> {
        let status = self.reap()?;
        let deadline = Instant::now() + KILL_TIMEOUT;
        while self.next_ack(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        let output = self.output()?;
        Ok(FinishedChild { acks: std::mem::take(&mut self.acks), status, output })
    }

    /// Returns the end of the child's output so far.
    pub fn output(&self) -> io::Result<String> {
        let len = self.output.metadata()?.len();
        let kept = len.min(MAX_OUTPUT);
        let mut tail = vec![0; kept as usize];
        self.output.read_exact_at(&mut tail, len - kept)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    fn reap(&mut self) -> io::Result<ExitStatus> {
        // The child may have ended already, so ignore the error.
        let _ = self.process.kill();
        if !wait(&self.pidfd, Instant::now() + KILL_TIMEOUT)? {
            let message = format!("process {} does not die", self.process.id());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        self.process.wait()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Err(error) = self.reap() {
            eprintln!("a child was left behind: {error}");
        }
    }
}

/// Waits for a process to end. Returns false if it did not end in time.
fn wait(pidfd: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Forwards acknowledgments until the child's socket is closed. Ignores incomplete lines.
fn receive_acks(mut reader: BufReader<UnixStream>, send_line: &SyncSender<Ack>) {
    while let Ok(Some(line)) = receive(&mut reader) {
        let Some((number, detail)) =
            line.strip_prefix("ack ").map(|ack| ack.split_once(' ').unwrap_or((ack, "")))
        else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        if send_line.send(Ack { number, detail: detail.to_owned() }).is_err() {
            return;
        }
    }
}

fn send(mut socket: &UnixStream, line: &str) -> io::Result<()> {
    if line.contains('\n') || line.len() as u64 >= MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a line"));
    }
    // Write with one call, so that lines of several threads do not mix.
    socket.write_all(format!("{line}\n").as_bytes())
}

fn receive(reader: &mut BufReader<UnixStream>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok(line.strip_suffix(b"\n").map(|line| String::from_utf8_lossy(line).into_owned()))
}

/// The parent, as the worker sees it.
#[derive(Debug)]
pub struct Parent {
    role: String,
    arguments: Vec<String>,
    socket: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Parent {
    /// Connects to the parent if [`Child::spawn`] started this process; `None` in an ordinary run.
    pub fn connect() -> io::Result<Option<Parent>> {
        let Ok(role) = std::env::var(ROLE) else { return Ok(None) };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above; then the kernel will not kill this process.
        let parent = std::env::var(PARENT).ok().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        if rustix::process::getppid() != parent {
            return Err(io::Error::other("the parent is gone"));
        }
        let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
        let arguments = match arguments.as_str() {
            "" => Vec::new(),
            joined => joined.split(SEPARATOR).map(str::to_owned).collect(),
        };
        let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let reader = BufReader::new(socket.try_clone()?);
        Ok(Some(Parent { role, arguments, socket, reader }))
    }

    /// Returns the role of this worker.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Returns the arguments given to [`Child::spawn`].
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Reports an acknowledged operation. Threads may share this.
    pub fn ack(&self, number: u64, detail: &str) -> io::Result<()> {
        send(&self.socket, &format!("ack {number} {detail}"))
    }

    /// Waits for a line from [`Child::send_line`]; `None` when the parent has closed its socket.
    pub fn receive_line(&mut self) -> io::Result<Option<String>> {
        receive(&mut self.reader)
    }
}
