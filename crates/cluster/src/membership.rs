//! Slots: which front end issues which stamps.
//!
//! The object [`MEMBERS`] has one row for each slot: the instance in the slot, and the ceiling of its stamps.
//! A front end takes a slot by comparing and setting the slot's row. It begins above the ceilings of all
//! slots, and raises its own ceiling before its stamps reach it. Only the front end in a slot writes the row.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use lazuli_concurrency::{Clock, Stamp, Timestamp};
use lazuli_rados::{
    Cluster, ObjectName, OmapRange, Pool, ReadFailure, ReadOp, ReadStep, ReadValue, WriteError, WriteOp,
    WriteStep,
};
use serde::{Deserialize, Serialize};

use crate::access::OP_TIMEOUT;
use crate::clock::{SLOTS, StampClock};
use crate::protocol::Protocol;
use crate::token;

/// The object that holds the slots.
const MEMBERS: &str = "front-ends";
/// Time between two looks at the ceiling.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Number of times that joining is tried.
const JOIN_TRIES: usize = 20;

/// One slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SlotRow {
    /// The instance in the slot, or `None` if the slot is free.
    instance: Option<String>,
    ceiling: u64,
}

/// Why a front end could not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// All slots are taken.
    #[error("64 front ends are connected to this cluster already")]
    NoSlot,
    /// The cluster does not answer.
    #[error("no answer from the cluster: {0}")]
    Unavailable(String),
    /// A row cannot be decoded.
    #[error("object front-ends has a row that this version does not know")]
    UnknownFormat,
}

/// A slot that this front end holds.
pub(crate) struct HeldSlot {
    key: Bytes,
    stored: Bytes,
    row: SlotRow,
}

fn members() -> ObjectName {
    ObjectName(MEMBERS.into())
}

fn slot_key(slot: u64) -> Bytes {
    format!("s{slot:02}").into_bytes().into()
}

fn encode(row: &SlotRow) -> Bytes {
    // Encoding to memory fails only for types that postcard does not support.
    postcard::to_extend(row, vec![1]).map(Bytes::from).unwrap_or_default()
}

fn decode(stored: &[u8]) -> Option<SlotRow> {
    let (format, rest) = stored.split_first()?;
    (*format == 1).then(|| postcard::from_bytes(rest).ok())?
}

/// Takes a free slot. Returns it with the clock of the slot.
pub(crate) async fn join(
    cluster: &Arc<dyn Cluster>,
    machine: Arc<dyn Clock>,
) -> Result<(HeldSlot, StampClock), JoinError> {
    let mut failure = String::new();
    for _ in 0..JOIN_TRIES {
        let rows = match read_slots(cluster).await {
            Ok(rows) => rows,
            Err(error) => {
                failure = error.to_string();
                continue;
            }
        };
        let decoded = rows.iter().map(|(key, stored)| decode(stored).map(|row| (key.clone(), row)));
        let decoded: Vec<_> = decoded.collect::<Option<_>>().ok_or(JoinError::UnknownFormat)?;
        let own = &cluster.address().0;
        let free = |slot: &u64| {
            let row = decoded.iter().find(|(key, _)| *key == slot_key(*slot));
            row.is_none_or(|(_, row)| row.instance.as_ref().is_none_or(|instance| instance == own))
        };
        let slot = (0..SLOTS).find(free).ok_or(JoinError::NoSlot)?;
        let floor = decoded.iter().map(|(_, row)| row.ceiling).max().unwrap_or_default();
        let clock = StampClock::new(machine.clone(), slot as u8, Timestamp::from_ticks(floor));
        let before = rows.iter().find(|(key, _)| *key == slot_key(slot)).map(|(_, stored)| stored.clone());
        let row = SlotRow { instance: Some(own.clone()), ceiling: clock.next_ceiling().ticks() };
        let mut held = HeldSlot { key: slot_key(slot), stored: before.unwrap_or_default(), row: row.clone() };
        match held.write(cluster, &row).await {
            Ok(()) => {
                clock.raise(Timestamp::from_ticks(row.ceiling));
                return Ok((held, clock));
            }
            Err(error) => failure = error.to_string(),
        }
    }
    Err(JoinError::Unavailable(failure))
}

async fn read_slots(cluster: &Arc<dyn Cluster>) -> Result<Vec<(Bytes, Bytes)>, ReadFailure> {
    // A comparison needs the object. Creating it again is harmless.
    let create = WriteOp::new([WriteStep::SetOmap(vec![("format".into(), token::encode(Stamp::default()))])]);
    _ = cluster.write(Pool::Meta, &members(), create.may_exceed_full(), OP_TIMEOUT).await;
    let range = OmapRange { from: "s".into(), end: "t".into(), limit: 2 * SLOTS as usize };
    let mut rows = vec![];
    let mut from = range.from.clone();
    loop {
        let step = ReadStep::OmapRange(OmapRange { from: from.clone(), ..range.clone() });
        let reply = cluster.read(Pool::Meta, &members(), ReadOp::new([step])).await?;
        let Some(ReadValue::OmapRange(page)) = reply.into_iter().next() else {
            return Err(ReadFailure::Other("an unexpected reply".into()));
        };
        rows.extend(page.entries);
        match rows.last().filter(|_| page.more) {
            Some((last, _)) => from = crate::keys::after_stored(last),
            None => return Ok(rows),
        }
    }
}

impl HeldSlot {
    async fn write(&mut self, cluster: &Arc<dyn Cluster>, row: &SlotRow) -> Result<(), WriteError> {
        let stored = encode(row);
        let op = WriteOp::new([
            token::equals(&self.key, self.stored.clone()),
            WriteStep::SetOmap(vec![(self.key.clone(), stored.clone())]),
        ]);
        cluster.write(Pool::Meta, &members(), op.may_exceed_full(), OP_TIMEOUT).await?;
        self.stored = stored;
        Ok(())
    }

    /// Reads the row again after an op in doubt. Returns false if the slot belongs to another instance.
    async fn read(&mut self, cluster: &Arc<dyn Cluster>) -> bool {
        let Ok(rows) = read_slots(cluster).await else { return true };
        let Some((_, stored)) = rows.into_iter().find(|(key, _)| *key == self.key) else { return false };
        let is_own = decode(&stored).is_some_and(|row| row.instance == self.row.instance);
        if is_own {
            self.stored = stored;
        }
        is_own
    }

    /// Raises the ceiling of the slot as time goes on, while the front end runs.
    pub(crate) async fn keep(mut self, protocol: Weak<Protocol>) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let Some(protocol) = protocol.upgrade() else { return };
            if protocol.access.is_fenced() {
                return;
            }
            if !protocol.access.clock.needs_ceiling() {
                continue;
            }
            let ceiling = protocol.access.clock.next_ceiling();
            let row = SlotRow { ceiling: ceiling.ticks(), ..self.row.clone() };
            match self.write(&protocol.access.cluster, &row).await {
                Ok(()) => protocol.access.clock.raise(ceiling),
                Err(WriteError::Fenced) => protocol.access.note_fenced(),
                Err(_) => {
                    if !self.read(&protocol.access.cluster).await {
                        protocol.access.note_fenced();
                    }
                }
            }
        }
    }
}
