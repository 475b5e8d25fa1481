//! Set Info: times and attributes, lengths, names, deletion, and who may do what.

use std::sync::atomic::Ordering;

use lazuli_file::native::{NewTime, PropertyChange};
use lazuli_security::{Descriptor, part};

use super::create::path::Path;
use crate::call::{Answer, Call, Reply};
use crate::changes::filter;
use crate::open::{Open, access};
use crate::wire::info::{self, InfoType, MAX_TRANSACT, NewName, SetInfoRequest, class, set_response};
use crate::wire::status::Status;

/// Bits of FileModeInformation that can be set.
const MODES: u32 = 0x0000_103e;
/// Classes of the file system that a client may name, and not set.
const VOLUME_CLASSES: [u8; 3] = [2, 6, 8];
const DIRECTORY: u32 = 0x10;
const TEMPORARY: u32 = 0x100;

/// Flags of a disposition.
mod disposition {
    pub(super) const DELETE: u32 = 0x01;
    pub(super) const POSIX: u32 = 0x02;
}

/// Set Info.
pub(crate) async fn set_info(call: &Call) -> Answer {
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
    Ok(Reply::new(set_response()))
}

async fn set_file(call: &Call, open: &Open, request: &SetInfoRequest<'_>) -> Result<(), Status> {
    let input = request.input;
    match request.class {
        class::BASIC => set_basic(call, open, info::new_basic(input)?).await,
        class::RENAME | class::RENAME_EX => rename(call, open, NewName::parse(input)?).await,
        class::LINK => Err(Status::NOT_SUPPORTED),
        class::DISPOSITION => set_delete(call, open, info::exact(input, 1)?.u8()? != 0).await,
        class::DISPOSITION_EX => {
            let flags = info::exact(input, 4)?.u32()?;
            // Clients that are told so ask in the old way.
            if flags & disposition::POSIX != 0 {
                return Err(Status::NOT_SUPPORTED);
            }
            set_delete(call, open, flags & disposition::DELETE != 0).await
        }
        class::POSITION => {
            let position = length(input)?;
            open.position.store(position, Ordering::Relaxed);
            Ok(())
        }
        class::FULL_EA => Err(Status::EAS_NOT_SUPPORTED),
        class::MODE => {
            let mode = info::exact(input, 4)?.u32()?;
            if mode & !MODES != 0 {
                return Err(Status::INVALID_PARAMETER);
            }
            open.mode.store(mode, Ordering::Relaxed);
            Ok(())
        }
        class::ALLOCATION => {
            let bytes = length(input)?;
            let file = writable(open)?;
            call.server.files.set_allocation(file, bytes).await?;
            modified(call, open, filter::SIZE);
            Ok(())
        }
        class::END_OF_FILE => {
            let bytes = length(input)?;
            let file = writable(open)?;
            call.server.files.set_length(file, bytes).await?;
            modified(call, open, filter::SIZE | filter::LAST_WRITE);
            Ok(())
        }
        class::VALID_DATA_LENGTH => {
            // Everything up to the end is valid already.
            let (bytes, file) = (length(input)?, writable(open)?);
            let end = call.server.files.info(file).await?.length;
            if bytes > end { Err(Status::INVALID_PARAMETER) } else { Ok(()) }
        }
        class::SHORT_NAME => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_INFO_CLASS),
    }
}

/// A length or place, which is a positive number.
fn length(input: &[u8]) -> Result<u64, Status> {
    let value = info::exact(input, 8)?.u64()?;
    if value.cast_signed() < 0 { Err(Status::INVALID_PARAMETER) } else { Ok(value) }
}

/// A file that may be written to through this handle.
fn writable(open: &Open) -> Result<lazuli_file::opens::OpenId, Status> {
    if open.is_directory {
        return Err(Status::INVALID_PARAMETER);
    }
    open.needs(access::WRITE_DATA)?;
    open.file()
}

async fn set_basic(call: &Call, open: &Open, change: PropertyChange) -> Result<(), Status> {
    open.needs(access::WRITE_ATTRIBUTES)?;
    let refused = if open.is_directory { TEMPORARY } else { DIRECTORY };
    if change.attributes.is_some_and(|attributes| attributes & refused != 0) {
        return Err(Status::INVALID_PARAMETER);
    }
    call.server.files.set_properties(open.file()?, change).await?;
    let is_set = |time: NewTime| matches!(time, NewTime::Set(_));
    let happened = [
        (change.attributes.is_some(), filter::ATTRIBUTES),
        (is_set(change.created), filter::CREATION),
        (is_set(change.accessed), filter::LAST_ACCESS),
        (is_set(change.written), filter::LAST_WRITE),
    ];
    let happened = happened.iter().filter(|(happened, _)| *happened).fold(0, |sum, (_, bit)| sum | bit);
    modified(call, open, happened);
    Ok(())
}

async fn rename(call: &Call, open: &Open, new: NewName) -> Result<(), Status> {
    open.needs(access::DELETE)?;
    // Names start at the share; what starts with a colon would be a stream.
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
    call.server.changes.renamed(file.file.space, &from, &to, open.is_directory);
    Ok(())
}

async fn set_delete(call: &Call, open: &Open, delete: bool) -> Result<(), Status> {
    open.needs(access::DELETE)?;
    let file = open.file()?;
    call.server.files.set_delete(file, delete).await?;
    if let Some(path) = call.server.files.path_of(file).filter(|_| delete && open.is_directory) {
        call.server.changes.deleting(file.file.space, &path);
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
            open.needs(needed)?;
        }
    }
    let sent = Descriptor::from_bytes(input).map_err(|_| Status::INVALID_SECURITY_DESCR)?;
    let file = open.file()?;
    let kept = call.server.files.permission_of(file).await?;
    let mut descriptor = Descriptor::from_sddl(&kept).map_err(|_| Status::NOT_SUPPORTED)?;
    descriptor.replace(parts, sent);
    call.server.files.set_permission(file, &descriptor.to_sddl()).await?;
    modified(call, open, filter::SECURITY);
    Ok(())
}

/// Tells those who watch that something about a file has changed.
fn modified(call: &Call, open: &Open, what: u32) {
    if let Some(file) = open.file {
        call.server.changes.modified_open(&call.server.files, file, what);
    }
}
