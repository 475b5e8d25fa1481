//! Put Block List and Get Block List.
//!
//! The committed list says which blocks a blob's content consists of, in order: the content itself does not know. It is
//! content too, because the list of a large blob does not fit into a row:
//!
//! ```text
//! list  = block*
//! block = id-length:u8  id  size:u64  nonce-length:u8 (0 or 16)  nonce
//! ```
//!
//! Put Block List builds content out of staged blocks and parts of the old content, without touching their bytes, and
//! commits it if neither the blob nor what is staged has changed meanwhile. So of two lists at once, one comes second and
//! is judged by what the first one left.

mod assemble;

use std::ops::ControlFlow;

use bytes::{Buf, BufMut, Bytes};
use http::StatusCode;
use lazuli_concurrency::Access;
use lazuli_extents::{Content, Upload, Writer, read_all};
use lazuli_protocol::request::Caller;
use lazuli_protocol::{ErrorCode, Query, Refusal, Request, Response, xml};
use lazuli_store::{Attempts, Decision, Partition, Reads, TransactError};

use crate::block::BlockId;
use crate::cipher::Nonce;
use crate::encryption::Seal;
use crate::precondition::Preconditions;
use crate::protection::Protecting;
use crate::put::{ContentHeaderForms, Replaced, Replacement, new_blob_with};
use crate::record::{self, Blob, Damage, Kind, StagedBlock};
use crate::tag_index::{Indexed, Tagging};
use crate::target::{State, Target, not_found};
use crate::tier::check_new_tier;
use crate::{BlobService, XML, keys, reply};
use assemble::Blocks;

/// Blocks of a blob.
const MAX_BLOCKS: usize = 50_000;
/// The longest document that can name them.
const MAX_DOCUMENT: usize = 8 << 20;
/// The longest list as it is stored.
const MAX_LIST: usize = MAX_BLOCKS * (1 + 64 + 8 + 1 + 16);
/// Staged blocks that are read at once. Small ones hold their bytes themselves.
const READ_AT_ONCE: usize = 512;
/// How often a list is read again because it changed while it was read.
const MAX_READS: usize = 16;

/// A block of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedBlock {
    pub(crate) id: BlockId,
    pub(crate) size: u64,
    /// What its encryption starts from.
    pub(crate) nonce: Option<[u8; 16]>,
}

/// A block that a Put Block List names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    from: From,
    id: BlockId,
}

/// The blocks that a blob is to be made of, which all have to be encrypted in that way.
#[derive(Clone, Copy)]
struct NewList<'a> {
    listed: &'a [Listed],
    seal: Option<&'a Seal>,
}

/// Where a block is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Committed,
    Uncommitted,
    /// Among the staged ones, else among the committed.
    Latest,
}

impl BlobService {
    /// Put Block List.
    pub(crate) async fn put_block_list(&self, mut request: Request) -> Result<Response, Refusal> {
        let preconditions = Preconditions::of_write(&request)?;
        let mut new = new_blob_with(&request, Kind::Block, ContentHeaderForms::Own)?;
        check_new_tier(Kind::Block, new.tier.tier, 0)?;
        let document = self.receive_document(&mut request, MAX_DOCUMENT).await?;
        let listed = parse(&document.bytes)?;
        let target = self.write_target(&request).await?;
        let seal = self.seal(&request, &target.container)?;
        new.encryption = seal.as_ref().map(|seal| seal.encryption.clone());
        let list = NewList { listed: &listed, seal: seal.as_ref() };
        let mut indexed = Indexed::default();
        let Replaced { blob, released } = loop {
            let committed = self.commit_blocks(&request, &target, &preconditions, list, &new, &indexed).await;
            match self.settle_index(&target.partition, indexed, committed).await? {
                ControlFlow::Break(replaced) => break replaced,
                ControlFlow::Continue(next) => indexed = next,
            }
        };
        self.extents.released(released);
        let mut response = reply::written(StatusCode::CREATED, &blob, request.version);
        reply::digests(&mut response.headers, document.md5, document.crc64, request.version);
        Ok(response)
    }

