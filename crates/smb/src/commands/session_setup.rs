//! Session Setup: who has an account's key is its user.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_protocol::{Account, Key};

use super::negotiate::random;
use crate::call::{Answer, Call, Refused, Reply};
use crate::crypto::{KeyContext, Preauth, SessionKeys, signing_key};
use crate::negotiated::{Dialect, Negotiated};
use crate::ntlm::Accepted;
use crate::session::{Login, Session};
use crate::spnego::{Answered, Step};
use crate::wire::header::flags;
use crate::wire::session_setup::{Request, response, session_flags};
use crate::wire::status::Status;

/// What a leg of a login is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aim {
    /// A new session.
    New,
    /// To log in again.
    Again,
    /// To use a session on this connection, too.
    Bind,
}

/// Whether a request is to use a session of another connection.
pub(super) fn is_binding(call: &Call) -> bool {
    Request::parse(&call.message).is_ok_and(|request| request.is_binding)
}

/// Session Setup: a leg of a login. It may wait long, and keeps nothing of its frame meanwhile.
pub(crate) async fn session_setup(call: &mut Call) -> Answer {
    if !call.is_last {
        // The requests behind it would keep the frame.
        return Err(Status::INVALID_PARAMETER.into());
    }
    let request = Request::parse(&call.message)?;
    let (session, aim) = match (call.header.session_id, request.is_binding) {
        (0, true) => return Err(Status::INVALID_PARAMETER.into()),
        (0, false) => (begin(call)?, Aim::New),
        (_, true) => (check_binding(call)?, Aim::Bind),
        (_, false) => {
            let session = call.session()?.clone();
            let aim = if session.login().is_some() { Aim::Again } else { Aim::New };
            (session, aim)
        }
    };
    let wishes = Wishes { must_sign: request.must_sign, previous: request.previous };
    let stepped = step(call, &session, request.token, aim);
    call.message = Bytes::new();
    let answer = match stepped {
        Ok(stepped) => leg(call, &session, wishes, aim, stepped).await,
        Err(status) => Err(status.into()),
    };
    if let Err(Refused { status, .. }) = &answer {
        tracing::debug!(peer = %call.connection.peer, ?status, ?aim, "a login is refused");
        call.connection.end_setup(&session);
        if aim != Aim::Bind {
            session.end(&call.server, false).await;
        }
    }
    answer
}

fn begin(call: &Call) -> Result<Arc<Session>, Status> {
    let place = call.server.session_places.take().ok_or(Status::INSUFFICIENT_RESOURCES)?;
    let session = Arc::new(Session::new(call.server.number(), &call.connection, place));
    call.connection.add_session(&call.server, session.clone())?;
    Ok(session)
}

/// The session that is to be used here, too, if it can be. The request was signed with its key, which was checked.
fn check_binding(call: &Call) -> Result<Arc<Session>, Status> {
    let session = call.session()?;
    let login = session.login().ok_or(Status::USER_SESSION_DELETED)?;
    if call.header.flags & flags::SIGNED == 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    login.negotiated.may_bind(negotiated(call)?)?;
    if session.is_anonymous() {
        return Err(Status::NOT_SUPPORTED);
    }
    Ok(session.clone())
}

fn negotiated(call: &Call) -> Result<&Negotiated, Status> {
    call.connection.negotiated.get().ok_or(Status::INVALID_PARAMETER)
}

/// What a request asks for beside its token.
#[derive(Clone, Copy, Debug)]
struct Wishes {
    must_sign: bool,
    previous: u64,
}

async fn leg(
    call: &Call,
    session: &Arc<Session>,
    wishes: Wishes,
    aim: Aim,
    (step, preauth): (Step, Preauth),
) -> Answer {
    let answered = match step {
        Step::Continue(token) => return Ok(go_on(call, session, aim, &token)),
        Step::Answered(answered) => answered,
    };
    if aim == Aim::Again && answered.answer.is_anonymous() {
        session.log_in_again(None);
        return Ok(Reply {
            session: Some(session.clone()),
            ..Reply::new(response(session_flags::IS_NULL, &answered.anonymous_token()))
        });
    }
    let Proven { account, key, accepted, token } = authenticate(call, &answered).await?;
    let flags = match aim {
        Aim::New => log_in(call, session, wishes.must_sign, &answered, (account, key), &accepted, &preauth)?,
        Aim::Again => {
            let flags = check_same(session, &account)?;
            session.log_in_again(Some(key));
            flags
        }
        Aim::Bind => {
            let flags = check_same(session, &account)?;
            let negotiated = negotiated(call)?;
            let signing = signing_key(&accepted.key, key_context(negotiated, &preauth), negotiated.signing);
            call.connection.join_session(session, Arc::new(signing))?;
            flags
        }
    };
    call.connection.welcome();
    if aim == Aim::New {
        replace(call, session, wishes.previous).await;
    }
    Ok(Reply { session: Some(session.clone()), ..Reply::new(response(flags, &token)) })
}

/// The answer to a leg that is not the last. Its hash goes into the keys.
fn go_on(call: &Call, session: &Arc<Session>, aim: Aim, token: &[u8]) -> Reply {
    let (hashing, number) = (session.clone(), call.connection.number);
    Reply {
        session: (aim == Aim::New).then(|| session.clone()),
        sees_response: Some(Box::new(move |bytes| {
            if let Some(setup) = hashing.setups.lock().get_mut(&number) {
                setup.preauth.add(bytes);
            }
        })),
        ..Reply::new(response(0, token)).with(Status::MORE_PROCESSING_REQUIRED)
    }
}

