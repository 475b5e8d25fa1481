//! Formats numbers and tables for terminals.

use std::fmt;

/// Formats a number with about three significant digits: `1,234`, `56.7`, `0.89`.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 99.95 => 0,
        middle if middle >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, ""), |(whole, _)| (whole, &digits[whole.len()..]));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}

/// Formats microseconds in a suitable unit.
pub(crate) fn micros(value: f64) -> String {
    if value < 999.5 {
        format!("{} µs", number(value))
    } else if value < 999_500.0 {
        format!("{} ms", number(value / 1e3))
    } else {
        format!("{} s", number(value / 1e6))
    }
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table whose columns are as wide as their widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    /// Adds a row. Missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
        let width = |column| self.rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in &self.rows {
            let cells = self.columns.iter().zip(&widths).enumerate().map(|(column, (align, width))| {
                let text = cell(row, column);
                match align {
                    Align::Left => format!("{text:<width$}"),
                    Align::Right => format!("{text:>width$}"),
                }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0.00"),
            (0.123, "0.12"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (99.94, "99.9"),
            (99.96, "100"),
            (999.4, "999"),
            (1234.0, "1,234"),
            (1_234_567.8, "1,234,568"),
            (-1234.0, "-1,234"),
            (-0.5, "-0.50"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn durations_have_a_suitable_unit() {
        for (value, text) in [
            (0.25, "0.25 µs"),
            (999.0, "999 µs"),
            (999.9, "1.00 ms"),
            (12_345.0, "12.3 ms"),
            (999_900.0, "1.00 s"),
            (75_000_000.0, "75.0 s"),
        ] {
            assert_eq!(micros(value), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("what", Align::Left), ("p50", Align::Right), ("note", Align::Left)]);
        table.row(["a longer name".into(), "1 µs".into()]);
        table.row(["b".into(), "123 µs".into(), "x".into()]);
        assert_eq!(
            table.to_string(),
            "what              p50  note\n\
             a longer name    1 µs\n\
             b              123 µs  x\n"
        );
    }
}
