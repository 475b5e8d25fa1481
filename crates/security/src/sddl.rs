//! The text form of descriptors (SDDL): `O:owner G:group D:flags(entry)(entry) S:flags(entry)`.

use std::fmt::Write as _;

use super::{Ace, Acl, Descriptor, MAX_ENTRIES, MalformedDescriptor, ObjectTypes, Sid, ace_type, binary};

/// A null list.
const NO_ACCESS_CONTROL: &str = "NO_ACCESS_CONTROL";
/// Names of entry flags.
const FLAGS: [(&str, u8); 8] = [
    ("OI", 0x01),
    ("CI", 0x02),
    ("NP", 0x04),
    ("IO", 0x08),
    ("ID", 0x10),
    ("CR", 0x20),
    ("SA", 0x40),
    ("FA", 0x80),
];
/// Names of rights. The first [`NAMED_MASKS`] are used when writing a mask that they match exactly.
const RIGHTS: [(&str, u32); 28] = [
    ("FA", 0x001f_01ff),
    ("FR", 0x0012_0089),
    ("FW", 0x0012_0116),
    ("FX", 0x0012_00a0),
    ("GA", 0x1000_0000),
    ("GX", 0x2000_0000),
    ("GW", 0x4000_0000),
    ("GR", 0x8000_0000),
    ("SD", 0x0001_0000),
    ("RC", 0x0002_0000),
    ("WD", 0x0004_0000),
    ("WO", 0x0008_0000),
    ("CC", 0x0000_0001),
    ("DC", 0x0000_0002),
    ("LC", 0x0000_0004),
    ("SW", 0x0000_0008),
    ("RP", 0x0000_0010),
    ("WP", 0x0000_0020),
    ("DT", 0x0000_0040),
    ("LO", 0x0000_0080),
    ("CR", 0x0000_0100),
    ("KA", 0x000f_003f),
    ("KR", 0x0002_0019),
    ("KW", 0x0002_0006),
    ("KX", 0x0002_0019),
    ("NW", 0x0000_0001),
    ("NR", 0x0000_0002),
    ("NX", 0x0000_0004),
];
const NAMED_MASKS: usize = 8;

/// How to treat entries with an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConditionalEntries {
    Refused,
    Skipped,
}

impl Descriptor {
    /// Parses text. Refuses entries with an expression.
    pub fn from_sddl(text: &str) -> Result<Self, MalformedDescriptor> {
        Self::read_sddl(text, ConditionalEntries::Refused)
    }

    /// Parses text in order to check it. Skips entries with an expression if their syntax is valid.
    pub fn check_sddl(text: &str) -> Result<Self, MalformedDescriptor> {
        Self::read_sddl(text, ConditionalEntries::Skipped)
    }

    fn read_sddl(text: &str, conditional: ConditionalEntries) -> Result<Self, MalformedDescriptor> {
        let mut descriptor = Self::default();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (part, value) = rest.split_at_checked(2).ok_or(MalformedDescriptor)?;
            let end = value_end(value);
            let (value, next) = value.split_at(end);
            let value = value.trim();
            match part {
                "O:" if descriptor.owner.is_none() => descriptor.owner = Some(Sid::parse(value)?),
                "G:" if descriptor.group.is_none() => descriptor.group = Some(Sid::parse(value)?),
                "D:" if descriptor.dacl.is_none() => descriptor.dacl = Some(read_list(value, conditional)?),
                "S:" if descriptor.sacl.is_none() => descriptor.sacl = Some(read_list(value, conditional)?),
                _ => return Err(MalformedDescriptor),
            }
            rest = next;
        }
        Ok(descriptor)
    }

    /// Returns the text.
    pub fn to_sddl(&self) -> String {
        let mut text = String::new();
        for (part, sid) in [("O:", &self.owner), ("G:", &self.group)] {
            if let Some(sid) = sid {
                let _ = write!(text, "{part}{sid}");
            }
        }
        for (part, acl) in [("D:", &self.dacl), ("S:", &self.sacl)] {
            if let Some(acl) = acl {
                text.push_str(part);
                write_list(&mut text, acl);
            }
        }
        text
    }
}

