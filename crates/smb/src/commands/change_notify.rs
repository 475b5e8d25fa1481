//! CHANGE_NOTIFY: returns the changes in a directory since the last request, or waits for the next one.

use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::NotifyResult;
use crate::wire::create::access;
use crate::wire::info::{MAX_TRANSACT, data_response};
use crate::wire::notify::{ChangeNotifyRequest, events};
use crate::wire::status::Status;

/// Executes CHANGE_NOTIFY. The request is queued or answered before this function waits.
pub(crate) async fn change_notify(call: &Call) -> CommandResult {
    let request = ChangeNotifyRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if !open.is_directory || request.max_output > MAX_TRANSACT {
        return Err(Status::INVALID_PARAMETER.into());
    }
    open.require_any(access::READ_DATA)?;
    let (file, max_output) = (open.file()?, request.max_output as usize);
    let path = call.server.files.path_of(file).ok_or(Status::FILE_CLOSED)?;
    if call.server.files.opens().is_delete_pending(file.file) {
        return Err(Status::DELETE_PENDING.into());
    }
    // The filter of the first request applies until the handle is closed.
    let watch = open.watch.get_or_init(|| {
        call.server.notifier.watch(file.file.space, &path, request.filter, request.recursive, max_output)
    });
    let mut result = watch.wait(max_output).ok_or(Status::INSUFFICIENT_RESOURCES)?;
    if let Ok(result) = result.try_recv() {
        return reply(result);
    }
    call.send_interim_response()?;
    tokio::select! {
        biased;
        result = &mut result => reply(result.unwrap_or(NotifyResult::Overflow)),
        () = open.closed.cancelled() => Ok(empty_reply(Status::NOTIFY_CLEANUP)),
        // The handle was force-closed, or the share was deleted.
        () = call.server.files.opens().closed(file) => Ok(empty_reply(Status::NOTIFY_CLEANUP)),
        () = call.cancelled.cancelled() => Err(Status::CANCELLED.into()),
    }
}

fn reply(result: NotifyResult) -> CommandResult {
    match result {
        NotifyResult::Events(list) => Ok(CommandReply::new(data_response(&events(&list)))),
        NotifyResult::Overflow => Ok(empty_reply(Status::NOTIFY_ENUM_DIR)),
        NotifyResult::Deleted => Err(Status::DELETE_PENDING.into()),
    }
}

fn empty_reply(status: Status) -> CommandReply {
    CommandReply::new(data_response(&[])).with_status(status)
}
