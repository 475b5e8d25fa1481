//! Changing the content of a blob that is there: an append, pages, a new length.
//!
//! The new content is built from the old, which takes I/O between reading the row and committing it. So the rule judges
//! first, the content is built, and the commit holds only if the row is still the one that was judged; else all of it
//! happens again. Bodies are received once, before any of this.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::Refusal;
use lazuli_store::{Attempts, Change, Mutation, Partition, Reads, TransactError, View};

use crate::record::{self, Blob};
use crate::{BlobService, keys, reply};

/// What a rule makes of a blob.
pub(crate) struct Edited {
    /// The new state, still with the old content.
    pub(crate) blob: Blob,
    /// What becomes of the content.
    pub(crate) content: ContentEdit,
    /// The decision holds before this moment.
    pub(crate) valid_until: Option<Timestamp>,
}

/// A change of content.
#[derive(Clone, Debug)]
pub(crate) enum ContentEdit {
    /// None.
    Keep,
    /// More at the end, and so in the list of runs if it is encrypted. It has to be durable.
    Append { content: Content, run: Option<Bytes> },
    /// Other bytes in the place of as many from there on. They have to be durable.
    Write { offset: u64, content: Content },
    /// A hole there.
    Clear(Range<u64>),
    /// Cut off, or filled up with a hole.
    Resize(u64),
}

impl ContentEdit {
    /// Bytes that it brings.
    fn brings(&self) -> u64 {
        match self {
            Self::Append { content, .. } | Self::Write { content, .. } => content.allocated(),
            Self::Keep | Self::Clear(_) | Self::Resize(_) => 0,
        }
    }
}

impl BlobService {
    /// Changes the blob in a partition as `rule` decides, and gives its new state. `writer` keeps the old content and
    /// what is written of the new.
    pub(crate) async fn edit(
        &self,
        partition: &Partition,
        writer: &Writer,
        mut rule: impl FnMut(&View<'_>, Option<Blob>) -> Result<Edited, Refusal>,
    ) -> Result<Blob, Refusal> {
        let refusal = |error: TransactError<_>| lazuli_account::refusal(error.widen(), crate::container_gone);
        let mut attempts = Attempts::new(&*self.store, &self.gate, partition);
        loop {
            // A sweep waits for pins, so none is held in a line.
            attempts.wait_turn().await;
            let pin = self.pin();
            let attempt = attempts.begin(Reads::key(keys::BASE)).await.map_err(refusal)?;
            let view = attempt.view();
            let old = record::blob(view.row(&keys::BASE))?;
            if let Some(old) = &old {
                writer.hold(pin, old.contents());
            }
            let Edited { mut blob, content, valid_until } = rule(&view, old)?;
            let before = blob.content.allocated() + content.brings();
            blob.content = self.edited(writer, &blob.content, &content).await?;
            if let ContentEdit::Append { run: Some(run), .. } = content {
                let more = ContentEdit::Append { content: Content::inline(run), run: None };
                blob.block_list = self.edited(writer, &blob.block_list, &more).await?;
            }
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            let change = Change::of([put]).until(valid_until);
            if attempts.commit(attempt, change).await.map_err(refusal)? {
                self.extents.released(before.saturating_sub(blob.content.allocated()));
                return Ok(blob);
            }
        }
    }

    /// The content after a change, durable.
    async fn edited(
        &self,
        writer: &Writer,
        content: &Content,
        change: &ContentEdit,
    ) -> Result<Content, Refusal> {
        let mut edit = Edit::new(&self.extents, writer, content);
        match change {
            ContentEdit::Keep => return Ok(content.clone()),
            ContentEdit::Append { content, .. } => edit.append(content).await,
            ContentEdit::Write { offset, content } => edit.write(*offset, content).await,
            ContentEdit::Clear(range) => edit.clear(range.clone()).await,
            ContentEdit::Resize(length) => edit.resize(*length).await,
        }
        .map_err(reply::extents)?;
        let content = edit.finish().await.map_err(reply::extents)?;
        self.sync(&content).await?;
        Ok(content)
    }
}
