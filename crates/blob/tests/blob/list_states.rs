//! List Blobs: snapshots, versions and deleted states, and their order.

use crate::list::{LIST, elements, names};
use crate::support::{TestServer, start};

impl TestServer {
    /// Returns the entries of all pages together, see [`states`].
    pub(crate) async fn states(&self, query: &str, limit: usize) -> Vec<String> {
        let (mut all, mut marker) = (vec![], String::new());
        loop {
            let text = self.list(&format!("{query}&maxresults={limit}&marker={marker}")).await;
            all.extend(states(&text));
            marker = names(&text).1;
            if marker.is_empty() {
                return all;
            }
        }
    }
}

/// Returns the name of every entry. It is followed by `@snapshot` or `#version`, by `!` if the state is
/// deleted, and by `=` if it is current.
pub(crate) fn states(text: &str) -> Vec<String> {
    let element = |entry: &str, name: &str| {
        elements(entry, &format!("<{name}>"), "<").first().map(|value| (*value).to_owned())
    };
    let entries = elements(text, "<Blob>", "</Blob>");
    let state = |entry: &&str| {
        let mut state = element(entry, "Name").unwrap();
        state += &element(entry, "Snapshot").map_or(String::new(), |snapshot| format!("@{snapshot}"));
        state += &element(entry, "VersionId").map_or(String::new(), |version| format!("#{version}"));
        for (name, sign) in [("Deleted", "!"), ("IsCurrentVersion", "="), ("HasVersionsOnly", "?")] {
            state += element(entry, name).map_or("", |_| sign);
        }
        assert_eq!(
            entry.contains("<LeaseStatus>"),
            !state.contains(['@', '!']) && (!state.contains('#') || state.contains(['=', '?']))
        );
        state
    };
    entries.iter().map(state).collect()
}

#[tokio::test]
async fn snapshots_are_listed_oldest_first_before_their_blob() {
    let server = start().await;
    server.put_all(&["a", "b", "c"]).await;
    let first = server.snapshot("/con/b").await;
    let second = server.snapshot("/con/b").await;
    let expected =
        ["a".to_owned(), format!("b@{first}"), format!("b@{second}"), "b".to_owned(), "c".to_owned()];
    assert_eq!(states(&server.list("include=snapshots").await), expected);
    assert_eq!(states(&server.list("include=metadata").await), ["a", "b", "c"]);
    for limit in 1..=5 {
        assert_eq!(server.states("include=snapshots", limit).await, expected, "{limit}");
    }
    let refused = server.get(&format!("{LIST}&include=snapshots&delimiter=/"), "").await;
    refused.refused(400, "InvalidQueryParameterValue");
}

#[tokio::test]
async fn live_and_deleted_snapshots_are_in_time_order() {
    let server = start().await;
    server.put_all(&["a", "b", "c"]).await;
    server.soft_delete(Some(3)).await;
    let mut expected = vec!["a".to_owned()];
    for at in 0..100 {
        let snapshot = server.snapshot("/con/b").await;
        // Both kinds have more rows than are read at once, in long and in short runs.
        let is_deleted = at % 3 == 0 || (10..50).contains(&at);
        if is_deleted {
            server.delete(&format!("/con/b?snapshot={snapshot}"), "").await.expect(202);
        }
        expected.push(format!("b@{snapshot}{}", if is_deleted { "!" } else { "" }));
    }
    expected.extend(["b".to_owned(), "c".to_owned()]);
    for limit in [1, 2, 31, 32, 33, 64, 102, 103, 5000] {
        assert_eq!(server.states("include=snapshots,deleted", limit).await, expected, "{limit}");
    }
    let live: Vec<_> = expected.iter().filter(|state| !state.contains('!')).cloned().collect();
    for limit in [1, 40, 5000] {
        assert_eq!(server.states("include=snapshots", limit).await, live, "{limit}");
    }
}

