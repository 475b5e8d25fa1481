//! List Containers.

use std::ops::ControlFlow;

use lazuli_concurrency::{LeaseState, Timestamp};
use lazuli_generations::ListedGeneration;
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Refusal, Request, Response, ServiceKind, Version, date, xml};

use crate::BlobService;
use crate::container::is_system;
use crate::container::lifecycle::version_text;
use crate::content::encryption::ACCOUNT_KEY_SCOPE;
use crate::list::values_of_version;
use crate::model::container::Container;

/// Length at which a page ends, in bytes.
const MAX_PAGE_BYTES: usize = 8 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    Metadata,
    Deleted,
    System,
}

/// The values of `include`, and their first versions.
const INCLUDES: [(&str, Include, Version); 3] = [
    ("metadata", Include::Metadata, Version::OLDEST),
    ("deleted", Include::Deleted, Version::new(2019, 12, 12)),
    ("system", Include::System, Version::new(2020, 10, 2)),
];

impl BlobService {
    /// Handles List Containers.
    pub(crate) async fn list_containers(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::Blob, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &values_of_version(&INCLUDES, request.version))?;
        let mut listing =
            ContainerListing { request: &request, include, now: self.store.now(), xml: xml::Writer::new() };
        listing.open(&page);
        let (start, with_deleted) = (page.start.as_deref(), listing.includes(Include::Deleted));
        let mut listed = 0;
        let next = self.containers.list(&request.account, page.prefix, start, with_deleted, |entry| {
            if !listing.is_listed(&entry) {
                return ControlFlow::Continue(());
            }
            if listed == page.limit || listing.xml.written() >= MAX_PAGE_BYTES {
                return ControlFlow::Break(());
            }
            listing.write(&entry);
            listed += 1;
            ControlFlow::Continue(())
        });
        let next = next.await?;
        let mut xml = listing.xml;
        xml.close();
        PageRequest::write_next(&mut xml, next.as_deref());
        Ok(Response::xml(xml.finish()))
    }
}

struct ContainerListing<'a> {
    request: &'a Request,
    include: Vec<Include>,
    now: Timestamp,
    xml: xml::Writer,
}

impl ContainerListing<'_> {
    fn open(&mut self, page: &PageRequest<'_>) {
        let endpoint = &self.request.endpoint;
        let root = "EnumerationResults";
        if self.request.version.at_least(2013, 8, 15) {
            self.xml.open_with(root, &[("ServiceEndpoint", &format!("{endpoint}/"))]);
        } else {
            self.xml.open_with(root, &[("AccountName", endpoint)]);
        }
        page.write_echo(&mut self.xml);
        self.xml.open("Containers");
    }

    fn includes(&self, include: Include) -> bool {
        self.include.contains(&include)
    }

    /// Returns whether to list a container.
    fn is_listed(&self, entry: &ListedGeneration<'_, Container>) -> bool {
        let is_present = entry.record.deleted.is_none_or(|deleted| deleted.until > self.now);
        is_present && (self.includes(Include::System) || !is_system(entry.name))
    }

    fn write(&mut self, entry: &ListedGeneration<'_, Container>) {
        let version = self.request.version;
        let ListedGeneration { name, deleted_at, record: container, .. } = *entry;
        let with_metadata = self.includes(Include::Metadata);
        let xml = &mut self.xml;
        xml.open("Container").text("Name", name);
        if !version.at_least(2013, 8, 15) {
            xml.text("Url", format_args!("{}/{name}", self.request.endpoint));
        }
        if let Some(deleted_at) = deleted_at {
            xml.text("Deleted", true).text("Version", version_text(deleted_at));
        }
        xml.open("Properties");
        xml.text("Last-Modified", date::rfc1123(container.modified));
        xml.text("Etag", container.etag);
        xml.text("LeaseStatus", container.lease.status(self.now));
        if version.at_least(2012, 2, 12) {
            // The lease of a container ends when the container is deleted.
            let state = container.lease.state(self.now);
            xml.text("LeaseState", if deleted_at.is_some() { LeaseState::Expired } else { state });
            xml.optional("LeaseDuration", container.lease.duration(self.now));
        }
        if version.at_least(2016, 5, 31) {
            xml.optional("PublicAccess", container.public_access.name());
        }
        if version.at_least(2019, 2, 2) {
            let scope = container.default_encryption_scope.as_deref().unwrap_or(ACCOUNT_KEY_SCOPE);
            xml.text("DefaultEncryptionScope", scope);
            xml.text("DenyEncryptionScopeOverride", container.deny_encryption_scope_override);
        }
        if version.at_least(2017, 11, 9) {
            xml.text("HasImmutabilityPolicy", false).text("HasLegalHold", false);
        }
        if version.at_least(2020, 6, 12) {
            let immutable = self.request.account.settings.has_version_immutability(name);
            xml.text("ImmutableStorageWithVersioningEnabled", immutable);
        }
        if let Some(deleted) = container.deleted {
            deleted.write_xml(xml, self.now);
        }
        xml.close();
        if with_metadata {
            container.metadata.write_xml(xml);
        }
        xml.close();
    }
}
