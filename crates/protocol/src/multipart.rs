//! Requests in the body of a batch: parts of `multipart/mixed`, each of type `application/http`.
//!
//! Used by blob batches and entity group transactions. Clients format them loosely, so the parser accepts
//! lines without a carriage return, a missing empty line after a request's headers, and a last delimiter
//! without its final dashes if nothing follows it. A malformed part is `None`; the service knows its error
//! code.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use httparse::Status::{Complete, Partial};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Maximum number of headers of a part, and of the request in it.
const MAX_HEADERS: usize = 64;
/// Characters that some clients leave unencoded in URLs although no URL may contain them.
const UNSAFE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// Returns the boundary of a `Content-Type` of `multipart/mixed`.
pub fn boundary(content_type: &str) -> Option<&str> {
    let (media_type, parameters) = content_type.split_once(';')?;
    if !media_type.trim().eq_ignore_ascii_case("multipart/mixed") {
        return None;
    }
    let boundary = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    boundary.filter(|boundary| !boundary.is_empty())
}

/// Splits a body at its delimiters. Returns `None` if the last delimiter is missing.
pub fn split<'a>(body: &'a [u8], boundary: &str) -> Option<Vec<&'a [u8]>> {
    let mut parts = Vec::new();
    let mut start = None;
    let mut at = 0;
    let ends = memchr::memchr_iter(b'\n', body).map(|end| end + 1);
    for end in ends.chain((!body.ends_with(b"\n")).then_some(body.len())) {
        let line = &body[at..end];
        let delimiter =
            line.trim_ascii_end().strip_prefix(b"--").and_then(|line| line.strip_prefix(boundary.as_bytes()));
        let is_last = delimiter == Some(b"--");
        if is_last || delimiter == Some(b"") {
            parts.extend(start.map(|start| &body[start..at]));
            start = Some(at + line.len());
        }
        if is_last {
            return Some(parts);
        }
        at += line.len();
    }
    let ends_here = body[start?..].trim_ascii().is_empty() && !parts.is_empty();
    ends_here.then_some(parts)
}

/// One part of a multipart body.
#[derive(Debug)]
pub struct Part<'a> {
    /// The headers of the part.
    pub headers: HeaderMap,
    /// The bytes after the headers.
    pub content: &'a [u8],
}

/// The request in a part.
#[derive(Debug)]
pub struct PartRequest<'a> {
    /// Method, path, query and headers. The host of an absolute URL is removed.
    pub head: Parts,
    /// The body, including the line end before the next delimiter. The delimiter ends it, not its
    /// `Content-Length`.
    pub body: &'a [u8],
}

impl<'a> Part<'a> {
    /// Parses the headers of a part.
    pub fn parse(part: &'a [u8]) -> Option<Self> {
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let Ok(Complete((length, fields))) = httparse::parse_headers(part, &mut fields) else { return None };
        Some(Self { headers: map(fields)?, content: &part[length..] })
    }

    /// Returns the `Content-Type` of the part.
    pub fn content_type(&self) -> Option<&str> {
        self.headers.get(http::header::CONTENT_TYPE)?.to_str().ok()
    }

    /// Parses the request in the part, if its type is `application/http`.
    pub fn request(&self) -> Option<PartRequest<'a>> {
        let media_type = self.content_type()?.split(';').next()?.trim();
        if !media_type.eq_ignore_ascii_case("application/http") {
            return None;
        }
        let content = self.content.trim_ascii_start();
        let end = content.iter().position(|byte| *byte == b'\n').map_or(content.len(), |end| end + 1);
        let (line, rest) = content.split_at(end);
        let (method, target) = request_line(std::str::from_utf8(line).ok()?.trim_end())?;
        let (headers, body) = headers(rest)?;
        let (mut head, ()) = http::Request::builder().method(method).uri(target).body(()).ok()?.into_parts();
        head.headers = headers;
        Some(PartRequest { head, body })
    }
}

fn request_line(line: &str) -> Option<(Method, String)> {
    let (method, rest) = line.split_once(' ')?;
    let (target, version) = rest.rsplit_once(' ')?;
    if !version.starts_with("HTTP/1.") {
        return None;
    }
    let target = target.trim();
    let is_absolute = ["http://", "https://"]
        .iter()
        .any(|scheme| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
    let target = match target.split_once("://") {
        Some((_, after)) if is_absolute => after.find('/').map_or("/", |path| &after[path..]),
        _ => target,
    };
    let slash = if target.starts_with('/') { "" } else { "/" };
    let target = format!("{slash}{}", utf8_percent_encode(target, UNSAFE));
    Some((Method::from_bytes(method.as_bytes()).ok()?, target))
}

/// Parses the headers of a request. Returns them and the bytes after them.
fn headers(rest: &[u8]) -> Option<(HeaderMap, &[u8])> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(rest, &mut fields).ok()? {
        Complete((length, fields)) => Some((map(fields)?, &rest[length..])),
        Partial => {
            let rest = [rest, b"\r\n\r\n"].concat();
            let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
            match httparse::parse_headers(&rest, &mut fields).ok()? {
                Complete((_, fields)) => Some((map(fields)?, &[])),
                Partial => None,
            }
        }
    }
}

