//! Moves buffered bytes into extents.

use bytes::Bytes;
use lazuli_extents::{Content, Edit, MAX_EXTENT_BYTES};

use crate::FileService;
use crate::failure::Failure;
use crate::write_back::FileLock;

/// Runs shorter than this share an extent.
const SMALL_RUN: usize = 64 << 10;

impl FileService {
    /// Puts buffered writes into extents and into the content of the node.
    pub(crate) async fn spill(&self, lock: &FileLock) -> Result<(), Failure> {
        let file = lock.file;
        let batch = self.opens.with(file, |state| state.buffer.take_batch(|| self.extents.writer()));
        let Some(batch) = batch else { return Ok(()) };
        // The caller holds the file lock, so the row keeps referring to the old content. Hold that content
        // anyway, as every writer does.
        batch.writer.hold(self.extents.pin(), [&batch.content]);
        let mut edit = Edit::new(&self.extents, &batch.writer, &batch.content);
        for (offset, parts) in batch.runs {
            let length: usize = parts.iter().map(Bytes::len).sum();
            if length < SMALL_RUN {
                edit.write(offset, &Content::inline(parts.concat())).await?;
                continue;
            }
            let mut at = offset;
            for payload in payloads(parts) {
                let extent = self.extents.append(&batch.writer, payload).await?;
                edit.write(at, &Content::extent(extent)).await?;
                at += u64::from(extent.length);
            }
        }
        let content = edit.finish().await?;
        if self.opens.with(file, |state| state.buffer.finish_batch(content)).is_some() {
            // Start writing to disk early, so that the final sync is short.
            let extents = self.extents.clone();
            tokio::spawn(async move { extents.sync().await });
        }
        Ok(())
    }
}

/// Groups parts into as few payloads of extents as possible.
fn payloads(parts: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let (mut payloads, mut payload, mut room) = (vec![], vec![], MAX_EXTENT_BYTES);
    for mut part in parts {
        while part.len() > room {
            if room > 0 {
                payload.push(part.split_to(room));
            }
            payloads.push(std::mem::take(&mut payload));
            room = MAX_EXTENT_BYTES;
        }
        room -= part.len();
        payload.push(part);
    }
    if !payload.is_empty() {
        payloads.push(payload);
    }
    payloads
}
