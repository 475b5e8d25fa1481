//! List Handles and Force Close Handles: who has a file or directory open over SMB.

use http::StatusCode;
use lazuli_protocol::listing::{MAX_RESULTS, Page};
use lazuli_protocol::{Headers, Refusal, Request, Response, ServiceKind, date, xml};
use lazuli_store::SpaceId;

use crate::names::fold;
use crate::opens::{FileKey, Handle, Place, is_below};
use crate::record::NodeId;
use crate::reply::put;
use crate::{FileService, XML};

/// Handles that one request closes; the client asks again for more.
const MAX_CLOSED: usize = 1000;

/// Whose handles a request is about.
struct Scope {
    space: SpaceId,
    node: NodeId,
    /// That of a snapshot. None: of the share itself.
    epoch: Option<u64>,
    /// All at or below this path, folded. None: only those of the node.
    below: Option<String>,
}

impl FileService {
    /// List Handles.
    pub(crate) async fn list_handles(&self, request: Request) -> Result<Response, Refusal> {
        let page = Page::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
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
        Page::write_next(&mut xml, next.as_ref().map(<[u8; 8]>::as_slice));
        Ok(Response::with_body(StatusCode::OK, XML, xml.finish()))
    }

    /// Force Close Handles.
    pub(crate) async fn force_close_handles(&self, request: Request) -> Result<Response, Refusal> {
        const ID: &str = "x-ms-handle-id";
        let wanted = match request.headers.required(ID)? {
            "*" => None,
            text => Some(text.parse::<u64>().map_err(|_| Refusal::invalid_header(ID, text))?),
        };
        let page = Page::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
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
            match self.close(handle.id).await {
                Ok(()) => closed += 1,
                Err(_) => failed += 1,
            }
        }
        let mut response = Response::empty(StatusCode::OK);
        put(&mut response.headers, "x-ms-number-of-handles-closed", closed.to_string());
        put(&mut response.headers, "x-ms-number-of-handles-failed", failed.to_string());
        if let Some(next) = next {
            put(&mut response.headers, "x-ms-marker", Page::marker(&next));
        }
        Ok(response)
    }

    /// Whose handles a request asks for. Also of what is marked for deletion, to find out who keeps it.
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
    fn contains(&self, file: FileKey, place: &Place) -> bool {
        let is_at = match &self.below {
            None => file.node == self.node,
            Some(below) => is_below(&fold(&place.path), below),
        };
        is_at && file.epoch == self.epoch
    }
}

/// The number that a page begins at.
fn from(page: &Page<'_>) -> u64 {
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
