//! The id of a lease: a GUID in any text form that .NET parses, compared by value.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// The id of a lease. Displayed in hyphenated lower-case form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(u128);

/// The text is not a GUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a GUID")]
pub struct InvalidLeaseId;

impl LeaseId {
    /// Makes an id from bytes, in the order in which the text shows them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Returns the bytes of the id, in the order in which the text shows them.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [(96, 32), (80, 16), (64, 16), (48, 16)]
            .map(|(shift, bits)| (self.0 >> shift) & ((1 << bits) - 1));
        write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", self.0 & ((1 << 48) - 1))
    }
}

impl FromStr for LeaseId {
    type Err = InvalidLeaseId;

    /// Parses the forms N (digits), D (hyphenated), B (in braces), P (in parentheses) and X (nested
    /// hexadecimal).
    fn from_str(text: &str) -> Result<Self, InvalidLeaseId> {
        let text = text.trim();
        let value = if let Some(inner) = enclosed(text, "{", "}") {
            hyphenated(inner).or_else(|| nested(inner))
        } else if let Some(inner) = enclosed(text, "(", ")") {
            hyphenated(inner)
        } else {
            hyphenated(text).or_else(|| number(text, 32..=32))
        };
        value.map(Self).ok_or(InvalidLeaseId)
    }
}

fn enclosed<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    text.strip_prefix(open)?.strip_suffix(close)
}

/// Parses `00000000-0000-0000-0000-000000000000`.
fn hyphenated(text: &str) -> Option<u128> {
    joined(text.split('-'), &[8, 4, 4, 4, 12], |digits, width| number(digits, width..=width))
}

/// Parses `0x00000000,0x0000,0x0000,{0x00,0x00,0x00,0x00,0x00,0x00,0x00,0x00}`. White space is allowed
/// anywhere, and leading zeros are optional.
fn nested(text: &str) -> Option<u128> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (head, tail) = text.strip_suffix('}')?.split_once(",{")?;
    let prefixed = |field: &str, width| {
        number(field.strip_prefix("0x").or_else(|| field.strip_prefix("0X"))?, 1..=width)
    };
    Some(joined(head.split(','), &[8, 4, 4], prefixed)? << 64 | joined(tail.split(','), &[2; 8], prefixed)?)
}

/// Parses fields of these widths, in digits, and concatenates them to one number.
fn joined<'a>(
    mut fields: impl Iterator<Item = &'a str>,
    widths: &[usize],
    read: impl Fn(&str, usize) -> Option<u128>,
) -> Option<u128> {
    let mut value = 0;
    for width in widths {
        value = value << (4 * width) | read(fields.next()?, *width)?;
    }
    fields.next().is_none().then_some(value)
}

fn number(digits: &str, width: RangeInclusive<usize>) -> Option<u128> {
    // `from_str_radix` alone would accept a sign.
    let plain = width.contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u128::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LeaseId = LeaseId(0xCA76_1232_ED42_11CE_BACD_00AA_0057_B223);

    #[test]
    fn every_text_form_of_dot_net_is_parsed_as_the_same_id() {
        for text in [
            "ca761232ed4211cebacd00aa0057b223",
            "CA761232-ED42-11CE-BACD-00AA0057B223",
            "ca761232-ed42-11ce-bacd-00aa0057b223",
            " ca761232-ed42-11ce-bacd-00aa0057b223 ",
            "{CA761232-ED42-11CE-BACD-00AA0057B223}",
            "(CA761232-ED42-11CE-BACD-00AA0057B223)",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x00,0xAA,0x00,0x57,0xB2,0x23}}",
            "{0XCA761232, 0xED42, 0x11CE, {0xBA, 0xCD, 0x0, 0xAA, 0x0, 0x57, 0xB2, 0x23}}",
        ] {
            assert_eq!(text.parse(), Ok(ID), "{text}");
        }
    }

    #[test]
    fn id_is_displayed_hyphenated_in_lower_case() {
        assert_eq!(ID.to_string(), "ca761232-ed42-11ce-bacd-00aa0057b223");
        assert_eq!(LeaseId(1).to_string(), "00000000-0000-0000-0000-000000000001");
        assert_eq!(LeaseId::from_bytes(ID.to_bytes()), ID);
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in [
            "",
            "lease",
            "ca761232ed4211cebacd00aa0057b22",
            "ca761232ed4211cebacd00aa0057b2234",
            "+a761232ed4211cebacd00aa0057b223",
            "ga761232ed4211cebacd00aa0057b223",
            "ca761232-ed42-11ce-bacd-00aa0057b22",
            "ca761232-ed42-11ce-bacd-00aa0057b223-",
            "ca76123-2ed42-11ce-bacd-00aa0057b223",
            "ca761232-ed42-11ce-bacd00aa0057b223",
            "{ca761232-ed42-11ce-bacd-00aa0057b223",
            "ca761232-ed42-11ce-bacd-00aa0057b223}",
            "{ca761232-ed42-11ce-bacd-00aa0057b223)",
            "{ca761232ed4211cebacd00aa0057b223}",
            "urn:uuid:ca761232-ed42-11ce-bacd-00aa0057b223",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x00,0xAA,0x00,0x57,0xB2}}",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x00,0xAA,0x00,0x57,0xB2,0x23,0x00}}",
            "{0xCA761232,0xED42,0x11CE,0xBA,{0xCD,0x00,0xAA,0x00,0x57,0xB2,0x23}}",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x00,0xAA,0x00,0x57,0xB2,0x23}",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x100,0xAA,0x00,0x57,0xB2,0x23}}",
            "{0xCA761232,0xED42,0x11CE,{0xBA,0xCD,0x,0xAA,0x00,0x57,0xB2,0x23}}",
            "{CA761232,0xED42,0x11CE,{0xBA,0xCD,0x00,0xAA,0x00,0x57,0xB2,0x23}}",
            "ça761232-ed42-11ce-bacd-00aa0057b22",
        ] {
            assert_eq!(text.parse::<LeaseId>(), Err(InvalidLeaseId), "{text}");
        }
    }
}
