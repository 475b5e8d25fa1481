//! Create Container, and the properties, metadata and access policies of containers. Lease Container is in
//! [`lease`]. Deleting, restoring and renaming, which move the container's row, are in [`lifecycle`].
//!
//! A container is a row that names a space, see [`lazuli_generations`]. The container's blobs are in that
//! space.

mod import;
mod lease;
pub(crate) mod lifecycle;

use http::{HeaderMap, StatusCode};
use lazuli_concurrency::{Access, Lease, Stamp, Timestamp};
use lazuli_generations::Created;
use lazuli_protocol::policy::{PublicAccess, SignedIdentifiers};
use lazuli_protocol::{ErrorCode, Headers, Metadata, Refusal, Request, Response, Version, names};
use lazuli_store::View;

use crate::content::encryption::{self, ACCOUNT_KEY_SCOPE};
use crate::model::container::Container;
use crate::rules::precondition::{Preconditions, admit_container_read};
use crate::{BlobService, reply};

/// Containers that clients cannot create.
const SYSTEM_CONTAINERS: [&str; 2] = ["$logs", "$blobchangefeed"];

/// Returns whether only the service itself can create a container of this name.
pub(crate) fn is_system(name: &str) -> bool {
    SYSTEM_CONTAINERS.contains(&name)
}

impl BlobService {
    /// Handles Create Container.
    pub(crate) async fn create_container(&self, request: Request) -> Result<Response, Refusal> {
        check_new_name(&request.container)?;
        let public_access = public_access(&request)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let (scope, deny) = encryption::container_default(&request)?;
        let created =
            self.containers.create(&request.account, &request.container, move |space, view| Container {
                space,
                modified: view.now,
                etag: view.stamp.into(),
                metadata: metadata.clone(),
                public_access,
                policies: SignedIdentifiers::default(),
                lease: Lease::AVAILABLE,
                default_encryption_scope: scope.clone(),
                deny_encryption_scope_override: deny,
                protects: false,
                deleted: None,
            });
        match created.await? {
            Created::New(container) => Ok(container_reply(StatusCode::CREATED, &container, request.version)),
            Created::Existing(_) => Err(ErrorCode::ContainerAlreadyExists.into()),
        }
    }

    /// Handles Get Container Properties.
    pub(crate) async fn get_container_properties(&self, request: Request) -> Result<Response, Refusal> {
        let (container, now) = self.container_to_read(&request).await?;
        let mut response = container_reply(StatusCode::OK, &container, request.version);
        let headers = &mut response.headers;
        container.metadata.write_headers(headers);
        properties(headers, &container, &request, now);
        Ok(response)
    }

