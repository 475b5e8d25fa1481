//! What access an open gets, and which options and attributes can be asked for.

use lazuli_concurrency::FileAccess;
use lazuli_file::native::{Disposition, Kind};
use lazuli_file::opens::Looks;

use crate::open::access;
use crate::wire::create::{CreateRequest, options};
use crate::wire::status::Status;

/// What generic rights stand for, by their bits from the highest down.
const GENERIC: [(u32, u32); 4] = [
    (0x8000_0000, 0x0012_0089),
    (0x4000_0000, 0x0012_0116),
    (0x2000_0000, 0x0012_00a0),
    (0x1000_0000, access::ALL),
];
/// What can be had of something in a snapshot.
pub(crate) const READ_ONLY: u32 = 0x0012_00a9;
/// Attributes that nobody can ask for: volumes, devices, and what has no meaning.
const IMPOSSIBLE_ATTRIBUTES: u32 = 0xffff_8048;
/// Attributes that can be given to what is made.
const KEPT_ATTRIBUTES: u32 = 0x0000_3127;
const ENCRYPTED: u32 = 0x0000_4000;

/// The access that a mask asks for. The holder of the key is refused nothing that there is.
pub(crate) fn granted(asked: u32, is_snapshot: bool) -> Result<u32, Status> {
    if asked & access::SYSTEM_SECURITY != 0 {
        return Err(Status::PRIVILEGE_NOT_HELD);
    }
    let most = if is_snapshot { READ_ONLY } else { access::ALL };
    let mut granted = asked & access::ALL;
    let mut known = access::ALL | access::MAXIMUM_ALLOWED;
    for (bit, stands_for) in GENERIC {
        known |= bit;
        if asked & bit != 0 {
            granted |= stands_for;
        }
    }
    if asked & !known != 0 || asked == 0 || granted & !most != 0 {
        return Err(Status::ACCESS_DENIED);
    }
    Ok(if asked & access::MAXIMUM_ALLOWED != 0 { most } else { granted })
}

/// The access that a mask asks for, if the holder of the key may do only so much.
pub(crate) fn granted_of(asked: u32, granted: u32, may: u32) -> Result<u32, Status> {
    if asked & access::MAXIMUM_ALLOWED == 0 {
        return if granted & !may == 0 { Ok(granted) } else { Err(Status::ACCESS_DENIED) };
    }
    let named = generic(asked) & access::ALL;
    if named & !may == 0 { Ok(granted & may) } else { Err(Status::ACCESS_DENIED) }
}

/// The access that a mask which asks for all that there is gets to a read-only file, as long as it names nothing that
/// changes it.
pub(crate) fn if_read_only(asked: u32, granted: u32) -> Option<u32> {
    const TAKEN: u32 = access::WRITE_DATA | access::APPEND_DATA | access::DELETE_CHILD;
    (asked & access::MAXIMUM_ALLOWED != 0).then_some(granted & !(TAKEN & !generic(asked)))
}

/// A mask with what its generic rights stand for.
pub(crate) fn generic(mask: u32) -> u32 {
    let stands_for = GENERIC.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, stands_for)| stands_for);
    stands_for.fold(mask, |all, part| all | part)
}

