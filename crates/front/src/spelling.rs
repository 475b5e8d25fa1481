//! Preserves the spelling of metadata names.
//!
//! Over HTTP/1 names are case-preserving, and clients want `x-ms-meta-FileName` back as they sent it, but a
//! header map holds lower-case names. hyper keeps the spelling of a head that it reads and writes heads in
//! that spelling, but does not expose it. So this module runs hyper in memory: to learn a request's spelling,
//! it has hyper write the metadata; to apply a spelling to a reply, it has hyper read the names first. Only
//! messages with metadata take this detour.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Mutex;

use http::{Extensions, HeaderMap, HeaderValue, Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lazuli_protocol::metadata::{PREFIX, SPELLING};

/// Metadata names in the spelling that a reply has to use, until [`apply`] arranges it.
#[derive(Clone)]
pub(crate) struct SpelledNames(HeaderValue);

/// Adds the spelling of a request's metadata to its headers. Removes such a header that a client sent.
pub(crate) async fn learn(headers: &mut HeaderMap, extensions: &Extensions) {
    headers.remove(SPELLING);
    let names = headers.keys().filter(|name| name.as_str().starts_with(PREFIX));
    let metadata: HeaderMap = names.map(|name| (name.clone(), HeaderValue::from_static(""))).collect();
    if metadata.is_empty() {
        return;
    }
    let mut response = Response::new(Empty::new());
    *response.headers_mut() = metadata;
    *response.extensions_mut() = extensions.clone();
    let (_, written) = exchange(b"GET / HTTP/1.1\r\n\r\n", response).await;
    let names = written.split(|byte| *byte == b'\n').filter_map(|line| {
        let (prefix, rest) = line.split_at_checked(PREFIX.len())?;
        let name = rest.split(|byte| *byte == b':').next()?;
        prefix.eq_ignore_ascii_case(PREFIX.as_bytes()).then_some(name)
    });
    let names: Vec<_> = names.filter(|name| name.iter().any(u8::is_ascii_uppercase)).collect();
    if let (false, Ok(value)) = (names.is_empty(), HeaderValue::from_bytes(&names.join(&b","[..]))) {
        headers.insert(SPELLING, value);
    }
}

/// Removes the spelling from the headers of a reply and returns it, to be attached to the reply.
pub(crate) fn take(headers: &mut HeaderMap) -> Option<SpelledNames> {
    headers.remove(SPELLING).map(SpelledNames)
}

/// Makes hyper send the metadata of a reply in its spelling.
pub(crate) async fn apply(extensions: &mut Extensions) {
    let Some(SpelledNames(names)) = extensions.remove() else { return };
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    for name in names.as_bytes().split(|byte| *byte == b',') {
        head.extend_from_slice(&[PREFIX.as_bytes(), name, b":\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    let (read, _) = exchange(&head, Response::new(Empty::new())).await;
    extensions.extend(read);
}

/// Makes hyper read a head and write a reply. Returns hyper's record of the head, and the written bytes. Both
/// are empty if hyper refuses the head.
async fn exchange(head: &[u8], response: Response<Empty<Bytes>>) -> (Extensions, Vec<u8>) {
    let read = Mutex::new(Extensions::new());
    let service = service_fn(|request: Request<Incoming>| {
        if let Ok(mut read) = read.lock() {
            *read = request.into_parts().0.extensions;
        }
        ready(Ok::<_, Infallible>(response.clone()))
    });
    let lines = head.iter().filter(|byte| **byte == b'\n').count();
    let memory = TokioIo::new(tokio::io::join(head, Vec::new()));
    let mut protocol = http1::Builder::new();
    let connection = protocol
        .half_close(true)
        .keep_alive(false)
        .preserve_header_case(true)
        .max_headers(lines)
        .serve_connection(memory, service);
    let written = connection.without_shutdown().await.map(|parts| parts.io.into_inner().into_inner().1);
    (read.into_inner().unwrap_or_default(), written.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_spelling_of_metadata_is_learned_and_applied() {
        let head = b"PUT / HTTP/1.1\r\nX-MS-META-FileName: 1\r\nx-ms-meta-b: 2\r\nOther: 3\r\n\r\n";
        let (extensions, _) = exchange(head, Response::new(Empty::new())).await;
        let mut headers = HeaderMap::new();
        for name in ["x-ms-meta-filename", "x-ms-meta-b", "other", "lazuli-metadata-spelling"] {
            headers.insert(name, HeaderValue::from_static("B"));
        }
        learn(&mut headers, &extensions).await;
        assert_eq!(headers.get(SPELLING), Some(&HeaderValue::from_static("FileName")));

        let mut reply = Response::new(Empty::new());
        let spelled = take(&mut headers).unwrap();
        *reply.headers_mut() = headers;
        reply.extensions_mut().insert(spelled);
        apply(reply.extensions_mut()).await;
        let (_, written) = exchange(b"GET / HTTP/1.1\r\n\r\n", reply).await;
        let written = String::from_utf8(written).unwrap();
        for line in ["x-ms-meta-FileName: B", "x-ms-meta-b: B", "other: B"] {
            assert!(written.contains(&format!("\r\n{line}\r\n")), "{written}");
        }
        assert!(!written.contains("spelling"), "{written}");
    }

    #[tokio::test]
    async fn without_metadata_or_spelling_no_header_is_added() {
        let mut headers = HeaderMap::new();
        headers.insert(SPELLING, HeaderValue::from_static("A"));
        learn(&mut headers, &Extensions::new()).await;
        assert!(headers.is_empty());
        headers.insert("x-ms-meta-a", HeaderValue::from_static("1"));
        learn(&mut headers, &Extensions::new()).await;
        assert!(take(&mut headers).is_none());
    }
}
