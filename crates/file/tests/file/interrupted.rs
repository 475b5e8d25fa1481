//! Moves and deletions that crash at every step. Any later operation finds each node in exactly one place.

use std::sync::Arc;

use lazuli_extents::InMemoryExtents;
use lazuli_file::FileService;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Query, Request, Service, Version};
use lazuli_store::interposed::{CrashAtWrite, Interposed};
use lazuli_testing::{ACCOUNT, Reply, VERSION};

use crate::support::{Server, make_directory, make_file, names, start, write};

/// Begin, prepare twice, decide, finish twice, forget.
const STEPS: u32 = 7;

/// Runs an operation on a service that crashes at the given write.
async fn crash_during(
    server: &Server,
    step: u32,
    last_takes_effect: bool,
    operation: Operation,
    object: &str,
    source: &str,
) {
    let store = Interposed::new(server.store.clone(), CrashAtWrite::at(step, last_takes_effect));
    let extents = InMemoryExtents::new(1 << 20);
    let service = FileService::new(Arc::new(store), Arc::new(extents), server.accounts.clone());
    let mut headers = http::HeaderMap::new();
    let endpoint = format!("http://127.0.0.1/{ACCOUNT}");
    headers.insert("x-ms-file-rename-source", format!("{endpoint}/docs/{source}").parse().unwrap());
    let request = Request {
        operation,
        account: server.accounts.get(ACCOUNT).await.unwrap().unwrap(),
        properties: Arc::default(),
        container: "docs".into(),
        object: object.into(),
        query: Query::parse("").unwrap(),
        headers,
        version: Version::parse(VERSION).unwrap(),
        caller: Caller::Key,
        content_length: Some(0),
        body: full(""),
        now: server.store.now(),
        request_id: Default::default(),
        endpoint,
        secure: false,
        peer: [127, 0, 0, 1].into(),
        sub_requests: None,
    };
    assert!(service.call(request).await.is_err(), "the operation has a step {step}");
}

/// The kind of operation that follows the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextOperation {
    Reader,
    Lister,
    Writer,
    Mover,
    Deleter,
}

const NEXT: [NextOperation; 5] = [
    NextOperation::Reader,
    NextOperation::Lister,
    NextOperation::Writer,
    NextOperation::Mover,
    NextOperation::Deleter,
];

/// Writes the byte that the file already has. Succeeds in only one of the two directories.
async fn write_again(server: &Server, path: &str) -> Reply {
    let range = "x-ms-write: update\nx-ms-range: bytes=0-0";
    server.put(&format!("/docs/{path}?comp=range"), range, "x").await
}

async fn rename(server: &Server, from: &str, to: &str) -> Reply {
    let headers = format!("x-ms-file-rename-source: http://{}/{ACCOUNT}/docs/{from}", server.address);
    server.put(&format!("/docs/{to}?comp=rename"), &headers, "").await
}

#[tokio::test]
async fn file_with_an_interrupted_move_is_in_exactly_one_place() {
    let server = start().await;
    let (mut moved, mut round) = (0, 0);
    for next in NEXT {
        for step in 1..=STEPS {
            for last_takes_effect in [false, true] {
                let case = format!("{next:?} after step {step}, which took effect: {last_takes_effect}");
                // Use new directories each time: the previous round may have left a reservation.
                round += 1;
                let [from, to] = [&format!("from{round}"), &format!("to{round}")];
                let [old, new] = [&format!("{from}/f"), &format!("{to}/f")];
                make_directory(&server, from).await;
                make_directory(&server, to).await;
                make_file(&server, old, 1).await;
                write(&server, old, 0, b"x").await;
                let id = server.call("HEAD", &format!("/docs/{old}"), "", "").await.expect(200);
                crash_during(&server, step, last_takes_effect, Operation::RenameFile, new, old).await;
                match next {
                    NextOperation::Reader => {}
                    NextOperation::Lister => {
                        let (to, from) = (names(&server, to).await, names(&server, from).await);
                        assert_eq!(to.len() + from.len(), 1, "{case}");
                    }
                    NextOperation::Writer => {
                        let (to, from) = (write_again(&server, new).await, write_again(&server, old).await);
                        assert_ne!(to.status == 201, from.status == 201, "{case}");
                    }
                    NextOperation::Mover => {
                        let other = format!("{to}/g");
                        let (to, from) =
                            (rename(&server, new, &other).await, rename(&server, old, &other).await);
                        assert_ne!(to.status == 200, from.status == 200, "{case}");
                        rename(&server, &other, new).await.expect(200);
                    }
                    NextOperation::Deleter => {
                        let target = server.delete(&format!("/docs/{to}?restype=directory"), "").await;
                        let source = server.delete(&format!("/docs/{from}?restype=directory"), "").await;
                        assert_ne!(target.status == 202, source.status == 202, "{case}");
                        for (directory, reply) in [(to, target), (from, source)] {
                            if reply.status == 202 {
                                make_directory(&server, directory).await;
                            }
                        }
                    }
                }
                let source = server.get(&format!("/docs/{old}"), "").await;
                let target = server.get(&format!("/docs/{new}"), "").await;
                assert_ne!(source.status == 200, target.status == 200, "{case}");
                moved += u32::from(target.status == 200);
                let (found, path) = if target.status == 200 { (target, new) } else { (source, old) };
                assert_eq!(found.text(), "x", "{case}");
                assert_eq!(found.header("x-ms-file-id"), id.header("x-ms-file-id"), "{case}");
                server.delete(&format!("/docs/{path}"), "").await.expect(202);
                assert!(names(&server, from).await.is_empty() && names(&server, to).await.is_empty());
            }
        }
    }
    // Intents decided before the crash (the fourth step), and all of them if the next operation is a move.
    assert_eq!(moved, 4 * 7 + 14);
}

