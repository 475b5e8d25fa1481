use bytes::Bytes;
use lazuli_concurrency::{Pace, SystemClock};
use lazuli_extents::Extents;
use lazuli_store::{Directory, Trust};

use super::*;

const MIB: u64 = 1 << 20;

/// Creates a data directory with `mib` MiB of content that no row refers to.
async fn filled(dir: &Path, mib: u64) -> Data {
    let data = Data::open(Directory::open(dir).unwrap(), Some(MIB), Trust::MayBeBehind).unwrap();
    let writer = data.extents.writer();
    for n in 0..mib {
        let bytes = Bytes::from(vec![n as u8; MIB as usize]);
        data.extents.append(&writer, vec![bytes]).await.unwrap();
    }
    data.extents.sync().await.unwrap();
    data
}

#[tokio::test]
async fn pass_reads_everything_once_at_most_at_its_rate() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(dir.path(), 12).await;
    let scrub = Scrub::new(&data, Arc::new(SystemClock), 2 * MIB);
    tokio::time::pause();
    let began = Instant::now();
    scrub.pass().await.unwrap();
    let (status, seconds) = (scrub.status(), began.elapsed().as_secs_f64());
    assert!(status.done >= 12 * MIB && status.done == status.total, "{status:?}");
    assert!(status.read < 15 * MIB, "{status:?}");
    assert!(status.read as f64 / seconds <= 2.0 * MIB as f64, "{} bytes in {seconds} s", status.read);
    assert!(seconds < 8.0, "{seconds} s");
    assert!(status.finished.is_some() && !scrub.progress.lock().is_due(SystemClock.now()));
}

#[tokio::test]
async fn dropped_pass_resumes_within_one_percent_of_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(dir.path(), 16).await;
    let scrub = Scrub::new(&data, Arc::new(SystemClock), MIB);
    tokio::time::pause();
    // A pass takes 16 seconds and is dropped several times.
    let mut before = 0;
    for seconds in [3, 2, 4] {
        let dropped = tokio::time::timeout(Duration::from_secs(seconds), scrub.pass()).await;
        assert!(dropped.is_err(), "{:?}", scrub.status());
        let Status { done, total, .. } = scrub.status();
        assert!(done >= before + (seconds - 1) * MIB * 8 / 10, "{done} after {before}");
        before = done;
        // The file that a killed process leaves.
        let left = Progress::read(&dir.path().join(FILE));
        assert!(left.done + total / 100 + STEP.start() >= done, "{} of {done}", left.done);
        *scrub.progress.lock() = left;
    }
    scrub.pass().await.unwrap();
    let Status { done, total, read, .. } = scrub.status();
    assert!(done == total && read < 21 * MIB, "{done} of {total}, {read} read");
}

#[tokio::test]
async fn concurrent_sweeps_cause_no_false_damage() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(dir.path(), 24).await;
    let sweeper = data.sweeper();
    // No row refers to the content, so sweeps free everything that the scrub is reading.
    let writing = async {
        for n in 0..40u8 {
            let writer = data.extents.writer();
            for _ in 0..4 {
                let bytes = Bytes::from(vec![n; 300_000]);
                data.extents.append(&writer, vec![bytes]).await.unwrap();
            }
            drop(writer);
            sweeper.sweep(Pace::FULL).await.unwrap();
        }
    };
    let scrub = Scrub::new(&data, Arc::new(SystemClock), u64::MAX);
    let scrubbing = async {
        for _ in 0..4 {
            scrub.progress.lock().position = Position::Idle;
            scrub.pass().await.unwrap();
        }
    };
    tokio::join!(writing, scrubbing);
    assert_eq!(scrub.status().damaged, 0);
    assert_eq!(scrub.alarm(), None);
}
