//! Builds content of known length from a stream of bytes. Pages of zeros stay holes.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use lazuli_extents::{Content, Edit, Error, Extents, Writer};

/// Bytes of a page, the unit that is tested for zeros.
const PAGE: usize = 512;
/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// Encrypts bytes that belong at an offset.
pub type Encrypt = Box<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// Content under construction.
pub struct SparseWriter {
    edit: Edit,
    encrypt: Option<Encrypt>,
    gathered: BytesMut,
    /// Offset of the gathered bytes.
    at: u64,
}

impl SparseWriter {
    /// Creates content of `length` bytes, encrypted with `encrypt` if given.
    pub fn new(extents: &Arc<dyn Extents>, writer: &Writer, length: u64, encrypt: Option<Encrypt>) -> Self {
        let edit = Edit::new(extents, writer, &Content::hole(length));
        Self { edit, encrypt, gathered: BytesMut::new(), at: 0 }
    }

    /// Appends bytes.
    pub async fn push(&mut self, bytes: Bytes) -> Result<(), Error> {
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            self.gathered.reserve(BUFFER_BYTES - self.gathered.len());
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER_BYTES - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            bytes = later;
            if self.gathered.len() == BUFFER_BYTES {
                self.write().await?;
            }
        }
        Ok(())
    }

    /// Finishes the content. The content is not durable yet.
    pub async fn finish(mut self) -> Result<Content, Error> {
        self.write().await?;
        self.edit.finish().await
    }

    async fn write(&mut self) -> Result<(), Error> {
        let mut gathered = std::mem::take(&mut self.gathered);
        let runs = nonzero_runs(&gathered);
        if let Some(encrypt) = &self.encrypt {
            for run in &runs {
                encrypt(self.at + run.start as u64, &mut gathered[run.clone()]);
            }
        }
        let gathered = gathered.freeze();
        for run in runs {
            let offset = self.at + run.start as u64;
            self.edit.write(offset, &Content::inline(gathered.slice(run))).await?;
        }
        self.at += gathered.len() as u64;
        Ok(())
    }
}

/// Returns the runs of pages that are not all zeros.
fn nonzero_runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for (at, page) in bytes.chunks(PAGE).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = at * PAGE;
        match runs.last_mut() {
            Some(run) if run.end == start => run.end += page.len(),
            _ => runs.push(start..start + page.len()),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_not_written() {
        let mut bytes = vec![0; 6 * PAGE];
        assert_eq!(nonzero_runs(&bytes), []);
        for at in [512, 1024, 5 * 512 + 511] {
            bytes[at] = 1;
        }
        assert_eq!(nonzero_runs(&bytes), [512..1536, 2560..3072]);
    }
}
