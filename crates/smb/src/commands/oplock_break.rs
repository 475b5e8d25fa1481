//! OPLOCK_BREAK: clients acknowledge that they have given up a cache.

use lazuli_concurrency::Caching;
use lazuli_file::opens::{AcknowledgeRefusal, CacheKey};

use crate::call::{Call, CommandReply, CommandResult};
use crate::session::handles::oplock_level;
use crate::session::open::LeaseKey;
use crate::wire::create::oplock;
use crate::wire::oplock::{self as message, Acknowledgment};
use crate::wire::status::Status;

/// Handles an acknowledgment.
pub(crate) fn acknowledge(call: &Call) -> CommandResult {
    let table = call.server.files.opens();
    match Acknowledgment::parse(&call.message)? {
        Acknowledgment::Oplock { level: kept, id } => {
            let kept = match kept {
                oplock::NONE => Caching::NONE,
                oplock::II => Caching::R,
                _ => return Err(Status::INVALID_PARAMETER.into()),
            };
            let open = call.open(id)?;
            let file = open.file()?;
            let key = CacheKey::Oplock(file.number);
            let done = match table.acknowledge(file.file, key, kept) {
                // A client that claims to keep a level that it must give up keeps nothing.
                Err(AcknowledgeRefusal::KeepsTooMuch) => table.acknowledge(file.file, key, Caching::NONE),
                done => done,
            };
            let (state, _) = done.map_err(|_| Status::INVALID_OPLOCK_PROTOCOL)?;
            call.server.files.flush_soon(file.file);
            Ok(CommandReply::new(message::oplock(oplock_level(state), open.id)))
        }
        Acknowledgment::Lease { key, state } => {
            let client = call.connection.client();
            let found = call.server.handles.open_with_lease(LeaseKey { client, key });
            let file = found.ok_or(Status::OBJECT_NAME_NOT_FOUND)?.file;
            let kept = Caching::from_bits(state).ok_or(Status::REQUEST_NOT_ACCEPTED)?;
            let done = table.acknowledge(file, CacheKey::Lease { client, key }, kept);
            let (state, _) = done.map_err(|refusal| match refusal {
                AcknowledgeRefusal::NotBreaking => Status::UNSUCCESSFUL,
                AcknowledgeRefusal::KeepsTooMuch => Status::REQUEST_NOT_ACCEPTED,
            })?;
            call.server.files.flush_soon(file);
            Ok(CommandReply::new(message::lease_response(key, state.bits())))
        }
    }
}
