//! The server into which data is imported.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use lazuli_client::client::{Call, Client, OperationFailure, Reply, TargetAccount};
use lazuli_protocol::ServiceKind;

/// How often a request is sent before the import gives up.
const ATTEMPTS: u32 = 8;
/// Wait before the second attempt. It doubles with each attempt.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The accounts of the server by name.
#[derive(Clone, Default)]
pub struct Destination(pub BTreeMap<String, TargetAccount>);

/// Clients of one worker, one for each account and service, each with its own connection.
pub struct Connections {
    destination: Destination,
    max_body: Option<usize>,
    clients: BTreeMap<(String, ServiceKind), Client>,
}

impl Connections {
    /// Returns connections that are opened when they are needed.
    pub fn new(destination: &Destination) -> Self {
        Self { destination: destination.clone(), max_body: None, clients: BTreeMap::new() }
    }

    /// Keeps the bodies of answers whole, and fails if a body is longer than the limit.
    #[must_use]
    pub fn with_max_body(mut self, limit: usize) -> Self {
        self.max_body = Some(limit);
        self
    }

    /// Sends a request until the server answers it, and expects one of the statuses.
    ///
    /// If the connection breaks before the answer, a repeated request may find its own effect. Most requests
    /// can be sent twice; a message or a snapshot may then exist twice.
    pub async fn send(
        &mut self,
        account: &str,
        service: ServiceKind,
        call: &Call,
        expected: &[StatusCode],
    ) -> Result<Reply, OperationFailure> {
        let client = self.client(account, service)?;
        let mut wait = FIRST_WAIT;
        for attempt in 1.. {
            let failure = match client.send(call.clone()).await {
                Ok(reply) if expected.contains(&reply.status) => return Ok(reply),
                Ok(reply) => match reply.expect(StatusCode::OK) {
                    Ok(reply) => {
                        OperationFailure::Refused { status: reply.status, code: "unexpected".into() }
                    }
                    Err(refused) => refused,
                },
                Err(failure) => failure,
            };
            if attempt == ATTEMPTS || !may_repeat(&failure) {
                return Err(failure);
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Err(OperationFailure::TimedOut)
    }

    /// Returns the URL of a service of an account.
    pub(crate) fn endpoint(
        &mut self,
        account: &str,
        service: ServiceKind,
    ) -> Result<String, OperationFailure> {
        Ok(self.client(account, service)?.endpoint())
    }

    fn client(&mut self, account: &str, service: ServiceKind) -> Result<&mut Client, OperationFailure> {
        let key = (account.to_owned(), service);
        let client = match self.clients.remove(&key) {
            Some(client) => client,
            None => {
                let target = self.destination.0.get(account);
                let client = target.and_then(|target| Client::new(target, service));
                let client = client
                    .ok_or_else(|| OperationFailure::Request(format!("there is no account {account}")))?;
                match self.max_body {
                    Some(limit) => client.with_max_body(limit),
                    None => client,
                }
            }
        };
        Ok(self.clients.entry(key).or_insert(client))
    }
}

/// Whether the server did not answer, or asked to try again.
fn may_repeat(failure: &OperationFailure) -> bool {
    match failure {
        OperationFailure::Connection(_) | OperationFailure::TimedOut => true,
        OperationFailure::Refused { status, .. } => status.is_server_error(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unanswered_requests_and_server_errors_are_repeated() {
        let refused = |status| OperationFailure::Refused { status, code: String::new() };
        assert!(may_repeat(&OperationFailure::TimedOut));
        assert!(may_repeat(&refused(StatusCode::SERVICE_UNAVAILABLE)));
        assert!(!may_repeat(&refused(StatusCode::CONFLICT)));
        assert!(!may_repeat(&OperationFailure::Request("no account".into())));
    }
}
