//! What the contexts of a request to open something ask for.

use std::time::Duration;

use crate::negotiated::Dialect;
use crate::wire::create::{CreateRequest, Lease, oplock, tag};
use crate::wire::cursor::Reader;
use crate::wire::status::Status;

/// How long a durable handle of the first version waits for its client.
const FIRST_TIMEOUT: Duration = Duration::from_secs(16 * 60);
/// The same for the second, if the client does not say, and at most.
const SECOND_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// What the contexts ask for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) lease: Option<Lease>,
    pub(crate) durable: Option<Wish>,
    pub(crate) reconnect: Option<Reconnect>,
    /// The time that the client knows already: if it is still that of the last write, it needs no answer.
    pub(crate) maximal_access: Option<u64>,
    pub(crate) on_disk_id: bool,
    pub(crate) allocation: u64,
    /// As a file time.
    pub(crate) timewarp: Option<u64>,
    pub(crate) descriptor: Option<Vec<u8>>,
}

/// A durable handle is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) timeout: Duration,
    /// Only in the second version.
    pub(crate) create_guid: Option<u128>,
}

/// A durable handle is wanted back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reconnect {
    pub(crate) persistent: u64,
    /// Only in the second version.
    pub(crate) create_guid: Option<u128>,
}

impl Asked {
    pub(crate) fn of(request: &CreateRequest, dialect: Dialect) -> Result<Self, Status> {
        let contexts = &request.contexts;
        let has = |tag: &[u8]| contexts.get(tag).is_some();
        let leases = dialect >= Dialect::Smb210;
        let [q1, c1, q2, c2] = [
            tag::DURABLE_REQUEST,
            tag::DURABLE_RECONNECT,
            tag::DURABLE_REQUEST_V2,
            tag::DURABLE_RECONNECT_V2,
        ]
        .map(has);
        // Only those of the first version may come together.
        if (q2 || c2) && [q1, c1, q2, c2].into_iter().filter(|is_there| *is_there).count() > 1 {
            return Err(Status::INVALID_PARAMETER);
        }
        let reconnect = Self::reconnect(request)?;
        if reconnect.is_some() {
            // Nothing else may come with it, but what it needs.
            let others = usize::from(c1 && q1) + usize::from(leases && has(tag::LEASE));
            if contexts.len() != 1 + others {
                return Err(Status::OBJECT_NAME_NOT_FOUND);
            }
        }
        if has(tag::EXTENDED_ATTRIBUTES) {
            return Err(Status::EAS_NOT_SUPPORTED);
        }
        let maximal_access = match contexts.get(tag::MAXIMAL_ACCESS) {
            Some([]) => Some(0),
            _ => contexts.fixed(tag::MAXIMAL_ACCESS)?.map(u64::from_le_bytes),
        };
        let lease = contexts.get(tag::LEASE).filter(|_| leases).map(Lease::parse).transpose()?;
        let lease = lease.filter(|lease| {
            lease.key != 0
                && (request.oplock_level == oplock::LEASE || reconnect.is_some())
                && (lease.second.is_none() || dialect >= Dialect::Smb300)
        });
        Ok(Self {
            lease,
            durable: Self::wish(request, dialect)?,
            reconnect,
            maximal_access,
            on_disk_id: contexts.fixed::<0>(tag::ON_DISK_ID)?.is_some(),
            allocation: contexts.fixed(tag::ALLOCATION_SIZE)?.map_or(0, u64::from_le_bytes),
            timewarp: contexts.fixed(tag::TIMEWARP)?.map(u64::from_le_bytes),
            descriptor: contexts.get(tag::SECURITY_DESCRIPTOR).map(<[u8]>::to_vec),
        })
    }

    fn wish(request: &CreateRequest, dialect: Dialect) -> Result<Option<Wish>, Status> {
        if request.contexts.fixed::<16>(tag::DURABLE_REQUEST)?.is_some() {
            return Ok(Some(Wish { timeout: FIRST_TIMEOUT, create_guid: None }));
        }
        let Some(second) = request.contexts.fixed::<32>(tag::DURABLE_REQUEST_V2)? else { return Ok(None) };
        if dialect < Dialect::Smb300 {
            return Ok(None);
        }
        let mut reader = Reader::new(&second);
        let timeout = match reader.u32()? {
            0 => SECOND_TIMEOUT,
            asked => Duration::from_millis(asked.into()).min(MAX_TIMEOUT),
        };
        reader.skip(12)?;
        Ok(Some(Wish { timeout, create_guid: Some(reader.u128()?) }))
    }

    fn reconnect(request: &CreateRequest) -> Result<Option<Reconnect>, Status> {
        if let Some(first) = request.contexts.fixed::<16>(tag::DURABLE_RECONNECT)? {
            return Ok(Some(Reconnect { persistent: Reader::new(&first).u64()?, create_guid: None }));
        }
        let Some(second) = request.contexts.fixed::<36>(tag::DURABLE_RECONNECT_V2)? else { return Ok(None) };
        let mut reader = Reader::new(&second);
        let persistent = reader.u64()?;
        reader.skip(8)?;
        Ok(Some(Reconnect { persistent, create_guid: Some(reader.u128()?) }))
    }
}