fn map(fields: &[httparse::Header<'_>]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    Some(headers)
}

/// Joins parts to a multipart body.
pub fn join(boundary: &str, parts: &[Bytes]) -> Vec<u8> {
    let around = boundary.len() + 8;
    let mut body = Vec::with_capacity(parts.iter().map(|part| part.len() + around).sum::<usize>() + around);
    for part in parts {
        for piece in [b"--", boundary.as_bytes(), b"\r\n", part, b"\r\n"] {
            body.extend_from_slice(piece);
        }
    }
    for piece in [b"--", boundary.as_bytes(), b"--"] {
        body.extend_from_slice(piece);
    }
    body
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn part_request(request: &str) -> Option<(String, String, String)> {
        let part = format!("content-type: application/http; msgtype=request\r\n\r\n{request}");
        let part = Part::parse(part.as_bytes()).unwrap();
        let part_request = part.request()?;
        let date =
            part_request.head.headers.get("x-ms-date").map_or("", |date| date.to_str().unwrap()).to_owned();
        Some((format!("{} {}", part_request.head.method, part_request.head.uri), date, {
            String::from_utf8(part_request.body.to_vec()).unwrap()
        }))
    }

    #[test]
    fn requests_are_parsed_as_each_client_formats_them() {
        for (request, line, date, body) in [
            // With an empty line, without one, with nothing after the last header, with line feeds only.
            ("DELETE /c/b HTTP/1.1\r\nX-MS-Date: d\r\n\r\n", "DELETE /c/b", "d", ""),
            ("DELETE /c/b?snapshot=s HTTP/1.1\r\nx-ms-date: d\r\n", "DELETE /c/b?snapshot=s", "d", ""),
            ("DELETE /c/b HTTP/1.1\r\nx-ms-date: d", "DELETE /c/b", "d", ""),
            ("DELETE /c/b HTTP/1.1", "DELETE /c/b", "", ""),
            ("PUT /c/%C3%A4 HTTP/1.1\nx-ms-date: d\n\n{}\n", "PUT /c/%C3%A4", "d", "{}\n"),
            // With an additional empty line, before and after.
            ("\r\nPOST /t HTTP/1.1\r\nx-ms-date: d\r\n\r\n\r\n{}", "POST /t", "d", "\r\n{}"),
            // With a URL that is relative, absolute, absolute without a path, not encoded.
            ("MERGE t(PartitionKey='p',RowKey='') HTTP/1.1", "MERGE /t(PartitionKey='p',RowKey='')", "", ""),
            ("GET https://a.b:1/t()?$top=1 HTTP/1.1", "GET /t()?$top=1", "", ""),
            ("GET HTTP://a.b HTTP/1.1", "GET /", "", ""),
            (
                "GET /t(PartitionKey='a b',RowKey='ä') HTTP/1.1",
                { "GET /t(PartitionKey='a%20b',RowKey='%C3%A4')" },
                "",
                "",
            ),
            ("GET t()?u=http://x/y HTTP/1.0", "GET /t()?u=http://x/y", "", ""),
        ] {
            assert_eq!(part_request(request).unwrap(), (line.into(), date.into(), body.into()), "{request}");
        }
        for malformed in
            ["", "DELETE", "DELETE /c/b", "DELETE /c/b HTTP/2", "DELETE /c HTTP/1.1\r\nno header"]
        {
            assert!(part_request(malformed).is_none(), "{malformed}");
        }
    }

    #[test]
    fn parts_have_headers_and_only_application_http_holds_a_request() {
        assert!(Part::parse(b"no header\r\n\r\n").is_none());
        assert!(Part::parse(b"a: b\r\n").is_none());
        for (part, is_request) in [
            ("Content-Type: application/http\r\n\r\nGET /t HTTP/1.1", true),
            ("CONTENT-TYPE: Application/HTTP\n\nGET /t HTTP/1.1", true),
            ("Content-Type: text/plain\r\n\r\nGET /t HTTP/1.1", false),
            ("\r\nGET /t HTTP/1.1", false),
        ] {
            assert_eq!(Part::parse(part.as_bytes()).unwrap().request().is_some(), is_request, "{part}");
        }
    }

    #[test]
    fn parts_are_delimited_and_the_last_delimiter_is_required() {
        let split = |body: &str| {
            let parts = split(body.as_bytes(), "x")?;
            Some(parts.iter().map(|part| String::from_utf8(part.to_vec()).unwrap()).collect::<Vec<_>>())
        };
        assert_eq!(split("--x\r\na\r\n--x\r\nb\r\n--x--").unwrap(), ["a\r\n", "b\r\n"]);
        assert_eq!(
            split("before\r\n--x \r\na --x\r\n--xy\r\n--x--\r\nafter").unwrap(),
            ["a --x\r\n--xy\r\n"]
        );
        // A JavaScript client ended its transactions like this for years.
        assert_eq!(split("--x\r\na\r\n--x\r\n").unwrap(), ["a\r\n"]);
        assert_eq!(split("--x--").unwrap(), [""; 0]);
        for unfinished in ["--x\r\na\r\n", "--x\r\na\r\n--x\r\nb", "--x\r\n", ""] {
            assert_eq!(split(unfinished), None, "{unfinished}");
        }
    }

    #[test]
    fn joined_parts_split_into_the_same_parts() {
        let parts = [Bytes::from_static(b"a: b\r\n\r\nc"), Bytes::new()];
        let body = join("x", &parts);
        assert_eq!(split(&body, "x").unwrap(), [&b"a: b\r\n\r\nc\r\n"[..], b"\r\n"]);
    }

    #[test]
    fn a_boundary_is_required_and_may_be_quoted() {
        assert_eq!(boundary("multipart/mixed; boundary=batch_1"), Some("batch_1"));
        assert_eq!(boundary("Multipart/Mixed;charset=x; Boundary=\"a b\""), Some("a b"));
        for none in ["multipart/mixed", "multipart/mixed; boundary=", "text/plain; boundary=a", ""] {
            assert_eq!(boundary(none), None, "{none}");
        }
    }
}
