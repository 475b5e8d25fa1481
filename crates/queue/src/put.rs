//! Put Message.

use http::StatusCode;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{Query, Refusal, Request, Response, Version, names};
use lazuli_service::run_to_completion;
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceId};

use crate::document::{self, ReplyTo};
use crate::record::Message;
use crate::slot::{MessageId, Slot};
use crate::{MAX_COMMIT_DELAY, QueueService, keys};

const VISIBILITY_TIMEOUT: &str = "visibilitytimeout";
const MESSAGE_TTL: &str = "messagettl";
/// Maximum visibility timeout, and default time to live of a message, in seconds.
pub(crate) const SEVEN_DAYS: i64 = 7 * 24 * 60 * 60;

/// The visibility timeout and the time to live of a new message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageTimes {
    visibility_timeout: Span,
    /// `None` if the message never expires.
    time_to_live: Option<Span>,
}

impl MessageTimes {
    fn parse(query: &Query, version: Version) -> Result<Self, Refusal> {
        let max_ttl = if version.at_least(2017, 7, 29) { i64::from(i32::MAX) } else { SEVEN_DAYS };
        let min_ttl = if version.at_least(2017, 7, 29) { -1 } else { 1 };
        let visibility = query.number(VISIBILITY_TIMEOUT, 0..=SEVEN_DAYS)?.unwrap_or(0);
        let ttl = query.number(MESSAGE_TTL, min_ttl..=max_ttl)?.unwrap_or(SEVEN_DAYS);
        if ttl == 0 {
            let reason = "A message lives for at least one second, or for ever: -1.";
            return Err(Refusal::invalid_query(MESSAGE_TTL, "0", reason));
        }
        if ttl > 0 && visibility >= ttl {
            let reason = "A message has to become visible before it expires.";
            return Err(Refusal::invalid_query(VISIBILITY_TIMEOUT, visibility.to_string(), reason));
        }
        let seconds = |seconds: i64| Span::seconds(seconds.unsigned_abs());
        Ok(Self { visibility_timeout: seconds(visibility), time_to_live: (ttl > 0).then(|| seconds(ttl)) })
    }

    fn expiry(self, now: Timestamp) -> Timestamp {
        self.time_to_live.map_or(Timestamp::MAX, |ttl| now + ttl)
    }
}

impl QueueService {
    /// Put Message.
    pub(crate) async fn put_message(&self, mut request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let times = MessageTimes::parse(&request.query, request.version)?;
        let text = document::read_text(&mut request).await?.ok_or_else(document::no_text)?;
        let (service, account, name) = (self.clone(), request.account, request.container);
        let response = run_to_completion(async move {
            service.in_queue(&account, &name, |space| service.put(space, &text, times)).await
        });
        let response = response.await?;
        match request.version.at_least(2016, 5, 31) {
            true => Ok(response),
            false => Ok(Response::empty(StatusCode::CREATED)),
        }
    }

    async fn put(&self, space: SpaceId, text: &str, times: MessageTimes) -> Result<Response, Refusal> {
        let cache = self.candidates.of(space);
        let put = self.transact(space, Reads::default(), |view| {
            let message = Message::new(MessageId(view.stamp), view.now, times.expiry(view.now), text);
            let visible_at = view.now + times.visibility_timeout;
            let slot = Slot { visible_at, stamp: view.stamp, index: 0 };
            let put = Mutation::Put(keys::message(slot), message.encode()?);
            let change = Change::of([put, Mutation::Add(keys::COUNT, 1)]);
            Ok(Decision::Write(change.until(Some(view.now + MAX_COMMIT_DELAY)), (slot, message)))
        });
        let (slot, message) = put.await?;
        cache.record_written([slot]);
        self.expiry.expect(space, message.expires());
        Ok(document::list(StatusCode::CREATED, space, &[(slot, message)], ReplyTo::Put))
    }
}

#[cfg(test)]
mod tests {
    use lazuli_protocol::ErrorCode;

    use super::*;

    #[test]
    fn times_have_defaults_and_limits() {
        use ErrorCode::{InvalidQueryParameterValue as Invalid, OutOfRangeQueryParameterValue as Range};
        let (new, old) = (Version::NEWEST, Version::new(2017, 4, 17));
        for (query, version, expected) in [
            ("", new, Ok((0, Some(604_800)))),
            ("visibilitytimeout=604799", new, Ok((604_799, Some(604_800)))),
            ("visibilitytimeout=604800", new, Err(Invalid)),
            ("visibilitytimeout=604800&messagettl=604801", new, Ok((604_800, Some(604_801)))),
            ("visibilitytimeout=604800&messagettl=-1", new, Ok((604_800, None))),
            ("visibilitytimeout=604801&messagettl=-1", new, Err(Range)),
            ("visibilitytimeout=-1", new, Err(Range)),
            ("visibilitytimeout=soon", new, Err(Invalid)),
            ("visibilitytimeout=5&messagettl=5", new, Err(Invalid)),
            ("visibilitytimeout=4&messagettl=5", new, Ok((4, Some(5)))),
            ("messagettl=2147483647", new, Ok((0, Some(2_147_483_647)))),
            ("messagettl=2147483648", new, Err(Range)),
            ("messagettl=0", new, Err(Invalid)),
            ("messagettl=-2", new, Err(Range)),
            ("messagettl=1.5", new, Err(Invalid)),
            ("messagettl=604800", old, Ok((0, Some(604_800)))),
            ("messagettl=604801", old, Err(Range)),
            ("messagettl=-1", old, Err(Range)),
            ("messagettl=0", old, Err(Range)),
        ] {
            let times = MessageTimes::parse(&Query::parse(query).unwrap(), version);
            let times = times.map(|times| {
                let ttl = times.time_to_live.map(Span::seconds_rounded_up);
                (times.visibility_timeout.seconds_rounded_up(), ttl)
            });
            assert_eq!(times.map_err(|refusal| refusal.code()), expected, "{query}");
        }
    }
}
