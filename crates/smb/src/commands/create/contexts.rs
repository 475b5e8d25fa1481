//! Parses the create contexts of a CREATE request.

use std::time::Duration;

use crate::negotiated::Dialect;
use crate::wire::create::{CreateRequest, Lease, oplock, tag};
use crate::wire::cursor::ByteReader;
use crate::wire::status::Status;

/// Timeout of a version 1 durable handle.
const V1_TIMEOUT: Duration = Duration::from_secs(16 * 60);
/// Timeout of a version 2 durable handle if the client sends none, and its maximum.
const DEFAULT_V2_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_V2_TIMEOUT: Duration = Duration::from_secs(300);

/// The create contexts of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestedContexts {
    pub(crate) lease: Option<Lease>,
    pub(crate) durable: Option<DurableRequest>,
    pub(crate) reconnect: Option<Reconnect>,
    /// The client's timestamp of the last write. If it is still current, the response omits the maximal
    /// access.
    pub(crate) maximal_access: Option<u64>,
    pub(crate) on_disk_id: bool,
    pub(crate) allocation: u64,
    /// The time of a snapshot, as a file time.
    pub(crate) timewarp: Option<u64>,
    pub(crate) descriptor: Option<Vec<u8>>,
}

/// A request for a durable handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurableRequest {
    pub(crate) timeout: Duration,
    /// `None` for version 1.
    pub(crate) create_guid: Option<u128>,
}

/// A request to reconnect a durable handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reconnect {
    pub(crate) persistent: u64,
    /// `None` for version 1.
    pub(crate) create_guid: Option<u128>,
}

impl RequestedContexts {
    pub(crate) fn parse(request: &CreateRequest, dialect: Dialect) -> Result<Self, Status> {
        let sent = &request.contexts;
        let is_sent = |tag: &[u8]| sent.get(tag).is_some();
        let has_leases = dialect >= Dialect::Smb210;
        let [request_v1, reconnect_v1, request_v2, reconnect_v2] = [
            tag::DURABLE_REQUEST,
            tag::DURABLE_RECONNECT,
            tag::DURABLE_REQUEST_V2,
            tag::DURABLE_RECONNECT_V2,
        ]
        .map(is_sent);
        // Only the version 1 contexts may be combined.
        if (request_v2 || reconnect_v2)
            && [request_v1, reconnect_v1, request_v2, reconnect_v2]
                .into_iter()
                .filter(|is_present| *is_present)
                .count()
                > 1
        {
            return Err(Status::INVALID_PARAMETER);
        }
        let reconnect = Self::reconnect(request)?;
        if reconnect.is_some() {
            // A reconnect allows no other contexts, except the version 1 request and the lease.
            let others =
                usize::from(reconnect_v1 && request_v1) + usize::from(has_leases && is_sent(tag::LEASE));
            if sent.len() != 1 + others {
                return Err(Status::OBJECT_NAME_NOT_FOUND);
            }
        }
        if is_sent(tag::EXTENDED_ATTRIBUTES) {
            return Err(Status::EAS_NOT_SUPPORTED);
        }
        let maximal_access = match sent.get(tag::MAXIMAL_ACCESS) {
            Some([]) => Some(0),
            _ => sent.fixed(tag::MAXIMAL_ACCESS)?.map(u64::from_le_bytes),
        };
        let lease = sent.get(tag::LEASE).filter(|_| has_leases).map(Lease::parse).transpose()?;
        let lease = lease.filter(|lease| {
            lease.key != 0
                && (request.oplock_level == oplock::LEASE || reconnect.is_some())
                && (lease.v2.is_none() || dialect >= Dialect::Smb300)
        });
        Ok(Self {
            lease,
            durable: Self::durable_request(request, dialect)?,
            reconnect,
            maximal_access,
            on_disk_id: sent.fixed::<0>(tag::ON_DISK_ID)?.is_some(),
            allocation: sent.fixed(tag::ALLOCATION_SIZE)?.map_or(0, u64::from_le_bytes),
            timewarp: sent.fixed(tag::TIMEWARP)?.map(u64::from_le_bytes),
            descriptor: sent.get(tag::SECURITY_DESCRIPTOR).map(<[u8]>::to_vec),
        })
    }

    fn durable_request(request: &CreateRequest, dialect: Dialect) -> Result<Option<DurableRequest>, Status> {
        if request.contexts.fixed::<16>(tag::DURABLE_REQUEST)?.is_some() {
            return Ok(Some(DurableRequest { timeout: V1_TIMEOUT, create_guid: None }));
        }
        let Some(v2) = request.contexts.fixed::<32>(tag::DURABLE_REQUEST_V2)? else { return Ok(None) };
        if dialect < Dialect::Smb300 {
            return Ok(None);
        }
        let mut reader = ByteReader::new(&v2);
        let timeout = match reader.u32()? {
            0 => DEFAULT_V2_TIMEOUT,
            millis => Duration::from_millis(millis.into()).min(MAX_V2_TIMEOUT),
        };
        reader.skip(12)?;
        Ok(Some(DurableRequest { timeout, create_guid: Some(reader.u128()?) }))
    }

    fn reconnect(request: &CreateRequest) -> Result<Option<Reconnect>, Status> {
        if let Some(v1) = request.contexts.fixed::<16>(tag::DURABLE_RECONNECT)? {
            return Ok(Some(Reconnect { persistent: ByteReader::new(&v1).u64()?, create_guid: None }));
        }
        let Some(v2) = request.contexts.fixed::<36>(tag::DURABLE_RECONNECT_V2)? else { return Ok(None) };
        let mut reader = ByteReader::new(&v2);
        let persistent = reader.u64()?;
        reader.skip(8)?;
        Ok(Some(Reconnect { persistent, create_guid: Some(reader.u128()?) }))
    }
}
