//! The bytes of one file on the lossy disk: what reads return, and what a power cut leaves.
//!
//! A [`Content`] holds two images, *current* and *durable*, as maps of 4 KiB pages. The images share all
//! equal pages, so a synced file costs its size once. `dirty` names the pages that a sync has to copy. This
//! module is pure: no clock, no lock, no I/O; random generators are parameters.
//!
//! The rules of a journaling file system, which also apply when a cut tears a file:
//! - a sector (512 bytes) is written whole or not at all;
//! - a file never shows bytes from before a truncate together with bytes written after the truncate beyond
//!   the new end: if the cut undoes the truncate, it undoes those later writes, too;
//! - the size follows the data: a page that became durable is within the durable size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use rand::Rng;

/// The unit in which unsynced data is kept or lost.
pub(crate) const PAGE: u64 = 4096;
/// The unit that a disk writes atomically.
pub(crate) const SECTOR: u64 = 512;

type Page = [u8; PAGE as usize];

/// Shared by all pages that are allocated but were never written.
static ZERO: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; PAGE as usize]));

/// Returns the part of each page that `range` covers: the page's number, and the bytes within the page.
fn spans(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
    (range.start / PAGE..range.end.div_ceil(PAGE)).map(move |page| {
        let base = page * PAGE;
        let from = range.start.saturating_sub(base) as usize;
        (page, from..(range.end - base).min(PAGE) as usize)
    })
}

/// One version of a file. Bytes of a page beyond `size` are zero; an absent page reads as zeros.
#[derive(Debug, Clone, Default)]
struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    size: u64,
}

impl Image {
    fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.size);
        let start = range.start.min(end);
        let mut out = vec![0; (end - start) as usize];
        let mut at = 0;
        for (number, part) in spans(start..end) {
            let len = part.len();
            if let Some(page) = self.pages.get(&number) {
                out[at..at + len].copy_from_slice(&page[part]);
            }
            at += len;
        }
        out
    }

    /// Writes within one page. Does not change the size.
    fn patch(&mut self, number: u64, part: Range<usize>, bytes: &[u8]) {
        let page = self.pages.entry(number).or_insert_with(|| ZERO.clone());
        match <Page>::try_from(bytes) {
            Ok(whole) => *page = Arc::new(whole),
            Err(_) => Arc::make_mut(page)[part].copy_from_slice(bytes),
        }
    }

    /// Copies one page of `other`, which may be a hole.
    fn adopt(&mut self, number: u64, other: &Image) {
        match other.pages.get(&number) {
            Some(page) => self.pages.insert(number, page.clone()),
            None => self.pages.remove(&number),
        };
    }

    fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.pages.split_off(&size.div_ceil(PAGE));
            if let Some(page) = self.pages.get_mut(&(size / PAGE)) {
                Arc::make_mut(page)[(size % PAGE) as usize..].fill(0);
            }
        }
        self.size = size;
    }
}

/// The last write before the cut, of which only one side of `at` reached the disk.
#[derive(Debug, Clone)]
pub(crate) struct TornWrite {
    range: Range<u64>,
    at: u64,
    front_survives: bool,
}

impl TornWrite {
    /// Picks where a write tears: at a sector boundary inside it. Returns `None` if there is no such
    /// boundary.
    pub(crate) fn pick(range: Range<u64>, rng: &mut impl Rng) -> Option<TornWrite> {
        let first = range.start / SECTOR + 1;
        let last = range.end.checked_sub(1)? / SECTOR;
        (first <= last).then(|| TornWrite {
            at: rng.random_range(first..=last) * SECTOR,
            front_survives: rng.random(),
            range,
        })
    }

    /// Returns whether this sector reached the disk; `None` if the torn write did not touch the sector.
    fn survives(&self, sector: Range<u64>) -> Option<bool> {
        (sector.start < self.range.end && self.range.start < sector.end)
            .then_some((sector.start < self.at) == self.front_survives)
    }
}

