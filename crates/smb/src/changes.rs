//! The hub of change notifications: who watches which directory, and what has happened below it.
//!
//! Whoever changes something over SMB says so here, once it has happened: [`Changes::created`], [`Changes::removed`],
//! [`Changes::modified`], [`Changes::renamed`]. A directory is watched from the first notification that is asked for on a
//! handle until the handle is closed; what happens while nobody waits is kept in a bounded buffer. Changes over REST are
//! not told, as the protocol has it.
//!
//! Nothing here waits. Whoever watches is handed a receiver, and is in the queue when [`Watch::wait`] returns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli_file::opens::OpenId;
use lazuli_file::{FileService, SpaceId, fold_name};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Events kept on a handle while no request waits for them. Beyond that, the client must list the directory again.
const MAX_EVENTS: usize = 1000;
/// Bytes of events that are kept for one handle.
const MAX_BYTES: usize = 64 << 10;
/// Bytes of events kept for all handles together. Beyond that, a client whose handle gets an event must list again.
const MAX_ALL_BYTES: usize = 64 << 20;
/// Requests that may wait on one handle.
const MAX_WAITING: usize = 256;

/// What kinds of changes a client wants to hear of.
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

/// What has happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Added = 1,
    Removed = 2,
    Modified = 3,
    OldName = 4,
    NewName = 5,
}

/// One change, as the watcher of a directory hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) action: Action,
    /// From the watched directory on, with backslashes.
    pub(crate) name: String,
}

impl Event {
    /// Bytes that it takes on the wire, without what pads it.
    pub(crate) fn size(&self) -> usize {
        12 + 2 * self.name.encode_utf16().count()
    }
}

/// What a watcher gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// What has happened.
    Events(Vec<Event>),
    /// More than could be kept, or than the client has room for.
    Overflow,
    /// The directory is marked for deletion.
    Deleted,
}

/// Everything that is watched.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    watches: Mutex<HashMap<Directory, Vec<Arc<Mutex<State>>>>>,
    /// How many there are, so that nobody looks for nothing.
    count: AtomicUsize,
    /// Bytes of events that are kept for all handles.
    kept: Arc<AtomicUsize>,
}

/// Bytes of events that are kept for one handle, and counted for all.
#[derive(Debug)]
struct Kept {
    bytes: usize,
    all: Arc<AtomicUsize>,
}

impl Kept {
    /// Keeps more. False if that is more than all handles may have; it is counted nevertheless.
    fn add(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_ALL_BYTES
    }

