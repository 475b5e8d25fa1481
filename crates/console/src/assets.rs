//! The files of the page. Each is embedded as it is and compressed, and served below a path that names the
//! digest of all files, so that browsers may keep it forever.

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue, Response};
use lazuli_front::{ConsoleBody, whole};

/// One embedded file.
pub(crate) struct Asset {
    path: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// Returns the page itself.
pub(crate) fn index(headers: &HeaderMap) -> Option<Response<ConsoleBody>> {
    let mut reply = serve("index.html", headers)?;
    reply.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(reply)
}

/// Returns the file for a path below `/assets/`. A path of another build has no file.
pub(crate) fn asset(path: &str, headers: &HeaderMap) -> Option<Response<ConsoleBody>> {
    let (build, path) = path.split_once('/')?;
    if build != BUILD {
        return None;
    }
    let mut reply = serve(path, headers)?;
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    reply.headers_mut().insert(CACHE_CONTROL, forever);
    Some(reply)
}

fn serve(path: &str, headers: &HeaderMap) -> Option<Response<ConsoleBody>> {
    #[cfg(debug_assertions)]
    if let Some(directory) = std::env::var_os("CONSOLE_WEB") {
        // While the page is developed, read the files anew for each request.
        let content = std::fs::read(std::path::Path::new(&directory).join(path)).ok()?;
        let content = match path {
            "index.html" => String::from_utf8_lossy(&content).replace("__BUILD__", BUILD).into_bytes(),
            _ => content,
        };
        return Some(typed(path, Bytes::from(content)));
    }
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let takes_gzip = headers
        .get(ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(',').any(|coding| coding.trim().starts_with("gzip")));
    let mut reply = typed(path, Bytes::from_static(if takes_gzip { asset.gzip } else { asset.plain }));
    if takes_gzip {
        reply.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    reply.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    Some(reply)
}

fn typed(path: &str, content: Bytes) -> Response<ConsoleBody> {
    let content_type = match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    };
    let mut reply = Response::new(whole(content));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files that the first screen needs, compressed.
    const MAX_FIRST_LOAD: usize = 80 << 10;

    #[test]
    fn first_load_fits_the_budget() {
        let first = |asset: &&Asset| !asset.path.starts_with("locales/") || asset.path.ends_with("en.json");
        let bytes: usize = ASSETS.iter().filter(first).map(|asset| asset.gzip.len()).sum();
        assert!(bytes <= MAX_FIRST_LOAD, "{bytes} bytes");
    }

    #[test]
    fn files_of_another_build_do_not_exist() {
        let headers = HeaderMap::new();
        assert!(asset(&format!("{BUILD}/app.js"), &headers).is_some());
        assert!(asset("0000000000000000/app.js", &headers).is_none());
        assert!(asset(&format!("{BUILD}/../Cargo.toml"), &headers).is_none());
        assert!(index(&headers).is_some());
    }
}
