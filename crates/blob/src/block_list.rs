//! Put Block List and Get Block List.
//!
//! Put Block List builds content from staged blocks and parts of the old content, without reading their
//! bytes. The commit fails if the blob or its staged blocks have changed since. So of two concurrent lists,
//! the second one is checked against the result of the first.
//!
//! The commit drops all staged blocks. It removes a small number of their rows; larger numbers are removed
//! later, see [`crate::background::dropped`].

mod assemble;

use bytes::Bytes;
use http::StatusCode;
use lazuli_concurrency::Access;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, xml};
use lazuli_store::{Partition, Reads, RowPosition};

use crate::access::replace::{ReplaceRequest, ReplaceResult, RunningReplace};
use crate::access::target::{State, Target};
use crate::content::block_list::{CommittedBlock, MAX_BLOCKS};
use crate::content::encryption::Seal;
use crate::model::keys;
use crate::model::record::{self, Blob, Kind, StagedBlock};
use crate::model::staging::{BlockId, Staging};
use crate::rules::new_blob::{ContentHeaderForms, new_blob_with};
use crate::rules::precondition::{Preconditions, not_found};
use crate::rules::tier::check_new_tier;
use crate::{BlobService, reply};
use assemble::{AssembledContent, BlockAssembler};

/// Maximum length of a block list document, in bytes. This is enough for the maximum number of blocks.
const MAX_DOCUMENT: usize = 8 << 20;
/// Staged blocks that are read at once. The rows of small blocks contain their bytes.
const READ_AT_ONCE: usize = 512;
/// Maximum number of times that a list is read because it has changed during the read.
const MAX_READS: usize = 16;

/// A block that a Put Block List names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedBlock {
    from: BlockSource,
    id: BlockId,
}

/// The blocks of the new blob, which must all have its encryption.
#[derive(Clone, Copy)]
struct NewBlockList<'a> {
    listed: &'a [ListedBlock],
    seal: Option<&'a Seal>,
}

/// The place where Put Block List looks for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockSource {
    Committed,
    Uncommitted,
    /// The staged blocks, then the committed ones.
    Latest,
}

impl BlobService {
    /// Handles Put Block List.
    pub(crate) async fn put_block_list(&self, mut request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob_with(&request, Kind::Block, ContentHeaderForms::Own)?;
        check_new_tier(Kind::Block, new.tier.tier, 0)?;
        let document = self.receive_document(&mut request, MAX_DOCUMENT).await?;
        let listed = parse(&document.bytes)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        new.encryption = seal.as_ref().map(|seal| seal.encryption.clone());
        let list = NewBlockList { listed: &listed, seal: seal.as_ref() };
        let writer = self.extents.writer();
        let write = ReplaceRequest::write(&request, &target, &preconditions, Kind::Block, writer.clone());
        let mut replacement =
            RunningReplace::new(self, ReplaceRequest { uses_blocks: true, ..write }).await?;
        let blocks = BlockAssembler { service: self, partition: &target.partition, writer: &writer };
        let outcome = commit_blocks(&mut replacement, &blocks, list, &new).await;
        let blob = replacement.finish(outcome).await?;
        let mut response = reply::write_reply(StatusCode::CREATED, &blob, request.version);
        reply::digests(&mut response.headers, document.md5, document.crc64, request.version);
        Ok(response)
    }

    /// Handles Get Block List.
    pub(crate) async fn get_block_list(&self, request: Request) -> Result<Response, Refusal> {
        let (shows_committed, shows_uncommitted) = list_type(&request.query)?;
        let preconditions = Preconditions::of_tags(&request)?;
        let target = self.target(&request).await?;
        let shows_uncommitted = shows_uncommitted && request.caller != Caller::Anonymous;
        let BlockLists { blob, committed, mut uncommitted } =
            self.block_lists(&target, &preconditions, shows_committed, shows_uncommitted).await?;
        let mut document = xml::Writer::new();
        document.open("BlockList");
        if shows_committed {
            let blocks = committed.iter().map(|block| (block.id.to_string(), block.size));
            write_blocks(&mut document, "CommittedBlocks", blocks);
        }
        if shows_uncommitted {
            uncommitted.sort_unstable();
            write_blocks(&mut document, "UncommittedBlocks", uncommitted.into_iter());
        }
        let mut response = Response::xml(document.finish());
        if blob.committed {
            reply::validators(&mut response.headers, blob.validators(), request.version);
            reply::put(&mut response.headers, "x-ms-blob-content-length", blob.content.len().to_string());
        }
        Ok(response)
    }