/// The effect of a power cut on unsynced changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loss {
    /// Unsynced pages that reached the disk nevertheless, wholly or in part.
    pub pages_kept: u64,
    /// Unsynced pages that were lost.
    pub pages_lost: u64,
    /// Unsynced directory operations that reached the disk nevertheless.
    pub entries_kept: u64,
    /// Unsynced directory operations that were lost.
    pub entries_lost: u64,
}

/// A file's bytes, current and durable.
#[derive(Debug, Default)]
pub(crate) struct Content {
    current: Image,
    durable: Image,
    /// Pages that the next sync copies. After a failed sync, pages can differ from their durable version
    /// without being in this set.
    dirty: BTreeSet<u64>,
    /// The current size is not durable yet (and no failed sync dropped it).
    size_dirty: bool,
    /// The smallest size since the last sync, if that is below the durable size.
    shrunk_to: Option<u64>,
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.current.size
    }

    /// Returns the number of allocated pages.
    pub(crate) fn allocated(&self) -> u64 {
        self.current.pages.len() as u64
    }

    /// Returns the pages in `range` that are not allocated yet.
    pub(crate) fn unallocated(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        spans(range).map(|(number, _)| number).filter(|number| !self.current.pages.contains_key(number))
    }

    pub(crate) fn read(&self, range: Range<u64>) -> Vec<u8> {
        self.current.read(range)
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let mut at = 0;
        for (number, part) in spans(offset..end) {
            let len = part.len();
            self.current.patch(number, part, &bytes[at..at + len]);
            self.dirty.insert(number);
            at += len;
        }
        self.grow(end);
    }

    pub(crate) fn set_len(&mut self, size: u64) {
        if size < self.current.size {
            self.dirty.extend(self.current.pages.range(size / PAGE..).map(|(number, _)| number));
            if size < self.durable.size {
                self.shrunk_to = Some(self.shrunk_to.map_or(size, |smallest| smallest.min(size)));
            }
            self.current.set_size(size);
            self.size_dirty = true;
        }
        self.grow(size);
    }

    /// Implements `fallocate` without and with `KEEP_SIZE`.
    pub(crate) fn allocate(&mut self, range: Range<u64>, keep_size: bool) {
        for (number, _) in spans(range.clone()) {
            self.current.pages.entry(number).or_insert_with(|| {
                self.dirty.insert(number);
                ZERO.clone()
            });
        }
        if !keep_size {
            self.grow(range.end);
        }
    }

    /// Implements `fallocate` with `PUNCH_HOLE`.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        for (number, part) in spans(range) {
            let Some(page) = self.current.pages.get_mut(&number) else { continue };
            if part.len() as u64 == PAGE {
                self.current.pages.remove(&number);
            } else {
                Arc::make_mut(page)[part].fill(0);
            }
            self.dirty.insert(number);
        }
    }

    fn grow(&mut self, size: u64) {
        if size > self.current.size {
            self.current.size = size;
            self.size_dirty = true;
        }
    }

    /// Makes the current content durable, for `fsync` and `fdatasync` alike, because reading the data needs
    /// the size.
    pub(crate) fn sync(&mut self) {
        while let Some(number) = self.dirty.pop_first() {
            self.make_durable(number);
        }
        self.make_truncate_durable();
        if std::mem::take(&mut self.size_dirty) {
            self.durable.size = self.current.size;
        }
    }

    /// Fails a sync. As on Linux the pages are clean afterwards: no later sync writes them.
    pub(crate) fn fail_sync(&mut self) {
        self.dirty.clear();
        self.size_dirty = false;
    }

    /// Writes back one dirty page, as the kernel may do at any time.
    pub(crate) fn write_back_one(&mut self, rng: &mut impl Rng) {
        if self.dirty.is_empty() {
            return;
        }
        let nth = rng.random_range(0..self.dirty.len());
        if let Some(number) = self.dirty.iter().nth(nth).copied() {
            self.dirty.remove(&number);
            self.make_durable(number);
        }
    }

    /// Makes one page durable, after a preceding truncate, and the size as far as the page reaches.
    fn make_durable(&mut self, number: u64) {
        self.make_truncate_durable();
        self.durable.adopt(number, &self.current);
        self.durable.size = self.durable.size.max(self.current.size.min((number + 1) * PAGE));
    }

    fn make_truncate_durable(&mut self) {
        if let Some(size) = self.shrunk_to.take() {
            self.durable.set_size(size);
        }
    }

    /// Cuts the power so that everything unsynced is lost.
    pub(crate) fn forget(&mut self) -> Loss {
        let loss = Loss { pages_lost: self.dirty.len() as u64, ..Loss::default() };
        self.reboot();
        loss
    }

    /// Cuts the power so that any part of the unsynced changes is lost.
    pub(crate) fn tear(&mut self, torn: Option<&TornWrite>, rng: &mut impl Rng) -> Loss {
        let mut loss = Loss::default();
        let undone = match self.shrunk_to {
            Some(size) if rng.random() => Some(size),
            _ => None,
        };
        if undone.is_none() {
            self.make_truncate_durable();
        }
        while let Some(number) = self.dirty.pop_first() {
            // If the truncate never happened, pages after its end keep their earlier bytes.
            let kept =
                undone.is_none_or(|size| (number + 1) * PAGE <= size) && self.tear_page(number, torn, rng);
            *(if kept { &mut loss.pages_kept } else { &mut loss.pages_lost }) += 1;
        }
        if undone.is_none() && (self.size_dirty || loss.pages_kept > 0) {
            let size = torn_size(self.durable.size..self.current.size, rng);
            // Data beyond the size must not reappear when the file grows again.
            self.durable.size = self.durable.size.max(self.current.size);
            self.durable.set_size(size);
        }
        self.reboot();
        loss
    }

    /// Puts the surviving sectors of a dirty page into the durable image. Returns false if there are none.
    fn tear_page(&mut self, number: u64, torn: Option<&TornWrite>, rng: &mut impl Rng) -> bool {
        let otherwise = rng.random();
        let base = number * PAGE;
        let survives = |at: u64| {
            let sector = base + at..base + at + SECTOR;
            torn.and_then(|torn| torn.survives(sector)).unwrap_or(otherwise)
        };
        let sectors: Vec<u64> = (0..PAGE).step_by(SECTOR as usize).filter(|at| survives(*at)).collect();
        if sectors.len() as u64 == PAGE / SECTOR {
            self.durable.adopt(number, &self.current);
        } else {
            let source = self.current.pages.get(&number).unwrap_or(&ZERO).clone();
            for at in &sectors {
                let part = *at as usize..(*at + SECTOR) as usize;
                self.durable.patch(number, part.clone(), &source[part]);
            }
        }
        !sectors.is_empty()
    }

    /// Reboots: the current content is what is durable.
    fn reboot(&mut self) {
        self.current = self.durable.clone();
        self.dirty.clear();
        self.size_dirty = false;
        self.shrunk_to = None;
    }

    /// Returns the pages in which bits can be flipped: durable, and within the durable size.
    pub(crate) fn durable_pages(&self) -> impl Iterator<Item = u64> {
        self.durable.pages.keys().copied().take_while(|number| number * PAGE < self.durable.size)
    }

    /// Returns the number of durable bytes of this page within the file.
    pub(crate) fn durable_len(&self, page: u64) -> u64 {
        self.durable.size.saturating_sub(page * PAGE).min(PAGE)
    }

    /// Flips one durable bit. Returns false if nothing durable is there. A page that is dirty in memory hides
    /// the flip.
    pub(crate) fn flip(&mut self, offset: u64, bit: u8) -> bool {
        let number = offset / PAGE;
        let Some(page) = self.durable.pages.get_mut(&number).filter(|_| offset < self.durable.size) else {
            return false;
        };
        Arc::make_mut(page)[(offset % PAGE) as usize] ^= 1 << (bit % 8);
        if !self.dirty.contains(&number) {
            self.current.adopt(number, &self.durable);
        }
        true
    }
}

