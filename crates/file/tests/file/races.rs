//! Many clients change one tree at once, and one client changes it at random, compared with a model. Every
//! node keeps one parent and one name, no directory is inside itself, and no node is lost or duplicated.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazuli_testing::{ACCOUNT, Reply};

use crate::support::{Server, make_directory, make_file, names, start, write};

const CLIENTS: u64 = 8;
const OPERATIONS: u64 = 60;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A sequence that is the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Returns a random path of one to three names.
    fn path(&mut self) -> String {
        let names: Vec<_> = (0..=self.below(3)).map(|_| NAMES[self.below(NAMES.len())]).collect();
        names.join("/")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Directory,
}

#[derive(Clone, Debug)]
enum Step {
    Create(Kind, String),
    Delete(Kind, String),
    Rename { kind: Kind, from: String, to: String, replace: bool },
}

impl Step {
    /// Returns a random step, on an existing path in half of the cases.
    fn random(dice: &mut Dice, replaces: bool, known: &Model) -> Self {
        let mut kind = if dice.below(2) == 0 { Kind::File } else { Kind::Directory };
        let mut path = dice.path();
        if !known.0.is_empty()
            && dice.below(2) == 0
            && let Some((there, (_, of))) = known.0.iter().nth(dice.below(known.0.len()))
        {
            (kind, path) = (*of, there.clone());
        }
        match dice.below(8) {
            0..3 => Self::Create(kind, path),
            3 => Self::Delete(kind, path),
            _ => {
                let replace = replaces && dice.below(2) == 0;
                Self::Rename { kind, from: path, to: dice.path(), replace }
            }
        }
    }

    async fn run(&self, server: &Server) -> Reply {
        let query = |kind| if kind == Kind::Directory { "restype=directory" } else { "" };
        match self {
            Self::Create(Kind::Directory, path) => {
                server.put(&format!("/docs/{path}?restype=directory"), "", "").await
            }
            Self::Create(Kind::File, path) => {
                let headers = "x-ms-type: file\nx-ms-content-length: 1";
                server.put(&format!("/docs/{path}"), headers, "").await
            }
            Self::Delete(kind, path) => server.delete(&format!("/docs/{path}?{}", query(*kind)), "").await,
            Self::Rename { kind, from, to, replace } => {
                let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
                let headers = format!(
                    "x-ms-file-rename-source: {source}\nx-ms-file-rename-replace-if-exists: {replace}"
                );
                server.put(&format!("/docs/{to}?{}&comp=rename", query(*kind)), &headers, "").await
            }
        }
    }
}

