//! The access that an open is granted, and checks of create options and attributes.

use lazuli_concurrency::FileAccess;
use lazuli_file::handles::{Disposition, Kind};
use lazuli_file::opens::AttributeOpen;

use crate::wire::create::{CreateRequest, access, options};
use crate::wire::status::Status;

/// Generic rights and the specific rights that they map to.
const GENERIC: [(u32, u32); 4] = [
    (0x8000_0000, 0x0012_0089),
    (0x4000_0000, 0x0012_0116),
    (0x2000_0000, 0x0012_00a0),
    (0x1000_0000, access::ALL),
];
/// The rights that can be granted on a file in a snapshot.
pub(crate) const READ_ONLY: u32 = 0x0012_00a9;
/// Attributes that no request may contain: volumes, devices and undefined bits.
const INVALID_ATTRIBUTES: u32 = 0xffff_8048;
/// Attributes that are stored with a new file.
const STORED_ATTRIBUTES: u32 = 0x0000_3127;
const ENCRYPTED: u32 = 0x0000_4000;

/// Returns the access that a request gets if access lists do not apply. An account key grants everything,
/// except changes in a snapshot.
pub(crate) fn requested_access(requested: u32, is_snapshot: bool) -> Result<u32, Status> {
    if requested & access::SYSTEM_SECURITY != 0 {
        return Err(Status::PRIVILEGE_NOT_HELD);
    }
    let limit = if is_snapshot { READ_ONLY } else { access::ALL };
    let mut granted = requested & access::ALL;
    let mut known = access::ALL | access::MAXIMUM_ALLOWED;
    for (bit, specific) in GENERIC {
        known |= bit;
        if requested & bit != 0 {
            granted |= specific;
        }
    }
    if requested & !known != 0 || requested == 0 || granted & !limit != 0 {
        return Err(Status::ACCESS_DENIED);
    }
    Ok(if requested & access::MAXIMUM_ALLOWED != 0 { limit } else { granted })
}

/// Limits the granted access to the rights that the access list allows. Fails if the request names a right
/// that is not allowed. `MAXIMUM_ALLOWED` gets all allowed rights.
pub(crate) fn limit_access(requested: u32, granted: u32, allowed: u32) -> Result<u32, Status> {
    if requested & access::MAXIMUM_ALLOWED == 0 {
        return if granted & !allowed == 0 { Ok(granted) } else { Err(Status::ACCESS_DENIED) };
    }
    let specific_rights = map_generic(requested) & access::ALL;
    if specific_rights & !allowed == 0 { Ok(granted & allowed) } else { Err(Status::ACCESS_DENIED) }
}

/// Returns the access to a read-only file for a request of `MAXIMUM_ALLOWED`: without the rights to modify
/// it, unless the request names them.
pub(crate) fn access_if_read_only(requested: u32, granted: u32) -> Option<u32> {
    const MODIFYING: u32 = access::WRITE_DATA | access::APPEND_DATA | access::DELETE_CHILD;
    (requested & access::MAXIMUM_ALLOWED != 0).then_some(granted & !(MODIFYING & !map_generic(requested)))
}

/// Adds the specific rights of the generic rights in a mask.
pub(crate) fn map_generic(mask: u32) -> u32 {
    let specific = GENERIC.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, specific)| specific);
    specific.fold(mask, |all, part| all | part)
}

/// Returns the access of an open as far as it can conflict with share modes.
pub(crate) fn sharing_access(granted: u32) -> FileAccess {
    let mut uses = FileAccess::NONE;
    for (bits, part) in [
        (access::READ_DATA | access::EXECUTE, FileAccess::READ),
        (access::WRITE_DATA | access::APPEND_DATA, FileAccess::WRITE),
        (access::DELETE, FileAccess::DELETE),
    ] {
        if granted & bits != 0 {
            uses = uses | part;
        }
    }
    uses
}

/// Returns whether an open with this access only concerns attributes.
pub(crate) fn attribute_open(granted: u32) -> AttributeOpen {
    let attributes = access::READ_ATTRIBUTES | access::WRITE_ATTRIBUTES | access::SYNCHRONIZE;
    match granted & !attributes {
        0 => AttributeOpen::AttributesOnly,
        access::READ_CONTROL => AttributeOpen::AttributesAndSecurity,
        _ => AttributeOpen::No,
    }
}

/// Returns the access that a share mode allows to other opens.
pub(crate) fn shared_access(share: u32) -> FileAccess {
    let parts = [(1, FileAccess::READ), (2, FileAccess::WRITE), (4, FileAccess::DELETE)];
    parts.into_iter().filter(|(bit, _)| share & bit != 0).fold(FileAccess::NONE, |all, (_, part)| all | part)
}

