//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

use lazuli_concurrency::Stamp;

use crate::keys;

/// Seeds of [`super::marker`].
pub fn marker() -> Vec<Vec<u8>> {
    let rows = [keys::CURRENT, keys::deleted(Stamp::from_ticks(7))];
    rows.map(|row| [&b"container\0"[..], &row].concat()).to_vec()
}
