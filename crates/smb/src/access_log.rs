//! The line of a request in the access log. Lines name the file that a Create opens, and never contain data.

use std::time::Duration;

use lazuli_telemetry::AccessLog;

use crate::call::{Call, CommandResult};
use crate::session::Session;
use crate::wire::create::CreateRequest;
use crate::wire::header::SmbCommand;

/// Maximum number of logged characters of a name.
const MAX_NAME: usize = 4096;

/// Logs an answered request.
pub(crate) fn write(
    log: &AccessLog,
    call: &Call,
    command: SmbCommand,
    result: &CommandResult,
    elapsed: Duration,
) {
    let (status, reply_bytes, session) = match result {
        Ok(reply) => {
            let data: usize = reply.data.iter().map(bytes::Bytes::len).sum();
            (reply.status, reply.body.len() + data, reply.session.as_ref())
        }
        Err(error) => (error.status, error.data.len(), None),
    };
    let session = session.or(call.session.as_ref());
    let login = session.and_then(|session| Session::login(session));
    log.write(|line| {
        line.text("service", "smb");
        line.text("operation", command.name());
        line.optional("account", login.map(|login| login.account.name.as_str()));
        let share = call.tree.as_ref().and_then(|tree| tree.tree.as_ref());
        line.optional("share", share.map(|share| share.name.as_str()));
        line.optional("path", opened_path(call, command).as_deref());
        match status.name() {
            Some(name) => line.text("status", name),
            None => line.display("status", format_args!("{:#010x}", status.0)),
        }
        line.number("request_bytes", call.message.len() as u64);
        line.number("reply_bytes", reply_bytes as u64);
        line.number("total_us", u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        line.display("peer", call.connection.peer);
        line.number("session_id", session.map_or(call.header.session_id, |session| session.id));
        line.number("message_id", call.header.message_id);
    });
}

/// Returns the path that a Create opens.
fn opened_path(call: &Call, command: SmbCommand) -> Option<String> {
    if command != SmbCommand::Create {
        return None;
    }
    let request = CreateRequest::parse(&call.message).ok()?;
    let slash = |c| if c == '\\' { '/' } else { c };
    Some(request.name.chars().take(MAX_NAME).map(slash).collect())
}
