//! List Queues.

use std::ops::ControlFlow;

use lazuli_generations::ListedGeneration;
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Refusal, Request, Response, ServiceKind, xml};

use crate::QueueService;
use crate::record::Queue;

/// A page ends when it has this many bytes.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// Optional details of each queue in the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueDetail {
    Metadata,
}

impl QueueService {
    /// List Queues.
    pub(crate) async fn list_queues(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::Queue, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &[("metadata", QueueDetail::Metadata)])?;
        let with_urls = !request.version.at_least(2013, 8, 15);
        let endpoint = &request.endpoint;
        let mut xml = xml::Writer::new();
        match with_urls {
            true => xml.open_with("EnumerationResults", &[("AccountName", endpoint)]),
            false => xml.open_with("EnumerationResults", &[("ServiceEndpoint", &format!("{endpoint}/"))]),
        };
        page.write_echo(&mut xml);
        xml.open("Queues");
        let mut listed = 0;
        let start = page.start.as_deref();
        let next = self.queues.list(
            &request.account,
            page.prefix,
            start,
            false,
            |entry: ListedGeneration<'_, Queue>| {
                if listed == page.limit || xml.written() >= MAX_PAGE_BYTES {
                    return ControlFlow::Break(());
                }
                xml.open("Queue").text("Name", entry.name);
                if with_urls {
                    xml.text("Url", format_args!("{endpoint}/{}", entry.name));
                }
                if include.contains(&QueueDetail::Metadata) {
                    entry.record.metadata.write_xml(&mut xml);
                }
                xml.close();
                listed += 1;
                ControlFlow::Continue(())
            },
        );
        let next = next.await?;
        xml.close();
        PageRequest::write_next(&mut xml, next.as_deref());
        Ok(Response::xml(xml.finish()))
    }
}