/// Returns the end of a part's value, which is the start of the next part. Outside of entries, colons only
/// follow the name of a part.
fn value_end(value: &str) -> usize {
    let colon = parenthesis_depths(value).find(|(_, character, depth)| (*character, *depth) == (':', 0));
    colon.map_or(value.len(), |(colon, ..)| {
        value[..colon].char_indices().next_back().map_or(0, |(before, _)| before)
    })
}

/// Returns the characters of a text, each with the number of parentheses open after it. Ignores parentheses
/// in quotes.
fn parenthesis_depths(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut is_quoted) = (0_usize, false);
    text.char_indices().map(move |(at, character)| {
        match character {
            '"' => is_quoted = !is_quoted,
            '(' if !is_quoted => depth += 1,
            ')' if !is_quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        (at, character, depth)
    })
}

fn read_list(value: &str, conditional: ConditionalEntries) -> Result<Acl, MalformedDescriptor> {
    let (mut flags, entries) = value.split_at(value.find('(').unwrap_or(value.len()));
    flags = flags.trim();
    let mut acl = Acl::default();
    let mut is_list = true;
    while !flags.is_empty() {
        let known: [(&str, &mut bool); 3] =
            [("P", &mut acl.is_protected), ("AR", &mut acl.is_requested), ("AI", &mut acl.is_inherited)];
        if let Some(rest) = flags.strip_prefix(NO_ACCESS_CONTROL) {
            (is_list, flags) = (false, rest);
            continue;
        }
        let found = known.into_iter().find_map(|(name, flag)| Some((flags.strip_prefix(name)?, flag)));
        let (rest, flag) = found.ok_or(MalformedDescriptor)?;
        (*flag, flags) = (true, rest);
    }
    if is_list {
        acl.entries = Some(read_entries(entries, conditional)?);
    } else if !entries.is_empty() {
        return Err(MalformedDescriptor);
    }
    Ok(acl)
}

fn read_entries(text: &str, conditional: ConditionalEntries) -> Result<Vec<Ace>, MalformedDescriptor> {
    let (mut text, mut entries) = (text.trim_start(), vec![]);
    while !text.is_empty() {
        let inner = text.strip_prefix('(').ok_or(MalformedDescriptor)?;
        let (end, ..) =
            parenthesis_depths(text).find(|(_, _, depth)| *depth == 0).ok_or(MalformedDescriptor)?;
        if entries.len() == MAX_ENTRIES {
            return Err(MalformedDescriptor);
        }
        entries.extend(read_entry(&inner[..end - 1], conditional)?);
        text = inner[end..].trim_start();
    }
    if binary::list_size(&entries) > usize::from(u16::MAX) { Err(MalformedDescriptor) } else { Ok(entries) }
}

/// Parses an entry. Returns `None` if the entry is skipped.
fn read_entry(entry: &str, conditional: ConditionalEntries) -> Result<Option<Ace>, MalformedDescriptor> {
    let mut fields: Vec<&str> = entry.splitn(7, ';').map(str::trim).collect();
    let expression = fields.get(6).copied();
    fields.truncate(6);
    let [name, flags, rights, object, inherited, sid] = fields[..] else { return Err(MalformedDescriptor) };
    let is_name = |(_, known): &&(u8, &str)| known.eq_ignore_ascii_case(name);
    let number = match (ace_type::NAMES.iter().find(is_name), ace_type::WITH_EXPRESSION.iter().find(is_name))
    {
        (Some((number, _)), _) if expression.is_none() => number,
        (None, Some((number, _))) if expression.is_some_and(is_expression) => number,
        _ => return Err(MalformedDescriptor),
    };
    let has_object = ace_type::OBJECT_TYPES.contains(number);
    let object =
        ObjectTypes { object_type: read_guid(object)?, inherited_object_type: read_guid(inherited)? };
    if !has_object && object != ObjectTypes::default() {
        return Err(MalformedDescriptor);
    }
    let ace = Ace {
        ace_type: *number,
        flags: parse_letters(flags, &FLAGS)?,
        mask: read_rights(rights)?,
        object: has_object.then_some(object),
        sid: Sid::parse(sid)?,
    };
    match (expression, conditional) {
        (None, _) => Ok(Some(ace)),
        (Some(_), ConditionalEntries::Skipped) => Ok(None),
        (Some(_), ConditionalEntries::Refused) => Err(MalformedDescriptor),
    }
}

