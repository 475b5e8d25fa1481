//! Change notifications: the directories that clients watch, and the changes in them.
//!
//! Commands report each change after it has happened: [`ChangeNotifier::notify_created`],
//! [`ChangeNotifier::notify_removed`], [`ChangeNotifier::notify_modified`],
//! [`ChangeNotifier::notify_renamed`]. A directory is watched from the first CHANGE_NOTIFY on a handle until
//! the handle is closed. While no request waits, changes are kept in a bounded buffer. Changes over REST are
//! not reported, as in the Azure service.
//!
//! Nothing in this module blocks. [`Watch::wait`] returns a receiver and has queued the request by then.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli_file::opens::OpenId;
use lazuli_file::{FileService, SpaceId, fold_name};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum number of events buffered for a handle. Beyond that, the client must list the directory again.
const MAX_EVENTS: usize = 1000;
/// Maximum number of bytes of events buffered for a handle.
const MAX_HANDLE_BYTES: usize = 64 << 10;
/// Maximum number of bytes of events buffered for all handles. Beyond that, a client whose handle gets an
/// event must list the directory again.
const MAX_ALL_BYTES: usize = 64 << 20;
/// Maximum number of requests that wait on one handle.
const MAX_WAITING_REQUESTS: usize = 256;

/// Kinds of changes (`CompletionFilter`).
pub(crate) mod filter {
    pub(crate) const FILE_NAME: u32 = 0x001;
    pub(crate) const DIR_NAME: u32 = 0x002;
    pub(crate) const ATTRIBUTES: u32 = 0x004;
    pub(crate) const SIZE: u32 = 0x008;
    pub(crate) const LAST_WRITE: u32 = 0x010;
    pub(crate) const LAST_ACCESS: u32 = 0x020;
    pub(crate) const CREATION: u32 = 0x040;
    pub(crate) const SECURITY: u32 = 0x100;
}

/// The kind of an event (`FILE_ACTION`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeAction {
    Added = 1,
    Removed = 2,
    Modified = 3,
    OldName = 4,
    NewName = 5,
}

/// One change, as reported to a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) action: ChangeAction,
    /// The path relative to the watched directory, with backslashes.
    pub(crate) name: String,
}

impl Event {
    /// Returns the event's size on the wire, without padding.
    pub(crate) fn size(&self) -> usize {
        12 + 2 * self.name.encode_utf16().count()
    }
}

/// The result for a waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotifyResult {
    /// The changes, oldest first.
    Events(Vec<Event>),
    /// More events than the buffer or the response can hold.
    Overflow,
    /// The directory is marked for deletion.
    Deleted,
}

/// All watches.
#[derive(Debug, Default)]
pub(crate) struct ChangeNotifier {
    watches: Mutex<HashMap<Directory, Vec<Arc<Mutex<WatchState>>>>>,
    /// Number of watches. Lets changes skip the map if there are none.
    count: AtomicUsize,
    /// Bytes of events buffered for all handles.
    buffered_bytes: Arc<AtomicUsize>,
}

/// Bytes of events buffered for one handle, also counted in the total.
#[derive(Debug)]
struct BufferedBytes {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl BufferedBytes {
    /// Adds to the buffered bytes. Returns false if the total is above its limit; the bytes are counted
    /// nevertheless.
    fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_ALL_BYTES
    }

