//! The children of a directory: reading them, now or in a snapshot of the share, and changing them.
//!
//! A snapshot of a share is an epoch of its space. A commit that changes or removes a child written in an
//! earlier epoch keeps the old row, under the last epoch in which it was current. So the child in an epoch is
//! the first row kept in this or a later epoch, if it was written by then; otherwise it is the current row,
//! if that was written by then.

use lazuli_protocol::{ErrorCode, Refusal};
use lazuli_service::Damage;
use lazuli_store::{Mutation, ReadSet, Reads, Row, View};

use crate::tree::keys;
use crate::tree::move_record::NameReservation;
use crate::tree::names::Name;
use crate::tree::record::{Node, Own};

/// The root has no name. No child has an empty name.
const ROOT_NAME: &[u8] = b"";

/// The version of a child to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The current one.
    Now,
    /// The one at the end of an epoch.
    Epoch(u64),
}

/// Returns what to read to find a child.
pub(crate) fn reads(name: &Name, at: At) -> Reads {
    reads_folded(&name.folded, at)
}

/// Returns what to read to find a child by its folded name.
pub(crate) fn reads_folded(name: &[u8], at: At) -> Reads {
    let reads = Reads::keys([keys::child(name), keys::moving(name)]);
    match at {
        At::Now => reads,
        At::Epoch(epoch) => reads.and_range(keys::kept_since(name, epoch), 1),
    }
}

/// Returns the child that was read with [`reads`].
pub(crate) fn found(set: &ReadSet, at: At) -> Result<Option<Node>, Damage> {
    let current = set.rows.first().and_then(Option::as_ref);
    let kept = set.ranges.first().and_then(|range| range.rows.first());
    as_of(current, kept, at)
}

/// Returns a child as of `at`, given its current row and the first row kept since then.
pub(crate) fn as_of(current: Option<&Row>, kept: Option<&Row>, at: At) -> Result<Option<Node>, Damage> {
    let decode = |row: Option<&Row>| row.map(|row| Node::decode(&row.value)).transpose();
    let At::Epoch(epoch) = at else { return decode(current) };
    match decode(kept)? {
        Some(kept) => Ok(Some(kept).filter(|node| node.epoch <= epoch)),
        None => Ok(decode(current)?.filter(|node| node.epoch <= epoch)),
    }
}

/// Returns the reservation of a name that was read with [`reads`].
pub(crate) fn reserved(set: &ReadSet) -> Result<Option<NameReservation>, Damage> {
    let row = set.rows.get(1).and_then(Option::as_ref);
    row.map(|row| NameReservation::decode(&row.value)).transpose()
}

/// Returns the current child, as a rule sees it.
pub(crate) fn current(view: &View<'_>, name: &Name) -> Result<Option<Node>, Damage> {
    view.row(&keys::child(&name.folded)).map(|row| Node::decode(&row.value)).transpose()
}

/// Returns the mutations that replace, add or remove a child. Keeps the old row if a snapshot may show it,
/// and counts the bytes.
pub(crate) fn replace(
    view: &View<'_>,
    name: &Name,
    old: Option<&Node>,
    new: Option<Node>,
) -> Result<Vec<Mutation>, Refusal> {
    let epoch = view.space().ok_or(ErrorCode::ShareNotFound)?.epoch;
    replace_in(epoch, &name.folded, old, new)
}

/// Replaces a child like [`replace`], for a change decided in an earlier epoch.
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

/// Returns by how many bytes the share grows if `new` replaces `old`.
pub(crate) fn growth(old: Option<&Node>, new: Option<&Node>) -> i64 {
    let length = |node: Option<&Node>| node.map_or(0, Node::length) as i64;
    length(new) - length(old)
}

/// Returns the root as a rule sees it, if it has properties of its own.
pub(crate) fn current_root(view: &View<'_>) -> Result<Option<Node>, Damage> {
    let own = view.row(&keys::OWN).map(|row| Own::decode(&row.value)).transpose()?;
    Ok(own.and_then(|own| own.root))
}

/// Returns the mutations that set the properties of the root. Keeps the old row if a snapshot may show it.
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

/// Returns what to read to find the properties of the root.
pub(crate) fn root_reads(at: At) -> Reads {
    let reads = Reads::key(keys::OWN);
    match at {
        At::Now => reads,
        At::Epoch(epoch) => reads.and_range(keys::kept_since(ROOT_NAME, epoch), 1),
    }
}

/// Returns the properties that were read with [`root_reads`]. `None`: the root was never changed.
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

/// Returns what a change of a child depends on: its directory is not deleted, and the child not moved.
pub(crate) fn reads_to_change(name: &Name) -> Reads {
    Reads::keys([keys::OWN, keys::DELETION, keys::child(&name.folded), keys::moving(&name.folded)])
}

/// Returns the reservation that blocks a change of a child: for a deletion of its directory, or for a move of
/// the name.
pub(crate) fn obstacle(view: &View<'_>, name: &Name) -> Result<Option<NameReservation>, Damage> {
    let row = view.row(&keys::DELETION).or_else(|| view.row(&keys::moving(&name.folded)));
    row.map(|row| NameReservation::decode(&row.value)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::record::{NodeId, SmbProperties};
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

    /// Returns the epoch in which the visible row was written.
    fn seen(current: Option<u64>, kept: Option<u64>, at: At) -> Option<u64> {
        let (current, kept) = (current.map(row), kept.map(row));
        as_of(current.as_ref(), kept.as_ref(), at).unwrap().map(|node| node.epoch)
    }

    #[test]
    fn child_in_a_snapshot_is_the_newest_row_of_its_epoch() {
        for (current, kept, at, expected) in [
            (Some(3), Some(1), At::Now, Some(3)),
            (None, Some(1), At::Now, None),
            // Never changed.
            (Some(1), None, At::Epoch(1), Some(1)),
            (Some(1), None, At::Epoch(5), Some(1)),
            // Created later.
            (Some(2), None, At::Epoch(1), None),
            // Changed later.
            (Some(3), Some(1), At::Epoch(1), Some(1)),
            (Some(3), Some(1), At::Epoch(2), Some(1)),
            // Deleted later.
            (None, Some(1), At::Epoch(1), Some(1)),
            // Created and deleted later.
            (None, Some(2), At::Epoch(1), None),
            // Created again later.
            (Some(4), Some(2), At::Epoch(1), None),
        ] {
            assert_eq!(seen(current, kept, at), expected, "{current:?} {kept:?} {at:?}");
        }
    }
}