    fn clear(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A directory: its share, and its path folded for comparison.
type Directory = (SpaceId, String);

/// What one handle watches. The watch ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    hub: Arc<Changes>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    directory: Directory,
    recursive: bool,
    filter: u32,
    /// Bytes that the buffer may hold: as many as the first request had room for.
    capacity: usize,
    events: Vec<Event>,
    kept: Kept,
    overflowed: bool,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    room: usize,
    sender: oneshot::Sender<Outcome>,
}

impl Changes {
    /// Starts to watch a directory. `capacity`: bytes of events that are kept while nobody waits.
    pub(crate) fn watch(
        self: &Arc<Self>,
        space: SpaceId,
        path: &str,
        filter: u32,
        recursive: bool,
        capacity: usize,
    ) -> Watch {
        let directory = (space, fold_name(path));
        let state = Arc::new(Mutex::new(State {
            directory: directory.clone(),
            recursive,
            filter,
            capacity: capacity.min(MAX_BYTES),
            events: vec![],
            kept: Kept { bytes: 0, all: self.kept.clone() },
            overflowed: false,
            waiting: VecDeque::new(),
        }));
        self.watches.lock().entry(directory).or_default().push(state.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        Watch { hub: self.clone(), state }
    }

    /// Returns how many bytes of events are kept for all handles.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// A file or directory was made.
    pub(crate) fn created(&self, space: SpaceId, path: &str, is_directory: bool) {
        self.publish(space, path, name_filter(is_directory), &[(Action::Added, path)]);
    }

    /// A file or directory was deleted.
    pub(crate) fn removed(&self, space: SpaceId, path: &str, is_directory: bool) {
        self.publish(space, path, name_filter(is_directory), &[(Action::Removed, path)]);
    }

    /// Something about a file or directory has changed: which, as in [`filter`].
    pub(crate) fn modified(&self, space: SpaceId, path: &str, filter: u32) {
        self.publish(space, path, filter, &[(Action::Modified, path)]);
    }

    /// The same of something that is open.
    pub(crate) fn modified_open(&self, files: &FileService, file: OpenId, filter: u32) {
        if filter == 0 || self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(path) = files.path_of(file) {
            self.modified(file.file.space, &path, filter);
        }
    }

    /// A file or directory has another path. Those who watch it go on doing so.
    pub(crate) fn renamed(&self, space: SpaceId, from: &str, to: &str, is_directory: bool) {
        let filter = name_filter(is_directory);
        if fold_name(parent(from)) == fold_name(parent(to)) {
            self.publish(space, to, filter, &[(Action::OldName, from), (Action::NewName, to)]);
        } else {
            self.publish(space, from, filter, &[(Action::Removed, from)]);
            self.publish(space, to, filter, &[(Action::Added, to)]);
        }
        if is_directory {
            self.follow(space, &fold_name(from), &fold_name(to));
        } else {
            // Windows has always told this, too, of files.
            self.modified(space, to, filter::ATTRIBUTES | filter::CREATION);
        }
    }

    /// A directory was marked for deletion: nothing will happen in it any more.
    pub(crate) fn deleting(&self, space: SpaceId, path: &str) {
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let watches = self.watches.lock();
        for watch in watches.get(&(space, fold_name(path))).into_iter().flatten() {
            let mut state = watch.lock();
            for waiting in std::mem::take(&mut state.waiting) {
                let _ = waiting.sender.send(Outcome::Deleted);
            }
        }
    }

    /// Tells those who watch a directory above a path. The events reach each of them together.
    fn publish(&self, space: SpaceId, path: &str, filter: u32, events: &[(Action, &str)]) {
        if self.count.load(Ordering::SeqCst) == 0 || path.is_empty() {
            return;
        }
        let watches = self.watches.lock();
        let mut above = parent(path);
        let mut is_direct = true;
        loop {
            for watch in watches.get(&(space, fold_name(above))).into_iter().flatten() {
                let mut state = watch.lock();
                if state.filter & filter != 0 && (is_direct || state.recursive) {
                    let skip = if above.is_empty() { 0 } else { above.len() + 1 };
                    state.happen(events.iter().map(|(action, path)| Event {
                        action: *action,
                        name: path.get(skip..).unwrap_or_default().replace('/', "\\"),
                    }));
                }
            }
            if above.is_empty() {
                return;
            }
            (above, is_direct) = (parent(above), false);
        }
    }

    /// Moves those who watch a directory, or one below it, along with it.
    fn follow(&self, space: SpaceId, from: &str, to: &str) {
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
    /// Waits for something to happen, or for what has happened already. None: too many wait on this handle.
    pub(crate) fn wait(&self, room: usize) -> Option<oneshot::Receiver<Outcome>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting.retain(|waiting| !waiting.sender.is_closed());
        if state.waiting.len() >= MAX_WAITING {
            return None;
        }
        state.waiting.push_back(Waiting { room, sender });
        state.deliver();
        Some(receiver)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.hub.watches.lock();
        let directory = self.state.lock().directory.clone();
        if let Some(states) = watches.get_mut(&directory) {
            states.retain(|state| !Arc::ptr_eq(state, &self.state));
            if states.is_empty() {
                watches.remove(&directory);
            }
        }
        self.hub.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl State {
    /// Keeps events, and hands what is kept to who waits.
    fn happen(&mut self, events: impl Iterator<Item = Event>) {
        for event in events {
            if self.overflowed || self.events.last() == Some(&event) {
                continue;
            }
            let fits = self.kept.add(event.size().next_multiple_of(4));
            self.events.push(event);
            let is_full =
                self.events.len() > MAX_EVENTS || self.kept.bytes > self.capacity.next_multiple_of(4);
            if is_full || !fits && self.waiting.is_empty() {
                self.overflowed = true;
                self.events = vec![];
                self.kept.clear();
            }
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while self.overflowed || !self.events.is_empty() {
            let Some(waiting) = self.waiting.pop_front() else { return };
            if waiting.sender.is_closed() {
                continue;
            }
            let outcome = if self.overflowed || self.kept.bytes > waiting.room.next_multiple_of(4) {
                Outcome::Overflow
            } else {
                Outcome::Events(std::mem::take(&mut self.events))
            };
            self.overflowed = false;
            self.events.clear();
            self.kept.clear();
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

    fn event(action: Action, name: &str) -> Event {
        Event { action, name: name.to_owned() }
    }

    /// What has come by now.
    fn now(receiver: &mut oneshot::Receiver<Outcome>) -> Option<Outcome> {
        receiver.try_recv().ok()
    }

    fn buffered(watch: &Watch) -> Option<Outcome> {
        now(&mut watch.wait(1000).unwrap())
    }

    #[test]
    fn a_watch_hears_of_what_is_directly_in_its_directory_and_below_it_only_if_it_asks() {
        let hub = Arc::new(Changes::default());
        let flat = hub.watch(SPACE, "Dir", NAMES, false, 1000);
        let deep = hub.watch(SPACE, "dir", NAMES, true, 1000);
        let root = hub.watch(SPACE, "", NAMES, true, 1000);
        let elsewhere = hub.watch(SpaceId(8), "", NAMES, true, 1000);
        hub.created(SPACE, "dir/a", false);
        hub.created(SPACE, "dir/sub/b", true);
        hub.created(SPACE, "dir", true);
        let (a, b) = (event(Action::Added, "a"), event(Action::Added, "sub\\b"));
        assert_eq!(buffered(&flat), Some(Outcome::Events(vec![a.clone()])));
        assert_eq!(buffered(&deep), Some(Outcome::Events(vec![a, b])));
        let all = ["dir\\a", "dir\\sub\\b", "dir"].map(|name| event(Action::Added, name));
        assert_eq!(buffered(&root), Some(Outcome::Events(all.to_vec())));
        assert_eq!(buffered(&elsewhere), None);
    }

    #[test]
    fn only_what_the_filter_names_is_told() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "", filter::DIR_NAME | filter::SIZE, false, 1000);
        hub.created(SPACE, "file", false);
        hub.modified(SPACE, "file", filter::ATTRIBUTES);
        assert_eq!(buffered(&watch), None);
        hub.modified(SPACE, "file", filter::LAST_WRITE | filter::SIZE);
        hub.removed(SPACE, "dir", true);
        let told = vec![event(Action::Modified, "file"), event(Action::Removed, "dir")];
        assert_eq!(buffered(&watch), Some(Outcome::Events(told)));
    }

    #[test]
    fn a_rename_is_told_in_one_piece_within_a_directory_and_as_two_changes_between_two() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "a", NAMES, true, 1000);
        let mut waiting = watch.wait(1000).unwrap();
        hub.renamed(SPACE, "a/x", "a/y", false);
        let both = vec![event(Action::OldName, "x"), event(Action::NewName, "y")];
        assert_eq!(now(&mut waiting), Some(Outcome::Events(both)));
        hub.renamed(SPACE, "a/y", "b/y", false);
        hub.renamed(SPACE, "b/y", "a/b/y", false);
        let two = vec![event(Action::Removed, "y"), event(Action::Added, "b\\y")];
        assert_eq!(buffered(&watch), Some(Outcome::Events(two)));
    }

    #[test]
    fn who_watches_a_directory_goes_on_when_it_is_renamed() {
        let hub = Arc::new(Changes::default());
        let (watch, below) =
            (hub.watch(SPACE, "a", NAMES, false, 1000), hub.watch(SPACE, "a/b", NAMES, false, 1000));
        let other = hub.watch(SPACE, "ab", NAMES, false, 1000);
        hub.renamed(SPACE, "a", "c", true);
        for path in ["c/1", "c/b/2", "a/3", "ab/4"] {
            hub.created(SPACE, path, false);
        }
        for (watch, name) in [(&watch, "1"), (&below, "2"), (&other, "4")] {
            assert_eq!(buffered(watch), Some(Outcome::Events(vec![event(Action::Added, name)])));
        }
        drop((watch, below, other));
        assert!(hub.watches.lock().is_empty());
    }

    #[test]
    fn those_who_wait_are_served_one_after_the_other_and_who_went_away_is_passed_over() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "", NAMES, false, 1000);
        drop(watch.wait(1000));
        let (mut first, mut second) = (watch.wait(1000).unwrap(), watch.wait(1000).unwrap());
        hub.created(SPACE, "1", false);
        assert_eq!(now(&mut first), Some(Outcome::Events(vec![event(Action::Added, "1")])));
        assert_eq!(now(&mut second), None);
        hub.created(SPACE, "2", false);
        assert_eq!(now(&mut second), Some(Outcome::Events(vec![event(Action::Added, "2")])));
    }

