//! The names on the lossy disk: inodes, directories, and which directory operations are durable.
//!
//! Every directory has current entries and durable entries. An operation changes the current ones and is
//! added to `pending`. Syncing a directory makes that directory's part of the pending operations durable, in
//! order. So a rename between two directories is durable only after both were synced. If only one was synced,
//! the file can have two names or none after a cut. That is stricter than ext4 or XFS, which log both sides
//! together, and is all that POSIX guarantees.
//!
//! An inode exists as long as anything refers to it: a current or durable entry, a pending operation, or the
//! kernel (`lookups`). This module is pure like [`crate::content`]; [`crate::disk`] adds faults and power.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};

use rand::Rng;
use rustix::io::Errno;

use crate::content::{Content, Loss, TornWrite};

/// An inode number, which is never reused on one disk.
pub(crate) type Ino = u64;
/// The root directory, as FUSE numbers it.
pub(crate) const ROOT: Ino = 1;
/// Maximum depth of paths in reports.
const MAX_DEPTH: usize = 64;

/// How a power cut treats unsynced changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutMode {
    /// All unsynced changes are lost.
    Forget,
    /// Each page and each directory operation is kept or lost independently (operations on one name in
    /// order), and the last write is torn at a sector boundary.
    Tear,
}

#[derive(Debug, Default)]
pub(crate) struct Directory {
    current: BTreeMap<OsString, Ino>,
    durable: BTreeMap<OsString, Ino>,
}

#[derive(Debug)]
pub(crate) enum Node {
    File(Content),
    Directory(Directory),
}

#[derive(Debug)]
pub(crate) struct Inode {
    pub(crate) node: Node,
    /// Number of current names. A file without a name exists while it is open.
    pub(crate) links: u64,
    pub(crate) mode: u32,
    /// Time of the last change, in operations since the disk was created.
    pub(crate) changed: u64,
    /// Number of open handles.
    opens: u64,
    /// Number of references that the kernel holds.
    lookups: u64,
    /// The directory in which the inode was last linked, for its path in faults and reports.
    parent: Ino,
    name: OsString,
}

impl Inode {
    pub(crate) fn is_directory(&self) -> bool {
        matches!(self.node, Node::Directory(_))
    }
}

/// A directory entry that was set or removed.
#[derive(Debug)]
struct Edit {
    directory: Ino,
    name: OsString,
    to: Option<Ino>,
    /// The inode to which the entry referred before.
    previous: Option<Ino>,
}

#[derive(Debug)]
pub(crate) struct FileTree {
    inodes: BTreeMap<Ino, Inode>,
    next: Ino,
    /// Operations with directories that are not synced yet, oldest first.
    pending: Vec<Vec<Edit>>,
    /// An entry was removed since the last sweep.
    may_have_orphans: bool,
}

impl FileTree {
    pub(crate) fn new() -> FileTree {
        let mut tree =
            FileTree { inodes: BTreeMap::new(), next: ROOT, pending: Vec::new(), may_have_orphans: false };
        let root = tree.add(Node::Directory(Directory::default()), 0o755);
        debug_assert_eq!(root, ROOT);
        tree
    }

    fn add(&mut self, node: Node, mode: u32) -> Ino {
        let ino = self.next;
        self.next += 1;
        let inode = Inode {
            node,
            links: 0,
            mode,
            changed: 0,
            opens: 0,
            lookups: 0,
            parent: ROOT,
            name: OsString::new(),
        };
        self.inodes.insert(ino, inode);
        ino
    }

    pub(crate) fn inode(&self, ino: Ino) -> Result<&Inode, Errno> {
        self.inodes.get(&ino).ok_or(Errno::NOENT)
    }

    pub(crate) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Errno> {
        self.inodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    pub(crate) fn file(&self, ino: Ino) -> Result<&Content, Errno> {
        match &self.inode(ino)?.node {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Errno::ISDIR),
        }
    }

