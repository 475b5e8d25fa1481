//! List Handles and Force Close Handles: the opens of SMB clients.

use http::StatusCode;
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Headers, Refusal, Request, Response, ServiceKind, date, xml};
use lazuli_service::reply::put;
use lazuli_store::SpaceId;

use crate::FileService;
use crate::failure::Failure;
use crate::opens::{Handle, OpenLocation, is_below};
use crate::tree::names::fold;
use crate::tree::record::NodeId;
use crate::tree::spot::FileKey;

/// Maximum number of handles that one request closes. The client repeats it for more.
const MAX_CLOSED: usize = 1000;

/// The handles that a request addresses.
struct Scope {
    space: SpaceId,
    node: NodeId,
    /// The epoch of the addressed snapshot. `None`: the share itself.
    epoch: Option<u64>,
    /// All handles at or below this folded path. `None`: only those of the node.
    below: Option<String>,
}

impl FileService {
    /// Handles List Handles.
    pub(crate) async fn list_handles(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
        let scope = self.scope(&request).await?;
        let mut handles = self
            .opens
            .handles(scope.space, from(&page), page.limit + 1, |file, place| scope.contains(file, place));
        let next = handles.get(page.limit).map(|handle| handle.id.number.to_be_bytes());
        handles.truncate(page.limit);
        let mut xml = xml::Writer::new();
        xml.open("EnumerationResults");
        page.write_echo(&mut xml);
        xml.open("Entries");
        for handle in &handles {
            entry(&mut xml, handle);
        }
        xml.close();
        PageRequest::write_next(&mut xml, next.as_ref().map(<[u8; 8]>::as_slice));
        Ok(Response::xml(xml.finish()))
    }

    /// Handles Force Close Handles.
    pub(crate) async fn force_close_handles(&self, request: Request) -> Result<Response, Refusal> {
        const ID: &str = "x-ms-handle-id";
        let wanted = match request.headers.required(ID)? {
            "*" => None,
            text => Some(text.parse::<u64>().map_err(|_| Refusal::invalid_header(ID, text))?),
        };
        let page = PageRequest::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
        let scope = self.scope(&request).await?;
        let (first, limit) = match wanted {
            Some(number) => (number, 1),
            None => (from(&page), MAX_CLOSED + 1),
        };
        let mut handles =
            self.opens.handles(scope.space, first, limit, |file, place| scope.contains(file, place));
        handles.retain(|handle| wanted.is_none_or(|number| handle.id.number == number));
        let next = handles.get(MAX_CLOSED).map(|handle| handle.id.number.to_be_bytes());
        handles.truncate(MAX_CLOSED);
        let (mut closed, mut failed) = (0, 0);
        for handle in handles {
            match self.close_open(handle.id).await {
                Ok(_) | Err(Failure::Closed) => closed += 1,
                Err(failure) => {
                    let handle = handle.id;
                    tracing::warn!(%failure, ?handle, "a forced close may have lost unflushed writes");
                    failed += 1;
                }
            }
        }
        let mut response = Response::empty(StatusCode::OK);
        put(&mut response.headers, "x-ms-number-of-handles-closed", closed.to_string());
        put(&mut response.headers, "x-ms-number-of-handles-failed", failed.to_string());
        if let Some(next) = next {
            put(&mut response.headers, "x-ms-marker", PageRequest::marker(&next));
        }
        Ok(response)
    }

    /// Returns the handles that a request addresses. Includes files marked for deletion, to show which open
    /// keeps them.
    async fn scope(&self, request: &Request) -> Result<Scope, Refusal> {
        let is_recursive = request.headers.flag("x-ms-recursive")?.unwrap_or_default();
        let target = self.target(request).await?;
        let (node, _) = self.find_any(&target).await?;
        if is_recursive && !node.is_directory() {
            return Err(Refusal::invalid_header("x-ms-recursive", "true"));
        }
        let path: Vec<_> = target.path.iter().map(|name| name.text.as_str()).collect();
        let below = is_recursive.then(|| fold(&path.join("/")));
        let epoch = target.share.snapshot.map(|snapshot| snapshot.epoch);
        Ok(Scope { space: target.share.space, node: node.id, epoch, below })
    }
}

impl Scope {
    fn contains(&self, file: FileKey, place: &OpenLocation) -> bool {
        let is_at = match &self.below {
            None => file.node == self.node,
            Some(below) => is_below(&fold(&place.path), below),
        };
        is_at && file.epoch == self.epoch
    }
}

/// Returns the first handle number of a page.
fn from(page: &PageRequest<'_>) -> u64 {
    let start = page.start.as_ref().and_then(|start| start.as_slice().try_into().ok());
    start.map_or(0, u64::from_be_bytes)
}

fn entry(xml: &mut xml::Writer, handle: &Handle) {
    xml.open("Handle");
    xml.text("HandleId", handle.id.number);
    xml.name("Path", &handle.place.path);
    xml.text("FileId", handle.id.file.node.0);
    xml.text("ParentId", handle.place.parent.0);
    xml.text("SessionId", handle.client.session);
    xml.text("ClientIp", handle.client.ip);
    xml.text("ClientName", &handle.client.name);
    xml.text("OpenTime", date::rfc1123(handle.opened));
    xml.open("AccessRightList");
    for right in handle.mode.access.names() {
        xml.text("AccessRight", right);
    }
    xml.close();
    xml.close();
}
