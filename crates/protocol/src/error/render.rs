//! Renders a refusal as a reply: status, headers, body.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, StatusCode};
use lazuli_concurrency::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::Refusal;
use crate::{date, xml};

const X_MS_ERROR_CODE: HeaderName = HeaderName::from_static("x-ms-error-code");
const ODATA_METADATA: &str = "http://schemas.microsoft.com/ado/2007/08/dataservices/metadata";

/// The format of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorFormat {
    /// `<Error>`: blob, queue and file.
    Xml,
    /// `{"odata.error":…}`: tables and entities.
    TableJson,
    /// `<m:error>`: the XML operations of the table service, for ACLs and properties.
    TableXml,
    /// `{"error":…}`: Data Lake.
    DfsJson,
    /// An HTML page: static websites.
    Html,
}

/// Maximum length of the message, and of each detail, before they are escaped. Some repeat what the client
/// sent, such as the headers in a string to sign. Without a limit, small requests would get large replies,
/// which take memory until they are read.
const MAX_TEXT: usize = 4096;

impl Refusal {
    /// Returns the reply to a request with this method. Replies to HEAD and 304 have no body. All have
    /// `x-ms-error-code`.
    pub fn render(
        &self,
        format: ErrorFormat,
        method: &Method,
        request_id: Uuid,
        now: Timestamp,
    ) -> (StatusCode, HeaderMap, Bytes) {
        let mut headers: HeaderMap = self.headers.iter().cloned().collect();
        headers.insert(X_MS_ERROR_CODE, HeaderValue::from_static(self.code.name()));
        if method == Method::HEAD || self.status == StatusCode::NOT_MODIFIED {
            return (self.status, headers, Bytes::new());
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        if format == ErrorFormat::TableJson {
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        (self.status, headers, self.body(format, request_id, now))
    }

    fn body(&self, format: ErrorFormat, request_id: Uuid, now: Timestamp) -> Bytes {
        let code = self.code.name();
        let text = shown(&self.message);
        let message = format!("{text}\nRequestId:{request_id}\nTime:{}", date::iso8601(now));
        match format {
            ErrorFormat::Xml => {
                let mut xml = xml::Writer::new();
                xml.open("Error").text("Code", code).text("Message", message);
                for (name, value) in &self.details {
                    xml.text(name, shown(value));
                }
                xml.finish().into()
            }
            ErrorFormat::TableXml => {
                let mut xml = xml::Writer::new();
                xml.open_with("m:error", &[("xmlns:m", ODATA_METADATA)]).text("m:code", code);
                xml.text_with("m:message", &[("xml:lang", "en-US")], message);
                xml.finish().into()
            }
            ErrorFormat::TableJson => {
                let message = json!({ "lang": "en-US", "value": message });
                json!({ "odata.error": { "code": code, "message": message } }).to_string().into()
            }
            ErrorFormat::Html => self.page(request_id, now).into(),
            ErrorFormat::DfsJson => {
                json!({ "error": { "code": code, "message": message } }).to_string().into()
            }
        }
    }
}

/// Returns the beginning of a text that may hold what the client sent.
fn shown(text: &str) -> &str {
    let end = (0..=text.len().min(MAX_TEXT)).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

impl Refusal {
    /// Returns the HTML page. It contains nothing from the request.
    fn page(&self, request_id: Uuid, now: Timestamp) -> String {
        let (code, status, text) = (self.code.name(), self.status.as_u16(), self.code.message());
        let time = date::iso8601(now);
        format!(
            "<!DOCTYPE html><html><head><title>{code}</title></head><body><h1>{text}</h1><p><ul>\
             <li>HttpStatusCode: {status}</li><li>ErrorCode: {code}</li><li>RequestId : {request_id}</li>\
             <li>TimeStamp : {time}</li></ul></p></body></html>"
        )
    }
}

impl ErrorFormat {
    const fn content_type(self) -> &'static str {
        match self {
            Self::Xml | Self::TableXml => "application/xml",
            Self::TableJson => "application/json;odata=minimalmetadata;streaming=true;charset=utf-8",
            Self::DfsJson => "application/json;charset=utf-8",
            Self::Html => "text/html",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ErrorCode;
    use super::*;

    const ID: Uuid = Uuid::from_u128(0xf16b5298_0003_011e_0e70_83666b000000);
    // 2020-07-10T10:16:22.8096444Z
    const NOW: Timestamp = Timestamp::from_ticks(637_299_729_828_096_444);
    const TAIL: &str = "\nRequestId:f16b5298-0003-011e-0e70-83666b000000\nTime:2020-07-10T10:16:22.8096444Z";

    fn body(refusal: &Refusal, format: ErrorFormat) -> String {
        let (_, _, body) = refusal.render(format, &Method::GET, ID, NOW);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn xml_errors_have_details_as_siblings_of_the_message() {
        let refusal = Refusal::invalid_query("maxresults", "a<b", "not a number");
        let (status, headers, _) = refusal.render(ErrorFormat::Xml, &Method::GET, ID, NOW);
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(headers["x-ms-error-code"], "InvalidQueryParameterValue");
        assert_eq!(headers["content-type"], "application/xml");
        let message = ErrorCode::InvalidQueryParameterValue.message();
        assert_eq!(
            body(&refusal, ErrorFormat::Xml),
            format!(
                "<?xml version=\"1.0\" encoding=\"utf-8\"?><Error><Code>InvalidQueryParameterValue</Code>\
                 <Message>{message}{TAIL}</Message><QueryParameterName>maxresults</QueryParameterName>\
                 <QueryParameterValue>a&lt;b</QueryParameterValue><Reason>not a number</Reason></Error>"
            )
        );
    }

    #[test]
    fn texts_that_repeat_the_request_are_cut() {
        let long = "é&".repeat(30_000);
        let refusal = Refusal::new(ErrorCode::AuthenticationFailed).message(long.clone());
        let refusal = refusal.detail("AuthenticationErrorDetail", long);
        for (format, limit) in [
            (ErrorFormat::Xml, 25_000),
            (ErrorFormat::TableXml, 25_000),
            (ErrorFormat::TableJson, 25_000),
            (ErrorFormat::DfsJson, 25_000),
            (ErrorFormat::Html, 1000),
        ] {
            let length = body(&refusal, format).len();
            assert!(length < limit, "{format:?}: {length} bytes");
        }
    }

    #[test]
    fn table_errors_are_odata_json() {
        let json: serde_json::Value =
            serde_json::from_str(&body(&ErrorCode::ResourceNotFound.into(), ErrorFormat::TableJson)).unwrap();
        assert_eq!(json["odata.error"]["code"], "ResourceNotFound");
        assert_eq!(json["odata.error"]["message"]["lang"], "en-US");
        let text = format!("The specified resource does not exist.{TAIL}");
        assert_eq!(json["odata.error"]["message"]["value"], text);
    }

    #[test]
    fn table_acl_errors_use_the_metadata_namespace_without_a_byte_order_mark() {
        let body = body(&ErrorCode::TableNotFound.into(), ErrorFormat::TableXml);
        assert!(
            body.starts_with("<?xml version=\"1.0\" encoding=\"utf-8\"?><m:error xmlns:m=\"http://"),
            "{body}"
        );
        // The cloud service's reply to this error has this length.
        assert_eq!(body.len(), 316);
    }

    #[test]
    fn data_lake_errors_are_plain_json() {
        let json: serde_json::Value =
            serde_json::from_str(&body(&ErrorCode::PathNotFound.into(), ErrorFormat::DfsJson)).unwrap();
        assert_eq!(json["error"]["code"], "PathNotFound");
        assert_eq!(json["error"]["message"], format!("The specified path does not exist.{TAIL}"));
    }

    #[test]
    fn website_errors_are_html_pages() {
        assert_eq!(
            body(&ErrorCode::WebContentNotFound.into(), ErrorFormat::Html),
            "<!DOCTYPE html><html><head><title>WebContentNotFound</title></head><body>\
             <h1>The requested content does not exist.</h1><p><ul><li>HttpStatusCode: 404</li>\
             <li>ErrorCode: WebContentNotFound</li><li>RequestId : f16b5298-0003-011e-0e70-83666b000000</li>\
             <li>TimeStamp : 2020-07-10T10:16:22.8096444Z</li></ul></p></body></html>"
        );
    }

    #[test]
    fn replies_to_head_and_304_have_a_code_but_no_body() {
        for (refusal, method, status) in [
            (Refusal::new(ErrorCode::BlobNotFound), Method::HEAD, 404),
            (Refusal::not_modified(), Method::GET, 304),
        ] {
            let (got, headers, body) = refusal.render(ErrorFormat::Xml, &method, ID, NOW);
            assert_eq!(got.as_u16(), status);
            assert_eq!(headers["x-ms-error-code"], refusal.code().name());
            assert!(body.is_empty() && !headers.contains_key(CONTENT_TYPE));
        }
    }
}
