//! A disk that loses power, reports false success and fails: the model behind the FUSE file system.
//!
//! [`Disk`] adds a tester's switches to [`FileTree`] and [`crate::content`]: faults, capacity, a power cut
//! now or at the n-th operation, and a trace of the operations. Every changing operation goes through
//! [`Disk::operate`], where a planned cut takes effect. The caller serializes access; there are no threads,
//! no clock and no I/O.
//!
//! Permissions, owners and times are not modeled: modes are stored, times count operations, the rest is
//! constant. None of these is lost in a cut.

use std::ffi::{OsStr, OsString};
use std::ops::Range;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rustix::io::Errno;

use crate::content::{Content, Loss, PAGE, TornWrite};
use crate::fault::{FaultKind, Faults, PathFilter};
use crate::trace::Trace;
use crate::tree::{CutMode, Directory, FileTree, Ino, Node, ROOT};

/// Capacity of a new disk in bytes.
const DEFAULT_CAPACITY: u64 = 8 << 30;

/// The attributes that `stat` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) ino: Ino,
    pub(crate) directory: bool,
    pub(crate) size: u64,
    pub(crate) pages: u64,
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) changed: u64,
}

/// An entry of a directory listing.
pub(crate) type ListingEntry = (Ino, bool, OsString);

/// The supported forms of `fallocate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allocate {
    Grow,
    KeepSize,
    PunchHole,
}

/// A bit that was flipped on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flipped {
    /// The file, from the root of the disk.
    pub path: String,
    /// The offset of the byte.
    pub offset: u64,
    /// The bit in the byte, 0 to 7.
    pub bit: u8,
}

#[derive(Debug, Clone, Copy)]
enum Power {
    PathFilter,
    Off(Loss),
}

/// A power cut at a later operation.
#[derive(Debug)]
struct PlannedCut {
    operations_left: u64,
    mode: CutMode,
    rng: StdRng,
    /// Whether the operation at which the cut happens still reaches the disk. It is not acknowledged in
    /// either case.
    applied: bool,
}

/// The lossy disk, see the module.
#[derive(Debug)]
pub(crate) struct Disk {
    tree: FileTree,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    power: Power,
    boot: u64,
    /// The last write, which a tearing cut tears while the write is unsynced.
    last_write: Option<(Ino, Range<u64>)>,
    plan: Option<PlannedCut>,
    write_back: Option<(u32, StdRng)>,
    /// Capacity in pages.
    capacity: u64,
    /// Pages that can be allocated without counting again: a lower bound.
    known_free: u64,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        Disk {
            tree: FileTree::new(),
            faults: Faults::default(),
            trace: Trace::default(),
            power: Power::PathFilter,
            boot: 0,
            last_write: None,
            plan: None,
            write_back: None,
            capacity: DEFAULT_CAPACITY / PAGE,
            known_free: 0,
        }
    }
}

/// Power, and planned cuts.
impl Disk {
    /// Returns the number of the current boot.
    pub(crate) fn boot_number(&self) -> u64 {
        self.boot
    }

    /// Returns whether a mount of this boot still works.
    pub(crate) fn serves(&self, boot: u64) -> bool {
        matches!(self.power, Power::PathFilter) && self.boot == boot
    }

    /// Returns the loss of the cut, while the power is off.
    pub(crate) fn loss(&self) -> Option<Loss> {
        match self.power {
            Power::PathFilter => None,
            Power::Off(loss) => Some(loss),
        }
    }

    /// Cuts the power. If the power is off already, returns the loss of that cut.
    pub(crate) fn cut(&mut self, mode: CutMode, seed: u64) -> Loss {
        match self.power {
            Power::PathFilter => self.cut_with(mode, &mut StdRng::seed_from_u64(seed)),
            Power::Off(loss) => loss,
        }
    }

    fn cut_with(&mut self, mode: CutMode, rng: &mut StdRng) -> Loss {
        let torn = match (mode, self.last_write.take()) {
            (CutMode::Tear, Some((ino, range))) => TornWrite::pick(range, rng).map(|torn| (ino, torn)),
            _ => None,
        };
        let detail = format!("{mode:?}");
        let loss = self.tree.cut(mode, torn, rng);
        self.trace.record("power cut", "/".to_owned(), format!("{detail} {loss:?}"), Ok(()));
        self.power = Power::Off(loss);
        self.plan = None;
        self.known_free = 0;
        loss
    }

