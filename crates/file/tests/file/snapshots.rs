//! Share snapshots: their content, deletion and sweeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use lazuli_concurrency::Pace;
use lazuli_store::{Commit, Mutation, Partition, SpaceId, Which};
use lazuli_testing::ACCOUNT;

use crate::support::{Server, make_directory, make_file, start, write};

/// Takes a snapshot of `docs` and returns its id.
async fn take(server: &Server) -> String {
    let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    taken.header("x-ms-snapshot").unwrap().to_owned()
}

/// Lists the names in a directory of a snapshot, in pages.
async fn names_at(server: &Server, path: &str, id: &str, limit: usize) -> Vec<String> {
    let mut names = vec![];
    let mut marker = String::new();
    loop {
        let target = format!(
            "/docs/{path}?restype=directory&comp=list&sharesnapshot={id}&maxresults={limit}&marker={marker}"
        );
        let listed = server.get(&target, "").await.expect(200);
        let text = listed.text();
        let page: Vec<_> =
            text.split("<Name>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect();
        assert!(page.len() <= limit);
        names.extend(page);
        marker = text
            .split("<NextMarker>")
            .nth(1)
            .map_or_else(String::new, |rest| rest.split('<').next().unwrap().to_owned());
        if marker.is_empty() {
            return names;
        }
    }
}

/// Renames a file, or a directory if `kind` names one.
async fn rename(server: &Server, from: &str, to: &str, kind: &str) {
    let source = format!("http://{}/{ACCOUNT}/docs/{from}", server.address);
    let headers = format!("x-ms-file-rename-source: {source}\nx-ms-file-rename-replace-if-exists: true");
    server.put(&format!("/docs/{to}?{kind}comp=rename"), &headers, "").await.expect(200);
}

/// Returns the space of the only share with snapshots, from their rows.
async fn space(server: &Server) -> SpaceId {
    let (_, key) = snapshot_rows(server).await.pop().unwrap();
    let space = key.strip_prefix(b"snapshot/").unwrap().first_chunk().unwrap();
    SpaceId(u64::from_be_bytes(*space))
}

/// Counts the rows that a share keeps for its snapshots.
async fn kept_rows(server: &Server, space: SpaceId) -> usize {
    let from = (Bytes::new(), Bytes::new());
    let page = server.store.scan_space(space, from, None, Which::All, 8192).await.unwrap();
    page.rows.iter().filter(|(partition, row)| partition[0] == b'd' && row.key[0] == b'o').count()
}

/// Returns the partitions and keys of all snapshot rows of all shares.
async fn snapshot_rows(server: &Server) -> Vec<(Bytes, Bytes)> {
    let from = (Bytes::new(), Bytes::new());
    let page = server.store.scan_space(SpaceId::ROOT, from, None, Which::All, 8192).await.unwrap();
    let rows = page.rows.into_iter().map(|(partition, row)| (partition, row.key));
    rows.filter(|(_, key)| key.starts_with(b"snapshot/")).collect()
}

/// Files in the snapshot. Each has ten bytes that begin with its name.
const FILES: [&str; 9] =
    ["changed", "deleted", "recreated", "same", "resized", "renamed", "moved", "replacing", "replaced"];

#[tokio::test]
async fn snapshot_is_unaffected_by_every_kind_of_later_change() {
    let server = start().await;
    make_directory(&server, "dir").await;
    make_directory(&server, "dir/sub").await;
    make_directory(&server, "empty").await;
    make_directory(&server, "tree").await;
    make_directory(&server, "tree/inner").await;
    make_file(&server, "tree/inner/leaf", 5).await;
    for name in FILES {
        make_file(&server, &format!("dir/{name}"), 10).await;
        write(&server, &format!("dir/{name}"), 0, &name.as_bytes()[..4]).await;
    }
    make_file(&server, "dir/sub/deep", 3).await;
    server.put("/docs/dir?restype=directory&comp=metadata", "x-ms-meta-a: before", "").await.expect(200);
    server.put("/docs?restype=directory&comp=metadata", "x-ms-meta-root: before", "").await.expect(200);
    let etag = server.call("HEAD", "/docs/dir/changed", "", "").await.expect(200).etag().to_owned();
    let id = take(&server).await;

    write(&server, "dir/changed", 0, b"AFTER").await;
    server.put("/docs/dir/changed?comp=metadata", "x-ms-meta-new: one", "").await.expect(200);
    server.delete("/docs/dir/deleted", "").await.expect(202);
    server.delete("/docs/dir/recreated", "").await.expect(202);
    make_file(&server, "dir/recreated", 99).await;
    server.put("/docs/dir/resized?comp=properties", "x-ms-content-length: 2", "").await.expect(200);
    make_file(&server, "dir/later", 1).await;
    make_file(&server, "dir/gone", 1).await;
    server.delete("/docs/dir/gone", "").await.expect(202);
    make_directory(&server, "dir/newdir").await;
    server.delete("/docs/dir/sub/deep", "").await.expect(202);
    server.put("/docs/dir?restype=directory&comp=metadata", "x-ms-meta-a: after", "").await.expect(200);
    server.put("/docs?restype=directory&comp=metadata", "x-ms-meta-root: after", "").await.expect(200);

    rename(&server, "dir/renamed", "dir/other", "").await;
    rename(&server, "dir/moved", "dir/newdir/moved", "").await;
    rename(&server, "dir/replacing", "dir/replaced", "").await;
    rename(&server, "tree", "dir/newdir/tree", "restype=directory&").await;
    write(&server, "dir/newdir/tree/inner/leaf", 0, b"AFTER").await;
    server.delete("/docs/dir/sub?restype=directory", "").await.expect(202);
    server.delete("/docs/empty?restype=directory", "").await.expect(202);
    make_file(&server, "empty", 1).await;

    let was = [
        "changed",
        "deleted",
        "moved",
        "recreated",
        "renamed",
        "replaced",
        "replacing",
        "resized",
        "same",
        "sub",
    ];
    for limit in [1, 2, 3, 5000] {
        assert_eq!(names_at(&server, "dir", &id, limit).await, was, "in pages of {limit}");
    }
    assert_eq!(names_at(&server, "dir/sub", &id, 5000).await, ["deep"]);
    assert_eq!(names_at(&server, "", &id, 2).await, ["dir", "empty", "tree"]);
    assert_eq!(names_at(&server, "empty", &id, 2).await, [] as [String; 0]);
    let leaf = server.get(&format!("/docs/tree/inner/leaf?sharesnapshot={id}"), "").await.expect(200);
    assert_eq!(leaf.body, vec![0; 5]);
    let read = |path: &'static str| server.get(path, "");
    for name in FILES {
        let found = server.get(&format!("/docs/dir/{name}?sharesnapshot={id}"), "").await.expect(200);
        assert_eq!(found.body, [&name.as_bytes()[..4], &[0; 6][..]].concat(), "{name}");
        let head = server.call("HEAD", &format!("/docs/dir/{name}?sharesnapshot={id}"), "", "").await;
        assert_eq!(head.expect(200).header("content-length"), Some("10"));
        let ranges = server.get(&format!("/docs/dir/{name}?comp=rangelist&sharesnapshot={id}"), "").await;
        assert!(ranges.expect(200).text().contains("<Start>0</Start>"));
    }
    let changed = server.get(&format!("/docs/dir/changed?comp=metadata&sharesnapshot={id}"), "").await;
    let changed = changed.expect(200);
    assert_eq!((changed.etag(), changed.header("x-ms-meta-new")), (etag.as_str(), None));
    for (path, code) in [
        ("later", "ResourceNotFound"),
        ("gone", "ResourceNotFound"),
        ("other", "ResourceNotFound"),
        ("newdir/moved", "ParentNotFound"),
        ("newdir/tree/inner/leaf", "ParentNotFound"),
    ] {
        let reply = server.get(&format!("/docs/dir/{path}?sharesnapshot={id}"), "").await;
        reply.refused(404, code);
    }
    for (path, name) in [("/docs/dir", "x-ms-meta-a"), ("/docs", "x-ms-meta-root")] {
        for comp in ["", "&comp=metadata"] {
            let target = format!("{path}?restype=directory{comp}&sharesnapshot={id}");
            let found = server.get(&target, "").await.expect(200);
            assert_eq!(found.header(name), Some("before"), "{target}");
        }
    }
    // The share itself has the latest state.
    assert_eq!(&read("/docs/dir/changed").await.expect(200).body[..5], b"AFTER");
    read("/docs/dir/deleted").await.refused(404, "ResourceNotFound");
    let server = server.restart().await;
    assert_eq!(names_at(&server, "dir", &id, 2).await, was);
}

#[tokio::test]
async fn deleted_snapshots_are_swept_without_changing_the_others() {
    let server = start().await;
    let mut ids = vec![];
    for round in 0..5u8 {
        make_file(&server, "f", 4).await;
        write(&server, "f", 0, &[round; 4]).await;
        make_file(&server, &format!("only{round}"), 1).await;
        ids.push(take(&server).await);
        server.delete(&format!("/docs/only{round}"), "").await.expect(202);
    }
    write(&server, "f", 0, &[9; 4]).await;
    let check = async |left: &[usize]| {
        for round in left {
            let id = &ids[*round];
            let found = server.get(&format!("/docs/f?sharesnapshot={id}"), "").await.expect(200);
            assert_eq!(found.body, vec![*round as u8; 4]);
            assert_eq!(names_at(&server, "", id, 1).await, ["f".to_owned(), format!("only{round}")]);
        }
    };
    let space = space(&server).await;
    check(&[0, 1, 2, 3, 4]).await;
    assert_eq!(kept_rows(&server, space).await, 10);
    server.service.sweep(Pace::FULL).await.unwrap();
    assert_eq!(kept_rows(&server, space).await, 10);
    for (round, left) in [(2, &[0, 1, 3, 4][..]), (0, &[1, 3, 4]), (4, &[1, 3]), (1, &[3]), (3, &[])] {
        let target = format!("/docs?restype=share&sharesnapshot={}", ids[round]);
        server.delete(&target, "").await.expect(202);
        server.delete(&target, "").await.refused(404, "ShareSnapshotNotFound");
        let reply = server.get(&format!("/docs/f?sharesnapshot={}", ids[round]), "").await;
        reply.refused(404, "ShareNotFound");
        assert!(server.service.sweep_due());
        server.service.sweep(Pace::FULL).await.unwrap();
        assert_eq!(kept_rows(&server, space).await, 2 * left.len());
        check(left).await;
    }
    assert_eq!(server.get("/docs/f", "").await.expect(200).body, vec![9; 4]);
}

#[tokio::test]
async fn rows_kept_without_a_snapshot_are_swept_after_a_delay() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    let id = take(&server).await;
    let space = space(&server).await;
    server.delete(&format!("/docs?restype=share&sharesnapshot={id}"), "").await.expect(202);
    server.service.sweep(Pace::FULL).await.unwrap();
    // The writer cannot know that the snapshot is gone, so it keeps a row for it.
    write(&server, "f", 0, b"x").await;
    assert_eq!(kept_rows(&server, space).await, 1);
    assert!(!server.service.sweep_due());
    server.advance(3601);
    assert!(server.service.sweep_due());
    server.service.sweep(Pace::FULL).await.unwrap();
    assert_eq!(kept_rows(&server, space).await, 0);
}