#[tokio::test]
async fn directory_with_an_interrupted_deletion_exists_or_not_consistently() {
    let server = start().await;
    for next in NEXT {
        for step in 1..=STEPS {
            for last_takes_effect in [false, true] {
                let case = format!("{next:?} after step {step}, which took effect: {last_takes_effect}");
                let is_gone = step > 4 || (step == 4 && last_takes_effect);
                make_directory(&server, "d").await;
                make_file(&server, "f", 1).await;
                crash_during(&server, step, last_takes_effect, Operation::DeleteDirectory, "d", "").await;
                let (found, made, gone) = match next {
                    NextOperation::Reader => {
                        (server.get("/docs/d?restype=directory", "").await, 200, "ResourceNotFound")
                    }
                    NextOperation::Lister => {
                        let there = names(&server, "").await.contains(&"d".to_owned());
                        assert_eq!(there, !is_gone, "{case}");
                        (server.get("/docs/d?restype=directory&comp=list", "").await, 200, "ResourceNotFound")
                    }
                    NextOperation::Writer => {
                        let headers = "x-ms-type: file\nx-ms-content-length: 1";
                        (server.put("/docs/d/g", headers, "").await, 201, "ParentNotFound")
                    }
                    NextOperation::Mover => (rename(&server, "f", "d/g").await, 200, "ParentNotFound"),
                    NextOperation::Deleter => {
                        (server.delete("/docs/d?restype=directory", "").await, 202, "ResourceNotFound")
                    }
                };
                let expected = if is_gone { (404, gone) } else { (made, "") };
                assert_eq!(found.outcome(), expected, "{case}");
                let _ = server.delete("/docs/d/g", "").await;
                let _ = server.delete("/docs/d?restype=directory", "").await;
                let there = names(&server, "").await;
                assert!(!there.contains(&"d".to_owned()), "{case}");
            }
        }
    }
}

#[tokio::test]
async fn snapshot_shows_a_move_only_if_it_was_decided_before() {
    let server = start().await;
    for step in 1..=STEPS {
        for last_takes_effect in [false, true] {
            let case = format!("a snapshot after step {step}, which took effect: {last_takes_effect}");
            let is_moved = step > 4 || (step == 4 && last_takes_effect);
            let round = format!("{step}{last_takes_effect}");
            let [from, to] = [&format!("from{round}"), &format!("to{round}")];
            let [old, new] = [&format!("{from}/f"), &format!("{to}/f")];
            make_directory(&server, from).await;
            make_directory(&server, to).await;
            make_file(&server, old, 1).await;
            write(&server, old, 0, b"x").await;
            crash_during(&server, step, last_takes_effect, Operation::RenameFile, new, old).await;
            let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
            let snapshot = taken.header("x-ms-snapshot").unwrap();
            // Finish or cancel the interrupted move in the next epoch.
            if step % 2 == 0 {
                let _ = (write_again(&server, new).await, write_again(&server, old).await);
                let _ = rename(&server, old, new).await;
            }
            let mut seen = vec![];
            for (directory, path) in [(from, old), (to, new)] {
                let target = format!("/docs/{path}?sharesnapshot={snapshot}");
                let found = server.get(&target, "").await;
                let target =
                    format!("/docs/{directory}?restype=directory&comp=list&sharesnapshot={snapshot}");
                let listed = server.get(&target, "").await.expect(200);
                assert_eq!(found.status == 200, listed.text().contains("<Name>f</Name>"), "{case}");
                seen.push(found.status == 200);
            }
            assert_eq!(seen, [!is_moved, is_moved], "{case}");
        }
    }
}
