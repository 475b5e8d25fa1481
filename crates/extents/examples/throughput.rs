//! Measures the throughput of uploads and reads, compared with `dd bs=1M conv=fdatasync` on the same file
//! system.
//!
//! `cargo run --release -p lazuli-extents --example throughput -- DIR`

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazuli_extents::conformance::pattern;
use lazuli_extents::{Content, ContentReader, Error, Extents, LocalExtents, Options, Upload};

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = tempfile::tempdir_in(parent)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(run(dir.path()))
}

async fn run(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let body = pattern(1, BYTES);
    let source = dir.join("source");
    std::fs::write(&source, &body)?;
    let extents: Arc<dyn Extents> = Arc::new(LocalExtents::open(dir, Options::default())?);
    let (mut dd, mut one, mut four, mut content) = (vec![], vec![], vec![], Content::empty());
    for round in 0..ROUNDS {
        // A new file each time: the first write to a block of a thin-provisioned disk is slower.
        dd.push(copy_with_dd(&source, &dir.join(format!("copy{round}")))?);
        let start = Instant::now();
        content = upload(&extents, &body).await?;
        extents.sync().await?;
        one.push(start.elapsed());

        let start = Instant::now();
        let tasks: Vec<_> = (0..4)
            .map(|i| {
                let (extents, part) = (extents.clone(), body.slice(i * BYTES / 4..(i + 1) * BYTES / 4));
                tokio::spawn(async move {
                    upload(&extents, &part).await?;
                    extents.sync().await
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        four.push(start.elapsed());
    }
    let mut read = vec![];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut reader = ContentReader::new(&extents, &content, 0..u64::MAX, None);
        let mut total = 0;
        while let Some(bytes) = reader.next().await? {
            total += bytes.len();
        }
        assert_eq!(total, BYTES);
        read.push(start.elapsed());
    }
    for (what, times) in [("dd", dd), ("one upload", one), ("four uploads", four), ("read, cached", read)] {
        let mut all: Vec<_> = times.iter().map(Duration::as_millis).collect();
        all.sort_unstable();
        println!("{what:14} {:8.0} MB/s   (ms: {all:?})", BYTES as f64 / all[ROUNDS / 2] as f64 / 1e3);
    }
    small(&extents).await?;
    Ok(())
}

async fn upload(extents: &Arc<dyn Extents>, body: &bytes::Bytes) -> Result<Content, Error> {
    let writer = extents.writer();
    let mut upload = Upload::new(extents, &writer);
    // In parts of the size that a connection delivers.
    for part in body.chunks(64 << 10) {
        upload.push(body.slice_ref(part)).await?;
    }
    upload.finish().await
}

fn copy_with_dd(from: &Path, to: &Path) -> std::io::Result<Duration> {
    let start = Instant::now();
    Command::new("dd")
        .arg(format!("if={}", from.display()))
        .arg(format!("of={}", to.display()))
        .args(["bs=1M", "conv=fdatasync"])
        .stderr(Stdio::null())
        .status()?;
    Ok(start.elapsed())
}

/// Measures durable 4 KiB appends, which get cheaper per append with more clients, and cached 4 KiB reads.
async fn small(extents: &Arc<dyn Extents>) -> Result<(), Box<dyn std::error::Error>> {
    let payload = pattern(2, 4000);
    for clients in [1, 8, 64] {
        let start = Instant::now();
        let tasks: Vec<_> = (0..clients)
            .map(|_| {
                let (extents, payload) = (extents.clone(), payload.clone());
                tokio::spawn(async move {
                    for _ in 0..2000 / clients {
                        let writer = extents.writer();
                        extents.append(&writer, vec![payload.clone()]).await?;
                        extents.sync().await?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        let each = start.elapsed().as_secs_f64() / 2000.0;
        println!("{clients:3} clients: {:8.0} durable 4 KB appends/s", 1.0 / each);
    }
    let writer = extents.writer();
    let extent = extents.append(&writer, vec![pattern(3, 1 << 20)]).await?;
    let start = Instant::now();
    for i in 0..20_000u32 {
        let at = i * 4096 % (1 << 20);
        extents.read(&extent, at..at + 4096).await?;
    }
    println!("cached 4 KiB reads: {:.1} µs each", start.elapsed().as_secs_f64() * 1e6 / 20_000.0);
    Ok(())
}