/// Returns a durable size after a tear: unsynced growth may be durable completely, not at all, or up to some
/// sector.
fn torn_size(growth: Range<u64>, rng: &mut impl Rng) -> u64 {
    match rng.random_range(0..4) {
        0 => growth.start,
        1 => {
            let sectors = growth.end.saturating_sub(growth.start) / SECTOR;
            let whole = growth.start / SECTOR + rng.random_range(0..=sectors);
            (whole * SECTOR).clamp(growth.start, growth.end)
        }
        _ => growth.end,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    const END: u64 = 5 * PAGE;

    fn all(content: &Content) -> Vec<u8> {
        content.read(0..u64::MAX)
    }

    fn synced(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, bytes);
        content.sync();
        content
    }

    // Compares with two plain vectors, and verifies after a tear that every byte has a legitimate origin.
    #[test]
    fn random_histories_match_a_plain_model() {
        for seed in 0..200 {
            let rng = &mut StdRng::seed_from_u64(seed);
            let mut content = Content::default();
            let (mut current, mut durable) = (Vec::new(), Vec::new());
            for step in 0..60 {
                let (a, b) = (rng.random_range(0..END), rng.random_range(0..END));
                let range = a.min(b)..a.max(b) + 1;
                let (from, to) = (range.start as usize, range.end as usize);
                match rng.random_range(0..10) {
                    0..=3 => {
                        let bytes = vec![rng.random_range(1..=255); to - from];
                        content.write(range.start, &bytes);
                        current.resize(current.len().max(to), 0);
                        current[from..to].copy_from_slice(&bytes);
                    }
                    4 => {
                        content.set_len(range.start);
                        current.resize(from, 0);
                    }
                    5 => {
                        content.punch(range);
                        let len = current.len();
                        current[from.min(len)..to.min(len)].fill(0);
                    }
                    6 => {
                        let keep_size = rng.random();
                        content.allocate(range, keep_size);
                        if !keep_size {
                            current.resize(current.len().max(to), 0);
                        }
                    }
                    7 => {
                        content.sync();
                        durable = current.clone();
                    }
                    8 => {
                        content.forget();
                        current = durable.clone();
                    }
                    _ => {
                        let torn = TornWrite::pick(range, rng);
                        content.tear(torn.as_ref(), rng);
                        let left = all(&content);
                        assert!(left.len() <= current.len().max(durable.len()), "seed {seed} step {step}");
                        for (at, byte) in left.iter().enumerate() {
                            let possible = [current.get(at), durable.get(at), Some(&0)];
                            assert!(possible.contains(&Some(byte)), "seed {seed} step {step} byte {at}");
                        }
                        (current, durable) = (left.clone(), left);
                    }
                }
                assert!(all(&content) == current, "seed {seed} step {step}");
            }
        }
    }

    #[test]
    fn a_tear_never_mixes_bytes_from_before_and_after_a_truncate() {
        let mut seen = BTreeSet::new();
        for seed in 0..64 {
            let mut content = synced(&[b'o'; 4 * PAGE as usize]);
            content.set_len(0);
            content.write(0, &[b'n'; 3 * PAGE as usize]);
            content.tear(None, &mut StdRng::seed_from_u64(seed));
            let left = all(&content);
            let (old, new) = (left.contains(&b'o'), left.contains(&b'n'));
            assert!(!(old && new), "seed {seed}");
            assert!(!old || left == [b'o'; 4 * PAGE as usize], "seed {seed}: undone means as before");
            seen.insert((old, new));
        }
        assert_eq!(seen.len(), 3, "old, new, and emptied all happen");
    }

    #[test]
    fn a_page_rewritten_after_a_failed_sync_is_durable_after_the_next_with_its_size() {
        let mut content = Content::default();
        content.write(0, b"lost?");
        content.fail_sync();
        content.sync();
        content.write(4, b"!");
        content.sync();
        content.forget();
        assert_eq!(all(&content), b"lost!");
    }

    #[test]
    fn a_failed_sync_loses_growth_but_not_an_earlier_truncate() {
        let mut content = synced(b"old bytes");
        content.set_len(2);
        content.write(2, b"d new");
        content.fail_sync();
        content.sync();
        content.forget();
        assert_eq!(all(&content), b"ol");
    }

    #[test]
    fn synced_pages_are_stored_once() {
        let content = synced(&[7; 3 * PAGE as usize]);
        for (number, page) in &content.current.pages {
            assert!(Arc::ptr_eq(page, &content.durable.pages[number]));
        }
    }
}
