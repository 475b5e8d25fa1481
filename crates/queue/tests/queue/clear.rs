//! Clear Messages.

use crate::support::{count, delete, get, put, start, update, visible};

#[tokio::test]
async fn clearing_removes_visible_and_invisible_messages_and_keeps_the_queue() {
    let server = start().await;
    server.put("/jobs?comp=metadata", "x-ms-meta-a: 1", "").await.expect(204);
    for n in 0..40 {
        put(&server, &n.to_string(), "").await;
    }
    put(&server, "later", "?visibilitytimeout=60").await;
    let got = get(&server, "?numofmessages=2").await;
    server.delete("/jobs/messages", "").await.expect(204);
    assert_eq!((count(&server).await, visible(&server).await.len()), (0, 0));
    delete(&server, &got[0]).await.refused(404, "MessageNotFound");
    update(&server, &got[1], 0, None).await.refused(404, "MessageNotFound");
    server.advance(100);
    assert!(get(&server, "").await.is_empty());
    let kept = server.get("/jobs?comp=metadata", "").await.expect(200);
    assert_eq!(kept.header("x-ms-meta-a"), Some("1"));

    put(&server, "new", "").await;
    assert_eq!((count(&server).await, visible(&server).await), (1, vec!["new".to_owned()]));
    let server = server.restart().await;
    assert_eq!((count(&server).await, visible(&server).await), (1, vec!["new".to_owned()]));
}

#[tokio::test]
async fn empty_queue_can_be_cleared_repeatedly() {
    let server = start().await;
    for _ in 0..3 {
        server.delete("/jobs/messages", "").await.expect(204);
    }
    server.delete("/jobs", "").await.expect(204);
    server.delete("/jobs/messages", "").await.refused(404, "QueueNotFound");
}
