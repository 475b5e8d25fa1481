//! SESSION_SETUP: clients log in with an account name and one of the account's keys.

use std::sync::Arc;

use bytes::Bytes;
use lazuli_concurrency::Span;
use lazuli_protocol::{Account, Key};

use super::negotiate::random;
use crate::bind_responses::{BindRequest, ChallengeSeed, RecordedBind};
use crate::call::{Call, CommandError, CommandReply, CommandResult};
use crate::crypto::{KeyContext, Preauth, SessionKeys, derive_signing_key};
use crate::negotiated::{Dialect, Negotiated};
use crate::ntlm::AcceptedLogin;
use crate::session::{Login, Session};
use crate::spnego::{AcceptStep, LoginProof};
use crate::wire::header::flags;
use crate::wire::session_setup::{SessionSetupRequest, response, session_flags};
use crate::wire::status::Status;

/// The purpose of a SESSION_SETUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SetupKind {
    /// Sets up a new session.
    New,
    /// Reauthenticates an existing session.
    Reauthenticate,
    /// Binds a session of another connection to this one.
    Bind,
}

/// Returns whether a request binds a session of another connection.
pub(super) fn is_binding(call: &Call) -> bool {
    SessionSetupRequest::parse(&call.message).is_ok_and(|request| request.is_binding)
}

/// Executes SESSION_SETUP. May wait long, and keeps nothing of its frame in memory meanwhile.
pub(crate) async fn session_setup(call: &mut Call) -> CommandResult {
    if !call.is_last {
        // The requests after it would keep the frame in memory.
        return Err(Status::INVALID_PARAMETER.into());
    }
    let request = SessionSetupRequest::parse(&call.message)?;
    let (session, kind) = match (call.header.session_id, request.is_binding) {
        (0, true) => return Err(Status::INVALID_PARAMETER.into()),
        (0, false) => (begin(call)?, SetupKind::New),
        (_, true) => (check_binding(call)?, SetupKind::Bind),
        (_, false) => {
            let session = call.session()?.clone();
            let kind = if session.login().is_some() { SetupKind::Reauthenticate } else { SetupKind::New };
            (session, kind)
        }
    };
    let options = SetupOptions { must_sign: request.must_sign, previous: request.previous };
    let processed = process_token(call, &session, request.token, kind);
    call.message = Bytes::new();
    let answer = match processed {
        Ok(processed) => finish_setup(call, &session, options, kind, processed).await,
        Err(status) => Err(status.into()),
    };
    if let Err(CommandError { status, .. }) = &answer {
        tracing::debug!(peer = %call.connection.peer, ?status, ?kind, "refused an SMB session setup");
        call.connection.end_setup(&session);
        if kind != SetupKind::Bind {
            session.end(&call.server, false).await;
        }
    }
    answer
}

fn begin(call: &Call) -> Result<Arc<Session>, Status> {
    let permit = call.server.session_limit.acquire().ok_or(Status::INSUFFICIENT_RESOURCES)?;
    let session = Arc::new(Session::new(call.server.next_id(), &call.connection, permit));
    call.connection.add_session(&call.server, session.clone())?;
    Ok(session)
}

/// Returns the session to bind if it may be bound. The request's signature by the session's key was verified.
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

/// The parameters of a request besides its token.
#[derive(Clone, Copy, Debug)]
struct SetupOptions {
    must_sign: bool,
    previous: u64,
}

async fn finish_setup(
    call: &Call,
    session: &Arc<Session>,
    options: SetupOptions,
    kind: SetupKind,
    (step, preauth): (AcceptStep, Preauth),
) -> CommandResult {
    let proof = match step {
        AcceptStep::Continue(token) => return Ok(continue_setup(call, session, kind, &token)),
        AcceptStep::Authenticate(proof) => proof,
    };
    if kind == SetupKind::Reauthenticate && proof.message.is_anonymous() {
        session.set_reauthenticated(None);
        return Ok(CommandReply {
            session: Some(session.clone()),
            ..CommandReply::new(response(session_flags::IS_NULL, &proof.anonymous_token()))
        });
    }
    let Authenticated { account, key, accepted, token } = authenticate(call, &proof).await?;
    let flags = match kind {
        SetupKind::New => {
            create_login(call, session, options.must_sign, &proof, (account, key), &accepted, &preauth)?
        }
        SetupKind::Reauthenticate => {
            let flags = check_same_account(session, &account)?;
            session.set_reauthenticated(Some(key));
            flags
        }
        SetupKind::Bind => {
            let flags = check_same_account(session, &account)?;
            let negotiated = negotiated(call)?;
            let signing =
                derive_signing_key(&accepted.key, key_context(negotiated, &preauth), negotiated.signing);
            call.connection.bind_session(session, Arc::new(signing))?;
            flags
        }
    };
    call.connection.mark_authenticated();
    if kind == SetupKind::New {
        end_previous_session(call, session, options.previous).await;
    }
    Ok(CommandReply { session: Some(session.clone()), ..CommandReply::new(response(flags, &token)) })
}

/// Returns the response to a token that is not the last one. The response goes into the preauthentication
/// hash, from which the keys are derived.
fn continue_setup(call: &Call, session: &Arc<Session>, kind: SetupKind, token: &[u8]) -> CommandReply {
    let (hashing, number) = (session.clone(), call.connection.number);
    CommandReply {
        session: (kind == SetupKind::New).then(|| session.clone()),
        on_packed: Some(Box::new(move |bytes| {
            if let Some(setup) = hashing.setups.lock().get_mut(&number) {
                setup.preauth.add(bytes);
            }
        })),
        ..CommandReply::new(response(0, token)).with_status(Status::MORE_PROCESSING_REQUIRED)
    }
}