#[tokio::test]
async fn snapshot_with_new_metadata_has_its_own_etag() {
    let server = start().await;
    server.put("/docs?restype=share&comp=metadata", "x-ms-meta-a: before", "").await.expect(200);
    let share = server.get("/docs?restype=share", "").await.expect(200);
    let plain = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
    assert_eq!(plain.etag(), share.etag());
    let own = server.put("/docs?restype=share&comp=snapshot", "x-ms-meta-b: own", "").await.expect(201);
    assert_ne!(own.etag(), share.etag());
    assert_eq!(server.get("/docs?restype=share", "").await.expect(200).etag(), share.etag());
    server.put("/docs?restype=share&comp=metadata", "x-ms-meta-a: after", "").await.expect(200);
    server.put("/docs?restype=share&comp=properties", "x-ms-share-quota: 9", "").await.expect(200);
    for (taken, name, value) in [(&plain, "x-ms-meta-a", "before"), (&own, "x-ms-meta-b", "own")] {
        let id = taken.header("x-ms-snapshot").unwrap();
        for comp in ["", "&comp=metadata"] {
            let target = format!("/docs?restype=share{comp}&sharesnapshot={id}");
            let found = server.get(&target, "").await.expect(200);
            assert_eq!((found.header(name), found.etag()), (Some(value), taken.etag()));
        }
        let found = server.get(&format!("/docs?restype=share&sharesnapshot={id}"), "").await.expect(200);
        assert_eq!(found.header("x-ms-share-quota"), Some("5120"));
    }
    let found = server.get("/docs?restype=share", "").await.expect(200);
    assert_eq!(found.header("x-ms-meta-b"), None);
}

