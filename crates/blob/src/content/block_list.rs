//! The list of a blob's blocks, in order. The list is stored as content, because that of a large blob does
//! not fit into a row:
//!
//! ```text
//! list  = block*
//! block = id-length:u8  id  size:u64  nonce-length:u8 (0 or 16)  nonce
//! ```

use bytes::{Buf, BufMut, Bytes};
use lazuli_extents::{Content, Upload, Writer, read_all};
use lazuli_protocol::Refusal;

use super::cipher::Nonce;
use crate::model::record::Damage;
use crate::model::staging::BlockId;
use crate::{BlobService, reply};

/// Maximum number of blocks of a blob.
pub(crate) const MAX_BLOCKS: usize = 50_000;
/// Maximum length of an encoded list, in bytes.
const MAX_LIST: usize = MAX_BLOCKS * (1 + 64 + 8 + 1 + 16);

/// A block of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedBlock {
    pub(crate) id: BlockId,
    pub(crate) size: u64,
    /// The nonce of the block's encryption.
    pub(crate) nonce: Option<[u8; 16]>,
}

impl BlobService {
    /// Reads the blocks of a list.
    pub(crate) async fn read_block_list(&self, list: &Content) -> Result<Vec<CommittedBlock>, Refusal> {
        let bytes =
            read_all(&self.extents, list, 0..list.len(), MAX_LIST).await.map_err(reply::content_refusal)?;
        Ok(decode(bytes).ok_or(Damage::Undecodable)?)
    }

    /// Stores a list of blocks. The list is durable only after a sync.
    pub(crate) async fn write_block_list(
        &self,
        writer: &Writer,
        blocks: &[CommittedBlock],
    ) -> Result<Content, Refusal> {
        let mut upload = Upload::new(&self.extents, writer);
        upload.push(encode(blocks)).await.map_err(reply::content_refusal)?;
        upload.finish().await.map_err(reply::content_refusal)
    }
}

/// Encodes one append as an entry in the list of an encrypted append blob. The entry has no id.
pub(crate) fn encode_run(size: u64, nonce: Nonce) -> Bytes {
    encode(&[CommittedBlock { id: BlockId(Bytes::new()), size, nonce: Some(nonce) }])
}

fn encode(blocks: &[CommittedBlock]) -> Bytes {
    let mut out = Vec::with_capacity(blocks.len() * 32);
    for CommittedBlock { id, size, nonce } in blocks {
        out.put_u8(id.0.len() as u8);
        out.put_slice(&id.0);
        out.put_u64_le(*size);
        let nonce = nonce.as_ref().map_or(&[][..], |nonce| nonce);
        out.put_u8(nonce.len() as u8);
        out.put_slice(nonce);
    }
    out.into()
}

fn decode(mut bytes: Bytes) -> Option<Vec<CommittedBlock>> {
    let mut take = |length: usize| (bytes.len() >= length).then(|| bytes.split_to(length));
    let mut blocks = vec![];
    while let Some(mut length) = take(1) {
        let id = BlockId(take(length.get_u8().into())?);
        let size = take(8)?.get_u64_le();
        let nonce = match take(1)?.get_u8() {
            0 => None,
            length => Some(<[u8; 16]>::try_from(&*take(length.into())?).ok()?),
        };
        blocks.push(CommittedBlock { id, size, nonce });
    }
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: &str, size: u64, nonce: Option<[u8; 16]>) -> CommittedBlock {
        CommittedBlock { id: BlockId(Bytes::copy_from_slice(id.as_bytes())), size, nonce }
    }

    #[test]
    fn block_list_round_trips_and_damaged_list_is_refused() {
        let blocks =
            vec![block("a", 1, None), block("bc", u64::MAX >> 8, Some([7; 16])), block("d", 3, None)];
        let bytes = encode(&blocks);
        assert_eq!(decode(bytes.clone()), Some(blocks));
        assert_eq!(decode(Bytes::new()), Some(vec![]));
        let readable: Vec<_> = (0..bytes.len()).filter(|cut| decode(bytes.slice(..*cut)).is_some()).collect();
        assert_eq!(readable, [0, 11, 39], "a list can be cut only at the end of a block");
    }
}
