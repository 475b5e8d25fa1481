//! Points in time: parsing, formatting and arithmetic.

use time::{Date, Duration, Month, OffsetDateTime, Time, UtcOffset};

/// A part of a date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    TimezoneHour,
    TimezoneMinute,
}

impl Part {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        const NAMES: [(&str, Part); 8] = [
            ("YEAR", Part::Year),
            ("MONTH", Part::Month),
            ("DAY", Part::Day),
            ("HOUR", Part::Hour),
            ("MINUTE", Part::Minute),
            ("SECOND", Part::Second),
            ("TIMEZONE_HOUR", Part::TimezoneHour),
            ("TIMEZONE_MINUTE", Part::TimezoneMinute),
        ];
        NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, part)| *part)
    }

    /// Returns the length of a part in seconds, if it is constant.
    fn seconds(self) -> Option<i64> {
        match self {
            Self::Day => Some(86_400),
            Self::Hour => Some(3600),
            Self::Minute => Some(60),
            Self::Second => Some(1),
            Self::Year | Self::Month | Self::TimezoneHour | Self::TimezoneMinute => None,
        }
    }
}

/// Parses an ISO 8601 time, which may end anywhere after the year: `2007T`, `2007-02-23`,
/// `2007-02-23T12:14Z`, `2007-02-23T12:14:33.079-08:00`. Without an offset, the time is UTC.
pub(crate) fn parse(text: &str) -> Option<OffsetDateTime> {
    let text = text.trim();
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, ""));
    let mut parts = date.split('-');
    let year = number(parts.next()?, 4)?;
    let mut optional = || parts.next().map_or(Some(1), |part| number(part, 2));
    let (month, day) = (optional()?, optional()?);
    if parts.next().is_some() {
        return None;
    }
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let date = Date::from_calendar_date(i32::try_from(year).ok()?, month, u8::try_from(day).ok()?).ok()?;
    let (time, offset) = split_offset(time)?;
    Some(OffsetDateTime::new_in_offset(date, parse_time(time)?, offset))
}

/// Splits `12:14-08:00` into the time and the offset.
fn split_offset(time: &str) -> Option<(&str, UtcOffset)> {
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return Some((time, UtcOffset::UTC));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, UtcOffset::UTC)) };
    let (time, offset) = time.split_at(at);
    let sign = if offset.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = match offset[1..].split_once(':') {
        Some((hours, minutes)) => (number(hours, 2)?, number(minutes, 2)?),
        None if offset.len() == 5 && offset.is_ascii() => {
            (number(&offset[1..3], 2)?, number(&offset[3..], 2)?)
        }
        None => (number(&offset[1..], 2)?, 0),
    };
    let seconds = sign * (i32::try_from(hours).ok()? * 3600 + i32::try_from(minutes).ok()? * 60);
    Some((time, UtcOffset::from_whole_seconds(seconds).ok().filter(|_| minutes < 60)?))
}

fn parse_time(time: &str) -> Option<Time> {
    if time.is_empty() {
        return Some(Time::MIDNIGHT);
    }
    let mut parts = time.split(':');
    let hour = number(parts.next()?, 2)?;
    let minute = number(parts.next()?, 2)?;
    let (second, nanosecond) = match parts.next().map(|part| part.split_once('.').unwrap_or((part, ""))) {
        None => (0, 0),
        Some((second, fraction)) => (number(second, 2)?, parse_fraction(fraction)?),
    };
    if parts.next().is_some() {
        return None;
    }
    let byte = |number: u32| u8::try_from(number).ok();
    Time::from_hms_nano(byte(hour)?, byte(minute)?, byte(second)?, nanosecond).ok()
}

/// Converts the fractional digits of a second to nanoseconds. Further digits are dropped.
fn parse_fraction(digits: &str) -> Option<u32> {
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let shown = digits.get(..9).unwrap_or(digits);
    let value: u32 = if shown.is_empty() { 0 } else { shown.parse().ok()? };
    Some(value * 10_u32.pow(9 - shown.len() as u32))
}

/// Parses a number of at most `digits` digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let is_number =
        !text.is_empty() && text.len() <= digits && text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Formats a time as `2017-01-02T03:04:05.006Z`, with as many decimals as needed.
pub(crate) fn to_text(moment: OffsetDateTime) -> String {
    let fraction = match moment.nanosecond() {
        0 => String::new(),
        nanos if nanos % 1_000_000 == 0 => format!(".{:03}", nanos / 1_000_000),
        nanos => format!(".{nanos:09}").trim_end_matches('0').to_owned(),
    };
    let offset = if moment.offset().is_utc() { "Z".to_owned() } else { offset_text(moment.offset(), ":") };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{fraction}{offset}",
        moment.year(),
        u8::from(moment.month()),
        moment.day(),
        moment.hour(),
        moment.minute(),
        moment.second(),
    )
}

