//! Copies sound content of records into a new directory. Extents keep their ids, so records need no change.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::LocalExtents;
use super::directory::read_segment_header;
use super::read::read_blocking;
use super::verify::{VerifiedExtent, Verifier};
use crate::extent::{Error, ExtentRef};
use crate::segment::{
    BLOCK, CHUNK, Checksums, FrameHeader, SegmentHeader, chunks, crc32c, frame_bytes, frame_offset,
    header_bytes,
};

/// Returns the bytes of its segment's file that an extent takes.
pub fn frame_range(extent: &ExtentRef) -> Range<u64> {
    let start = frame_offset(extent.id);
    start..start + frame_bytes(extent.length)
}

impl LocalExtents {
    /// Returns whether a segment exists.
    pub fn has_segment(&self, segment: u64) -> bool {
        self.0.directory.segments().contains(&segment)
    }
}

impl Verifier {
    /// Copies every chunk that was found sound to `data/segments`, which must not exist, and makes it
    /// durable. Other chunks of these extents become zeros. Calls `progress` with the bytes copied so far.
    /// Blocks.
    pub fn copy_into(&self, data: &Path, mut progress: impl FnMut(u64)) -> Result<(), Error> {
        let folder = data.join("segments");
        fs::create_dir(&folder)?;
        let mut segments: BTreeMap<u64, Vec<&VerifiedExtent>> = BTreeMap::new();
        for seen in self.seen.values().filter(|seen| seen.sound != 0) {
            segments.entry(seen.extent.id.segment()).or_default().push(seen);
        }
        let mut copied = 0;
        for (segment, mut extents) in segments {
            let Some(from) = self.extents.0.directory.file(segment)? else { continue };
            extents.sort_unstable_by_key(|seen| seen.extent.id);
            let to = folder.join(format!("{segment:016x}.seg"));
            let to = OpenOptions::new().write(true).create_new(true).open(to)?;
            let salt = salt(&from, segment, &extents)?;
            to.write_all_at(&SegmentHeader { id: segment, salt }.encode(), 0)?;
            let mut end = BLOCK;
            for seen in extents {
                copied += copy_extent(&from, &to, seen, salt)?;
                end = frame_offset(seen.extent.id) + frame_bytes(seen.extent.length);
                progress(copied);
            }
            to.set_len(end)?;
            to.sync_all()?;
        }
        File::open(&folder)?.sync_all()?;
        Ok(File::open(data)?.sync_all()?)
    }

    /// Returns the number of bytes that [`Verifier::copy_into`] copies.
    pub fn sound_bytes(&self) -> u64 {
        let bytes = |seen: &VerifiedExtent| {
            let length = u64::from(seen.extent.length);
            length.min(u64::from(seen.sound.count_ones()) * CHUNK as u64)
        };
        self.seen.values().map(bytes).sum()
    }
}

/// Returns the salt of a segment: from its header, or from a frame if the header is damaged.
fn salt(file: &File, segment: u64, extents: &[&VerifiedExtent]) -> io::Result<u64> {
    if let Ok(header) = read_segment_header(file, segment)? {
        return Ok(header.salt);
    }
    for seen in extents {
        if let Some(frame) = read_frame_header(file, seen)? {
            return Ok(frame.salt);
        }
    }
    getrandom::u64().map_err(io::Error::other)
}

fn read_frame_header(file: &File, seen: &VerifiedExtent) -> io::Result<Option<FrameHeader>> {
    let mut header = vec![0; header_bytes(seen.extent.length)];
    read_blocking(file, &mut header, frame_offset(seen.extent.id))?;
    Ok(FrameHeader::decode(&header).filter(|header| header.extent() == seen.extent))
}

/// Copies the sound chunks of an extent. Returns the number of bytes copied.
fn copy_extent(from: &File, to: &File, seen: &VerifiedExtent, salt: u64) -> io::Result<u64> {
    let extent = seen.extent;
    let mut sums = match read_frame_header(from, seen)? {
        Some(header) => header.sums,
        // An extent of one chunk can be read without its header: its reference has the checksum.
        None if chunks(extent.length) == 1 => {
            Checksums { length: extent.length, crc: extent.crc, table: vec![extent.crc] }
        }
        None => return Ok(0),
    };
    let payload = frame_offset(extent.id) + header_bytes(extent.length) as u64;
    let mut copied = 0;
    for (i, crc) in sums.table.iter_mut().enumerate() {
        let mut chunk = vec![0; CHUNK.min(extent.length as usize - i * CHUNK)];
        let offset = payload + (i * CHUNK) as u64;
        if seen.sound & 1 << i != 0 {
            read_blocking(from, &mut chunk, offset)?;
            if crc32c(&chunk) != *crc {
                return Err(io::Error::other(format!("{:?} changed after it was verified", extent.id)));
            }
            to.write_all_at(&chunk, offset)?;
            copied += chunk.len() as u64;
        } else {
            *crc = crc32c(&chunk);
        }
    }
    let header = FrameHeader { id: extent.id, salt, sums };
    to.write_all_at(&header.encode(), frame_offset(extent.id))?;
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::{Content, Extents, Options, read_all};

    fn flip(data: &Path, at: u64) {
        let path = data.join("segments/0000000000000001.seg");
        let mut bytes = fs::read(&path).unwrap();
        bytes[at as usize] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    #[tokio::test]
    async fn sound_extents_are_copied_under_their_ids_and_damage_is_reported_for_every_record() {
        let dir = tempfile::tempdir().unwrap();
        let extents = LocalExtents::open(dir.path(), Options::default()).unwrap();
        let writer = extents.writer();
        let mut stored = vec![];
        // The last chunk of the last extent shares a block with the chunk before.
        for (byte, length) in [(1u8, 1000), (2, 200_000), (3, 2 * CHUNK + 10)] {
            let bytes = Bytes::from(vec![byte; length]);
            stored.push((extents.append(&writer, vec![bytes.clone()]).await.unwrap(), bytes));
        }
        extents.sync().await.unwrap();
        drop((writer, extents));
        // Damage the last chunk of the last extent; the header of the first, which is not needed; and the
        // segment header.
        let last = stored[2].0;
        flip(dir.path(), frame_offset(last.id) + header_bytes(last.length) as u64 + 2 * CHUNK as u64);
        flip(dir.path(), frame_offset(stored[0].0.id));
        flip(dir.path(), 0);

        let extents = LocalExtents::open_read_only(dir.path()).unwrap();
        let mut verifier = extents.verifier();
        for (extent, _) in &stored[..2] {
            assert_eq!(verifier.content(&Content::extent(*extent)).await.unwrap(), []);
        }
        for _ in 0..2 {
            let damage = verifier.content(&Content::extent(last)).await.unwrap();
            assert!(matches!(damage.as_slice(), [(extent, Error::Damaged(_))] if *extent == last));
        }
        let target = tempfile::tempdir().unwrap();
        verifier.copy_into(target.path(), |_| {}).unwrap();
        let copy = LocalExtents::open(target.path(), Options::default()).unwrap();
        let report = copy.scrub(|_| {}).await.unwrap();
        assert_eq!((report.damaged, report.extents), (0, 3), "{report:?}");
        let copy: Arc<dyn Extents> = Arc::new(copy);
        for (extent, bytes) in &stored[..2] {
            let content = Content::extent(*extent);
            let read = read_all(&copy, &content, 0..content.len(), 1 << 20).await.unwrap();
            assert_eq!(read, bytes);
        }
    }
}
