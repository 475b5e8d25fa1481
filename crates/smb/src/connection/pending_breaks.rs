//! Oplock and lease breaks sent on a connection that the client may not have received. When the connection
//! ends, they are sent on another channel of the session.

use std::collections::VecDeque;

use lazuli_file::opens::Break;

/// Maximum number of breaks remembered that need no acknowledgment. The oldest are forgotten.
const MAX_WITHOUT_ACK: usize = 1024;

/// Breaks sent on one connection and not yet acknowledged.
#[derive(Debug, Default)]
pub(super) struct PendingBreaks {
    /// Breaks that the client must acknowledge. A cache has at most one at a time.
    awaiting_ack: Vec<Break>,
    /// Breaks that need no acknowledgment, newest first.
    without_ack: VecDeque<Break>,
    is_closed: bool,
}

impl PendingBreaks {
    /// Records a break that is about to be sent. Forgets breaks that are no longer current when space is
    /// short. Returns false if the connection has ended.
    pub(super) fn record(&mut self, sent: &Break, is_current: impl Fn(&Break) -> bool) -> bool {
        if self.is_closed {
            return false;
        }
        if sent.acknowledge {
            if self.awaiting_ack.len() == self.awaiting_ack.capacity() {
                self.awaiting_ack.retain(is_current);
            }
            self.awaiting_ack.push(*sent);
        } else {
            self.without_ack.truncate(MAX_WITHOUT_ACK - 1);
            self.without_ack.push_front(*sent);
        }
        true
    }

    /// Refuses further breaks, and returns those that the client may not have received, oldest first.
    pub(super) fn close(&mut self) -> Vec<Break> {
        self.is_closed = true;
        let without_ack = std::mem::take(&mut self.without_ack);
        std::mem::take(&mut self.awaiting_ack).into_iter().chain(without_ack.into_iter().rev()).collect()
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Caching;
    use lazuli_file::opens::{CacheKey, FileKey};
    use lazuli_file::{NodeId, SpaceId};

    use super::*;

    fn sent(number: usize, acknowledge: bool) -> Break {
        Break {
            file: FileKey::now(SpaceId(1), NodeId(2)),
            key: CacheKey::Oplock(number as u64),
            from: Caching::R,
            to: Caching::NONE,
            acknowledge,
            epoch: 1,
        }
    }

    #[test]
    fn acknowledged_and_old_breaks_are_forgotten_and_none_are_recorded_after_the_end() {
        let mut pending = PendingBreaks::default();
        for number in 0..10_000 {
            assert!(pending.record(&sent(number, true), |sent| sent.key == CacheKey::Oplock(17)));
            assert!(pending.record(&sent(number, false), |_| true));
        }
        let left = pending.close();
        assert!(left.contains(&sent(17, true)) && left.len() < MAX_WITHOUT_ACK + 10);
        assert!(!left.contains(&sent(10_000 - MAX_WITHOUT_ACK - 1, false)));
        let newest: Vec<_> = (10_000 - MAX_WITHOUT_ACK..10_000).map(|number| sent(number, false)).collect();
        assert!(left.ends_with(&newest), "in the order in which they were sent");
        for acknowledge in [false, true] {
            assert!(
                !pending.record(&sent(0, acknowledge), |_| true),
                "the break has to be sent on another connection"
            );
        }
        assert_eq!(pending.close(), []);
    }
}
