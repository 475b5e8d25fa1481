//! Containers: create, delete, restore, properties, metadata, access policies.
//!
//! A container is a row that names a space, its generation; its blobs live in that space. Deleting removes the row and
//! closes the space, so it costs the same whatever the container holds, and the name is free at once: whoever creates
//! it again gets a new space and never sees the old one.

use http::StatusCode;
use lazuli_concurrency::Lease;
use lazuli_protocol::policy::{PublicAccess, SignedIdentifiers};
use lazuli_protocol::{Account, ErrorCode, Headers, Metadata, Refusal, Request, Response, names};
use lazuli_store::{Change, Decision, Mutation, Reads, SpaceHeader, transact};

use crate::record::Container;
use crate::{BlobService, keys, reply};

impl BlobService {
    /// The container of that name.
    pub(crate) async fn container(&self, account: &Account, name: &str) -> Result<Container, Refusal> {
        names::check_container(name)?;
        self.find_container(account, name).await?.ok_or_else(|| ErrorCode::ContainerNotFound.into())
    }

    /// The container of that name, if there is one.
    pub(crate) async fn find_container(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<Option<Container>, Refusal> {
        let set = self.store.read(&keys::container(account, name), &Reads::key(keys::CONTAINER)).await;
        let set = set.map_err(reply::unreadable)?;
        let row = set.rows.into_iter().next().flatten();
        Ok(row.map(|row| Container::decode(&row.value)).transpose()?)
    }

    /// Create Container.
    pub(crate) async fn create_container(&self, request: Request) -> Result<Response, Refusal> {
        names::check_container(&request.container)?;
        let public_access = public_access(&request)?;
        let metadata = Metadata::from_headers(&request.headers)?;
        let scope = request.headers.filled("x-ms-default-encryption-scope")?.map(str::to_owned);
        let deny = request.headers.flag("x-ms-deny-encryption-scope-override")?.unwrap_or(false);
        if self.find_container(&request.account, &request.container).await?.is_some() {
            return Err(ErrorCode::ContainerAlreadyExists.into());
        }
        // A space that nobody comes to name after a crash holds nothing and costs nothing.
        let space = self.store.new_space().await.map_err(reply::not_opened)?;
        let header = SpaceHeader { epoch: 0, open: true };
        self.store.set_space(space, None, header).await.map_err(reply::not_opened)?;
        let partition = keys::container(&request.account, &request.container);
        let created = transact(&*self.store, &self.gate, &partition, Reads::key(keys::CONTAINER), |view| {
            match view.row(&keys::CONTAINER) {
                Some(_) => Err(Refusal::new(ErrorCode::ContainerAlreadyExists)),
                None => {
                    let container = Container {
                        space,
                        modified: view.now,
                        etag: view.stamp.into(),
                        metadata: metadata.clone(),
                        public_access,
                        policies: SignedIdentifiers::default(),
                        lease: Lease::AVAILABLE,
                        default_encryption_scope: scope.clone(),
                        deny_encryption_scope_override: deny,
                        deleted: None,
                    };
                    let put = Mutation::Put(keys::CONTAINER, container.encode()?);
                    Ok(Decision::Write(Change::of([put]), container))
                }
            }
        });
        let container =
            created.await.map_err(|error| lazuli_account::refusal(error, crate::container_gone))?;
        let mut response = Response::empty(StatusCode::CREATED);
        reply::validators(&mut response.headers, container.validators(), request.version);
        Ok(response)
    }
}

/// What the request makes public, if the account allows that.
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