    /// Reads a blob and its blocks in a consistent state.
    async fn block_lists(
        &self,
        target: &Target,
        preconditions: &Preconditions,
        committed: bool,
        uncommitted: bool,
    ) -> Result<BlockLists, Refusal> {
        if target.state != State::Current {
            return self.block_lists_of_earlier(target, preconditions, committed).await;
        }
        let watched = Reads::keys([keys::BASE, keys::STAGED_COUNT]);
        for _ in 0..MAX_READS {
            let pin = self.pin();
            let set = self.rows.read(&target.partition, &watched).await?;
            let now = self.store.now();
            let blob = record::blob(set.rows[0].as_ref());
            let blob = blob.map_err(|damage| damage.at(&target.partition))?;
            let blob = blob.filter(|blob| blob.is_present(now));
            preconditions.admit_lease(blob.as_ref(), Access::Read, now)?;
            let blob = blob.ok_or_else(not_found)?;
            check_kind(&blob)?;
            preconditions.check_tags(Some(&blob))?;
            let _held = pin.hold(blob.contents());
            let mut lists = BlockLists { blob, committed: vec![], uncommitted: vec![] };
            if committed {
                lists.committed = self.read_block_list(&lists.blob.block_list).await?;
            }
            let Some(staging) = lists.blob.staged(now).filter(|_| uncommitted) else { return Ok(lists) };
            lists.uncommitted = self.read_uncommitted(&target.partition, staging).await?;
            if self.rows.read(&target.partition, &watched).await?.rows == set.rows {
                return Ok(lists);
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// Reads a snapshot or an earlier version and its blocks. These cannot have staged blocks.
    async fn block_lists_of_earlier(
        &self,
        target: &Target,
        preconditions: &Preconditions,
        committed: bool,
    ) -> Result<BlockLists, Refusal> {
        let found = self.find(target).await?;
        let now = found.as_ref().map_or(self.store.now(), |found| found.now);
        preconditions.admit_lease(found.as_ref().map(|found| &found.blob), Access::Read, now)?;
        let found = found.ok_or_else(not_found)?;
        check_kind(&found.blob)?;
        preconditions.check_tags(Some(&found.blob))?;
        let committed = if committed { self.read_block_list(&found.blob.block_list).await? } else { vec![] };
        Ok(BlockLists { blob: found.blob, committed, uncommitted: vec![] })
    }

    /// Reads the ids and sizes of all staged blocks.
    async fn read_uncommitted(
        &self,
        partition: &Partition,
        staging: Staging,
    ) -> Result<Vec<(String, u64)>, Refusal> {
        let mut blocks = vec![];
        let mut range = keys::staged_in(staging.generation);
        loop {
            let reads = Reads::default().and_range(range.clone(), READ_AT_ONCE);
            let mut set = self.rows.read(partition, &reads).await?;
            let Some(page) = set.ranges.pop() else { return Ok(blocks) };
            for row in &page.rows {
                if let Some(keys::RowKind::Staged { id, .. }) = keys::row_kind(&row.key) {
                    let id = BlockId(Bytes::copy_from_slice(id));
                    let block = StagedBlock::decode(&row.value);
                    let block = block.map_err(|damage| damage.at(RowPosition::new(partition, &row.key)))?;
                    blocks.push((id.to_string(), block.content.len()));
                }
            }
            if !page.more {
                return Ok(blocks);
            }
            range.start = page.range.end;
        }
    }
}

/// Commits a blob that consists of the listed blocks.
async fn commit_blocks(
    replacement: &mut RunningReplace<'_>,
    blocks: &BlockAssembler<'_>,
    list: NewBlockList<'_>,
    new: &Blob,
) -> Result<ReplaceResult, Refusal> {
    loop {
        let mut admitted = replacement.admit(|_, _| Ok(new.clone())).await?;
        let used = match blocks.assemble(admitted.old.as_ref(), list, admitted.now).await {
            Ok(AssembledContent { content, block_list, staged }) => {
                (admitted.new.content, admitted.new.block_list) = (content, block_list);
                staged
            }
            // The block may be missing because a concurrent list has used it since the blob was read.
            Err(refused) => match replacement.is_current(&admitted).await? {
                true => return Err(refused),
                false => continue,
            },
        };
        if let Some(replaced) = replacement.commit(admitted, used).await? {
            return Ok(replaced);
        }
    }
}

/// A blob with its blocks.
struct BlockLists {
    blob: Blob,
    committed: Vec<CommittedBlock>,
    /// The id as text, and the size in bytes.
    uncommitted: Vec<(String, u64)>,
}

fn check_kind(blob: &Blob) -> Result<(), Refusal> {
    if blob.kind == Kind::Block { Ok(()) } else { Err(ErrorCode::InvalidBlobType.into()) }
}

/// Returns whether `blocklisttype` asks for committed and for uncommitted blocks.
fn list_type(query: &Query) -> Result<(bool, bool), Refusal> {
    const NAME: &str = "blocklisttype";
    let text = query.get(NAME).unwrap_or_default();
    match text.to_ascii_lowercase().as_str() {
        "" | "committed" => Ok((true, false)),
        "uncommitted" => Ok((false, true)),
        "all" => Ok((true, true)),
        _ => Err(Refusal::invalid_query(NAME, text, "It has to be committed, uncommitted or all.")),
    }
}

fn write_blocks(
    document: &mut xml::Writer,
    element: &'static str,
    blocks: impl Iterator<Item = (String, u64)>,
) {
    document.open(element);
    for (name, size) in blocks {
        document.open("Block").text("Name", name).text("Size", size).close();
    }
    document.close();
}

/// Parses the body of Put Block List.
pub(crate) fn parse(document: &[u8]) -> Result<Vec<ListedBlock>, Refusal> {
    let mut listed = vec![];
    let mut xml = xml::Reader::root(document, "BlockList")?;
    while let Some(element) = xml.child()? {
        let from = match element {
            "Committed" => BlockSource::Committed,
            "Uncommitted" => BlockSource::Uncommitted,
            "Latest" => BlockSource::Latest,
            _ => return Err(xml.unsupported()),
        };
        if listed.len() == MAX_BLOCKS {
            return Err(ErrorCode::BlockListTooLong.into());
        }
        let id = BlockId::parse(xml.text()?.trim()).ok_or(ErrorCode::InvalidBlockId)?;
        listed.push(ListedBlock { from, id });
    }
    xml.finish()?;
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_names_blocks_and_the_list_they_are_from() {
        let document = "\u{feff}<?xml version='1.0'?><BlockList> <Committed>AA==</Committed>
            <Latest> AAA= </Latest><Uncommitted>AAAA</Uncommitted></BlockList>";
        let listed = parse(document.as_bytes()).unwrap();
        let read: Vec<_> = listed.iter().map(|block| (block.from, block.id.0.len())).collect();
        assert_eq!(
            read,
            [(BlockSource::Committed, 1), (BlockSource::Latest, 2), (BlockSource::Uncommitted, 3)]
        );
        assert_eq!(parse(b"<BlockList />"), Ok(vec![]));
        for (document, code) in [
            ("", ErrorCode::InvalidXmlDocument),
            ("<Blocks/>", ErrorCode::InvalidXmlDocument),
            ("<BlockList><Latest>AA==</Latest>", ErrorCode::InvalidXmlDocument),
            ("<BlockList><Newest>AA==</Newest></BlockList>", ErrorCode::UnsupportedXmlNode),
            ("<BlockList><Latest>?</Latest></BlockList>", ErrorCode::InvalidBlockId),
            ("<BlockList><Latest/></BlockList>", ErrorCode::InvalidBlockId),
        ] {
            assert_eq!(parse(document.as_bytes()).unwrap_err().code(), code, "{document}");
        }
        let long = |n| format!("<BlockList>{}</BlockList>", "<Latest>AA==</Latest>".repeat(n));
        assert_eq!(parse(long(MAX_BLOCKS).as_bytes()).map(|listed| listed.len()), Ok(MAX_BLOCKS));
        let code = parse(long(MAX_BLOCKS + 1).as_bytes()).unwrap_err().code();
        assert_eq!(code, ErrorCode::BlockListTooLong);
    }
}
