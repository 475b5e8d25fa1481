//! Lease Container. The lease protects the container from delete and rename, and from nothing else.

use lazuli_protocol::lease::{Leased, fresh_lease_id, lease_action};
use lazuli_protocol::{Refusal, Request, Response};

use crate::BlobService;
use crate::lease::lease_reply;
use crate::rules::precondition::Preconditions;

impl BlobService {
    /// Handles Lease Container.
    pub(crate) async fn lease_container(&self, request: Request) -> Result<Response, Refusal> {
        let action = lease_action(&request.headers, request.version, fresh_lease_id())?;
        let conditions = Preconditions::of_write(&request)?.conditions;
        let changed = self.change_container(&request, |container, view| {
            let current = container.validators();
            let checked = conditions.evaluate_write(current);
            checked.map_err(|refusal| Refusal::unmet(refusal, &conditions, Some(current)))?;
            let applied = container.lease.apply(action, view.now);
            let applied = applied
                .map_err(|refusal| Refusal::leased(refusal, Leased::Container, &container.lease, view.now))?;
            container.lease = applied.lease;
            Ok((applied, applied.valid_until))
        });
        let (container, applied) = changed.await?;
        Ok(lease_reply(action, &applied, container.validators(), request.version))
    }
}
