//! NTSTATUS codes.

use std::fmt;

/// The status of a response.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Status(pub(crate) u32);

macro_rules! statuses {
    ($($name:ident = $value:literal,)*) => {
        #[allow(dead_code, reason = "the protocol's table, including codes that are not used yet")]
        impl Status {
            $(pub(crate) const $name: Self = Self($value);)*
        }

        impl Status {
            /// All statuses that the server uses.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name, if the server uses the status.
            pub(crate) const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Debug for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#010x}", self.0),
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0x0000_0000,
    PENDING = 0x0000_0103,
    NOTIFY_CLEANUP = 0x0000_010b,
    NOTIFY_ENUM_DIR = 0x0000_010c,
    BUFFER_OVERFLOW = 0x8000_0005,
    NO_MORE_FILES = 0x8000_0006,
    STOPPED_ON_SYMLINK = 0x8000_002d,
    UNSUCCESSFUL = 0xc000_0001,
    NOT_IMPLEMENTED = 0xc000_0002,
    INVALID_INFO_CLASS = 0xc000_0003,
    INFO_LENGTH_MISMATCH = 0xc000_0004,
    INVALID_HANDLE = 0xc000_0008,
    INVALID_PARAMETER = 0xc000_000d,
    NO_SUCH_FILE = 0xc000_000f,
    INVALID_DEVICE_REQUEST = 0xc000_0010,
    END_OF_FILE = 0xc000_0011,
    MORE_PROCESSING_REQUIRED = 0xc000_0016,
    ACCESS_DENIED = 0xc000_0022,
    BUFFER_TOO_SMALL = 0xc000_0023,
    OBJECT_NAME_INVALID = 0xc000_0033,
    OBJECT_NAME_NOT_FOUND = 0xc000_0034,
    OBJECT_NAME_COLLISION = 0xc000_0035,
    OBJECT_PATH_NOT_FOUND = 0xc000_003a,
    OBJECT_PATH_SYNTAX_BAD = 0xc000_003b,
    SHARING_VIOLATION = 0xc000_0043,
    EAS_NOT_SUPPORTED = 0xc000_004f,
    FILE_LOCK_CONFLICT = 0xc000_0054,
    LOCK_NOT_GRANTED = 0xc000_0055,
    DELETE_PENDING = 0xc000_0056,
    PRIVILEGE_NOT_HELD = 0xc000_0061,
    LOGON_FAILURE = 0xc000_006d,
    ACCOUNT_DISABLED = 0xc000_0072,
    RANGE_NOT_LOCKED = 0xc000_007e,
    DISK_FULL = 0xc000_007f,
    INSUFFICIENT_RESOURCES = 0xc000_009a,
    BAD_IMPERSONATION_LEVEL = 0xc000_00a5,
    MEDIA_WRITE_PROTECTED = 0xc000_00a2,
    INSTANCE_NOT_AVAILABLE = 0xc000_00ab,
    PIPE_DISCONNECTED = 0xc000_00b0,
    IO_TIMEOUT = 0xc000_00b5,
    FILE_IS_A_DIRECTORY = 0xc000_00ba,
    NOT_SUPPORTED = 0xc000_00bb,
    DUPLICATE_NAME = 0xc000_00bd,
    NETWORK_NAME_DELETED = 0xc000_00c9,
    BAD_NETWORK_NAME = 0xc000_00cc,
    REQUEST_NOT_ACCEPTED = 0xc000_00d0,
    PIPE_EMPTY = 0xc000_00d9,
    INVALID_OPLOCK_PROTOCOL = 0xc000_00e3,
    INTERNAL_ERROR = 0xc000_00e5,
    FILE_CORRUPT_ERROR = 0xc000_0102,
    DIRECTORY_NOT_EMPTY = 0xc000_0101,
    NOT_A_DIRECTORY = 0xc000_0103,
    NAME_TOO_LONG = 0xc000_0106,
    INVALID_VIEW_SIZE = 0xc000_001f,
    NO_EAS_ON_FILE = 0xc000_0052,
    INVALID_SECURITY_DESCR = 0xc000_0079,
    INVALID_USER_BUFFER = 0xc000_00e8,
    FS_DRIVER_REQUIRED = 0xc000_019c,
    CANCELLED = 0xc000_0120,
    CANNOT_DELETE = 0xc000_0121,
    FILE_DELETED = 0xc000_0123,
    FILE_CLOSED = 0xc000_0128,
    TOO_MANY_OPENED_FILES = 0xc000_011f,
    INVALID_LEVEL = 0xc000_0148,
    ILLEGAL_CHARACTER = 0xc000_0161,
    INVALID_LOCK_RANGE = 0xc000_01a1,
    DUPLICATE_OBJECTID = 0xc000_022a,
    FILE_FORCED_CLOSED = 0xc000_00b6,
    USER_SESSION_DELETED = 0xc000_0203,
    NOT_FOUND = 0xc000_0225,
    PATH_NOT_COVERED = 0xc000_0257,
    NETWORK_SESSION_EXPIRED = 0xc000_035c,
    NOT_A_REPARSE_POINT = 0xc000_0275,
    FILE_NOT_AVAILABLE = 0xc000_0467,
    REQUEST_OUT_OF_SEQUENCE = 0xc000_042a,
    SHARE_UNAVAILABLE = 0xc000_0480,
    HASH_NOT_SUPPORTED = 0xc000_a100,
    HASH_NOT_PRESENT = 0xc000_a101,
    SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP = 0xc05d_0000,
}

impl Status {
    /// Returns whether the body is an error response. Warnings have the ordinary body of the command.
    pub(crate) const fn is_error(self) -> bool {
        self.0 >> 30 == 3
    }
}
