//! Evicts the cached blocks of tables that compaction has replaced.
//!
//! The tree's cache has no function that removes a block. Blocks of replaced tables would stay until the
//! cache is full, which takes hours with a cache of gigabytes. But inserting a block that is heavier than the
//! cache admits removes the block under the same key and adds nothing, so readers are never given another
//! block. [`BlockEvictor::new`] tries this out, because a cache of tens of gigabytes may admit even the
//! heaviest block. Then nothing is evicted, and the cache fills up.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use lsm_tree::coding::Decode;
use lsm_tree::table::block::{BlockType, Header as BlockHeader};
use lsm_tree::table::{Block, BlockOffset, GlobalTableId};
use lsm_tree::{AbstractTree, AnyTree, Cache, Checksum, Slice, Table, TreeId};

use super::manifest;

/// An offset at which no table has a block.
const PROBE_OFFSET: BlockOffset = BlockOffset(u64::MAX);

/// Evicts blocks from the cache of one tree.
pub(super) struct BlockEvictor {
    tree: TreeId,
    /// `None` if the cache admits the heaviest block, so that inserting it would evict other blocks.
    cache: Option<Arc<Cache>>,
}

impl BlockEvictor {
    pub(super) fn new(tree: &AnyTree) -> Self {
        let cache = &tree.tree_config().cache;
        Self { tree: tree.id(), cache: refuses_heavy_blocks(cache, tree.id()).then(|| cache.clone()) }
    }

    /// Evicts all blocks of a table. Reads the header of each block from the table's file. Blocks after a
    /// damaged header stay until the cache is full.
    pub(super) fn evict(&self, table: &Table) {
        let Some(cache) = &self.cache else { return };
        let id = GlobalTableId::from((self.tree, table.id()));
        let evict = |offset| cache.insert_block(id, BlockOffset(offset), block_of_length(u32::MAX));
        if let Err(error) = for_each_block(table, evict) {
            tracing::debug!(%error, table = table.id(), "blocks of a replaced table stay in the cache");
        }
    }
}

/// Returns whether the cache refuses a block of the maximum weight. All shards of a cache have the same size,
/// so one key represents all.
fn refuses_heavy_blocks(cache: &Cache, tree: TreeId) -> bool {
    let probe = GlobalTableId::from((tree, u64::MAX));
    cache.insert_block(probe, PROBE_OFFSET, block_of_length(u32::MAX));
    let is_refused = cache.get_block(probe, PROBE_OFFSET).is_none();
    if !is_refused {
        // Make the probe light.
        cache.insert_block(probe, PROBE_OFFSET, block_of_length(0));
    }
    is_refused
}

/// Makes an empty block that claims a length. The cache weighs a block by the length in its header.
fn block_of_length(uncompressed_length: u32) -> Block {
    let checksum = Checksum::from_raw(0);
    let header = BlockHeader { block_type: BlockType::Data, checksum, data_length: 0, uncompressed_length };
    Block { header, data: Slice::from(&[][..]) }
}

/// Calls `visit` with the offset of each block of a table.
fn for_each_block(table: &Table, mut visit: impl FnMut(u64)) -> io::Result<()> {
    let file = File::open(&**table.path)?;
    let sections = manifest::block_sections(&file)?.map_err(io::Error::other)?;
    for section in sections {
        let mut at = section.start;
        while at < section.end {
            visit(at);
            let mut header = [0; BlockHeader::serialized_len()];
            file.read_exact_at(&mut header, at)?;
            let header = BlockHeader::decode_from(&mut &header[..]).map_err(io::Error::other)?;
            at += (BlockHeader::serialized_len() as u64) + u64::from(header.data_length);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heavy_block_removes_the_block_under_its_key_and_no_other() {
        let cache = Cache::with_capacity_bytes(64 << 20);
        assert!(refuses_heavy_blocks(&cache, 1));
        let id = GlobalTableId::from((1, 1));
        for offset in 0..1000 {
            cache.insert_block(id, BlockOffset(offset), block_of_length(4096));
        }
        let full = cache.size();
        for offset in 0..500 {
            cache.insert_block(id, BlockOffset(offset), block_of_length(u32::MAX));
        }
        assert_eq!(cache.size(), full / 2);
        let is_cached = |offset| cache.get_block(id, BlockOffset(offset)).is_some();
        assert!((0..500).all(|offset| !is_cached(offset)) && (500..1000).all(is_cached));
    }

    #[test]
    fn cache_that_admits_the_heaviest_block_is_recognized_and_keeps_no_weight() {
        // The number of shards is at most 256, so each shard admits 4 GiB.
        let cache = Cache::with_capacity_bytes(1 << 50);
        assert!(!refuses_heavy_blocks(&cache, 1));
        assert_eq!(cache.size(), BlockHeader::serialized_len() as u64);
    }
}
