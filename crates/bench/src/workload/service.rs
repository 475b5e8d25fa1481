//! Workloads of operations on whole services: authenticated reads of a few hundred bytes.
//!
//! The workloads show the fixed cost of a request, because the operation itself does almost nothing.

use async_trait::async_trait;
use http::{Method, StatusCode};
use lazuli_protocol::ServiceKind;

use super::super::client::{Call, Client, OperationFailure};
use super::Workload;

/// A GET request of the service itself.
pub(super) struct ServiceGet {
    name: &'static str,
    service: ServiceKind,
    about: &'static str,
    query: &'static str,
}

/// Returns the workload of Get Blob, Queue, Table or File Service Properties.
pub(super) fn properties(name: &'static str, service: ServiceKind) -> ServiceGet {
    ServiceGet { name, service, about: "get service properties", query: "restype=service&comp=properties" }
}

/// Returns the workload of Get Account Information.
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

    async fn run_one(&self, client: &mut Client, _worker: usize, _i: u64) -> Result<(), OperationFailure> {
        client.send(Call::new(Method::GET, "", self.query)).await?.expect(StatusCode::OK)?;
        Ok(())
    }
}
