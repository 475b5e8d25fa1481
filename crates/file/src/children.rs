//! The children of a directory: how they are read, now or in a snapshot of the share, and how they are changed.
//!
//! A snapshot of a share is an epoch of its space. Whoever changes or removes a child that was written in an earlier epoch
//! keeps what it was, under the last epoch in which it was so, in the same commit. So a child as it was in an epoch is the
//! first that was kept from that epoch on, if it was written by then; or else the current one, if that was.

use lazuli_generations::Damage;
use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_store::{Mutation, ReadSet, Reads, Row, View};

use crate::keys;
use crate::moves::Reservation;
use crate::names::Name;
use crate::record::{Node, Own};

/// The root has no name, and no child has none.
const ROOT_NAME: &[u8] = b"";

/// When a child is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// As it is.
    Now,
    /// As it was at the end of an epoch.
    Epoch(u64),
}

/// What to read to find a child.
pub(crate) fn reads(name: &Name, at: At) -> Reads {
    reads_folded(&name.folded, at)
}

/// The same, by its folded name.
pub(crate) fn reads_folded(name: &[u8], at: At) -> Reads {
    let reads = Reads::keys([keys::child(name), keys::moving(name)]);
    match at {
        At::Now => reads,
        At::Epoch(epoch) => reads.and_range(keys::kept_since(name, epoch), 1),
    }
}

/// The child that was read so, if there was one.
pub(crate) fn found(set: &ReadSet, at: At) -> Result<Option<Node>, Damage> {
    let current = set.rows.first().and_then(Option::as_ref);
    let kept = set.ranges.first().and_then(|range| range.rows.first());
    as_of(current, kept, at)
}

/// Of a child's current row and the first that was kept since an epoch: what it was then.
pub(crate) fn as_of(current: Option<&Row>, kept: Option<&Row>, at: At) -> Result<Option<Node>, Damage> {
    let decode = |row: Option<&Row>| row.map(|row| Node::decode(&row.value)).transpose();
    let At::Epoch(epoch) = at else { return decode(current) };
    match decode(kept)? {
        Some(kept) => Ok(Some(kept).filter(|node| node.epoch <= epoch)),
        None => Ok(decode(current)?.filter(|node| node.epoch <= epoch)),
    }
}

/// The move that a name is reserved for, among what was read so.
pub(crate) fn reserved(set: &ReadSet) -> Result<Option<Reservation>, Damage> {
    let row = set.rows.get(1).and_then(Option::as_ref);
    row.map(|row| Reservation::decode(&row.value)).transpose()
}

/// A child as a rule sees it.
pub(crate) fn current(view: &View<'_>, name: &Name) -> Result<Option<Node>, Damage> {
    view.row(&keys::child(&name.folded)).map(|row| Node::decode(&row.value)).transpose()
}

/// Puts a child in the place of what was there, or of nothing; or takes it away. Keeps what was there if a snapshot may
/// show it, and counts the bytes.
pub(crate) fn replace(
    view: &View<'_>,
    name: &Name,
    old: Option<&Node>,
    new: Option<Node>,
) -> Result<Vec<Mutation>, Refusal> {
    let epoch = view.space().ok_or(ErrorCode::ShareNotFound)?.epoch;
    replace_in(epoch, &name.folded, old, new)
}

/// The same for a change that happened in that epoch, although the share may have moved on since.
pub(crate) fn replace_in(
    epoch: u64,
    folded: &[u8],
    old: Option<&Node>,
    new: Option<Node>,
) -> Result<Vec<Mutation>, Refusal> {
    let key = keys::child(folded);
    let mut mutations = Vec::with_capacity(4);
    if let Some(old) = old.filter(|old| old.epoch < epoch) {
        mutations.push(Mutation::Put(keys::kept(folded, epoch - 1), old.encode()?));
    }
    let grown = growth(old, new.as_ref());
    mutations.push(match new {
        Some(new) => Mutation::Put(key, Node { epoch, ..new }.encode()?),
        None => Mutation::Delete(key),
    });
    if grown != 0 {
        mutations.push(Mutation::Add(keys::USAGE, grown));
    }
    Ok(mutations)
}

/// By how many bytes the share grows if one takes the place of the other.
pub(crate) fn growth(old: Option<&Node>, new: Option<&Node>) -> i64 {
    let length = |node: Option<&Node>| node.map_or(0, Node::length) as i64;
    length(new) - length(old)
}

/// The root as a rule sees it, if it has properties of its own.
pub(crate) fn current_root(view: &View<'_>) -> Result<Option<Node>, Damage> {
    let own = view.row(&keys::OWN).map(|row| Own::decode(&row.value)).transpose()?;
    Ok(own.and_then(|own| own.root))
}

