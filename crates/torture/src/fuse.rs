//! [`Disk`] as a FUSE file system. Each call of the kernel is one call of the model.
//!
//! An [`Adapter`] belongs to one boot. After a power cut it answers `EIO` to everything, as long as any
//! process keeps a file of that boot open. The next boot is a new mount with a new adapter.
//!
//! Files are opened with direct I/O, so that every read and write reaches the model and a flipped bit is
//! visible at once. Names and attributes change only through this mount, so the kernel may cache them. The
//! kernel implements locks. Not supported: links, symbolic links, shared `mmap` (refused), and `sync` and
//! `syncfs`, which FUSE does not forward and which therefore make nothing durable.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::content::{PAGE, SECTOR};
use crate::disk::{Allocate, Attributes, Disk, ListingEntry};

/// How long the kernel may cache names and attributes, which change only through this mount.
const TTL: Duration = Duration::from_secs(3600);
/// Maximum bytes of a write that the kernel forwards.
const MAX_WRITE: u32 = 1 << 20;
/// Maximum length of a name.
const MAX_NAME: u32 = 255;
/// Lets the kernel run concurrent writes to one file.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

/// How often a held sync checks whether it may continue.
const HELD_SYNC_POLL: Duration = Duration::from_millis(5);

/// Serves one boot of the disk.
pub(crate) struct Adapter {
    disk: Arc<Mutex<Disk>>,
    boot: u64,
    /// The listing of each open directory, so that deleting while listing skips no entry.
    listings: Mutex<HashMap<u64, Vec<ListingEntry>>>,
    next_listing: AtomicU64,
}

impl Adapter {
    pub(crate) fn new(disk: Arc<Mutex<Disk>>) -> Adapter {
        let boot = disk.lock().boot_number();
        Adapter { disk, boot, listings: Mutex::default(), next_listing: AtomicU64::new(0) }
    }

    fn disk(&self) -> Result<MutexGuard<'_, Disk>, Errno> {
        let disk = self.disk.lock();
        if disk.serves(self.boot) { Ok(disk) } else { Err(Errno::IO) }
    }

    fn set_attributes(&self, ino: u64, mode: Option<u32>, size: Option<u64>) -> Result<Attributes, Errno> {
        let mut disk = self.disk()?;
        if let Some(mode) = mode {
            disk.set_mode(ino, mode)?;
        }
        if let Some(size) = size {
            disk.set_len(ino, size)?;
        }
        disk.attributes(ino)
    }

    fn write(&self, ino: u64, offset: u64, bytes: &[u8], at_once: bool) -> Result<usize, Errno> {
        let mut disk = self.disk()?;
        let written = disk.write(ino, offset, bytes)?;
        if at_once {
            disk.sync(ino)?;
        }
        Ok(written)
    }

    fn allocate(&self, ino: u64, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let how = match FallocateFlags::from_bits_retain(mode as u32) {
            flags if flags.is_empty() => Allocate::Grow,
            FallocateFlags::KEEP_SIZE => Allocate::KeepSize,
            flags if flags == punch => Allocate::PunchHole,
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.disk()?.allocate(ino, offset..offset + length, how)
    }
}

fn stat(attributes: Attributes) -> FileAttr {
    let Attributes { ino, directory, size, pages, mode, links, changed } = attributes;
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(changed);
    FileAttr {
        ino: INodeNo(ino),
        size,
        blocks: pages * (PAGE / SECTOR),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: kind(directory),
        perm: mode as u16,
        nlink: links as u32,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: PAGE as u32,
        flags: 0,
    }
}

fn kind(directory: bool) -> FileType {
    if directory { FileType::Directory } else { FileType::RegularFile }
}

fn fuse_errno(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// Answers a request that returns nothing.
fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.entry(&TTL, &stat(attributes), Generation(0)),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

fn answer_attr(reply: ReplyAttr, result: Result<Attributes, Errno>) {
    match result {
        Ok(attributes) => reply.attr(&TTL, &stat(attributes)),
        Err(errno) => reply.error(fuse_errno(errno)),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without the writeback cache and remote locks, writes arrive at once and locks stay in the kernel.
        config
            .set_max_write(MAX_WRITE)
            .map_err(|most| io::Error::other(format!("FUSE takes at most {most} bytes a write")))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        answer_entry(reply, self.disk().and_then(|mut disk| disk.lookup(parent.0, name)));
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        if let Ok(mut disk) = self.disk() {
            disk.forget(ino.0, lookups);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(reply, self.disk().and_then(|disk| disk.attributes(ino.0)));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        answer_attr(reply, self.set_attributes(ino.0, mode, size));
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        answer_entry(reply, self.disk().and_then(|mut disk| disk.create(parent.0, name, mode, true)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.disk().and_then(|mut disk| disk.remove(parent.0, name, false)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.disk().and_then(|mut disk| disk.remove(parent.0, name, true)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !RenameFlags::RENAME_NOREPLACE.contains(flags) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        answer(reply, self.disk().and_then(|mut disk| disk.rename(from, to, flags.is_empty())));
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.disk().and_then(|mut disk| disk.create(parent.0, name, mode, false)) {
            Ok(attributes) => {
                reply.created(&TTL, &stat(attributes), Generation(0), FileHandle(0), OPEN_FLAGS);
            }
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().and_then(|mut disk| disk.open(ino.0)) {
            Ok(()) => reply.opened(FileHandle(0), OPEN_FLAGS),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.disk().and_then(|mut disk| disk.read(ino.0, offset..offset + u64::from(size))) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let at_once = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::DSYNC);
        match self.write(ino.0, offset, bytes, at_once) {
            Ok(written) => reply.written(written as u32),
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Ok(mut disk) = self.disk() {
            disk.release(ino.0);
        }
        reply.ok();
    }

    /// Answers the `flush` that the kernel sends at every `close`. Makes nothing durable.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(reply, self.disk().map(|_| ()));
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if self.disk().is_ok_and(|mut disk| disk.is_sync_held(ino.0)) {
            let held = Self::new(self.disk.clone());
            std::thread::spawn(move || {
                while held.disk().is_ok_and(|mut disk| disk.is_sync_held(ino.0)) {
                    std::thread::sleep(HELD_SYNC_POLL);
                }
                answer(reply, held.disk().and_then(|mut disk| disk.sync(ino.0)));
            });
            return;
        }
        answer(reply, self.disk().and_then(|mut disk| disk.sync(ino.0)));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer(reply, self.disk().and_then(|mut disk| disk.sync(ino.0)));
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.allocate(ino.0, offset, length, mode));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk() {
            Ok(_) => {
                let handle = self.next_listing.fetch_add(1, Ordering::Relaxed);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut listings = self.listings.lock();
        if offset == 0 {
            match self.disk().and_then(|disk| disk.list(ino.0)) {
                Ok(listing) => listings.insert(handle.0, listing),
                Err(errno) => return reply.error(fuse_errno(errno)),
            };
        }
        let listing = listings.get(&handle.0).map_or(&[][..], Vec::as_slice);
        for (at, (ino, directory, name)) in listing.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*ino), at as u64 + 1, kind(*directory), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.lock().remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.disk().map(|disk| disk.space()) {
            Ok((used, capacity)) => {
                let free = capacity.saturating_sub(used) / PAGE;
                reply.statfs(capacity / PAGE, free, free, 0, 0, PAGE as u32, MAX_NAME, PAGE as u32);
            }
            Err(errno) => reply.error(fuse_errno(errno)),
        }
    }
}
