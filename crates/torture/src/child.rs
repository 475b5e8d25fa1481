//! Workers in processes of their own, to be killed at any moment.
//!
//! [`Child::spawn`] runs this very executable again with a role in its environment. The worker's code calls
//! [`Parent::connect`] first, does its work, and says [`Parent::ack`] after each operation was acknowledged
//! to it and before it starts the next. What the child had said before it was killed is never lost: it is in
//! the socket, not in a buffer of the child.
//!
//! The two talk in lines over a socket pair that is the child's standard input; its standard output and
//! error go to a file for failure messages. A child dies with the thread that spawned it: it is killed when
//! its [`Child`] is dropped, and by the kernel if the parent had no time for that. No call waits for ever.

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
/// Stands between arguments in the environment. ASCII has had a character for this since 1963.
const SEPARATOR: &str = "\x1f";
/// Longest line either side accepts.
const MAX_LINE: u64 = 64 << 10;
/// Acknowledgements that wait for the parent; then the child waits.
const MAX_UNREAD: usize = 1 << 16;
/// How much of the child's output is kept for messages.
const MAX_OUTPUT: u64 = 64 << 10;
/// A killed process is gone within this time, or something is very wrong.
const DYING: Duration = Duration::from_secs(10);

/// Where the worker's code is in this executable.
#[derive(Debug, Clone, Copy)]
pub enum Entry<'a> {
    /// The `#[test]` with exactly this name. It has to return at once if [`Parent::connect`] finds no parent,
    /// as it does in an ordinary test run.
    Test(&'a str),
    /// `main`, which has to call [`Parent::connect`] first.
    Main,
}

/// An operation the child had acknowledged to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ack {
    /// The worker's own number for it.
    pub number: u64,
    /// The rest of the line.
    pub detail: String,
}

/// Why no acknowledgement came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Not in time; the child may still run.
    TimedOut,
    /// The child has ended, or closed its side.
    Ended,
}

/// A child that is no more.
#[derive(Debug)]
pub struct Ended {
    /// Everything it acknowledged, in order.
    pub acks: Vec<Ack>,
    /// How it ended.
    pub status: ExitStatus,
    /// The end of what it printed.
    pub output: String,
}

/// A running worker, seen from the parent.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    pidfd: OwnedFd,
    socket: UnixStream,
    heard: Receiver<Ack>,
    acks: Vec<Ack>,
    output: File,
}

impl Child {
    /// Starts this executable again in the given role.
    pub fn spawn(entry: Entry<'_>, role: &str, arguments: &[&str]) -> io::Result<Child> {
        let (socket, theirs) = UnixStream::pair()?;
        let output = tempfile::tempfile()?;
        let mut command = Command::new(std::env::current_exe()?);
        if let Entry::Test(name) = entry {
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
        let (say, heard) = sync_channel(MAX_UNREAD);
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&process), PidfdFlags::empty())?;
        let child = Child { process, pidfd, socket, heard, acks: Vec::new(), output };
        let reader = BufReader::new(child.socket.try_clone()?);
        std::thread::Builder::new().name("acks".to_owned()).spawn(move || listen(reader, &say))?;
        Ok(child)
    }

    /// The child's process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line, for [`Parent::hear`].
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        send(&self.socket, line)
    }

    /// Everything acknowledged and read so far.
    pub fn acks(&self) -> &[Ack] {
        &self.acks
    }

    /// Waits for the next acknowledgement.
    pub fn next_ack(&mut self, timeout: Duration) -> Result<Ack, Silence> {
        let ack = self.heard.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::TimedOut,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })?;
        self.acks.push(ack.clone());
        Ok(ack)
    }

    /// Waits until `count` acknowledgements were read in all.
    pub fn wait_acks(&mut self, count: usize, timeout: Duration) -> Result<(), Silence> {
        let deadline = Instant::now() + timeout;
        while self.acks.len() < count {
            self.next_ack(deadline.saturating_duration_since(Instant::now()))?;
        }
        Ok(())
    }

    /// Waits for the child to end by itself, at most this long. Then it is killed, which the status shows.
    pub fn finish(mut self, timeout: Duration) -> io::Result<Ended> {
        let deadline = Instant::now() + timeout;
        // Reading on, or a child with much to say would wait for us.
        while self.next_ack(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        wait(&self.pidfd, deadline)?;
        self.kill()
    }

    /// Kills the child with `SIGKILL` and reads what it had still said.
    pub fn kill(mut self) -> io::Result<Ended> {
        let status = self.reap()?;
        let deadline = Instant::now() + DYING;
        while self.next_ack(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        let output = self.output()?;
        Ok(Ended { acks: std::mem::take(&mut self.acks), status, output })
    }

    /// The end of what the child printed so far.
    pub fn output(&self) -> io::Result<String> {
        let len = self.output.metadata()?.len();
        let kept = len.min(MAX_OUTPUT);
        let mut tail = vec![0; kept as usize];
        self.output.read_exact_at(&mut tail, len - kept)?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    fn reap(&mut self) -> io::Result<ExitStatus> {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.process.kill();
        if !wait(&self.pidfd, Instant::now() + DYING)? {
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

/// Waits for a process to end; false if it did not in time.
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

/// Passes acknowledgements on until the child's side is closed. Half a line is no acknowledgement.
fn listen(mut reader: BufReader<UnixStream>, say: &SyncSender<Ack>) {
    while let Ok(Some(line)) = receive(&mut reader) {
        let Some((number, detail)) =
            line.strip_prefix("ack ").map(|ack| ack.split_once(' ').unwrap_or((ack, "")))
        else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        if say.send(Ack { number, detail: detail.to_owned() }).is_err() {
            return;
        }
    }
}

fn send(mut socket: &UnixStream, line: &str) -> io::Result<()> {
    if line.contains('\n') || line.len() as u64 >= MAX_LINE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a line"));
    }
    // One call, so that lines of several threads do not mix.
    socket.write_all(format!("{line}\n").as_bytes())
}

fn receive(reader: &mut BufReader<UnixStream>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    Ok(line.strip_suffix(b"\n").map(|line| String::from_utf8_lossy(line).into_owned()))
}

/// The parent, seen from the worker.
#[derive(Debug)]
pub struct Parent {
    role: String,
    arguments: Vec<String>,
    socket: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Parent {
    /// Finds the parent if this process was started by [`Child::spawn`]; `None` in an ordinary run.
    pub fn connect() -> io::Result<Option<Parent>> {
        let Ok(role) = std::env::var(ROLE) else { return Ok(None) };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above; then nobody will kill us.
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

    /// What this worker is to do.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// The arguments given to [`Child::spawn`].
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Says that an operation was acknowledged. Threads may share this.
    pub fn ack(&self, number: u64, detail: &str) -> io::Result<()> {
        send(&self.socket, &format!("ack {number} {detail}"))
    }

    /// Waits for a line from [`Child::say`]; `None` when the parent has closed its side.
    pub fn hear(&mut self) -> io::Result<Option<String>> {
        receive(&mut self.reader)
    }
}