/// Processes the client's token. Returns the result, and the preauthentication hash up to this message.
fn process_token(
    call: &Call,
    session: &Session,
    token: &[u8],
    kind: SetupKind,
) -> Result<(AcceptStep, Preauth), Status> {
    let fresh = ChallengeSeed { nonce: random()?, now: call.server.clock.now() };
    let RecordedBind { seed: ChallengeSeed { nonce, now }, is_repeated } =
        record(call, session, kind, fresh)?;
    match kind {
        SetupKind::Bind => call.connection.begin_bind(session)?,
        SetupKind::New | SetupKind::Reauthenticate => session.begin_setup(&call.connection),
    }
    let mut setups = session.setups.lock();
    // The setup was dropped because too many connections are being bound to the session.
    let setup = setups.get_mut(&call.connection.number).ok_or(Status::INSUFFICIENT_RESOURCES)?;
    setup.preauth.add(&call.message);
    let step = setup.acceptor.step(token, nonce, now).map_err(|_| Status::INVALID_PARAMETER)?;
    let preauth = setup.preauth;
    drop(setups);
    if matches!(step, AcceptStep::Authenticate(_)) {
        call.connection.end_setup(session);
        if is_repeated {
            // A replay: the challenge was repeated, so the recorded response to it would be accepted.
            return Err(Status::REQUEST_NOT_ACCEPTED);
        }
    }
    Ok((step, preauth))
}

/// Records a binding request, if the session's key must not sign twice under one message id.
fn record(
    call: &Call,
    session: &Session,
    kind: SetupKind,
    seed: ChallengeSeed,
) -> Result<RecordedBind, Status> {
    if kind != SetupKind::Bind || !session.needs_unique_message_ids() {
        return Ok(RecordedBind { seed, is_repeated: false });
    }
    session.bind_responses.record(BindRequest::of(&call.header), seed).ok_or(Status::INSUFFICIENT_RESOURCES)
}

/// The result of a successful authentication.
struct Authenticated {
    account: Arc<Account>,
    key: Key,
    accepted: AcceptedLogin,
    token: Vec<u8>,
}

/// Checks the client's response against all keys of the account. Failures are delayed.
async fn authenticate(call: &Call, proof: &LoginProof) -> Result<Authenticated, Status> {
    let name = proof.message.user.to_lowercase();
    let peer = call.connection.peer;
    let refused = |status| {
        call.server.failed_logins.record(peer, &name, status);
        status
    };
    if proof.message.is_anonymous() {
        return Err(refused(Status::ACCESS_DENIED));
    }
    let attempt = call.server.throttle.attempt(peer.ip(), &name);
    sleep(call, call.server.throttle.wait(&attempt, call.server.clock.now())).await?;
    let account = call.server.accounts.get(&name).await.map_err(|error| {
        tracing::warn!(%error, account = ?name, "could not read the account of an SMB login");
        Status::INSUFFICIENT_RESOURCES
    })?;
    let keys = account.iter().flat_map(|account| &account.keys);
    let mut accepted = keys.filter_map(|key| Some((key.clone(), proof.verify_password(&key.to_base64())?)));
    match (&account, accepted.next()) {
        (Some(account), Some((key, (accepted, token)))) => {
            call.server.throttle.record_success(&attempt);
            match account.settings.disabled {
                true => Err(refused(Status::ACCOUNT_DISABLED)),
                false => Ok(Authenticated { account: account.clone(), key, accepted, token }),
            }
        }
        _ => {
            // Record the failure before the delay, because the client may disconnect meanwhile.
            refused(Status::LOGON_FAILURE);
            sleep(call, call.server.throttle.record_failure(&attempt, call.server.clock.now())).await?;
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

/// Completes the setup of a session with its keys. Returns the session flags of the response.
fn create_login(
    call: &Call,
    session: &Session,
    must_sign: bool,
    proof: &LoginProof,
    (account, key): (Arc<Account>, Key),
    accepted: &AcceptedLogin,
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
        client_name: proof.message.workstation.clone(),
        keys: SessionKeys::derive(&accepted.key, context, negotiated.signing, negotiated.cipher),
        message_id: call.header.message_id,
        negotiated: negotiated.clone(),
        must_sign: must_sign || negotiated.must_sign(),
        must_encrypt,
    };
    if !session.set_login(login, key) {
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

/// Checks that a session keeps its account. Returns the session flags of the response.
fn check_same_account(session: &Session, account: &Account) -> Result<u16, Status> {
    let login = session.login().ok_or(Status::USER_SESSION_DELETED)?;
    match login.account.name == account.name && login.account.generation == account.generation {
        true => Ok(if login.must_encrypt { session_flags::ENCRYPT_DATA } else { 0 }),
        false => Err(Status::ACCESS_DENIED),
    }
}

/// Ends the previous session that the client names, as if its connection had been lost, if it belongs to the
/// same account. When the client gets the response, no state of that session blocks it.
async fn end_previous_session(call: &Call, session: &Session, previous: u64) {
    if previous == 0 || previous == session.id {
        return;
    }
    let Some(replaced) = call.server.sessions.get_including_ending(previous) else { return };
    let accounts = [session.login(), replaced.login()].map(|login| login.map(|login| &login.account.name));
    if accounts[0].is_some() && accounts[0] == accounts[1] {
        replaced.end(&call.server, true).await;
    }
}
