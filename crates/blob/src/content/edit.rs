//! Changes the content of an existing blob: appends, page writes, a new length.
//!
//! Building the new content needs I/O between reading the row and committing it. So a rule checks the row,
//! then the content is built, and the commit fails if the row has changed since. After such a conflict all
//! steps are repeated. The body of the request is received once, before the first attempt.

use std::ops::Range;

use bytes::Bytes;
use lazuli_concurrency::Timestamp;
use lazuli_extents::{Content, Edit, Writer};
use lazuli_protocol::Refusal;
use lazuli_store::{Change, Mutation, Partition, Reads, View};

use crate::model::keys;
use crate::model::record::Blob;
use crate::{BlobService, reply};

/// The change of a blob that a rule decides.
pub(crate) struct BlobChange {
    /// The new state, with the old content.
    pub(crate) blob: Blob,
    /// The change of the blob's content.
    pub(crate) content: ContentEdit,
    /// Time until which the decision holds.
    pub(crate) valid_until: Option<Timestamp>,
}

/// A change of content.
#[derive(Clone, Debug)]
pub(crate) enum ContentEdit {
    /// Leaves the content unchanged.
    Keep,
    /// Appends durable content. For encrypted content, also appends an entry to the list of runs.
    Append { content: Content, run: Option<Bytes> },
    /// Overwrites bytes with durable content of the same length.
    Write { offset: u64, content: Content },
    /// Replaces a range by a hole.
    Clear(Range<u64>),
    /// Truncates, or extends with a hole.
    Resize(u64),
}

impl ContentEdit {
    /// Returns the extent bytes that the change adds.
    fn added_bytes(&self) -> u64 {
        match self {
            Self::Append { content, .. } | Self::Write { content, .. } => content.extent_bytes(),
            Self::Keep | Self::Clear(_) | Self::Resize(_) => 0,
        }
    }
}

impl BlobService {
    /// Changes the blob in a partition as `rule` decides, and returns its new state. `writer` holds the old
    /// and the new content.
    pub(crate) async fn edit(
        &self,
        partition: &Partition,
        writer: &Writer,
        mut rule: impl FnMut(&View<'_>, Option<Blob>) -> Result<BlobChange, Refusal>,
    ) -> Result<Blob, Refusal> {
        let refusal = |error| self.rows.refusal(partition, error);
        let mut attempts = self.rows.attempts(partition);
        loop {
            let (attempt, old) = self.begin_pinned(&mut attempts, Reads::key(keys::BASE), writer).await?;
            let BlobChange { mut blob, content, valid_until } = rule(&attempt.view(), old)?;
            let before = blob.content.extent_bytes() + content.added_bytes();
            blob.content = self.apply_edit(writer, &blob.content, &content).await?;
            if let ContentEdit::Append { run: Some(run), .. } = content {
                let more = ContentEdit::Append { content: Content::inline(run), run: None };
                blob.block_list = self.apply_edit(writer, &blob.block_list, &more).await?;
            }
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            let change = Change::of([put]).until(valid_until);
            if attempts.commit(attempt, change).await.map_err(refusal)? {
                self.extents.released(before.saturating_sub(blob.content.extent_bytes()));
                return Ok(blob);
            }
        }
    }

    /// Builds the content after a change. The result is durable.
    async fn apply_edit(
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