    /// Restores the power. Mounts of earlier boots stay dead. Faults stay enabled.
    pub(crate) fn start(&mut self) {
        self.power = Power::PathFilter;
        self.boot += 1;
        self.trace.record("boot", "/".to_owned(), String::new(), Ok(()));
    }

    /// Plans a power cut after `operations` more changing operations, at the next one.
    pub(crate) fn plan_cut(&mut self, operations: u64, mode: CutMode, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let applied = rng.random();
        self.plan = Some(PlannedCut { operations_left: operations, mode, rng, applied });
    }

    /// Makes the kernel write back a random dirty page at one in `one_in` writes to a file; 0 means never.
    pub(crate) fn write_back(&mut self, one_in: u32, seed: u64) {
        self.write_back = (one_in > 0).then(|| (one_in, StdRng::seed_from_u64(seed)));
    }

    /// Runs and records one changing operation, and cuts the power if the cut is due.
    fn operate<T>(
        &mut self,
        name: &'static str,
        path: String,
        detail: String,
        act: impl FnOnce(&mut Disk, &str) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let due = match &mut self.plan {
            Some(plan) if plan.operations_left == 0 => self.plan.take(),
            Some(plan) => {
                plan.operations_left -= 1;
                None
            }
            None => None,
        };
        let Some(PlannedCut { mode, mut rng, applied, .. }) = due else {
            let result = act(self, &path);
            self.trace.record(name, path, detail, result.as_ref().map(|_| ()).map_err(|errno| *errno));
            return result;
        };
        if applied {
            // The outcome is lost with the power.
            let _ = act(self, &path);
        }
        self.trace.record(name, path, detail, Err(Errno::IO));
        self.cut_with(mode, &mut rng);
        Err(Errno::IO)
    }
}

/// Capacity.
impl Disk {
    pub(crate) fn set_capacity(&mut self, bytes: u64) {
        self.capacity = bytes / PAGE;
        self.known_free = 0;
    }

    /// Returns the used bytes and the capacity in bytes.
    pub(crate) fn space(&self) -> (u64, u64) {
        (self.tree.allocated() * PAGE, self.capacity * PAGE)
    }

    /// Reserves pages for a change of `range`. Returns where the free space ends within `range`, or the end
    /// of `range`.
    fn reserve(&mut self, ino: Ino, range: Range<u64>) -> Result<u64, Errno> {
        let needed = self.tree.file(ino)?.unallocated(range.clone()).count() as u64;
        if needed > self.known_free {
            self.known_free = self.capacity.saturating_sub(self.tree.allocated());
        }
        if needed <= self.known_free {
            self.known_free -= needed;
            return Ok(range.end);
        }
        let first_without = self.tree.file(ino)?.unallocated(range).nth(self.known_free as usize);
        self.known_free = 0;
        first_without.map(|page| page * PAGE).ok_or(Errno::NOSPC)
    }
}

/// Content of files, and syncs.
impl Disk {
    pub(crate) fn read(&mut self, ino: Ino, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        let path = self.tree.path(ino);
        if self.faults.strikes(FaultKind::ReadError, &path, false) {
            self.trace.record("read", path, format!("{range:?}"), Err(Errno::IO));
            return Err(Errno::IO);
        }
        Ok(self.tree.file(ino)?.read(range))
    }