/// What an open with that access does, as far as others can be in its way.
pub(crate) fn uses(granted: u32) -> FileAccess {
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

/// What an open with that access leaves alone of what others cache.
pub(crate) fn looks(granted: u32) -> Looks {
    let attributes = access::READ_ATTRIBUTES | access::WRITE_ATTRIBUTES | access::SYNCHRONIZE;
    match granted & !attributes {
        0 => Looks::PastAll,
        access::READ_CONTROL => Looks::PastLeases,
        _ => Looks::No,
    }
}

/// What an open lets others do.
pub(crate) fn shares(share: u32) -> FileAccess {
    let parts = [(1, FileAccess::READ), (2, FileAccess::WRITE), (4, FileAccess::DELETE)];
    parts.into_iter().filter(|(bit, _)| share & bit != 0).fold(FileAccess::NONE, |all, (_, part)| all | part)
}

/// Refuses options and attributes that make no sense.
pub(crate) fn check(request: &CreateRequest) -> Result<(Disposition, Kind), Status> {
    let has = |option: u32| request.options & option != 0;
    if has(options::UNKNOWN) || request.share & !7 != 0 {
        return Err(Status::INVALID_PARAMETER);
    }
    if has(options::CREATE_TREE_CONNECTION | options::OPEN_BY_FILE_ID | options::RESERVE_OPFILTER) {
        return Err(Status::NOT_SUPPORTED);
    }
    if request.attributes & IMPOSSIBLE_ATTRIBUTES != 0 {
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

/// Whether what is there is emptied.
pub(crate) const fn replaces(disposition: Disposition) -> bool {
    matches!(disposition, Disposition::Supersede | Disposition::Overwrite | Disposition::OverwriteIf)
}

/// The attributes that something is made with.
pub(crate) const fn attributes(asked: u32) -> u32 {
    asked & KEPT_ATTRIBUTES
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::cursor::Writer;
    use crate::wire::header::HEADER;

    #[test]
    fn bits_that_mean_nothing_are_denied_one_by_one() {
        let denied = |is_snapshot| {
            (0..32)
                .map(|bit| 1u32 << bit)
                .filter(|bit| granted(*bit, is_snapshot).is_err())
                .fold(0, |all, bit| all | bit)
        };
        assert_eq!(denied(false), 0x0de0_fe00);
        assert_eq!(denied(true) & !0x0de0_fe00, 0x500d_0156);
        assert_eq!(granted(0, false), Err(Status::ACCESS_DENIED));
        assert_eq!(granted(access::SYSTEM_SECURITY, false), Err(Status::PRIVILEGE_NOT_HELD));
    }

    #[test]
    fn generic_rights_become_what_they_stand_for() {
        for (asked, expected) in [
            (0x8000_0000, 0x12_0089),
            (0x4000_0001, 0x12_0117),
            (0x2000_0000, 0x12_00a0),
            (0x1000_0000, 0x1f_01ff),
            (0x0200_0000, 0x1f_01ff),
            (0x0010_0080, 0x10_0080),
        ] {
            assert_eq!(granted(asked, false), Ok(expected), "{asked:x}");
        }
        assert_eq!(granted(access::MAXIMUM_ALLOWED, true), Ok(READ_ONLY));
    }

    #[test]
    fn all_that_is_allowed_is_less_of_a_read_only_file() {
        for (asked, expected) in [
            (access::ALL, None),
            (access::MAXIMUM_ALLOWED, Some(0x1f_01b9)),
            (access::MAXIMUM_ALLOWED | access::DELETE, Some(0x1f_01b9)),
            (access::MAXIMUM_ALLOWED | access::WRITE_DATA, Some(0x1f_01bb)),
            (access::MAXIMUM_ALLOWED | 0x4000_0000, Some(0x1f_01bf)),
        ] {
            assert_eq!(if_read_only(asked, access::ALL), expected, "{asked:x}");
        }
    }

    #[test]
    fn options_are_accepted_refused_or_not_supported_one_by_one() {
        let mut found = [0u32; 3];
        for bit in (0..32).map(|bit| 1u32 << bit) {
            let mut writer = Writer::new();
            writer.zeros(HEADER).u16(57).zeros(34).u32(3).u32(bit).zeros(12);
            let bytes = writer.finish();
            let request = CreateRequest::parse(&Bytes::from(bytes)).unwrap();
            let place = match check(&request) {
                Ok(_) => 0,
                Err(Status::NOT_SUPPORTED) => 1,
                Err(_) => 2,
            };
            found[place] |= bit;
        }
        assert_eq!(found, [0x00ef_df7f, 0x0010_2080, 0xff00_0000]);
    }
}
