//! Clear Messages.
//!
//! Clearing gives the queue a new space. So it is atomic, and its cost does not depend on the number of
//! messages. A put that runs at the same time is repeated in the new space.

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