#[tokio::test]
async fn snapshots_are_listed_after_their_share_only_on_request() {
    let server = start().await;
    let ids = [take(&server).await, take(&server).await];
    server.put("/other?restype=share", "", "").await.expect(201);
    let plain = server.get("/?comp=list", "").await.expect(200);
    assert!(!plain.text().contains("<Snapshot>"));
    let all = server.get("/?comp=list&include=snapshots", "").await.expect(200);
    let expected = format!(
        "<Name>docs</Name> <Name>docs</Name><Snapshot>{}</Snapshot> <Name>docs</Name><Snapshot>{}</Snapshot> <Name>other</Name>",
        ids[0], ids[1]
    );
    let heads = |text: &str| -> Vec<String> {
        text.split("<Share>")
            .skip(1)
            .map(|rest| rest.split("<Properties>").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(heads(all.text()).join(" "), expected);
    let (mut pages, mut marker) = (vec![], String::new());
    loop {
        let target = format!("/?comp=list&include=snapshots,metadata&maxresults=1&marker={marker}");
        let page = server.get(&target, "").await.expect(200);
        pages.extend(heads(page.text()));
        match page.text().split("<NextMarker>").nth(1) {
            Some(rest) => marker = rest.split('<').next().unwrap().to_owned(),
            None => break,
        }
    }
    assert_eq!(pages.join(" "), expected);
}

#[tokio::test]
async fn snapshot_writes_are_refused_and_missing_snapshots_not_found() {
    let server = start().await;
    make_file(&server, "f", 4).await;
    make_directory(&server, "d").await;
    let id = take(&server).await;
    let file = "x-ms-type: file\nx-ms-content-length: 1";
    let range = "x-ms-write: clear\nx-ms-range: bytes=0-1";
    for (method, target, headers) in [
        ("PUT", "/docs/f?", file),
        ("PUT", "/docs/f?comp=range&", range),
        ("PUT", "/docs/f?comp=metadata&", "x-ms-meta-a: b"),
        ("PUT", "/docs/f?comp=properties&", ""),
        ("DELETE", "/docs/f?", ""),
        ("PUT", "/docs/e?restype=directory&", ""),
        ("PUT", "/docs/d?restype=directory&comp=metadata&", "x-ms-meta-a: b"),
        ("PUT", "/docs/d?restype=directory&comp=properties&", ""),
        ("PUT", "/docs?restype=share&comp=metadata&", "x-ms-meta-a: b"),
        ("PUT", "/docs?restype=share&comp=properties&", "x-ms-share-quota: 7"),
    ] {
        let reply = server.call(method, &format!("{target}sharesnapshot={id}"), headers, "").await;
        reply.refused(400, "InvalidQueryParameterValue");
    }
    // Snapshot Share ignores `sharesnapshot`.
    server.put(&format!("/docs?restype=share&comp=snapshot&sharesnapshot={id}"), "", "").await.expect(201);
    let unknown = "2026-01-01T00:00:00.0000000Z";
    for target in [
        "/docs/f?",
        "/docs/f?comp=metadata&",
        "/docs/f?comp=rangelist&",
        "/docs/d?restype=directory&",
        "/docs?restype=directory&comp=list&",
        "/docs?restype=share&",
        "/docs?restype=share&comp=metadata&",
    ] {
        let reply = server.get(&format!("{target}sharesnapshot={unknown}"), "").await;
        reply.refused(404, "ShareNotFound");
        let reply = server.get(&format!("{target}sharesnapshot=yesterday"), "").await;
        reply.refused(400, "InvalidQueryParameterValue");
    }
    let reply = server.get(&format!("/nobody/f?sharesnapshot={id}"), "").await;
    reply.refused(404, "ShareNotFound");
}

#[tokio::test]
async fn share_with_snapshots_is_deleted_only_on_explicit_request() {
    let server = start().await;
    let id = take(&server).await;
    let delete = |headers: &'static str| server.delete("/docs?restype=share", headers);
    delete("").await.refused(409, "ShareHasSnapshots");
    delete("x-ms-delete-snapshots: only").await.refused(400, "InvalidHeaderValue");
    let snapshot = format!("/docs?restype=share&sharesnapshot={id}");
    let both = server.delete(&snapshot, "x-ms-delete-snapshots: include").await;
    both.refused(400, "InvalidHeaderValue");
    let acquire = "x-ms-lease-action: acquire\nx-ms-lease-duration: 15";
    let leased = server.put(&format!("{snapshot}&comp=lease"), acquire, "").await.expect(201);
    let lease = leased.header("x-ms-lease-id").unwrap().to_owned();
    server.delete(&snapshot, "").await.refused(412, "LeaseIdMissing");
    delete("x-ms-delete-snapshots: include").await.refused(409, "DeleteShareWhenSnapshotLeased");
    delete("x-ms-delete-snapshots: include-leased").await.expect(202);
    server.get("/docs?restype=share", "").await.refused(404, "ShareNotFound");

    // A new share of that name has no snapshots, and the old share's rows are swept.
    server.put("/docs?restype=share", "", "").await.expect(201);
    server.get(&snapshot, "").await.refused(404, "ShareNotFound");
    assert_eq!(server.service.sweep(Pace::FULL).await.unwrap().spaces, 1);
    assert_eq!(snapshot_rows(&server).await, []);
    let id = take(&server).await;
    let snapshot = format!("/docs?restype=share&sharesnapshot={id}");
    server.put(&format!("{snapshot}&comp=lease"), acquire, "").await.expect(201);
    let wrong = server.delete(&snapshot, &format!("x-ms-lease-id: {lease}")).await;
    wrong.refused(412, "LeaseIdMismatchWithContainerOperation");
    server.advance(15);
    delete("x-ms-delete-snapshots: include").await.expect(202);
}

#[tokio::test]
async fn a_share_has_at_most_two_hundred_snapshots() {
    let server = start().await;
    for _ in 0..200 {
        take(&server).await;
    }
    let reply = server.put("/docs?restype=share&comp=snapshot", "", "").await;
    reply.refused(409, "ShareSnapshotCountExceeded");
    server.put("/none?restype=share&comp=snapshot", "", "").await.refused(404, "ShareNotFound");
}

// Each writer writes the same number to a file in one directory, then to a file in another. A snapshot taken
// after the acknowledgment has both. A snapshot with the second write also has the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_snapshot_preserves_the_order_of_writes() {
    const WRITERS: usize = 4;
    const SNAPSHOTS: usize = 12;
    let server = Arc::new(start().await);
    let done: Arc<[AtomicU64; WRITERS]> = Arc::default();
    for n in 0..WRITERS {
        for directory in ["a", "b"] {
            make_directory(&server, &format!("{directory}{n}")).await;
            make_file(&server, &format!("{directory}{n}/f"), 8).await;
        }
    }
    let stop = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let (server, done, stop) = (server.clone(), done.clone(), stop.clone());
            tokio::spawn(async move {
                for round in 1u64.. {
                    if stop.load(Ordering::Acquire) == 1 {
                        break;
                    }
                    write(&server, &format!("a{n}/f"), 0, &round.to_be_bytes()).await;
                    write(&server, &format!("b{n}/f"), 0, &round.to_be_bytes()).await;
                    done[n].store(round, Ordering::Release);
                }
            })
        })
        .collect();
    let mut taken = vec![];
    for _ in 0..SNAPSHOTS {
        let before: Vec<u64> = done.iter().map(|done| done.load(Ordering::Acquire)).collect();
        taken.push((take(&server).await, before));
    }
    stop.store(1, Ordering::Release);
    for writer in writers {
        writer.await.unwrap();
    }
    let (mut rounds, mut last) = (0, vec![0; WRITERS]);
    for (id, before) in &taken {
        for (n, before) in before.iter().enumerate() {
            let read = async |directory: &str| {
                let target = format!("/docs/{directory}{n}/f?sharesnapshot={id}");
                let found = server.get(&target, "").await.expect(200);
                u64::from_be_bytes(found.body[..].try_into().unwrap())
            };
            let (first, second) = (read("a").await, read("b").await);
            assert!(*before <= second && second <= first && first <= second + 1, "{before} {first} {second}");
            assert!(last[n] <= second);
            last[n] = second;
            rounds = rounds.max(second);
        }
    }
    assert!(rounds > 0, "no write happened while snapshots were taken");
}

