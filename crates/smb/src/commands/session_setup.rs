//! Session Setup: who has an account's key is its user.

use std::sync::Arc;

use lazuli_concurrency::Span;
use lazuli_protocol::Account;

use super::negotiate::random;
use crate::call::{Answer, Call, Refused, Reply};
use crate::crypto::{KeyContext, Preauth, SessionKeys};
use crate::negotiated::Dialect;
use crate::ntlm::Accepted;
use crate::session::{Login, Session, Setup};
use crate::spnego::{Acceptor, Answered, Step};
use crate::throttle::Attempt;
use crate::wire::session_setup::{Request, response, session_flags};
use crate::wire::status::Status;

/// Session Setup: a leg of a login, or of logging in again.
pub(crate) async fn session_setup(call: &Call) -> Answer {
    let request = Request::parse(&call.message)?;
    if request.is_binding {
        // Sessions are of one connection.
        return Err(Status::REQUEST_NOT_ACCEPTED.into());
    }
    let session = match call.header.session_id {
        0 => begin(call)?,
        _ => call.session()?.clone(),
    };
    let answer = leg(call, &session, &request).await;
    if let Err(Refused { status, .. }) = &answer {
        tracing::debug!(peer = %call.connection.peer, ?status, "a login is refused");
        session.setup.lock().take();
        session.end(&call.server, false).await;
        call.connection.remove_session(&call.server, session.id);
    }
    answer
}

fn begin(call: &Call) -> Result<Arc<Session>, Status> {
    let session = Arc::new(Session::new(call.server.number(), &call.connection));
    call.connection.add_session(&call.server, session.clone())?;
    Ok(session)
}

async fn leg(call: &Call, session: &Arc<Session>, request: &Request<'_>) -> Answer {
    let (step, preauth) = step(call, session, request.token)?;
    match step {
        Step::Continue(token) => {
            let reply = Reply::new(response(0, &token)).with(Status::MORE_PROCESSING_REQUIRED);
            let hashing = session.clone();
            Ok(Reply {
                session: session.login().is_none().then(|| session.clone()),
                sees_response: Some(Box::new(move |bytes| {
                    if let Some(setup) = &mut *hashing.setup.lock() {
                        setup.preauth.add(bytes);
                    }
                })),
                ..reply
            })
        }
        Step::Answered(answered) => {
            let (account, accepted, token) = authenticate(call, &answered).await?;
            let flags = match session.login() {
                Some(login) => log_in_again(login, &account)?,
                None => log_in(call, session, request, &answered, account, &accepted, &preauth)?,
            };
            replace(call, session, request.previous).await;
            Ok(Reply { session: Some(session.clone()), ..Reply::new(response(flags, &token)) })
        }
    }
}

/// What comes of the client's token, and the hash over everything up to it.
fn step(call: &Call, session: &Session, token: &[u8]) -> Result<(Step, Preauth), Status> {
    let (nonce, now) = (random()?, call.server.clock.now());
    let mut place = session.setup.lock();
    let setup = place.get_or_insert_with(|| Setup {
        acceptor: Acceptor::default(),
        preauth: *call.connection.preauth.lock(),
    });
    setup.preauth.add(&call.message);
    let step = setup.acceptor.step(token, nonce, now).map_err(|_| Status::INVALID_PARAMETER)?;
    let preauth = setup.preauth;
    if matches!(step, Step::Answered(_)) {
        *place = None;
    }
    Ok((step, preauth))
}

/// Whose key the answer was made with. Wrong ones cost time.
async fn authenticate(call: &Call, answered: &Answered) -> Result<(Arc<Account>, Accepted, Vec<u8>), Status> {
    if answered.answer.is_anonymous() {
        return Err(Status::ACCESS_DENIED);
    }
    let name = answered.answer.user.to_lowercase();
    let attempt = Attempt::new(call.connection.peer.ip(), &name);
    sleep(call, call.server.throttle.wait(&attempt, call.server.clock.now())).await?;
    let account = call.server.accounts.get(&name).await.map_err(|error| {
        tracing::warn!(%error, "an account could not be read");
        Status::INSUFFICIENT_RESOURCES
    })?;
    let keys = account.iter().flat_map(|account| &account.keys);
    let accepted = keys.map(|key| answered.check(&key.to_base64())).find_map(|accepted| accepted);
    match (account, accepted) {
        (Some(account), Some((accepted, token))) => {
            call.server.throttle.succeeded(&attempt);
            match account.settings.disabled {
                true => Err(Status::ACCOUNT_DISABLED),
                false => Ok((account, accepted, token)),
            }
        }
        _ => {
            sleep(call, call.server.throttle.failed(&attempt, call.server.clock.now())).await?;
            Err(Status::LOGON_FAILURE)
        }
    }
}

async fn sleep(call: &Call, span: Span) -> Result<(), Status> {
    if span == Span::ZERO {
        return Ok(());
    }
    tokio::select! {
        () = tokio::time::sleep(span.into()) => Ok(()),
        () = call.cancelled.cancelled() => Err(Status::CANCELLED),
    }
}

/// Makes the keys of a session. The flags that the client is told.
fn log_in(
    call: &Call,
    session: &Session,
    request: &Request<'_>,
    answered: &Answered,
    account: Arc<Account>,
    accepted: &Accepted,
    preauth: &Preauth,
) -> Result<u16, Status> {
    let negotiated = call.connection.negotiated.get().ok_or(Status::INVALID_PARAMETER)?;
    let must_encrypt = call.server.must_encrypt(call.connection.peer);
    if must_encrypt && negotiated.cipher.is_none() {
        return Err(Status::ACCESS_DENIED);
    }
    let context = match negotiated.dialect {
        Dialect::Smb202 | Dialect::Smb210 => KeyContext::Smb2,
        Dialect::Smb300 | Dialect::Smb302 => KeyContext::Smb30,
        Dialect::Smb311 => KeyContext::Smb311(preauth),
    };
    let login = Login {
        account,
        client_name: answered.answer.workstation.clone(),
        keys: SessionKeys::derive(&accepted.key, context, negotiated.signing, negotiated.cipher),
        must_sign: request.must_sign || negotiated.must_sign(),
        must_encrypt,
    };
    if !session.log_in(login) {
        return Err(Status::REQUEST_NOT_ACCEPTED);
    }
    Ok(if must_encrypt { session_flags::ENCRYPT_DATA } else { 0 })
}

/// Logging in again changes nothing, and a session stays with its account.
fn log_in_again(login: &Login, account: &Account) -> Result<u16, Status> {
    match login.account.name == account.name && login.account.generation == account.generation {
        true => Ok(if login.must_encrypt { session_flags::ENCRYPT_DATA } else { 0 }),
        false => Err(Status::ACCESS_DENIED),
    }
}

/// The session that this one replaces ends as if its connection had been lost, if it is of the same account.
async fn replace(call: &Call, session: &Session, previous: u64) {
    if previous == 0 || previous == session.id {
        return;
    }
    let Some(replaced) = call.server.sessions.get(previous) else { return };
    let accounts = [session.login(), replaced.login()].map(|login| login.map(|login| &login.account.name));
    if accounts[0].is_none() || accounts[0] != accounts[1] {
        return;
    }
    replaced.end(&call.server, true).await;
    if let Some(connection) = replaced.connection.upgrade() {
        connection.remove_session(&call.server, previous);
    }
}
