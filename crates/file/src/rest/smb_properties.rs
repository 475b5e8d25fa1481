//! SMB properties in headers: attributes, times, permission.
//!
//! A request gives a value or a keyword: `now`, `inherit`, `preserve`. Versions before 2021-06-08 must give
//! them all to create or set; later versions may omit them.

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Response, Version, date};
use lazuli_service::reply::{put, put_validators};

use crate::rest::permission::{Format, MAX_IN_HEADER, check_key};
use crate::tree::permissions::{INHERITED_PERMISSION, Permission};
use crate::tree::record::{ARCHIVE, DIRECTORY, Node, NodeId, READ_ONLY, SmbProperties, normal};

/// Attributes by name, in the order of responses.
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
/// From this version on the headers are optional.
const OPTIONAL: Version = Version::new(2021, 6, 8);
/// From this version on the headers are required.
const REQUIRED: Version = Version::new(2019, 2, 2);

/// The SMB properties in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentProperties {
    attributes: Option<u32>,
    /// A copy has the attributes of its source.
    copies_attributes: bool,
    /// Adds the archive attribute to a file.
    adds_archive: bool,
    created: Option<Time>,
    last_write: Option<Time>,
    change: Option<Time>,
    /// `None`: unchanged, or inherited.
    pub(crate) permission: Option<Permission>,
}

/// A time in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Time {
    Now,
    At(Timestamp),
    /// The time of the source of a copy.
    OfSource,
}

/// Decides which keywords are valid and what missing headers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A new directory or file: `inherit`, `now`.
    Create,
    /// A change: `preserve`.
    Set,
    /// A rename: `preserve`, never required.
    Rename,
    /// A copy: `source`.
    Copy,
}

impl SentProperties {
    /// Parses the headers of a request.
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
        // A restored file keeps its attributes only together with its permission.
        let restores = headers.one_of(SEMANTICS, &[("New", false), ("Restore", true)])?.unwrap_or_default();
        let adds_archive = match purpose {
            Purpose::Create => !(restores && permission.is_some()),
            Purpose::Copy => attributes_text.is_none(),
            Purpose::Set | Purpose::Rename => false,
        };
        Ok(Self { attributes, copies_attributes, adds_archive, created, last_write, change, permission })
    }

    /// Returns the properties of a new object. `permission` is the key of the sent permission.
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

    /// Returns the properties of a copy, given those of its source. `permission` is the key of the target's
    /// permission.
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

    /// Changes existing properties. `permission` is the key of the sent permission.
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

    /// Returns whether the last-write time is set.
    pub(crate) fn sets_last_write(&self) -> bool {
        self.last_write.is_some()
    }

    /// Returns whether the read-only attribute is cleared.
    pub(crate) fn clears_read_only(&self) -> bool {
        self.attributes.is_some_and(|attributes| attributes & READ_ONLY == 0)
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

/// Formats attributes for headers and lists.
pub(crate) fn attributes_text(attributes: u32) -> String {
    let names: Vec<_> =
        NAMES.iter().filter(|(_, bit)| attributes & bit != 0).map(|(name, _)| *name).collect();
    if names.is_empty() { "None".to_owned() } else { names.join(" | ") }
}

/// Writes the properties of a directory or file into headers.
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

/// Makes a response with the ETag, date and SMB properties of a directory or file.
pub(crate) fn written(status: StatusCode, node: &Node, parent: NodeId) -> Response {
    let mut response = Response::empty(status);
    put_validators(&mut response.headers, node.validators());
    write(&mut response.headers, node, parent, INHERITED_PERMISSION);
    if status == StatusCode::CREATED || status == StatusCode::OK {
        put(&mut response.headers, "x-ms-request-server-encrypted", "true");
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::record::NORMAL;
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
    fn new_file_has_archive_attribute_unless_restored_with_permission() {
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
    fn smb_headers_are_required_in_a_range_of_versions() {
        let parse = |version| SentProperties::parse(&HeaderMap::new(), version, Purpose::Create);
        assert!(parse(NEW).is_ok() && parse(Version::new(2018, 11, 9)).is_ok());
        let refused = parse(Version::new(2019, 7, 7)).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::MissingRequiredHeader);
    }

    #[test]
    fn omitted_smb_properties_default_on_create_and_stay_on_set() {
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
