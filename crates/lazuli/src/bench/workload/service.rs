//! Operations on a service as a whole, which every service has: signed reads of a few hundred bytes. They show what the
//! way through a server costs, with authentication and with next to nothing behind it.

use async_trait::async_trait;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, Failure};
use super::Workload;

/// A GET of the service itself.
pub(super) struct ServiceGet {
    name: &'static str,
    service: ServiceKind,
    about: &'static str,
    query: &'static str,
}

/// Get Blob, Queue, Table or File Service Properties.
pub(super) fn properties(name: &'static str, service: ServiceKind) -> ServiceGet {
    ServiceGet { name, service, about: "get service properties", query: "restype=service&comp=properties" }
}

/// Get Account Information.
pub(super) fn account_info() -> ServiceGet {
    let (about, query) = ("get account information", "restype=account&comp=properties");
    ServiceGet { name: "account-info", service: ServiceKind::Blob, about, query }
}

#[async_trait]
impl Workload for ServiceGet {
    fn name(&self) -> &'static str {
        self.name
    }

    fn service(&self) -> ServiceKind {
        self.service
    }

    fn about(&self) -> String {
        self.about.into()
    }

    async fn run_one(&self, client: &mut Client, _worker: usize, _i: u64) -> Result<(), Failure> {
        client.send(Call::new(Method::GET, "", self.query)).await?.expect(StatusCode::OK)?;
        Ok(())
    }
}