    /// Makes the blob of the blocks that are listed, once its tags are indexed.
    async fn commit_blocks(
        &self,
        request: &Request,
        target: &Target,
        preconditions: &Preconditions,
        list: NewList<'_>,
        new: &Blob,
        indexed: &Indexed,
    ) -> Result<Tagging<Replaced>, Refusal> {
        let refusal = |error: TransactError<_>| lazuli_account::refusal(error.widen(), crate::container_gone);
        let history = self.history(&request.account).await?;
        let replacement =
            Replacement { caller: &request.caller, preconditions, access: Access::Write, history };
        let protecting = Protecting::if_asked(request, target)?;
        let writer = self.extents.writer();
        let mut attempts = Attempts::new(&*self.store, &self.gate, &target.partition);
        loop {
            // A sweep waits for pins, so none is held in a line.
            attempts.wait_turn().await;
            let pin = self.pin();
            // The row that counts staged blocks stands for all of them.
            let reads = Reads::keys([keys::BASE, keys::STAGED_COUNT]);
            let attempt = attempts.begin(reads).await.map_err(refusal)?;
            let now = attempt.view().now;
            let old = record::blob(attempt.view().row(&keys::BASE))?;
            if let Some(old) = &old {
                writer.hold(pin, old.contents());
            }
            preconditions.admit_create_of(old.as_ref(), Kind::Block, Access::Write, now)?;
            if new.tags != indexed.tags {
                return Ok(Tagging::Index(new.tags.clone()));
            }
            let blocks = Blocks { service: self, partition: &target.partition, writer: &writer };
            let (content, block_list) = match blocks.assemble(old.as_ref(), list, now).await {
                Ok(assembled) => assembled,
                // A block may be missing only because another list took it after the blob was read.
                Err(refused) => match attempts.is_current(&attempt).await.map_err(reply::unreadable)? {
                    true => return Err(refused),
                    false => continue,
                },
            };
            let new = Blob { content, block_list, ..new.clone() };
            match replacement.decide(&attempt.view(), old.as_ref(), new, indexed)? {
                Decision::Answer(tagging) => return Ok(tagging),
                // The row of the blob is all that it has to know.
                Decision::Read(_) => return Err(ErrorCode::InternalError.into()),
                Decision::Write(change, tagging) => {
                    self.announce_protection(protecting.as_ref()).await?;
                    if attempts.commit(attempt, change).await.map_err(refusal)? {
                        return Ok(tagging);
                    }
                }
            }
        }
    }

    /// Get Block List.
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
        let mut response = Response::with_body(StatusCode::OK, XML, document.finish());
        if blob.committed {
            reply::validators(&mut response.headers, blob.validators(), request.version);
            reply::put(&mut response.headers, "x-ms-blob-content-length", blob.content.len().to_string());
        }
        Ok(response)
    }

    /// A blob and its blocks, all of one moment.
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
            let set = self.read(&target.partition, &watched).await?;
            let now = self.store.now();
            let blob = record::blob(set.rows[0].as_ref())?.filter(|blob| blob.is_there(now));
            preconditions.admit_lease(blob.as_ref(), Access::Read, now)?;
            let blob = blob.ok_or_else(not_found)?;
            check_kind(&blob)?;
            preconditions.check_tags(Some(&blob))?;
            let _held = pin.hold(blob.contents());
            let mut lists = BlockLists { blob, committed: vec![], uncommitted: vec![] };
            if committed {
                lists.committed = self.read_block_list(&lists.blob.block_list).await?;
            }
            if !uncommitted || lists.blob.staged(now).is_none() {
                return Ok(lists);
            }
            lists.uncommitted = self.read_uncommitted(&target.partition).await?;
            if self.read(&target.partition, &watched).await?.rows == set.rows {
                return Ok(lists);
            }
        }
        Err(ErrorCode::ServerBusy.into())
    }

    /// A snapshot or a version, for which nothing can be staged.
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

    /// Names and sizes of all staged blocks.
    async fn read_uncommitted(&self, partition: &Partition) -> Result<Vec<(String, u64)>, Refusal> {
        let mut blocks = vec![];
        let mut range = keys::all_staged();
        loop {
            let reads = Reads::default().and_range(range.clone(), READ_AT_ONCE);
            let mut set = self.read(partition, &reads).await?;
            let Some(page) = set.ranges.pop() else { return Ok(blocks) };
            for row in &page.rows {
                if let Some(keys::RowKind::Staged(id)) = keys::row_kind(&row.key) {
                    let id = BlockId(Bytes::copy_from_slice(id));
                    blocks.push((id.to_string(), StagedBlock::decode(&row.value)?.content.len()));
                }
            }
            if !page.more {
                return Ok(blocks);
            }
            range.start = page.range.end;
        }
    }

    /// The committed blocks of a list.
    pub(crate) async fn read_block_list(&self, list: &Content) -> Result<Vec<CommittedBlock>, Refusal> {
        let bytes = read_all(&self.extents, list, 0..list.len(), MAX_LIST).await.map_err(reply::extents)?;
        Ok(decode(bytes).ok_or(Damage::Undecodable)?)
    }

    /// Stores a list of blocks. Not durable before a sync.
    pub(crate) async fn write_block_list(
        &self,
        writer: &Writer,
        blocks: &[CommittedBlock],
    ) -> Result<Content, Refusal> {
        let mut upload = Upload::new(&self.extents, writer);
        upload.push(encode(blocks)).await.map_err(reply::extents)?;
        upload.finish().await.map_err(reply::extents)
    }
}