fn offset_text(offset: UtcOffset, separator: &str) -> String {
    let minutes = offset.whole_minutes();
    let sign = if minutes < 0 { '-' } else { '+' };
    format!("{sign}{:02}{separator}{:02}", minutes.abs() / 60, minutes.abs() % 60)
}

/// Implements `DATE_ADD`. If the resulting month is too short, returns its last day. Returns `None` if the
/// result is out of range.
pub(crate) fn add(moment: OffsetDateTime, part: Part, quantity: i64) -> Option<OffsetDateTime> {
    if let Some(seconds) = part.seconds() {
        return moment.checked_add(Duration::seconds(seconds.checked_mul(quantity)?));
    }
    let months = if part == Part::Year { quantity.checked_mul(12)? } else { quantity };
    let months =
        (i64::from(moment.year()) * 12 + i64::from(u8::from(moment.month())) - 1).checked_add(months)?;
    let year = i32::try_from(months.div_euclid(12)).ok()?;
    let month = Month::try_from(u8::try_from(months.rem_euclid(12) + 1).ok()?).ok()?;
    let day = moment.day().min(month.length(year));
    Some(moment.replace_date(Date::from_calendar_date(year, month, day).ok()?))
}

/// Adds a number of days, which may have a fraction. Returns `None` if the result is out of range.
pub(crate) fn add_days(moment: OffsetDateTime, days: f64) -> Option<OffsetDateTime> {
    let seconds = days * 86_400.0;
    // Beyond this the result is outside of the calendar in any case.
    if seconds.is_nan() || seconds.abs() > 1e12 {
        return None;
    }
    moment.checked_add(Duration::seconds_f64(seconds))
}

/// Implements `DATE_DIFF`: returns the number of whole parts between two times.
pub(crate) fn difference(part: Part, from: OffsetDateTime, to: OffsetDateTime) -> i64 {
    if let Some(seconds) = part.seconds() {
        return (to - from).whole_seconds() / seconds;
    }
    // At the very end of the calendar, the converted time may not exist.
    let to = to.checked_to_offset(from.offset()).unwrap_or(to);
    let months = |moment: OffsetDateTime| i64::from(moment.year()) * 12 + i64::from(u8::from(moment.month()));
    let within = |moment: OffsetDateTime| (moment.day(), moment.time());
    let mut elapsed = months(to) - months(from);
    if elapsed > 0 && within(to) < within(from) {
        elapsed -= 1;
    } else if elapsed < 0 && within(to) > within(from) {
        elapsed += 1;
    }
    if part == Part::Year { elapsed / 12 } else { elapsed }
}

/// Implements `EXTRACT`.
pub(crate) fn extract(part: Part, moment: OffsetDateTime) -> i64 {
    match part {
        Part::Year => moment.year().into(),
        Part::Month => u8::from(moment.month()).into(),
        Part::Day => moment.day().into(),
        Part::Hour => moment.hour().into(),
        Part::Minute => moment.minute().into(),
        Part::Second => moment.second().into(),
        Part::TimezoneHour => moment.offset().whole_hours().into(),
        Part::TimezoneMinute => moment.offset().minutes_past_hour().into(),
    }
}

/// Implements `TO_STRING`: letters in the format are replaced by parts of the time, other characters are
/// copied. Returns `None` if a run of letters has no meaning.
pub(crate) fn format(moment: OffsetDateTime, format: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = format;
    while let Some(letter) = rest.chars().next() {
        let end = rest.find(|next| next != letter).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        rest = after;
        match letter {
            'A'..='Z' | 'a'..='z' => text.push_str(&format_run(moment, letter, run.len())?),
            _ => text.push_str(run),
        }
    }
    Some(text)
}

