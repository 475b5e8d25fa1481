//! Tree Connect, Tree Disconnect, Logoff, Echo: what needs no file.

use lazuli_file::native::Failure;

use crate::call::{Answer, Call, Reply};
use crate::wire::cursor::{Reader, Writer, slice, text};
use crate::wire::header::HEADER;
use crate::wire::status::Status;

/// The share of pipes.
const PIPES: &str = "IPC$";
const DISK: u8 = 1;
const PIPE: u8 = 2;
/// Clients may cache files for themselves, without asking.
const MANUAL_CACHING: u32 = 0;
const ENCRYPT_DATA: u32 = 0x0000_8000;
const ALL_ACCESS: u32 = 0x001f_01ff;
const PIPE_ACCESS: u32 = 0x001f_00a9;
/// Bytes of a path to a share.
const MAX_PATH: usize = 1024;

/// Tree Connect.
pub(crate) async fn connect(call: &Call) -> Answer {
    let mut reader = Reader::from(&call.message, HEADER);
    if reader.u16()? != 9 {
        return Err(Status::INVALID_PARAMETER.into());
    }
    reader.skip(2)?;
    let (offset, length) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
    if length > MAX_PATH {
        return Err(Status::BAD_NETWORK_NAME.into());
    }
    let path = text(slice(&call.message, offset, length)?).ok_or(Status::BAD_NETWORK_NAME)?;
    let name = path.strip_prefix(r"\\").and_then(|path| path.split_once('\\')).map(|(_, name)| name);
    let name = name.filter(|name| !name.contains('\\')).ok_or(Status::BAD_NETWORK_NAME)?;
    let session = call.session()?;
    let login = session.login().ok_or(Status::USER_SESSION_DELETED)?;
    let (tree, kind, access) = if name.eq_ignore_ascii_case(PIPES) {
        (None, PIPE, PIPE_ACCESS)
    } else {
        let tree = call.server.files.connect(&login.account, &name.to_lowercase()).await;
        let tree = tree.map_err(|failure| match failure {
            Failure::Busy | Failure::Failed => Status::INSUFFICIENT_RESOURCES,
            _ => Status::BAD_NETWORK_NAME,
        })?;
        (Some(tree), DISK, ALL_ACCESS)
    };
    let place = call.server.trees.take().ok_or(Status::INSUFFICIENT_RESOURCES)?;
    let connected = session.connect(tree, place)?;
    let flags = if login.must_encrypt { ENCRYPT_DATA } else { MANUAL_CACHING };
    let mut writer = Writer::new();
    writer.u16(16).u8(kind).u8(0).u32(flags).u32(0).u32(access);
    Ok(Reply { tree_id: Some(connected.id), ..Reply::new(writer.finish()) })
}

/// Tree Disconnect.
pub(crate) async fn disconnect(call: &Call) -> Answer {
    check_empty(call)?;
    for open in call.session()?.disconnect(call.tree()?.id) {
        super::close::discard(&call.server, &open).await;
    }
    Ok(empty())
}

/// Logoff.
pub(crate) async fn logoff(call: &Call) -> Answer {
    check_empty(call)?;
    let session = call.session()?;
    // Its client may come back for what is durable.
    session.end(&call.server, true).await;
    Ok(empty())
}

/// Echo.
pub(crate) fn echo(call: &Call) -> Answer {
    check_empty(call)?;
    Ok(empty())
}

/// A request that says nothing but its command.
fn check_empty(call: &Call) -> Result<(), Status> {
    match Reader::from(&call.message, HEADER).u16()? {
        4 => Ok(()),
        _ => Err(Status::INVALID_PARAMETER),
    }
}

fn empty() -> Reply {
    let mut writer = Writer::new();
    writer.u16(4).u16(0);
    Reply::new(writer.finish())
}
