//! Moves and deletions that stop at every step. Any later operation finds each node in exactly one place.

use std::sync::Arc;

use lazuli_extents::InMemoryExtents;
use lazuli_file::FileService;
use lazuli_protocol::operation::Operation;
use lazuli_protocol::request::{Caller, full};
use lazuli_protocol::{Query, Request, Service, Version};
use lazuli_store::interposed::{CrashAtWrite, Interposed};
use lazuli_testing::{ACCOUNT, Reply, VERSION};

use crate::support::{Server, make_directory, make_file, names, start, write};

/// Begin, two to prepare, decide, two to finish, forget.
const STEPS: u32 = 7;

/// Lets a service do something, and die at one of its writes.
async fn dying(
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
    assert!(service.call(request).await.is_err(), "step {step} is one of those that it takes");
}

/// The operation that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Reader,
    Lister,
    Writer,
    Mover,
    Deleter,
}

const NEXT: [Next; 5] = [Next::Reader, Next::Lister, Next::Writer, Next::Mover, Next::Deleter];

/// Puts the same byte again, in the two places where the file may be: only one of them has it.
async fn write_again(server: &Server, path: &str) -> Reply {
    let range = "x-ms-write: update\nx-ms-range: bytes=0-0";
    server.put(&format!("/docs/{path}?comp=range"), range, "x").await
}

async fn rename(server: &Server, from: &str, to: &str) -> Reply {
    let headers = format!("x-ms-file-rename-source: http://{}/{ACCOUNT}/docs/{from}", server.address);
    server.put(&format!("/docs/{to}?comp=rename"), &headers, "").await
}

#[tokio::test]
async fn a_file_whose_move_stopped_at_any_step_is_in_one_place_for_everybody() {
    let server = start().await;
    let (mut moved, mut round) = (0, 0);
    for next in NEXT {
        for step in 1..=STEPS {
            for last_takes_effect in [false, true] {
                let what = format!("{next:?} after step {step}, which took effect: {last_takes_effect}");
                // Each on directories of its own: the one before may have left a reservation.
                round += 1;
                let [from, to] = [&format!("from{round}"), &format!("to{round}")];
                let [old, new] = [&format!("{from}/f"), &format!("{to}/f")];
                make_directory(&server, from).await;
                make_directory(&server, to).await;
                make_file(&server, old, 1).await;
                write(&server, old, 0, b"x").await;
                let id = server.call("HEAD", &format!("/docs/{old}"), "", "").await.expect(200);
                dying(&server, step, last_takes_effect, Operation::RenameFile, new, old).await;
                match next {
                    Next::Reader => {}
                    Next::Lister => {
                        let (to, from) = (names(&server, to).await, names(&server, from).await);
                        assert_eq!(to.len() + from.len(), 1, "{what}");
                    }
                    Next::Writer => {
                        let (to, from) = (write_again(&server, new).await, write_again(&server, old).await);
                        assert_ne!(to.status == 201, from.status == 201, "{what}");
                    }
                    Next::Mover => {
                        let other = format!("{to}/g");
                        let (to, from) =
                            (rename(&server, new, &other).await, rename(&server, old, &other).await);
                        assert_ne!(to.status == 200, from.status == 200, "{what}");
                        rename(&server, &other, new).await.expect(200);
                    }
                    Next::Deleter => {
                        let target = server.delete(&format!("/docs/{to}?restype=directory"), "").await;
                        let source = server.delete(&format!("/docs/{from}?restype=directory"), "").await;
                        assert_ne!(target.status == 202, source.status == 202, "{what}");
                        for (directory, reply) in [(to, target), (from, source)] {
                            if reply.status == 202 {
                                make_directory(&server, directory).await;
                            }
                        }
                    }
                }
                let source = server.get(&format!("/docs/{old}"), "").await;
                let target = server.get(&format!("/docs/{new}"), "").await;
                assert_ne!(source.status == 200, target.status == 200, "{what}");
                moved += u32::from(target.status == 200);
                let (found, path) = if target.status == 200 { (target, new) } else { (source, old) };
                assert_eq!(found.text(), "x", "{what}");
                assert_eq!(found.header("x-ms-file-id"), id.header("x-ms-file-id"), "{what}");
                server.delete(&format!("/docs/{path}"), "").await.expect(202);
                assert!(names(&server, from).await.is_empty() && names(&server, to).await.is_empty());
            }
        }
    }
    // Intents that were decided, which is the fourth step, and all of them where the next operation is a
    // move.
    assert_eq!(moved, 4 * 7 + 14);
}

#[tokio::test]
async fn a_directory_whose_deletion_stopped_at_any_step_is_there_or_not_for_everybody() {
    let server = start().await;
    for next in NEXT {
        for step in 1..=STEPS {
            for last_takes_effect in [false, true] {
                let what = format!("{next:?} after step {step}, which took effect: {last_takes_effect}");
                let is_gone = step > 4 || (step == 4 && last_takes_effect);
                make_directory(&server, "d").await;
                make_file(&server, "f", 1).await;
                dying(&server, step, last_takes_effect, Operation::DeleteDirectory, "d", "").await;
                let (found, made, gone) = match next {
                    Next::Reader => {
                        (server.get("/docs/d?restype=directory", "").await, 200, "ResourceNotFound")
                    }
                    Next::Lister => {
                        let there = names(&server, "").await.contains(&"d".to_owned());
                        assert_eq!(there, !is_gone, "{what}");
                        (server.get("/docs/d?restype=directory&comp=list", "").await, 200, "ResourceNotFound")
                    }
                    Next::Writer => {
                        let headers = "x-ms-type: file\nx-ms-content-length: 1";
                        (server.put("/docs/d/g", headers, "").await, 201, "ParentNotFound")
                    }
                    Next::Mover => (rename(&server, "f", "d/g").await, 200, "ParentNotFound"),
                    Next::Deleter => {
                        (server.delete("/docs/d?restype=directory", "").await, 202, "ResourceNotFound")
                    }
                };
                let expected = if is_gone { (404, gone) } else { (made, "") };
                assert_eq!(found.outcome(), expected, "{what}");
                let _ = server.delete("/docs/d/g", "").await;
                let _ = server.delete("/docs/d?restype=directory", "").await;
                let there = names(&server, "").await;
                assert!(!there.contains(&"d".to_owned()), "{what}");
            }
        }
    }
}

#[tokio::test]
async fn a_move_is_in_a_snapshot_in_one_place_if_it_was_decided_before_and_in_the_other_if_not() {
    let server = start().await;
    for step in 1..=STEPS {
        for last_takes_effect in [false, true] {
            let what = format!("a snapshot after step {step}, which took effect: {last_takes_effect}");
            let is_moved = step > 4 || (step == 4 && last_takes_effect);
            let round = format!("{step}{last_takes_effect}");
            let [from, to] = [&format!("from{round}"), &format!("to{round}")];
            let [old, new] = [&format!("{from}/f"), &format!("{to}/f")];
            make_directory(&server, from).await;
            make_directory(&server, to).await;
            make_file(&server, old, 1).await;
            write(&server, old, 0, b"x").await;
            dying(&server, step, last_takes_effect, Operation::RenameFile, new, old).await;
            let taken = server.put("/docs?restype=share&comp=snapshot", "", "").await.expect(201);
            let snapshot = taken.header("x-ms-snapshot").unwrap();
            // What was left is ended in the next epoch, one way or the other.
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
                assert_eq!(found.status == 200, listed.text().contains("<Name>f</Name>"), "{what}");
                seen.push(found.status == 200);
            }
            assert_eq!(seen, [!is_moved, is_moved], "{what}");
        }
    }
}
