//! Use of the processors during a measurement.
//!
//! The server, the load generator and the kernel share the processors with all other programs. On a virtual
//! machine the hypervisor may also take a processor away ("steal").

use std::fmt;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::super::process::Process;
use super::super::text::number;

/// The unit of times in `/proc/stat`, the same on all supported machines.
const TICKS_PER_SECOND: f64 = 100.0;

/// The processor time used until one moment.
#[derive(Clone, Copy)]
pub(super) struct Processors {
    at: Instant,
    server: Duration,
    generator: Duration,
    /// Time used by all programs and the kernel, and time that the hypervisor took.
    all: Duration,
    stolen: Duration,
}

impl Processors {
    /// Reads the times. What cannot be read counts as zero.
    pub(super) fn now(server: &Process) -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let (all, stolen) = parse(&stat).unwrap_or_default();
        let own = clock_gettime(ClockId::ProcessCPUTime);
        Self {
            at: Instant::now(),
            server: server.usage().map(|usage| usage.cpu).unwrap_or_default(),
            generator: Duration::new(own.tv_sec as u64, own.tv_nsec as u32),
            all,
            stolen,
        }
    }
}

/// Parses `/proc/stat`. Returns the time that was used, and the time that was stolen.
fn parse(stat: &str) -> Option<(Duration, Duration)> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut next =
        || Some(Duration::from_secs_f64(fields.next()?.parse::<u64>().ok()? as f64 / TICKS_PER_SECOND));
    let (user, nice, system) = (next()?, next()?, next()?);
    let (_idle, _waiting) = (next()?, next()?);
    let (interrupts, soft_interrupts, stolen) = (next()?, next()?, next()?);
    Some((user + nice + system + interrupts + soft_interrupts, stolen))
}

/// The processor time used during all minutes of one load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessorTimes {
    wall: Duration,
    server: Duration,
    generator: Duration,
    all: Duration,
    stolen: Duration,
}

impl ProcessorTimes {
    /// Adds the time between two moments.
    pub(super) fn add(&mut self, before: Processors, after: Processors) {
        self.wall += after.at - before.at;
        self.server += after.server.saturating_sub(before.server);
        self.generator += after.generator.saturating_sub(before.generator);
        self.all += after.all.saturating_sub(before.all);
        self.stolen += after.stolen.saturating_sub(before.stolen);
    }
}

impl fmt::Display for ProcessorTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |time: Duration| number(time.as_secs_f64() / self.wall.as_secs_f64().max(1e-9));
        let others = self.all.saturating_sub(self.server + self.generator);
        write!(
            f,
            "server {}, load generator {}, others {}; the hypervisor took {} s",
            share(self.server),
            share(self.generator),
            share(others),
            number(self.stolen.as_secs_f64())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_and_stolen_time_is_found_in_proc_stat() {
        let stat = "cpu  100 50 25 10000 7 1 2 30 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse(stat), Some((Duration::from_millis(1780), Duration::from_millis(300))));
        assert_eq!(parse("cpu  1 2"), None);
    }
}
