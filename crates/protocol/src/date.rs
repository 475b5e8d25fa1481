//! Date formats of the protocol: HTTP dates in headers and listings, ISO 8601 with seven decimals in snapshot
//! ids, table timestamps and errors, and the shorter ISO forms that shared access signatures may use.
//!
//! Formatting never fails; parsing returns `None` for other text. The `time` crate provides the calendar.
//! Digits are formatted by this module because every reply has a `Date` header.

use http::HeaderValue;
use lazuli_concurrency::{Timestamp, time::TICKS_PER_SECOND};
use time::{Date, Month};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const LONG_DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// The Julian day of 0001-01-01, where timestamps start.
const JULIAN_DAY_OF_YEAR_ONE: i32 = 1_721_426;
const SECONDS_PER_DAY: u64 = 86_400;

/// Formats as `Sun, 06 Nov 1994 08:49:37 GMT`, for HTTP headers and listings.
pub fn rfc1123(moment: Timestamp) -> String {
    let civil = Civil::of(moment);
    let mut out = String::with_capacity(29);
    out.push_str(DAYS[civil.weekday]);
    out.push_str(", ");
    digits(&mut out, u32::from(civil.day), 2);
    out.push(' ');
    out.push_str(MONTHS[usize::from(civil.month) - 1]);
    out.push(' ');
    digits(&mut out, civil.year, 4);
    out.push(' ');
    civil.push_time(&mut out);
    out.push_str(" GMT");
    out
}

/// Returns the value of a header such as `Date` or `Last-Modified`.
pub fn header_value(moment: Timestamp) -> HeaderValue {
    // The text is visible ASCII, so the fallback is never used.
    HeaderValue::try_from(rfc1123(moment)).unwrap_or(HeaderValue::from_static(""))
}

/// Formats as `1994-11-06T08:49:37.0000000Z`, for snapshot ids, table timestamps, access policies and errors.
pub fn iso8601(moment: Timestamp) -> String {
    let civil = Civil::of(moment);
    let mut out = civil.date_and_time(28);
    out.push('.');
    digits(&mut out, civil.ticks, 7);
    out.push('Z');
    out
}

/// Formats as `1994-11-06T08:49:37Z`, for the few places that need whole seconds.
pub fn iso8601_seconds(moment: Timestamp) -> String {
    let mut out = Civil::of(moment).date_and_time(20);
    out.push('Z');
    out
}

/// Parses an HTTP date in any of its three forms: RFC 1123, RFC 850, asctime. Does not check the weekday
/// against the date.
pub fn parse_http(text: &str) -> Option<Timestamp> {
    let mut scan = DateScanner(text);
    let day_name = scan.until(|c| !c.is_ascii_alphabetic());
    if DAYS.contains(&day_name) && scan.literal(" ") {
        return asctime(scan);
    }
    let month = |scan: &mut DateScanner<'_>| MONTHS.iter().position(|m| scan.literal(m)).map(|m| m as u8 + 1);
    scan.literal(", ").then_some(())?;
    let (year, month, day) = if DAYS.contains(&day_name) {
        let day = scan.number(2)?;
        scan.literal(" ").then_some(())?;
        let month = month(&mut scan)?;
        scan.literal(" ").then_some(())?;
        (scan.number(4)?, month, day)
    } else if LONG_DAYS.contains(&day_name) {
        let day = scan.number(2)?;
        scan.literal("-").then_some(())?;
        let month = month(&mut scan)?;
        scan.literal("-").then_some(())?;
        let year = scan.number(2)?;
        // Two digits mean 1950 to 2049, as in the cloud service's runtime.
        (if year < 50 { 2000 + year } else { 1900 + year }, month, day)
    } else {
        return None;
    };
    scan.literal(" ").then_some(())?;
    let seconds = scan.hours_minutes_seconds()?;
    (scan.literal(" GMT") && scan.0.is_empty()).then_some(())?;
    moment(year, month, day, seconds, 0)
}

fn asctime(mut scan: DateScanner<'_>) -> Option<Timestamp> {
    let month = MONTHS.iter().position(|m| scan.literal(m))? as u8 + 1;
    scan.literal(" ").then_some(())?;
    let day = if scan.literal(" ") { scan.number(1)? } else { scan.number(2)? };
    scan.literal(" ").then_some(())?;
    let seconds = scan.hours_minutes_seconds()?;
    scan.literal(" ").then_some(())?;
    let year = scan.number(4)?;
    scan.0.is_empty().then_some(())?;
    moment(year, month, day, seconds, 0)
}

