//! The caller that a request claims to have, for the log. It is not verified, and contains no secret.

use http::HeaderValue;
use lazuli_protocol::Query;

use crate::bearer::Token;

/// Maximum number of characters of a name that the client chose.
const MAX_NAME: usize = 64;

/// Describes the kind of credentials of a request, and the name in them.
pub fn claimed_caller(query: &Query, authorization: Option<&HeaderValue>) -> String {
    let named = |kind: &str, name: Option<&str>| match name.map(sanitize).filter(|name| !name.is_empty()) {
        Some(name) => format!("{kind} {name}"),
        None => kind.to_owned(),
    };
    if query.contains("sig") {
        return if query.contains("skoid") {
            named("user delegation SAS of", query.get("skoid"))
        } else if query.contains("ss") || query.contains("srt") {
            "account SAS".to_owned()
        } else if query.contains("si") {
            named("service SAS with policy", query.get("si"))
        } else {
            "service SAS".to_owned()
        };
    }
    let Some(value) = authorization else { return "anonymous".to_owned() };
    let (scheme, rest) = value.to_str().unwrap_or_default().split_once(' ').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => {
            let subject = Token::parse(rest.trim()).ok().and_then(|token| token.claimed_subject());
            match subject {
                Some(subject) => named("bearer token of", Some(&subject)),
                None => "bearer token".to_owned(),
            }
        }
        "sharedkey" | "sharedkeylite" => {
            named("account key of", rest.split_once(':').map(|(account, _)| account))
        }
        _ => "unknown credentials".to_owned(),
    }
}

/// Removes the characters from a name that could mislead a reader of the log.
fn sanitize(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric() || "-_.@".contains(*c)).take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_names_the_caller_and_no_secret() {
        let token = "Bearer eyJhbGciOiJSUzI1NiJ9.eyJvaWQiOiJtZSJ9.c2VjcmV0";
        for (query, authorization, expected) in [
            ("", None, "anonymous"),
            ("sv=x&ss=b&srt=o&sig=secret", None, "account SAS"),
            ("sr=b&sig=secret", None, "service SAS"),
            ("sr=b&si=readers&sig=secret", None, "service SAS with policy readers"),
            ("skoid=a-b%0Ac&sig=secret", None, "user delegation SAS of a-bc"),
            ("", Some("SharedKey lapis:secret"), "account key of lapis"),
            ("", Some("SharedKeyLite lapis:secret"), "account key of lapis"),
            ("", Some(token), "bearer token of me"),
            ("", Some("Bearer secret"), "bearer token"),
            ("", Some("Basic secret"), "unknown credentials"),
            ("", Some("secret"), "unknown credentials"),
        ] {
            let authorization = authorization.map(HeaderValue::from_static);
            let caller = claimed_caller(&Query::parse(query).unwrap(), authorization.as_ref());
            assert_eq!(caller, expected);
        }
    }
}
