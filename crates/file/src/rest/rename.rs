//! Rename File and Rename Directory.

use http::{StatusCode, Uri};
use lazuli_concurrency::Timestamp;
use lazuli_protocol::address::Address;
use lazuli_protocol::request::Caller;
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Query, Refusal, Request, Response, ServiceKind, SourceRead,
};
use lazuli_service::run_to_completion;

use crate::FileService;
use crate::rename::Rename;
use crate::rest::smb_properties::{Purpose, SentProperties, written};
use crate::tree::names::{self, Name};
use crate::tree::record::Node;

const SOURCE: &str = "x-ms-file-rename-source";

impl FileService {
    /// Handles Rename File and Rename Directory.
    pub(crate) async fn rename(&self, request: Request, is_directory: bool) -> Result<Response, Refusal> {
        let headers = &request.headers;
        let source = self.renamed(&request).await?;
        let properties = SentProperties::parse(headers, request.version, Purpose::Rename)?;
        let metadata = Metadata::from_headers(headers)?;
        let target = self.target(&request).await?;
        let space = target.share.space;
        let permission = self.permission_key(space, properties.permission.as_ref()).await?;
        let metadata = Some(metadata).filter(|metadata| *metadata != Metadata::default());
        let content_type = headers.filled("x-ms-content-type")?.map(str::to_owned);
        let edit = move |node: &mut Node, now: Timestamp| {
            properties.apply(&mut node.properties, is_directory, permission.clone(), now);
            if let Some(metadata) = &metadata {
                node.metadata = metadata.clone();
            }
            if let (Some(file), Some(content_type)) = (&mut node.file, &content_type) {
                file.headers.content_type = Some(content_type.clone());
            }
        };
        let rename = Rename {
            by: None,
            space,
            patience: target.patience,
            is_directory,
            source,
            target: target.path,
            source_lease: headers.parsed("x-ms-source-lease-id")?,
            target_lease: headers.parsed("x-ms-destination-lease-id")?,
            replaces: headers.flag("x-ms-file-rename-replace-if-exists")?.unwrap_or_default(),
            ignores_read_only: headers.flag("x-ms-file-rename-ignore-readonly")?.unwrap_or_default(),
            edit: Box::new(edit),
        };
        let this = self.clone();
        let (node, parent) =
            run_to_completion(async move { this.rename_when_admitted(&rename).await }).await?;
        Ok(written(StatusCode::OK, &node, parent))
    }

    /// Returns the source path of a request, if the caller may write there.
    async fn renamed(&self, request: &Request) -> Result<Vec<Name>, Refusal> {
        let text = request.headers.required(SOURCE)?;
        let keeps_dots = request.headers.flag("x-ms-source-allow-trailing-dot")?.unwrap_or_default();
        let found = source_in(text, &request.endpoint, &request.account.name, &request.container);
        let (address, query) = found.ok_or_else(|| Refusal::invalid_header(SOURCE, text))?;
        // A SAS for one file does not permit another, so the source needs a SAS of its own.
        if matches!(request.caller, Caller::Sas(_)) && request.query.get("sr") == Some("f") {
            if !query.contains("sig") {
                return Err(ErrorCode::AuthorizationResourceTypeMismatch.into());
            }
            let read = SourceRead {
                operation: request.operation,
                address: &address,
                query: &query,
                authorization: None,
                intent: None,
                version: request.version,
                secure: request.secure,
                peer: request.peer,
            };
            self.copies.sources()?.access.admit(&read, self).await?;
        }
        names::existing_path(&address.object, keeps_dots)
    }
}

/// Parses the URL of the source, if it is in the same share. The client used `endpoint` for its request. Java
/// does not encode the source of a directory. A `#` would truncate the name and rename another file.
pub(crate) fn source_in(text: &str, endpoint: &str, account: &str, share: &str) -> Option<(Address, Query)> {
    if text.contains('#') {
        return None;
    }
    let uri: Uri = lazuli_copy::encode_stray_characters(text).parse().ok()?;
    let query = Query::parse(uri.query().unwrap_or_default()).ok()?;
    // A host that the client used in path style names no account.
    let host = uri.authority()?.as_str();
    let host = if is_path_style(endpoint, host) { "" } else { host };
    let suffix = own_suffix(endpoint);
    let address = Address::of_source(ServiceKind::File, host, uri.path(), &query, suffix.as_slice()).ok()?;
    let is_here = address.account == account && address.container == share;
    (is_here && !query.contains("sharesnapshot")).then_some((address, query))
}

/// Returns whether the client used this host with the account in the path.
fn is_path_style(endpoint: &str, host: &str) -> bool {
    endpoint.parse::<Uri>().is_ok_and(|endpoint| {
        endpoint.path() != "/" && endpoint.authority().is_some_and(|own| own.as_str() == host)
    })
}

/// Returns the host name after the account, if the client used the account as host name.
fn own_suffix(endpoint: &str) -> Option<String> {
    let endpoint: Uri = endpoint.parse().ok()?;
    if endpoint.path() != "/" {
        return None;
    }
    Some(endpoint.host()?.split_once('.')?.1.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_url_of_the_share_in_any_style() {
        const PATH: &str = "http://127.0.0.1:10004/lapis";
        const CLUSTER: &str = "http://lazuli.file.svc.cluster.local:10004/lapis";
        const HOST: &str = "https://lapis.file.example.org";
        const OWN: &str = "https://lapis.mine.example";
        for (endpoint, text, object) in [
            (PATH, "http://127.0.0.1:10004/lapis/docs/a/b%20c", Some("a/b c")),
            (PATH, "http://lapis.file.localhost:10004/docs/%C3%A9?sv=1&sig=x", Some("é")),
            (PATH, "http://127.0.0.1:10004/lapis/docs%2Fa%20b%2Fc", Some("a b/c")),
            (HOST, "https://lapis.file.example.org/docs%2fd%2F%C3%A4", Some("d/ä")),
            (HOST, "https://lapis.file.example.org/docs/a%252Fb", Some("a%2Fb")),
            (HOST, "https://lapis.file.example.org/docs/my dir/é{1}", Some("my dir/é{1}")),
            (HOST, "https://lapis.file.example.org/docs/a%23b", Some("a#b")),
            (HOST, "https://lapis.file.example.org/docs/a#b", None),
            (HOST, "https://lapis.file.example.org/do cs/a", None),
            (HOST, "https://lapis.file.example.org/other%2Fdocs%2Fa", None),
            (HOST, "https://lapis.file.example.org/docs%2F..%2Fother%2Fa", Some("../other/a")),
            (CLUSTER, "http://lazuli.file.svc.cluster.local:10004/lapis/docs/a", Some("a")),
            (HOST, "https://lapis.file.example.org/docs/a", Some("a")),
            (OWN, "https://lapis.mine.example/docs/a", Some("a")),
            (PATH, "http://127.0.0.1:10004/lapis/docs", Some("")),
            (PATH, "http://127.0.0.1:10004/lapis/other/a", None),
            (PATH, "http://127.0.0.1:10004/malachite/docs/a", None),
            (HOST, "https://malachite.file.example.org/docs/a", None),
            (HOST, "https://lapis.file.example.org/docs/a?sharesnapshot=x", None),
            (PATH, "/lapis/docs/a", None),
            (PATH, "docs/a", None),
            (PATH, "http://127.0.0.1:10004/lapis/docs/%zz", None),
            (PATH, "", None),
        ] {
            let found = source_in(text, endpoint, "lapis", "docs").map(|(address, _)| address.object);
            assert_eq!(found.as_deref(), object, "{endpoint} {text}");
        }
    }
}