#[tokio::test]
async fn states_are_in_time_order_for_any_page_size() {
    let server = start().await;
    server.create_container("con").await;
    server.versioning(true).await;
    server.soft_delete(Some(3)).await;
    let mut versions = vec![];
    for at in 0..7 {
        let put = server.put_block_blob("/con/a", "").await;
        versions.push(put.header("x-ms-version-id").unwrap().to_owned());
        if at % 2 == 0 {
            server.snapshot("/con/a").await;
        }
    }
    for at in [1, 4] {
        server.delete(&format!("/con/a?versionid={}", versions[at]), "").await.expect(202);
    }
    let listed = server.states("include=versions,deleted", 5000).await;
    let stamp = |state: &String| state.split(['@', '#', '!', '=']).nth(1).unwrap().to_owned();
    assert!(listed.is_sorted_by_key(stamp) && listed.last().unwrap().ends_with('='), "{listed:?}");
    assert_eq!(listed.iter().filter(|state| state.contains('!')).count(), 2);
    assert!(
        listed[1].ends_with('!') || listed[2].ends_with('!'),
        "deleted states must be among the live ones: {listed:?}"
    );
    // The blob has no current state, only versions, some of them deleted.
    for name in ["d", "e"] {
        let first = server.put_block_blob(&format!("/con/{name}"), "").await;
        server.put_block_blob(&format!("/con/{name}"), "").await;
        server.delete(&format!("/con/{name}"), "").await.expect(202);
        let first = first.header("x-ms-version-id").unwrap();
        server.delete(&format!("/con/{name}?versionid={first}"), "").await.expect(202);
    }
    for include in [
        "versions",
        "deleted",
        "snapshots,versions",
        "versions,deleted",
        "snapshots,versions,deleted",
        "deletedwithversions",
        "versions,deletedwithversions",
        "snapshots,versions,deleted,deletedwithversions",
    ] {
        let query = format!("include={include}");
        let all = server.states(&query, 5000).await;
        assert!(all.len() > 1 || include == "deleted", "{include}: {all:?}");
        assert_eq!(all.contains(&"e?".to_owned()), include == "deletedwithversions", "{all:?}");
        let earlier = |state: &&String| state.starts_with('a') && !state.contains('=');
        assert!(all.iter().filter(earlier).is_sorted_by_key(&stamp), "{include}: {all:?}");
        for limit in 1..=all.len() {
            assert_eq!(server.states(&query, limit).await, all, "{include} {limit}");
        }
    }
}

#[tokio::test]
async fn pages_of_any_size_list_the_same_entries() {
    let server = start().await;
    server.create_container("con").await;
    server.versioning(true).await;
    server.soft_delete(Some(3)).await;
    // Each letter is a step: put, snapshot, delete the earlier version, the latest version, or the current
    // state.
    let blobs = ["ps", "pspsp", "px", "ppx", "ppex", "psse", "pssx", "ppxl", "ppsxl", "pspexl", "psexl"];
    for name in blobs {
        let blob = format!("/con/{name}");
        let mut versions = vec![];
        for step in name.chars() {
            let reply = match step {
                'p' => server.put_block_blob(&blob, "").await,
                's' => server.put(&format!("{blob}?comp=snapshot"), "", "").await.expect(201),
                'x' => server.delete(&blob, "x-ms-delete-snapshots: include").await.expect(202),
                _ => {
                    let nth = versions.len() - if step == 'l' { 1 } else { 2 };
                    server.delete(&format!("{blob}?versionid={}", versions[nth]), "").await.expect(202)
                }
            };
            versions.extend(reply.header("x-ms-version-id").map(str::to_owned));
        }
    }
    let gone = blobs.iter().filter(|name| name.contains('x')).count();
    for set in 0..16 {
        let words = ["snapshots", "versions", "deleted", "deletedwithversions"];
        let include: Vec<_> = (0..4).filter(|at| set >> at & 1 == 1).map(|at| words[at]).collect();
        let query = format!("include={}", include.join(","));
        let all = server.states(&query, 5000).await;
        let only_versions = all.iter().filter(|state| state.ends_with('?')).count();
        assert_eq!(
            only_versions,
            if include.contains(&"deletedwithversions") { gone } else { 0 },
            "{query} {all:?}"
        );
        for limit in 1..=all.len() {
            assert_eq!(server.states(&query, limit).await, all, "{query} {limit}");
        }
    }
}

