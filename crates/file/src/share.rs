//! Shares: create, properties, metadata, access policies, statistics, delete, list.
//!
//! A share is a row that names a space; its directories and files lie in that space.

use std::ops::ControlFlow;

use http::StatusCode;
use lazuli_concurrency::{Access, Lease, Timestamp};
use lazuli_generations::{Created, Removal};
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::listing::{MAX_RESULTS, Page};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{
    ErrorCode, Headers, Metadata, Refusal, Request, Response, ServiceKind, date, names, xml,
};
use lazuli_store::View;

use crate::record::{AccessTier, Deleted, Share};
use crate::reply::{put, validators};
use crate::{FileService, XML};

/// What a share may grow to if nobody says otherwise, and at most, in GiB.
const DEFAULT_QUOTA_GIB: u32 = 5120;
const MAX_QUOTA_GIB: i64 = 102_400;

impl FileService {
    /// Create Share.
    pub(crate) async fn create_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let sent = SentProperties::parse(&request)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let make = |space, view: &View<'_>| Share {
            space,
            created: view.now,
            modified: view.now,
            etag: view.stamp.into(),
            quota_gib: sent.quota_gib.unwrap_or(DEFAULT_QUOTA_GIB),
            tier: sent.tier.unwrap_or_default(),
            tier_changed: None,
            metadata: metadata.clone(),
            policies: SignedIdentifiers::default(),
            lease: Lease::AVAILABLE,
            deleted: None,
        };
        match self.shares.create(&request.account, &request.container, make).await? {
            Created::New(share) => Ok(written(StatusCode::CREATED, &share)),
            Created::Existing(_) => Err(ErrorCode::ShareAlreadyExists.into()),
        }
    }

    /// Get Share Properties.
    pub(crate) async fn get_share_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (share, now) = self.share_to_read(&request).await?;
        let mut response = written(StatusCode::OK, &share);
        let headers = &mut response.headers;
        share.metadata.write_headers(headers);
        put(headers, "x-ms-share-quota", share.quota_gib.to_string());
        put(headers, "x-ms-access-tier", share.tier.name());
        if let Some(changed) = share.tier_changed {
            put(headers, "x-ms-access-tier-change-time", date::rfc1123(changed));
        }
        put(headers, "x-ms-enabled-protocols", "SMB");
        put(headers, "x-ms-has-immutability-policy", "false");
        put(headers, "x-ms-has-legal-hold", "false");
        put(headers, "x-ms-lease-status", share.lease.status(now).to_string());
        put(headers, "x-ms-lease-state", share.lease.state(now).to_string());
        if let Some(duration) = share.lease.duration(now) {
            put(headers, "x-ms-lease-duration", duration.to_string());
        }
        Ok(response)
    }

    /// Get Share Metadata.
    pub(crate) async fn get_share_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (share, _) = self.share_to_read(&request).await?;
        let mut response = written(StatusCode::OK, &share);
        share.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Set Share Properties.
    pub(crate) async fn set_share_properties(&self, request: Request) -> Result<Response, Refusal> {
        let sent = SentProperties::parse(&request)?;
        let share = self.change_share(&request, |share, view| {
            share.quota_gib = sent.quota_gib.unwrap_or(share.quota_gib);
            if let Some(tier) = sent.tier.filter(|tier| *tier != share.tier) {
                share.tier = tier;
                share.tier_changed = Some(view.now);
            }
        });
        Ok(written(StatusCode::OK, &share.await?))
    }

    /// Set Share Metadata.
    pub(crate) async fn set_share_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let share = self.change_share(&request, |share, _| share.metadata = metadata.clone());
        Ok(written(StatusCode::OK, &share.await?))
    }

    /// Get Share ACL.
    pub(crate) async fn get_share_acl(&self, request: Request) -> Result<Response, Refusal> {
        let (share, _) = self.share_to_read(&request).await?;
        let mut response = Response::with_body(StatusCode::OK, XML, share.policies.to_xml());
        validators(&mut response.headers, share.validators());
        Ok(response)
    }

    /// Set Share ACL.
    pub(crate) async fn set_share_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        let limit = request.operation.row().body.limit().unwrap_or_default();
        let policies = SignedIdentifiers::parse(&request.read_body(limit).await?)?;
        let share = self.change_share(&request, |share, _| share.policies = policies.clone());
        Ok(written(StatusCode::OK, &share.await?))
    }

    /// Delete Share.
    pub(crate) async fn delete_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let id = lease_id(&request.headers)?;
        let properties = self.accounts.properties(&request.account.name, ServiceKind::File).await?;
        let days = properties.share_delete_retention_days;
        let rule = move |share: &mut Share, view: &View<'_>| {
            let admission = share
                .lease
                .admits(Access::Manage, id, view.now)
                .map_err(|refusal| Refusal::lease(refusal, Leased::Container))?;
            share.deleted = days.map(|days| Deleted::keep(days, view.now));
            share.lease = Lease::AVAILABLE;
            Ok(Removal { keep: days.is_some(), valid_until: admission.valid_until })
        };
        self.shares.remove(request.account, &request.container, rule).await?;
        Ok(Response::empty(StatusCode::ACCEPTED))
    }

    /// List Shares.
    pub(crate) async fn list_shares(&self, request: Request) -> Result<Response, Refusal> {
        let page = Page::parse(ServiceKind::File, &request.query, MAX_RESULTS)?;
        let include = request.query.list("include", &INCLUDES)?;
        let with_deleted = include.contains(&Include::Deleted);
        let now = self.shares_now();
        let mut xml = xml::Writer::new();
        xml.open_with("EnumerationResults", &[("ServiceEndpoint", &format!("{}/", request.endpoint))]);
        page.write_echo(&mut xml);
        xml.open("Shares");
        let mut listed = 0;
        let start = page.start.as_deref();
        let next = self.shares.list(&request.account, page.prefix, start, with_deleted, |entry| {
            if entry.record.deleted.is_some_and(|deleted| deleted.until <= now) {
                return ControlFlow::Continue(());
            }
            if listed == page.limit {
                return ControlFlow::Break(());
            }
            listed += 1;
            let version = entry.deleted_at.map(|stamp| format!("{:016X}", stamp.ticks()));
            write(&mut xml, entry.name, version, entry.record, include.contains(&Include::Metadata), now);
            ControlFlow::Continue(())
        });
        let next = next.await?;
        xml.close();
        Page::write_next(&mut xml, next.as_deref());
        Ok(Response::with_body(StatusCode::OK, XML, xml.finish()))
    }

    async fn share_to_read(&self, request: &Request) -> Result<(Share, Timestamp), Refusal> {
        let id = lease_id(&request.headers)?;
        let share = self.share(&request.account, &request.container).await?;
        let now = self.shares_now();
        share
            .lease
            .admits(Access::Read, id, now)
            .map_err(|refusal| Refusal::lease(refusal, Leased::Container))?;
        Ok((share, now))
    }

    async fn change_share(
        &self,
        request: &Request,
        mut change: impl FnMut(&mut Share, &View<'_>),
    ) -> Result<Share, Refusal> {
        names::check_share(&request.container)?;
        let id = lease_id(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let rule = |share: &mut Share, view: &View<'_>| {
            let admission = share
                .lease
                .admits(Access::Write, id, view.now)
                .map_err(|refusal| Refusal::lease(refusal, Leased::Container))?;
            conditions.evaluate_write(share.validators())?;
            change(share, view);
            share.lease = admission.lease;
            share.touch(view.stamp, view.now);
            Ok(((), admission.valid_until))
        };
        let (share, ()) = self.shares.change(&request.account, &request.container, rule).await?;
        Ok(share)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Include {
    Metadata,
    Snapshots,
    Deleted,
}

const INCLUDES: [(&str, Include); 3] =
    [("metadata", Include::Metadata), ("snapshots", Include::Snapshots), ("deleted", Include::Deleted)];

/// What a request says of a share's properties.
struct SentProperties {
    quota_gib: Option<u32>,
    tier: Option<AccessTier>,
}

impl SentProperties {
    fn parse(request: &Request) -> Result<Self, Refusal> {
        let headers = &request.headers;
        let quota = headers.number("x-ms-share-quota", 1..=MAX_QUOTA_GIB)?;
        if let Some(protocol) = headers.filled("x-ms-enabled-protocols")?
            && !protocol.eq_ignore_ascii_case("SMB")
        {
            return Err(Refusal::not_implemented("A share for other protocols than SMB"));
        }
        Ok(Self {
            quota_gib: quota.and_then(|quota| u32::try_from(quota).ok()),
            tier: headers.one_of("x-ms-access-tier", &AccessTier::NAMES)?,
        })
    }
}

fn written(status: StatusCode, share: &Share) -> Response {
    let mut response = Response::empty(status);
    validators(&mut response.headers, share.validators());
    response
}

fn write(
    xml: &mut xml::Writer,
    name: &str,
    deleted_version: Option<String>,
    share: &Share,
    with_metadata: bool,
    now: Timestamp,
) {
    xml.open("Share").text("Name", name);
    if share.deleted.is_some() {
        xml.text("Deleted", true);
        xml.optional("Version", deleted_version);
    }
    xml.open("Properties");
    xml.text("Last-Modified", date::rfc1123(share.modified));
    xml.text("Etag", share.etag);
    xml.text("Quota", share.quota_gib);
    xml.text("AccessTier", share.tier.name());
    xml.optional("AccessTierChangeTime", share.tier_changed.map(date::rfc1123));
    xml.text("LeaseStatus", share.lease.status(now)).text("LeaseState", share.lease.state(now));
    xml.optional("LeaseDuration", share.lease.duration(now));
    xml.text("EnabledProtocols", "SMB");
    if let Some(deleted) = share.deleted {
        const TICKS_PER_DAY: u64 = 86_400 * lazuli_concurrency::time::TICKS_PER_SECOND;
        xml.text("DeletedTime", date::rfc1123(deleted.at));
        xml.text("RemainingRetentionDays", deleted.until.since(now).ticks() / TICKS_PER_DAY);
    }
    xml.close();
    if with_metadata {
        share.metadata.write_xml(xml);
    }
    xml.close();
}
