//! Listing the children of a directory in the order of their folded names, now or in a snapshot.
//!
//! In a snapshot a name can have a current row, kept rows, or both, in two ranges. Both ranges are read
//! together. Only names that are complete in both are used; the next step begins at the first incomplete
//! name.

use std::collections::BTreeMap;

use bytes::Bytes;
use lazuli_protocol::Refusal;
use lazuli_store::{Partition, Reads, Row, Scanned};

use crate::FileService;
use crate::tree::children::{self, At, as_of};
use crate::tree::keys;
use crate::tree::record::Node;

/// Maximum number of rows read at once.
const CHUNK: usize = 1024;

/// A position in the children of a directory.
pub(crate) struct Listing {
    directory: Partition,
    prefix: Vec<u8>,
    /// The next name to read; `None` at the end.
    from: Option<Vec<u8>>,
    at: At,
}

impl Listing {
    /// Begins at a name, among the children whose names have a prefix.
    pub(crate) fn new(directory: Partition, prefix: &[u8], from: &[u8], at: At) -> Self {
        Self { directory, prefix: prefix.to_vec(), from: Some(from.to_vec()), at }
    }
}

/// The rows of one name.
#[derive(Default)]
struct NameRows<'a> {
    current: Option<&'a Row>,
    kept: Option<&'a Row>,
}

impl FileService {
    /// Returns about `wanted` next children with their folded names. `None` at the end.
    pub(crate) async fn next_children(
        &self,
        listing: &mut Listing,
        wanted: usize,
    ) -> Result<Option<Vec<(Bytes, Node)>>, Refusal> {
        let Some(from) = listing.from.take() else { return Ok(None) };
        let limit = wanted.clamp(1, CHUNK);
        let mut current = keys::children(&listing.prefix);
        current.start = current.start.max(keys::child(&from));
        let mut reads = Reads::default().and_range(current.clone(), limit);
        if let At::Epoch(_) = listing.at {
            let mut kept = keys::all_kept(&listing.prefix);
            kept.start = kept.start.max(keys::kept(&from, 0));
            reads = reads.and_range(kept, CHUNK);
        }
        let ranges = self.read_between_moves(&listing.directory, reads, &current).await?.ranges;
        let end = ranges.iter().filter(|scanned| scanned.more).map(|scanned| name(&scanned.range.end)).min();
        if end.is_some_and(|end| end == from) {
            return self.skip_name(listing, from).await.map(Some);
        }
        let mut entries = vec![];
        for (name, found) in by_name(&ranges, listing.at) {
            if end.is_none_or(|end| *name < *end) {
                let node = as_of(found.current, found.kept, listing.at);
                let node = node.map_err(|damage| damage.at(&listing.directory))?;
                entries.extend(node.map(|node| (Bytes::copy_from_slice(name), node)));
            }
        }
        listing.from = end.map(<[u8]>::to_vec);
        Ok(Some(entries))
    }

    /// Reads one name with more kept rows than fit into one read, and continues after it.
    async fn skip_name(
        &self,
        listing: &mut Listing,
        mut name: Vec<u8>,
    ) -> Result<Vec<(Bytes, Node)>, Refusal> {
        let reads = children::reads_folded(&name, listing.at);
        let alone = keys::child(&name)..keys::child(&[&name[..], &[0]].concat());
        let set = self.read_between_moves(&listing.directory, reads, &alone).await?;
        let found = children::found(&set, listing.at).map_err(|damage| damage.at(&listing.directory))?;
        let entry = found.map(|node| (Bytes::copy_from_slice(&name), node));
        // No name contains this character.
        name.push(1);
        listing.from = Some(name);
        Ok(entry.into_iter().collect())
    }
}

/// Groups rows by name. Of the kept rows of a name, takes the first one since the epoch.
fn by_name(ranges: &[Scanned], at: At) -> BTreeMap<&[u8], NameRows<'_>> {
    let mut names = BTreeMap::<&[u8], NameRows<'_>>::new();
    for row in ranges.iter().flat_map(|scanned| &scanned.rows) {
        match (keys::kept_parts(&row.key), at) {
            (None, _) => names.entry(name(&row.key)).or_default().current = Some(row),
            (Some((name, last)), At::Epoch(epoch)) if !name.is_empty() && last >= epoch => {
                names.entry(name).or_default().kept.get_or_insert(row);
            }
            _ => {}
        }
    }
    names
}

/// Returns the folded name of a row.
fn name(key: &[u8]) -> &[u8] {
    match keys::kept_parts(key) {
        Some((name, _)) => name,
        None => key.get(1..).unwrap_or_default(),
    }
}
