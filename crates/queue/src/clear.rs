//! Clear Messages.
//!
//! The queue is given a new space, so clearing takes effect in one moment and costs the same whatever is in it. Messages
//! that are being put at that moment are put again, into the new one.

use http::StatusCode;
use lazuli_protocol::{Refusal, Request, Response, names};

use crate::QueueService;

impl QueueService {
    /// Clear Messages.
    pub(crate) async fn clear_messages(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let renewed =
            self.queues.renew(request.account, &request.container, |queue, space| queue.space = space);
        self.forget(renewed.await?);
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }
}