/// Returns whether a text is a pair of parentheses with content.
fn is_expression(text: &str) -> bool {
    text.len() > 2 && text.starts_with('(') && text.ends_with(')')
}

fn read_rights(text: &str) -> Result<u32, MalformedDescriptor> {
    let number = if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u32::from_str_radix(hex, 16)
    } else if text.starts_with('0') {
        u32::from_str_radix(text, 8)
    } else if text.starts_with(|c: char| c.is_ascii_digit()) {
        text.parse()
    } else {
        return parse_letters(text, &RIGHTS);
    };
    number.map_err(|_| MalformedDescriptor)
}

/// Returns the combined bits of two-letter names.
fn parse_letters<T>(mut text: &str, known: &[(&str, T)]) -> Result<T, MalformedDescriptor>
where
    T: Copy + Default + std::ops::BitOr<Output = T>,
{
    let mut sum = T::default();
    while !text.is_empty() {
        let (pair, rest) = text.split_at_checked(2).ok_or(MalformedDescriptor)?;
        let (_, value) =
            known.iter().find(|(name, _)| name.eq_ignore_ascii_case(pair)).ok_or(MalformedDescriptor)?;
        (sum, text) = (sum | *value, rest);
    }
    Ok(sum)
}

fn read_guid(text: &str) -> Result<Option<u128>, MalformedDescriptor> {
    if text.is_empty() {
        return Ok(None);
    }
    let guid = uuid::Uuid::try_parse(text).map_err(|_| MalformedDescriptor)?;
    Ok(Some(u128::from_le_bytes(guid.to_bytes_le())))
}

fn write_list(text: &mut String, acl: &Acl) {
    for (name, flag) in [("P", acl.is_protected), ("AR", acl.is_requested), ("AI", acl.is_inherited)] {
        text.push_str(if flag { name } else { "" });
    }
    let Some(entries) = &acl.entries else {
        text.push_str(NO_ACCESS_CONTROL);
        return;
    };
    for ace in entries {
        let name =
            ace_type::NAMES.iter().find(|(number, _)| *number == ace.ace_type).map_or("", |(_, name)| name);
        let flags: String =
            FLAGS.iter().filter(|(_, bit)| ace.flags & bit != 0).map(|(name, _)| *name).collect();
        let rights = RIGHTS[..NAMED_MASKS].iter().find(|(_, mask)| *mask == ace.mask);
        let rights = rights.map_or_else(|| format!("{:#x}", ace.mask), |(name, _)| (*name).to_owned());
        let object = ace.object.unwrap_or_default();
        let (object, inherited) = (guid(object.object_type), guid(object.inherited_object_type));
        let _ = write!(text, "({name};{flags};{rights};{object};{inherited};{})", ace.sid);
    }
}

