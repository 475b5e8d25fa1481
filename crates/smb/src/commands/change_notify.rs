//! Change Notify: waits until something happens in a directory, or says what has happened since the last time.

use crate::call::{Answer, Call, Reply};
use crate::changes::Outcome;
use crate::open::access;
use crate::wire::info::{MAX_TRANSACT, data_response};
use crate::wire::notify::{ChangeNotifyRequest, events};
use crate::wire::status::Status;

/// Change Notify. It is in the queue, or answered, before anything is waited for.
pub(crate) async fn change_notify(call: &Call) -> Answer {
    let request = ChangeNotifyRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if !open.is_directory || request.room > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    open.needs(access::READ_DATA)?;
    let (file, room) = (open.file()?, request.room as usize);
    let path = call.server.files.path_of(file).ok_or(Status::FILE_CLOSED)?;
    if call.server.files.opens().is_delete_pending(file.file) {
        return Err(Status::DELETE_PENDING.into());
    }
    // What the first request asks for stays until the handle is closed.
    let watch = open.watch.get_or_init(|| {
        call.server.changes.watch(file.file.space, &path, request.filter, request.recursive, room)
    });
    let mut outcome = watch.wait(room).ok_or(Status::INSUFFICIENT_RESOURCES)?;
    if let Ok(outcome) = outcome.try_recv() {
        return answer(outcome);
    }
    call.pend()?;
    tokio::select! {
        biased;
        outcome = &mut outcome => answer(outcome.unwrap_or(Outcome::Overflow)),
        () = open.closed.cancelled() => Ok(nothing(Status::NOTIFY_CLEANUP)),
        // By force, or with its share.
        () = call.server.files.opens().closed(file) => Ok(nothing(Status::NOTIFY_CLEANUP)),
        () = call.cancelled.cancelled() => Err(Status::CANCELLED.into()),
    }
}

fn answer(outcome: Outcome) -> Answer {
    match outcome {
        Outcome::Events(happened) => Ok(Reply::new(data_response(&events(&happened)))),
        Outcome::Overflow => Ok(nothing(Status::NOTIFY_ENUM_DIR)),
        Outcome::Deleted => Err(Status::DELETE_PENDING.into()),
    }
}

fn nothing(status: Status) -> Reply {
    Reply::new(data_response(&[])).with(status)
}
