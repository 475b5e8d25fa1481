//! Seeds: all randomness of a test comes from one seed, which a failing test prints.

use std::ops::Deref;

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Set this variable to a number to repeat a run.
const VARIABLE: &str = "LAZULI_TORTURE_SEED";

/// A seed that prints itself if the test that holds it panics.
#[derive(Debug)]
pub struct Seed(u64);

impl Seed {
    /// Returns the seed in `LAZULI_TORTURE_SEED`, or a random one.
    pub fn pick() -> Seed {
        let given = std::env::var(VARIABLE).ok().and_then(|text| text.parse().ok());
        Seed(given.unwrap_or_else(rand::random))
    }

    /// Creates a seed from a given number, for a test with a fixed list of seeds.
    pub fn fixed(seed: u64) -> Seed {
        Seed(seed)
    }

    /// Returns a generator with this seed.
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
