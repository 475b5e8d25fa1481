//! Reads all readable data of a data directory and finds the damaged objects. `lazuli check` lists them,
//! `lazuli repair` leaves them out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use indicatif::ProgressBar;
use lazuli_extents::{
    Content, Damage, DamageKind, Error, ExtentId, ExtentRef, LocalExtents, Verifier, frame_range,
};
use lazuli_store::embedded::{Gap, Loss, Losses, Salvage, Salvaged};
use lazuli_store::{ReadError, Row, RowPosition, SpaceId};
use tokio::runtime::Runtime;

use crate::Failure;
use crate::names::{Names, RowLocation};
use crate::services::{self, RowReader};

/// Maximum number of objects that `check` and the scrub name for one damaged place. A repair names all
/// objects.
const MAX_OBJECTS: usize = 100;
/// Maximum number of damaged places and rows listed. Further ones are only counted.
const MAX_LISTED: usize = 10_000;

/// A damaged place in content, counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ContentPlace {
    MissingSegment(u64),
    Extent(ExtentId),
}

/// Damage of one place in content, and the objects that refer to it.
#[derive(Debug)]
struct Broken {
    what: String,
    /// The damaged range of the segment.
    bytes: Range<u64>,
    objects: Vec<RowLocation>,
    more: u64,
}

/// All damage that was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) losses: Losses,
    rows: Vec<(RowLocation, String)>,
    stale: Vec<RowLocation>,
    content: BTreeMap<ContentPlace, Broken>,
    /// Rows in spaces that no row names.
    pub(crate) unnamed: u64,
    /// Total number of damaged rows and places in content, including those that are not listed.
    pub(crate) count: u64,
    pub(crate) rows_read: u64,
    /// Whether to name every object of a damaged place.
    pub(crate) names_all: bool,
}

/// Whether a repair keeps a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The row and its content are sound.
    Keep,
    /// The row or its content is damaged, or the row is stale.
    LeaveOut,
}

/// A scan of all rows and content.
pub(crate) struct Survey<'a> {
    runtime: &'a Runtime,
    extents: &'a LocalExtents,
    readers: [RowReader; 5],
    pub(crate) verifier: Verifier,
    pub(crate) names: Names,
    pub(crate) findings: Findings,
}

impl<'a> Survey<'a> {
    pub(crate) fn new(runtime: &'a Runtime, extents: &'a LocalExtents) -> Self {
        Self {
            runtime,
            extents,
            readers: services::readers(),
            verifier: extents.verifier(),
            names: Names::default(),
            findings: Findings::default(),
        }
    }