// Files and a directory move back and forth between directories. In every snapshot each is in one place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_snapshot_shows_each_moved_node_once() {
    const MOVERS: usize = 3;
    const SNAPSHOTS: usize = 12;
    let server = Arc::new(start().await);
    for directory in ["left", "right"] {
        make_directory(&server, directory).await;
    }
    for n in 0..MOVERS {
        make_file(&server, &format!("left/f{n}"), 1).await;
    }
    make_directory(&server, "left/tree").await;
    make_file(&server, "left/tree/leaf", 1).await;
    let (stop, moved) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let movers: Vec<_> = (0..=MOVERS)
        .map(|n| {
            let (server, stop, moved) = (server.clone(), stop.clone(), moved.clone());
            let (name, kind) = match n {
                MOVERS => ("tree".to_owned(), "restype=directory&"),
                n => (format!("f{n}"), ""),
            };
            tokio::spawn(async move {
                while stop.load(Ordering::Acquire) == 0 {
                    for (from, to) in [("left", "right"), ("right", "left")] {
                        rename(&server, &format!("{from}/{name}"), &format!("{to}/{name}"), kind).await;
                        moved.fetch_add(1, Ordering::AcqRel);
                    }
                }
            })
        })
        .collect();
    let mut taken = vec![];
    for _ in 0..SNAPSHOTS {
        taken.push(take(&server).await);
        let seen = moved.load(Ordering::Acquire);
        while moved.load(Ordering::Acquire) == seen {
            tokio::task::yield_now().await;
        }
    }
    stop.store(1, Ordering::Release);
    for mover in movers {
        mover.await.unwrap();
    }
    let all = ["f0", "f1", "f2", "tree"];
    for id in &taken {
        let mut names = names_at(&server, "left", id, 2).await;
        let side = if names.contains(&"tree".to_owned()) { "left" } else { "right" };
        names.extend(names_at(&server, "right", id, 2).await);
        names.sort();
        assert_eq!(names, all, "in {id}");
        server.get(&format!("/docs/{side}/tree/leaf?sharesnapshot={id}"), "").await.expect(200);
    }
}

