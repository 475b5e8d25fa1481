//! The SMB properties of directories and files in headers: attributes, times, permission.
//!
//! A request names each of them, or says where it comes from: `now`, `inherit`, `preserve`. Versions before 2021-06-08 must
//! name them all when they create or set; later ones may leave them out.

use http::HeaderMap;
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Version, date};

use crate::permission::{Format, MAX_IN_HEADER, check_key};
use crate::record::{Node, NodeId, SmbProperties};
use crate::reply::put;

/// The attribute that a file has if it has no other.
pub(crate) const NORMAL: u32 = 0x80;
/// The attribute of a file that must not be changed.
pub(crate) const READ_ONLY: u32 = 0x1;
/// The attribute of a file that is to be archived.
pub(crate) const ARCHIVE: u32 = 0x20;
/// The attribute of directories.
pub(crate) const DIRECTORY: u32 = 0x10;
/// Attributes by name, in the order in which they are shown.
const NAMES: [(&str, u32); 9] = [
    ("ReadOnly", READ_ONLY),
    ("Hidden", 0x2),
    ("System", 0x4),
    ("Directory", DIRECTORY),
    ("Archive", ARCHIVE),
    ("Temporary", 0x100),
    ("Offline", 0x1000),
    ("NotContentIndexed", 0x2000),
    ("NoScrubData", 0x2_0000),
];
const SEMANTICS: &str = "x-ms-file-property-semantics";
/// Since when the headers may be left out.
const OPTIONAL: Version = Version::new(2021, 6, 8);
/// Since when they must be there, until then.
const REQUIRED: Version = Version::new(2019, 2, 2);

/// What a request says of the SMB properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentProperties {
    attributes: Option<u32>,
    /// A copy has those of its source.
    copies_attributes: bool,
    /// A file is marked for archiving, beside what else it is.
    adds_archive: bool,
    created: Option<Time>,
    last_write: Option<Time>,
    change: Option<Time>,
    /// None: as it is, or as the parent's.
    pub(crate) permission: Option<Permission>,
}

/// A time that a request sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Now,
    At(Timestamp),
    /// That of the source of a copy.
    OfSource,
}

/// A permission that a request sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    /// In SDDL.
    Sddl(String),
    /// By the key that Create Permission gave.
    Key(String),
}

/// What the headers stand for where they name no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new directory or file: `inherit`, `now`.
    Create,
    /// A change of one: `preserve`.
    Set,
    /// A new name for one: `preserve`, and never required.
    Rename,
    /// A copy: `source`.
    Copy,
}

impl SentProperties {
    /// Everything stays as it is.
    pub(crate) fn preserving() -> Self {
        let (created, last_write, change, permission) = (None, None, None, None);
        let (copies_attributes, adds_archive) = (false, false);
        Self { attributes: None, copies_attributes, adds_archive, created, last_write, change, permission }
    }

    /// What the headers of a request say.
    pub(crate) fn parse(headers: &HeaderMap, version: Version, purpose: Purpose) -> Result<Self, Refusal> {
        let is_optional = matches!(purpose, Purpose::Rename | Purpose::Copy);
        let is_required = version >= REQUIRED && version < OPTIONAL && !is_optional;
        let is_of_source = |value: &str| purpose == Purpose::Copy && value.eq_ignore_ascii_case("source");
        let preserves = |value: &str| {
            matches!(purpose, Purpose::Set | Purpose::Rename) && value.eq_ignore_ascii_case("preserve")
        };
        let text = |name: &str| match headers.filled(name)? {
            None if is_required => Err(Refusal::missing_header(name)),
            found => Ok(found),
        };
        let unset = match purpose {
            Purpose::Create | Purpose::Copy => "inherit",
            Purpose::Set | Purpose::Rename => "preserve",
        };
        let attributes_text = text("x-ms-file-attributes")?;
        let copies_attributes = attributes_text.is_some_and(is_of_source);
        let attributes = match attributes_text.filter(|_| !copies_attributes) {
            None => None,
            Some(value) if preserves(value) => None,
            Some(value) => Some(
                parse_attributes(value)
                    .ok_or_else(|| Refusal::invalid_header("x-ms-file-attributes", value))?,
            ),
        };
        let time = |name: &str, value: Option<&str>| match value {
            None => Ok(None),
            Some(value) if value.eq_ignore_ascii_case("now") => Ok(Some(Time::Now)),
            Some(value) if is_of_source(value) => Ok(Some(Time::OfSource)),
            Some(value) if preserves(value) => Ok(None),
            Some(value) => date::parse_iso8601(value)
                .map(|moment| Some(Time::At(moment)))
                .ok_or_else(|| Refusal::invalid_header(name, value)),
        };
        let created = time("x-ms-file-creation-time", text("x-ms-file-creation-time")?)?;
        let last_write = time("x-ms-file-last-write-time", text("x-ms-file-last-write-time")?)?;
        let change = time("x-ms-file-change-time", headers.filled("x-ms-file-change-time")?)?;
        let (text, key) =
            (headers.filled("x-ms-file-permission")?, headers.filled("x-ms-file-permission-key")?);
        let format = Format::parse(headers)?.unwrap_or_default();
        let permission = match (text, key) {
            (Some(_), Some(key)) => return Err(Refusal::invalid_header("x-ms-file-permission-key", key)),
            (None, None) if is_required => return Err(Refusal::missing_header("x-ms-file-permission")),
            (None, None) => None,
            (Some(text), None) if text.eq_ignore_ascii_case(unset) => None,
            (Some(text), None) if text.len() > MAX_IN_HEADER => {
                return Err(ErrorCode::FileInvalidPermission.into());
            }
            (Some(text), None) => Some(Permission::Sddl(format.read(text)?)),
            (None, Some(key)) => {
                check_key(key)?;
                Some(Permission::Key(key.to_owned()))
            }
        };
        // A file is restored as it was only together with its permission.
        let restores = headers.one_of(SEMANTICS, &[("New", false), ("Restore", true)])?.unwrap_or_default();
        let adds_archive = match purpose {
            Purpose::Create => !(restores && permission.is_some()),
            Purpose::Copy => attributes_text.is_none(),
            Purpose::Set | Purpose::Rename => false,
        };
        Ok(Self { attributes, copies_attributes, adds_archive, created, last_write, change, permission })
    }

