//! Lease Share. The lease protects a share or snapshot against changes and deletion, but not its files.

use lazuli_concurrency::lease::Applied;
use lazuli_protocol::lease::{Leased, fresh_lease_id, lease_action, lease_reply};
use lazuli_protocol::{Headers, Refusal, Request, Response, names};
use lazuli_service::reply::put_validators;

use crate::FileService;
use crate::rest::snapshot_id;

impl FileService {
    /// Handles Lease Share.
    pub(crate) async fn lease_share(&self, request: Request) -> Result<Response, Refusal> {
        names::check_share(&request.container)?;
        let action = lease_action(&request.headers, request.version, fresh_lease_id())?;
        let conditions = request.headers.conditions()?;
        conditions.check_write()?;
        let mut rule = |share: &mut crate::tree::record::Share, view: &lazuli_store::View<'_>| {
            let checked = conditions.evaluate_write(share.validators());
            checked.map_err(|refusal| Refusal::unmet(refusal, &conditions, Some(share.validators())))?;
            let applied = share.lease.apply(action, view.now);
            let applied: Applied = applied
                .map_err(|refusal| Refusal::leased(refusal, Leased::Container, &share.lease, view.now))?;
            share.lease = applied.lease;
            Ok((applied, applied.valid_until))
        };
        let (share, applied) = match snapshot_id::named(&request.query)? {
            Some(id) => self.change_snapshot(&request, id, &mut rule).await?,
            None => self.shares.change(&request.account, &request.container, &mut rule).await?,
        };
        let mut response = lease_reply(action, &applied);
        put_validators(&mut response.headers, share.validators());
        Ok(response)
    }
}