#[tokio::test]
async fn concurrent_snapshots_all_succeed() {
    let server = start().await;
    make_file(&server, "f", 1).await;
    let ids = futures_util::future::join_all((0..12).map(|_| take(&server))).await;
    let unique: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(unique.len(), ids.len());
    for id in &ids {
        assert_eq!(names_at(&server, "", id, 10).await, ["f"]);
    }
}

// A crash between writing a snapshot's row and completing it leaves a pending row. The test makes one from
// the row of a completed snapshot.
#[tokio::test]
async fn snapshot_interrupted_by_a_crash_is_hidden_and_removed() {
    for by_sweep in [true, false] {
        let server = start().await;
        make_file(&server, "f", 1).await;
        let id = take(&server).await;
        let from = (Bytes::new(), Bytes::new());
        let page = server.store.scan_space(SpaceId::ROOT, from, None, Which::All, 8192).await.unwrap();
        let (partition, row) =
            page.rows.into_iter().find(|(_, row)| row.key.starts_with(b"snapshot/")).unwrap();
        // The record's last byte is 1 if the snapshot is complete.
        let mut value = row.value.to_vec();
        assert_eq!(value.pop(), Some(1));
        value.push(0);
        let put = Mutation::Put(row.key, value.into());
        commit(&server, &Partition::new(SpaceId::ROOT, partition), vec![put]).await;
        let server = server.restart().await;
        let reply = server.get(&format!("/docs/f?sharesnapshot={id}"), "").await;
        reply.refused(404, "ShareNotFound");
        let listed = server.get("/?comp=list&include=snapshots", "").await.expect(200);
        assert!(!listed.text().contains("<Snapshot>"));
        let left = match by_sweep {
            true => {
                server.service.sweep(Pace::FULL).await.unwrap();
                0
            }
            false => {
                take(&server).await;
                1
            }
        };
        assert_eq!(snapshot_rows(&server).await.len(), left);
        server.delete("/docs?restype=share", "x-ms-delete-snapshots: include").await.expect(202);
    }
}

