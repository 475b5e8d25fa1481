//! The bytes that clients write: unique for each client and operation, in sizes that take different code
//! paths.

/// Returns the bytes of a client's n-th operation. The sizes are inline, one extent, or several chunks.
pub(crate) fn payload(client: usize, n: u64) -> Vec<u8> {
    filled(client, n, [100, 20_000, 70_000, 5_000, 200_000][(n as usize + client) % 5])
}

/// Returns `size` bytes that differ from those of every other client and operation.
pub(crate) fn filled(client: usize, n: u64, size: usize) -> Vec<u8> {
    let mut word = (client as u64 + 1) << 40 | n;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
