//! Set Blob Tier.

use http::StatusCode;
use lazuli_concurrency::Access;
use lazuli_protocol::{Refusal, Request, Response};

use crate::BlobService;
use crate::access::target::PropertyChange;
use crate::rules::precondition::{Preconditions, check_no_pending_copy, not_found};
use crate::rules::tier::{ACCESS_TIER, access_tier, check_tier, is_high_priority};

impl BlobService {
    /// Handles Set Blob Tier.
    pub(crate) async fn set_blob_tier(&self, request: Request) -> Result<Response, Refusal> {
        let tier = access_tier(&request)?;
        let tier = tier.ok_or_else(|| Refusal::missing_header(ACCESS_TIER))?;
        let quick = is_high_priority(&request)?;
        let preconditions = Preconditions::of_tags(&request)?;
        let target = self.target(&request).await?;
        let amended = self.change_properties(&target, None, |blob, now| {
            let valid_until = preconditions.admit_lease(blob.as_ref(), Access::Read, now)?.valid_until;
            let mut blob = blob.ok_or_else(not_found)?;
            preconditions.check_conditions(&blob)?;
            check_tier(blob.kind, tier, blob.content.len())?;
            check_no_pending_copy(&blob)?;
            blob.tier = blob.tier.at(now).set(tier, quick, now)?;
            let rehydrates = blob.tier.rehydration.is_some();
            Ok(PropertyChange { blob, valid_until, answer: rehydrates })
        });
        let rehydrates = amended.await?;
        Ok(Response::empty(if rehydrates { StatusCode::ACCEPTED } else { StatusCode::OK }))
    }
}
