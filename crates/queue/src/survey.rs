//! A look at the messages of a queue for operators: bounded, read-only, and without an effect on dequeue
//! counts.

use lazuli_concurrency::Timestamp;
use lazuli_protocol::{Account, Refusal};
use lazuli_store::{Reads, RowPosition};

use crate::record::Message;
use crate::slot::{PopReceipt, Slot};
use crate::{QueueService, keys};

/// Maximum number of messages of one page.
const MAX_PAGE: usize = 1000;

/// Which messages of a queue to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageState {
    /// Messages that a consumer can get now.
    Visible,
    /// Messages that become visible later, because a consumer has got them or because they were scheduled.
    Invisible,
}

/// A message as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedMessage {
    /// The id, as clients see it.
    pub id: String,
    /// From when on the message can be got.
    pub visible_at: Timestamp,
    /// When the message was put.
    pub inserted: Timestamp,
    /// When the message expires.
    pub expires: Timestamp,
    /// How often the message was got. 0 for an invisible message means that it was scheduled.
    pub dequeue_count: u32,
    /// The pop receipt of the message's current holder.
    pub receipt: String,
    /// The text.
    pub text: String,
}

impl QueueService {
    /// Lists up to `limit` messages of a queue in the order in which they become visible.
    pub async fn survey(
        &self,
        account: &Account,
        queue: &str,
        state: MessageState,
        limit: usize,
    ) -> Result<(Vec<SurveyedMessage>, bool), Refusal> {
        let limit = limit.clamp(1, MAX_PAGE);
        self.in_queue(account, queue, |space| async move {
            let partition = keys::messages(space);
            let now = self.store.now();
            let border = keys::message(Slot::end_of_visible(now));
            let range = match state {
                MessageState::Visible => keys::all().start..border,
                MessageState::Invisible => border..keys::all().end,
            };
            let set = self.rows.read(&partition, &Reads::default().and_range(range, limit)).await?;
            let mut messages = vec![];
            let mut more = false;
            for scanned in set.ranges {
                more |= scanned.more;
                for row in scanned.rows {
                    let Some(slot) = keys::slot(&row.key) else { continue };
                    let message = Message::decode(&row.value)
                        .map_err(|damage| damage.at(RowPosition::new(&partition, &row.key)))?;
                    if message.has_expired(now) {
                        continue;
                    }
                    messages.push(SurveyedMessage {
                        id: message.id().to_guid(space).to_string(),
                        visible_at: slot.visible_at,
                        inserted: message.inserted(),
                        expires: message.expires(),
                        dequeue_count: message.dequeue_count,
                        receipt: PopReceipt(slot).to_string(),
                        text: message.text.to_string(),
                    });
                }
            }
            Ok((messages, more))
        })
        .await
    }
}
