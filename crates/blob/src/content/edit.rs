//! Changes the content of an existing blob: an append, pages, a new length.
//!
//! Building the new content from the old takes I/O between reading the row and committing it. So a rule
//! judges the row, then the content is built, and the commit fails if the row has changed since. Then all of
//! this is repeated. The body of the request is received once, before that.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::Refusal;
use lazuli_store::{Change, Mutation, Partition, Reads, View};

use crate::model::keys;
use crate::model::record::Blob;
use crate::{BlobService, reply};

/// The change that a rule decides on.
pub(crate) struct Edited {
    /// The new state, with the old content.
    pub(crate) blob: Blob,
    /// The change of its content.
    pub(crate) content: ContentEdit,
    /// The decision holds before this moment.
    pub(crate) valid_until: Option<Timestamp>,
}

/// A change of content.
#[derive(Clone, Debug)]
pub(crate) enum ContentEdit {
    /// None.
    Keep,
    /// Append durable content, and an entry to the list of runs if it is encrypted.
    Append { content: Content, run: Option<Bytes> },
    /// Overwrite as many bytes with durable content.
    Write { offset: u64, content: Content },
    /// Replace a range by a hole.
    Clear(Range<u64>),
    /// Truncate, or extend with a hole.
    Resize(u64),
}

impl ContentEdit {
    /// Bytes of the content that it adds.
    fn added_bytes(&self) -> u64 {
        match self {
            Self::Append { content, .. } | Self::Write { content, .. } => content.extent_bytes(),
            Self::Keep | Self::Clear(_) | Self::Resize(_) => 0,
        }
    }
}

impl BlobService {
    /// Changes the blob in a partition as `rule` decides. Returns its new state. `writer` keeps the old and
    /// the new content.
    pub(crate) async fn edit(
        &self,
        partition: &Partition,
        writer: &Writer,
        mut rule: impl FnMut(&View<'_>, Option<Blob>) -> Result<Edited, Refusal>,
    ) -> Result<Blob, Refusal> {
        let refusal = |error| self.rows.refusal(error);
        let mut attempts = self.rows.attempts(partition);
        loop {
            let (attempt, old) = self.begin_pinned(&mut attempts, Reads::key(keys::BASE), writer).await?;
            let Edited { mut blob, content, valid_until } = rule(&attempt.view(), old)?;
            let before = blob.content.extent_bytes() + content.added_bytes();
            blob.content = self.edited(writer, &blob.content, &content).await?;
            if let ContentEdit::Append { run: Some(run), .. } = content {
                let more = ContentEdit::Append { content: Content::inline(run), run: None };
                blob.block_list = self.edited(writer, &blob.block_list, &more).await?;
            }
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            let change = Change::of([put]).until(valid_until);
            if attempts.commit(attempt, change).await.map_err(refusal)? {
                self.extents.released(before.saturating_sub(blob.content.extent_bytes()));
                return Ok(blob);
            }
        }
    }

    /// Returns the content after a change. It is durable.
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
        .map_err(reply::content_refusal)?;
        let content = edit.finish().await.map_err(reply::content_refusal)?;
        self.sync(&content).await?;
        Ok(content)
    }
}