fn guid(guid: Option<u128>) -> String {
    guid.map(|guid| uuid::Uuid::from_bytes_le(guid.to_le_bytes()).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_notations_of_rights_are_parsed() {
        for (rights, mask) in [
            ("FA", 0x1f_01ff),
            ("RCSDWDWO", 0xf_0000),
            ("CCDCLCSWRPWPDTLOCR", 0x1ff),
            ("0x1200A9", 0x12_00a9),
            ("010", 8),
            ("10", 10),
            ("", 0),
        ] {
            let text = format!("D:(A;;{rights};;;WD)");
            let descriptor = Descriptor::from_sddl(&text).unwrap();
            let entries = descriptor.dacl.and_then(|acl| acl.entries).unwrap();
            assert_eq!(entries[0].mask, mask, "{rights}");
        }
    }

    #[test]
    fn invalid_descriptors_are_refused() {
        for text in [
            "nonsense",
            "O:",
            "O:XXG:SY",
            "O:SYO:SY",
            "D:(A;;FA;;;WD",
            "D:(A;;FA;;WD)",
            "D:(Q;;FA;;;WD)",
            "D:(A;XX;FA;;;WD)",
            "D:(A;;F;;;WD)",
            "D:(A;;0xzz;;;WD)",
            "D:(A;;FA;;;)",
            "D:(A;;FA;bf967a86-0de6-11d0-a285-00aa003049e2;;WD)",
            "D:(OA;;FA;x;;WD)",
            "D:Q(A;;FA;;;WD)",
            "D:NO_ACCESS_CONTROL(A;;FA;;;WD)",
            "X:SY",
            "Ö",
            "D:ü:",
        ] {
            assert_eq!(Descriptor::from_sddl(text), Err(MalformedDescriptor), "{text}");
        }
    }

    #[test]
    fn entries_with_a_valid_expression_are_skipped_by_check_sddl() {
        for entry in [
            r#"(XA;;FX;;;WD;(@User.Title=="PM" && (@User.Division=="Finance:)" || Member_of {SID(BA)})))"#,
            "(XD;OICI;FR;;;S-1-5-21-1-2-3-4;(Exists WIFISTATE))",
            "(ZA;;FA;bf967a86-0de6-11d0-a285-00aa003049e2;;WD;(a==1))",
        ] {
            let text = format!("O:SYG:SYD:P(A;;FA;;;BA){entry}(A;;FR;;;WD)");
            let checked = Descriptor::check_sddl(&text).map(|descriptor| descriptor.to_sddl());
            assert_eq!(checked.as_deref(), Ok("O:SYG:SYD:P(A;;FA;;;BA)(A;;FR;;;WD)"), "{entry}");
            assert_eq!(Descriptor::from_sddl(&text), Err(MalformedDescriptor), "{entry}");
        }
        let audit = r#"S:(RA;;;;;WD;("Project",TS,0,"Windows","SQL"))(XU;;FX;;;WD;(a))(ML;;NW;;;HI)"#;
        let checked = Descriptor::check_sddl(audit).map(|descriptor| descriptor.to_sddl());
        assert_eq!(checked.as_deref(), Ok("S:(ML;;0x1;;;HI)"));
        for text in [
            "D:(XA;;FA;;;WD)",
            "D:(XA;;FA;;;WD;)",
            "D:(XA;;FA;;;WD;())",
            "D:(XA;;FA;;;WD;a==1)",
            "D:(XA;;FA;;;WD;(a==1)",
            "D:(XA;;FA;;;WD;(a==\")))",
            "D:(XA;;FA;;;XX;(a==1))",
            "D:(A;;FA;;;WD;(a==1))",
        ] {
            assert_eq!(Descriptor::check_sddl(text), Err(MalformedDescriptor), "{text}");
        }
    }

    #[test]
    fn lists_longer_than_64_kib_are_refused() {
        let list = |entries: usize| format!("D:{}", "(A;;FA;;;S-1-5-21-1-2-3-4)".repeat(entries));
        // 36 bytes each, after eight.
        assert!(Descriptor::from_sddl(&list(1820)).is_ok());
        assert_eq!(Descriptor::from_sddl(&list(1821)), Err(MalformedDescriptor));
    }

    #[test]
    fn spaces_between_parts_are_ignored() {
        let text = "O:SY G:SY D:P (A;;FA;;;WD) (A; OICI ;FR;;;BA)";
        assert_eq!(Descriptor::from_sddl(text).unwrap().to_sddl(), "O:SYG:SYD:P(A;;FA;;;WD)(A;OICI;FR;;;BA)");
    }
}
