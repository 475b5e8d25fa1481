//! Seeds: whatever is random in a test comes from one, and a failing test prints it.

use std::ops::Deref;

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Set to a number to repeat a run.
const VARIABLE: &str = "LAZULI_TORTURE_SEED";

/// A seed that prints itself if the test that holds it panics.
#[derive(Debug)]
pub struct Seed(u64);

impl Seed {
    /// The seed in `LAZULI_TORTURE_SEED`, else a fresh one.
    pub fn pick() -> Seed {
        let given = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        Seed(given.unwrap_or_else(rand::random))
    }

    /// This very seed, for a test that goes through a fixed list.
    pub fn fixed(seed: u64) -> Seed {
        Seed(seed)
    }

    /// A generator that starts from this seed.
    pub fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.0)
    }
}

impl Deref for Seed {
    type Target = u64;

    fn deref(&self) -> &u64 {
        &self.0
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed: {VARIABLE}={}", self.0);
        }
    }
}
