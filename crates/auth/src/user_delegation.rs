//! User delegation keys: an OAuth subject gets one and signs shared access signatures with it.
//!
//! A key is derived from a secret of the server and from all claims of the key, so no key is stored. To
//! verify a signature, the server derives the key again from the fields of the signature. Changing the secret
//! revokes all keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal, ServiceKind, Version, date, xml};

use crate::{letter, mac};

/// Maximum distance of a key's start and expiry from now: seven days, and a margin for clients that request
/// exactly seven days by their own clock.
const MAX_LIFE: Span = Span::seconds(7 * 24 * 3600 + 15 * 60);

/// Separates derived keys from other uses of the secret.
const PURPOSE: &str = "lazuli user delegation key 1";

/// The tenant of a subject whose token names none.
pub const NO_TENANT: &str = "00000000-0000-0000-0000-000000000000";

/// The secret that keys are derived from. Never printed.
#[derive(Clone)]
pub struct MasterSecret([u8; 32]);

/// The claims that determine a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyClaims<'a> {
    pub(crate) account: &'a str,
    pub(crate) object_id: &'a str,
    pub(crate) tenant_id: &'a str,
    pub(crate) start: Timestamp,
    pub(crate) expiry: Timestamp,
    pub(crate) service: &'a str,
    pub(crate) version: &'a str,
    /// The tenant of the user that signatures may be bound to; usually empty.
    pub(crate) delegated_tenant_id: &'a str,
}

/// The body of Get User Delegation Key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyInfo {
    start: Timestamp,
    expiry: Timestamp,
    delegated_tenant_id: String,
}

/// The subject that requests a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) object_id: &'a str,
    pub(crate) tenant_id: &'a str,
}

impl MasterSecret {
    /// Creates a secret from 32 random bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Derives the key with these claims.
    pub(crate) fn derive(&self, claims: &KeyClaims<'_>) -> [u8; 32] {
        let moments = [claims.start, claims.expiry].map(date::iso8601_seconds);
        let fields = [
            PURPOSE,
            claims.account,
            claims.object_id,
            claims.tenant_id,
            &moments[0],
            &moments[1],
            claims.service,
            claims.version,
            claims.delegated_tenant_id,
        ];
        // Length prefixes make the encoding of the fields unambiguous.
        let message: String = fields.iter().map(|field| format!("{}:{field}\n", field.len())).collect();
        mac::tag(&self.0, message.as_bytes())
    }
}

impl std::fmt::Debug for MasterSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterSecret(…)")
    }
}

impl KeyInfo {
    /// Parses and checks the body of a request. An absent start means now.
    pub(crate) fn parse(body: &[u8], now: Timestamp) -> Result<Self, Refusal> {
        let (mut start, mut expiry, mut delegated_tenant_id) = (None, None, String::new());
        let mut xml = xml::Reader::root(body, "KeyInfo")?;
        while let Some(element) = xml.child()? {
            match element {
                "Start" => {
                    let moment =
                        |text: &str| if text.is_empty() { Some(now) } else { date::parse_iso8601(text) };
                    start = Some(xml.value(moment)?);
                }
                "Expiry" => expiry = Some(xml.value(date::parse_iso8601)?),
                "DelegatedUserTid" => delegated_tenant_id = xml.text()?,
                _ => return Err(xml.unsupported()),
            }
        }
        xml.finish()?;
        let start = start.unwrap_or(now).whole_second();
        let expiry = expiry.ok_or_else(|| xml::missing("Expiry"))?.whole_second();
        let limit = now + MAX_LIFE;
        let out_of_range = |name: &str, moment| {
            Err(Refusal::new(ErrorCode::InvalidXmlNodeValue)
                .detail("XmlNodeName", name)
                .detail("XmlNodeValue", date::iso8601_seconds(moment)))
        };
        if start > limit || now.since(start) > MAX_LIFE {
            return out_of_range("Start", start);
        }
        if expiry <= start || expiry <= now || expiry > limit {
            return out_of_range("Expiry", expiry);
        }
        Ok(Self { start, expiry, delegated_tenant_id })
    }