    /// The properties of something new. `permission` is the key of what was sent.
    pub(crate) fn create(
        &self,
        is_directory: bool,
        permission: Option<String>,
        now: Timestamp,
    ) -> SmbProperties {
        let time = |sent: Option<Time>| match sent {
            Some(Time::At(moment)) => moment,
            Some(Time::Now | Time::OfSource) | None => now,
        };
        let archive = if self.adds_archive && !is_directory { ARCHIVE } else { 0 };
        SmbProperties {
            attributes: normal(self.attributes.unwrap_or_default() | archive, is_directory),
            created: time(self.created),
            last_write: time(self.last_write),
            change: time(self.change),
            accessed: None,
            permission,
        }
    }

    /// The properties of the copy of a file, if its source has any. `permission` is the key of what it is to have.
    pub(crate) fn copy(
        &self,
        source: Option<&SmbProperties>,
        permission: Option<String>,
        now: Timestamp,
    ) -> SmbProperties {
        let mut properties = self.create(false, permission, now);
        let Some(source) = source else { return properties };
        if self.copies_attributes {
            properties.attributes = source.attributes;
        }
        for (sent, place, of_source) in [
            (self.created, &mut properties.created, source.created),
            (self.last_write, &mut properties.last_write, source.last_write),
            (self.change, &mut properties.change, source.change),
        ] {
            if sent == Some(Time::OfSource) {
                *place = of_source;
            }
        }
        properties
    }

    /// Changes properties that are there. `permission` is the key of what was sent.
    pub(crate) fn apply(
        &self,
        properties: &mut SmbProperties,
        is_directory: bool,
        permission: Option<String>,
        now: Timestamp,
    ) {
        let set = |place: &mut Timestamp, sent: Option<Time>| match sent {
            None | Some(Time::OfSource) => {}
            Some(Time::Now) => *place = now,
            Some(Time::At(moment)) => *place = moment,
        };
        if let Some(attributes) = self.attributes {
            properties.attributes = normal(attributes, is_directory);
        }
        set(&mut properties.created, self.created);
        set(&mut properties.last_write, self.last_write);
        properties.change = now;
        set(&mut properties.change, self.change);
        if permission.is_some() {
            properties.permission = permission;
        }
    }

    /// Whether it sets the time of the last write.
    pub(crate) fn sets_last_write(&self) -> bool {
        self.last_write.is_some()
    }

    /// Whether it says that the file may be changed.
    pub(crate) fn clears_read_only(&self) -> bool {
        self.attributes.is_some_and(|attributes| attributes & READ_ONLY == 0)
    }
}

/// The attributes that something really has: a directory is one, and a file without any is normal.
pub(crate) fn normal(attributes: u32, is_directory: bool) -> u32 {
    match attributes & !(NORMAL | DIRECTORY) {
        rest if is_directory => rest | DIRECTORY,
        0 => NORMAL,
        rest => rest,
    }
}

fn parse_attributes(text: &str) -> Option<u32> {
    let mut attributes = 0;
    for word in text.split('|').map(str::trim) {
        if word.eq_ignore_ascii_case("None") {
            return (text.trim().len() == word.len()).then_some(0);
        }
        attributes |= NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word))?.1;
    }
    Some(attributes)
}

/// The attributes as headers and listings have them.
pub(crate) fn attributes_text(attributes: u32) -> String {
    let names: Vec<_> =
        NAMES.iter().filter(|(_, bit)| attributes & bit != 0).map(|(name, _)| *name).collect();
    if names.is_empty() { "None".to_owned() } else { names.join(" | ") }
}