/// A blob with its blocks.
struct BlockLists {
    blob: Blob,
    committed: Vec<CommittedBlock>,
    /// The text of the id, and the size.
    uncommitted: Vec<(String, u64)>,
}

fn check_kind(blob: &Blob) -> Result<(), Refusal> {
    if blob.kind == Kind::Block { Ok(()) } else { Err(ErrorCode::InvalidBlobType.into()) }
}

/// Whether `blocklisttype` wants to see committed and uncommitted blocks.
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

/// Reads the body of a Put Block List.
pub(crate) fn parse(document: &[u8]) -> Result<Vec<Listed>, Refusal> {
    let mut listed = vec![];
    let mut xml = xml::Reader::root(document, "BlockList")?;
    while let Some(element) = xml.child()? {
        let from = match element {
            "Committed" => From::Committed,
            "Uncommitted" => From::Uncommitted,
            "Latest" => From::Latest,
            _ => return Err(xml.unsupported()),
        };
        if listed.len() == MAX_BLOCKS {
            return Err(ErrorCode::BlockListTooLong.into());
        }
        let id = BlockId::parse(xml.text()?.trim()).ok_or(ErrorCode::InvalidBlockId)?;
        listed.push(Listed { from, id });
    }
    xml.finish()?;
    Ok(listed)
}

/// What the list of an encrypted append blob gains with a block: a run has no name.
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
    fn a_stored_list_is_read_back_and_a_damaged_one_is_not() {
        let blocks =
            vec![block("a", 1, None), block("bc", u64::MAX >> 8, Some([7; 16])), block("d", 3, None)];
        let bytes = encode(&blocks);
        assert_eq!(decode(bytes.clone()), Some(blocks));
        assert_eq!(decode(Bytes::new()), Some(vec![]));
        let readable: Vec<_> = (0..bytes.len()).filter(|cut| decode(bytes.slice(..*cut)).is_some()).collect();
        assert_eq!(readable, [0, 11, 39], "only where a block ends");
    }

    #[test]
    fn documents_name_blocks_and_where_to_find_them() {
        let document = "\u{feff}<?xml version='1.0'?><BlockList> <Committed>AA==</Committed>
            <Latest> AAA= </Latest><Uncommitted>AAAA</Uncommitted></BlockList>";
        let listed = parse(document.as_bytes()).unwrap();
        let read: Vec<_> = listed.iter().map(|block| (block.from, block.id.0.len())).collect();
        assert_eq!(read, [(From::Committed, 1), (From::Latest, 2), (From::Uncommitted, 3)]);
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
