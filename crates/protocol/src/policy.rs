//! Stored access policies and public access, as the ACL operations read and write them.

use lazuli_concurrency::Timestamp;
use serde::{Deserialize, Serialize};

use crate::error::Refusal;
use crate::{date, xml};

/// Maximum number of policies of a container, queue, table or share.
const MAX_POLICIES: usize = 5;
/// Maximum length of a policy's id, in characters.
const MAX_ID_CHARS: usize = 64;
/// Permission letters of all services. A policy may contain letters that its own service does not use.
const LETTERS: &str = "racwdxyltfmeopiu";

/// The rights of a shared access signature that refers to this policy. Absent fields have to be in the
/// signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessPolicy {
    /// Start of the validity.
    pub start: Option<Timestamp>,
    /// End of the validity.
    pub expiry: Option<Timestamp>,
    /// Permission letters, as in `sp`.
    pub permissions: Option<String>,
}

/// A policy with its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedIdentifier {
    /// The id, to which signatures refer with `si`.
    pub id: String,
    /// The policy.
    pub policy: AccessPolicy,
}

/// All policies of a container, queue, table or share, in the order in which they were set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SignedIdentifiers(pub Vec<SignedIdentifier>);

impl SignedIdentifiers {
    /// Parses the body of a Set ACL request. An empty body means no policies.
    pub fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let mut identifiers: Vec<SignedIdentifier> = Vec::new();
        if body.trim_ascii().is_empty() {
            return Ok(Self(identifiers));
        }
        let mut xml = xml::Reader::root(body, "SignedIdentifiers")?;
        while let Some(element) = xml.child()? {
            if element != "SignedIdentifier" {
                return Err(xml.unsupported());
            }
            let identifier = parse_identifier(&mut xml)?;
            if identifiers.len() == MAX_POLICIES {
                return Err(xml::invalid(format!("There are more than {MAX_POLICIES} access policies.")));
            }
            if identifiers.iter().any(|other| other.id == identifier.id) {
                return Err(xml::invalid("Two access policies have the same id."));
            }
            identifiers.push(identifier);
        }
        xml.finish()?;
        Ok(Self(identifiers))
    }

    /// Returns the body of a Get ACL reply.
    pub fn to_xml(&self) -> String {
        let mut xml = xml::Writer::new();
        xml.open("SignedIdentifiers");
        for SignedIdentifier { id, policy } in &self.0 {
            xml.open("SignedIdentifier").text("Id", id);
            // Clients recognize an empty policy by the missing element.
            if *policy != AccessPolicy::default() {
                xml.open("AccessPolicy");
                xml.optional("Start", policy.start.map(date::iso8601));
                xml.optional("Expiry", policy.expiry.map(date::iso8601));
                xml.optional("Permission", policy.permissions.as_deref());
                xml.close();
            }
            xml.close();
        }
        xml.finish()
    }

    /// Returns the policy with this id.
    pub fn get(&self, id: &str) -> Option<&AccessPolicy> {
        self.0.iter().find(|identifier| identifier.id == id).map(|identifier| &identifier.policy)
    }
}

fn parse_identifier(xml: &mut xml::Reader<'_>) -> Result<SignedIdentifier, Refusal> {
    let (mut id, mut policy) = (None, AccessPolicy::default());
    while let Some(element) = xml.child()? {
        match element {
            "Id" => id = Some(xml.text()?),
            "AccessPolicy" => policy = parse_policy(xml)?,
            _ => return Err(xml.unsupported()),
        }
    }
    let id = id.filter(|id| !id.is_empty()).ok_or_else(|| xml::invalid("An access policy has no id."))?;
    if id.chars().count() > MAX_ID_CHARS {
        return Err(xml::invalid(format!(
            "The id of an access policy is longer than {MAX_ID_CHARS} characters."
        )));
    }
    Ok(SignedIdentifier { id, policy })
}

fn parse_policy(xml: &mut xml::Reader<'_>) -> Result<AccessPolicy, Refusal> {
    // An empty element means the same as a missing one: clients write both.
    let moment = |text: &str| if text.is_empty() { Some(None) } else { date::parse_iso8601(text).map(Some) };
    let letters = |text: &str| {
        let letters = text.chars().all(|letter| LETTERS.contains(letter)).then(|| text.to_owned());
        letters.map(|letters| Some(letters).filter(|letters| !letters.is_empty()))
    };
    let mut policy = AccessPolicy::default();
    while let Some(element) = xml.child()? {
        match element {
            "Start" => policy.start = xml.value(moment)?,
            "Expiry" => policy.expiry = xml.value(moment)?,
            "Permission" => policy.permissions = xml.value(letters)?,
            _ => return Err(xml.unsupported()),
        }
    }
    Ok(policy)
}

/// Anonymous read access to a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicAccess {
    /// No anonymous access.
    #[default]
    None,
    /// Blobs can be read, but not listed.
    Blob,
    /// Blobs can be read and listed.
    Container,
}

