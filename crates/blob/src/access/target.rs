//! Finds the container, the blob and the state that a request addresses.

use bytes::Bytes;
use lazuli_concurrency::{Stamp, Timestamp};
use lazuli_extents::ContentHold;
use lazuli_protocol::{Account, ErrorCode, Query, Refusal, Request, date, names};
use lazuli_store::{Change, Decision, Mutation, Partition, Reads, Row};

use crate::BlobService;
use crate::access::protection::ProtectingRequest;
use crate::model::container::Container;
use crate::model::keys;
use crate::model::record::{Blob, Damage};
use crate::rules::precondition::not_found;

/// A blob that a request addresses.
pub(crate) struct Target {
    pub(crate) container: Container,
    pub(crate) partition: Partition,
    pub(crate) state: State,
}

/// A state of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Current,
    Snapshot(Stamp),
    Version(Stamp),
}

impl State {
    /// Returns the state that a query names.
    pub(crate) fn parse(query: &Query) -> Result<Self, Refusal> {
        let stamp = |name: &str| -> Result<Option<Stamp>, Refusal> {
            let Some(text) = query.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
            let moment = date::parse_snapshot(text);
            let moment = moment.ok_or_else(|| Refusal::invalid_query(name, text, "This is not a time."))?;
            Ok(Some(Stamp::from_ticks(moment.ticks())))
        };
        match (stamp("snapshot")?, stamp("versionid")?) {
            (None, None) => Ok(Self::Current),
            (Some(snapshot), None) => Ok(Self::Snapshot(snapshot)),
            (None, Some(version)) => Ok(Self::Version(version)),
            (Some(_), Some(_)) => Err(ErrorCode::MutuallyExclusiveQueryParameters.into()),
        }
    }
}

impl State {
    /// Returns the rows that may contain this state.
    fn reads(self) -> Reads {
        match self {
            Self::Current => Reads::key(keys::BASE),
            Self::Snapshot(stamp) => Reads::key(keys::snapshot(stamp)),
            // If the version is the current one, the row of the current state contains it.
            Self::Version(stamp) => Reads::keys([keys::version(stamp), keys::BASE]),
        }
    }

    /// Finds this state in the rows, and returns it with its key. Returns `None` if clients cannot read it.
    fn choose<'a>(
        self,
        rows: impl IntoIterator<Item = &'a Row>,
        now: Timestamp,
    ) -> Result<Option<(Bytes, Blob)>, Damage> {
        for row in rows {
            let blob = Blob::decode(&row.value)?;
            let is_asked_for = !matches!(self, Self::Version(stamp) if blob.version != Some(stamp));
            if is_asked_for && blob.is_live(now) {
                return Ok(Some((row.key.clone(), blob)));
            }
        }
        Ok(None)
    }
}

/// The change of a state's properties that a rule decides.
pub(crate) struct PropertyChange<T> {
    pub(crate) blob: Blob,
    /// Time until which the decision holds.
    pub(crate) valid_until: Option<Timestamp>,
    pub(crate) answer: T,
}

/// A state of a blob that was read. Holds its content.
pub(crate) struct PinnedState {
    pub(crate) blob: Blob,
    /// Whether this is the current state, not a snapshot or an earlier version.
    pub(crate) is_current: bool,
    pub(crate) held: ContentHold,
    /// Time of the read.
    pub(crate) now: Timestamp,
}

impl BlobService {
    /// Returns the current container of this name.
    pub(crate) async fn container(&self, account: &Account, name: &str) -> Result<Container, Refusal> {
        names::check_container(name)?;
        self.containers.get(account, name).await
    }

    /// Finds the container and the blob that a request addresses. The container must exist, the blob need
    /// not.
    pub(crate) async fn target(&self, request: &Request) -> Result<Target, Refusal> {
        names::check_blob(&request.container, &request.object)?;
        let state = State::parse(&request.query)?;
        let container = self.container(&request.account, &request.container).await?;
        let partition = keys::blob(container.space, &request.object);
        Ok(Target { container, partition, state })
    }

    /// Finds the blob that a write addresses. Refuses snapshots and earlier versions.
    pub(crate) async fn write_target(&self, request: &Request) -> Result<Target, Refusal> {
        for name in ["snapshot", "versionid"] {
            if let Some(value) = request.query.get(name).filter(|value| !value.is_empty()) {
                let reason = "Snapshots and earlier versions cannot be written.";
                return Err(Refusal::invalid_query(name, value, reason));
            }
        }
        self.target(request).await
    }

    /// Reads the state that a request addresses, if it exists.
    pub(crate) async fn find(&self, target: &Target) -> Result<Option<PinnedState>, Refusal> {
        self.find_state(&target.partition, target.state).await
    }

    /// Reads a state of the blob in a partition, if it exists.
    pub(crate) async fn find_state(
        &self,
        partition: &Partition,
        state: State,
    ) -> Result<Option<PinnedState>, Refusal> {
        let pin = self.pin();
        let set = self.rows.read(partition, &state.reads()).await?;
        let now = self.store.now();
        let found = state.choose(set.rows.iter().flatten(), now);
        let found = found.map_err(|damage| damage.at(partition))?;
        Ok(found.map(|(key, blob)| {
            let held = pin.hold(blob.contents());
            PinnedState { blob, is_current: key == keys::BASE, held, now }
        }))
    }

    /// Changes properties of the state that a request addresses, but not its content or `ETag`. `rule` gets
    /// the state, if it exists, and the time.
    pub(crate) async fn change_properties<T>(
        &self,
        target: &Target,
        protecting: Option<&ProtectingRequest<'_>>,
        mut rule: impl FnMut(Option<Blob>, Timestamp) -> Result<PropertyChange<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let reads = target.state.reads();
        let keys = reads.keys.clone();
        self.transact_protecting(protecting, &target.partition, reads, |view| {
            let rows = keys.iter().filter_map(|key| view.row(key));
            let (key, blob) = target.state.choose(rows, view.now)?.unzip();
            let ends = blob.as_ref().and_then(Blob::expires_at);
            let PropertyChange { blob, valid_until, answer } = rule(blob, view.now)?;
            let key = key.ok_or_else(not_found)?;
            let put = Mutation::Put(key, blob.encode()?);
            Ok(Decision::Write(Change::of([put]).until(valid_until).until(ends), answer))
        })
        .await
    }
}
