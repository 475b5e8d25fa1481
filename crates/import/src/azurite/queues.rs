//! Queues and their messages.

use std::sync::Arc;

use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::ServiceKind;
use serde_json::Value;

use super::document::{StoredMessage, StoredQueue};
use super::{
    Connections, Database, FolderError, Import, Step, access_policies, count_lost_capitals, element,
    metadata, now_milliseconds, run_step, service_properties, unix_milliseconds,
};

/// Maximum time for which a message can be invisible, in seconds.
const MAX_INVISIBLE: i64 = 7 * 24 * 60 * 60;

pub(super) async fn import(import: &Arc<Import>) -> Result<(), FolderError> {
    service_properties::import(import, Database::Queue, ServiceKind::Queue).await?;
    run_step(import, Database::Queue, Queues).await?;
    run_step(import, Database::Queue, Messages).await
}

struct Queues;

impl Step for Queues {
    type Document = StoredQueue;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, StoredQueue)> {
        let queue: StoredQueue =
            (collection == "$QUEUES_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((queue.name.clone(), queue))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, queue: StoredQueue) {
        let created = async {
            let path = format!("/{}", queue.name);
            let mut create = Call::new(Method::PUT, path.clone(), "");
            metadata(&mut create, queue.metadata.as_ref())?;
            let expected = [StatusCode::CREATED, StatusCode::NO_CONTENT];
            let send = connections.send(&queue.account_name, ServiceKind::Queue, &create, &expected);
            send.await.map_err(|failure| failure.to_string())?;
            let policies = queue.queue_acl.as_deref().unwrap_or_default();
            if !policies.is_empty() {
                let set = Call::new(Method::PUT, path, "comp=acl").body(access_policies(policies));
                let send = connections.send(
                    &queue.account_name,
                    ServiceKind::Queue,
                    &set,
                    &[StatusCode::NO_CONTENT],
                );
                send.await.map_err(|failure| failure.to_string())?;
            }
            Ok::<_, String>(())
        };
        match created.await {
            Ok(()) => {
                import.progress.imported("queues", 0);
                count_lost_capitals(import, queue.metadata.as_ref());
            }
            Err(reason) => import.progress.left_out(format_args!("queue {}", queue.name), reason),
        }
    }
}

/// Imports messages in the order of the file, so that each queue keeps its order.
struct Messages;

impl Step for Messages {
    type Document = StoredMessage;

    fn select(&self, import: &Import, collection: &str, document: Value) -> Option<(String, StoredMessage)> {
        let message: StoredMessage =
            (collection == "$MESSAGES_COLLECTION$").then(|| import.parse(collection, document))??;
        Some((message.queue_name.clone(), message))
    }

    async fn run(&self, import: &Import, connections: &mut Connections, message: StoredMessage) {
        let object = || format!("message {} of queue {}", message.message_id, message.queue_name);
        let Some(times) = Times::at(now_milliseconds(), &message) else {
            return import.progress.left_out(object(), "it has expired");
        };
        let text = match import.folder.message_text(&message.persistency) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => return import.progress.left_out(object(), error),
        };
        let mut xml = String::from("<QueueMessage>");
        element(&mut xml, "MessageText", &text);
        xml += "</QueueMessage>";
        let query = format!("visibilitytimeout={}&messagettl={}", times.invisible, times.to_live);
        let path = format!("/{}/messages", message.queue_name);
        let call = Call::new(Method::POST, path, query).body(xml.into());
        let sent = connections.send(&message.account_name, ServiceKind::Queue, &call, &[StatusCode::CREATED]);
        if let Err(failure) = sent.await {
            return import.progress.left_out(object(), failure);
        }
        import.progress.imported("messages", message.persistency.count);
        if message.dequeue_count > 0 {
            import.progress.lost("how often a message has been dequeued");
        }
    }
}

/// The times of a message, in seconds.
#[derive(Debug, PartialEq, Eq)]
struct Times {
    invisible: i64,
    /// -1 if the message does not expire.
    to_live: i64,
}

impl Times {
    /// Returns the times that are left; `None` if the message has expired.
    fn at(now: i64, message: &StoredMessage) -> Option<Self> {
        let seconds = |until: i64| until.saturating_sub(now).max(0).saturating_add(999) / 1000;
        let invisible = seconds(message.time_next_visible).min(MAX_INVISIBLE);
        if message.expiration_time.starts_with("9999-") {
            return Some(Self { invisible, to_live: -1 });
        }
        let to_live = seconds(unix_milliseconds(&message.expiration_time)?);
        // A message may not expire before it becomes visible.
        (to_live > 0).then(|| Self { invisible: invisible.min(to_live - 1), to_live })
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::Chunk;
    use super::*;

    #[test]
    fn messages_keep_the_time_that_is_left() {
        let times = |visible, expiry: &str| {
            let persistency = Chunk { id: "x".into(), offset: 0, count: 1 };
            let message = StoredMessage {
                account_name: "a".into(),
                queue_name: "q".into(),
                message_id: "m".into(),
                time_next_visible: visible,
                persistency,
                expiration_time: expiry.into(),
                dequeue_count: 0,
            };
            Times::at(10_000, &message).map(|times| (times.invisible, times.to_live))
        };
        assert_eq!(times(0, "9999-12-31T23:59:59.999Z"), Some((0, -1)));
        assert_eq!(times(12_500, "9999-12-31T23:59:59.999Z"), Some((3, -1)));
        assert_eq!(times(0, "1970-01-01T00:01:00Z"), Some((0, 50)));
        assert_eq!(times(99_000, "1970-01-01T00:01:00Z"), Some((49, 50)));
        assert_eq!(times(0, "1970-01-01T00:00:10Z"), None);
    }
}
