//! `lazuli bench steady`: the longest latencies of a server at half load.
//!
//! Two loads of the same bytes per second take turns on the same disk, a minute each: puts of 4 KiB together
//! with a few hot reads, and a raw writer that appends and syncs without Lazuli. Both are open loops:
//! requests are due at fixed times, regardless of earlier answers, and latencies count from the due time. So
//! a stall counts for every request that was due during it.

mod open_loop;
mod processors;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::client::{Client, TargetAccount};
use super::load::Running;
use super::process::Server;
use super::progress::Progress;
use super::report::{Goal, Measurement, Report, Section, Series, median};
use super::round::{Pace, Round};
use super::text::{micros, number};
use super::workload::{self, Shape};
use super::{BenchError, seconds};
use open_loop::{OpenRound, Schedule, raw_writer};
use processors::{ProcessorTimes, Processors};

/// Bytes of a request body.
const BODY_BYTES: usize = 4096;
/// Connections of the closed loop that determines the rate.
const CLOSED_CONNECTIONS: usize = 32;
/// Connections of the open loop. At most this many requests can be in flight without delaying later
/// ones.
const PUT_CONNECTIONS: usize = 256;
const READ_CONNECTIONS: usize = 32;
/// Hot reads per second.
const READS_PER_S: f64 = 200.0;
/// The rate of the open loops as a share of the closed loop's rate.
const RATE_SHARE: f64 = 0.5;
/// Maximum ratio of the longest latency to the raw writer's p99.
const MAX_READ_RATIO: f64 = 10.0;
const MAX_PUT_RATIO: f64 = 25.0;

/// Options of `lazuli bench steady`.
#[derive(clap::Args, Debug)]
pub(crate) struct SteadyArgs {
    /// Number of minutes of each load
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    minutes: u16,
    /// How long a minute is
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    minute: Duration,
    /// Duration of the closed loop that determines the rate
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds)]
    calibrate: Duration,
    /// The binary to measure [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// A directory on the disk to measure; files created there are removed
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Also write the results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The results of all minutes.
#[derive(Default)]
struct MinuteRounds {
    puts: Vec<Round>,
    reads: Vec<Round>,
    raw: Vec<Round>,
    /// The longest delays that the load generator itself caused.
    late_put: Duration,
    late_read: Duration,
    /// The processor time of all minutes of puts and reads, and of those of the raw writer.
    ours: ProcessorTimes,
    raws: ProcessorTimes,
}

/// Runs all minutes. Fails if a goal is missed.
pub(crate) async fn run(args: SteadyArgs) -> Result<(), BenchError> {
    let scratch = tempfile::Builder::new().prefix("lazuli-steady-").tempdir_in(&args.dir);
    let scratch = scratch.map_err(BenchError::at(&args.dir))?;
    let program = match &args.program {
        Some(program) => std::path::absolute(program),
        None => std::env::current_exe(),
    }
    .map_err(BenchError::at(&args.dir))?;
    let mut report = Report::begin();
    let progress = Progress::new(usize::from(args.minutes) * 2 + 1);
    // Otherwise data of earlier programs in the page cache would be written during the first minutes.
    rustix::fs::sync();
    let server = Server::start(&program, scratch.path(), "data", &[]).await?;

    progress.step("closed loop");
    let closed = closed_loop(&args, &server.target).await?;
    let rate = closed.per_s * RATE_SHARE;
    let mut measured = MinuteRounds::default();
    for minute in 1..=args.minutes {
        progress.step(format!("minute {minute}: puts and hot reads"));
        let before = Processors::now(&server.process);
        let (puts, reads) = serve_minute(&args, &server.target, rate).await?;
        measured.ours.add(before, Processors::now(&server.process));
        measured.late_put = measured.late_put.max(puts.late);
        measured.late_read = measured.late_read.max(reads.late);
        measured.puts.push(puts.round);
        measured.reads.push(reads.round);
        progress.step(format!("minute {minute}: raw writer"));
        let before = Processors::now(&server.process);
        let (path, minute) = (scratch.path().join("raw"), args.minute);
        let written = tokio::task::spawn_blocking(move || raw_writer(&path, BODY_BYTES, rate, minute));
        measured.raw.push(written.await?.map_err(BenchError::at(scratch.path()))?);
        measured.raws.add(before, Processors::now(&server.process));
    }
    server.process.stop().await;
    drop(progress);

    let section = judge(&measured, &closed);
    let missed = section.goals.iter().filter(|goal| goal.met == Some(false));
    let missed: Vec<_> = missed.map(|goal| format!("{}: {}", goal.wanted, goal.found)).collect();
    report.sections.push(section);
    print!("{report}");
    if let Some(path) = &args.json {
        report.write_json(path)?;
    }
    if missed.is_empty() { Ok(()) } else { Err(BenchError::Missed(missed.join("; "))) }
}

/// Puts blobs as fast as the server answers.
async fn closed_loop(args: &SteadyArgs, target: &TargetAccount) -> Result<Round, BenchError> {
    let workload = workload::named("put-blob", Shape { body_bytes: BODY_BYTES })?;
    let failed = |failure| BenchError::Workload("put-blob", failure);
    let mut running = Running::start(&workload, target, CLOSED_CONNECTIONS).await.map_err(failed)?;
    let round = running.round(Pace::full(args.calibrate.mul_f64(0.2), args.calibrate)).await?;
    running.finish().await.map_err(failed)?;
    Ok(round)
}