/// Parses the ISO 8601 forms of shared access signatures and access policies: `YYYY-MM-DD`, `…Thh:mm`,
/// `…Thh:mm:ss`,
/// `…Thh:mm:ss.f` with one to seven decimals. A time is followed by `Z` or an offset `±hh:mm`.
pub fn parse_iso8601(text: &str) -> Option<Timestamp> {
    let mut scan = DateScanner(text);
    let year = scan.number(4)?;
    scan.literal("-").then_some(())?;
    let month = scan.number(2)? as u8;
    scan.literal("-").then_some(())?;
    let day = scan.number(2)?;
    if scan.0.is_empty() {
        return moment(year, month, day, 0, 0);
    }
    scan.literal("T").then_some(())?;
    let mut seconds = scan.hours_minutes()?;
    let mut ticks = 0;
    if scan.literal(":") {
        seconds += scan.number(2).filter(|s| *s < 60)?;
        if scan.literal(".") {
            ticks = scan.decimals()?;
        }
    }
    let moment = moment(year, month, day, seconds, ticks)?;
    let east = match scan.0.as_bytes().first()? {
        b'Z' => return (scan.0 == "Z").then_some(moment),
        b'+' => scan.literal("+"),
        b'-' => !scan.literal("-"),
        _ => return None,
    };
    let offset = u64::from(scan.hours_minutes()?) * TICKS_PER_SECOND;
    scan.0.is_empty().then_some(())?;
    let ticks =
        if east { moment.ticks().checked_sub(offset)? } else { moment.ticks().checked_add(offset)? };
    Some(Timestamp::from_ticks(ticks)).filter(|t| *t <= Timestamp::MAX)
}

/// Parses a snapshot or version id: exactly the form that [`iso8601`] writes.
pub fn parse_snapshot(text: &str) -> Option<Timestamp> {
    (text.len() == 28 && text.ends_with('Z')).then(|| parse_iso8601(text)).flatten()
}

fn moment(year: u32, month: u8, day: u32, seconds: u32, ticks: u32) -> Option<Timestamp> {
    let month = Month::try_from(month).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    let days = u64::try_from(date.to_julian_day() - JULIAN_DAY_OF_YEAR_ONE).ok()?;
    let seconds = days * SECONDS_PER_DAY + u64::from(seconds);
    Some(Timestamp::from_ticks(seconds * TICKS_PER_SECOND + u64::from(ticks)))
}

/// A timestamp as calendar fields.
struct Civil {
    year: u32,
    month: u8,
    day: u8,
    weekday: usize,
    second_of_day: u32,
    ticks: u32,
}

impl Civil {
    fn of(moment: Timestamp) -> Self {
        let ticks = moment.min(Timestamp::MAX).ticks();
        let seconds = ticks / TICKS_PER_SECOND;
        let days = (seconds / SECONDS_PER_DAY) as i32;
        // Never out of range: `Timestamp::MAX` is in the year 9999.
        let date = Date::from_julian_day(days + JULIAN_DAY_OF_YEAR_ONE).unwrap_or(Date::MAX);
        let (year, month, day) = date.to_calendar_date();
        Self {
            year: year.unsigned_abs(),
            month: month.into(),
            day,
            weekday: usize::from(date.weekday().number_days_from_monday()),
            second_of_day: (seconds % SECONDS_PER_DAY) as u32,
            ticks: (ticks % TICKS_PER_SECOND) as u32,
        }
    }

    fn date_and_time(&self, capacity: usize) -> String {
        let mut out = String::with_capacity(capacity);
        digits(&mut out, self.year, 4);
        out.push('-');
        digits(&mut out, u32::from(self.month), 2);
        out.push('-');
        digits(&mut out, u32::from(self.day), 2);
        out.push('T');
        self.push_time(&mut out);
        out
    }

    fn push_time(&self, out: &mut String) {
        digits(out, self.second_of_day / 3600, 2);
        out.push(':');
        digits(out, self.second_of_day / 60 % 60, 2);
        out.push(':');
        digits(out, self.second_of_day % 60, 2);
    }
}

fn digits(out: &mut String, value: u32, width: u32) {
    for place in (0..width).rev() {
        out.push(char::from(b'0' + (value / 10u32.pow(place) % 10) as u8));
    }
}

/// Parses a text from the front. Holds the rest.
struct DateScanner<'a>(&'a str);

impl<'a> DateScanner<'a> {
    fn literal(&mut self, expected: &str) -> bool {
        let rest = self.0.strip_prefix(expected);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let (head, tail) = self.0.split_at(self.0.find(end).unwrap_or(self.0.len()));
        self.0 = tail;
        head
    }

    /// Reads exactly `width` digits.
    fn number(&mut self, width: usize) -> Option<u32> {
        let (head, tail) = self.0.split_at_checked(width)?;
        self.0 = tail;
        head.bytes().all(|b| b.is_ascii_digit()).then(|| head.parse().ok()).flatten()
    }

    fn hours_minutes(&mut self) -> Option<u32> {
        let hours = self.number(2).filter(|h| *h < 24)?;
        self.literal(":").then_some(())?;
        let minutes = self.number(2).filter(|m| *m < 60)?;
        Some(hours * 3600 + minutes * 60)
    }

    fn hours_minutes_seconds(&mut self) -> Option<u32> {
        let seconds = self.hours_minutes()?;
        self.literal(":").then_some(())?;
        Some(seconds + self.number(2).filter(|s| *s < 60)?)
    }

