//! Builds the new content of a blob from staged blocks and parts of its old content, without reading bytes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, Reads, RowPosition};

use super::{BlockSource, ListedBlock, NewBlockList, READ_AT_ONCE};
use crate::content::block_list::CommittedBlock;
use crate::content::cipher::Nonce;
use crate::content::encryption::check_update;
use crate::model::keys;
use crate::model::record::{Blob, StagedBlock};
use crate::model::staging::{BlockId, Staging};
use crate::{BlobService, reply};

/// The blocks of a blob, as the content of a new state is built from them.
pub(super) struct BlockAssembler<'a> {
    pub(super) service: &'a BlobService,
    pub(super) partition: &'a Partition,
    pub(super) writer: &'a Writer,
}

/// Content that was built from blocks.
pub(super) struct AssembledContent {
    pub(super) content: Content,
    /// The encoded list of the blocks.
    pub(super) block_list: Content,
    /// The keys of the staged blocks in the content, each once.
    pub(super) staged: Vec<Bytes>,
}

/// The range and nonce of each committed block in the content of a blob.
type CommittedRanges = HashMap<BlockId, (Range<u64>, Option<Nonce>)>;

impl BlockAssembler<'_> {
    /// Builds the content of the listed blocks, and the block list to store with it. Both are durable.
    pub(super) async fn assemble(
        &self,
        old: Option<&Blob>,
        NewBlockList { listed, seal }: NewBlockList<'_>,
        now: Timestamp,
    ) -> Result<AssembledContent, Refusal> {
        let service = self.service;
        let live = old.filter(|old| old.is_live(now));
        let old_content = live.map(|old| old.content.clone()).unwrap_or_default();
        let parts = match live {
            Some(old) if listed.iter().any(|block| block.from != BlockSource::Uncommitted) => {
                parts(service.read_block_list(&old.block_list).await?)
            }
            _ => CommittedRanges::new(),
        };
        let staging = old.filter(|old| old.is_present(now)).and_then(|old| old.staged(now));
        let mut edit = Edit::new(&service.extents, self.writer, &Content::empty());
        // Adjacent parts of the old content are appended as one.
        let mut run = 0..0;
        let mut list = Vec::with_capacity(listed.len());
        let mut is_staged = HashMap::new();
        for some in listed.chunks(READ_AT_ONCE) {
            let staged = match staging {
                Some(staging) => self.staged(staging, some).await?,
                None => HashMap::new(),
            };
            for ListedBlock { from, id } in some {
                let staged = staged.get(id).filter(|_| *from != BlockSource::Committed);
                let part = parts.get(id).filter(|_| *from != BlockSource::Uncommitted);
                let (size, nonce) = match (staged, part) {
                    (Some(block), _) => {
                        check_update(block.encryption.as_ref(), seal)?;
                        edit.append_part(&old_content, run).await.map_err(reply::content_refusal)?;
                        run = 0..0;
                        edit.append(&block.content).await.map_err(reply::content_refusal)?;
                        (block.content.len(), block.nonce)
                    }
                    (None, Some((part, nonce))) => {
                        check_update(live.and_then(|old| old.encryption.as_ref()), seal)?;
                        if run.end != part.start {
                            edit.append_part(&old_content, run).await.map_err(reply::content_refusal)?;
                            run = part.start..part.start;
                        }
                        run.end = part.end;
                        (part.end - part.start, *nonce)
                    }
                    (None, None) => return Err(ErrorCode::InvalidBlockList.into()),
                };
                // A list must not use two different blocks with the same id.
                if *is_staged.entry(id).or_insert(staged.is_some()) != staged.is_some() {
                    return Err(ErrorCode::InvalidBlockList.into());
                }
                list.push(CommittedBlock { id: id.clone(), size, nonce });
            }
        }
        edit.append_part(&old_content, run).await.map_err(reply::content_refusal)?;
        let content = edit.finish().await.map_err(reply::content_refusal)?;
        let list = service.write_block_list(self.writer, &list).await?;
        service.sync(&content).await?;
        service.sync(&list).await?;
        let generation = staging.map_or(0, |staging| staging.generation);
        let staged = is_staged.into_iter().filter(|(_, is_staged)| *is_staged);
        let staged = staged.map(|(id, _)| keys::staged(generation, &id.0)).collect();
        Ok(AssembledContent { content, block_list: list, staged })
    }

    /// Reads those of the listed blocks that are staged.
    async fn staged(
        &self,
        staging: Staging,
        listed: &[ListedBlock],
    ) -> Result<HashMap<BlockId, StagedBlock>, Refusal> {
        let ids: Vec<_> = listed
            .iter()
            .filter(|block| block.from != BlockSource::Committed)
            .map(|block| &block.id)
            .collect();
        let pin = self.service.pin();
        let reads = Reads::keys(ids.iter().map(|id| keys::staged(staging.generation, &id.0)));
        let set = self.service.rows.read(self.partition, &reads).await?;
        let mut staged = HashMap::new();
        for (id, row) in ids.into_iter().zip(set.rows) {
            if let Some(row) = row {
                let block = StagedBlock::decode(&row.value);
                let block = block.map_err(|damage| damage.at(RowPosition::new(self.partition, &row.key)))?;
                staged.insert(id.clone(), block);
            }
        }
        self.writer.hold(pin, staged.values().map(|block| &block.content));
        Ok(staged)
    }
}

/// Returns the range of each block. A block that occurs twice has the same bytes twice, so one range is
/// enough.
fn parts(list: Vec<CommittedBlock>) -> CommittedRanges {
    let mut parts = CommittedRanges::with_capacity(list.len());
    let mut start = 0;
    for CommittedBlock { id, size, nonce } in list {
        if let Entry::Vacant(vacant) = parts.entry(id) {
            vacant.insert((start..start + size, nonce));
        }
        start += size;
    }
    parts
}
