//! The commands, one function each, and the checks before them.

mod change_notify;
pub(crate) mod close;
pub(crate) mod create;
mod failure;
mod flush;
mod ioctl;
mod lock;
pub(crate) mod negotiate;
mod oplock_break;
mod pipe;
pub(crate) mod query_directory;
mod query_info;
mod read;
mod session_setup;
mod set_info;
pub(crate) mod tree;
mod write;

use tracing::{Instrument, Span};

use crate::call::{Call, CommandResult};
use crate::credits::is_charged_enough;
use crate::negotiated::Dialect;
use crate::session::Session;
use crate::wire::header::{SmbCommand, flags};
use crate::wire::status::Status;

/// Checks that a call may run, and executes its command.
pub(crate) async fn execute(call: &mut Call) -> CommandResult {
    let Some(command) = SmbCommand::from_code(call.header.command) else {
        return Err(Status::INVALID_PARAMETER.into());
    };
    let is_negotiated = call.connection.negotiated.get().is_some();
    if (command == SmbCommand::Negotiate) == is_negotiated {
        // Negotiate must be the first request, and must not be repeated.
        call.connection.close();
        return Err(Status::INVALID_PARAMETER.into());
    }
    call.session = call.connection.session(&call.server, call.header.session_id);
    call.is_binding = command == SmbCommand::SessionSetup && session_setup::is_binding(call);
    let span = command_span(call, command);
    execute_in_session(call, command).instrument(span).await
}

/// Returns the span that names the request in the log.
fn command_span(call: &Call, command: SmbCommand) -> Span {
    let session = call.session.as_deref();
    let tree = session.and_then(|session| session.tree(call.header.tree_id));
    tracing::error_span!(
        "smb",
        session_id = call.header.session_id,
        message_id = call.header.message_id,
        account = session.and_then(Session::login).map(|login| login.account.name.as_str()),
        ?command,
        share = tree.as_ref().and_then(|tree| tree.tree.as_ref()).map(|tree| tree.name.as_str()),
    )
}

/// Checks that a call may run in its session, and executes its command.
async fn execute_in_session(call: &mut Call, command: SmbCommand) -> CommandResult {
    check_authorized(call).await?;
    match command {
        SmbCommand::Negotiate => return negotiate::negotiate(call).await,
        SmbCommand::SessionSetup => {
            if call.session.is_none() && call.is_binding {
                call.session = call.signing_session();
                call.is_verified = call.session.is_some();
            } else {
                check_signature(call)?;
            }
            return session_setup::session_setup(call).await;
        }
        SmbCommand::Echo => {
            check_signature(call)?;
            return tree::echo(call);
        }
        _ => {}
    }
    check_login(call)?;
    check_signature(call)?;
    if call.session()?.is_anonymous() && matches!(command, SmbCommand::TreeConnect | SmbCommand::Create) {
        return Err(Status::ACCESS_DENIED.into());
    }
    if command == SmbCommand::TreeConnect
        && call.connection.dialect() == Dialect::Smb311
        && !is_protected(call)
    {
        return Err(Status::ACCESS_DENIED.into());
    }
    match command {
        SmbCommand::Logoff => return tree::logoff(call).await,
        SmbCommand::TreeConnect => return tree::tree_connect(call).await,
        _ => {}
    }
    let session = call.session()?;
    call.tree = Some(session.tree(call.header.tree_id).ok_or(Status::NETWORK_NAME_DELETED)?);
    if !is_charged_enough(call.connection.dialect(), &call.header, &call.message) {
        return Err(Status::INVALID_PARAMETER.into());
    }
    match command {
        SmbCommand::TreeDisconnect => tree::tree_disconnect(call).await,
        SmbCommand::Ioctl => ioctl::ioctl(call).await,
        SmbCommand::QueryDirectory => query_directory::query_directory(call).await,
        SmbCommand::QueryInfo => query_info::query_info(call).await,
        SmbCommand::SetInfo => set_info::set_info(call).await,
        SmbCommand::ChangeNotify => change_notify::change_notify(call).await,
        SmbCommand::Create => create::create(call).await,
        SmbCommand::Close => close::close_file(call).await,
        SmbCommand::Flush => flush::flush(call).await,
        SmbCommand::Read => read::read(call).await,
        SmbCommand::Write => write::write(call).await,
        SmbCommand::Lock => lock::lock(call).await,
        SmbCommand::OplockBreak => oplock_break::acknowledge(call),
        _ => Err(Status::NOT_IMPLEMENTED.into()),
    }
}

/// Returns whether the request proves that the client has the session's key. In 3.1.1 this also proves that
/// no attacker has modified the unsigned messages before the key existed.
fn is_protected(call: &Call) -> bool {
    call.encrypted_by.is_some() || call.header.flags & flags::SIGNED != 0
}

/// Ends the session if its account key is no longer valid.
async fn check_authorized(call: &Call) -> Result<(), Status> {
    let Some(session) = &call.session else { return Ok(()) };
    match session.is_authorized(&call.server).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            session.end(&call.server, false).await;
            Err(Status::USER_SESSION_DELETED)
        }
        Err(error) => {
            tracing::warn!(%error, "could not read the account of an SMB session");
            Err(Status::INSUFFICIENT_RESOURCES)
        }
    }
}

/// Fails if the session has not logged in, or if the request must be encrypted and is not.
fn check_login(call: &Call) -> Result<(), Status> {
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    match &call.encrypted_by {
        Some(encrypted_by) if encrypted_by.id != call.header.session_id => Err(Status::ACCESS_DENIED),
        None if login.must_encrypt => Err(Status::ACCESS_DENIED),
        _ => Ok(()),
    }
}

/// Fails if the signature is wrong, or missing although required. Encrypted requests need no signature.
fn check_signature(call: &mut Call) -> Result<(), Status> {
    let Some(session) = &call.session else { return Ok(()) };
    let Some(login) = session.login() else { return Ok(()) };
    if let Some(encrypted_by) = &call.encrypted_by {
        // The key of another session proves nothing about this one.
        return if encrypted_by.id == session.id { Ok(()) } else { Err(Status::ACCESS_DENIED) };
    }
    // Fails if the connection has ended meanwhile.
    let key = session.signing_key(&call.connection).ok_or(Status::USER_SESSION_DELETED)?;
    let is_signed = call.header.flags & flags::SIGNED != 0;
    call.is_verified = is_signed && key.verify(&call.message);
    if !call.is_verified && (is_signed || login.must_sign || login.must_encrypt) {
        return Err(Status::ACCESS_DENIED);
    }
    Ok(())
}
