//! List Shares: by name, each followed by its snapshots if requested.

use std::ops::ControlFlow;

use lazuli_concurrency::Timestamp;
use lazuli_generations::{ListInclude, ListedGeneration};
use lazuli_protocol::listing::{MAX_RESULTS, PageRequest};
use lazuli_protocol::{Refusal, Request, Response, ServiceKind, date, xml};

use crate::FileService;
use crate::rest::share::deletion::version_text;
use crate::rest::snapshot_id;
use crate::tree::record::Share;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    Metadata,
    Snapshots,
    Deleted,
}

const INCLUDES: [(&str, Include); 3] =
    [("metadata", Include::Metadata), ("snapshots", Include::Snapshots), ("deleted", Include::Deleted)];

impl FileService {
    /// Handles List Shares.
    pub(crate) async fn list_shares(&self, request: Request) -> Result<Response, Refusal> {
        let page = PageRequest::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &INCLUDES)?;
        let extra = ListInclude {
            deleted: include.contains(&Include::Deleted),
            snapshots: include.contains(&Include::Snapshots),
        };
        let now = self.store.now();
        let mut xml = xml::Writer::new();
        xml.open_with("EnumerationResults", &[("ServiceEndpoint", &format!("{}/", request.endpoint))]);
        page.write_echo(&mut xml);
        xml.open("Shares");
        let mut listed = 0;
        let start = page.start.as_deref();
        let next = self.shares.list_including(&request.account, page.prefix, start, extra, |entry| {
            if !is_shown(entry.record, now) {
                return ControlFlow::Continue(());
            }
            if listed == page.limit {
                return ControlFlow::Break(());
            }
            listed += 1;
            write(&mut xml, &entry, include.contains(&Include::Metadata), now);
            ControlFlow::Continue(())
        });
        let next = next.await?;
        xml.close();
        PageRequest::write_next(&mut xml, next.as_deref());
        Ok(Response::xml(xml.finish()))
    }
}

/// Hides shares that can no longer be restored, and incomplete snapshots.
fn is_shown(share: &Share, now: Timestamp) -> bool {
    share.deleted.is_none_or(|deleted| deleted.until > now)
        && share.snapshot.is_none_or(|snapshot| snapshot.taken)
}

fn write(xml: &mut xml::Writer, entry: &ListedGeneration<'_, Share>, with_metadata: bool, now: Timestamp) {
    let share = entry.record;
    xml.open("Share").text("Name", entry.name);
    xml.optional("Snapshot", entry.snapshot.map(snapshot_id::text));
    if share.deleted.is_some() {
        xml.optional("Version", entry.deleted_at.map(version_text));
        xml.text("Deleted", true);
    }
    xml.open("Properties");
    xml.text("Last-Modified", date::rfc1123(share.modified));
    xml.text("Etag", share.etag);
    xml.text("Quota", share.quota_gib);
    xml.text("AccessTier", share.tier.current.name());
    xml.text("AccessTierChangeTime", date::rfc1123(share.tier_changed()));
    xml.optional("AccessTierTransitionState", share.tier_transition(now));
    xml.text("LeaseStatus", share.lease.status(now)).text("LeaseState", share.lease.state(now));
    xml.optional("LeaseDuration", share.lease.duration(now));
    xml.text("EnabledProtocols", "SMB");
    if let Some(deleted) = share.deleted {
        deleted.write_xml(xml, now);
    }
    xml.close();
    if with_metadata {
        share.metadata.write_xml(xml);
    }
    xml.close();
}