    /// Returns the reply with the key of an owner.
    pub(crate) fn key_xml(
        &self,
        secret: &MasterSecret,
        account: &str,
        owner: Owner<'_>,
        service: ServiceKind,
        version: Version,
    ) -> String {
        let version = version.to_string();
        let claims = KeyClaims {
            account,
            object_id: owner.object_id,
            tenant_id: owner.tenant_id,
            start: self.start,
            expiry: self.expiry,
            service: letter(service),
            version: &version,
            delegated_tenant_id: &self.delegated_tenant_id,
        };
        let delegated = Some(&self.delegated_tenant_id).filter(|tid| !tid.is_empty());
        let mut xml = xml::Writer::new();
        xml.open("UserDelegationKey")
            .text("SignedOid", claims.object_id)
            .text("SignedTid", claims.tenant_id)
            .text("SignedStart", date::iso8601_seconds(claims.start))
            .text("SignedExpiry", date::iso8601_seconds(claims.expiry))
            .text("SignedService", claims.service)
            .text("SignedVersion", claims.version);
        xml.optional("SignedDelegatedUserTid", delegated);
        xml.text("Value", STANDARD.encode(secret.derive(&claims)));
        xml.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_seconds(1_700_000_000); // 2023-11-14T22:13:20Z
    const SECRET: MasterSecret = MasterSecret::new([7; 32]);

    fn parse(start: &str, expiry: &str) -> Result<KeyInfo, ErrorCode> {
        let body = format!("<KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>");
        KeyInfo::parse(body.as_bytes(), NOW).map_err(|refusal| refusal.code())
    }

    #[test]
    fn key_is_valid_for_at_most_seven_days_from_now() {
        use ErrorCode::{
            InvalidXmlDocument, InvalidXmlNodeValue, MissingRequiredXmlNode, UnsupportedXmlNode,
        };
        for (start, expiry, expected) in [
            ("2023-11-14T22:13:20Z", "2023-11-21T22:13:20Z", None),
            ("2023-11-14", "2023-11-15", None),
            ("", "2023-11-15", None),
            ("2023-11-08T00:00:00Z", "2023-11-15T00:00:00Z", None),
            ("2023-11-07T00:00:00Z", "2023-11-15T00:00:00Z", Some(InvalidXmlNodeValue)),
            ("2023-11-14T22:13:20Z", "2023-11-21T23:13:20Z", Some(InvalidXmlNodeValue)),
            ("2023-11-22T00:00:00Z", "2023-11-22T00:10:00Z", Some(InvalidXmlNodeValue)),
            ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", Some(InvalidXmlNodeValue)),
            ("2023-11-14T20:00:00Z", "2023-11-14T22:00:00Z", Some(InvalidXmlNodeValue)),
            ("soon", "2023-11-15", Some(InvalidXmlNodeValue)),
            ("2023-11-14", "later", Some(InvalidXmlNodeValue)),
        ] {
            assert_eq!(parse(start, expiry).err(), expected, "{start} {expiry}");
        }
        for (body, expected) in [
            ("<KeyInfo><Start>2023-11-14</Start></KeyInfo>", MissingRequiredXmlNode),
            ("<KeyInfo><Color/></KeyInfo>", UnsupportedXmlNode),
            ("<Other/>", InvalidXmlDocument),
            ("", InvalidXmlDocument),
        ] {
            assert_eq!(KeyInfo::parse(body.as_bytes(), NOW).unwrap_err().code(), expected, "{body}");
        }
    }

    #[test]
    fn reply_names_the_owner_and_the_value_depends_on_all_claims() {
        let info = parse("2023-11-14", "2023-11-15T00:00:00.5Z").unwrap();
        let owner = Owner { object_id: "oid", tenant_id: "tid" };
        let xml = |secret: &MasterSecret, account, owner, version| {
            info.key_xml(secret, account, owner, ServiceKind::Blob, version)
        };
        let version = Version::new(2021, 12, 2);
        let reply = xml(&SECRET, "a", owner, version);
        let start = "<?xml version=\"1.0\" encoding=\"utf-8\"?><UserDelegationKey><SignedOid>oid</SignedOid>\
                     <SignedTid>tid</SignedTid><SignedStart>2023-11-14T00:00:00Z</SignedStart>\
                     <SignedExpiry>2023-11-15T00:00:00Z</SignedExpiry><SignedService>b</SignedService>\
                     <SignedVersion>2021-12-02</SignedVersion><Value>";
        assert!(reply.starts_with(start), "{reply}");
        let value = |xml: &str| xml.split("<Value>").nth(1).unwrap().to_owned();
        assert_eq!(value(&reply), value(&xml(&SECRET, "a", owner, version)));
        for other in [
            xml(&MasterSecret::new([8; 32]), "a", owner, version),
            xml(&SECRET, "b", owner, version),
            xml(&SECRET, "a", Owner { object_id: "oi", tenant_id: "dtid" }, version),
            xml(&SECRET, "a", owner, Version::new(2021, 12, 3)),
        ] {
            assert_ne!(value(&reply), value(&other));
        }
    }
}
