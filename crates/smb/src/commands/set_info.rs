//! SET_INFO: times, attributes, lengths, names, deletion, and security descriptors.

use std::sync::atomic::Ordering;

use lazuli_file::handles::{NewTime, PropertyChange};
use lazuli_security::{Descriptor, part};

use super::create::path::Path;
use crate::call::{Call, CommandReply, CommandResult};
use crate::change_notifier::filter;
use crate::session::open::Open;
use crate::wire::create::access;
use crate::wire::info::{self, InfoType, MAX_TRANSACT, NewName, SetInfoRequest, class, set_response};
use crate::wire::status::Status;

/// Bits of FileModeInformation that a client may set.
const SETTABLE_MODE_BITS: u32 = 0x0000_103e;
/// Classes of the file system that exist but cannot be set.
const VOLUME_CLASSES: [u8; 3] = [2, 6, 8];
const DIRECTORY: u32 = 0x10;
const TEMPORARY: u32 = 0x100;

/// Flags of FileDispositionInformationEx.
mod disposition {
    pub(super) const DELETE: u32 = 0x01;
    pub(super) const POSIX: u32 = 0x02;
}

/// Executes SET_INFO.
pub(crate) async fn set_info(call: &Call) -> CommandResult {
    let request = SetInfoRequest::parse(&call.message)?;
    let open = call.open(request.id)?;
    if request.input.len() > MAX_TRANSACT as usize {
        return Err(Status::INVALID_PARAMETER.into());
    }
    if open.file.is_none() {
        return Err(Status::NOT_SUPPORTED.into());
    }
    match request.kind {
        InfoType::File => set_file(call, &open, &request).await?,
        InfoType::FileSystem if VOLUME_CLASSES.contains(&request.class) => {
            return Err(Status::ACCESS_DENIED.into());
        }
        InfoType::FileSystem => return Err(Status::INVALID_INFO_CLASS.into()),
        InfoType::Security => set_security(call, &open, request.additional, request.input).await?,
        InfoType::Quota => return Err(Status::INVALID_PARAMETER.into()),
    }
    Ok(CommandReply::new(set_response()))
}

async fn set_file(call: &Call, open: &Open, request: &SetInfoRequest<'_>) -> Result<(), Status> {
    let input = request.input;
    match request.class {
        class::BASIC => set_basic(call, open, info::new_basic(input)?).await,
        class::RENAME | class::RENAME_EX => rename(call, open, NewName::parse(input)?).await,
        class::LINK => Err(Status::NOT_SUPPORTED),
        class::DISPOSITION => set_delete(call, open, info::at_least(input, 1)?.u8()? != 0).await,
        class::DISPOSITION_EX => {
            let flags = info::at_least(input, 4)?.u32()?;
            // Clients fall back to FileDispositionInformation.
            if flags & disposition::POSIX != 0 {
                return Err(Status::NOT_SUPPORTED);
            }
            set_delete(call, open, flags & disposition::DELETE != 0).await
        }
        class::POSITION => {
            let position = parse_length(input)?;
            open.position.store(position, Ordering::Relaxed);
            Ok(())
        }
        class::FULL_EA => Err(Status::EAS_NOT_SUPPORTED),
        class::MODE => {
            let mode = info::at_least(input, 4)?.u32()?;
            if mode & !SETTABLE_MODE_BITS != 0 {
                return Err(Status::INVALID_PARAMETER);
            }
            open.mode.store(mode, Ordering::Relaxed);
            Ok(())
        }
        class::ALLOCATION => {
            let bytes = parse_length(input)?;
            let file = writable(open)?;
            call.server.files.set_allocation(file, bytes).await?;
            notify_modified(call, open, filter::SIZE);
            Ok(())
        }
        class::END_OF_FILE => {
            let bytes = parse_length(input)?;
            let file = writable(open)?;
            call.server.files.set_length(file, bytes).await?;
            notify_modified(call, open, filter::SIZE | filter::LAST_WRITE);
            Ok(())
        }
        class::VALID_DATA_LENGTH => {
            // All data up to the end of the file is valid already.
            let (bytes, file) = (parse_length(input)?, writable(open)?);
            let end = call.server.files.info(file).await?.length;
            if bytes > end { Err(Status::INVALID_PARAMETER) } else { Ok(()) }
        }
        class::SHORT_NAME => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_INFO_CLASS),
    }
}

