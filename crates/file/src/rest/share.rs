//! Shares: create, properties, metadata, access policies, statistics. Its submodules delete, restore, lease,
//! list and snapshot shares.
//!
//! A share is a row that names a space. Its directories and files are in that space.

mod deletion;
mod lease;
mod list;
mod snapshot;

use http::StatusCode;
use lazuli_concurrency::{Access, Lease, LeaseId, Timestamp};
use lazuli_generations::Created;
use lazuli_protocol::lease::{Leased, lease_id};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, date, names, xml};
use lazuli_service::reply::{put, put_validators};
use lazuli_service::run_to_completion;
use lazuli_store::View;

use crate::FileService;
use crate::rest::snapshot_id;
use crate::tree::record::{AccessTier, Share, ShareTier};

/// The default and the maximum quota, in GiB.
const DEFAULT_QUOTA_GIB: u32 = 5120;
const MAX_QUOTA_GIB: i64 = 102_400;

impl FileService {
    /// Handles Create Share.
    pub(crate) async fn create_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        snapshot_id::check_not_named(&request.query)?;
        let sent = SentProperties::parse(&request)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let make = move |space, view: &View<'_>| Share {
            space,
            created: view.now,
            modified: view.now,
            etag: view.stamp.into(),
            quota_gib: sent.quota_gib.unwrap_or(DEFAULT_QUOTA_GIB),
            tier: ShareTier { current: sent.tier.unwrap_or_default(), previous: None },
            tier_changed: None,
            metadata: metadata.clone(),
            policies: SignedIdentifiers::default(),
            lease: Lease::AVAILABLE,
            deleted: None,
            snapshot: None,
        };
        match self.shares.create(&request.account, &request.container, make).await? {
            Created::New(share) => Ok(written(StatusCode::CREATED, &share)),
            Created::Existing(_) => Err(ErrorCode::ShareAlreadyExists.into()),
        }
    }

    /// Handles Get Share Properties.
    pub(crate) async fn get_share_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (share, now) = self.share_to_read(&request).await?;
        let mut response = written(StatusCode::OK, &share);
        let headers = &mut response.headers;
        share.metadata.write_headers(headers);
        put(headers, "x-ms-share-quota", share.quota_gib.to_string());
        put(headers, "x-ms-access-tier", share.tier.current.name());
        put(headers, "x-ms-access-tier-change-time", date::rfc1123(share.tier_changed()));
        if let Some(state) = share.tier_transition(now) {
            put(headers, "x-ms-access-tier-transition-state", state);
        }
        put(headers, "x-ms-enabled-protocols", "SMB");
        put(headers, "x-ms-has-immutability-policy", "false");
        put(headers, "x-ms-has-legal-hold", "false");
        // Older clients fail on these headers.
        if request.version.at_least(2020, 2, 10) {
            put(headers, "x-ms-lease-status", share.lease.status(now).to_string());
            put(headers, "x-ms-lease-state", share.lease.state(now).to_string());
            if let Some(duration) = share.lease.duration(now) {
                put(headers, "x-ms-lease-duration", duration.to_string());
            }
        }
        Ok(response)
    }

    /// Handles Get Share Metadata.
    pub(crate) async fn get_share_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (share, _) = self.share_to_read(&request).await?;
        let mut response = written(StatusCode::OK, &share);
        share.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Handles Set Share Properties.
    pub(crate) async fn set_share_properties(&self, request: Request) -> Result<Response, Refusal> {
        let sent = SentProperties::parse(&request)?;
        let this = self.clone();
        // Run to completion: writers have to learn the new quota.
        let changed = run_to_completion(async move {
            let changed = this.change_share(&request, |share, view| {
                share.quota_gib = sent.quota_gib.unwrap_or(share.quota_gib);
                if let Some(tier) = sent.tier.filter(|tier| *tier != share.tier.current) {
                    share.tier = ShareTier { current: tier, previous: Some(share.tier.current) };
                    share.tier_changed = Some(view.now);
                }
            });
            changed.await.inspect(|share| this.usages.note_quota(share))
        });
        Ok(written(StatusCode::OK, &changed.await?))
    }

    /// Handles Set Share Metadata.
    pub(crate) async fn set_share_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let share = self.change_share(&request, |share, _| share.metadata = metadata.clone());
        Ok(written(StatusCode::OK, &share.await?))
    }

    /// Handles Get Share ACL.
    pub(crate) async fn get_share_acl(&self, request: Request) -> Result<Response, Refusal> {
        let (share, _) = self.share_to_read(&request).await?;
        let mut response = Response::xml(share.policies.to_xml());
        put_validators(&mut response.headers, share.validators());
        Ok(response)
    }

    /// Handles Set Share ACL.
    pub(crate) async fn set_share_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        let policies = SignedIdentifiers::parse(&request.read_document().await?)?;
        let share = self.change_share(&request, |share, _| share.policies = policies.clone());
        Ok(written(StatusCode::OK, &share.await?))
    }

    /// Handles Get Share Stats.
    pub(crate) async fn get_share_stats(&self, request: Request) -> Result<Response, Refusal> {
        const GIB: u64 = 1 << 30;
        let (share, _) = self.share_to_read(&request).await?;
        let bytes = self.usage(share.space).await?;
        let mut xml = xml::Writer::new();
        xml.open("ShareStats");
        match request.version.at_least(2018, 11, 9) {
            true => xml.text("ShareUsageBytes", bytes),
            false => xml.text("ShareUsage", bytes.div_ceil(GIB)),
        };
        xml.close();
        let mut response = Response::xml(xml.finish());
        put_validators(&mut response.headers, share.validators());
        Ok(response)
    }

    async fn share_to_read(&self, request: &Request) -> Result<(Share, Timestamp), Refusal> {
        let id = lease_id(&request.headers)?;
        let share = self.addressed_share(request).await?;
        let now = self.store.now();
        share
            .lease
            .admits(Access::Read, id, now)
            .map_err(|refusal| Refusal::leased(refusal, Leased::Container, &share.lease, now))?;
        Ok((share, now))
    }

    async fn change_share(
        &self,
        request: &Request,
        mut change: impl FnMut(&mut Share, &View<'_>),
    ) -> Result<Share, Refusal> {
        names::check_share(&request.container)?;
        snapshot_id::check_not_named(&request.query)?;
        let id = lease_id(&request.headers)?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let rule = |share: &mut Share, view: &View<'_>| {
            let admission = share
                .lease
                .admits(Access::Write, id, view.now)
                .map_err(|refusal| Refusal::leased(refusal, Leased::Container, &share.lease, view.now))?;
            let checked = conditions.evaluate_write(share.validators());
            checked.map_err(|refusal| Refusal::unmet(refusal, &conditions, Some(share.validators())))?;
            change(share, view);
            share.lease = admission.lease;
            share.touch(view.stamp, view.now);
            Ok(((), admission.valid_until))
        };
        let (share, ()) = self.shares.change(&request.account, &request.container, rule).await?;
        Ok(share)
    }
}

/// The share properties in a request.
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

/// Makes a response with the ETag and date of a share.
pub(crate) fn written(status: StatusCode, share: &Share) -> Response {
    let mut response = Response::empty(status);
    put_validators(&mut response.headers, share.validators());
    response
}

/// Checks the lease of a share or snapshot before its deletion. Returns until when the result holds.
pub(crate) fn admit_manage(
    share: &Share,
    id: Option<LeaseId>,
    now: Timestamp,
) -> Result<Option<Timestamp>, Refusal> {
    let admission = share.lease.admits(Access::Manage, id, now);
    let admission =
        admission.map_err(|refusal| Refusal::leased(refusal, Leased::Container, &share.lease, now))?;
    Ok(admission.valid_until)
}
