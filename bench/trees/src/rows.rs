//! The rows that are written.

/// A key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// Number of ascending sequences of keys, as the connections of `lazuli bench steady` write them.
const STREAMS: u64 = 256;

/// Scrambles a number. This is SplitMix64, a bijection.
pub fn scatter(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the key of row `i`: 40 bytes, like the space, partition and name of a blob.
pub fn key(i: u64) -> Vec<u8> {
    format!("space-0001/container/{:03}/{:015}", i % STREAMS, i / STREAMS).into_bytes()
}

/// Returns the value of row `i`, which does not compress. Versions differ in all bytes.
pub fn value(i: u64, version: u64, length: usize) -> Vec<u8> {
    let mut state = scatter(i ^ version.rotate_left(40));
    let mut value = Vec::with_capacity(length + 8);
    while value.len() < length {
        state = scatter(state);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(length);
    value
}
