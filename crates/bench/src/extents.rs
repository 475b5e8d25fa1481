//! `lazuli bench extents`: writes and reads segment files, compared with `dd` on the same disk.
//!
//! Bytes are written as services write a body: in pieces of 1 MiB through an upload, with checksums, then one
//! sync. In turns with that, `dd` writes the same number of zeros to a new file and syncs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lazuli_extents::{Content, ContentReader, Extents, LocalExtents, Options, Upload, read_all};

use super::progress::Progress;
use super::raw;
use super::report::{Goal, Measurement, OURS, Section, Series};
use super::round::{Pace, Worker, round};
use super::rows::scatter;
use super::text::number;
use super::{BenchError, LocalArgs};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const READERS: u64 = 2;

/// The names of the programs to compare with.
pub(crate) const DD: &str = "dd";
pub(crate) const MD5SUM: &str = "md5sum";

/// Options of `lazuli bench extents`.
#[derive(clap::Args, Debug)]
pub(crate) struct ExtentsArgs {
    #[command(flatten)]
    pub(crate) local: LocalArgs,
    /// MiB to write in a round [default: 256, quick: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) mib: Option<u64>,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct ExtentsPlan {
    /// The directory for scratch directories.
    pub(crate) dir: PathBuf,
    pub(crate) mib: u64,
    pub(crate) rounds: usize,
    /// Duration of the random reads of one round.
    pub(crate) slice: Duration,
}

impl ExtentsPlan {
    /// Returns the plan of a command line.
    pub(crate) fn new(args: ExtentsArgs) -> Self {
        Self {
            mib: args.mib.unwrap_or(if args.local.quick { 64 } else { 256 }),
            rounds: args.local.rounds(),
            slice: args.local.slice(),
            dir: args.local.dir,
        }
    }

    /// Returns the number of steps for the progress bar.
    pub(crate) fn steps(&self) -> usize {
        self.rounds * 4
    }
}

/// Runs all rounds.
pub(crate) async fn measure(plan: &ExtentsPlan, progress: &Progress) -> Result<Section, BenchError> {
    let (mut appends, mut dds, mut md5sums) = (vec![], vec![], vec![]);
    let (mut reads, mut pages) = (vec![], vec![]);
    let rate = |took: Duration| plan.mib as f64 / took.as_secs_f64().max(1e-9);
    for _ in 0..plan.rounds {
        let scratch = tempfile::Builder::new().prefix("lazuli-bench-").tempdir_in(&plan.dir);
        let scratch = scratch.map_err(BenchError::at(&plan.dir))?;
        progress.step("extents: dd, md5sum");
        let (dd, md5sum) = raw::dd_and_md5sum(scratch.path(), plan.mib).await?;
        dds.push(rate(dd));
        md5sums.push(rate(md5sum));
        progress.step("extents: append");
        let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(scratch.path(), Options::default())?);
        let start = Instant::now();
        let content = append(&extents, plan.mib).await?;
        appends.push(rate(start.elapsed()));
        progress.step("extents: sequential read");
        let start = Instant::now();
        read_through(&extents, &content).await?;
        reads.push(rate(start.elapsed()));
        progress.step("extents: random reads");
        let reader =
            |seed| PageReader { extents: extents.clone(), content: content.clone(), state: scatter(seed) };
        let (round, _) =
            round((0..READERS).map(reader).collect(), Pace::full(Duration::ZERO, plan.slice)).await?;
        pages.push(round);
    }
    let series = vec![Series::of_values(OURS, appends), Series::of_values(DD, dds)];
    let appended = Measurement::new(format!("append {} MiB and sync", plan.mib), "MiB/s", series);
    let mut section = Section::new("extents");
    section
        .notes
        .push("dd: if=/dev/zero bs=1M conv=fdatasync; ours writes zeros in pieces of 1 MiB, too".into());
    section
        .notes
        .push("reads: what was just written, so from the system's cache, with checksums verified".into());
    section.notes.extend(raw::tmpfs_warning(&plan.dir));
    section.goals.extend(appended.ratio().map(|ratio| {
        Goal::judged("append and sync: ≥ 0.7 × dd", format!("{} ×", number(ratio)), ratio >= 0.7)
    }));
    section.measurements.extend([
        appended,
        // A lower bound for the cost of replies with an MD5.
        Measurement::new("digest", "MiB/s", vec![Series::of_values(MD5SUM, md5sums)]),
        Measurement::new("sequential read", "MiB/s", vec![Series::of_values(OURS, reads)]),
        Measurement::new(
            "random reads of 4 KiB, 2 at a time",
            "reads/s",
            vec![Series::of_rounds(OURS, &pages)],
        ),
    ]);
    Ok(section)
}

async fn append(extents: &Arc<dyn Extents>, mib: u64) -> Result<Content, BenchError> {
    let piece = Bytes::from(vec![0; MIB as usize]);
    let writer = extents.writer();
    let mut upload = Upload::new(extents, &writer);
    for _ in 0..mib {
        upload.push(piece.clone()).await?;
    }
    let content = upload.finish().await?;
    extents.sync().await?;
    Ok(content)
}

async fn read_through(extents: &Arc<dyn Extents>, content: &Content) -> Result<(), BenchError> {
    let held = extents.pin().hold([content]);
    let mut reader = ContentReader::new(extents, content, 0..content.len(), held);
    while reader.next().await?.is_some() {}
    Ok(())
}

/// Reads pages at random positions of the content.
struct PageReader {
    extents: Arc<dyn Extents>,
    content: Content,
    state: u64,
}

impl Worker for PageReader {
    async fn once(&mut self) -> Result<(), String> {
        self.state = scatter(self.state);
        let at = self.state % (self.content.len() / PAGE) * PAGE;
        let page = read_all(&self.extents, &self.content, at..at + PAGE, PAGE as usize).await;
        match page {
            Ok(page) if page.len() as u64 == PAGE => Ok(()),
            Ok(_) => Err("a short read".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn small_run_measures_everything_without_errors_and_removes_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let plan =
            ExtentsPlan { dir: dir.path().into(), mib: 2, rounds: 2, slice: Duration::from_millis(10) };
        let section = measure(&plan, &Progress::new(plan.steps())).await.unwrap();
        assert_eq!(section.measurements.len(), 4);
        for series in section.measurements.iter().flat_map(|measurement| &measurement.series) {
            assert!(series.median > 0.0 && series.errors.is_empty(), "{series:?}");
        }
        assert_eq!(section.goals.len(), 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