/// Sets the root's properties, and keeps what they were if a snapshot may show it.
pub(crate) fn replace_root(view: &View<'_>, old: Option<&Node>, new: Node) -> Result<Vec<Mutation>, Refusal> {
    let epoch = view.space().ok_or(ErrorCode::ShareNotFound)?.epoch;
    let mut mutations = Vec::with_capacity(2);
    if let Some(old) = old.filter(|old| old.epoch < epoch) {
        mutations.push(Mutation::Put(keys::kept(ROOT_NAME, epoch - 1), old.encode()?));
    }
    let own = Own { root: Some(Node { epoch, ..new }) };
    mutations.push(Mutation::Put(keys::OWN, own.encode()?));
    Ok(mutations)
}

/// What to read to find the root's properties.
pub(crate) fn root_reads(at: At) -> Reads {
    let reads = Reads::key(keys::OWN);
    match at {
        At::Now => reads,
        At::Epoch(epoch) => reads.and_range(keys::kept_since(ROOT_NAME, epoch), 1),
    }
}

/// The root's properties that were read so. None: those that every share has at first.
pub(crate) fn found_root(set: &ReadSet, at: At) -> Result<Option<Node>, Damage> {
    let own = set.rows.first().and_then(Option::as_ref);
    let own = own.map(|row| Own::decode(&row.value)).transpose()?.and_then(|own| own.root);
    let At::Epoch(epoch) = at else { return Ok(own) };
    let kept = set.ranges.first().and_then(|range| range.rows.first());
    let seen = match kept {
        Some(kept) => Some(Node::decode(&kept.value)?),
        None => own,
    };
    Ok(seen.filter(|node| node.epoch <= epoch))
}

/// What a change of a directory's child depends on: the directory must not be deleted meanwhile, nor the child moved.
pub(crate) fn reads_to_change(name: &Name) -> Reads {
    Reads::keys([keys::OWN, keys::GOING, keys::child(&name.folded), keys::moving(&name.folded)])
}

/// What stands in the way of changing a child: the directory is being deleted, or the child moved, or another to its name.
pub(crate) fn obstacle(view: &View<'_>, name: &Name) -> Result<Option<Reservation>, Damage> {
    let row = view.row(&keys::GOING).or_else(|| view.row(&keys::moving(&name.folded)));
    row.map(|row| Reservation::decode(&row.value)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NodeId, SmbProperties};
    use lazuli_concurrency::{Stamp, Timestamp};
    use lazuli_protocol::Metadata;
    use lazuli_store::Token;

    fn row(epoch: u64) -> Row {
        let now = Timestamp::from_unix_seconds(1_700_000_000);
        let properties = SmbProperties {
            attributes: 0x10,
            created: now,
            last_write: now,
            change: now,
            accessed: None,
            permission: None,
        };
        let node = Node {
            epoch,
            id: NodeId(epoch),
            name: "name".into(),
            modified: now,
            etag: Stamp::from_ticks(1).into(),
            properties,
            metadata: Metadata::default(),
            file: None,
        };
        Row { key: keys::child(b"NAME"), value: node.encode().unwrap(), token: Token(Stamp::from_ticks(1)) }
    }

    /// The epoch in which what is seen was written.
    fn seen(current: Option<u64>, kept: Option<u64>, at: At) -> Option<u64> {
        let (current, kept) = (current.map(row), kept.map(row));
        as_of(current.as_ref(), kept.as_ref(), at).unwrap().map(|node| node.epoch)
    }

    #[test]
    fn a_child_in_a_snapshot_is_what_it_was_at_the_end_of_that_epoch() {
        for (current, kept, at, expected) in [
            (Some(3), Some(1), At::Now, Some(3)),
            (None, Some(1), At::Now, None),
            // Never changed since.
            (Some(1), None, At::Epoch(1), Some(1)),
            (Some(1), None, At::Epoch(5), Some(1)),
            // Made later.
            (Some(2), None, At::Epoch(1), None),
            // Changed later: what was kept.
            (Some(3), Some(1), At::Epoch(1), Some(1)),
            (Some(3), Some(1), At::Epoch(2), Some(1)),
            // Deleted later.
            (None, Some(1), At::Epoch(1), Some(1)),
            // Made and deleted later.
            (None, Some(2), At::Epoch(1), None),
            // Made again later.
            (Some(4), Some(2), At::Epoch(1), None),
        ] {
            assert_eq!(seen(current, kept, at), expected, "{current:?} {kept:?} {at:?}");
        }
    }
}