/// What comes of the client's token, and the hash over everything up to it.
fn step(call: &Call, session: &Session, token: &[u8], aim: Aim) -> Result<(Step, Preauth), Status> {
    let (nonce, now) = (random()?, call.server.clock.now());
    match aim {
        Aim::Bind => call.connection.begin_bind(session)?,
        Aim::New | Aim::Again => session.begin_setup(&call.connection),
    }
    let mut setups = session.setups.lock();
    // Forgotten meanwhile: too many others are being bound to the session.
    let setup = setups.get_mut(&call.connection.number).ok_or(Status::INSUFFICIENT_RESOURCES)?;
    setup.preauth.add(&call.message);
    let step = setup.acceptor.step(token, nonce, now).map_err(|_| Status::INVALID_PARAMETER)?;
    let preauth = setup.preauth;
    drop(setups);
    if matches!(step, Step::Answered(_)) {
        call.connection.end_setup(session);
    }
    Ok((step, preauth))
}

/// Whose key an answer was made with, and what comes of it.
struct Proven {
    account: Arc<Account>,
    key: Key,
    accepted: Accepted,
    token: Vec<u8>,
}

/// Whose key the answer was made with. Wrong ones cost time.
async fn authenticate(call: &Call, answered: &Answered) -> Result<Proven, Status> {
    let name = answered.answer.user.to_lowercase();
    let peer = call.connection.peer;
    let refused = |status| {
        call.server.failed_logins.record(peer, &name, status, call.server.clock.now());
        status
    };
    if answered.answer.is_anonymous() {
        return Err(refused(Status::ACCESS_DENIED));
    }
    let attempt = call.server.throttle.attempt(peer.ip(), &name);
    sleep(call, call.server.throttle.wait(&attempt, call.server.clock.now())).await?;
    let account = call.server.accounts.get(&name).await.map_err(|error| {
        tracing::warn!(%error, "an account could not be read");
        Status::INSUFFICIENT_RESOURCES
    })?;
    let keys = account.iter().flat_map(|account| &account.keys);
    let mut accepted = keys.filter_map(|key| Some((key.clone(), answered.check(&key.to_base64())?)));
    match (&account, accepted.next()) {
        (Some(account), Some((key, (accepted, token)))) => {
            call.server.throttle.succeeded(&attempt);
            match account.settings.disabled {
                true => Err(refused(Status::ACCOUNT_DISABLED)),
                false => Ok(Proven { account: account.clone(), key, accepted, token }),
            }
        }
        _ => {
            // Before the client can hang up.
            refused(Status::LOGON_FAILURE);
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
    must_sign: bool,
    answered: &Answered,
    (account, key): (Arc<Account>, Key),
    accepted: &Accepted,
    preauth: &Preauth,
) -> Result<u16, Status> {
    let negotiated = negotiated(call)?;
    let must_encrypt = call.server.must_encrypt(call.connection.peer);
    if must_encrypt && negotiated.cipher.is_none() {
        return Err(Status::ACCESS_DENIED);
    }
    let context = key_context(negotiated, preauth);
    let login = Login {
        account,
        client_name: answered.answer.workstation.clone(),
        keys: SessionKeys::derive(&accepted.key, context, negotiated.signing, negotiated.cipher),
        negotiated: negotiated.clone(),
        must_sign: must_sign || negotiated.must_sign(),
        must_encrypt,
    };
    if !session.log_in(login, key) {
        return Err(Status::REQUEST_NOT_ACCEPTED);
    }
    Ok(if must_encrypt { session_flags::ENCRYPT_DATA } else { 0 })
}

const fn key_context<'a>(negotiated: &Negotiated, preauth: &'a Preauth) -> KeyContext<'a> {
    match negotiated.dialect {
        Dialect::Smb202 | Dialect::Smb210 => KeyContext::Smb2,
        Dialect::Smb300 | Dialect::Smb302 => KeyContext::Smb30,
        Dialect::Smb311 => KeyContext::Smb311(preauth),
    }
}

/// A session stays with its account. The flags that the client is told.
fn check_same(session: &Session, account: &Account) -> Result<u16, Status> {
    let login = session.login().ok_or(Status::USER_SESSION_DELETED)?;
    match login.account.name == account.name && login.account.generation == account.generation {
        true => Ok(if login.must_encrypt { session_flags::ENCRYPT_DATA } else { 0 }),
        false => Err(Status::ACCESS_DENIED),
    }
}

/// The session that this one replaces ends as if its connection had been lost, if it is of the same account. When the client
/// is answered, nothing of it is in the way any more.
async fn replace(call: &Call, session: &Session, previous: u64) {
    if previous == 0 || previous == session.id {
        return;
    }
    let Some(replaced) = call.server.sessions.get_even_ending(previous) else { return };
    let accounts = [session.login(), replaced.login()].map(|login| login.map(|login| &login.account.name));
    if accounts[0].is_some() && accounts[0] == accounts[1] {
        replaced.end(&call.server, true).await;
    }
}
