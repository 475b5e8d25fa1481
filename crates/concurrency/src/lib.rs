//! The rules of managed concurrency, pure: no I/O, no clock, no lock.
//!
//! Every rule takes the state it judges, the request and the time as values, and gives back the new state or a
//! refusal. Each module can be read beside the table of the protocol that it implements.

pub mod caching;
pub mod conditions;
pub mod etag;
pub mod file_lease;
pub mod lease;
pub mod range_locks;
pub mod share_mode;
pub mod time;

pub use caching::{Beside, CacheBreak, CacheKind, Caching};
pub use conditions::{ConditionRefusal, Conditions, ReadRules, Validators};
pub use etag::{ETag, ETagPattern, TableETag};
pub use file_lease::{FileLease, FileLeaseAction};
pub use lease::{
    Access, Admission, Applied, BreakPeriod, Lease, LeaseAction, LeaseDuration, LeaseId, LeaseRefusal,
    LeaseState, LeaseStatus,
};
pub use range_locks::{ByteRange, LockConflict, LockKind, NotLocked, RangeLocks};
pub use share_mode::{FileAccess, FileUse, ShareMode};
pub use time::{Clock, ManualClock, Span, Stamp, SystemClock, Timestamp, WrongTime};
