//! List Directories and Files: one level, in the order of folded names.

use std::collections::HashSet;

use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Headers, Refusal, Request, Response, ServiceKind, date, xml};

use crate::FileService;
use crate::rest::smb_properties::attributes_text;
use crate::rest::snapshot_id;
use crate::tree::children::At;
use crate::tree::listing::Listing;
use crate::tree::permissions::INHERITED_PERMISSION;
use crate::tree::record::Node;
use crate::tree::{keys, names};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    Timestamps,
    Etag,
    Attributes,
    PermissionKey,
}

const INCLUDES: [(&str, Include); 4] = [
    ("Timestamps", Include::Timestamps),
    ("Etag", Include::Etag),
    ("Attributes", Include::Attributes),
    ("PermissionKey", Include::PermissionKey),
];

impl FileService {
    /// Handles List Directories and Files.
    pub(crate) async fn list_directories_and_files(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &INCLUDES)?;
        // The extended information is always included.
        request.headers.flag("x-ms-file-extended-info")?;
        let target = self.target(&request).await?;
        let Some(directory) = self.walk(target.share.space, &target.path, target.at).await? else {
            return Err(self.missing(&target).await?.into());
        };
        let partition = keys::directory(target.share.space, directory);
        if target.at == At::Now {
            // The list has lengths.
            self.flush_some(Some(target.share.space), |_, place| place.parent == directory).await;
        }

        let mut xml = xml::Writer::new();
        let endpoint = format!("{}/", request.endpoint);
        let snapshot = snapshot_id::named(&request.query)?.map(snapshot_id::text);
        let mut attributes =
            vec![("ServiceEndpoint", endpoint.as_str()), ("ShareName", request.container.as_str())];
        attributes.extend(snapshot.as_deref().map(|id| ("ShareSnapshot", id)));
        let path = xml::encoded(&request.object);
        attributes.extend(path.is_some().then_some(("Encoded", "true")));
        attributes.push(("DirectoryPath", path.as_deref().unwrap_or(&request.object)));
        xml.open_with("EnumerationResults", &attributes);
        page.write_echo(&mut xml);
        xml.text("DirectoryId", directory.0);
        xml.open("Entries");
        let prefix = names::fold(page.prefix);
        let start = page.start.as_deref().unwrap_or_default().max(prefix.as_bytes());
        let mut listing = Listing::new(partition, prefix.as_bytes(), start, target.at);
        let delete_pending = match target.at {
            At::Now => self.opens.delete_pending(target.share.space),
            At::Epoch(_) => HashSet::new(),
        };
        let mut listed = 0;
        let next = 'page: loop {
            let Some(entries) = self.next_children(&mut listing, page.limit + 1 - listed).await? else {
                break None;
            };
            for (name, node) in entries {
                if listed == page.limit {
                    break 'page Some(name);
                }
                if !delete_pending.contains(&node.id) {
                    entry(&mut xml, &node, &include);
                    listed += 1;
                }
            }
        };
        xml.close();
        PageRequest::write_next(&mut xml, next.as_deref());
        Ok(Response::xml(xml.finish()))
    }
}

fn entry(xml: &mut xml::Writer, node: &Node, include: &[Include]) {
    xml.open(if node.is_directory() { "Directory" } else { "File" });
    xml.text("FileId", node.id.0);
    xml.name("Name", &node.name);
    xml.open("Properties");
    if !node.is_directory() {
        xml.text("Content-Length", node.length());
    }
    let includes = |what| include.contains(&what);
    if includes(Include::Timestamps) {
        let properties = &node.properties;
        xml.text("CreationTime", date::iso8601(properties.created));
        xml.text("LastAccessTime", date::iso8601(properties.accessed.unwrap_or(properties.last_write)));
        xml.text("LastWriteTime", date::iso8601(properties.last_write));
        xml.text("ChangeTime", date::iso8601(properties.change));
        xml.text("Last-Modified", date::rfc1123(node.modified));
    }
    if includes(Include::Etag) {
        xml.text("Etag", node.etag);
    }
    xml.close();
    if includes(Include::Attributes) {
        xml.text("Attributes", attributes_text(node.properties.attributes));
    }
    if includes(Include::PermissionKey) {
        xml.text("PermissionKey", node.properties.permission.as_deref().unwrap_or(INHERITED_PERMISSION));
    }
    xml.close();
}
