//! Breaks that were told on a connection and may not have been heard: when it is lost, they are told elsewhere.

use std::collections::VecDeque;

use lazuli_file::opens::Break;

/// Of breaks that need no answer so many are remembered, the newest: nobody ever says that such a one was heard.
const MAX_UNANSWERED: usize = 1024;

/// What was told on one connection.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// What has to be answered. A cache has one such break at a time.
    awaited: Vec<Break>,
    /// What has not.
    unanswered: VecDeque<Break>,
    is_over: bool,
}

impl Told {
    /// Remembers what is about to be told. False: nothing is told here any more, and what was is told elsewhere.
    pub(super) fn remember(&mut self, told: &Break, is_current: impl Fn(&Break) -> bool) -> bool {
        if self.is_over {
            return false;
        }
        if told.acknowledge {
            if self.awaited.len() == self.awaited.capacity() {
                self.awaited.retain(is_current);
            }
            self.awaited.push(*told);
        } else {
            self.unanswered.truncate(MAX_UNANSWERED - 1);
            self.unanswered.push_front(*told);
        }
        true
    }

    /// Nothing is told here any more. All that may not have been heard.
    pub(super) fn end(&mut self) -> Vec<Break> {
        self.is_over = true;
        let unanswered = std::mem::take(&mut self.unanswered);
        std::mem::take(&mut self.awaited).into_iter().chain(unanswered.into_iter().rev()).collect()
    }
}

#[cfg(test)]
mod tests {
    use lazuli_concurrency::Caching;
    use lazuli_file::opens::{CacheKey, FileKey};
    use lazuli_file::{NodeId, SpaceId};

    use super::*;

    fn told(number: usize, acknowledge: bool) -> Break {
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
    fn what_is_answered_and_what_is_long_ago_is_forgotten_and_nothing_is_told_after_the_end() {
        let mut all = Told::default();
        for number in 0..10_000 {
            assert!(all.remember(&told(number, true), |told| told.key == CacheKey::Oplock(17)));
            assert!(all.remember(&told(number, false), |_| true));
        }
        let left = all.end();
        assert!(left.contains(&told(17, true)) && left.len() < MAX_UNANSWERED + 10);
        assert!(!left.contains(&told(10_000 - MAX_UNANSWERED - 1, false)));
        let newest: Vec<_> = (10_000 - MAX_UNANSWERED..10_000).map(|number| told(number, false)).collect();
        assert!(left.ends_with(&newest), "in their order");
        for acknowledge in [false, true] {
            assert!(!all.remember(&told(0, acknowledge), |_| true), "somebody else has to be told");
        }
        assert_eq!(all.end(), []);
    }
}
