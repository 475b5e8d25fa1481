//! [`LossyFs`]: mounts the lossy disk and controls its faults.
//!
//! The disk is unmounted on drop, also while a test panics. The unmount is lazy, so open files of other
//! processes do not block it. A mount that a killed test left at the same path is removed first.
//!
//! Do not use the mount from the process that serves it if that process may be killed: the kernel would wait
//! for a reply that cannot come, and the process could not die. Use [`crate::child`] processes as workers.

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
use crate::fault::{Fault, FaultId, PathFilter};
use crate::fuse::Adapter;
use crate::trace::{Counters, DiskOperation};
use crate::tree::CutMode;

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
    /// Mounts a new, empty disk on an existing directory.
    pub fn mount(path: impl Into<PathBuf>) -> io::Result<LossyFs> {
        LossyFs::mount_on(path.into(), None)
    }

    /// Mounts a new, empty disk on a temporary directory, which is removed with it.
    pub fn mount_temporary() -> io::Result<LossyFs> {
        let temporary = tempfile::Builder::new().prefix("lazuli-lossy-").tempdir()?;
        LossyFs::mount_on(temporary.path().to_owned(), Some(temporary))
    }

    fn mount_on(path: PathBuf, temporary: Option<TempDir>) -> io::Result<LossyFs> {
        let disk = Arc::new(Mutex::new(Disk::new()));
        let session = Mutex::new(Some(serve(&path, &disk)?));
        Ok(LossyFs { path, disk, session, _temporary: temporary })
    }

    /// Returns the path of the mount.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts the power now. Afterwards everything on this mount fails with `EIO` until [`LossyFs::boot`]. If a
    /// planned cut has happened already, returns the loss of that cut.
    pub fn cut(&self, mode: CutMode, seed: u64) -> Loss {
        self.disk.lock().cut(mode, seed)
    }

    /// Plans a power cut after `operations` more changing operations (write, truncate, sync, create, rename,
    /// …), at the next one. The seed decides whether that operation still reaches the disk; it fails with
    /// `EIO` in any case. Replaces an earlier plan.
    pub fn plan_cut(&self, operations: u64, mode: CutMode, seed: u64) {
        self.disk.lock().plan_cut(operations, mode, seed);
    }

    /// Returns the loss if the power is off.
    pub fn is_cut(&self) -> Option<Loss> {
        self.disk.lock().loss()
    }

    /// Restores the power after a cut and mounts the surviving files at the same path. Files that are still
    /// open since an earlier boot fail with `EIO` forever.
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

    /// Enables a fault. The fault survives power cuts.
    pub fn fault(&self, fault: Fault) -> FaultId {
        self.disk.lock().faults.add(fault)
    }

    /// Disables one fault.
    pub fn heal(&self, fault: FaultId) {
        self.disk.lock().faults.remove(fault);
    }

    /// Disables all faults.
    pub fn heal_all(&self) {
        self.disk.lock().faults.clear();
    }

    /// Returns how often a fault occurred since it was enabled.
    pub fn struck(&self, fault: FaultId) -> u64 {
        self.disk.lock().faults.struck(fault)
    }

    /// Lets the kernel write back one random dirty page of a file at about one in `one_in` writes to it, so
    /// that a later cut can also leave intermediate versions. 0, the default, means never.
    pub fn write_back(&self, one_in: u32, seed: u64) {
        self.disk.lock().write_back(one_in, seed);
    }

    /// Limits the capacity; the default is 8 GiB. A write that fits only partly is short, the next one fails
    /// with `ENOSPC`.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().set_capacity(bytes);
    }

    /// Returns the bytes that files use, in whole pages of 4 KiB.
    pub fn used(&self) -> u64 {
        self.disk.lock().space().0
    }

    /// Flips one durable bit of the file at `path` (from the root of the disk). Returns `ENXIO` if nothing
    /// durable is there.
    pub fn flip(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        Ok(self.disk.lock().flip(path, offset, bit)?)
    }

    /// Flips a random durable bit in a random durable page of the matching files, if there is one.
    pub fn flip_any(&self, on: &PathFilter, seed: u64) -> Option<Flipped> {
        self.disk.lock().flip_any(on, seed)
    }

    /// Returns counters of operations on the matching paths since the disk was created.
    pub fn counters(&self, on: &PathFilter) -> Counters {
        self.disk.lock().trace.counters(on)
    }

    /// Returns the last 200 changing operations, including failed ones, oldest first.
    pub fn operations(&self) -> Vec<DiskOperation> {
        self.disk.lock().trace.last()
    }

    /// Returns [`LossyFs::operations`] as text for a failure message.
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
    // The daemon of an earlier mount here has ended, but the mount still exists.
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

/// Detaches the mount at once. The session ends when the last open file is closed.
fn unmount(path: &Path, session: Option<BackgroundSession>) {
    // Fails without root privileges. Then dropping the session unmounts, using fusermount3.
    let _ = rustix::mount::unmount(path, UnmountFlags::DETACH);
    drop(session);
}

/// Returns whether this machine can mount FUSE file systems. Tries once.
pub fn available() -> Result<(), String> {
    static TRIED: OnceLock<Result<(), String>> = OnceLock::new();
    TRIED
        .get_or_init(|| match LossyFs::mount_temporary() {
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        })
        .clone()
}

/// Returns false, and prints the reason, if the test has to be skipped without FUSE. Call it first in a test.
///
/// # Panics
/// Panics if FUSE is missing in CI (`CI=true`).
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