/// Adds the properties of a directory or file to a reply.
pub(crate) fn write(headers: &mut HeaderMap, node: &Node, parent: NodeId, permission: &str) {
    let properties = &node.properties;
    put(headers, "x-ms-file-attributes", attributes_text(properties.attributes));
    put(headers, "x-ms-file-creation-time", date::iso8601(properties.created));
    put(headers, "x-ms-file-last-write-time", date::iso8601(properties.last_write));
    put(headers, "x-ms-file-change-time", date::iso8601(properties.change));
    put(headers, "x-ms-file-permission-key", properties.permission.as_deref().unwrap_or(permission));
    put(headers, "x-ms-file-id", node.id.0.to_string());
    put(headers, "x-ms-file-parent-id", parent.0.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use lazuli_protocol::ErrorCode;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000);
    const NEW: Version = Version::new(2025, 1, 5);

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn attributes_are_read_and_shown_by_their_names() {
        for (text, file, shown) in [
            ("None", NORMAL, "None"),
            ("ReadOnly", 0x1, "ReadOnly"),
            ("archive|Hidden", 0x22, "Hidden | Archive"),
            ("ReadOnly | System | NoScrubData", 0x2_0005, "ReadOnly | System | NoScrubData"),
        ] {
            let attributes = normal(parse_attributes(text).unwrap(), false);
            assert_eq!((attributes, attributes_text(attributes).as_str()), (file, shown), "{text}");
        }
        for text in ["", "None|Hidden", "Hidden|None", "Normal", "ReadOnly||Hidden", "x"] {
            assert_eq!(parse_attributes(text), None, "{text}");
        }
        assert_eq!(attributes_text(normal(0, true)), "Directory");
    }

    #[test]
    fn a_new_file_is_to_be_archived_unless_it_is_restored_with_its_permission() {
        const RESTORE: (&str, &str) = (SEMANTICS, "Restore");
        const PERMISSION: (&str, &str) = ("x-ms-file-permission", "O:SYG:SYD:(A;;FA;;;SY)");
        const READ_ONLY: (&str, &str) = ("x-ms-file-attributes", "ReadOnly");
        const NONE: (&str, &str) = ("x-ms-file-attributes", "None");
        use Purpose::{Copy, Create};
        for (purpose, sent, file) in [
            (Create, &[][..], "Archive"),
            (Create, &[NONE], "Archive"),
            (Create, &[READ_ONLY], "ReadOnly | Archive"),
            (Create, &[READ_ONLY, (SEMANTICS, "New")], "ReadOnly | Archive"),
            (Create, &[READ_ONLY, RESTORE], "ReadOnly | Archive"),
            (Create, &[READ_ONLY, RESTORE, PERMISSION], "ReadOnly"),
            (Create, &[NONE, RESTORE, ("x-ms-file-permission-key", "1*2")], "None"),
            (Create, &[NONE, RESTORE, ("x-ms-file-permission", "inherit")], "Archive"),
            (Copy, &[], "Archive"),
            (Copy, &[NONE], "None"),
            (Copy, &[READ_ONLY], "ReadOnly"),
        ] {
            let sent = headers(sent);
            let parsed = SentProperties::parse(&sent, NEW, purpose).unwrap();
            assert_eq!(attributes_text(parsed.create(false, None, NOW).attributes), file, "{sent:?}");
            let directory = attributes_text(parsed.create(true, None, NOW).attributes);
            assert!(!directory.contains("Archive"), "{sent:?}");
        }
        let refused = SentProperties::parse(&headers(&[(SEMANTICS, "Old")]), NEW, Create).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidHeaderValue);
    }

    #[test]
    fn headers_are_required_between_two_versions() {
        let parse = |version| SentProperties::parse(&HeaderMap::new(), version, Purpose::Create);
        assert!(parse(NEW).is_ok() && parse(Version::new(2018, 11, 9)).is_ok());
        let refused = parse(Version::new(2019, 7, 7)).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::MissingRequiredHeader);
    }

    #[test]
    fn what_is_not_named_is_now_when_created_and_stays_when_set() {
        let sent = SentProperties::parse(&HeaderMap::new(), NEW, Purpose::Create).unwrap();
        let mut properties = sent.create(false, None, NOW);
        assert_eq!((properties.attributes, properties.created, properties.last_write), (ARCHIVE, NOW, NOW));
        let later = Timestamp::from_unix_seconds(1_800_000_000);
        let set = headers(&[
            ("x-ms-file-attributes", "preserve"),
            ("x-ms-file-creation-time", "2020-01-02T03:04:05.1234567Z"),
            ("x-ms-file-last-write-time", "preserve"),
            ("x-ms-file-permission", "preserve"),
        ]);
        let sent = SentProperties::parse(&set, NEW, Purpose::Set).unwrap();
        sent.apply(&mut properties, false, None, later);
        assert_eq!(date::iso8601(properties.created), "2020-01-02T03:04:05.1234567Z");
        assert_eq!((properties.last_write, properties.change), (NOW, later));
        for (name, value) in [
            ("x-ms-file-attributes", "preserve"),
            ("x-ms-file-creation-time", "yesterday"),
            ("x-ms-file-last-write-time", "preserve"),
        ] {
            let refused =
                SentProperties::parse(&headers(&[(name, value)]), NEW, Purpose::Create).unwrap_err();
            assert_eq!(refused.code(), ErrorCode::InvalidHeaderValue, "{name}");
        }
    }
}
