//! Static websites: serves the container `$web` to anonymous clients, with an index page for each directory
//! and an error page.
//!
//! The address of a request shows that it is for a website, and the service properties configure the website.
//! The container need not be public.

use std::sync::Arc;

use http::StatusCode;
use http::header::{
    HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
    RANGE,
};
use lazuli_protocol::properties::StaticWebsite;
use lazuli_protocol::{ErrorCode, Operation, Refusal, Request, Response};

use crate::BlobService;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// The request headers that apply. All other headers of the blob service are ignored.
const HEADERS: [HeaderName; 5] = [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE];

impl BlobService {
    /// Handles Get Web Content and Get Web Content Properties.
    pub(crate) async fn get_web_content(&self, mut request: Request) -> Result<Response, Refusal> {
        let properties = Arc::clone(&request.properties);
        let website = &properties.static_website;
        if !website.enabled {
            return Err(ErrorCode::WebContentNotFound.into());
        }
        let mut headers = HeaderMap::new();
        for name in HEADERS {
            headers.extend(request.headers.get(&name).cloned().map(|value| (name, value)));
        }
        request.headers = headers;
        for page in pages(website, &request.object) {
            request.object = page;
            if self.has_page(&request).await? {
                return self.get_page(request).await;
            }
        }
        self.get_missing_page(website, request).await
    }

    /// Returns the error page with status 404, or refuses if there is none.
    async fn get_missing_page(
        &self,
        website: &StaticWebsite,
        mut request: Request,
    ) -> Result<Response, Refusal> {
        let path = website.error_document_404_path.as_deref().ok_or(ErrorCode::WebContentNotFound)?;
        request.object = path.trim_start_matches('/').to_owned();
        request.headers.clear();
        if !self.has_page(&request).await? {
            return Err(ErrorCode::WebContentNotFound.into());
        }
        let mut response = self.get_page(request).await?;
        response.status = StatusCode::NOT_FOUND;
        response.headers.insert(ERROR_CODE, HeaderValue::from_static(ErrorCode::WebContentNotFound.name()));
        Ok(response)
    }

    async fn get_page(&self, request: Request) -> Result<Response, Refusal> {
        match request.operation {
            Operation::GetWebContentProperties => self.get_blob_properties(request).await,
            _ => self.get_blob(request).await,
        }
    }

    /// Returns whether a blob of this name exists. Returns false for an invalid name.
    async fn has_page(&self, request: &Request) -> Result<bool, Refusal> {
        let target = match self.target(request).await {
            Ok(target) => target,
            Err(refusal) if refusal.status().is_client_error() => return Ok(false),
            Err(refusal) => return Err(refusal),
        };
        Ok(self.find(&target).await?.is_some())
    }
}

/// Returns the blobs to try for a path of a website, in order.
fn pages(website: &StaticWebsite, path: &str) -> Vec<String> {
    let index = website.index_document.as_deref().map(|name| name.trim_start_matches('/'));
    if path.is_empty() || path.ends_with('/') {
        let default = website.default_index_document_path.as_deref();
        let default = default.map(|path| path.trim_start_matches('/').to_owned());
        return default.or_else(|| index.map(|name| format!("{path}{name}"))).into_iter().collect();
    }
    let within = index.map(|name| format!("{path}/{name}"));
    [Some(path.to_owned()), within].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_a_page_or_the_index_of_a_directory() {
        let website = |index: Option<&str>, default: Option<&str>| StaticWebsite {
            enabled: true,
            index_document: index.map(str::to_owned),
            default_index_document_path: default.map(str::to_owned),
            error_document_404_path: None,
        };
        let indexed = website(Some("index.html"), None);
        for (path, expected) in [
            ("", &["index.html"][..]),
            ("a/", &["a/index.html"]),
            ("a", &["a", "a/index.html"]),
            ("a/b.css", &["a/b.css", "a/b.css/index.html"]),
        ] {
            assert_eq!(pages(&indexed, path), expected, "{path}");
        }
        let one_page = website(None, Some("/app/main.html"));
        assert_eq!(pages(&one_page, "a/b/"), ["app/main.html"]);
        assert_eq!(pages(&one_page, "a/b"), ["a/b"]);
        assert_eq!(pages(&website(None, None), "a/"), [""; 0]);
    }
}
