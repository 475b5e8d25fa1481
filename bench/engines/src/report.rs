//! The results, as JSON and as the tables that docs/decisions/0002-embedded-engine.md shows.

use crate::damage::{Damage, last_record};
use crate::workload::{Commits, Loaded, Rate, quantile};
use serde::{Deserialize, Serialize};

#[derive(Default, Serialize)]
pub struct Engines {
    pub rows: u64,
    pub raw_growing: f64,
    pub raw_allocated: f64,
    pub raw_rewritten: f64,
    pub engines: Vec<Measured>,
    pub damage: Vec<Damage>,
}

#[derive(Serialize)]
pub struct Measured {
    pub name: String,
    pub loading: Loading,
    pub serving: Vec<Serving>,
    pub crashed: Crashed,
}

/// Results of one process that loads rows, and reads while the engine still works on them.
#[derive(Default, Serialize, Deserialize)]
pub struct Loading {
    pub loaded: Loaded,
    pub gets_1: Rate,
    pub gets_2: Rate,
    pub settle_s: f64,
    /// Processor time and bytes written to disk per row, until the engine is idle.
    pub cpu_us_per_row: f64,
    pub written_per_row: f64,
    pub load_average: f64,
}

/// Results of one process that reopens after a clean stop, waits until idle, reads, scans and commits.
#[derive(Serialize, Deserialize)]
pub struct Serving {
    pub open_ms: f64,
    pub rss_bytes: u64,
    pub gets_1: Rate,
    pub gets_2: Rate,
    pub scans: Rate,
    pub commits: Vec<Commits>,
    pub disk_bytes: u64,
    pub load_average: f64,
}

/// Results of reopening after SIGKILL under write load.
#[derive(Default, Serialize, Deserialize)]
pub struct Crashed {
    pub open_ms: f64,
    /// Number of acknowledged rows that are missing.
    pub missing: u64,
}

impl Engines {
    /// Returns the entry of the engine `name`. Adds it if there is none.
    pub fn engine(&mut self, name: &str) -> &mut Measured {
        let at = self.engines.iter().position(|e| e.name == name).unwrap_or_else(|| {
            self.engines.push(Measured {
                name: name.to_owned(),
                loading: Loading::default(),
                serving: Vec::new(),
                crashed: Crashed::default(),
            });
            self.engines.len() - 1
        });
        &mut self.engines[at]
    }

    pub fn print(&self) {
        if !self.engines.is_empty() {
            self.print_speed();
        }
        self.print_damage();
    }

    fn print_speed(&self) {
        println!("{} rows. Medians over {} rounds.", self.rows, self.engines[0].serving.len());
        println!(
            "Raw 600 B + fdatasync a second: growing file {:.0}, preallocated {:.0}, rewritten {:.0}.\n",
            self.raw_growing, self.raw_allocated, self.raw_rewritten
        );
        self.line("", |e| e.name.clone());
        println!("|---{}|", "|---:".repeat(self.engines.len()));
        self.line("load, rows/s", |e| {
            let cut = if e.loading.loaded.finished { "" } else { " (cut off)" };
            format!("{:.0}{cut}", e.loading.loaded.rows_per_s)
        });
        self.line("load, batch of 1000: p99 / max, ms", |e| {
            format!("{:.0} / {:.0}", e.loading.loaded.batch_p99_ms, e.loading.loaded.batch_max_ms)
        });
        self.line("load until settled: µs of processor, bytes written, a row", |e| {
            format!("{:.1}, {:.0}", e.loading.cpu_us_per_row, e.loading.written_per_row)
        });
        self.line("settling after the load, s", |e| format!("{:.1}", e.loading.settle_s));
        self.line("gets/s right after load, 1 / 2 threads", |e| {
            format!("{:.0} / {:.0}", e.loading.gets_1.per_s, e.loading.gets_2.per_s)
        });
        self.line("… µs of processor a get", |e| {
            format!("{:.1} / {:.1}", e.loading.gets_1.cpu_us, e.loading.gets_2.cpu_us)
        });
        self.line("gets/s settled, 1 / 2 threads", |e| {
            format!("{:.0} / {:.0}", e.median(|s| s.gets_1.per_s), e.median(|s| s.gets_2.per_s))
        });
        self.line("… µs of processor a get", |e| {
            format!("{:.1} / {:.1}", e.median(|s| s.gets_1.cpu_us), e.median(|s| s.gets_2.cpu_us))
        });
        self.line("scans of 100 rows/s, µs of processor a scan", |e| {
            format!("{:.0}, {:.0}", e.median(|s| s.scans.per_s), e.median(|s| s.scans.cpu_us))
        });
        let levels = self.engines[0].serving.first().map_or(0, |s| s.commits.len());
        for level in 0..levels {
            let committers = self.engines[0].serving[0].commits[level].committers;
            self.line(&format!("commits/s, {committers} committers (× raw)"), |e| {
                let per_s = e.median(|s| s.commits[level].per_s);
                format!(
                    "{per_s:.0} (×{:.2})",
                    e.median(|s| s.commits[level].per_s / s.commits[level].raw_per_s)
                )
            });
            self.line("… µs of processor a commit", |e| {
                format!("{:.0}", e.median(|s| s.commits[level].cpu_us))
            });
            self.line("… latency p50 / p99, ms", |e| {
                let (p50, p99) =
                    (e.median(|s| s.commits[level].p50_us), e.median(|s| s.commits[level].p99_us));
                format!("{:.2} / {:.2}", p50 / 1e3, p99 / 1e3)
            });
        }
        self.line("reopen after clean stop, ms", |e| format!("{:.0}", e.median(|s| s.open_ms)));
        self.line("reopen after SIGKILL, ms", |e| format!("{:.0}", e.crashed.open_ms));
        self.line("acknowledged rows lost by SIGKILL", |e| e.crashed.missing.to_string());
        self.line("memory after reopen, MiB", |e| {
            format!("{:.0}", e.median(|s| s.rss_bytes as f64) / 1048576.0)
        });
        self.line("disk, MiB", |e| format!("{:.0}", e.median(|s| s.disk_bytes as f64) / 1048576.0));
        self.line("load average of the machine: loading, serving", |e| {
            format!("{:.1}, {:.1}", e.loading.load_average, e.median(|s| s.load_average))
        });
        println!();
    }

    fn line(&self, label: &str, cell: impl Fn(&Measured) -> String) {
        let cells: Vec<String> = self.engines.iter().map(cell).collect();
        println!("| {label} | {} |", cells.join(" | "));
    }

    fn print_damage(&self) {
        for damage in &self.damage {
            println!("{}:", damage.engine);
            for (variant, torn) in damage.torn.iter().enumerate() {
                println!("  last log record torn, one page zero ({}): {torn:?}", last_record(variant));
            }
            println!("  one bit flipped in the middle of the log: {:?}", damage.flipped_in_log);
            println!("  one bit flipped in a table: {:?}", damage.flipped_in_table);
            for message in &damage.messages {
                println!("    said: {message}");
            }
        }
    }
}

impl Measured {
    fn median(&self, of: impl Fn(&Serving) -> f64) -> f64 {
        let mut values: Vec<f64> = self.serving.iter().map(of).collect();
        values.sort_unstable_by(f64::total_cmp);
        quantile(&values, 0.5)
    }
}