// One name has more kept rows than one read returns, as after the deletion of many snapshots before a sweep.
#[tokio::test]
async fn listing_a_snapshot_skips_many_newer_kept_rows() {
    const KEPT: u64 = 1200;
    let server = start().await;
    for name in ["a", "f", "f2", "z"] {
        make_file(&server, name, 1).await;
    }
    let id = take(&server).await;
    let space = space(&server).await;
    write(&server, "f", 0, b"x").await;
    let from = (Bytes::new(), Bytes::new());
    let page = server.store.scan_space(space, from, None, Which::All, 8192).await.unwrap();
    let (partition, row) = page.rows.into_iter().find(|(_, row)| row.key.starts_with(b"oF\0")).unwrap();
    let partition = Partition::new(space, partition);
    for lot in (1..KEPT).collect::<Vec<_>>().chunks(200) {
        let key = |last: &u64| Bytes::from([&b"oF\0"[..], &last.to_be_bytes()].concat());
        let mutations = lot.iter().map(|last| Mutation::Put(key(last), row.value.clone())).collect();
        commit(&server, &partition, mutations).await;
    }
    assert_eq!(kept_rows(&server, space).await as u64, KEPT);
    for limit in [1, 2, 5000] {
        assert_eq!(names_at(&server, "", &id, limit).await, ["a", "f", "f2", "z"], "in pages of {limit}");
    }
    server.service.sweep(Pace::FULL).await.unwrap();
    assert_eq!(names_at(&server, "", &id, 2).await, ["a", "f", "f2", "z"]);
}

