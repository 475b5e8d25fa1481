//! Puts the content of a blob together out of staged blocks and parts of the content that it has, without reading a byte
//! of either.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use lazuli_concurrency::Timestamp;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Partition, Reads};

use super::{CommittedBlock, From, Listed, NewList, READ_AT_ONCE};
use crate::block::BlockId;
use crate::cipher::Nonce;
use crate::encryption::check_update;
use crate::record::{Blob, StagedBlock};
use crate::{BlobService, keys, reply};

/// Puts content together out of blocks.
pub(super) struct Blocks<'a> {
    pub(super) service: &'a BlobService,
    pub(super) partition: &'a Partition,
    pub(super) writer: &'a Writer,
}

/// Where the committed blocks of a blob lie in its content.
type Parts = HashMap<BlockId, (Range<u64>, Option<Nonce>)>;

impl Blocks<'_> {
    /// The content of the blocks that are listed and the list to store with it, both durable.
    pub(super) async fn assemble(
        &self,
        old: Option<&Blob>,
        NewList { listed, seal }: NewList<'_>,
        now: Timestamp,
    ) -> Result<(Content, Content), Refusal> {
        let service = self.service;
        let live = old.filter(|old| old.is_live(now));
        let old_content = live.map(|old| old.content.clone()).unwrap_or_default();
        let parts = match live {
            Some(old) if listed.iter().any(|block| block.from != From::Uncommitted) => {
                parts(service.read_block_list(&old.block_list).await?)
            }
            _ => Parts::new(),
        };
        let has_staged = old.is_some_and(|old| old.is_there(now) && old.staged(now).is_some());
        let mut edit = Edit::new(&service.extents, self.writer, &Content::empty());
        // Parts of the old content that lie one behind the other are taken over as one.
        let mut run = 0..0;
        let mut list = Vec::with_capacity(listed.len());
        let mut is_staged = HashMap::new();
        for some in listed.chunks(READ_AT_ONCE) {
            let staged = if has_staged { self.staged(some).await? } else { HashMap::new() };
            for Listed { from, id } in some {
                let staged = staged.get(id).filter(|_| *from != From::Committed);
                let part = parts.get(id).filter(|_| *from != From::Uncommitted);
                let (size, nonce) = match (staged, part) {
                    (Some(block), _) => {
                        check_update(block.encryption.as_ref(), seal)?;
                        edit.append_part(&old_content, run).await.map_err(reply::extents)?;
                        run = 0..0;
                        edit.append(&block.content).await.map_err(reply::extents)?;
                        (block.content.len(), block.nonce)
                    }
                    (None, Some((part, nonce))) => {
                        check_update(live.and_then(|old| old.encryption.as_ref()), seal)?;
                        if run.end != part.start {
                            edit.append_part(&old_content, run).await.map_err(reply::extents)?;
                            run = part.start..part.start;
                        }
                        run.end = part.end;
                        (part.end - part.start, *nonce)
                    }
                    (None, None) => return Err(ErrorCode::InvalidBlockList.into()),
                };
                // Two blocks of one name could not be told apart afterwards.
                if *is_staged.entry(id).or_insert(staged.is_some()) != staged.is_some() {
                    return Err(ErrorCode::InvalidBlockList.into());
                }
                list.push(CommittedBlock { id: id.clone(), size, nonce });
            }
        }
        edit.append_part(&old_content, run).await.map_err(reply::extents)?;
        let content = edit.finish().await.map_err(reply::extents)?;
        let list = service.write_block_list(self.writer, &list).await?;
        service.sync(&content).await?;
        service.sync(&list).await?;
        Ok((content, list))
    }

    /// Those of the blocks that are staged.
    async fn staged(&self, listed: &[Listed]) -> Result<HashMap<BlockId, StagedBlock>, Refusal> {
        let ids: Vec<_> =
            listed.iter().filter(|block| block.from != From::Committed).map(|block| &block.id).collect();
        let pin = self.service.pin();
        let reads = Reads::keys(ids.iter().map(|id| keys::staged(&id.0)));
        let set = self.service.read(self.partition, &reads).await?;
        let mut staged = HashMap::new();
        for (id, row) in ids.into_iter().zip(set.rows) {
            if let Some(row) = row {
                staged.insert(id.clone(), StagedBlock::decode(&row.value)?);
            }
        }
        self.writer.hold(pin, staged.values().map(|block| &block.content));
        Ok(staged)
    }
}

/// Where each block lies. A block that is there twice is the same twice, so one place is enough.
fn parts(list: Vec<CommittedBlock>) -> Parts {
    let mut parts = Parts::with_capacity(list.len());
    let mut start = 0;
    for CommittedBlock { id, size, nonce } in list {
        if let Entry::Vacant(vacant) = parts.entry(id) {
            vacant.insert((start..start + size, nonce));
        }
        start += size;
    }
    parts
}
