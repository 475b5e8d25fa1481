//! Negotiate.

use crate::call::{Answer, Call, Reply};
use crate::negotiated::{Dialect, Negotiated};
use crate::spnego;
use crate::wire::negotiate::{ANY_DIALECT, ChosenContexts, OldOffer, Request, Response, mode};
use crate::wire::status::Status;

/// Negotiate.
pub(crate) async fn negotiate(call: &Call) -> Answer {
    let request = Request::parse(&call.message)?;
    let chosen = Negotiated::choose(&request, call.server.options.require_signing)?;
    let contexts = match chosen.dialect {
        Dialect::Smb311 => Some(ChosenContexts {
            salt: random()?,
            cipher: request.contexts.ciphers.map(|_| chosen.cipher.map_or(0, |cipher| cipher.number())),
            signing: request.contexts.signing.map(|_| chosen.signing.number()),
        }),
        _ => None,
    };
    let mut reply = Reply::new(response(call, &chosen, chosen.dialect.number(), contexts).write());
    if chosen.dialect == Dialect::Smb311 {
        call.connection.preauth.lock().add(&call.message);
        let connection = call.connection.clone();
        reply.sees_response = Some(Box::new(move |bytes| connection.preauth.lock().add(bytes)));
    }
    agree(call, chosen)?;
    Ok(reply)
}

/// Negotiate of the first version, with which clients begin that may know nothing newer.
pub(crate) async fn old(call: &Call) -> Answer {
    let offer = OldOffer::parse(&call.message).ok_or(Status::NOT_SUPPORTED)?;
    let request = Request { dialects: vec![Dialect::Smb202.number()], ..Request::default() };
    let chosen = Negotiated::choose(&request, call.server.options.require_signing)?;
    let number = match offer {
        OldOffer::Any => ANY_DIALECT,
        OldOffer::Smb202 => chosen.dialect.number(),
    };
    let reply = Reply::new(response(call, &chosen, number, None).write());
    if offer == OldOffer::Smb202 {
        agree(call, chosen)?;
    }
    Ok(reply)
}

fn agree(call: &Call, chosen: Negotiated) -> Result<(), Status> {
    call.connection.negotiated.set(chosen).map_err(|_| Status::INVALID_PARAMETER)
}

fn response(call: &Call, chosen: &Negotiated, dialect: u16, contexts: Option<ChosenContexts>) -> Response {
    // A client that is to ask again is told the limits then.
    debug_assert!(chosen.mode & mode::SIGNING_ENABLED != 0);
    Response {
        security_mode: chosen.mode,
        dialect,
        server_guid: call.server.guid.to_bytes_le(),
        capabilities: chosen.capabilities,
        max_transfer: chosen.dialect.max_transfer(),
        time: call.server.clock.now().filetime(),
        token: spnego::offer(),
        contexts,
    }
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Status> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|_| Status::INSUFFICIENT_RESOURCES)?;
    Ok(bytes)
}