    pub(crate) fn file_mut(&mut self, ino: Ino) -> Result<&mut Content, Errno> {
        match &mut self.inode_mut(ino)?.node {
            Node::File(content) => Ok(content),
            Node::Directory(_) => Err(Errno::ISDIR),
        }
    }

    fn directory(&self, ino: Ino) -> Result<&Directory, Errno> {
        match &self.inode(ino)?.node {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => Err(Errno::NOTDIR),
        }
    }

    /// Returns every file, in inode order.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Ino, &Content)> {
        self.inodes.iter().filter_map(|(ino, inode)| match &inode.node {
            Node::File(content) => Some((*ino, content)),
            Node::Directory(_) => None,
        })
    }

    /// Returns the path from the root of the disk, beginning with `/`.
    pub(crate) fn path(&self, ino: Ino) -> String {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT && names.len() < MAX_DEPTH {
            let Some(inode) = self.inodes.get(&at) else { break };
            names.push(inode.name.to_string_lossy());
            at = inode.parent;
        }
        let mut path = String::new();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        if path.is_empty() { "/".to_owned() } else { path }
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Ino, Errno> {
        self.directory(parent)?.current.get(name).copied().ok_or(Errno::NOENT)
    }

    /// Returns the current entries in name order.
    pub(crate) fn entries(&self, ino: Ino) -> Result<impl Iterator<Item = (&OsString, Ino)>, Errno> {
        Ok(self.directory(ino)?.current.iter().map(|(name, ino)| (name, *ino)))
    }

    pub(crate) fn parent(&self, ino: Ino) -> Ino {
        self.inodes.get(&ino).map_or(ROOT, |inode| inode.parent)
    }

    /// Adds a reference of the kernel.
    pub(crate) fn remember(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups += 1;
        }
    }

    /// Drops references of the kernel.
    pub(crate) fn forget(&mut self, ino: Ino, lookups: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.lookups = inode.lookups.saturating_sub(lookups);
        }
    }

    pub(crate) fn open(&mut self, ino: Ino) -> Result<(), Errno> {
        self.inode_mut(ino)?.opens += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.opens = inode.opens.saturating_sub(1);
        }
    }

    /// Returns the number of pages allocated by all files that have a name or are open.
    pub(crate) fn allocated(&self) -> u64 {
        let pages = |inode: &Inode| match &inode.node {
            Node::File(content) if inode.links + inode.opens > 0 => content.allocated(),
            _ => 0,
        };
        self.inodes.values().map(pages).sum()
    }

    pub(crate) fn create(&mut self, parent: Ino, name: &OsStr, node: Node, mode: u32) -> Result<Ino, Errno> {
        if self.directory(parent)?.current.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let ino = self.add(node, mode);
        self.apply(vec![edit(parent, name, Some(ino))]);
        Ok(ino)
    }

    /// Removes a file (`unlink`) or a directory (`rmdir`).
    pub(crate) fn remove(&mut self, parent: Ino, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let ino = self.lookup(parent, name)?;
        self.check_removable(ino, directory)?;
        self.apply(vec![edit(parent, name, None)]);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        (from, name): (Ino, &OsStr),
        (to, new_name): (Ino, &OsStr),
        replace: bool,
    ) -> Result<(), Errno> {
        let ino = self.lookup(from, name)?;
        match self.lookup(to, new_name) {
            Ok(_) if !replace => return Err(Errno::EXIST),
            Ok(same) if same == ino => return Ok(()),
            Ok(victim) => self.check_removable(victim, self.inode(ino)?.is_directory())?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        self.apply(vec![edit(from, name, None), edit(to, new_name, Some(ino))]);
        Ok(())
    }

    fn check_removable(&self, ino: Ino, directory: bool) -> Result<(), Errno> {
        match (&self.inode(ino)?.node, directory) {
            (Node::File(_), true) => Err(Errno::NOTDIR),
            (Node::Directory(_), false) => Err(Errno::ISDIR),
            (Node::Directory(victim), true) if !victim.current.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Changes the current entries and adds the operation to the pending ones.
    fn apply(&mut self, mut operation: Vec<Edit>) {
        for Edit { directory, name, to, previous } in &mut operation {
            let Some(Inode { node: Node::Directory(entries), .. }) = self.inodes.get_mut(directory) else {
                continue;
            };
            *previous = match to {
                Some(ino) => entries.current.insert(name.clone(), *ino),
                None => entries.current.remove(name),
            };
            if let Some(inode) = previous.and_then(|previous| self.inodes.get_mut(&previous)) {
                inode.links = inode.links.saturating_sub(1);
                self.may_have_orphans = true;
            }
            if let Some(inode) = to.and_then(|ino| self.inodes.get_mut(&ino)) {
                inode.links += 1;
                (inode.parent, inode.name) = (*directory, name.clone());
            }
        }
        self.pending.push(operation);
    }

    /// Makes the entries of one directory durable.
    pub(crate) fn sync_directory(&mut self, ino: Ino) -> Result<(), Errno> {
        self.directory(ino)?;
        for edit in self.take_pending(ino) {
            self.make_durable(edit);
        }
        if std::mem::take(&mut self.may_have_orphans) {
            self.sweep();
        }
        Ok(())
    }

    /// Fails a sync of a directory: its pending changes stay visible, but no later sync makes them durable.
    pub(crate) fn fail_sync_directory(&mut self, ino: Ino) {
        self.take_pending(ino);
    }

    fn take_pending(&mut self, directory: Ino) -> Vec<Edit> {
        let mut taken = Vec::new();
        for operation in &mut self.pending {
            taken.extend(operation.extract_if(.., |edit| edit.directory == directory));
        }
        self.pending.retain(|operation| !operation.is_empty());
        taken
    }

    fn make_durable(&mut self, Edit { directory, name, to, .. }: Edit) {
        if let Some(Inode { node: Node::Directory(entries), .. }) = self.inodes.get_mut(&directory) {
            match to {
                Some(ino) => entries.durable.insert(name, ino),
                None => entries.durable.remove(&name),
            };
        }
    }

    /// Cuts the power and reboots: the current entries are then the durable ones, and the kernel has no
    /// references.
    pub(crate) fn cut(&mut self, mode: CutMode, torn: Option<(Ino, TornWrite)>, rng: &mut impl Rng) -> Loss {
        let mut loss = Loss::default();
        // An operation is lost by chance, or because it depends on a lost one: on the same name, or by
        // removing a directory that the lost one would have emptied.
        let mut lost: BTreeSet<(Ino, OsString)> = BTreeSet::new();
        for operation in std::mem::take(&mut self.pending) {
            let builds_on_lost = operation.iter().any(|edit| {
                lost.contains(&(edit.directory, edit.name.clone()))
                    || lost.iter().any(|(directory, _)| Some(*directory) == edit.previous)
            });
            if mode == CutMode::Tear && rng.random() && !builds_on_lost {
                loss.entries_kept += 1;
                operation.into_iter().for_each(|edit| self.make_durable(edit));
            } else {
                loss.entries_lost += 1;
                lost.extend(operation.into_iter().map(|edit| (edit.directory, edit.name)));
            }
        }
        for (ino, inode) in &mut self.inodes {
            (inode.links, inode.opens, inode.lookups) = (0, 0, 0);
            let of_file = match &mut inode.node {
                Node::Directory(directory) => {
                    directory.current = directory.durable.clone();
                    continue;
                }
                Node::File(content) if mode == CutMode::Forget => content.forget(),
                Node::File(content) => {
                    let torn = torn.as_ref().filter(|(torn_ino, _)| torn_ino == ino);
                    content.tear(torn.map(|(_, torn)| torn), rng)
                }
            };
            loss.pages_kept += of_file.pages_kept;
            loss.pages_lost += of_file.pages_lost;
        }
        self.sweep();
        self.relink();
        loss
    }

    /// Removes unreferenced inodes.
    fn sweep(&mut self) {
        let mut alive = BTreeSet::new();
        let mut found = vec![ROOT];
        found.extend(self.inodes.iter().filter(|(_, inode)| inode.lookups > 0).map(|(ino, _)| *ino));
        found.extend(self.pending.iter().flatten().filter_map(|edit| edit.to));
        while let Some(ino) = found.pop() {
            if alive.insert(ino)
                && let Ok(directory) = self.directory(ino)
            {
                found.extend(directory.current.values().chain(directory.durable.values()));
            }
        }
        self.inodes.retain(|ino, _| alive.contains(ino));
    }

    /// Rebuilds names, parents and link counts from the entries.
    fn relink(&mut self) {
        let links: Vec<(Ino, OsString, Ino)> = self
            .inodes
            .iter()
            .filter_map(|(ino, inode)| match &inode.node {
                Node::Directory(directory) => Some((ino, directory)),
                Node::File(_) => None,
            })
            .flat_map(|(parent, directory)| {
                directory.current.iter().map(|(name, ino)| (*parent, name.clone(), *ino))
            })
            .collect();
        for (parent, name, ino) in links {
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.links += 1;
                (inode.parent, inode.name) = (parent, name);
            }
        }
    }
}

fn edit(directory: Ino, name: &OsStr, to: Option<Ino>) -> Edit {
    Edit { directory, name: name.to_owned(), to, previous: None }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    fn file(tree: &mut FileTree, parent: Ino, name: &str) -> Ino {
        tree.create(parent, OsStr::new(name), Node::File(Content::default()), 0o644).unwrap()
    }

    #[test]
    fn an_inode_is_freed_when_nothing_refers_to_it() {
        let mut tree = FileTree::new();
        let ino = file(&mut tree, ROOT, "f");
        tree.remember(ino);
        tree.sync_directory(ROOT).unwrap();
        tree.remove(ROOT, OsStr::new("f"), false).unwrap();
        assert!(tree.inode(ino).is_ok(), "durable still");
        tree.sync_directory(ROOT).unwrap();
        assert!(tree.inode(ino).is_ok(), "the kernel still knows it");
        tree.forget(ino, 1);
        file(&mut tree, ROOT, "g");
        tree.remove(ROOT, OsStr::new("g"), false).unwrap();
        tree.sync_directory(ROOT).unwrap();
        assert!(tree.inode(ino).is_err());
        assert_eq!(tree.inodes.len(), 1, "only the root is left");
    }

    #[test]
    fn a_file_moved_out_of_a_directory_that_is_then_removed_is_never_lost() {
        for seed in 0..64 {
            let mut tree = FileTree::new();
            let directory = Node::Directory(Directory::default());
            let d = tree.create(ROOT, OsStr::new("d"), directory, 0o755).unwrap();
            let f = file(&mut tree, d, "f");
            tree.sync_directory(ROOT).unwrap();
            tree.sync_directory(d).unwrap();
            tree.rename((d, OsStr::new("f")), (ROOT, OsStr::new("f")), true).unwrap();
            tree.remove(ROOT, OsStr::new("d"), true).unwrap();
            tree.cut(CutMode::Tear, None, &mut StdRng::seed_from_u64(seed));
            assert!(["/f", "/d/f"].contains(&tree.path(f).as_str()), "seed {seed}: {}", tree.path(f));
            assert_eq!(tree.inode(f).map(|inode| inode.links), Ok(1), "seed {seed}");
        }
    }

    #[test]
    fn paths_follow_renames_of_the_directories_above() {
        let mut tree = FileTree::new();
        let directory = Node::Directory(Directory::default());
        let d = tree.create(ROOT, OsStr::new("d"), directory, 0o755).unwrap();
        let f = file(&mut tree, d, "f");
        assert_eq!((tree.path(ROOT), tree.path(f)), ("/".to_owned(), "/d/f".to_owned()));
        tree.rename((ROOT, OsStr::new("d")), (ROOT, OsStr::new("e")), true).unwrap();
        assert_eq!(tree.path(f), "/e/f");
    }
}
