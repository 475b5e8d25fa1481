//! The faults that can happen to an op on its way, with the probabilities.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

/// The faults of a network and their probabilities, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The op is lost, and there is no reply.
    pub lost_request_per_mille: u32,
    /// The op takes effect, and its reply is lost.
    pub lost_reply_per_mille: u32,
    /// The op takes effect up to 20 s after its sender has given up.
    pub late_per_mille: u32,
    /// The op or its reply is delayed by up to [`Faults::slow_millis`].
    pub slow_per_mille: u32,
    /// Maximum delay of a slow op.
    pub slow_millis: u64,
    /// A read returns short pages.
    pub short_page_per_mille: u32,
}

/// The delays and the fate of one op.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Delay until the op takes effect.
    pub before: Duration,
    /// Delay of the reply.
    pub after: Duration,
    /// The fate of the op.
    pub fate: Fate,
}

/// Whether an op takes effect and whether its sender learns that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Takes effect and is answered.
    Normal,
    /// Has no effect and no answer.
    LostRequest,
    /// Takes effect in time, without an answer.
    LostReply,
    /// Takes effect after the sender has given up.
    Late,
}

impl Faults {
    /// No faults, and short delays.
    pub const NONE: Self = Self {
        lost_request_per_mille: 0,
        lost_reply_per_mille: 0,
        late_per_mille: 0,
        slow_per_mille: 0,
        slow_millis: 0,
        short_page_per_mille: 0,
    };

    /// Draws what happens to one op.
    pub(super) fn draw(self, random: &mut SmallRng) -> Delivery {
        let roll = random.random_range(0..1000);
        let lost_reply = self.lost_request_per_mille + self.lost_reply_per_mille;
        let fate = match roll {
            roll if roll < self.lost_request_per_mille => Fate::LostRequest,
            roll if roll < lost_reply => Fate::LostReply,
            roll if roll < lost_reply + self.late_per_mille => Fate::Late,
            _ => Fate::Normal,
        };
        let mut delay = || {
            let is_slow = random.random_range(0..1000) < self.slow_per_mille;
            Duration::from_millis(random.random_range(1..=if is_slow { self.slow_millis.max(1) } else { 3 }))
        };
        Delivery { before: delay(), after: delay(), fate }
    }
}