impl PublicAccess {
    /// Parses the value of `x-ms-blob-public-access`. Without the header, access is [`PublicAccess::None`].
    pub fn parse(value: &str) -> Result<Self, Refusal> {
        match value {
            "blob" => Ok(Self::Blob),
            "container" => Ok(Self::Container),
            _ => Err(Refusal::invalid_header("x-ms-blob-public-access", value)),
        }
    }

    /// Returns the value of `x-ms-blob-public-access` and of `PublicAccess` in listings; `None` if absent.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Blob => Some("blob"),
            Self::Container => Some("container"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    fn document(identifiers: &str) -> String {
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><SignedIdentifiers>{identifiers}</SignedIdentifiers>"
        )
    }

    fn identifier(id: &str, policy: &str) -> String {
        format!("<SignedIdentifier><Id>{id}</Id><AccessPolicy>{policy}</AccessPolicy></SignedIdentifier>")
    }

    #[test]
    fn policies_are_returned_as_set() {
        let full = "<Start>2021-04-20T00:00:00.0000000Z</Start><Expiry>2022-01-01T08:00:00.5000000Z</Expiry>\
                    <Permission>rwd</Permission>";
        let empty = "<SignedIdentifier><Id>empty</Id></SignedIdentifier>";
        let text = document(&(identifier("a&amp;b", full) + empty));
        let identifiers = SignedIdentifiers::parse(text.as_bytes()).unwrap();
        assert_eq!(identifiers.to_xml(), text);
        let policy = identifiers.get("a&b").unwrap();
        assert_eq!(policy.permissions.as_deref(), Some("rwd"));
        assert_eq!(policy.start, date::parse_iso8601("2021-04-20"));
        assert_eq!(identifiers.get("empty"), Some(&AccessPolicy::default()));
        assert_eq!(identifiers.get("none"), None);
        let stored = serde_json::to_string(&identifiers).unwrap();
        assert_eq!(serde_json::from_str::<SignedIdentifiers>(&stored).unwrap(), identifiers);
    }

    #[test]
    fn empty_bodies_and_elements_clear_policies() {
        for body in ["", "  \r\n", "<SignedIdentifiers/>", &document("")] {
            assert_eq!(
                SignedIdentifiers::parse(body.as_bytes()),
                Ok(SignedIdentifiers::default()),
                "{body:?}"
            );
        }
        for policy in ["<Start/><Expiry></Expiry><Permission />", ""] {
            let text = document(&identifier("x", policy));
            let identifiers = SignedIdentifiers::parse(text.as_bytes()).unwrap();
            assert_eq!(identifiers.get("x"), Some(&AccessPolicy::default()));
        }
        let text = document("<SignedIdentifier><Id>x</Id></SignedIdentifier>");
        assert!(SignedIdentifiers::parse(text.as_bytes()).unwrap().get("x").is_some());
    }

    #[test]
    fn the_length_and_number_of_ids_are_limited() {
        let many = |n: usize| document(&(0..n).map(|i| identifier(&i.to_string(), "")).collect::<String>());
        let of_id = |id: &str| document(&identifier(id, ""));
        for (text, expected) in [
            (many(5), None),
            (many(6), Some(ErrorCode::InvalidXmlDocument)),
            (of_id(&"é".repeat(64)), None),
            (of_id(&"é".repeat(65)), Some(ErrorCode::InvalidXmlDocument)),
            (of_id(""), Some(ErrorCode::InvalidXmlDocument)),
            (document("<SignedIdentifier/>"), Some(ErrorCode::InvalidXmlDocument)),
            (document(&(identifier("a", "") + &identifier("a", ""))), Some(ErrorCode::InvalidXmlDocument)),
            (document(&identifier("a", "<Start>soon</Start>")), Some(ErrorCode::InvalidXmlNodeValue)),
            (
                document(&identifier("a", "<Permission>R W</Permission>")),
                Some(ErrorCode::InvalidXmlNodeValue),
            ),
            (document(&identifier("a", "<Permission>lwr</Permission>")), None),
            (document(&identifier("a", "<Permission>rz</Permission>")), Some(ErrorCode::InvalidXmlNodeValue)),
            (document(&identifier("a", "<Color/>")), Some(ErrorCode::UnsupportedXmlNode)),
            (document("<Id>a</Id>"), Some(ErrorCode::UnsupportedXmlNode)),
            ("<Other/>".to_owned(), Some(ErrorCode::InvalidXmlDocument)),
        ] {
            let refused = SignedIdentifiers::parse(text.as_bytes()).err().map(|refusal| refusal.code());
            assert_eq!(refused, expected, "{text}");
        }
    }

    #[test]
    fn public_access_is_blob_or_container() {
        for level in [PublicAccess::Blob, PublicAccess::Container] {
            assert_eq!(PublicAccess::parse(level.name().unwrap()), Ok(level));
        }
        assert_eq!(PublicAccess::parse("off").unwrap_err().code(), ErrorCode::InvalidHeaderValue);
        assert_eq!(PublicAccess::None.name(), None);
    }
}