/// Checks options and attributes. Returns the disposition and the kind of file to open.
pub(crate) fn check_options(request: &CreateRequest) -> Result<(Disposition, Kind), Status> {
    let has = |option: u32| request.options & option != 0;
    if has(options::UNKNOWN) || request.share & !7 != 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    if has(options::CREATE_TREE_CONNECTION | options::OPEN_BY_FILE_ID | options::RESERVE_OPFILTER) {
        return Err(Status::NOT_SUPPORTED);
    }
    if request.attributes & INVALID_ATTRIBUTES != 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    if request.attributes & ENCRYPTED != 0 {
        return Err(Status::ACCESS_DENIED);
    }
    let disposition = match request.disposition {
        0 => Disposition::Supersede,
        1 => Disposition::Open,
        2 => Disposition::Create,
        3 => Disposition::OpenIf,
        4 => Disposition::Overwrite,
        5 => Disposition::OverwriteIf,
        _ => return Err(Status::INVALID_PARAMETER),
    };
    let kind = match (has(options::DIRECTORY_FILE), has(options::NON_DIRECTORY_FILE)) {
        (true, true) => return Err(Status::INVALID_PARAMETER),
        (true, false) => Kind::Directory,
        (false, true) => Kind::File,
        (false, false) => Kind::Any,
    };
    if kind == Kind::Directory && replaces(disposition) {
        return Err(Status::INVALID_PARAMETER);
    }
    Ok((disposition, kind))
}

/// Returns whether the disposition replaces the content of an existing file.
pub(crate) const fn replaces(disposition: Disposition) -> bool {
    matches!(disposition, Disposition::Supersede | Disposition::Overwrite | Disposition::OverwriteIf)
}

/// Returns the attributes to store with a new file.
pub(crate) const fn stored_attributes(requested: u32) -> u32 {
    requested & STORED_ATTRIBUTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::cursor::ByteWriter;
    use crate::wire::header::HEADER_SIZE;

    #[test]
    fn undefined_access_bits_are_denied() {
        let denied = |is_snapshot| {
            (0..32)
                .map(|bit| 1u32 << bit)
                .filter(|bit| requested_access(*bit, is_snapshot).is_err())
                .fold(0, |all, bit| all | bit)
        };
        assert_eq!(denied(false), 0x0de0_fe00);
        assert_eq!(denied(true) & !0x0de0_fe00, 0x500d_0156);
        assert_eq!(requested_access(0, false), Err(Status::ACCESS_DENIED));
        assert_eq!(requested_access(access::SYSTEM_SECURITY, false), Err(Status::PRIVILEGE_NOT_HELD));
    }

    #[test]
    fn generic_rights_map_to_specific_rights() {
        for (requested, expected) in [
            (0x8000_0000, 0x12_0089),
            (0x4000_0001, 0x12_0117),
            (0x2000_0000, 0x12_00a0),
            (0x1000_0000, 0x1f_01ff),
            (0x0200_0000, 0x1f_01ff),
            (0x0010_0080, 0x10_0080),
        ] {
            assert_eq!(requested_access(requested, false), Ok(expected), "{requested:x}");
        }
        assert_eq!(requested_access(access::MAXIMUM_ALLOWED, true), Ok(READ_ONLY));
    }

    #[test]
    fn maximum_allowed_excludes_writing_on_a_read_only_file() {
        for (requested, expected) in [
            (access::ALL, None),
            (access::MAXIMUM_ALLOWED, Some(0x1f_01b9)),
            (access::MAXIMUM_ALLOWED | access::DELETE, Some(0x1f_01b9)),
            (access::MAXIMUM_ALLOWED | access::WRITE_DATA, Some(0x1f_01bb)),
            (access::MAXIMUM_ALLOWED | 0x4000_0000, Some(0x1f_01bf)),
        ] {
            assert_eq!(access_if_read_only(requested, access::ALL), expected, "{requested:x}");
        }
    }

    #[test]
    fn each_create_option_is_accepted_refused_or_unsupported() {
        let mut found = [0u32; 3];
        for bit in (0..32).map(|bit| 1u32 << bit) {
            let mut writer = ByteWriter::new();
            writer.zeros(HEADER_SIZE).u16(57).zeros(34).u32(3).u32(bit).zeros(12);
            let bytes = writer.finish();
            let request = CreateRequest::parse(&Bytes::from(bytes)).unwrap();
            let result = match check_options(&request) {
                Ok(_) => 0,
                Err(Status::NOT_SUPPORTED) => 1,
                Err(_) => 2,
            };
            found[result] |= bit;
        }
        assert_eq!(found, [0x00ef_df7f, 0x0010_2080, 0xff00_0000]);
    }
}