    /// Stores the bytes, or as many of them as faults and capacity allow; at least one.
    pub(crate) fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let detail = format!("{} bytes at {offset}", bytes.len());
        self.operate("write", self.tree.path(ino), detail, |disk, path| {
            if disk.faults.strikes(FaultKind::WriteError, path, false) {
                return Err(Errno::IO);
            }
            let mut len = bytes.len();
            if disk.faults.strikes(FaultKind::ShortWrite, path, false) {
                len = len.div_ceil(2);
            }
            let end = disk.reserve(ino, offset..offset + len as u64)?;
            if end <= offset {
                return Err(Errno::NOSPC);
            }
            let bytes = &bytes[..(end - offset) as usize];
            let content = disk.changing(ino)?;
            content.write(offset, bytes);
            disk.last_write = Some((ino, offset..end));
            disk.trace.count(path, false, |counters| {
                counters.writes += 1;
                counters.bytes_written += bytes.len() as u64;
            });
            if let Some((one_in, rng)) = &mut disk.write_back
                && rng.random_ratio(1, *one_in)
            {
                disk.tree.file_mut(ino)?.write_back_one(rng);
            }
            Ok(bytes.len())
        })
    }

    pub(crate) fn set_len(&mut self, ino: Ino, size: u64) -> Result<(), Errno> {
        self.operate("set_len", self.tree.path(ino), format!("to {size}"), |disk, _| {
            disk.changing(ino)?.set_len(size);
            Ok(())
        })
    }

    pub(crate) fn allocate(&mut self, ino: Ino, range: Range<u64>, how: Allocate) -> Result<(), Errno> {
        self.operate("fallocate", self.tree.path(ino), format!("{how:?} {range:?}"), |disk, _| {
            if how == Allocate::PunchHole {
                disk.changing(ino)?.punch(range);
                return Ok(());
            }
            if (range.end - range.start) / PAGE > disk.capacity
                || disk.reserve(ino, range.clone())? < range.end
            {
                return Err(Errno::NOSPC);
            }
            disk.changing(ino)?.allocate(range, how == Allocate::KeepSize);
            Ok(())
        })
    }

    fn changing(&mut self, ino: Ino) -> Result<&mut Content, Errno> {
        self.tree.inode_mut(ino)?.changed = self.trace.operations();
        self.tree.file_mut(ino)
    }

    /// Returns whether a sync has to wait now.
    pub(crate) fn is_sync_held(&mut self, ino: Ino) -> bool {
        let Ok(directory) = self.tree.inode(ino).map(|inode| inode.is_directory()) else { return false };
        let path = self.tree.path(ino);
        self.faults.strikes(FaultKind::HeldSync, &path, directory)
    }

    /// Syncs a file (`fsync` or `fdatasync`) or a directory (`fsync`).
    pub(crate) fn sync(&mut self, ino: Ino) -> Result<(), Errno> {
        let directory = self.tree.inode(ino)?.is_directory();
        let path = self.tree.path(ino);
        let fails = self.faults.strikes(FaultKind::SyncError, &path, directory);
        let lies = self.faults.strikes(FaultKind::LyingSync, &path, directory);
        let detail = if lies && !fails { "lied" } else { "" };
        self.trace.count(&path, directory, |counters| match directory {
            true => counters.directory_syncs += 1,
            false => counters.file_syncs += 1,
        });
        self.operate("sync", path, detail.to_owned(), |disk, _| {
            match (fails, lies, directory) {
                (true, _, true) => disk.tree.fail_sync_directory(ino),
                (true, _, false) => disk.tree.file_mut(ino)?.fail_sync(),
                (false, true, _) => return Ok(()),
                (false, false, true) => disk.tree.sync_directory(ino)?,
                (false, false, false) => disk.tree.file_mut(ino)?.sync(),
            }
            disk.last_write.take_if(|(last, _)| *last == ino);
            if fails { Err(Errno::IO) } else { Ok(()) }
        })
    }

    /// Flips one durable bit of a file.
    pub(crate) fn flip(&mut self, path: &str, offset: u64, bit: u8) -> Result<(), Errno> {
        let ino = self.find(path)?;
        let flipped = self.tree.file_mut(ino)?.flip(offset, bit);
        let outcome = if flipped { Ok(()) } else { Err(Errno::NXIO) };
        self.trace.record("flip", path.to_owned(), format!("bit {bit} of byte {offset}"), outcome);
        outcome
    }

    /// Flips a random durable bit in a random durable page of the matching files, if there is one.
    pub(crate) fn flip_any(&mut self, on: &PathFilter, seed: u64) -> Option<Flipped> {
        let mut rng = StdRng::seed_from_u64(seed);
        let pages: Vec<(Ino, u64)> = self
            .tree
            .files()
            .filter(|(ino, _)| on.matches(&self.tree.path(*ino), false))
            .flat_map(|(ino, content)| content.durable_pages().map(move |page| (ino, page)))
            .collect();
        let (ino, page) = *pages.choose(&mut rng)?;
        let inside = self.tree.file(ino).ok()?.durable_len(page);
        let offset = page * PAGE + rng.random_range(0..inside);
        let bit = rng.random_range(0..8);
        let path = self.tree.path(ino);
        self.flip(&path, offset, bit).ok()?;
        Some(Flipped { path, offset, bit })
    }

    fn find(&self, path: &str) -> Result<Ino, Errno> {
        path.split('/')
            .filter(|name| !name.is_empty())
            .try_fold(ROOT, |at, name| self.tree.lookup(at, OsStr::new(name)))
    }
}

