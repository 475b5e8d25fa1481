//! Writes the report as one HTML page, without scripts and external resources, for light and dark mode.
//!
//! Each section has a plot. Each contender of a measurement has a bar with the median and a tick for each
//! round. If operations were timed, it also has a line from p50 over p99 to p99.9 on the section's
//! logarithmic axis.

use std::fmt::Write;

use super::super::histogram::Latency;
use super::super::report::{Machine, Measurement, Report, Section, Series};
use super::super::text::{micros, number};

const STYLE: &str = include_str!("page.css");

const WIDTH: f64 = 1040.0;
const MEASUREMENT: f64 = 0.0;
const CONTENDER: f64 = 236.0;
const BARS: f64 = 358.0;
const BAR_WIDTH: f64 = 190.0;
const VALUE: f64 = BARS + BAR_WIDTH + 8.0;
const RATIO: f64 = 735.0;
const AXIS: f64 = 765.0;
const AXIS_WIDTH: f64 = 260.0;
const ROW: f64 = 22.0;
const GAP: f64 = 14.0;
const HEAD: f64 = 30.0;

/// Returns the page.
pub(super) fn html(report: &Report) -> String {
    let Machine { processors, memory_mib, kernel, load_average } = &report.machine;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>lazuli bench</title>\n\
         <style>\n{STYLE}</style>\n<h1>lazuli bench</h1>\n\
         <p>lazuli {}, {} build, {}. {processors} processors, {} MiB of memory, Linux {}; load average at the start \
         {load_average}. Contenders took turns; bars are medians, ticks are rounds, ratios are medians over rounds \
         that ran side by side.</p>\n",
        escape(report.version),
        report.build,
        escape(&report.started),
        number(*memory_mib as f64),
        escape(kernel),
    );
    for section in &report.sections {
        page.push_str(&self::section(section));
    }
    page.push_str("</html>\n");
    page
}

fn section(section: &Section) -> String {
    let mut out = format!("<section>\n<h2>{}</h2>\n", escape(&section.title));
    if !section.goals.is_empty() {
        out.push_str("<table class=\"goals\"><tr><th>goal<th>found<th>\n");
        for goal in &section.goals {
            let verdict = goal.verdict();
            let class = verdict.to_lowercase().replace(' ', "-");
            let (wanted, found) = (escape(&goal.wanted), escape(&goal.found));
            let _ = writeln!(out, "<tr><td>{wanted}<td class=\"n\">{found}<td class=\"{class}\">{verdict}");
        }
        out.push_str("</table>\n");
    }
    out.push_str(&plot(section));
    for note in &section.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
    }
    let _ = write!(out, "<details><summary>numbers</summary>\n{}</details>\n</section>\n", table(section));
    out
}

fn table(section: &Section) -> String {
    let mut out = String::from(
        "<table><tr><th>what<th>contender<th>median<th><th>p50<th>p99<th>p99.9<th>max<th>errors<th>ours ÷ this\n",
    );
    for measurement in &section.measurements {
        for series in &measurement.series {
            let latency =
                |of: fn(&Latency) -> f64| series.latency.as_ref().map(|l| micros(of(l))).unwrap_or_default();
            let errors = series.errors.iter().map(|(reason, count)| format!("{count} × {reason}"));
            let cells = [
                number(series.median),
                measurement.unit.into(),
                latency(|l| l.p50_us),
                latency(|l| l.p99_us),
                latency(|l| l.p999_us),
                latency(|l| l.max_us),
                errors.collect::<Vec<_>>().join(", "),
                series.ratio.map(number).unwrap_or_default(),
            ];
            let _ = write!(out, "<tr><td>{}<td>{}", escape(&measurement.name), escape(&series.contender));
            cells.iter().for_each(|cell| out.push_str(&format!("<td class=\"n\">{}", escape(cell))));
            out.push('\n');
        }
    }
    out.push_str("</table>\n");
    out
}