    /// Handles Get Container Metadata.
    pub(crate) async fn get_container_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let (container, _) = self.container_to_read(&request).await?;
        let mut response = container_reply(StatusCode::OK, &container, request.version);
        container.metadata.write_headers(&mut response.headers);
        Ok(response)
    }

    /// Handles Set Container Metadata.
    pub(crate) async fn set_container_metadata(&self, request: Request) -> Result<Response, Refusal> {
        let metadata = Metadata::from_headers(&request.headers)?;
        let preconditions = Preconditions::of_write(&request)?;
        let changed = self.change_container(&request, |container, view| {
            let until = preconditions.admit_container(container, Access::Read, view.now)?;
            container.metadata = metadata.clone();
            container.touch(view.stamp, view.now);
            Ok(((), until))
        });
        let (container, ()) = changed.await?;
        Ok(container_reply(StatusCode::OK, &container, request.version))
    }

    /// Handles Get Container ACL.
    pub(crate) async fn get_container_acl(&self, request: Request) -> Result<Response, Refusal> {
        let (container, _) = self.container_to_read(&request).await?;
        let mut response = Response::xml(container.policies.to_xml());
        let headers = &mut response.headers;
        reply::validators(headers, container.validators(), request.version);
        reply::put_optional(headers, "x-ms-blob-public-access", container.public_access.name());
        Ok(response)
    }

    /// Handles Set Container ACL.
    pub(crate) async fn set_container_acl(&self, mut request: Request) -> Result<Response, Refusal> {
        names::check_container(&request.container)?;
        let public_access = public_access(&request)?;
        let preconditions = Preconditions::of_write(&request)?;
        let policies = SignedIdentifiers::parse(&request.read_document().await?)?;
        let changed = self.change_container(&request, |container, view| {
            let until = preconditions.admit_container(container, Access::Read, view.now)?;
            container.policies = policies.clone();
            container.public_access = public_access;
            container.touch(view.stamp, view.now);
            Ok(((), until))
        });
        let (container, ()) = changed.await?;
        Ok(container_reply(StatusCode::OK, &container, request.version))
    }

    /// Returns the container that a read addresses, if the lease id is right, and the time of the read.
    async fn container_to_read(&self, request: &Request) -> Result<(Container, Timestamp), Refusal> {
        let id = lazuli_protocol::lease::lease_id(&request.headers)?;
        let container = self.container(&request.account, &request.container).await?;
        let now = self.store.now();
        admit_container_read(&container, id, now)?;
        Ok((container, now))
    }

    /// Changes the container that a request addresses. The rule may return the time until which its decision
    /// holds.
    async fn change_container<T>(
        &self,
        request: &Request,
        rule: impl FnMut(&mut Container, &View<'_>) -> Result<(T, Option<Timestamp>), Refusal>,
    ) -> Result<(Container, T), Refusal> {
        names::check_container(&request.container)?;
        self.containers.change(&request.account, &request.container, rule).await
    }
}

/// Refuses a name that no new container can have.
fn check_new_name(name: &str) -> Result<(), Refusal> {
    names::check_container(name)?;
    if is_system(name) { Err(ErrorCode::InvalidResourceName.into()) } else { Ok(()) }
}

impl Container {
    /// Sets a new `ETag` and `Last-Modified`.
    fn touch(&mut self, stamp: Stamp, now: Timestamp) {
        self.etag = stamp.into();
        self.modified = now;
    }
}

/// Returns a reply with the `ETag` and `Last-Modified` of the container.
fn container_reply(status: StatusCode, container: &Container, version: Version) -> Response {
    let mut response = Response::empty(status);
    reply::validators(&mut response.headers, container.validators(), version);
    response
}

/// Writes the headers of Get Container Properties, except `ETag`, `Last-Modified` and metadata.
fn properties(headers: &mut HeaderMap, container: &Container, request: &Request, now: Timestamp) {
    let version = request.version;
    reply::lease(headers, &container.lease, now);
    if version.at_least(2016, 5, 31) {
        reply::put_optional(headers, "x-ms-blob-public-access", container.public_access.name());
    }
    if version.at_least(2017, 11, 9) {
        reply::put(headers, "x-ms-has-immutability-policy", "false");
        reply::put(headers, "x-ms-has-legal-hold", "false");
    }
    if version.at_least(2019, 2, 2) {
        let scope = container.default_encryption_scope.as_deref().unwrap_or(ACCOUNT_KEY_SCOPE);
        reply::put(headers, "x-ms-default-encryption-scope", scope);
        let deny = container.deny_encryption_scope_override.to_string();
        reply::put(headers, "x-ms-deny-encryption-scope-override", deny);
    }
    if version.at_least(2020, 6, 12) {
        let immutable = request.account.settings.has_version_immutability(&request.container);
        reply::put(headers, "x-ms-immutable-storage-with-versioning-enabled", immutable.to_string());
    }
}

/// Returns the public access that a request sets, if the account allows it.
fn public_access(request: &Request) -> Result<PublicAccess, Refusal> {
    let Some(value) = request.headers.filled("x-ms-blob-public-access")? else {
        return Ok(PublicAccess::None);
    };
    let access = PublicAccess::parse(value)?;
    if request.account.settings.public_access_allowed {
        Ok(access)
    } else {
        Err(ErrorCode::PublicAccessNotPermitted.into())
    }
}
