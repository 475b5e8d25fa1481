//! [`LossyFs`]: mounts the lossy disk and holds its switches.
//!
//! Unmounted when dropped, also while a test panics, and lazily: a process that still holds files open keeps
//! nothing of ours busy. A mount that a killed test left behind at the same path is cleared first.
//!
//! Do not use the mount from the process that serves it while that process may be killed: the kernel waits
//! for an answer that cannot come, and the process cannot die. Let workers be [`crate::child`] processes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use fuser::{BackgroundSession, Config, MountOption, Session};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use tempfile::TempDir;

use crate::content::Loss;
use crate::disk::{Disk, Flipped};
use crate::fault::{Fault, FaultId, On};
use crate::fuse::Adapter;
use crate::trace::{Counters, Operation};
use crate::tree::Mode;

/// The name in `/proc/mounts`.
const NAME: &str = "lazuli-lossy";

/// A mounted file system on a disk that loses power.
pub struct LossyFs {
    path: PathBuf,
    disk: Arc<Mutex<Disk>>,
    session: Mutex<Option<BackgroundSession>>,
    /// Declared last: removed after the unmount.
    _temporary: Option<TempDir>,
}

impl LossyFs {
    /// Mounts a fresh, empty disk on an existing directory.
    pub fn mount(path: impl Into<PathBuf>) -> io::Result<LossyFs> {
        LossyFs::mount_on(path.into(), None)
    }

    /// Mounts a fresh, empty disk on a directory of its own, which goes away with it.
    pub fn mount_temporary() -> io::Result<LossyFs> {
        let temporary = tempfile::Builder::new().prefix("lazuli-lossy-").tempdir()?;
        LossyFs::mount_on(temporary.path().to_owned(), Some(temporary))
    }

    fn mount_on(path: PathBuf, temporary: Option<TempDir>) -> io::Result<LossyFs> {
        let disk = Arc::new(Mutex::new(Disk::new()));
        let session = Mutex::new(Some(serve(&path, &disk)?));
        Ok(LossyFs { path, disk, session, _temporary: temporary })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts the power now. Afterwards everything on this mount fails with `EIO` until [`LossyFs::boot`].
    /// If a planned cut came first, the loss of that one.
    pub fn cut(&self, mode: Mode, seed: u64) -> Loss {
        self.disk.lock().cut(mode, seed)
    }

    /// Cuts the power at a changing operation (write, truncate, sync, create, rename, …) from now: after
    /// `operations` more of them. Whether that operation itself still reaches the disk is up to the seed; it
    /// fails with `EIO` in any case. Replaces an earlier plan.
    pub fn plan_cut(&self, operations: u64, mode: Mode, seed: u64) {
        self.disk.lock().plan_cut(operations, mode, seed);
    }

    /// The loss, if the power is off.
    pub fn is_cut(&self) -> Option<Loss> {
        self.disk.lock().loss()
    }

    /// Gives power back after a cut and mounts what survived, at the same path. Whoever still has files of
    /// the last boot open gets `EIO` for ever.
    pub fn boot(&self) -> io::Result<()> {
        let mut session = self.session.lock();
        if self.is_cut().is_none() {
            return Err(io::Error::other("the power is on"));
        }
        unmount(&self.path, session.take());
        self.disk.lock().start();
        *session = Some(serve(&self.path, &self.disk)?);
        Ok(())
    }

    /// Switches a fault on. It survives power cuts.
    pub fn fault(&self, fault: Fault) -> FaultId {
        self.disk.lock().faults.add(fault)
    }

    /// Switches one fault off.
    pub fn heal(&self, fault: FaultId) {
        self.disk.lock().faults.remove(fault);
    }

    /// Switches all faults off.
    pub fn heal_all(&self) {
        self.disk.lock().faults.clear();
    }

    /// How often a fault struck since it was switched on.
    pub fn struck(&self, fault: FaultId) -> u64 {
        self.disk.lock().faults.struck(fault)
    }

    /// Lets the kernel write back one random dirty page of a file, unasked, at about one in `one_in` writes
    /// to it, so that a later cut can also leave versions in between. 0, the start, is never.
    pub fn write_back(&self, one_in: u32, seed: u64) {
        self.disk.lock().write_back(one_in, seed);
    }

    /// Limits the space; 8 GiB to begin with. A write that only partly fits is short, the next is `ENOSPC`.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().set_capacity(bytes);
    }

    /// Bytes that files take now, in whole pages of 4 KiB.
    pub fn used(&self) -> u64 {
        self.disk.lock().space().0
    }

    /// Flips one durable bit of the file at `path` (from the root of the disk). `ENXIO` if nothing durable is
    /// there.
    pub fn flip(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        Ok(self.disk.lock().flip(path, offset, bit)?)
    }

    /// Flips a random durable bit in a random durable page of the matching files, if there is one.
    pub fn flip_any(&self, on: &On, seed: u64) -> Option<Flipped> {
        self.disk.lock().flip_any(on, seed)
    }

    /// What was done to the matching paths since the disk was made.
    pub fn counters(&self, on: &On) -> Counters {
        self.disk.lock().trace.counters(on)
    }

    /// The last 200 operations that changed or should have changed something, oldest first.
    pub fn operations(&self) -> Vec<Operation> {
        self.disk.lock().trace.last()
    }

    /// [`LossyFs::operations`] as text for a failure message.
    pub fn report(&self) -> String {
        let lines: Vec<String> = self.operations().iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

impl Drop for LossyFs {
    fn drop(&mut self) {
        unmount(&self.path, self.session.lock().take());
    }
}

fn serve(path: &Path, disk: &Arc<Mutex<Disk>>) -> io::Result<BackgroundSession> {
    // The daemon of an earlier mount here is gone, the mount is not.
    if rustix::fs::stat(path).is_err_and(|errno| errno == Errno::NOTCONN) {
        unmount(path, None);
    }
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName(NAME.to_owned()), MountOption::NoAtime];
    Session::new(Adapter::new(disk.clone()), path, &config).and_then(Session::spawn).map_err(|error| {
        let hint = "FUSE needs /dev/fuse, and root or the fusermount3 of package fuse3";
        io::Error::new(error.kind(), format!("cannot mount on {}: {error} ({hint})", path.display()))
    })
}

/// Takes the mount out of the tree at once; the session ends by itself when the last open file is closed.
fn unmount(path: &Path, session: Option<BackgroundSession>) {
    // Not permitted without root: then dropping the session does it, by fusermount3.
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    drop(session);
}

/// Whether this machine can mount FUSE file systems; tried once, by doing it.
pub fn available() -> Result<(), String> {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    TRIED
        .get_or_init(|| match LossyFs::mount_temporary() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        })
        .clone()
}

/// For the first line of a test: false, after saying so, if it has to be skipped for want of FUSE.
///
/// # Panics
/// If FUSE is missing where it must not be: in CI (`CI=true`).
pub fn require() -> bool {
    match available() {
        Ok(()) => true,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "no FUSE in CI: {why}");
            eprintln!("skipped: {why}");
            false
        }
    }
}
