//! NEGOTIATE, in SMB2 and SMB1.

use crate::call::{Call, CommandReply, CommandResult};
use crate::negotiated::{Dialect, Negotiated};
use crate::spnego;
use crate::wire::negotiate::{
    ANY_DIALECT, ChosenContexts, NegotiateRequest, NegotiateResponse, Smb1Negotiate, mode,
};
use crate::wire::status::Status;

/// Executes NEGOTIATE.
pub(crate) async fn negotiate(call: &Call) -> CommandResult {
    let request = NegotiateRequest::parse(&call.message)?;
    let chosen = Negotiated::choose(&request, call.server.options.require_signing)?;
    let contexts = match chosen.dialect {
        Dialect::Smb311 => Some(ChosenContexts {
            salt: random()?,
            cipher: request.contexts.ciphers.map(|_| chosen.cipher.map_or(0, |cipher| cipher.number())),
            signing: request.contexts.signing.map(|_| chosen.signing.number()),
        }),
        _ => None,
    };
    let mut reply = CommandReply::new(response(call, &chosen, chosen.dialect.number(), contexts).write());
    if chosen.dialect == Dialect::Smb311 {
        call.connection.preauth.lock().add(&call.message);
        let connection = call.connection.clone();
        reply.on_packed = Some(Box::new(move |bytes| connection.preauth.lock().add(bytes)));
    }
    set_negotiated(call, chosen)?;
    Ok(reply)
}

/// Answers an SMB1 Negotiate, with which clients begin that may know only SMB1.
pub(crate) async fn negotiate_smb1(call: &Call) -> CommandResult {
    let offer = Smb1Negotiate::parse(&call.message).ok_or(Status::NOT_SUPPORTED)?;
    let request =
        NegotiateRequest { dialects: vec![Dialect::Smb202.number()], ..NegotiateRequest::default() };
    let chosen = Negotiated::choose(&request, call.server.options.require_signing)?;
    let number = match offer {
        Smb1Negotiate::Any => ANY_DIALECT,
        Smb1Negotiate::Smb202 => chosen.dialect.number(),
    };
    let reply = CommandReply::new(response(call, &chosen, number, None).write());
    if offer == Smb1Negotiate::Smb202 {
        set_negotiated(call, chosen)?;
    }
    Ok(reply)
}

fn set_negotiated(call: &Call, chosen: Negotiated) -> Result<(), Status> {
    call.connection.negotiated.set(chosen).map_err(|_| Status::INVALID_PARAMETER)
}

fn response(
    call: &Call,
    chosen: &Negotiated,
    dialect: u16,
    contexts: Option<ChosenContexts>,
) -> NegotiateResponse {
    // A client that has to negotiate again gets the limits of its dialect then.
    debug_assert!(chosen.mode & mode::SIGNING_ENABLED != 0);
    NegotiateResponse {
        security_mode: chosen.mode,
        dialect,
        server_guid: call.server.guid.to_bytes_le(),
        capabilities: chosen.capabilities,
        max_transfer: chosen.dialect.max_transfer(),
        time: call.server.clock.now().filetime(),
        token: spnego::initial_token(),
        contexts,
    }
}

/// Returns random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
    Ok(bytes)
}
