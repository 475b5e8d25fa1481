//! The rules of managed concurrency as pure functions: no I/O, no clock, no locks.
//!
//! Each rule takes the current state, the request and the time, and returns the new state or a refusal. Each
//! module can be compared with the protocol's table that it implements. The exceptions are
//! used by every layer but not by the rules: [`time::SystemClock`], [`pace`] and [`fair_semaphore`].

pub mod caching;
pub mod conditions;
pub mod etag;
pub mod fair_semaphore;
pub mod file_lease;
pub mod lease;
pub mod pace;
pub mod range_locks;
pub mod share_mode;
pub mod time;

pub use caching::{CacheBreak, CacheKind, Caching, OtherOpens};
pub use conditions::{ConditionRefusal, Conditions, ReadRules, Validators};
pub use etag::{ETag, ETagPattern, TableETag};
pub use fair_semaphore::{FairPermit, FairSemaphore, Holder};
pub use file_lease::{FileLease, FileLeaseAction};
pub use lease::{
    Access, Admission, Applied, BreakPeriod, Lease, LeaseAction, LeaseDuration, LeaseId, LeaseRefusal,
    LeaseState, LeaseStatus,
};
pub use pace::Pace;
pub use range_locks::{ByteRange, LockConflict, LockKind, NotLocked, RangeLocks};
pub use share_mode::{FileAccess, FileUse, ShareMode};
pub use time::{Clock, ManualClock, Span, Stamp, SystemClock, Timestamp, WrongTime};
