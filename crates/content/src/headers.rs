//! The headers that describe content. They are stored and returned with the content.

use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use lazuli_protocol::Headers;
use serde::{Deserialize, Serialize};

/// The content headers of a blob or a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentHeaders {
    /// `Content-Type`. Empty in a file: a client removed it.
    pub content_type: Option<String>,
    /// `Content-Encoding`.
    pub content_encoding: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Content-MD5`.
    pub content_md5: Option<Vec<u8>>,
}

impl ContentHeaders {
    /// Returns the content headers in the reply to a read of a copy source.
    pub fn of_source(headers: &HeaderMap) -> Self {
        let text = |name: HeaderName| {
            let value = std::str::from_utf8(headers.get(name)?.as_bytes()).ok()?.trim();
            (!value.is_empty()).then(|| value.to_owned())
        };
        Self {
            content_type: text(CONTENT_TYPE),
            content_encoding: text(CONTENT_ENCODING),
            content_language: text(CONTENT_LANGUAGE),
            content_disposition: text(CONTENT_DISPOSITION),
            cache_control: text(CACHE_CONTROL),
            content_md5: headers.unchecked_md5("content-md5").ok().flatten(),
        }
    }

    /// Takes each header that is absent here from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            content_type: self.content_type.or(other.content_type),
            content_encoding: self.content_encoding.or(other.content_encoding),
            content_language: self.content_language.or(other.content_language),
            content_disposition: self.content_disposition.or(other.content_disposition),
            cache_control: self.cache_control.or(other.cache_control),
            content_md5: self.content_md5.or(other.content_md5),
        }
    }

    /// Adds the headers to a reply, except for the MD5 and empty values.
    pub fn write(&self, headers: &mut HeaderMap) {
        for (name, value) in [
            (CONTENT_TYPE, &self.content_type),
            (CONTENT_ENCODING, &self.content_encoding),
            (CONTENT_LANGUAGE, &self.content_language),
            (CONTENT_DISPOSITION, &self.content_disposition),
            (CACHE_CONTROL, &self.cache_control),
        ] {
            let value = value.as_deref().filter(|value| !value.is_empty());
            if let Some(value) = value.and_then(|value| HeaderValue::from_bytes(value.as_bytes()).ok()) {
                headers.insert(name, value);
            }
        }
    }
}
