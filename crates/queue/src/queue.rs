//! Queues: create, delete, metadata, access policies. The last writer wins; there are no conditions.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use lazuli_generations::{Created, Removal, unreadable};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal, Request, Response, names};
use lazuli_store::{Reads, SpaceId};
use parking_lot::Mutex;

use crate::record::Queue;
use crate::{QueueService, XML, keys};

const MESSAGES_COUNT: HeaderName = HeaderName::from_static("x-ms-approximate-messages-count");

impl QueueService {
    /// Create Queue.
    pub(crate) async fn create_queue(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let wanted = metadata.clone();
        let created = self.queues.create(&request.account, &request.container, move |space, _| Queue {
            space,
            metadata: wanted.clone(),
            policies: SignedIdentifiers::default(),
        });
        match created.await? {
            Created::New(_) => Ok(Response::empty(StatusCode::CREATED)),
            Created::Existing(queue) if queue.metadata == metadata => {
                Ok(Response::empty(StatusCode::NO_CONTENT))
            }
            Created::Existing(_) => Err(ErrorCode::QueueAlreadyExists.into()),
        }
    }

    /// Delete Queue.
    pub(crate) async fn delete_queue(&self, request: Request) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let space = Arc::new(Mutex::new(None));
        let removed = self.queues.remove(request.account, &request.container, {
            let space = space.clone();
            move |queue, _| {
                *space.lock() = Some(queue.space);
                Ok(Removal::default())
            }
        });
        removed.await?;
        if let Some(space) = space.lock().take() {
            self.forget(space);
        }
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }

    /// Nothing will be in that space any more.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.lines.forget(space);
        self.expiry.forget(space);
    }

    /// Get Queue Metadata.
    pub(crate) async fn get_queue_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let queue = self.queue(&request).await?;
        let mut response = Response::empty(StatusCode::OK);
        queue.metadata.write_headers(&mut response.headers);
        let count = self.count(queue.space).await?;
        response.headers.insert(MESSAGES_COUNT, HeaderValue::from(count));
        Ok(response)
    }

    /// How many messages there are. Those that have expired are counted until somebody has removed them, which is done
    /// here if it is little.
    async fn count(&self, space: SpaceId) -> Result<u64, Refusal> {
        let count = self.stored_count(space).await?;
        if self.expire_before_counting(space, count).await? {
            self.stored_count(space).await
        } else {
            Ok(count)
        }
    }

    async fn stored_count(&self, space: SpaceId) -> Result<u64, Refusal> {
        let set = self.store.read(&keys::messages(space), &Reads::key(keys::COUNT)).await;
        let row = set.map_err(unreadable)?.rows.into_iter().next().flatten();
        let count = row.and_then(|row| row.value.first_chunk().map(|bytes| i64::from_le_bytes(*bytes)));
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Set Queue Metadata.
    pub(crate) async fn set_queue_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        self.change(&request, |queue| queue.metadata = metadata.clone()).await
    }

    /// Get Queue ACL.
    pub(crate) async fn get_queue_acl(&self, request: Request) -> Result<Response, Refusal> {
        let queue = self.queue(&request).await?;
        Ok(Response::with_body(StatusCode::OK, XML, queue.policies.to_xml()))
    }

    /// Set Queue ACL.
    pub(crate) async fn set_queue_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        let limit = request.operation.row().body.limit().unwrap_or_default();
        let policies = SignedIdentifiers::parse(&request.read_body(limit).await?)?;
        self.change(&request, |queue| queue.policies = policies.clone()).await
    }

    /// The queue that a request addresses.
    async fn queue(&self, request: &Request) -> Result<Queue, Refusal> {
        names::check_queue(&request.container)?;
        self.queues.get(&request.account, &request.container).await
    }

    /// Changes the queue that a request addresses.
    async fn change(
        &self,
        request: &Request,
        mut change: impl FnMut(&mut Queue),
    ) -> Result<Response, Refusal> {
        names::check_queue(&request.container)?;
        let changed = self.queues.change(&request.account, &request.container, |queue, _| {
            change(queue);
            Ok(((), None))
        });
        changed.await?;
        Ok(Response::empty(StatusCode::NO_CONTENT))
    }
}
