//! Queues: create, delete, metadata, access policies. The last writer wins; there are no conditions.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use lazuli_generations::{Created, Removal};
use lazuli_protocol::policy::SignedIdentifiers;
use lazuli_protocol::{ErrorCode, Metadata, Refusal, Request, Response, names};
use lazuli_service::read_refusal;
use lazuli_store::{Reads, SpaceId};
use parking_lot::Mutex;

use crate::record::Queue;
use crate::{QueueService, keys};

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

    /// Drops what is remembered about a space that no longer belongs to a queue.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.candidates.forget(space);
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

    /// Returns the number of messages. Expired messages count until they are removed. A small queue is walked
    /// first to remove them.
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
        let row = set.map_err(read_refusal)?.rows.into_iter().next().flatten();
        Ok(row.map_or(0, |row| u64::try_from(row.count()).unwrap_or(0)))
    }

    /// Set Queue Metadata.
    pub(crate) async fn set_queue_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        self.change(&request, |queue| queue.metadata = metadata.clone()).await
    }

    /// Get Queue ACL.
    pub(crate) async fn get_queue_acl(&self, request: Request) -> Result<Response, Refusal> {
        let queue = self.queue(&request).await?;
        Ok(Response::xml(queue.policies.to_xml()))
    }

    /// Set Queue ACL.
    pub(crate) async fn set_queue_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        let policies = SignedIdentifiers::parse(&request.read_document().await?)?;
        self.change(&request, |queue| queue.policies = policies.clone()).await
    }

    /// Returns the queue that a request addresses.
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
