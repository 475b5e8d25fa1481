//! Security identifiers, as numbers, bytes and text.

use std::fmt;

use super::MalformedDescriptor;
use crate::cursor::{ByteReader, ByteWriter};

/// Maximum number of sub-authorities.
const MAX_SUB_AUTHORITIES: usize = 15;
/// Two-letter names of SDDL.
const ALIASES: [(&str, &str); 49] = [
    ("WD", "S-1-1-0"),
    ("CO", "S-1-3-0"),
    ("CG", "S-1-3-1"),
    ("OW", "S-1-3-4"),
    ("NU", "S-1-5-2"),
    ("IU", "S-1-5-4"),
    ("SU", "S-1-5-6"),
    ("AN", "S-1-5-7"),
    ("ED", "S-1-5-9"),
    ("PS", "S-1-5-10"),
    ("AU", "S-1-5-11"),
    ("RC", "S-1-5-12"),
    ("SY", "S-1-5-18"),
    ("LS", "S-1-5-19"),
    ("NS", "S-1-5-20"),
    ("BA", "S-1-5-32-544"),
    ("BU", "S-1-5-32-545"),
    ("BG", "S-1-5-32-546"),
    ("PU", "S-1-5-32-547"),
    ("AO", "S-1-5-32-548"),
    ("SO", "S-1-5-32-549"),
    ("PO", "S-1-5-32-550"),
    ("BO", "S-1-5-32-551"),
    ("RE", "S-1-5-32-552"),
    ("RU", "S-1-5-32-554"),
    ("RD", "S-1-5-32-555"),
    ("NO", "S-1-5-32-556"),
    ("MU", "S-1-5-32-558"),
    ("LU", "S-1-5-32-559"),
    ("IS", "S-1-5-32-568"),
    ("CY", "S-1-5-32-569"),
    ("ER", "S-1-5-32-573"),
    ("CD", "S-1-5-32-574"),
    ("RA", "S-1-5-32-575"),
    ("ES", "S-1-5-32-576"),
    ("MS", "S-1-5-32-577"),
    ("HA", "S-1-5-32-578"),
    ("AA", "S-1-5-32-579"),
    ("RM", "S-1-5-32-580"),
    ("WR", "S-1-5-33"),
    ("UD", "S-1-5-84-0-0-0-0-0"),
    ("AC", "S-1-15-2-1"),
    ("LW", "S-1-16-4096"),
    ("ME", "S-1-16-8192"),
    ("MP", "S-1-16-8448"),
    ("HI", "S-1-16-12288"),
    ("SI", "S-1-16-16384"),
    ("AS", "S-1-18-1"),
    ("SS", "S-1-18-2"),
];
/// Two-letter names for accounts and groups of a domain, with their relative ids. There is no domain, so they
/// belong to a domain of zeros.
const DOMAIN_ALIASES: [(&str, u32); 17] = [
    ("RO", 498),
    ("LA", 500),
    ("LG", 501),
    ("DA", 512),
    ("DU", 513),
    ("DG", 514),
    ("DC", 515),
    ("DD", 516),
    ("CA", 517),
    ("SA", 518),
    ("EA", 519),
    ("PA", 520),
    ("CN", 522),
    ("RS", 553),
    ("AP", 525),
    ("KA", 526),
    ("EK", 527),
];

/// A security identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sid {
    authority: u64,
    sub_authorities: Vec<u32>,
}

impl Sid {
    /// Returns the length in bytes.
    pub fn size(&self) -> usize {
        8 + 4 * self.sub_authorities.len()
    }

    pub(super) fn read(reader: &mut ByteReader<'_>) -> Result<Self, MalformedDescriptor> {
        let (revision, count) = (reader.u8()?, usize::from(reader.u8()?));
        if revision != 1 || count > MAX_SUB_AUTHORITIES {
            return Err(MalformedDescriptor);
        }
        let authority = reader.array::<6>()?.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let sub_authorities = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        Ok(Self { authority, sub_authorities })
    }

