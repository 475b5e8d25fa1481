//! TREE_CONNECT, TREE_DISCONNECT, LOGOFF and ECHO, which need no file.

use lazuli_file::handles::Failure;

use crate::call::{Call, CommandReply, CommandResult};
use crate::session::handles;
use crate::wire::cursor::{ByteReader, ByteWriter, slice, text};
use crate::wire::header::HEADER_SIZE;
use crate::wire::status::Status;

/// The share of named pipes.
const IPC: &str = "IPC$";
const DISK: u8 = 1;
const PIPE: u8 = 2;
/// Clients may cache files for offline use if the user wants it.
const MANUAL_CACHING: u32 = 0;
const ENCRYPT_DATA: u32 = 0x0000_8000;
const ALL_ACCESS: u32 = 0x001f_01ff;
const PIPE_ACCESS: u32 = 0x001f_00a9;
/// Maximum length of the path to a share, in bytes.
const MAX_PATH: usize = 1024;

/// Parses a TREE_CONNECT request and returns the name of the share.
pub(crate) fn share_name(message: &[u8]) -> Result<String, Status> {
    let mut reader = ByteReader::from(message, HEADER_SIZE);
    if reader.u16()? != 9 {
        return Err(Status::INVALID_PARAMETER);
    }
    reader.skip(2)?;
    let (offset, length) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
    if length > MAX_PATH {
        return Err(Status::BAD_NETWORK_NAME);
    }
    let path = text(slice(message, offset, length)?).ok_or(Status::BAD_NETWORK_NAME)?;
    let name = path.strip_prefix(r"\\").and_then(|path| path.split_once('\\')).map(|(_, name)| name);
    name.filter(|name| !name.contains('\\')).map(str::to_owned).ok_or(Status::BAD_NETWORK_NAME)
}

/// Executes TREE_CONNECT.
pub(crate) async fn tree_connect(call: &Call) -> CommandResult {
    let name = share_name(&call.message)?;
    let session = call.session()?;
    let login = session.login().ok_or(Status::USER_SESSION_DELETED)?;
    let (tree, share_type, access) = if name.eq_ignore_ascii_case(IPC) {
        (None, PIPE, PIPE_ACCESS)
    } else {
        let tree = call.server.files.connect(&login.account, &name.to_lowercase()).await;
        let tree = tree.map_err(|failure| match failure {
            Failure::Busy | Failure::Failed => Status::INSUFFICIENT_RESOURCES,
            _ => Status::BAD_NETWORK_NAME,
        })?;
        (Some(tree), DISK, ALL_ACCESS)
    };
    let permit = call.server.tree_limit.acquire().ok_or(Status::INSUFFICIENT_RESOURCES)?;
    let connected = session.add_tree_connect(tree, permit)?;
    let flags = if login.must_encrypt { ENCRYPT_DATA } else { MANUAL_CACHING };
    let mut writer = ByteWriter::new();
    writer.u16(16).u8(share_type).u8(0).u32(flags).u32(0).u32(access);
    Ok(CommandReply { tree_id: Some(connected.id), ..CommandReply::new(writer.finish()) })
}

/// Executes TREE_DISCONNECT.
pub(crate) async fn tree_disconnect(call: &Call) -> CommandResult {
    parse_empty(call)?;
    for open in call.session()?.remove_tree_connect(call.tree()?.id) {
        handles::discard(&call.server, &open).await;
    }
    Ok(empty_reply())
}

/// Executes LOGOFF.
pub(crate) async fn logoff(call: &Call) -> CommandResult {
    parse_empty(call)?;
    let session = call.session()?;
    // Keep durable opens: the client may reconnect them.
    session.end(&call.server, true).await;
    Ok(empty_reply())
}

/// Executes ECHO.
pub(crate) fn echo(call: &Call) -> CommandResult {
    parse_empty(call)?;
    Ok(empty_reply())
}

/// Checks a request without parameters.
fn parse_empty(call: &Call) -> Result<(), Status> {
    match ByteReader::from(&call.message, HEADER_SIZE).u16()? {
        4 => Ok(()),
        _ => Err(Status::INVALID_PARAMETER),
    }
}

fn empty_reply() -> CommandReply {
    let mut writer = ByteWriter::new();
    writer.u16(4).u16(0);
    CommandReply::new(writer.finish())
}