    fn clear(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for BufferedBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A directory: its share and its folded path.
type Directory = (SpaceId, String);

/// The watch of one handle. Ends on drop.
#[derive(Debug)]
pub(crate) struct Watch {
    notifier: Arc<ChangeNotifier>,
    state: Arc<Mutex<WatchState>>,
}

#[derive(Debug)]
struct WatchState {
    directory: Directory,
    recursive: bool,
    filter: u32,
    /// Capacity of the buffer in bytes, from the output length of the first request.
    capacity: usize,
    events: Vec<Event>,
    buffered_bytes: BufferedBytes,
    overflowed: bool,
    waiting_requests: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    max_bytes: usize,
    sender: oneshot::Sender<NotifyResult>,
}

impl ChangeNotifier {
    /// Starts to watch a directory. Buffers up to `capacity` bytes of events while no request waits.
    pub(crate) fn watch(
        self: &Arc<Self>,
        space: SpaceId,
        path: &str,
        filter: u32,
        recursive: bool,
        capacity: usize,
    ) -> Watch {
        let directory = (space, fold_name(path));
        let state = Arc::new(Mutex::new(WatchState {
            directory: directory.clone(),
            recursive,
            filter,
            capacity: capacity.min(MAX_HANDLE_BYTES),
            events: vec![],
            buffered_bytes: BufferedBytes { bytes: 0, all: self.buffered_bytes.clone() },
            overflowed: false,
            waiting_requests: VecDeque::new(),
        }));
        self.watches.lock().entry(directory).or_default().push(state.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Watch { notifier: self.clone(), state }
    }

    /// Returns the number of watches.
    pub(crate) fn watches(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the bytes of events buffered for all handles.
    pub(crate) fn total_buffered_bytes(&self) -> usize {
        self.buffered_bytes.load(Ordering::Relaxed)
    }

    /// Reports that a file or directory was created.
    pub(crate) fn notify_created(&self, space: SpaceId, path: &str, is_directory: bool) {
        self.publish(space, path, name_filter(is_directory), &[(ChangeAction::Added, path)]);
    }

    /// Reports that a file or directory was deleted.
    pub(crate) fn notify_removed(&self, space: SpaceId, path: &str, is_directory: bool) {
        self.publish(space, path, name_filter(is_directory), &[(ChangeAction::Removed, path)]);
    }

    /// Reports that a file or directory was modified. `filter` says what has changed.
    pub(crate) fn notify_modified(&self, space: SpaceId, path: &str, filter: u32) {
        self.publish(space, path, filter, &[(ChangeAction::Modified, path)]);
    }

    /// Reports that an open file or directory was modified.
    pub(crate) fn notify_open_modified(&self, files: &FileService, file: OpenId, filter: u32) {
        if filter == 0 || self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(path) = files.path_of(file) {
            self.notify_modified(file.file.space, &path, filter);
        }
    }

    /// Reports that a file or directory was renamed. Watches of a renamed directory continue.
    pub(crate) fn notify_renamed(&self, space: SpaceId, from: &str, to: &str, is_directory: bool) {
        let filter = name_filter(is_directory);
        if fold_name(parent(from)) == fold_name(parent(to)) {
            self.publish(space, to, filter, &[(ChangeAction::OldName, from), (ChangeAction::NewName, to)]);
        } else {
            self.publish(space, from, filter, &[(ChangeAction::Removed, from)]);
            self.publish(space, to, filter, &[(ChangeAction::Added, to)]);
        }
        if is_directory {
            self.move_watches(space, &fold_name(from), &fold_name(to));
        } else {
            // Windows also reports these changes for a renamed file.
            self.notify_modified(space, to, filter::ATTRIBUTES | filter::CREATION);
        }
    }

    /// Completes the requests that wait for changes of a directory that was marked for deletion.
    pub(crate) fn notify_deleting(&self, space: SpaceId, path: &str) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watches = self.watches.lock();
        for watch in watches.get(&(space, fold_name(path))).into_iter().flatten() {
            let mut state = watch.lock();
            for waiting in std::mem::take(&mut state.waiting_requests) {
                let _ = waiting.sender.send(NotifyResult::Deleted);
            }
        }
    }

    /// Adds events to all watches of the parent directory, and to the recursive watches above it. All events
    /// reach a watch together.
    fn publish(&self, space: SpaceId, path: &str, filter: u32, events: &[(ChangeAction, &str)]) {
        if self.count.load(Ordering::SeqCst) == 0 || path.is_empty() {
            return;
        }
        let watches = self.watches.lock();
        let mut directory = parent(path);
        let mut is_direct = true;
        loop {
            for watch in watches.get(&(space, fold_name(directory))).into_iter().flatten() {
                let mut state = watch.lock();
                if state.filter & filter != 0 && (is_direct || state.recursive) {
                    let prefix_length = if directory.is_empty() { 0 } else { directory.len() + 1 };
                    state.record(events.iter().map(|(action, path)| Event {
                        action: *action,
                        name: path.get(prefix_length..).unwrap_or_default().replace('/', "\\"),
                    }));
                }
            }
            if directory.is_empty() {
                return;
            }
            (directory, is_direct) = (parent(directory), false);
        }
    }

    /// Moves the watches of a directory and of its subdirectories to the new path.
    fn move_watches(&self, space: SpaceId, from: &str, to: &str) {
        let mut watches = self.watches.lock();
        let below = format!("{from}/");
        let is_moved = |(of, path): &Directory| *of == space && (path == from || path.starts_with(&below));
        let moved: Vec<Directory> = watches.keys().filter(|directory| is_moved(directory)).cloned().collect();
        for old in moved {
            let new = (space, format!("{to}{}", &old.1[from.len()..]));
            let Some(states) = watches.remove(&old) else { continue };
            for state in &states {
                state.lock().directory = new.clone();
            }
            watches.entry(new).or_default().extend(states);
        }
    }
}

impl Watch {
    /// Queues a request that waits for events. Buffered events complete it at once. Returns `None` if too
    /// many requests wait on this handle.
    pub(crate) fn wait(&self, max_bytes: usize) -> Option<oneshot::Receiver<NotifyResult>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting_requests.retain(|waiting| !waiting.sender.is_closed());
        if state.waiting_requests.len() >= MAX_WAITING_REQUESTS {
            return None;
        }
        state.waiting_requests.push_back(WaitingRequest { max_bytes, sender });
        state.complete_requests();
        Some(receiver)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.notifier.watches.lock();
        let directory = self.state.lock().directory.clone();
        if let Some(states) = watches.get_mut(&directory) {
            states.retain(|state| !Arc::ptr_eq(state, &self.state));
            if states.is_empty() {
                watches.remove(&directory);
            }
        }
        self.notifier.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl WatchState {
    /// Buffers events, and completes a waiting request.
    fn record(&mut self, events: impl Iterator<Item = Event>) {
        for event in events {
            if self.overflowed || self.events.last() == Some(&event) {
                continue;
            }
            let fits = self.buffered_bytes.add(event.size().next_multiple_of(4));
            self.events.push(event);
            let is_full = self.events.len() > MAX_EVENTS
                || self.buffered_bytes.bytes > self.capacity.next_multiple_of(4);
            if is_full || !fits && self.waiting_requests.is_empty() {
                self.overflowed = true;
                self.events = vec![];
                self.buffered_bytes.clear();
            }
        }
        self.complete_requests();
    }

    fn complete_requests(&mut self) {
        while self.overflowed || !self.events.is_empty() {
            let Some(waiting) = self.waiting_requests.pop_front() else { return };
            if waiting.sender.is_closed() {
                continue;
            }
            let outcome =
                if self.overflowed || self.buffered_bytes.bytes > waiting.max_bytes.next_multiple_of(4) {
                    NotifyResult::Overflow
                } else {
                    NotifyResult::Events(std::mem::take(&mut self.events))
                };
            self.overflowed = false;
            self.events.clear();
            self.buffered_bytes.clear();
            let _ = waiting.sender.send(outcome);
        }
    }
}

fn name_filter(is_directory: bool) -> u32 {
    if is_directory { filter::DIR_NAME } else { filter::FILE_NAME }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceId = SpaceId(7);
    const NAMES: u32 = filter::FILE_NAME | filter::DIR_NAME;

    fn event(action: ChangeAction, name: &str) -> Event {
        Event { action, name: name.to_owned() }
    }

    /// Returns the result if there is one already.
    fn now(receiver: &mut oneshot::Receiver<NotifyResult>) -> Option<NotifyResult> {
        receiver.try_recv().ok()
    }

    fn buffered(watch: &Watch) -> Option<NotifyResult> {
        now(&mut watch.wait(1000).unwrap())
    }

    #[test]
    fn a_watch_reports_changes_in_subdirectories_only_if_recursive() {
        let notifier = Arc::new(ChangeNotifier::default());
        let flat = notifier.watch(SPACE, "Dir", NAMES, false, 1000);
        let deep = notifier.watch(SPACE, "dir", NAMES, true, 1000);
        let root = notifier.watch(SPACE, "", NAMES, true, 1000);
        let elsewhere = notifier.watch(SpaceId(8), "", NAMES, true, 1000);
        notifier.notify_created(SPACE, "dir/a", false);
        notifier.notify_created(SPACE, "dir/sub/b", true);
        notifier.notify_created(SPACE, "dir", true);
        let (a, b) = (event(ChangeAction::Added, "a"), event(ChangeAction::Added, "sub\\b"));
        assert_eq!(buffered(&flat), Some(NotifyResult::Events(vec![a.clone()])));
        assert_eq!(buffered(&deep), Some(NotifyResult::Events(vec![a, b])));
        let all = ["dir\\a", "dir\\sub\\b", "dir"].map(|name| event(ChangeAction::Added, name));
        assert_eq!(buffered(&root), Some(NotifyResult::Events(all.to_vec())));
        assert_eq!(buffered(&elsewhere), None);
    }

    #[test]
    fn only_changes_that_match_the_filter_are_reported() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "", filter::DIR_NAME | filter::SIZE, false, 1000);
        notifier.notify_created(SPACE, "file", false);
        notifier.notify_modified(SPACE, "file", filter::ATTRIBUTES);
        assert_eq!(buffered(&watch), None);
        notifier.notify_modified(SPACE, "file", filter::LAST_WRITE | filter::SIZE);
        notifier.notify_removed(SPACE, "dir", true);
        let events = vec![event(ChangeAction::Modified, "file"), event(ChangeAction::Removed, "dir")];
        assert_eq!(buffered(&watch), Some(NotifyResult::Events(events)));
    }

    #[test]
    fn a_rename_between_directories_is_reported_as_removal_and_addition() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "a", NAMES, true, 1000);
        let mut waiting_requests = watch.wait(1000).unwrap();
        notifier.notify_renamed(SPACE, "a/x", "a/y", false);
        let both = vec![event(ChangeAction::OldName, "x"), event(ChangeAction::NewName, "y")];
        assert_eq!(now(&mut waiting_requests), Some(NotifyResult::Events(both)));
        notifier.notify_renamed(SPACE, "a/y", "b/y", false);
        notifier.notify_renamed(SPACE, "b/y", "a/b/y", false);
        let two = vec![event(ChangeAction::Removed, "y"), event(ChangeAction::Added, "b\\y")];
        assert_eq!(buffered(&watch), Some(NotifyResult::Events(two)));
    }