    pub(super) fn write(&self, writer: &mut ByteWriter) {
        writer.u8(1).u8(self.sub_authorities.len() as u8).put(&self.authority.to_be_bytes()[2..]);
        for sub_authority in &self.sub_authorities {
            writer.u32(*sub_authority);
        }
    }

    /// Parses the text `S-1-…` or a two-letter name.
    pub fn parse(text: &str) -> Result<Self, MalformedDescriptor> {
        let is_name = |name: &str| name.eq_ignore_ascii_case(text);
        if let Some((_, numbers)) = ALIASES.iter().find(|(name, _)| is_name(name)) {
            return Self::parse_numbers(numbers);
        }
        if let Some((_, relative)) = DOMAIN_ALIASES.iter().find(|(name, _)| is_name(name)) {
            return Ok(Self { authority: 5, sub_authorities: vec![21, 0, 0, 0, *relative] });
        }
        Self::parse_numbers(text)
    }

    fn parse_numbers(text: &str) -> Result<Self, MalformedDescriptor> {
        let mut parts = text.split('-');
        let is_sid = parts.next().is_some_and(|s| s.eq_ignore_ascii_case("S")) && parts.next() == Some("1");
        let authority = parts.next().filter(|_| is_sid).ok_or(MalformedDescriptor)?;
        let authority = match authority.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => authority.parse(),
        };
        let authority = authority.ok().filter(|authority| *authority < 1 << 48).ok_or(MalformedDescriptor)?;
        let sub_authorities: Vec<u32> =
            parts.map(|part| part.parse().map_err(|_| MalformedDescriptor)).collect::<Result<_, _>>()?;
        let is_valid = sub_authorities.len() <= MAX_SUB_AUTHORITIES;
        if is_valid { Ok(Self { authority, sub_authorities }) } else { Err(MalformedDescriptor) }
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = if self.authority < 1 << 32 {
            format!("S-1-{}", self.authority)
        } else {
            format!("S-1-{:#x}", self.authority)
        };
        for sub_authority in &self.sub_authorities {
            numbers.push_str(&format!("-{sub_authority}"));
        }
        let alias = ALIASES.iter().find(|(_, sid)| *sid == numbers);
        f.write_str(alias.map_or(numbers.as_str(), |(name, _)| name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_written_as_numbers_or_by_their_alias() {
        for (text, shown) in [
            ("S-1-5-21-1-2-3-1001", "S-1-5-21-1-2-3-1001"),
            ("S-1-5-18", "SY"),
            ("sy", "SY"),
            ("S-1-0x123456789ab-7", "S-1-0x123456789ab-7"),
            ("DA", "S-1-5-21-0-0-0-512"),
            ("S-1-5", "S-1-5"),
        ] {
            assert_eq!(Sid::parse(text).unwrap().to_string(), shown);
        }
        for (name, numbers) in ALIASES {
            assert_eq!(Sid::parse(name), Sid::parse(numbers));
        }
    }

    #[test]
    fn invalid_identifiers_are_refused() {
        let long = format!("S-1-5{}", "-1".repeat(16));
        for text in [
            "",
            "S",
            "S-1",
            "S-2-5",
            "XX",
            "S-1-x",
            "S-1-5-",
            "S-1-5-4294967296",
            "S-1-0x1000000000000",
            &long,
        ] {
            assert_eq!(Sid::parse(text), Err(MalformedDescriptor), "{text}");
        }
        for bytes in
            [&[][..], &[1, 1, 0, 0, 0, 0, 0, 5], &[2, 0, 0, 0, 0, 0, 0, 5], &[1, 16, 0, 0, 0, 0, 0, 5]]
        {
            assert_eq!(Sid::read(&mut ByteReader::new(bytes)), Err(MalformedDescriptor), "{bytes:?}");
        }
    }
}
