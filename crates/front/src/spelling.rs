//! How clients spell the names of metadata.
//!
//! Over HTTP/1 a name has a case, and clients want `x-ms-meta-FileName` back as they sent it; but a header map knows lower
//! case only. hyper remembers how a head that it read was spelled, and writes heads as they were read, yet it tells the
//! spelling to nobody. So it is made to show it, in memory: to learn how a request spells its metadata it writes that out,
//! and for a reply to be spelled it first reads the names in. Only messages with metadata make this detour.

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

/// Names of metadata as a reply is to spell them, until that is arranged.
#[derive(Clone)]
pub(crate) struct Spelled(HeaderValue);

/// Adds to the headers of a request how it spells its metadata. What a client says in that header does not count.
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

/// Takes out of the headers of a reply what they say about spelling, to be left with the reply.
pub(crate) fn take(headers: &mut HeaderMap) -> Option<Spelled> {
    headers.remove(SPELLING).map(Spelled)
}

/// Lets the metadata of a reply be sent as it was once spelled.
pub(crate) async fn apply(extensions: &mut Extensions) {
    let Some(Spelled(names)) = extensions.remove() else { return };
    let mut head = b"GET / HTTP/1.1\r\n".to_vec();
    for name in names.as_bytes().split(|byte| *byte == b',') {
        head.extend_from_slice(&[PREFIX.as_bytes(), name, b":\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    let (read, _) = exchange(&head, Response::new(Empty::new())).await;
    extensions.extend(read);
}

/// Has hyper read a head and write a reply: what it remembers of the one, and how the other looks. Nothing if it does not
/// take the head.
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
    async fn a_spelling_that_was_read_is_learned_and_applied() {
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
    async fn without_metadata_or_a_spelling_nothing_is_told() {
        let mut headers = HeaderMap::new();
        headers.insert(SPELLING, HeaderValue::from_static("A"));
        learn(&mut headers, &Extensions::new()).await;
        assert!(headers.is_empty());
        headers.insert("x-ms-meta-a", HeaderValue::from_static("1"));
        learn(&mut headers, &Extensions::new()).await;
        assert!(take(&mut headers).is_none());
    }
}