fn plot(section: &Section) -> String {
    let axis = Axis::of(section);
    let rows: usize = section.measurements.iter().map(|measurement| measurement.series.len()).sum();
    let height = HEAD + rows as f64 * ROW + section.measurements.len() as f64 * GAP;
    let title = escape(&section.title);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n");
    if let Some(axis) = &axis {
        svg.push_str(&axis.draw(height));
    }
    if section.measurements.iter().any(|measurement| measurement.ratio().is_some()) {
        let _ = writeln!(svg, "<text class=\"soft end\" x=\"{RATIO}\" y=\"25\">ours ÷ this</text>");
    }
    let mut y = HEAD;
    for measurement in &section.measurements {
        svg.push_str(&bars(measurement, axis.as_ref(), y));
        y += measurement.series.len() as f64 * ROW + GAP;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws the bars of one measurement. Each measurement has its own scale, since units differ.
fn bars(measurement: &Measurement, axis: Option<&Axis>, top: f64) -> String {
    let rounds = measurement.series.iter().flat_map(|series| &series.rounds);
    let most = rounds.clone().copied().filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    // A single bar carries no information.
    let compared = rounds.clone().count() > 1;
    let mut svg =
        format!("<text x=\"{MEASUREMENT}\" y=\"{}\">{}</text>\n", top + 15.0, escape(&measurement.name));
    for (at, series) in measurement.series.iter().enumerate() {
        let y = top + at as f64 * ROW;
        let text = y + 15.0;
        let class = if at == 0 { "ours" } else { "theirs" };
        let width = |value: f64| (value / most * BAR_WIDTH).clamp(0.0, BAR_WIDTH);
        let _ = write!(
            svg,
            "<text class=\"soft\" x=\"{CONTENDER}\" y=\"{text}\">{}</text>\n\
             <text class=\"n\" x=\"{VALUE}\" y=\"{text}\">{} {}</text>\n",
            escape(&series.contender),
            number(series.median),
            escape(measurement.unit),
        );
        if let Some(ratio) = series.ratio {
            let _ =
                writeln!(svg, "<text class=\"n end\" x=\"{RATIO}\" y=\"{text}\">{}</text>", number(ratio));
        }
        if compared {
            let (y, width) = (y + 4.0, width(series.median));
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{BARS}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\" rx=\"2\"/>"
            );
        }
        if series.rounds.len() > 1 {
            for round in &series.rounds {
                let x = BARS + width(*round);
                let _ = writeln!(svg, "<path class=\"tick\" d=\"M{x:.1} {}v14\"/>", y + 4.0);
            }
        }
        svg.push_str(&latency(series, axis, class, y + 11.0));
    }
    svg
}

fn latency(series: &Series, axis: Option<&Axis>, class: &str, y: f64) -> String {
    let (Some(axis), Some(latency)) = (axis, &series.latency) else { return String::new() };
    let [p50, p99, p999] = [latency.p50_us, latency.p99_us, latency.p999_us].map(|us| axis.x(us));
    format!(
        "<g class=\"{class} line\"><title>p50 {}, p99 {}, p99.9 {}</title>\
         <path d=\"M{p50:.1} {y}H{p999:.1}\"/><circle cx=\"{p50:.1}\" cy=\"{y}\" r=\"4\"/>\
         <path d=\"M{p99:.1} {}v8M{p999:.1} {}v8\"/></g>\n",
        micros(latency.p50_us),
        micros(latency.p99_us),
        micros(latency.p999_us),
        y - 4.0,
        y - 4.0,
    )
}

/// A logarithmic axis of microseconds, over whole powers of ten.
struct Axis {
    from: i32,
    to: i32,
}

impl Axis {
    /// Returns the axis that covers all latencies of a section; `None` if the section has none.
    fn of(section: &Section) -> Option<Self> {
        let latencies =
            section.measurements.iter().flat_map(|m| &m.series).filter_map(|s| s.latency.as_ref());
        let range = latencies.fold(None, |range: Option<(f64, f64)>, l| {
            let (low, high) = range.unwrap_or((f64::MAX, 0.0));
            Some((low.min(l.p50_us), high.max(l.p999_us)))
        });
        let (low, high) = range?;
        let from = low.max(1e-3).log10().floor() as i32;
        Some(Self { from, to: (high.max(1e-3).log10().ceil() as i32).max(from + 1) })
    }

    fn x(&self, us: f64) -> f64 {
        let share = (us.max(1e-3).log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        AXIS + share.clamp(0.0, 1.0) * AXIS_WIDTH
    }

    fn draw(&self, height: f64) -> String {
        let mut svg =
            format!("<text class=\"soft\" x=\"{AXIS}\" y=\"10\">latency: ● p50, | p99, | p99.9</text>\n");
        for power in self.from..=self.to {
            let (us, x) = (10f64.powi(power), self.x(10f64.powi(power)));
            let unit = match power {
                ..3 => format!("{us} µs"),
                3..6 => format!("{} ms", us / 1e3),
                6.. => format!("{} s", us / 1e6),
            };
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {HEAD}V{height}\"/>\n\
                 <text class=\"soft middle\" x=\"{x:.1}\" y=\"25\">{unit}</text>\n"
            );
        }
        svg
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::super::report::{Goal, OURS};
    use super::*;

    fn example() -> Report {
        let latency =
            |p50_us: f64| Latency { p50_us, p99_us: p50_us * 4.0, p999_us: p50_us * 9.0, max_us: 1e7 };
        let mut series = vec![
            Series::of_values(OURS, vec![1000.0, 1100.0, 1050.0]),
            Series::of_values("a < b & c", vec![100.0, 110.0, 105.0]),
        ];
        series[0].latency = Some(latency(120.0));
        series[1].latency = Some(latency(1500.0));
        series[1].errors.insert("503 \"Busy\"".into(), 7);
        let mut report = Report::begin();
        report.sections.push(Section {
            notes: vec!["<script>".into()],
            measurements: vec![
                Measurement::new("put-blob", "requests/s", series),
                Measurement::new("open", "ms", vec![Series::of_values(OURS, vec![0.0])]),
            ],
            goals: vec![Goal::judged("≥ 7 ×", "10 ×", true)],
            ..Section::new("services")
        });
        report.sections.push(Section::new("nothing"));
        report
    }

    #[test]
    fn page_has_every_number_and_no_external_resource() {
        let page = html(&example());
        for part in [
            "put-blob",
            "1,050 requests/s",
            ">10.0</text>",
            "pass",
            "7 × 503 &quot;Busy&quot;",
            "p99 480 µs",
            "100 ms",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        for part in ["<script", "http://", "https://", "url(", "NaN", "inf"] {
            assert!(!page.contains(part), "{part} in\n{page}");
        }
        assert!(page.contains("a &lt; b &amp; c") && page.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn elements_of_the_plot_are_balanced_and_within_bounds() {
        let page = html(&example());
        for tag in ["svg", "text", "g", "section", "table", "details", "title"] {
            let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
            let opened = page
                .match_indices(&open)
                .filter(|(at, _)| !page[at + open.len()..].starts_with(char::is_alphanumeric));
            assert_eq!(opened.count(), page.matches(&close).count(), "{tag}");
        }
        for width in
            page.split("width=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok())
        {
            assert!((0.0..=BAR_WIDTH).contains(&width), "{width}");
        }
    }

    #[test]
    fn axis_covers_all_latencies_in_whole_powers_of_ten() {
        let axis = Axis::of(&example().sections[0]).unwrap();
        assert_eq!((axis.from, axis.to), (2, 5), "120 µs to 13.5 ms");
        assert_eq!(axis.x(100.0), AXIS);
        assert!((axis.x(1000.0) - (AXIS + AXIS_WIDTH / 3.0)).abs() < 1e-9);
        assert!(Axis::of(&Section::new("nothing")).is_none());
    }
}
