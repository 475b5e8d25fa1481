//! Queues and their messages.
//!
//! Peeking changes nothing at the source, but reveals only 32 visible messages of a queue. Receiving reveals
//! all visible ones, hides them from other clients for a while, and counts as a dequeue. Neither reveals
//! messages that are invisible already. The rest is in the report.

use std::sync::Arc;

use http::{Method, StatusCode};
use lazuli_client::client::Call;
use lazuli_protocol::{ServiceKind, date, names};

use super::journal::record;
use super::pages::ListingPages;
use super::xml::XmlElement;
use super::{
    Job, Jobs, Links, Refused, Shared, copy_policies, copy_service_properties, header_text, listed_metadata,
};
use crate::calls::{element, metadata, now_milliseconds};

const SERVICE: ServiceKind = ServiceKind::Queue;
/// Maximum number of messages that peeking reveals.
const PEEKED: u64 = 32;
/// For how long received messages are invisible to other clients of the source, in seconds.
const INVISIBLE: u32 = 3600;
/// A queue may reveal this many messages more than it counts.
const TOLERANCE: u64 = 10_000;

pub(super) async fn import(import: &Arc<Shared>) {
    let mut links = import.links();
    let mut pages = ListingPages::new(SERVICE, "", "comp=list&include=metadata");
    let mut jobs = Jobs::new(import);
    loop {
        let page = match pages.next(&mut links.source).await {
            Ok(Some(page)) => page,
            Ok(None) => break,
            Err(reason) => {
                jobs.finish().await;
                return import.left_out("the queues", reason);
            }
        };
        for listed in page {
            jobs.start(QueueCopy { name: listed.value("Name").to_owned(), listed }).await;
        }
        if import.give_up().is_some() {
            break;
        }
    }
    jobs.finish().await;
    copy_service_properties(import, &mut links, SERVICE).await;
}

/// A queue with its messages.
struct QueueCopy {
    name: String,
    listed: XmlElement,
}

impl Job for QueueCopy {
    async fn run(self, import: &Arc<Shared>, links: &mut Links) {
        if let Err(reason) = self.copy(import, links).await {
            import.left_out(format_args!("queue {}", self.name), reason);
        }
    }
}

impl QueueCopy {
    async fn copy(&self, import: &Shared, links: &mut Links) -> Result<(), Refused> {
        names::check_queue(&self.name).map_err(|_| "the name is invalid")?;
        let path = format!("/{}", self.name);
        let counted = links.source.get(SERVICE, &path, "comp=metadata").await?;
        let count = header_text(&counted.headers, "x-ms-approximate-messages-count").parse::<u64>();
        let count = count.map_err(|_| "the number of messages is not a number")?;
        if import.is_dry_run {
            import.imported("queues", 0);
            for _ in 0..count {
                import.imported("messages", 0);
            }
            return Ok(());
        }
        let values = listed_metadata(import, &self.listed);
        let mut create = Call::new(Method::PUT, path.clone(), "");
        metadata(&mut create, Some(&values))?;
        let expected = [StatusCode::CREATED, StatusCode::NO_CONTENT, StatusCode::CONFLICT];
        let reply = links.target.send(SERVICE, &create, &expected).await;
        let reply = reply.map_err(|failure| failure.to_string())?;
        if reply.status == StatusCode::CONFLICT {
            let mut set = Call::new(Method::PUT, path.clone(), "comp=metadata");
            metadata(&mut set, Some(&values))?;
            let sent = links.target.send(SERVICE, &set, &[StatusCode::NO_CONTENT]).await;
            sent.map_err(|failure| failure.to_string())?;
        }
        copy_policies(links, SERVICE, &path, "comp=acl", None).await?;
        import.imported("queues", 0);
        self.copy_messages(import, links, count).await
    }

    async fn copy_messages(&self, import: &Shared, links: &mut Links, count: u64) -> Result<(), Refused> {
        let path = format!("/{}/messages", self.name);
        let query = match import.receive_messages {
            true => format!("numofmessages=32&visibilitytimeout={INVISIBLE}"),
            false => "peekonly=true&numofmessages=32".into(),
        };
        let mut revealed = 0;
        while import.give_up().is_none() {
            let page = links.source.get_xml(SERVICE, &path, &query).await?;
            let messages: Vec<_> =
                page.children.iter().filter(|child| child.name == "QueueMessage").collect();
            revealed += messages.len() as u64;
            let mut is_any_new = false;
            for message in messages {
                is_any_new |= self.copy_message(import, links, message).await;
            }
            if !import.receive_messages || !is_any_new {
                break;
            }
            if revealed > count + TOLERANCE {
                return Err(format!("the source reveals more messages than the {count} that it counts"));
            }
        }
        if let Some(hidden @ 1..) = count.checked_sub(revealed) {
            let hint = match import.receive_messages || revealed < PEEKED {
                true => "they are invisible, because other clients received or hid them",
                false => {
                    "peeking reveals the first 32 visible ones (--receive-messages copies all visible ones)"
                }
            };
            import.not_possible(format_args!("queue {}: {hidden} of {count} messages", self.name), hint);
        }
        Ok(())
    }

    /// Copies a message unless the journal has it. Returns whether it was new.
    async fn copy_message(&self, import: &Shared, links: &mut Links, message: &XmlElement) -> bool {
        let id = message.value("MessageId");
        let copied = record(&["message", &self.name, id]);
        if import.journal.has(copied) {
            import.unchanged("messages");
            return false;
        }
        let object = format!("message {id} of queue {}", self.name);
        let Some(to_live) = seconds_to_live(message.value("ExpirationTime"), now_milliseconds()) else {
            import.not_possible(object, "it has expired");
            return true;
        };
        let text = message.value("MessageText");
        let mut xml = String::from("<QueueMessage>");
        element(&mut xml, "MessageText", text);
        xml += "</QueueMessage>";
        let path = format!("/{}/messages", self.name);
        let call = Call::new(Method::POST, path, format!("messagettl={to_live}")).body(xml.into());
        if let Err(failure) = links.target.send(SERVICE, &call, &[StatusCode::CREATED]).await {
            import.left_out(object, failure);
            return true;
        }
        import.remember(copied);
        import.imported("messages", text.len() as u64);
        if message.value("DequeueCount").parse::<u64>().is_ok_and(|count| count > 0) {
            import.progress.lost("how often a message has been dequeued");
        }
        true
    }
}

/// Returns the seconds until a message expires; -1 if it does not, and `None` if it has.
fn seconds_to_live(expiry: &str, now: i64) -> Option<i64> {
    if expiry.contains(" 9999 ") {
        return Some(-1);
    }
    let expiry = i64::try_from(date::parse_http(expiry)?.unix_nanos() / 1_000_000).ok()?;
    let seconds = expiry.saturating_sub(now).saturating_add(999) / 1000;
    (seconds > 0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_keep_the_time_that_is_left() {
        let now = 1_000;
        assert_eq!(seconds_to_live("Fri, 31 Dec 9999 23:59:59 GMT", now), Some(-1));
        assert_eq!(seconds_to_live("Thu, 01 Jan 1970 00:00:11 GMT", now), Some(10));
        assert_eq!(seconds_to_live("Thu, 01 Jan 1970 00:00:01 GMT", now), None);
        assert_eq!(seconds_to_live("soon", now), None);
    }
}
