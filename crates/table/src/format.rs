//! Formats of requests and replies: `Accept`, `$format`, `Content-Type`, `Prefer`.
//!
//! Only JSON is supported. Atom, the default of old versions, is refused with the error that newer versions
//! use.

use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, StatusCode};
use lazuli_protocol::{ErrorCode, Headers, Query, Refusal, Response, Version};

use crate::json::render::Metadata;

/// From this version on, replies are JSON by default.
const JSON_BY_DEFAULT: Version = Version::new(2015, 12, 11);
/// The first version with JSON.
const JSON: Version = Version::new(2013, 8, 15);

/// Whether the reply to an insertion returns the object, as `Prefer` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Echo {
    /// The request has no preference. The reply returns the object.
    Unspecified,
    Content,
    NoContent,
}

/// Returns the level of metadata in the reply.
pub(crate) fn metadata(headers: &HeaderMap, query: &Query, version: Version) -> Result<Metadata, Refusal> {
    if let Some(format) = query.get("$format").filter(|format| !format.is_empty()) {
        let level = if format == "json" { Some(Metadata::Minimal) } else { level(format) };
        return at_version(level.ok_or(ErrorCode::AtomFormatNotSupported)?, version);
    }
    let accept = headers.filled(ACCEPT.as_str())?;
    let Some(accept) = accept else {
        return match version >= JSON_BY_DEFAULT {
            true => Ok(Metadata::Minimal),
            false => Err(ErrorCode::AtomFormatNotSupported.into()),
        };
    };
    let accepted = accept.split(',').find_map(level);
    at_version(accepted.ok_or(ErrorCode::AtomFormatNotSupported)?, version)
}

fn at_version(metadata: Metadata, version: Version) -> Result<Metadata, Refusal> {
    if version >= JSON { Ok(metadata) } else { Err(ErrorCode::JsonFormatNotSupported.into()) }
}

/// Returns the level of metadata that a media type requests; `None` if the media type is not supported.
fn level(media_type: &str) -> Option<Metadata> {
    let mut parts = media_type.split(';').map(str::trim);
    let name = parts.next()?;
    if !["application/json", "application/*", "*/*"].iter().any(|json| json.eq_ignore_ascii_case(name)) {
        return None;
    }
    let level = parts.filter_map(|part| part.split_once('=')).find(|(key, _)| *key == "odata");
    match level.map(|(_, level)| level.to_ascii_lowercase()).as_deref() {
        None | Some("minimalmetadata") => Some(Metadata::Minimal),
        Some("nometadata") => Some(Metadata::None),
        Some("fullmetadata") => Some(Metadata::Full),
        Some(_) => None,
    }
}

/// Refuses a body that is not JSON. A body without a type counts as JSON.
pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(content_type) = headers.filled(CONTENT_TYPE.as_str())? else { return Ok(()) };
    let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match name.as_str() {
        "application/json" => Ok(()),
        "application/atom+xml" | "application/xml" => Err(ErrorCode::AtomFormatNotSupported.into()),
        _ => Err(ErrorCode::MediaTypeNotSupported.into()),
    }
}

/// Parses the `Prefer` header.
pub(crate) fn echo(headers: &HeaderMap) -> Result<Echo, Refusal> {
    let preferences = [("return-content", Echo::Content), ("return-no-content", Echo::NoContent)];
    Ok(headers.one_of("prefer", &preferences)?.unwrap_or(Echo::Unspecified))
}

impl Echo {
    /// Adds the header that confirms the preference to a reply.
    pub(crate) fn confirm(self, headers: &mut HeaderMap) {
        let applied = match self {
            Self::Unspecified => return,
            Self::Content => "return-content",
            Self::NoContent => "return-no-content",
        };
        headers.insert("preference-applied", HeaderValue::from_static(applied));
    }
}

/// Returns a JSON reply.
pub(crate) fn json(status: StatusCode, metadata: Metadata, body: Vec<u8>) -> Response {
    let content_type = match metadata {
        Metadata::None => "application/json;odata=nometadata;streaming=true;charset=utf-8",
        Metadata::Minimal => "application/json;odata=minimalmetadata;streaming=true;charset=utf-8",
        Metadata::Full => "application/json;odata=fullmetadata;streaming=true;charset=utf-8",
    };
    let mut response = Response::with_body(status, content_type, body);
    add_common_headers(&mut response.headers);
    response
}

/// Returns a reply without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::empty(status);
    add_common_headers(&mut response.headers);
    response
}

/// Adds the headers of all data operations.
fn add_common_headers(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert("dataserviceversion", HeaderValue::from_static("3.0;"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level_for(accept: Option<&str>, query: &str, version: Version) -> Result<Metadata, ErrorCode> {
        let mut headers = HeaderMap::new();
        if let Some(accept) = accept {
            headers.insert(ACCEPT, accept.parse().unwrap());
        }
        metadata(&headers, &Query::parse(query).unwrap(), version).map_err(|refusal| refusal.code())
    }

    #[test]
    fn reply_has_the_requested_metadata_level_or_the_documented_error() {
        use ErrorCode::{AtomFormatNotSupported, JsonFormatNotSupported};
        let (new, old, oldest) =
            (Version::new(2019, 2, 2), Version::new(2014, 2, 14), Version::new(2012, 2, 12));
        for (accept, query, version, expected) in [
            (None, "", new, Ok(Metadata::Minimal)),
            (None, "", old, Err(AtomFormatNotSupported)),
            (Some("application/json"), "", old, Ok(Metadata::Minimal)),
            (Some("application/json;odata=nometadata"), "", new, Ok(Metadata::None)),
            (Some("application/json; odata=FullMetadata"), "", new, Ok(Metadata::Full)),
            (Some("application/json;odata=minimalmetadata;charset=utf-8"), "", new, Ok(Metadata::Minimal)),
            (Some("*/*"), "", new, Ok(Metadata::Minimal)),
            (Some("application/atom+xml,application/json;odata=fullmetadata"), "", new, Ok(Metadata::Full)),
            (Some("application/atom+xml"), "", new, Err(AtomFormatNotSupported)),
            (Some("application/json;odata=verbose"), "", new, Err(AtomFormatNotSupported)),
            (Some("application/json"), "", oldest, Err(JsonFormatNotSupported)),
            (Some("application/atom+xml"), "$format=json", new, Ok(Metadata::Minimal)),
            (None, "$format=application/json;odata=nometadata", new, Ok(Metadata::None)),
            (Some("application/json"), "$format=atom", new, Err(AtomFormatNotSupported)),
        ] {
            assert_eq!(level_for(accept, query, version), expected, "{accept:?} {query} {version:?}");
        }
    }
}
