//! The header of a shard, its states, and every transition between them, as functions.
//!
//! Each transition becomes one op that compares the shard's generation and draws a new one. So a transition
//! takes effect only on the header it was computed from.
//!
//! - (I1) At most one shard owns a key. The shard's own header determines that, and every read and commit
//!   sees the header in the same op.
//! - (I2) A commit of epoch *e* takes effect only while the root's decided header is *e* and open.
//! - (I3) A shard's link to the rest of the chain changes only while the shard is not frozen.
//! - (I4) The numbers of the changes that freeze a shard only increase.

use bytes::Bytes;
use lazuli_rados::ObjectName;
use lazuli_store::SpaceHeader;
use serde::{Deserialize, Serialize};

use crate::token;

/// Version of the encoding.
const FORMAT: u8 = 1;

/// The progress of a split or of a change of the space's header in one shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ShardState {
    /// Accepts commits.
    Normal,
    /// Moves its partitions from `at` on to the shard `new`. Accepts commits only below `at`, and serves all
    /// reads.
    Splitting { at: Vec<u8>, new: String },
    /// Receives the partitions from `at` on of the shard `from`, and owns nothing yet.
    Building { from: String, at: Vec<u8> },
    /// Accepts no commits until the change with this number is decided.
    Frozen { change: u64 },
    /// Root only: the change with this number is not yet decided. Accepts no commits.
    Changing { change: u64, epoch: u64, open: bool },
}

/// The header of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardHeader {
    epoch: u64,
    open: bool,
    /// The first partition key that the shard may hold. Never changes.
    pub(crate) lower: Vec<u8>,
    /// The first partition key above those that the shard owns. Only becomes lower.
    pub(crate) upper: Option<Vec<u8>>,
    next: Option<String>,
    pub(crate) state: ShardState,
    /// Root only: number of the last change of the space's header that was decided.
    pub(crate) decided: u64,
    /// Number of rows, less those that front ends have counted as added.
    pub(crate) base_rows: i64,
}

/// The answer of a shard to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitAdmission {
    /// Takes it.
    Accept,
    /// Refuses it: the space is closed or has another epoch.
    Gone,
    /// Can say so only after a split or a change.
    Wait,
    /// Does not own its partition any longer, or not yet.
    Elsewhere,
}

impl ShardHeader {
    /// Makes the header of a new space's only shard.
    pub(crate) const fn root(space: SpaceHeader) -> Self {
        Self {
            epoch: space.epoch,
            open: space.open,
            lower: vec![],
            upper: None,
            next: None,
            state: ShardState::Normal,
            decided: 0,
            base_rows: 0,
        }
    }

    pub(crate) fn encode(&self) -> Bytes {
        // Encoding to memory fails only for types that postcard does not support.
        postcard::to_extend(self, vec![FORMAT]).map(Bytes::from).unwrap_or_default()
    }

    pub(crate) fn decode(stored: &[u8]) -> Option<Self> {
        let (format, rest) = stored.split_first()?;
        (*format == FORMAT).then(|| postcard::from_bytes(rest).ok())?
    }

    /// Returns the space's header as this shard knows it. That of the root is the decided one.
    pub(crate) const fn space(&self) -> SpaceHeader {
        SpaceHeader { epoch: self.epoch, open: self.open }
    }

    /// Returns the next shard of the chain.
    pub(crate) fn next(&self) -> Option<ObjectName> {
        self.next.clone().map(ObjectName)
    }

    /// Returns whether a partition key lies within the shard's bounds.
    pub(crate) fn contains(&self, partition: &[u8]) -> bool {
        self.lower[..] <= *partition && self.is_below_upper(partition)
    }

    /// Returns whether a partition key lies below the upper bound.
    pub(crate) fn is_below_upper(&self, partition: &[u8]) -> bool {
        self.upper.as_ref().is_none_or(|upper| *partition < upper[..])
    }

    /// Returns what the shard does with a commit of an epoch to a partition.
    pub(crate) fn admission(&self, partition: &[u8], epoch: u64) -> CommitAdmission {
        let fits =
            if self.open && self.epoch == epoch { CommitAdmission::Accept } else { CommitAdmission::Gone };
        match &self.state {
            _ if !self.contains(partition) => CommitAdmission::Elsewhere,
            ShardState::Normal => fits,
            ShardState::Splitting { at, .. } if *partition < at[..] || crate::planted(7) => fits,
            // Not in the state of a split: the header is the decided one, so the answer is final.
            ShardState::Splitting { .. } if fits == CommitAdmission::Gone => CommitAdmission::Gone,
            _ => CommitAdmission::Wait,
        }
    }

