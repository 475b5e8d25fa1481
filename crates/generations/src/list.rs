//! Listing by name, one page at a time.

use std::ops::ControlFlow;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::{Account, Refusal};
use lazuli_store::{Partition, Row, SpaceId, Which, prefix_range};

use crate::slot::Slot;
use crate::{Generation, Generations, keys, unreadable};

/// Rows that are read at first. Doubles as long as the page is not full.
const FIRST_CHUNK: usize = 64;
/// Rows that are read at once.
const CHUNK: usize = 1024;
/// Rows that are read for one page, which may be short of entries then. What is not shown, such as garbage that waits to be
/// swept, counts.
const MAX_ROWS: usize = 16_384;

/// One row of a listing.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a, G> {
    /// Its name, as the partition key has it.
    pub name: &'a str,
    /// When it was deleted, if it was.
    pub deleted_at: Option<Stamp>,
    /// Of a snapshot: when it was taken.
    pub snapshot: Option<Stamp>,
    /// What its row holds.
    pub record: &'a G,
}

/// What is listed beside those that have a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Those that were deleted and can be restored.
    pub deleted: bool,
    /// The snapshots of those that have a name, after them, oldest first.
    pub snapshots: bool,
}

impl<G: Generation> Generations<G> {
    /// Shows the generations of an account whose names begin so, in order, from `start` on; those that can be restored
    /// too if asked for, see [`Generations::list_beside`].
    pub async fn list(
        &self,
        account: &Account,
        prefix: &str,
        start: Option<&[u8]>,
        with_deleted: bool,
        visit: impl FnMut(Entry<'_, G>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let beside = Beside { deleted: with_deleted, snapshots: false };
        self.list_beside(account, prefix, start, beside, visit).await
    }

    /// Shows the generations of an account whose names begin so, in order, from `start` on, and what is asked for beside
    /// them. Ends before the first one that `visit` does not take and says where that is; or else when many
    /// rows were read and more are left.
    pub async fn list_beside(
        &self,
        account: &Account,
        prefix: &str,
        start: Option<&[u8]>,
        beside: Beside,
        mut visit: impl FnMut(Entry<'_, G>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let account = keys::account(G::KIND, account);
        let all = prefix_range(&[&account, prefix.as_bytes()].concat());
        let which = match beside {
            Beside { deleted: false, snapshots: false } => Which::First,
            _ => Which::All,
        };
        let mut named = None;
        let mut from = start.map_or_else(Default::default, |start| position(&account, start));
        if from.0 < all.start {
            from = (all.start, Bytes::new());
        }
        let end = (all.end, Bytes::new());
        let (mut chunk, mut read) = (FIRST_CHUNK, 0);
        loop {
            let scan = self.store.scan_space(SpaceId::ROOT, from, Some(end.clone()), which, chunk);
            let page = scan.await.map_err(unreadable)?;
            read += page.rows.len();
            chunk = (chunk * 2).min(CHUNK);
            for (partition, row) in page.rows {
                let deleted_at = keys::deleted_at(&row.key);
                let snapshot = keys::snapshot_parts(&row.key);
                let record = match (deleted_at, snapshot) {
                    (Some(_), _) if beside.deleted => Some(G::decode(&row.value)?),
                    (_, Some((space, _))) if beside.snapshots => {
                        // A page may begin amid the snapshots of a name.
                        let named_here = named.take().filter(|(known, _)| *known == partition);
                        let current = match named_here {
                            Some((_, space)) => space,
                            None => self.space_of(&partition).await?,
                        };
                        named = Some((partition.clone(), current));
                        if current == Some(space) { Some(G::decode(&row.value)?) } else { None }
                    }
                    _ if row.key == keys::CURRENT => {
                        let current = self.listed(&partition, &row).await?;
                        named = Some((partition.clone(), current.as_ref().map(G::space)));
                        current
                    }
                    _ => None,
                };
                let Some(record) = &record else { continue };
                let name = keys::name(&partition).unwrap_or_default();
                let snapshot = snapshot.map(|(_, stamp)| stamp);
                if visit(Entry { name, deleted_at, snapshot, record }).is_break() {
                    return Ok(Some(marker(&account, &partition, &row.key)));
                }
            }
            match page.next {
                Some(next) if read < MAX_ROWS => from = next,
                next => return Ok(next.map(|(partition, key)| marker(&account, &partition, &key))),
            }
        }
    }

    /// The space of what has the name of a partition.
    async fn space_of(&self, partition: &Bytes) -> Result<Option<SpaceId>, Refusal> {
        let current = self.current(&Partition::new(SpaceId::ROOT, partition.clone())).await?;
        Ok(current.map(|current| current.space()))
    }

    /// The spaces of those that have a name, in all accounts, a page at a time: each time with where to go on, if there are
    /// more.
    pub async fn spaces(&self, from: Option<Bytes>) -> Result<(Vec<SpaceId>, Option<Bytes>), Refusal> {
        let all = prefix_range(&keys::kind(G::KIND));
        let from = (from.unwrap_or(all.start), Bytes::new());
        let scan =
            self.store.scan_space(SpaceId::ROOT, from, Some((all.end, Bytes::new())), Which::First, CHUNK);
        let page = scan.await.map_err(unreadable)?;
        let mut spaces = vec![];
        for (partition, row) in page.rows {
            if row.key == keys::CURRENT {
                spaces.extend(self.listed(&partition, &row).await?.map(|current| current.space()));
            }
        }
        Ok((spaces, page.next.map(|(partition, _)| partition)))
    }

    /// What the current row of a partition holds, if a scan has read it so.
    async fn listed(&self, partition: &Bytes, row: &Row) -> Result<Option<G>, Refusal> {
        match Slot::of(Some(row))? {
            Slot::Free => Ok(None),
            Slot::Held(current) => Ok(Some(current)),
            Slot::Renaming(_) => self.current(&Partition::new(SpaceId::ROOT, partition.clone())).await,
        }
    }
}

/// Where a row is: its name, a zero byte, its key.
fn marker(account: &[u8], partition: &[u8], key: &[u8]) -> Vec<u8> {
    [partition.strip_prefix(account).unwrap_or_default(), &[0], key].concat()
}

/// Where a marker says that the page begins: never outside of the account, whoever made it up.
pub(crate) fn position(account: &[u8], marker: &[u8]) -> (Bytes, Bytes) {
    let mut parts = marker.splitn(2, |byte| *byte == 0);
    let (name, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    ([account, name].concat().into(), Bytes::copy_from_slice(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_leads_back_to_its_row_and_never_out_of_the_account() {
        let account = b"blob/lapis/0000/";
        let row = (Bytes::from_static(b"blob/lapis/0000/con"), keys::deleted(Stamp::from_ticks(7)));
        assert_eq!(position(account, &marker(account, &row.0, &row.1)), row);
        for made_up in [&b""[..], b"\0\0\0", b"con", b"../../x\0y"] {
            assert!(position(account, made_up).0.starts_with(account));
        }
    }
}