    #[test]
    fn the_same_change_twice_in_a_row_is_told_once() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "", filter::SIZE | NAMES, false, 1000);
        hub.created(SPACE, "f", false);
        for _ in 0..3 {
            hub.modified(SPACE, "f", filter::SIZE);
        }
        let told = vec![event(Action::Added, "f"), event(Action::Modified, "f")];
        assert_eq!(buffered(&watch), Some(Outcome::Events(told)));
    }

    #[test]
    fn what_does_not_fit_makes_the_client_look_for_itself_and_then_starts_anew() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "", NAMES, false, 1000);
        for i in 0..100 {
            hub.created(SPACE, &format!("test{i}.txt"), false);
        }
        assert_eq!(buffered(&watch), Some(Outcome::Overflow));
        hub.created(SPACE, "one", false);
        assert_eq!(now(&mut watch.wait(4).unwrap()), Some(Outcome::Overflow));
        hub.created(SPACE, "two", false);
        assert_eq!(buffered(&watch), Some(Outcome::Events(vec![event(Action::Added, "two")])));
        let tiny = hub.watch(SPACE, "", NAMES, false, 1);
        hub.created(SPACE, "three", false);
        assert_eq!(now(&mut tiny.wait(1 << 19).unwrap()), Some(Outcome::Overflow));
    }

    #[test]
    fn a_deletion_ends_the_wait() {
        let hub = Arc::new(Changes::default());
        let watch = hub.watch(SPACE, "d", NAMES, false, 1000);
        let (mut first, mut second) = (watch.wait(1000).unwrap(), watch.wait(1000).unwrap());
        hub.deleting(SPACE, "other");
        assert_eq!(now(&mut first), None);
        hub.deleting(SPACE, "D");
        assert_eq!((now(&mut first), now(&mut second)), (Some(Outcome::Deleted), Some(Outcome::Deleted)));
    }

    #[test]
    fn events_that_are_kept_for_all_handles_are_bounded_and_counted() {
        let hub = Arc::new(Changes::default());
        let count = MAX_ALL_BYTES / MAX_BYTES + 100;
        let watches: Vec<_> = (0..count).map(|_| hub.watch(SPACE, "", NAMES, false, MAX_BYTES)).collect();
        for number in 0..MAX_BYTES / 2100 {
            hub.created(SPACE, &format!("{number:02}{}", "x".repeat(1000)), false);
            assert!(hub.kept_bytes() <= MAX_ALL_BYTES);
        }
        let overflowed = watches.iter().filter(|watch| watch.state.lock().overflowed).count();
        assert!(overflowed > 0 && overflowed < count, "{overflowed}");
        drop(watches);
        assert_eq!(hub.kept_bytes(), 0);
    }
}