/// Parses a length or position, which must not be negative.
fn parse_length(input: &[u8]) -> Result<u64, Status> {
    let value = info::at_least(input, 8)?.u64()?;
    if value.cast_signed() < 0 { Err(Status::INVALID_PARAMETER) } else { Ok(value) }
}

/// Returns the open if it is a file with write access.
fn writable(open: &Open) -> Result<lazuli_file::opens::OpenId, Status> {
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER);
    }
    open.require_any(access::WRITE_DATA)?;
    open.file()
}

async fn set_basic(call: &Call, open: &Open, change: PropertyChange) -> Result<(), Status> {
    open.require_any(access::WRITE_ATTRIBUTES)?;
    let refused = if open.is_directory { TEMPORARY } else { DIRECTORY };
    if change.attributes.is_some_and(|attributes| attributes & refused != 0) {
        return Err(Status::INVALID_PARAMETER);
    }
    call.server.files.set_properties(open.file()?, change).await?;
    let is_set = |time: NewTime| matches!(time, NewTime::Set(_));
    let changes = [
        (change.attributes.is_some(), filter::ATTRIBUTES),
        (is_set(change.created), filter::CREATION),
        (is_set(change.accessed), filter::LAST_ACCESS),
        (is_set(change.written), filter::LAST_WRITE),
    ];
    let changed_filter =
        changes.iter().filter(|(is_changed, _)| *is_changed).fold(0, |all, (_, bit)| all | bit);
    notify_modified(call, open, changed_filter);
    Ok(())
}

async fn rename(call: &Call, open: &Open, new: NewName) -> Result<(), Status> {
    open.require_any(access::DELETE)?;
    // Names are relative to the share. A name that starts with a colon names a stream.
    if new.root != 0 || new.name.is_empty() || new.name.starts_with(':') {
        return Err(Status::INVALID_PARAMETER);
    }
    let to = Path::parse(new.name.strip_prefix('\\').unwrap_or(&new.name))?;
    if to.snapshot.is_some() {
        return Err(Status::ACCESS_DENIED);
    }
    let (file, to) = (open.file()?, to.path);
    let from = call.server.files.path_of(file).ok_or(Status::FILE_CLOSED)?;
    call.server.files.rename_open(file, &to, new.replace).await?;
    call.server.notifier.notify_renamed(file.file.space, &from, &to, open.is_directory);
    Ok(())
}

async fn set_delete(call: &Call, open: &Open, delete: bool) -> Result<(), Status> {
    open.require_any(access::DELETE)?;
    let file = open.file()?;
    call.server.files.set_delete(file, delete).await?;
    if let Some(path) = call.server.files.path_of(file).filter(|_| delete && open.is_directory) {
        call.server.notifier.notify_deleting(file.file.space, &path);
    }
    Ok(())
}

async fn set_security(call: &Call, open: &Open, parts: u32, input: &[u8]) -> Result<(), Status> {
    for (of, needed) in [
        (part::OWNER | part::GROUP | part::LABEL, access::WRITE_OWNER),
        (part::DACL, access::WRITE_DAC),
        (part::SACL, access::SYSTEM_SECURITY),
    ] {
        if parts & of != 0 {
            open.require_any(needed)?;
        }
    }
    let sent = Descriptor::from_bytes(input).map_err(|_| Status::INVALID_SECURITY_DESCR)?;
    let file = open.file()?;
    let kept = call.server.files.permission_of(file).await?;
    let mut descriptor = Descriptor::from_sddl(&kept).map_err(|_| Status::NOT_SUPPORTED)?;
    descriptor.replace_parts(parts, sent);
    call.server.files.set_permission(file, &descriptor.to_sddl()).await?;
    notify_modified(call, open, filter::SECURITY);
    Ok(())
}

/// Notifies watches of a change to an open file.
fn notify_modified(call: &Call, open: &Open, what: u32) {
    if let Some(file) = open.file {
        call.server.notifier.notify_open_modified(&call.server.files, file, what);
    }
}