#[tokio::test]
async fn deleted_blobs_are_listed_on_request_and_can_be_restored() {
    let server = start().await;
    server.put_all(&["a", "b", "c/1"]).await;
    let snapshot = server.snapshot("/con/b").await;
    server.soft_delete(Some(3)).await;
    server.delete("/con/a", "").await.expect(202);
    server.delete(&format!("/con/b?snapshot={snapshot}"), "").await.expect(202);
    server.delete("/con/c/1", "").await.expect(202);
    assert_eq!(states(&server.list("").await), ["b"]);
    assert_eq!(states(&server.list("include=snapshots").await), ["b"]);
    let text = server.list("include=deleted").await;
    assert_eq!(states(&text), ["a!", "b", "c/1!"]);
    let retention = "<RemainingRetentionDays>2</RemainingRetentionDays>";
    assert!(text.contains("<DeletedTime>Fri, 02 Jan 2026 03:04:05 GMT</DeletedTime>"), "{text}");
    server.advance(60);
    assert_eq!(server.list("include=deleted").await.matches(retention).count(), 2);
    let both = ["a!".to_owned(), format!("b@{snapshot}!"), "b".to_owned(), "c/1!".to_owned()];
    assert_eq!(states(&server.list("include=deleted,snapshots").await), both);
    assert_eq!(names(&server.list("delimiter=/").await).0, ["b"], "c/ contains only a deleted blob");
    assert_eq!(names(&server.list("delimiter=/&include=deleted").await).0, ["a", "b", "c/*"]);
    server.advance(3 * 86_400);
    assert_eq!(states(&server.list("include=deleted,snapshots").await), ["b"]);
}

#[tokio::test]
async fn versions_are_listed_oldest_first_and_the_current_one_is_marked() {
    let server = start().await;
    server.create_container("con").await;
    server.versioning(true).await;
    let mut versions = vec![];
    for body in ["1", "2", "3"] {
        let put = server.put_block_blob("/con/a", body).await;
        versions.push(put.header("x-ms-version-id").unwrap().to_owned());
    }
    let gone = server.put_block_blob("/con/d/b", "").await.header("x-ms-version-id").unwrap().to_owned();
    let [first, second, third] = &versions[..] else { panic!() };
    server.delete("/con/d/b", "").await.expect(202);
    // A prefix is listed once, however many earlier versions its blobs have.
    server.put_block_blob("/con/folded/b", "1").await;
    server.put_block_blob("/con/folded/b", "2").await;
    for includes in ["versions", "versions,deletedwithversions", "deletedwithversions"] {
        let (found, _) = names(&server.list(&format!("include={includes}&delimiter=/&prefix=f")).await);
        assert_eq!(found, ["folded/*"], "{includes}");
    }
    server.delete("/con/folded/b", "").await.expect(202);
    for (includes, expected) in [("versions", 1), ("versions,deletedwithversions", 1), ("metadata", 0)] {
        let (found, _) = names(&server.list(&format!("include={includes}&delimiter=/&prefix=f")).await);
        assert_eq!(found.len(), expected, "{includes}");
    }
    for version in server.list("include=versions&prefix=f").await.split("<VersionId>").skip(1) {
        let version = version.split_once('<').unwrap().0;
        server.delete(&format!("/con/folded/b?versionid={version}"), "").await.expect(202);
    }
    assert_eq!(states(&server.list("").await), [format!("a#{third}=")]);
    let all = [format!("a#{first}"), format!("a#{second}"), format!("a#{third}="), format!("d/b#{gone}")];
    assert_eq!(states(&server.list("include=versions").await), all);
    assert_eq!(names(&server.list("include=versions&delimiter=/").await).0, ["a", "a", "a", "d/*"]);
    assert_eq!(names(&server.list("delimiter=/").await).0, ["a"]);
    let only = [format!("a#{third}="), "d/b?".to_owned()];
    assert_eq!(states(&server.list("include=deletedwithversions").await), only);
    assert_eq!(names(&server.list("include=deletedwithversions&delimiter=/").await).0, ["a", "d/*"]);
    server.soft_delete(Some(1)).await;
    server.delete(&format!("/con/a?versionid={first}"), "").await.expect(202);
    let kept = [format!("a#{second}"), format!("a#{third}="), format!("d/b#{gone}")];
    assert_eq!(states(&server.list("include=versions").await), kept);
    let deleted = [format!("a#{first}!"), kept[0].clone(), kept[1].clone(), kept[2].clone()];
    assert_eq!(states(&server.list("include=versions,deleted").await), deleted);
    let old = server.get(LIST, "x-ms-version: 2019-07-07").await.expect(200);
    assert!(!old.text().contains("VersionId"));
}
