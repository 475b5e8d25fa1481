//! Building the new content of a file.

use std::ops::Range;

use bytes::Bytes;
use lazuli_extents::{Content, Edit, Writer};

use crate::FileService;

/// Clearing frees whole units of this many bytes.
const UNIT: u64 = 512;

/// A change of content.
#[derive(Clone, Debug)]
pub(crate) enum ContentEdit {
    Keep,
    Write(u64, Bytes),
    Clear(Range<u64>),
    Resize(u64),
}

impl FileService {
    /// Returns the changed content, which is not durable yet.
    pub(crate) async fn build_content(
        &self,
        writer: &Writer,
        content: &Content,
        change: ContentEdit,
    ) -> Result<Content, lazuli_extents::Error> {
        let mut edit = Edit::new(&self.extents, writer, content);
        match change {
            ContentEdit::Keep => return Ok(content.clone()),
            ContentEdit::Write(offset, bytes) => edit.write(offset, &Content::inline(bytes)).await?,
            ContentEdit::Resize(length) => edit.resize(length).await?,
            ContentEdit::Clear(range) => {
                // Free whole units, and write zeros at the edges of the range.
                let inner = range.start.next_multiple_of(UNIT)..range.end / UNIT * UNIT;
                let edges = match inner.start < inner.end {
                    true => [range.start..inner.start, inner.end..range.end],
                    false => [range.clone(), range.end..range.end],
                };
                for edge in edges.into_iter().filter(|edge| edge.start < edge.end) {
                    let zeros = Content::inline(vec![0; (edge.end - edge.start) as usize]);
                    edit.write(edge.start, &zeros).await?;
                }
                if inner.start < inner.end {
                    edit.clear(inner).await?;
                }
            }
        }
        edit.finish().await
    }
}