/// Runs one minute of puts together with hot reads.
async fn serve_minute(
    args: &SteadyArgs,
    target: &TargetAccount,
    rate: f64,
) -> Result<(OpenRound, OpenRound), BenchError> {
    let shape = Shape { body_bytes: BODY_BYTES };
    let (puts, reads) = (workload::named("put-blob", shape)?, workload::named("get-blob", shape)?);
    let mut clients = vec![];
    for workload in [&puts, &reads] {
        let failed = |failure| BenchError::Workload(workload.name(), failure);
        let absent = || BenchError::Program("steady", "there is no blob service".into());
        let mut client = Client::new(target, workload.service()).ok_or_else(absent)?;
        workload.prepare(&mut client).await.map_err(failed)?;
        clients.push(client);
    }
    let begin = Instant::now();
    let schedule = |rate| Schedule::new(begin, rate, args.minute);
    let probe = open_loop::requests_on_own_thread(
        reads.clone(),
        clients[1].another(),
        READ_CONNECTIONS,
        schedule(READS_PER_S),
    );
    let put = open_loop::requests(&puts, &clients[0], PUT_CONNECTIONS, schedule(rate)).await?;
    let read = probe.await??;
    for (workload, client) in [&puts, &reads].into_iter().zip(&mut clients) {
        let failed = |failure| BenchError::Workload(workload.name(), failure);
        client.disconnect();
        workload.cleanup(client).await.map_err(failed)?;
    }
    Ok((put, read))
}

fn judge(measured: &MinuteRounds, closed: &Round) -> Section {
    let mut section = Section::new("steady");
    section.notes.push(format!(
        "closed loop: {} puts/s on {CLOSED_CONNECTIONS} connections; open loops at {} of that, {} hot reads/s",
        number(closed.per_s),
        number(RATE_SHARE),
        number(READS_PER_S)
    ));
    section.notes.push(
        "latencies count from the scheduled time; minutes of ours and of the raw writer take turns".into(),
    );
    for (load, late) in [("puts", measured.late_put), ("hot reads", measured.late_read)] {
        let late = micros(late.as_secs_f64() * 1e6);
        section.notes.push(format!("{load}: the load generator itself was up to {late} late"));
    }
    for (load, times) in [("puts and hot reads", &measured.ours), ("raw writer", &measured.raws)] {
        section.notes.push(format!("processors during {load}: {times}"));
    }
    for (load, rounds) in
        [("puts", &measured.puts), ("hot reads", &measured.reads), ("raw writer", &measured.raw)]
    {
        let series = vec![Series::of_rounds("lazuli", rounds)];
        section.measurements.push(Measurement::new(load, "requests/s", series));
        if let Some(latency) = section.measurements.last().and_then(|m| m.series.first()?.latency) {
            section.notes.push(format!("{load}: worst {}", micros(latency.max_us)));
        }
        for (reason, count) in rounds.iter().flat_map(|round| &round.errors) {
            section.goals.push(Goal::judged(
                format!("{load}: no error"),
                format!("{count} × {reason}"),
                false,
            ));
        }
    }
    let p99s: Vec<_> =
        measured.raw.iter().filter_map(|round| Some(round.latency.latency()?.p99_us)).collect();
    let worst = |rounds: &[Round]| {
        let all = rounds.iter().filter_map(|round| Some(round.latency.latency()?.max_us));
        all.reduce(f64::max)
    };
    for (what, worst, max_ratio) in
        [("hot read", worst(&measured.reads), MAX_READ_RATIO), ("put", worst(&measured.puts), MAX_PUT_RATIO)]
    {
        if let (Some(worst), Some(p99)) = (worst, median(&p99s)) {
            let wanted = format!("worst {what} at most {} × the raw writer's p99", number(max_ratio));
            let found = format!("{} × ({} against {})", number(worst / p99), micros(worst), micros(p99));
            section.goals.push(Goal::judged(wanted, found, worst <= max_ratio * p99));
        }
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(micros: impl IntoIterator<Item = u64>) -> Round {
        let mut round = Round::default();
        micros.into_iter().for_each(|micros| round.note(Duration::from_micros(micros), Ok(())));
        round
    }

    #[test]
    fn longest_latency_is_compared_with_the_raw_writers_p99() {
        let raw = || vec![round(std::iter::repeat_n(1000, 1000).chain([900_000]))];
        for (read, put, met) in [
            (9_000, 24_000, [Some(true), Some(true)]),
            (11_000, 24_000, [Some(false), Some(true)]),
            (9_000, 27_000, [Some(true), Some(false)]),
        ] {
            let measured = MinuteRounds {
                puts: vec![round([1, put])],
                reads: vec![round([read])],
                raw: raw(),
                ..MinuteRounds::default()
            };
            let section = judge(&measured, &Round::default());
            assert_eq!(section.goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), met, "{read} {put}");
        }
        let mut failing = round([1]);
        failing.note(Duration::ZERO, Err("503".into()));
        let measured = MinuteRounds {
            puts: vec![failing],
            reads: vec![round([1])],
            raw: raw(),
            ..MinuteRounds::default()
        };
        assert_eq!(judge(&measured, &Round::default()).goals[0].met, Some(false), "an error is a miss");
    }
}
