//! The time, the client addresses and the protocols for which a shared access signature is valid.

use std::net::{IpAddr, Ipv4Addr};

use lazuli_concurrency::{Span, Timestamp};
use lazuli_protocol::{ErrorCode, Refusal, Version, date};

use crate::refusal::authentication_failed;

/// Maximum lifetime of a signature without a version and without a stored access policy.
const MAX_UNVERSIONED: Span = Span::seconds(3600);

/// The time in which a signature is valid: from its start, if given, and before its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValidityWindow {
    pub(super) start: Option<Timestamp>,
    pub(super) expiry: Timestamp,
}

impl ValidityWindow {
    /// Refuses a signature that is not valid now.
    pub(super) fn check(self, now: Timestamp) -> Result<(), Refusal> {
        let [expiry, current] = [self.expiry, now].map(date::rfc1123);
        match self.start {
            Some(start) if now < start || now >= self.expiry => Err(authentication_failed(format!(
                "Signature not valid in the specified time frame: Start [{}] - Expiry [{expiry}] - Current [{current}]",
                date::rfc1123(start)
            ))),
            None if now >= self.expiry => Err(authentication_failed(format!(
                "Signed expiry time [{expiry}] must be after signed start time [{current}]"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a signature without version that no policy can revoke and that is valid for longer than
    /// allowed.
    pub(super) fn check_length(self, now: Timestamp) -> Result<(), Refusal> {
        let start = self.start.unwrap_or(now);
        if self.expiry.since(start) <= MAX_UNVERSIONED {
            return Ok(());
        }
        let [start, expiry] = [start, self.expiry].map(date::rfc1123);
        Err(authentication_failed(format!(
            "A signature without sv and si holds for an hour at most: Start [{start}] - Expiry [{expiry}]"
        )))
    }
}

/// Checks `sip`: an IPv4 address, or an inclusive range of two addresses with a hyphen between them.
pub(super) fn check_source(sip: &str, peer: IpAddr, version: Version) -> Result<(), Refusal> {
    if sip.is_empty() {
        return Ok(());
    }
    let (first, last) = sip.split_once('-').unwrap_or((sip, sip));
    let (Ok(first), Ok(last)) = (first.parse::<Ipv4Addr>(), last.parse::<Ipv4Addr>()) else {
        return Err(authentication_failed("sip is not an address or a range of addresses."));
    };
    match peer.to_canonical() {
        IpAddr::V4(peer) if (first..=last).contains(&peer) => Ok(()),
        peer => Err(Refusal::not_authorized(ErrorCode::AuthorizationSourceIPMismatch, version).message(
            format!("This request is not authorized to perform this operation using this source IP {peer}."),
        )),
    }
}

/// Checks `spr`: `https`, or both protocols.
pub(super) fn check_protocol(spr: &str, secure: bool, version: Version) -> Result<(), Refusal> {
    match spr {
        "" | "https,http" | "http,https" => Ok(()),
        "https" if secure => Ok(()),
        "https" => Err(Refusal::not_authorized(ErrorCode::AuthorizationProtocolMismatch, version)),
        _ => Err(authentication_failed("spr is neither https nor https,http.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ErrorCode::{AuthenticationFailed, AuthorizationProtocolMismatch, AuthorizationSourceIPMismatch};

    #[test]
    fn signature_is_valid_from_its_start_until_before_its_expiry() {
        let at = Timestamp::from_unix_seconds;
        for (start, expiry, now, detail) in [
            (Some(100), 200, 100, None),
            (Some(100), 200, 199, None),
            (
                Some(100),
                200,
                99,
                Some(
                    "Signature not valid in the specified time frame: Start [Thu, 01 Jan 1970 00:01:40 GMT] - \
                     Expiry [Thu, 01 Jan 1970 00:03:20 GMT] - Current [Thu, 01 Jan 1970 00:01:39 GMT]",
                ),
            ),
            (
                Some(100),
                200,
                200,
                Some(
                    "Signature not valid in the specified time frame: Start [Thu, 01 Jan 1970 00:01:40 GMT] - \
                     Expiry [Thu, 01 Jan 1970 00:03:20 GMT] - Current [Thu, 01 Jan 1970 00:03:20 GMT]",
                ),
            ),
            (None, 200, 199, None),
            (
                None,
                200,
                200,
                Some(
                    "Signed expiry time [Thu, 01 Jan 1970 00:03:20 GMT] must be after signed start time \
                     [Thu, 01 Jan 1970 00:03:20 GMT]",
                ),
            ),
        ] {
            let window = ValidityWindow { start: start.map(at), expiry: at(expiry) };
            let refused = window.check(at(now)).err();
            let expected = detail.map(|d| ("AuthenticationErrorDetail", d.to_owned()));
            assert_eq!(
                refused.and_then(|r| r.details().first().cloned()),
                expected,
                "{start:?} {expiry} {now}"
            );
        }
    }

    #[test]
    fn source_address_must_be_the_address_or_in_the_inclusive_range() {
        for (sip, peer, expected) in [
            ("", "10.0.0.1", None),
            ("", "::1", None),
            ("168.1.5.65", "168.1.5.65", None),
            ("168.1.5.65", "168.1.5.66", Some(AuthorizationSourceIPMismatch)),
            ("168.1.5.60-168.1.5.70", "168.1.5.60", None),
            ("168.1.5.60-168.1.5.70", "168.1.5.70", None),
            ("168.1.5.60-168.1.5.70", "168.1.5.59", Some(AuthorizationSourceIPMismatch)),
            ("168.1.5.60-168.1.5.70", "168.1.5.71", Some(AuthorizationSourceIPMismatch)),
            ("168.1.5.60-168.1.5.70", "168.1.50.6", Some(AuthorizationSourceIPMismatch)),
            ("168.1.5.65", "::ffff:168.1.5.65", None),
            ("127.0.0.1", "::1", Some(AuthorizationSourceIPMismatch)),
            ("localhost", "127.0.0.1", Some(AuthenticationFailed)),
            ("10.0.0.0/8", "10.0.0.1", Some(AuthenticationFailed)),
            ("10.0.0.1-", "10.0.0.1", Some(AuthenticationFailed)),
        ] {
            let refused = check_source(sip, peer.parse().unwrap(), Version::NEWEST).err();
            assert_eq!(refused.map(|r| r.code()), expected, "{sip} {peer}");
        }
    }

    #[test]
    fn https_can_be_required_and_http_cannot() {
        for (spr, secure, expected) in [
            ("", false, None),
            ("", true, None),
            ("https", true, None),
            ("https", false, Some(AuthorizationProtocolMismatch)),
            ("https,http", false, None),
            ("https,http", true, None),
            ("http", false, Some(AuthenticationFailed)),
            ("HTTPS", true, Some(AuthenticationFailed)),
        ] {
            let refused = check_protocol(spr, secure, Version::NEWEST).err();
            assert_eq!(refused.map(|r| r.code()), expected, "{spr:?} {secure}");
        }
    }
}
