//! The strings to sign of shared access signatures, for every version of `sv`.
//!
//! Pure functions from the fields of a signature to its string. The server verifies with them, and
//! [`crate::sign`] signs with them. A function maps parameter names to decoded values, and absent parameters
//! to an empty string.

use lazuli_protocol::{ServiceKind, Version};

/// Returns the value of a field by its parameter name.
pub(crate) type Field<'f, 'a> = &'f dyn Fn(&str) -> &'a str;

/// The response headers that a signature can override, in the order in which they are signed.
const RESPONSE_HEADERS: [&str; 5] = ["rscc", "rscd", "rsce", "rscl", "rsct"];

/// The resource that a service or user delegation SAS is for.
#[derive(Clone, Copy, Debug)]
pub struct Resource<'a> {
    /// The service, which decides which fields are signed.
    pub service: ServiceKind,
    /// The name of the account.
    pub account: &'a str,
    /// Container and object, decoded, without a slash at either end; for tables, the table in lower case.
    pub path: &'a str,
    /// The snapshot or version that `sr=bs` and `sr=bv` refer to; otherwise empty.
    pub timestamp: &'a str,
}

/// Request headers and parameters that a user delegation SAS binds, in their signed form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// `name:value` and a line feed for each header of `srh`.
    pub(crate) headers: String,
    /// A line feed and `name:value` for each parameter of `srq`.
    pub(crate) parameters: String,
}

/// Returns the string to sign of an account SAS, from version 2015-04-05.
pub(crate) fn account(account: &str, version: Version, field: Field<'_, '_>) -> String {
    let mut lines = vec![account];
    lines.extend(["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"].map(field));
    if version.at_least(2020, 12, 6) {
        lines.push(field("ses"));
    }
    lines.push("");
    lines.join("\n")
}

/// Returns the string to sign of a service SAS. Signatures without `sv` have the oldest version.
pub(crate) fn service(resource: &Resource<'_>, version: Version, field: Field<'_, '_>) -> String {
    let canonical = resource.canonical(version);
    let mut lines = vec![field("sp"), field("st"), field("se"), &canonical, field("si")];
    if version.at_least(2015, 4, 5) {
        lines.extend([field("sip"), field("spr")]);
    }
    if version.at_least(2012, 2, 12) {
        lines.push(field("sv"));
    }
    match resource.service {
        ServiceKind::Blob | ServiceKind::File => {
            if resource.service == ServiceKind::Blob && version.at_least(2018, 11, 9) {
                lines.extend([field("sr"), resource.timestamp]);
                if version.at_least(2020, 12, 6) {
                    lines.push(field("ses"));
                }
            }
            if version.at_least(2013, 8, 15) {
                lines.extend(RESPONSE_HEADERS.map(field));
            }
        }
        ServiceKind::Queue => {}
        ServiceKind::Table => lines.extend(["spk", "srk", "epk", "erk"].map(field)),
    }
    lines.join("\n")
}

/// Returns the strings to sign of a user delegation SAS, from version 2018-11-09. Clients disagree about
/// files and queues, so these have two strings.
pub(crate) fn user_delegation(
    resource: &Resource<'_>,
    version: Version,
    bound: &Bound,
    field: Field<'_, '_>,
) -> Vec<String> {
    let canonical = resource.canonical(version);
    let mut start = vec![field("sp"), field("st"), field("se"), &canonical];
    start.extend(["skoid", "sktid", "skt", "ske", "sks", "skv"].map(field));
    let delegated = if version.at_least(2025, 7, 5) { &["skdutid", "sduoid"][..] } else { &[] };
    let agents = if version.at_least(2020, 2, 10) { &["saoid", "suoid", "scid"][..] } else { &[] };
    let delegated = delegated.iter().map(|name| field(name));
    let agents = agents.iter().map(|name| field(name));
    let origin = ["sip", "spr", "sv"].map(field);
    let overrides = RESPONSE_HEADERS.map(field);

    let long: Vec<_> = start.iter().copied().chain(agents).chain(delegated.clone()).chain(origin).collect();
    let short: Vec<_> = start.iter().copied().chain(delegated).chain(origin).collect();
    match resource.service {
        ServiceKind::Blob => {
            let mut lines = long;
            lines.extend([field("sr"), resource.timestamp]);
            if version.at_least(2020, 12, 6) {
                lines.push(field("ses"));
            }
            if version.at_least(2026, 4, 6) {
                lines.extend([bound.headers.as_str(), bound.parameters.as_str()]);
            }
            lines.extend(overrides);
            vec![lines.join("\n")]
        }
        ServiceKind::File => {
            let full = [long, vec![field("sr"), "", ""], overrides.to_vec()].concat();
            vec![full.join("\n"), [short, overrides.to_vec()].concat().join("\n")]
        }
        ServiceKind::Queue => vec![long.join("\n"), short.join("\n")],
        // Tables have no user delegation SAS.
        ServiceKind::Table => Vec::new(),
    }
}