/// Returns all nodes of the share: id and kind by path. Fails if a node occurs twice or names another parent.
async fn tree(server: &Server) -> BTreeMap<String, (String, Kind)> {
    let (mut found, mut ids, mut ahead) =
        (BTreeMap::new(), HashSet::new(), vec![(String::new(), "0".to_owned())]);
    while let Some((path, directory)) = ahead.pop() {
        let target = format!("/docs/{path}?restype=directory&comp=list");
        let listed = server.get(&target, "").await.expect(200);
        let text = listed.text();
        assert!(
            text.contains(&format!("<DirectoryId>{directory}</DirectoryId>")),
            "{path} is not {directory}"
        );
        for entry in text.split("<FileId>").skip(1) {
            let (id, rest) = entry.split_once("</FileId><Name>").unwrap();
            let (name, _) = rest.split_once("</Name>").unwrap();
            let path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let is_directory = server.get(&format!("/docs/{path}?restype=directory"), "").await;
            let kind = if is_directory.status == 200 { Kind::Directory } else { Kind::File };
            let head = match kind {
                Kind::Directory => is_directory,
                Kind::File => server.call("HEAD", &format!("/docs/{path}"), "", "").await.expect(200),
            };
            assert_eq!(head.header("x-ms-file-id"), Some(id), "{path}");
            assert_eq!(head.header("x-ms-file-parent-id"), Some(directory.as_str()), "{path}");
            assert!(ids.insert(id.to_owned()), "{path} occurs twice");
            if kind == Kind::Directory {
                ahead.push((path.clone(), id.to_owned()));
            }
            found.insert(path, (id.to_owned(), kind));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_creates_renames_and_deletes_lose_and_duplicate_no_node() {
    let server = Arc::new(start().await);
    let clients = (0..CLIENTS).map(|client| {
        let server = server.clone();
        tokio::spawn(async move {
            let (mut made, mut deleted) = (HashSet::new(), 0);
            let mut dice = Dice(client);
            for _ in 0..OPERATIONS {
                let step = Step::random(&mut dice, false, &Model::default());
                let reply = step.run(&server).await;
                let status = reply.status.as_u16();
                assert!(matches!(status, 200 | 201 | 202 | 404 | 409), "{step:?}: {reply:?}");
                match step {
                    Step::Create(..) if status == 201 => {
                        made.insert(reply.header("x-ms-file-id").unwrap().to_owned());
                    }
                    Step::Delete(..) if status == 202 => deleted += 1,
                    _ => {}
                }
            }
            (made, deleted)
        })
    });
    let (mut made, mut deleted) = (HashSet::new(), 0);
    for client in clients.collect::<Vec<_>>() {
        let (more_made, more_deleted) = client.await.unwrap();
        made.extend(more_made);
        deleted += more_deleted;
    }
    let found = tree(&server).await;
    assert!(found.values().all(|(id, _)| made.contains(id)), "a node exists that no client created");
    assert_eq!(found.len(), made.len() - deleted, "made {}, deleted {deleted}", made.len());
    // No operation was left unfinished: all nodes can be deleted, from the leaves up.
    for (path, (_, kind)) in found.iter().rev() {
        Step::Delete(*kind, path.clone()).run(&server).await.expect(202);
    }
    assert!(names(&server, "").await.is_empty());
}

/// The expected share: kinds and ids by path.
#[derive(Default)]
struct Model(BTreeMap<String, (String, Kind)>);

impl Model {
    fn kind(&self, path: &str) -> Option<Kind> {
        self.0.get(path).map(|(_, kind)| *kind)
    }

    fn has_parent(&self, path: &str) -> bool {
        path.rsplit_once('/').is_none_or(|(parent, _)| self.kind(parent) == Some(Kind::Directory))
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a String> {
        let prefix = format!("{path}/");
        self.0.keys().filter(move |key| key.starts_with(&prefix))
    }

    /// Applies a step to the model and returns the expected reply. `id` is the id that a creation returned.
    fn apply(&mut self, step: &Step, id: Option<&str>) -> (u16, &'static str) {
        match step {
            Step::Create(_, path) if !self.has_parent(path) => (404, "ParentNotFound"),
            Step::Create(kind, path) => {
                match (kind, self.kind(path)) {
                    (Kind::Directory, Some(Kind::Directory)) => return (409, "ResourceAlreadyExists"),
                    (Kind::Directory, Some(Kind::File)) | (Kind::File, Some(Kind::Directory)) => {
                        return (409, "ResourceTypeMismatch");
                    }
                    (Kind::File, Some(Kind::File)) => assert_eq!(id, Some(self.0[path].0.as_str()), "{path}"),
                    (_, None) => {
                        self.0.insert(path.clone(), (id.unwrap_or_default().to_owned(), *kind));
                    }
                }
                (201, "")
            }
            Step::Delete(kind, path) => match self.kind(path) {
                None if !self.has_parent(path) => (404, "ParentNotFound"),
                None => (404, "ResourceNotFound"),
                Some(there) if there != *kind => (409, "ResourceTypeMismatch"),
                Some(_) if self.below(path).next().is_some() => (409, "DirectoryNotEmpty"),
                Some(_) => {
                    self.0.remove(path);
                    (202, "")
                }
            },
            Step::Rename { kind, from, to, replace } => self.rename(*kind, from, to, *replace),
        }
    }

    fn rename(&mut self, kind: Kind, from: &str, to: &str, replace: bool) -> (u16, &'static str) {
        if !self.has_parent(from) {
            return (404, "ResourceNotFound");
        }
        if !self.has_parent(to) {
            return (404, "ParentNotFound");
        }
        let Some(there) = self.kind(from) else { return (404, "ResourceNotFound") };
        let is_below = to.starts_with(&format!("{from}/"));
        if is_below && there == Kind::Directory {
            return (409, "InvalidRenameSourcePath");
        }
        if there != kind {
            return (409, "ResourceTypeMismatch");
        }
        if from != to {
            match self.kind(to) {
                None => {}
                Some(Kind::File) if replace => {}
                Some(Kind::Directory) if replace && kind == Kind::File => {
                    return (409, "ResourceTypeMismatch");
                }
                Some(_) => return (409, "ResourceAlreadyExists"),
            }
        }
        let moved: Vec<_> = self.below(from).cloned().chain([from.to_owned()]).collect();
        for path in moved {
            if let Some(node) = self.0.remove(&path) {
                self.0.insert(format!("{to}{}", &path[from.len()..]), node);
            }
        }
        (200, "")
    }
}

#[tokio::test]
async fn random_tree_changes_match_a_model() {
    let server = start().await;
    let (mut model, mut dice, mut changed) = (Model::default(), Dice(1), 0);
    for turn in 0..500 {
        let step = Step::random(&mut dice, true, &model);
        let reply = step.run(&server).await;
        let expected = model.apply(&step, reply.header("x-ms-file-id"));
        assert_eq!(reply.outcome(), expected, "turn {turn}: {step:?}");
        changed += usize::from(expected.0 < 300);
        if turn % 100 == 99 {
            assert_eq!(tree(&server).await, model.0, "turn {turn}");
        }
    }
    assert!(changed > 100, "too few changes to be conclusive: {changed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_see_a_moving_file_in_exactly_one_directory() {
    let server = Arc::new(start().await);
    make_directory(&server, "from").await;
    make_directory(&server, "to").await;
    for i in 0..20 {
        make_file(&server, &format!("from/f{i}"), 1).await;
        let moved = Arc::new(AtomicBool::new(false));
        let readers = (0..4).map(|reader| {
            let (server, moved) = (server.clone(), moved.clone());
            tokio::spawn(async move {
                loop {
                    let is_last = moved.load(Ordering::SeqCst);
                    let there = async |directory: &str| match reader % 2 {
                        0 => server.get(&format!("/docs/{directory}/f{i}"), "").await.status == 200,
                        _ => names(&server, directory).await.contains(&format!("f{i}")),
                    };
                    // Files move one way: a file that has left one directory must have arrived in the other,
                    // and vice versa.
                    let has_left = !there("from").await;
                    assert!(!has_left || there("to").await, "reader {reader}: f{i} is nowhere");
                    let has_come = there("to").await;
                    assert!(!has_come || !there("from").await, "reader {reader}: f{i} is in two places");
                    if is_last {
                        return has_come;
                    }
                }
            })
        });
        let readers: Vec<_> = readers.collect();
        let (from, to) = (format!("from/f{i}"), format!("to/f{i}"));
        Step::Rename { kind: Kind::File, from, to, replace: false }.run(&server).await.expect(200);
        moved.store(true, Ordering::SeqCst);
        for reader in readers {
            assert!(reader.await.unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn last_of_many_renames_onto_one_name_remains() {
    let server = Arc::new(start().await);
    make_directory(&server, "d").await;
    for client in 0..CLIENTS {
        make_file(&server, &format!("f{client}"), 1).await;
        write(&server, &format!("f{client}"), 0, &[b'0' + client as u8]).await;
    }
    let clients = (0..CLIENTS).map(|client| {
        let server = server.clone();
        tokio::spawn(async move {
            let (from, to) = (format!("f{client}"), "d/target".to_owned());
            Step::Rename { kind: Kind::File, from, to, replace: true }.run(&server).await.expect(200);
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    assert_eq!(
        (names(&server, "").await, names(&server, "d").await),
        (vec!["d".into()], vec!["target".into()])
    );
    let left = server.get("/docs/d/target", "").await.expect(200);
    assert!((b'0'..b'0' + CLIENTS as u8).contains(&left.body[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_file_is_created_in_a_directory_being_deleted() {
    let server = Arc::new(start().await);
    for round in 0..20 {
        let directory = format!("d{round}");
        make_directory(&server, &directory).await;
        let steps = [
            Step::Delete(Kind::Directory, directory.clone()),
            Step::Create(Kind::File, format!("{directory}/f")),
            Step::Create(Kind::Directory, format!("{directory}/g")),
        ];
        let [deleted, file, sub] = steps.map(|step| {
            let server = server.clone();
            tokio::spawn(async move { step.run(&server).await })
        });
        let (deleted, file, sub) = (deleted.await.unwrap(), file.await.unwrap(), sub.await.unwrap());
        let is_gone = server.get(&format!("/docs/{directory}?restype=directory"), "").await.status == 404;
        match deleted.outcome() {
            (202, _) => {
                assert!(is_gone);
                file.refused(404, "ParentNotFound");
                sub.refused(404, "ParentNotFound");
            }
            refused => {
                assert_eq!(refused, (409, "DirectoryNotEmpty"));
                let there = names(&server, &directory).await.len();
                let made = [file, sub].iter().filter(|reply| reply.status == 201).count();
                assert_eq!((is_gone, there), (false, made));
            }
        }
    }
}