fn format_run(moment: OffsetDateTime, letter: char, length: usize) -> Option<String> {
    let padded = |value: u8| match length {
        1 => Some(value.to_string()),
        2 => Some(format!("{value:02}")),
        _ => None,
    };
    let half_day = match moment.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    match (letter, length) {
        ('y', 2) => Some(format!("{:02}", moment.year().rem_euclid(100))),
        ('y', 1 | 4) => Some(format!("{:04}", moment.year())),
        ('M', 3) => Some(moment.month().to_string().get(..3)?.to_uppercase()),
        ('M', 4) => Some(moment.month().to_string()),
        ('M', _) => padded(moment.month().into()),
        ('d', _) => padded(moment.day()),
        ('a', 1) => Some(if moment.hour() < 12 { "AM" } else { "PM" }.to_owned()),
        ('h', _) => padded(half_day),
        ('H', _) => padded(moment.hour()),
        ('m', _) => padded(moment.minute()),
        ('s', _) => padded(moment.second()),
        ('S', 1..=9) => Some(format!("{:09}", moment.nanosecond()).get(..length)?.to_owned()),
        ('X', 1) if moment.offset().is_utc() => Some("Z".to_owned()),
        ('X' | 'x', 1) => Some(moment.offset().whole_hours().to_string()),
        ('X' | 'x', 2 | 4) => Some(offset_text(moment.offset(), "")),
        ('X' | 'x', 3 | 5) => Some(offset_text(moment.offset(), ":")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> OffsetDateTime {
        parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn iso_8601_times_are_parsed() {
        for (text, expected) in [
            ("2007T", "2007-01-01T00:00:00Z"),
            ("2007", "2007-01-01T00:00:00Z"),
            ("2007-02T", "2007-02-01T00:00:00Z"),
            ("2010-01-01T", "2010-01-01T00:00:00Z"),
            ("2007-02-23T12:14Z", "2007-02-23T12:14:00Z"),
            ("2007-02-23T12:14:33.079-08:00", "2007-02-23T12:14:33.079-08:00"),
            ("2007-02-23 12:14:33.0790001+0530", "2007-02-23T12:14:33.0790001+05:30"),
            ("1969-07-20T20:18Z", "1969-07-20T20:18:00Z"),
        ] {
            assert_eq!(to_text(at(text)), expected, "{text}");
        }
        for text in [
            "",
            "T",
            "20070",
            "2007-13",
            "2007-02-30",
            "2007-02-03-04",
            "2007T1",
            "2007T25:00",
            "x",
            "2007T12:14+99:99",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_are_added_to_times() {
        for (text, part, quantity, expected) in [
            ("2017-01-02T03:04:05.006Z", Part::Minute, 1, "2017-01-02T03:05:05.006Z"),
            ("2020-01-31T", Part::Month, 1, "2020-02-29T00:00:00Z"),
            ("2020-02-29T", Part::Year, -1, "2019-02-28T00:00:00Z"),
            ("2020-01-31T", Part::Month, -1, "2019-12-31T00:00:00Z"),
            ("2020-12-31T23:59:59Z", Part::Second, 1, "2021-01-01T00:00:00Z"),
        ] {
            assert_eq!(to_text(add(at(text), part, quantity).unwrap()), expected, "{text}");
        }
        for quantity in [i64::MAX, i64::MIN, 1 << 40, -(1 << 40)] {
            for part in [Part::Year, Part::Month, Part::Day, Part::Hour, Part::Second] {
                let _ = add(at("2020T"), part, quantity);
            }
            let _ = add_days(at("2020T"), quantity as f64);
        }
        assert_eq!(add(at("9999-12-31T"), Part::Day, 1), None);
        assert_eq!(to_text(add_days(at("2020T"), 1.5).unwrap()), "2020-01-02T12:00:00Z");
    }

    #[test]
    fn differences_count_whole_parts() {
        for (part, from, to, expected) in [
            (Part::Hour, "2018-11-09T00:00+05:30", "2018-11-09T01:00:23-08:00", 14),
            (Part::Day, "2010-01-01T23:00Z", "2010-01-02T01:00Z", 0),
            (Part::Month, "2010T", "2010-05T", 4),
            (Part::Year, "2010-06T", "2011-05T", 0),
            (Part::Year, "2011-05T", "2009-05T", -2),
            (Part::Month, "2010-03-15T", "2010-02-16T", 0),
            (Part::Year, "0000-01-01T00:00+12:00", "9999-12-31T23:59:59-12:00", 9999),
            (Part::Second, "9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59+12:00", -86_400),
        ] {
            assert_eq!(difference(part, at(from), at(to)), expected, "{from} {to}");
        }
    }

    #[test]
    fn times_are_formatted() {
        let moment = at("1969-07-20T20:08:05.120+05:30");
        for (text, expected) in [
            ("MMMM d, y", "July 20, 1969"),
            ("yy yyyy M MM MMM", "69 1969 7 07 JUL"),
            ("dd h hh H HH a", "20 8 08 20 20 PM"),
            ("m mm s ss S SS SSS", "8 08 5 05 1 12 120"),
            ("X XX XXX x", "5 +0530 +05:30 5"),
        ] {
            assert_eq!(format(moment, text).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(format(moment, "yyy"), None);
        assert_eq!(format(moment, "q"), None);
    }

    #[test]
    fn parts_are_extracted() {
        let moment = at("2010-01-02T03:04:05-08:30");
        let parts = ["year", "MONTH", "Day", "hour", "minute", "second", "timezone_hour", "timezone_minute"];
        let parts: Vec<_> = parts.iter().map(|name| extract(Part::parse(name).unwrap(), moment)).collect();
        assert_eq!(parts, [2010, 1, 2, 3, 4, 5, -8, -30]);
    }
}
