//! One function for each command: parse, do, answer. Here is who may call which.

mod change_notify;
pub(crate) mod close;
mod create;
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
mod tree;
mod write;

use crate::call::{Answer, Call};
use crate::credits::is_paid_for;
use crate::negotiated::Dialect;
use crate::wire::header::{Command, flags};
use crate::wire::status::Status;

/// Answers a call, once it is sure whose it is.
pub(crate) async fn answer(call: &mut Call) -> Answer {
    let Some(command) = Command::of(call.header.command) else {
        return Err(Status::INVALID_PARAMETER.into());
    };
    let is_negotiated = call.connection.negotiated.get().is_some();
    if (command == Command::Negotiate) == is_negotiated {
        // Once, and first.
        call.connection.close();
        return Err(Status::INVALID_PARAMETER.into());
    }
    call.session = call.connection.session(&call.server, call.header.session_id);
    check_welcome(call).await?;
    match command {
        Command::Negotiate => return negotiate::negotiate(call).await,
        Command::SessionSetup => {
            if call.session.is_none() && session_setup::is_binding(call) {
                // Checks the signature.
                call.session = call.session_elsewhere();
            } else {
                check_signature(call)?;
            }
            return session_setup::session_setup(call).await;
        }
        Command::Echo => {
            check_signature(call)?;
            return tree::echo(call);
        }
        _ => {}
    }
    check_login(call)?;
    check_signature(call)?;
    if call.session()?.is_anonymous() && matches!(command, Command::TreeConnect | Command::Create) {
        return Err(Status::ACCESS_DENIED.into());
    }
    if command == Command::TreeConnect && call.connection.dialect() == Dialect::Smb311 && !is_protected(call)
    {
        return Err(Status::ACCESS_DENIED.into());
    }
    match command {
        Command::Logoff => return tree::logoff(call).await,
        Command::TreeConnect => return tree::connect(call).await,
        _ => {}
    }
    let session = call.session()?;
    call.tree = Some(session.tree(call.header.tree_id).ok_or(Status::NETWORK_NAME_DELETED)?);
    if !is_paid_for(call.connection.dialect(), &call.header, &call.message) {
        return Err(Status::INVALID_PARAMETER.into());
    }
    match command {
        Command::TreeDisconnect => tree::disconnect(call).await,
        Command::Ioctl => ioctl::ioctl(call).await,
        Command::QueryDirectory => query_directory::query_directory(call).await,
        Command::QueryInfo => query_info::query_info(call).await,
        Command::SetInfo => set_info::set_info(call).await,
        Command::ChangeNotify => change_notify::change_notify(call).await,
        Command::Create => create::create(call).await,
        Command::Close => close::close_file(call).await,
        Command::Flush => flush::flush(call).await,
        Command::Read => read::read(call).await,
        Command::Write => write::write(call).await,
        Command::Lock => lock::lock(call).await,
        Command::OplockBreak => oplock_break::acknowledge(call),
        _ => Err(Status::NOT_IMPLEMENTED.into()),
    }
}

/// Whether it shows that the client has the session's key: in 3.1.1 that nobody changed what was said before there was one.
fn is_protected(call: &Call) -> bool {
    call.sealed_by.is_some() || call.header.flags & flags::SIGNED != 0
}

/// Ends the session of who could not log in any more.
async fn check_welcome(call: &Call) -> Result<(), Status> {
    let Some(session) = &call.session else { return Ok(()) };
    match session.is_welcome(&call.server).await {
        Ok(true) => Ok(()),
        Ok(false) => {
            session.end(&call.server, false).await;
            Err(Status::USER_SESSION_DELETED)
        }
        Err(error) => {
            tracing::warn!(%error, "an account could not be read");
            Err(Status::INSUFFICIENT_RESOURCES)
        }
    }
}

/// Refuses who has not logged in, and what should have been encrypted.
fn check_login(call: &Call) -> Result<(), Status> {
    let login = call.session()?.login().ok_or(Status::USER_SESSION_DELETED)?;
    match &call.sealed_by {
        Some(sealed_by) if sealed_by.id != call.header.session_id => Err(Status::ACCESS_DENIED),
        None if login.must_encrypt => Err(Status::ACCESS_DENIED),
        _ => Ok(()),
    }
}

/// Refuses what is signed wrongly, or not at all if it has to be. What is encrypted needs no signature.
fn check_signature(call: &Call) -> Result<(), Status> {
    let Some(session) = &call.session else { return Ok(()) };
    let Some(login) = session.login() else { return Ok(()) };
    if call.sealed_by.is_some() {
        return Ok(());
    }
    // The connection may have ended meanwhile.
    let key = session.signing(&call.connection).ok_or(Status::USER_SESSION_DELETED)?;
    let is_signed = call.header.flags & flags::SIGNED != 0;
    if is_signed && !key.verify(&call.message) || !is_signed && login.must_sign {
        return Err(Status::ACCESS_DENIED);
    }
    Ok(())
}
