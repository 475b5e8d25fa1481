//! Lease File. File leases have three states and no duration.
//!
//! While a file is leased, SMB clients can open it only for reading, so it is leased only while no open
//! writes. The other actions concern the lease alone. None changes ETag or date.

use http::StatusCode;
use lazuli_concurrency::{FileLease, FileLeaseAction, FileUse, LeaseId, LeaseState};
use lazuli_protocol::lease::{Leased, file_lease_action};
use lazuli_protocol::{ErrorCode, Refusal, Request, Response};
use lazuli_service::reply::{put, put_validators};

use crate::FileService;
use crate::tree::rules::{check_no_pending_copy, existing_file, with_lease};

impl FileService {
    /// Handles Lease File.
    pub(crate) async fn lease_file(&self, request: Request) -> Result<Response, Refusal> {
        let generated = LeaseId::from_bytes(uuid::Uuid::new_v4().into_bytes());
        let action = file_lease_action(&request.headers, generated)?;
        let target = self.target(&request).await?;
        let spot = self.spot(target).await?.ok_or(ErrorCode::ResourceTypeMismatch)?;
        let mut admission = self.admission(&spot);
        let node = loop {
            let leased = self.write_row(&spot, None, |_, old| {
                let node = existing_file(old)?;
                let file = spot.file(node.id);
                admission.check(file)?;
                check_no_pending_copy(&node)?;
                let lease = node.file.as_ref().map_or(FileLease::AVAILABLE, |file| file.lease);
                let applied = lease.apply(action).map_err(|refusal| Refusal::lease(refusal, Leased::File))?;
                let is_new = lease.state() != LeaseState::Leased && applied.state() == LeaseState::Leased;
                if is_new {
                    admission.admit(file, FileUse::Lease)?;
                }
                Ok(with_lease(node, applied))
            });
            let leased = leased.await;
            if leased.is_ok() || !self.flush_or_wait(&mut admission).await {
                break leased?;
            }
        };
        admission.done();
        let (status, shows_id) = match action {
            FileLeaseAction::Acquire { .. } => (StatusCode::CREATED, true),
            FileLeaseAction::Change { .. } => (StatusCode::OK, true),
            FileLeaseAction::Release { .. } => (StatusCode::OK, false),
            FileLeaseAction::Break => (StatusCode::ACCEPTED, false),
        };
        let mut response = Response::empty(status);
        put_validators(&mut response.headers, node.validators());
        let id = node.file.as_ref().and_then(|file| file.lease.id());
        if let Some(id) = id.filter(|_| shows_id) {
            put(&mut response.headers, "x-ms-lease-id", id.to_string());
        }
        if action == FileLeaseAction::Break {
            put(&mut response.headers, "x-ms-lease-time", "0");
        }
        Ok(response)
    }
}