/// Commits directly to the store.
async fn commit(server: &Server, partition: &Partition, mutations: Vec<Mutation>) {
    let header = server.store.space(partition.space).await.unwrap();
    let commit = Commit {
        stamp: server.store.stamp(),
        epoch: header.map_or(0, |header| header.epoch),
        conditions: vec![],
        mutations,
        valid_until: None,
        fence: None,
        bulk: false,
    };
    server.store.commit(partition, commit).await.unwrap();
}

/// The first byte of each file of a share, by name.
type Model = std::collections::BTreeMap<String, u8>;

// Random changes, snapshots, deletions of snapshots and sweeps.
#[tokio::test]
async fn random_snapshots_and_changes_match_a_model() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d/a", "d/b", "d/c", "d/e/a", "d/e/b"];
    for seed in [1u64, 7, 42] {
        let server = start().await;
        make_directory(&server, "d").await;
        make_directory(&server, "d/e").await;
        let mut random = seed;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        let (mut now, mut snapshots) = (Model::new(), Vec::<(String, Model)>::new());
        for step in 0..150u8 {
            let name = NAMES[below(NAMES.len())];
            match below(10) {
                0..=3 => {
                    make_file(&server, name, 1).await;
                    write(&server, name, 0, &[step]).await;
                    now.insert(name.to_owned(), step);
                }
                4..=5 if now.remove(name).is_some() => {
                    server.delete(&format!("/docs/{name}"), "").await.expect(202);
                }
                6..=7 => {
                    let to = NAMES[below(NAMES.len())];
                    if to != name
                        && let Some(byte) = now.remove(name)
                    {
                        rename(&server, name, to, "").await;
                        now.insert(to.to_owned(), byte);
                    }
                }
                8 => snapshots.push((take(&server).await, now.clone())),
                9 if snapshots.len() > 3 => {
                    let (id, _) = snapshots.remove(below(snapshots.len()));
                    let target = format!("/docs?restype=share&sharesnapshot={id}");
                    server.delete(&target, "").await.expect(202);
                    server.service.sweep(Pace::FULL).await.unwrap();
                }
                _ => {}
            }
        }
        assert!(snapshots.len() > 3);
        for (id, model) in &snapshots {
            assert_eq!(seen(&server, id).await, *model, "seed {seed}, snapshot {id}");
        }
    }
}

/// Reads all files of a snapshot.
async fn seen(server: &Server, id: &str) -> Model {
    let mut seen = Model::new();
    for directory in ["", "d", "d/e"] {
        for name in names_at(server, directory, id, 2).await {
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if !["d", "d/e"].contains(&path.as_str()) {
                let found = server.get(&format!("/docs/{path}?sharesnapshot={id}"), "").await.expect(200);
                seen.insert(path, found.body[0]);
            }
        }
    }
    seen
}