    /// Reads one to seven decimals and returns them as ticks.
    fn decimals(&mut self) -> Option<u32> {
        let decimals = self.until(|c| !c.is_ascii_digit());
        (1..=7).contains(&decimals.len()).then_some(())?;
        Some(decimals.parse::<u32>().ok()? * 10u32.pow(7 - decimals.len() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1994-11-06T08:49:37Z
    const RFC_EXAMPLE: Timestamp = Timestamp::from_unix_seconds(784_111_777);

    #[test]
    fn dates_are_formatted_as_the_protocol_specifies() {
        let fraction = Timestamp::from_ticks(637_545_308_929_740_791);
        for (moment, http, iso) in [
            (RFC_EXAMPLE, "Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37.0000000Z"),
            (fraction, "Tue, 20 Apr 2021 15:54:52 GMT", "2021-04-20T15:54:52.9740791Z"),
            (Timestamp::from_ticks(0), "Mon, 01 Jan 0001 00:00:00 GMT", "0001-01-01T00:00:00.0000000Z"),
            (Timestamp::MAX, "Fri, 31 Dec 9999 23:59:59 GMT", "9999-12-31T23:59:59.9999999Z"),
            (
                Timestamp::from_ticks(u64::MAX),
                "Fri, 31 Dec 9999 23:59:59 GMT",
                "9999-12-31T23:59:59.9999999Z",
            ),
            (
                Timestamp::from_unix_seconds(1_709_164_800),
                "Thu, 29 Feb 2024 00:00:00 GMT",
                "2024-02-29T00:00:00.0000000Z",
            ),
        ] {
            assert_eq!(rfc1123(moment), http);
            assert_eq!(header_value(moment), http);
            assert_eq!(iso8601(moment), iso);
            assert_eq!(iso8601_seconds(moment), format!("{}Z", &iso[..19]));
            assert_eq!(parse_http(http), Some(moment.min(Timestamp::MAX).whole_second()));
            assert_eq!(parse_snapshot(iso), Some(moment.min(Timestamp::MAX)));
        }
    }

    #[test]
    fn http_dates_have_three_forms() {
        for text in
            ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
        {
            assert_eq!(parse_http(text), Some(RFC_EXAMPLE), "{text}");
        }
        assert_eq!(parse_http("Wed Nov 16 08:49:37 1994").map(|t| t.unix_seconds()), Some(784_975_777));
        for (year, written) in
            [("49", "Fri, 01 Jan 2049 00:00:00 GMT"), ("50", "Sun, 01 Jan 1950 00:00:00 GMT")]
        {
            let moment = parse_http(&format!("Sunday, 01-Jan-{year} 00:00:00 GMT"));
            assert_eq!(moment.map(rfc1123).as_deref(), Some(written));
        }
    }

    #[test]
    fn other_texts_are_not_http_dates() {
        for text in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 31 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:60:37 GMT",
            "Sun, 06 Nov 1994 08:49:60 GMT",
            "Sun, 06 Nov 0000 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT ",
            "Som, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 Növ 1994 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
            "Sun Nov  6 08:49:37 94",
        ] {
            assert_eq!(parse_http(text), None, "{text:?}");
        }
    }

    #[test]
    fn shared_access_signatures_may_use_short_forms_and_offsets() {
        for (text, expected) in [
            ("2021-04-20", "2021-04-20T00:00:00.0000000Z"),
            ("2021-04-20T15:54Z", "2021-04-20T15:54:00.0000000Z"),
            ("2021-04-20T15:54:52Z", "2021-04-20T15:54:52.0000000Z"),
            ("2021-04-20T15:54:52.9Z", "2021-04-20T15:54:52.9000000Z"),
            ("2021-04-20T15:54:52.9740791Z", "2021-04-20T15:54:52.9740791Z"),
            ("2021-04-20T15:54+02:00", "2021-04-20T13:54:00.0000000Z"),
            ("2021-04-20T23:54:52.5-08:30", "2021-04-21T08:24:52.5000000Z"),
        ] {
            assert_eq!(parse_iso8601(text).map(iso8601).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_iso_dates() {
        for text in [
            "",
            "2021",
            "2021-04",
            "2021-02-29",
            "2021-04-20T",
            "2021-04-20Z",
            "2021-04-20T15Z",
            "2021-04-20T15:54",
            "2021-04-20T15:54:52",
            "2021-04-20T15:54:52.Z",
            "2021-04-20T15:54:52.12345678Z",
            "2021-04-20T15:54:52ZZ",
            "2021-04-20T15:54:52+0200",
            "2021-04-20T15:54:52+02:00Z",
            "2021-04-20 15:54:52Z",
            "0001-01-01T00:00+00:01",
            "9999-12-31T23:59-00:01",
            "２021-04-20",
        ] {
            assert_eq!(parse_iso8601(text), None, "{text:?}");
        }
    }

    #[test]
    fn snapshot_ids_have_exactly_seven_decimals() {
        assert_eq!(parse_snapshot("2021-04-20T15:54:52.974079Z"), None);
        assert_eq!(parse_snapshot("2021-04-20T15:54:52.97407+00:00"), None);
        assert!(parse_snapshot("2021-04-20T15:54:52.9740791Z").is_some());
    }
}