    #[test]
    fn watches_continue_after_their_directory_is_renamed() {
        let notifier = Arc::new(ChangeNotifier::default());
        let (watch, below) = (
            notifier.watch(SPACE, "a", NAMES, false, 1000),
            notifier.watch(SPACE, "a/b", NAMES, false, 1000),
        );
        let other = notifier.watch(SPACE, "ab", NAMES, false, 1000);
        notifier.notify_renamed(SPACE, "a", "c", true);
        for path in ["c/1", "c/b/2", "a/3", "ab/4"] {
            notifier.notify_created(SPACE, path, false);
        }
        for (watch, name) in [(&watch, "1"), (&below, "2"), (&other, "4")] {
            assert_eq!(buffered(watch), Some(NotifyResult::Events(vec![event(ChangeAction::Added, name)])));
        }
        drop((watch, below, other));
        assert!(notifier.watches.lock().is_empty());
    }

    #[test]
    fn waiting_requests_complete_in_order_and_canceled_ones_are_skipped() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "", NAMES, false, 1000);
        drop(watch.wait(1000));
        let (mut first, mut second) = (watch.wait(1000).unwrap(), watch.wait(1000).unwrap());
        notifier.notify_created(SPACE, "1", false);
        assert_eq!(now(&mut first), Some(NotifyResult::Events(vec![event(ChangeAction::Added, "1")])));
        assert_eq!(now(&mut second), None);
        notifier.notify_created(SPACE, "2", false);
        assert_eq!(now(&mut second), Some(NotifyResult::Events(vec![event(ChangeAction::Added, "2")])));
    }

    #[test]
    fn repeated_changes_are_reported_once() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "", filter::SIZE | NAMES, false, 1000);
        notifier.notify_created(SPACE, "f", false);
        for _ in 0..3 {
            notifier.notify_modified(SPACE, "f", filter::SIZE);
        }
        let events = vec![event(ChangeAction::Added, "f"), event(ChangeAction::Modified, "f")];
        assert_eq!(buffered(&watch), Some(NotifyResult::Events(events)));
    }

    #[test]
    fn an_overflow_is_reported_once_and_then_events_are_buffered_again() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "", NAMES, false, 1000);
        for i in 0..100 {
            notifier.notify_created(SPACE, &format!("test{i}.txt"), false);
        }
        assert_eq!(buffered(&watch), Some(NotifyResult::Overflow));
        notifier.notify_created(SPACE, "one", false);
        assert_eq!(now(&mut watch.wait(4).unwrap()), Some(NotifyResult::Overflow));
        notifier.notify_created(SPACE, "two", false);
        assert_eq!(buffered(&watch), Some(NotifyResult::Events(vec![event(ChangeAction::Added, "two")])));
        let tiny = notifier.watch(SPACE, "", NAMES, false, 1);
        notifier.notify_created(SPACE, "three", false);
        assert_eq!(now(&mut tiny.wait(1 << 19).unwrap()), Some(NotifyResult::Overflow));
    }

    #[test]
    fn marking_the_directory_for_deletion_completes_waiting_requests() {
        let notifier = Arc::new(ChangeNotifier::default());
        let watch = notifier.watch(SPACE, "d", NAMES, false, 1000);
        let (mut first, mut second) = (watch.wait(1000).unwrap(), watch.wait(1000).unwrap());
        notifier.notify_deleting(SPACE, "other");
        assert_eq!(now(&mut first), None);
        notifier.notify_deleting(SPACE, "D");
        assert_eq!(
            (now(&mut first), now(&mut second)),
            (Some(NotifyResult::Deleted), Some(NotifyResult::Deleted))
        );
    }

    #[test]
    fn buffered_events_of_all_handles_are_bounded_and_counted() {
        let notifier = Arc::new(ChangeNotifier::default());
        let count = MAX_ALL_BYTES / MAX_HANDLE_BYTES + 100;
        let watches: Vec<_> =
            (0..count).map(|_| notifier.watch(SPACE, "", NAMES, false, MAX_HANDLE_BYTES)).collect();
        for number in 0..MAX_HANDLE_BYTES / 2100 {
            notifier.notify_created(SPACE, &format!("{number:02}{}", "x".repeat(1000)), false);
            assert!(notifier.total_buffered_bytes() <= MAX_ALL_BYTES);
        }
        let overflowed = watches.iter().filter(|watch| watch.state.lock().overflowed).count();
        assert!(overflowed > 0 && overflowed < count, "{overflowed}");
        drop(watches);
        assert_eq!(notifier.total_buffered_bytes(), 0);
    }
}
