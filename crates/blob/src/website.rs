//! Static websites: what is in `$web`, for anybody, with an index page in every directory and a page for what is not there.
//!
//! Where a website is, the address says; what it consists of, the properties of the service. The container need not be
//! public: that the website is on makes it so, at the website's address.

use http::StatusCode;
use http::header::{
    HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE,
    RANGE,
};
use lazuli_protocol::properties::StaticWebsite;
use lazuli_protocol::{ErrorCode, Operation, Refusal, Request, Response, ServiceKind};

use crate::BlobService;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
/// What a browser may say about a page. What clients of the blob service say means nothing here.
const HEADERS: [HeaderName; 5] = [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE];

impl BlobService {
    /// A page of a static website, or only its headers.
    pub(crate) async fn get_web_content(&self, mut request: Request) -> Result<Response, Refusal> {
        let properties = self.accounts.properties(&request.account.name, ServiceKind::Blob).await?;
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

    /// The page for what is not there, if it is there.
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

    /// Whether there is a blob of that name. A name that no blob can have is not there either.
    async fn has_page(&self, request: &Request) -> Result<bool, Refusal> {
        let target = match self.target(request).await {
            Ok(target) => target,
            Err(refusal) if refusal.status().is_client_error() => return Ok(false),
            Err(refusal) => return Err(refusal),
        };
        Ok(self.find(&target).await?.is_some())
    }
}

/// The blobs that a path of a website may mean, in the order in which they are tried.
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
    fn a_path_is_a_page_or_the_index_of_a_directory() {
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