    /// Begins to move the partitions from `at` on to a new shard (S1).
    pub(crate) fn begin_split(&self, at: &[u8], new: &ObjectName) -> Option<Self> {
        let inside = self.contains(at) && self.lower[..] < *at;
        let state = ShardState::Splitting { at: at.to_vec(), new: new.0.clone() };
        (self.state == ShardState::Normal && inside).then(|| Self { state, ..self.clone() })
    }

    /// Returns the header of the new shard (S2). `name` is the shard that splits and has this header.
    pub(crate) fn built(&self, name: &ObjectName) -> Option<Self> {
        let ShardState::Splitting { at, .. } = &self.state else { return None };
        let state = ShardState::Building { from: name.0.clone(), at: at.clone() };
        Some(Self { lower: at.clone(), state, decided: 0, base_rows: 0, ..self.clone() })
    }

    /// Gives the upper part up (S4). `base_rows` corrects the number of rows.
    pub(crate) fn narrowed(&self, base_rows: i64) -> Option<Self> {
        let ShardState::Splitting { at, new } = &self.state else { return None };
        let (upper, next) = (Some(at.clone()), Some(new.clone()));
        Some(Self { upper, next, state: ShardState::Normal, base_rows, ..self.clone() })
    }

    /// Gives a split up, because the new shard has no space. Late helpers of the split fail, since they
    /// compare the generation. The new shard is never linked, so it is never activated.
    pub(crate) fn split_given_up(&self) -> Option<Self> {
        matches!(self.state, ShardState::Splitting { .. })
            .then(|| Self { state: ShardState::Normal, ..self.clone() })
    }

    /// Takes the partitions over (S5), if the shard that they come from has given them up.
    pub(crate) fn activated(&self, from: &Self) -> Option<Self> {
        let ShardState::Building { at, .. } = &self.state else { return None };
        if from.is_below_upper(at) && !crate::planted(2) {
            return None;
        }
        Some(Self { epoch: from.epoch, open: from.open, state: ShardState::Normal, ..self.clone() })
    }

    /// Changes the space's header in one step, if this root is the only shard.
    pub(crate) fn changed_alone(&self, to: SpaceHeader) -> Option<Self> {
        let alone = self.state == ShardState::Normal && self.next.is_none();
        alone.then(|| Self { epoch: to.epoch, open: to.open, decided: self.decided + 1, ..self.clone() })
    }

    /// Begins a change of the space's header (E1).
    pub(crate) fn begin_change(&self, to: SpaceHeader) -> Option<Self> {
        let state = ShardState::Changing { change: self.decided + 1, epoch: to.epoch, open: to.open };
        (self.state == ShardState::Normal).then(|| Self { state, ..self.clone() })
    }

    /// Freezes a shard for a change (E2).
    pub(crate) fn frozen(&self, change: u64) -> Option<Self> {
        let freezes = match self.state {
            ShardState::Normal => true,
            ShardState::Frozen { change: other } => other < change || crate::planted(11),
            _ => false,
        };
        freezes.then(|| Self { state: ShardState::Frozen { change }, ..self.clone() })
    }

    /// Decides the change that this root is in (E3).
    pub(crate) fn decided(&self) -> Option<Self> {
        let ShardState::Changing { change, epoch, open } = self.state else { return None };
        Some(Self { epoch, open, decided: change, state: ShardState::Normal, ..self.clone() })
    }

    /// Accepts commits again (E4) once the change that froze the shard is decided.
    pub(crate) fn thawed(&self, root: &Self) -> Option<Self> {
        let ShardState::Frozen { change } = self.state else { return None };
        let thaws = root.decided >= change || crate::planted(6);
        let state = ShardState::Normal;
        thaws.then(|| Self { epoch: root.epoch, open: root.open, state, ..self.clone() })
    }
}

/// A header as it was read, with its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeenHeader {
    /// The stored generation, which the next transition compares.
    pub(crate) generation: Bytes,
    pub(crate) header: ShardHeader,
}

impl SeenHeader {
    /// Decodes the stored values of [`crate::keys::GENERATION`] and [`crate::keys::HEADER`].
    pub(crate) fn decode(generation: &Bytes, header: &[u8]) -> Option<Self> {
        token::decode(generation)?;
        Some(Self { generation: generation.clone(), header: ShardHeader::decode(header)? })
    }
}

/// The use of rows that a reader read from a frozen shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrozenRead {
    /// Returns them with the root's header.
    WithRootHeader,
    /// Reads again: more than one change was decided meanwhile.
    Again,
}