/// Names, attributes, and the kernel's references.
impl Disk {
    pub(crate) fn attributes(&self, ino: Ino) -> Result<Attributes, Errno> {
        let inode = self.tree.inode(ino)?;
        let (size, pages) = match &inode.node {
            Node::File(content) => (content.size(), content.allocated()),
            Node::Directory(_) => (0, 0),
        };
        Ok(Attributes {
            ino,
            directory: inode.is_directory(),
            size,
            pages,
            mode: inode.mode,
            links: inode.links.max(u64::from(ino == ROOT)),
            changed: inode.changed,
        })
    }

    pub(crate) fn set_mode(&mut self, ino: Ino, mode: u32) -> Result<(), Errno> {
        self.tree.inode_mut(ino)?.mode = mode & 0o7777;
        Ok(())
    }

    /// Finds an entry for the kernel, which then holds a reference.
    pub(crate) fn lookup(&mut self, parent: Ino, name: &OsStr) -> Result<Attributes, Errno> {
        let ino = self.tree.lookup(parent, name)?;
        self.tree.remember(ino);
        self.attributes(ino)
    }

    /// Drops references of the kernel.
    pub(crate) fn forget(&mut self, ino: Ino, lookups: u64) {
        self.tree.forget(ino, lookups);
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Result<(), Errno> {
        self.tree.open(ino)
    }

    pub(crate) fn release(&mut self, ino: Ino) {
        self.tree.release(ino);
    }

    /// Creates a directory, or a file, which is then open. The kernel then holds a reference.
    pub(crate) fn create(
        &mut self,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        directory: bool,
    ) -> Result<Attributes, Errno> {
        let what = if directory { "mkdir" } else { "create" };
        self.operate(what, self.join(parent, name), String::new(), |disk, _| {
            let node = match directory {
                true => Node::Directory(Directory::default()),
                false => Node::File(Content::default()),
            };
            let ino = disk.tree.create(parent, name, node, mode & 0o7777)?;
            disk.tree.remember(ino);
            if !directory {
                disk.tree.open(ino)?;
            }
            disk.tree.inode_mut(ino)?.changed = disk.trace.operations();
            disk.attributes(ino)
        })
    }

    /// Implements `unlink` or `rmdir`.
    pub(crate) fn remove(&mut self, parent: Ino, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let what = if directory { "rmdir" } else { "unlink" };
        self.operate(what, self.join(parent, name), String::new(), |disk, _| {
            disk.tree.remove(parent, name, directory)
        })
    }

    pub(crate) fn rename(
        &mut self,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        replace: bool,
    ) -> Result<(), Errno> {
        let detail = format!("to {}", self.join(to.0, to.1));
        self.operate("rename", self.join(from.0, from.1), detail, |disk, _| {
            disk.tree.rename(from, to, replace)
        })
    }

    /// Returns all entries of a directory, `.` and `..` first.
    pub(crate) fn list(&self, ino: Ino) -> Result<Vec<ListingEntry>, Errno> {
        let mut listing =
            vec![(ino, true, OsString::from(".")), (self.tree.parent(ino), true, OsString::from(".."))];
        for (name, ino) in self.tree.entries(ino)? {
            listing.push((ino, self.tree.inode(ino)?.is_directory(), name.clone()));
        }
        Ok(listing)
    }

    fn join(&self, parent: Ino, name: &OsStr) -> String {
        let parent = self.tree.path(parent);
        format!("{}/{}", parent.trim_end_matches('/'), name.to_string_lossy())
    }
}