impl Resource<'_> {
    fn canonical(&self, version: Version) -> String {
        let Self { service, account, path, .. } = self;
        if version.at_least(2015, 2, 21) {
            format!("/{}/{account}/{path}", service.name())
        } else {
            format!("/{account}/{path}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ServiceKind::{Blob, File, Queue, Table};

    /// Returns the name of every field as its value, so a string shows which fields it contains.
    fn fields(version: &str) -> impl Fn(&str) -> &'static str + use<> {
        let version: &'static str = version.to_owned().leak();
        move |name| if name == "sv" { version } else { name.to_owned().leak() }
    }

    fn resource(service: ServiceKind) -> Resource<'static> {
        Resource { service, account: "acct", path: "c/o", timestamp: "time" }
    }

    /// Expands an expected string: `RSC` stands for the response headers, `SV` for the version, `-` for an
    /// empty field.
    fn expected(text: &str, version: &str) -> String {
        let text = text.replace("RSC", "rscc rscd rsce rscl rsct").replace("SV", version);
        text.split(' ').map(|field| if field == "-" { "" } else { field }).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn account_strings_end_with_a_line_feed_and_sign_the_encryption_scope_since_2020_12_06() {
        for (version, text) in [
            ("2015-04-05", "acct sp ss srt st se sip spr SV -"),
            ("2020-10-02", "acct sp ss srt st se sip spr SV -"),
            ("2020-12-06", "acct sp ss srt st se sip spr SV ses -"),
            ("2059-01-01", "acct sp ss srt st se sip spr SV ses -"),
        ] {
            let string = account("acct", Version::parse(version).unwrap(), &fields(version));
            assert_eq!(string, expected(text, version), "{version}");
        }
    }

    #[test]
    fn service_strings_depend_on_their_version() {
        for (kind, version, text) in [
            (Blob, "2009-09-19", "sp st se /acct/c/o si"),
            (Blob, "2012-02-12", "sp st se /acct/c/o si SV"),
            (Blob, "2013-08-15", "sp st se /acct/c/o si SV RSC"),
            (File, "2015-02-21", "sp st se /file/acct/c/o si SV RSC"),
            (Blob, "2015-02-21", "sp st se /blob/acct/c/o si SV RSC"),
            (Blob, "2015-04-05", "sp st se /blob/acct/c/o si sip spr SV RSC"),
            (Blob, "2018-03-28", "sp st se /blob/acct/c/o si sip spr SV RSC"),
            (Blob, "2018-11-09", "sp st se /blob/acct/c/o si sip spr SV sr time RSC"),
            (Blob, "2020-12-06", "sp st se /blob/acct/c/o si sip spr SV sr time ses RSC"),
            (File, "2015-04-05", "sp st se /file/acct/c/o si sip spr SV RSC"),
            (File, "2024-08-04", "sp st se /file/acct/c/o si sip spr SV RSC"),
            (Queue, "2012-02-12", "sp st se /acct/c/o si SV"),
            (Queue, "2015-04-05", "sp st se /queue/acct/c/o si sip spr SV"),
            (Queue, "2021-02-12", "sp st se /queue/acct/c/o si sip spr SV"),
            (Table, "2012-02-12", "sp st se /acct/c/o si SV spk srk epk erk"),
            (Table, "2015-04-05", "sp st se /table/acct/c/o si sip spr SV spk srk epk erk"),
            (Table, "2019-02-02", "sp st se /table/acct/c/o si sip spr SV spk srk epk erk"),
        ] {
            let string = service(&resource(kind), Version::parse(version).unwrap(), &fields(version));
            assert_eq!(string, expected(text, version), "{kind:?} {version}");
        }
    }

    #[test]
    fn user_delegation_strings_depend_on_their_version() {
        let key = "sp st se RES skoid sktid skt ske sks skv";
        let bound = Bound { headers: "srh".into(), parameters: "srq".into() };
        for (kind, version, texts) in [
            (Blob, "2018-11-09", &["KEY sip spr SV sr time RSC"][..]),
            (Blob, "2019-12-12", &["KEY sip spr SV sr time RSC"]),
            (Blob, "2020-02-10", &["KEY saoid suoid scid sip spr SV sr time RSC"]),
            (Blob, "2020-12-06", &["KEY saoid suoid scid sip spr SV sr time ses RSC"]),
            (Blob, "2025-07-05", &["KEY saoid suoid scid skdutid sduoid sip spr SV sr time ses RSC"]),
            (Blob, "2026-04-06", &["KEY saoid suoid scid skdutid sduoid sip spr SV sr time ses srh srq RSC"]),
            (
                File,
                "2025-07-05",
                &[
                    "KEY saoid suoid scid skdutid sduoid sip spr SV sr - - RSC",
                    "KEY skdutid sduoid sip spr SV RSC",
                ],
            ),
            (
                Queue,
                "2025-07-05",
                &["KEY saoid suoid scid skdutid sduoid sip spr SV", "KEY skdutid sduoid sip spr SV"],
            ),
            (Table, "2025-07-05", &[]),
        ] {
            let key = key.replace("RES", &format!("/{}/acct/c/o", kind.name()));
            let strings: Vec<_> = texts.iter().map(|t| expected(&t.replace("KEY", &key), version)).collect();
            let version = Version::parse(version).unwrap();
            assert_eq!(
                user_delegation(&resource(kind), version, &bound, &fields(&version.to_string())),
                strings,
                "{kind:?} {version}"
            );
        }
    }
}