/// Decides about rows of a shard that was frozen for a change, from the root as it was read later.
pub(crate) fn frozen_read(change: u64, root: &ShardHeader) -> FrozenRead {
    if root.decided > change && !crate::planted(10) { FrozenRead::Again } else { FrozenRead::WithRootHeader }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: SpaceHeader = SpaceHeader { epoch: 3, open: true };
    const CLOSED: SpaceHeader = SpaceHeader { epoch: 4, open: false };

    fn name(text: &str) -> ObjectName {
        ObjectName(text.into())
    }

    fn root() -> ShardHeader {
        ShardHeader::root(OPEN)
    }

    fn splitting() -> ShardHeader {
        root().begin_split(b"m", &name("y")).unwrap()
    }

    #[test]
    fn header_is_decoded_into_what_was_encoded_and_other_formats_are_refused() {
        let header = splitting();
        let stored = header.encode();
        assert_eq!(ShardHeader::decode(&stored), Some(header));
        assert_eq!(ShardHeader::decode(&[&[9], &stored[1..]].concat()), None);
    }

    #[test]
    fn split_goes_through_its_steps_and_only_in_order() {
        let x = splitting();
        let y = x.built(&name("x")).unwrap();
        assert_eq!(y.activated(&x), None, "the old shard still owns the range");
        assert_eq!(
            (x.begin_split(b"c", &name("z")), x.begin_change(CLOSED), x.frozen(1)),
            (None, None, None)
        );
        let narrow = x.narrowed(0).unwrap();
        assert!(narrow.contains(b"l") && !narrow.contains(b"m") && narrow.next() == Some(name("y")));
        let y = y.activated(&narrow).unwrap();
        assert!(y.contains(b"m") && !y.contains(b"l") && y.next().is_none());
        assert_eq!((y.state.clone(), y.space()), (ShardState::Normal, OPEN));
        assert_eq!(narrow.begin_split(b"m", &name("z")), None, "outside of the bounds");
        assert_eq!(root().begin_split(b"", &name("z")), None, "nothing would stay");
        assert_eq!(x.split_given_up(), Some(root()));
        assert_eq!(root().narrowed(0), None);
    }

    #[test]
    fn later_split_of_the_old_shard_does_not_keep_the_new_one_from_being_activated() {
        let x = splitting();
        let y = x.built(&name("x")).unwrap();
        let again = x.narrowed(0).unwrap().begin_split(b"c", &name("z")).unwrap().narrowed(0).unwrap();
        assert!(y.activated(&again).is_some());
    }

    #[test]
    fn change_freezes_all_shards_until_it_is_decided() {
        let x = splitting().narrowed(0).unwrap();
        assert_eq!(x.changed_alone(CLOSED), None, "there are other shards");
        let changing = x.begin_change(CLOSED).unwrap();
        assert_eq!((changing.space(), changing.decided), (OPEN, 0), "not yet decided");
        let shard = ShardHeader { lower: b"m".to_vec(), ..root() };
        let frozen = shard.frozen(1).unwrap();
        assert_eq!((frozen.frozen(1), frozen.thawed(&changing)), (None, None));
        let refrozen = frozen.frozen(2).unwrap();
        assert_eq!(refrozen.frozen(1), None, "numbers only increase");
        let decided = changing.decided().unwrap();
        assert_eq!((decided.space(), decided.decided), (CLOSED, 1));
        assert_eq!(frozen.thawed(&decided).unwrap().space(), CLOSED);
        assert_eq!(refrozen.thawed(&decided), None);
        assert_eq!(root().changed_alone(CLOSED).unwrap().space(), CLOSED);
    }

    #[test]
    fn commits_are_accepted_only_by_an_open_owner_that_is_not_frozen() {
        use CommitAdmission::{Accept, Elsewhere, Gone, Wait};
        let narrow = splitting().narrowed(0).unwrap();
        let closed = root().changed_alone(CLOSED).unwrap();
        let building = splitting().built(&name("x")).unwrap();
        // Header, and the results for partition "a" in epochs 3 and 4, and partition "z" in epochs 3 and 4.
        let table = [
            (root(), [Accept, Gone, Accept, Gone]),
            (splitting(), [Accept, Gone, Wait, Gone]),
            (building, [Elsewhere, Elsewhere, Wait, Wait]),
            (narrow, [Accept, Gone, Elsewhere, Elsewhere]),
            (root().frozen(1).unwrap(), [Wait; 4]),
            (root().begin_change(CLOSED).unwrap(), [Wait; 4]),
            (closed, [Gone; 4]),
        ];
        for (header, expected) in table {
            let found = [(b"a", 3), (b"a", 4), (b"z", 3), (b"z", 4)]
                .map(|(partition, epoch)| header.admission(partition, epoch));
            assert_eq!(found, expected, "{header:?}");
        }
    }

    #[test]
    fn rows_of_a_frozen_shard_are_joined_only_with_the_header_of_their_moment() {
        for (change, decided, expected) in [
            (2, 1, FrozenRead::WithRootHeader),
            (2, 2, FrozenRead::WithRootHeader),
            (2, 3, FrozenRead::Again),
        ] {
            assert_eq!(frozen_read(change, &ShardHeader { decided, ..root() }), expected);
        }
    }
}
