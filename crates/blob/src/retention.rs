//! Set Blob Expiry, Set and Delete Blob Immutability Policy, Set Blob Legal Hold.

use http::StatusCode;
use lazuli_protocol::{ErrorCode, Headers, Refusal, Request, Response, date};
use lazuli_store::{Change, Decision, Mutation, Reads};

use crate::access::protection::ProtectingRequest;
use crate::access::target::PropertyChange;
use crate::model::{keys, record};
use crate::rules::precondition::{Preconditions, check_mutable, check_no_pending_copy, not_found};
use crate::rules::retention::{Expiry, HOLD, MODE, UNTIL, immutability, replace_policy, unmodified_since};
use crate::{BlobService, reply};

impl BlobService {
    /// Handles Set Blob Expiry.
    pub(crate) async fn set_blob_expiry(&self, request: Request) -> Result<Response, Refusal> {
        let expiry = Expiry::parse(&request.headers)?;
        let preconditions = Preconditions::of_lease_only(&request)?;
        let target = self.write_target(&request).await?;
        let changed = self.transact(&target.partition, Reads::key(keys::BASE), |view| {
            let blob = record::blob(view.row(&keys::BASE))?;
            let admission = preconditions.admit_write(blob.as_ref(), view.now)?;
            let mut blob = blob.ok_or_else(not_found)?;
            check_mutable(&blob, view.now)?;
            check_no_pending_copy(&blob)?;
            blob.expires = expiry.of(blob.created, view.now)?;
            blob.lease = admission.lease;
            blob.touch(view.stamp, view.now);
            let put = Mutation::Put(keys::BASE, blob.encode()?);
            Ok(Decision::Write(Change::of([put]).until(admission.valid_until), blob))
        });
        let mut response = Response::empty(StatusCode::OK);
        reply::validators(&mut response.headers, changed.await?.validators(), request.version);
        Ok(response)
    }

    /// Handles Set Blob Immutability Policy.
    pub(crate) async fn set_blob_immutability_policy(&self, request: Request) -> Result<Response, Refusal> {
        let asked = immutability(&request.headers, request.now)?;
        let asked = asked.ok_or_else(|| Refusal::missing_header(UNTIL))?;
        let unmodified = unmodified_since(&request.headers)?;
        let target = self.target(&request).await?;
        let protecting = ProtectingRequest::new(&request, target.partition.space);
        let amended = self.change_properties(&target, Some(&protecting), |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            unmodified.check_conditions(&blob)?;
            blob.immutability = Some(replace_policy(blob.immutability, asked)?);
            Ok(PropertyChange { blob, valid_until: None, answer: () })
        });
        amended.await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::put(&mut response.headers, UNTIL, date::rfc1123(asked.until));
        reply::put(&mut response.headers, MODE, asked.mode());
        Ok(response)
    }

    /// Handles Delete Blob Immutability Policy.
    pub(crate) async fn delete_blob_immutability_policy(
        &self,
        request: Request,
    ) -> Result<Response, Refusal> {
        let target = self.target(&request).await?;
        let amended = self.change_properties(&target, None, |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            if blob.immutability.is_some_and(|policy| policy.locked) {
                return Err(ErrorCode::ImmutabilityPolicyDeleteOnLockedPolicy.into());
            }
            blob.immutability = None;
            Ok(PropertyChange { blob, valid_until: None, answer: () })
        });
        amended.await?;
        Ok(Response::empty(StatusCode::OK))
    }

    /// Handles Set Blob Legal Hold.
    pub(crate) async fn set_blob_legal_hold(&self, request: Request) -> Result<Response, Refusal> {
        let hold = request.headers.flag(HOLD)?.ok_or_else(|| Refusal::missing_header(HOLD))?;
        let target = self.target(&request).await?;
        let protecting = ProtectingRequest::if_requested(&request, target.partition.space)?;
        let amended = self.change_properties(&target, protecting.as_ref(), |blob, _| {
            let mut blob = blob.ok_or_else(not_found)?;
            blob.legal_hold = Some(hold).into();
            Ok(PropertyChange { blob, valid_until: None, answer: () })
        });
        amended.await?;
        let mut response = Response::empty(StatusCode::OK);
        reply::put(&mut response.headers, HOLD, hold.to_string());
        Ok(response)
    }
}