    /// Reads the rows of the store and the content that they refer to. Passes rows to keep to `keep`.
    pub(crate) fn run(
        &mut self,
        store: &Path,
        bar: &ProgressBar,
        mut keep: impl FnMut(Salvaged) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let salvage = Salvage::open(store).map_err(Failure::failed)?;
        bar.set_length(salvage.rows());
        let mut failure = None;
        let walked = salvage.run(|found| {
            bar.inc(1);
            let kept = self.judge(&found).and_then(|verdict| match verdict {
                Verdict::Keep => keep(found),
                Verdict::LeaveOut => Ok(()),
            });
            kept.map_err(|error| {
                failure = Some(error);
                ReadError::Io("given up".into())
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        let losses = walked.map_err(Failure::failed)?;
        self.findings.count += losses.count;
        self.findings.losses = losses;
        Ok(())
    }

    fn judge(&mut self, found: &Salvaged) -> Result<Verdict, Failure> {
        let (space, partition, row, is_stale) = match found {
            Salvaged::Clock(_) | Salvaged::Header(..) => return Ok(Verdict::Keep),
            Salvaged::Row(space, partition, row) => (*space, partition, row, false),
            Salvaged::Stale(space, partition, row) => (*space, partition, row, true),
        };
        self.findings.rows_read += 1;
        self.names.learn(space, partition, row);
        self.findings.unnamed += u64::from(!self.names.knows(space));
        let place = || RowLocation::of(space, partition, row);
        if is_stale && self.findings.stale.len() < MAX_LISTED {
            self.findings.stale.push(place());
        }
        let contents = match self.contents(space, partition, row) {
            Ok(contents) => contents,
            Err(what) => {
                self.findings.count += 1;
                if self.findings.rows.len() < MAX_LISTED {
                    self.findings.rows.push((place(), what));
                }
                return Ok(Verdict::LeaveOut);
            }
        };
        let mut is_sound = true;
        for content in &contents {
            let damaged = self.runtime.block_on(self.verifier.content(content)).map_err(Failure::failed)?;
            for (extent, error) in damaged {
                is_sound = false;
                self.findings.damaged_extent(self.extents, &extent, &error, place());
            }
        }
        // Keep a stale account or container: without its row, all data in it would be inaccessible.
        let is_kept = is_sound && (!is_stale || space == SpaceId::ROOT);
        Ok(if is_kept { Verdict::Keep } else { Verdict::LeaveOut })
    }

    fn contents(&mut self, space: SpaceId, partition: &[u8], row: &Row) -> Result<Vec<Content>, String> {
        let mut contents = vec![];
        for reader in &mut self.readers {
            contents.extend(reader(space, partition, row)?);
        }
        Ok(contents)
    }
}

impl Findings {
    /// Records that an object refers to a damaged extent.
    pub(crate) fn damaged_extent(
        &mut self,
        extents: &LocalExtents,
        extent: &ExtentRef,
        error: &Error,
        object: RowLocation,
    ) {
        let segment = extent.id.segment();
        let (at, what, bytes) = match extents.has_segment(segment) {
            true => (ContentPlace::Extent(extent.id), error.to_string(), frame_range(extent)),
            false => (ContentPlace::MissingSegment(segment), "it is missing".to_owned(), 0..u64::MAX),
        };
        self.broken(at, what, bytes, object);
    }

    fn broken(&mut self, at: ContentPlace, what: String, bytes: Range<u64>, object: RowLocation) {
        let is_new = !self.content.contains_key(&at);
        self.count += u64::from(is_new);
        if is_new && self.content.len() >= MAX_LISTED {
            return;
        }
        let new = Broken { what, bytes, objects: vec![], more: 0 };
        let broken = self.content.entry(at).or_insert(new);
        if broken.objects.last() == Some(&object) {
            return;
        }
        match self.names_all || broken.objects.len() < MAX_OBJECTS {
            true => broken.objects.push(object),
            false => broken.more += 1,
        }
    }

    /// Returns whether a missing row may have been lost to damage.
    pub(crate) fn may_have_lost(&self, row: &RowPosition) -> bool {
        let is_in = |loss: &Loss| loss.gap.as_ref().is_none_or(|gap| gap.contains(row));
        self.losses.count > self.losses.listed.len() as u64
            || self.losses.listed.iter().any(is_in)
            || self.rows.iter().any(|(place, _)| place.row == *row)
    }

    /// Returns whether a table file or log segment is listed as damaged.
    pub(crate) fn lists(&self, path: &Path) -> bool {
        self.losses.listed.iter().any(|loss| loss.path == path)
    }

    /// Returns whether damage in a segment belongs to content that is listed as damaged.
    pub(crate) fn covers(&self, damage: &Damage) -> bool {
        let covers = |(at, broken): (&ContentPlace, &Broken)| match at {
            ContentPlace::Extent(id) => {
                id.segment() == damage.segment && broken.bytes.contains(&damage.offset)
            }
            ContentPlace::MissingSegment(_) => false,
        };
        damage.kind != DamageKind::SegmentHeader && self.content.iter().any(covers)
    }

    /// Returns the damaged places in content, each with its line for the log.
    pub(crate) fn content_lines(&self, names: &Names) -> Vec<(String, String)> {
        let line = |(at, broken): (&ContentPlace, &Broken)| {
            let objects: BTreeSet<_> = broken.objects.iter().map(|place| names.name(place)).collect();
            let objects = objects.into_iter().collect::<Vec<_>>().join(", ");
            let more = if broken.more > 0 { format!(", and {} more", broken.more) } else { String::new() };
            match at {
                ContentPlace::MissingSegment(segment) => (
                    format!("segment {segment:016x}"),
                    format!("content: segment {segment:016x}: {}: {objects}{more}", broken.what),
                ),
                ContentPlace::Extent(id) => (
                    format!("extent {:016x}", id.raw()),
                    format!("content: {}: {objects}{more}", broken.what),
                ),
            }
        };
        self.content.iter().map(line).collect()
    }

    /// Returns one line for each damaged place, with the names of the objects there.
    pub(crate) fn lines(&self, names: &Names) -> Vec<String> {
        let mut lines: Vec<_> = self.losses.listed.iter().map(|loss| loss_line(loss, names)).collect();
        lines.extend(self.rows.iter().map(|(place, what)| format!("row: {}: {what}", names.name(place))));
        lines.extend(self.content_lines(names).into_iter().map(|(_, line)| line));
        lines.extend(self.stale.iter().map(|place| {
            let kept = if place.row.space == SpaceId::ROOT { "kept" } else { "left out" };
            format!("old: {}: only an older version can be read; it is {kept}", names.name(place))
        }));
        lines
    }
}

fn loss_line(loss: &Loss, names: &Names) -> String {
    let gap = loss.gap.as_ref().map_or_else(String::new, |gap| format!(": {}", gap_text(gap, names)));
    format!("rows: {}: {}{gap}", loss.path.display(), loss.what)
}

fn gap_text(gap: &Gap, names: &Names) -> String {
    let name = |row: &RowPosition| names.name(&RowLocation { row: row.clone(), value: None });
    let from =
        gap.after.as_ref().map_or_else(|| "from the start".to_owned(), |row| format!("after {}", name(row)));
    let to = match (&gap.before, gap.to_end) {
        (None, _) => "to the end".to_owned(),
        (Some(row), true) => format!("up to {}", name(row)),
        (Some(row), false) => format!("before {}", name(row)),
    };
    format!("all data stored {from} and {to} is lost")
}
