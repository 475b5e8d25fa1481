//! Listing by name, one page at a time.

use std::ops::ControlFlow;

use bytes::Bytes;
use lazuli_concurrency::Stamp;
use lazuli_protocol::{Account, Refusal};
use lazuli_service::read_refusal;
use lazuli_store::{Partition, Row, RowPosition, SpaceId, Which, prefix_range};

use crate::slot::Slot;
use crate::{Generation, Generations, keys};

/// Rows in the first scan of a listing. Each further scan reads twice as many.
const FIRST_CHUNK: usize = 64;
/// Maximum number of rows in one scan.
const CHUNK: usize = 1024;
/// Rows after which a page ends even if it is not full. Rows that are not listed, such as garbage that waits
/// for the sweep, count as well.
const MAX_ROWS: usize = 16_384;

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedGeneration<'a, G> {
    /// The name, as the partition key has it.
    pub name: &'a str,
    /// Time of deletion, if the generation is deleted.
    pub deleted_at: Option<Stamp>,
    /// Time of the snapshot, if the entry is a snapshot.
    pub snapshot: Option<Stamp>,
    /// The record in the row.
    pub record: &'a G,
}

/// Entries to list in addition to the current generations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListInclude {
    /// Deleted generations that can be restored.
    pub deleted: bool,
    /// The snapshots of each current generation, following it, oldest first.
    pub snapshots: bool,
}

impl<G: Generation> Generations<G> {
    /// Visits the generations of an account whose names begin with `prefix`, in order, from `start` on. See
    /// [`Generations::list_including`].
    pub async fn list(
        &self,
        account: &Account,
        prefix: &str,
        start: Option<&[u8]>,
        with_deleted: bool,
        visit: impl FnMut(ListedGeneration<'_, G>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let include = ListInclude { deleted: with_deleted, snapshots: false };
        self.list_including(account, prefix, start, include, visit).await
    }

    /// Visits the generations of an account whose names begin with `prefix`, in order, from `start` on, with
    /// the additional entries that `include` asks for. Stops before the first entry for which `visit` breaks,
    /// or after [`MAX_ROWS`] rows, and returns the marker at which to continue. Returns `None` at the end of
    /// the listing.
    pub async fn list_including(
        &self,
        account: &Account,
        prefix: &str,
        start: Option<&[u8]>,
        include: ListInclude,
        mut visit: impl FnMut(ListedGeneration<'_, G>) -> ControlFlow<()>,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let account = keys::account(G::KIND, account);
        let all = prefix_range(&[&account, prefix.as_bytes()].concat());
        let which = match include {
            ListInclude { deleted: false, snapshots: false } => Which::First,
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
            let page = scan.await.map_err(read_refusal)?;
            read += page.rows.len();
            chunk = (chunk * 2).min(CHUNK);
            for (partition, row) in page.rows {
                let deleted_at = keys::deleted_at(&row.key);
                let snapshot = keys::snapshot_parts(&row.key);
                let decode = || {
                    let (partition, key) = (partition.clone(), row.key.clone());
                    let place = RowPosition { space: SpaceId::ROOT, partition, key };
                    G::decode(&row.value).map_err(|damage| damage.at(place))
                };
                let record = match (deleted_at, snapshot) {
                    (Some(_), _) if include.deleted => Some(decode()?),
                    (_, Some((space, _))) if include.snapshots => {
                        // A page may begin between two snapshots of a name.
                        let named_here = named.take().filter(|(known, _)| *known == partition);
                        let current = match named_here {
                            Some((_, space)) => space,
                            None => self.space_of(&partition).await?,
                        };
                        named = Some((partition.clone(), current));
                        if current == Some(space) { Some(decode()?) } else { None }
                    }
                    _ if row.key == keys::CURRENT => {
                        let current = self.decode_current(&partition, &row).await?;
                        named = Some((partition.clone(), current.as_ref().map(G::space)));
                        current
                    }
                    _ => None,
                };
                let Some(record) = &record else { continue };
                let name = keys::name(&partition).unwrap_or_default();
                let snapshot = snapshot.map(|(_, stamp)| stamp);
                if visit(ListedGeneration { name, deleted_at, snapshot, record }).is_break() {
                    return Ok(Some(marker(&account, &partition, &row.key)));
                }
            }
            match page.next {
                Some(next) if read < MAX_ROWS => from = next,
                next => return Ok(next.map(|(partition, key)| marker(&account, &partition, &key))),
            }
        }
    }

    /// Returns the space of the current generation in a partition.
    async fn space_of(&self, partition: &Bytes) -> Result<Option<SpaceId>, Refusal> {
        let current = self.current(&Partition::new(SpaceId::ROOT, partition.clone())).await?;
        Ok(current.map(|current| current.space()))
    }

    /// Returns one page of the spaces of all current generations in all accounts, each with the name of its
    /// account, and the partition at which to continue, if there are more.
    pub async fn spaces(
        &self,
        from: Option<Bytes>,
    ) -> Result<(Vec<(SpaceId, String)>, Option<Bytes>), Refusal> {
        let all = prefix_range(&keys::kind(G::KIND));
        let from = (from.unwrap_or(all.start), Bytes::new());
        let scan =
            self.store.scan_space(SpaceId::ROOT, from, Some((all.end, Bytes::new())), Which::First, CHUNK);
        let page = scan.await.map_err(read_refusal)?;
        let mut spaces = vec![];
        for (partition, row) in page.rows {
            if row.key == keys::CURRENT {
                let current = self.decode_current(&partition, &row).await?;
                let account = keys::parts(&partition).map_or("", |parts| parts.account);
                spaces.extend(current.map(|current| (current.space(), account.to_owned())));
            }
        }
        Ok((spaces, page.next.map(|(partition, _)| partition)))
    }

    /// Returns the current generation of a partition, given the current row that a scan has read.
    async fn decode_current(&self, partition: &Bytes, row: &Row) -> Result<Option<G>, Refusal> {
        let partition = Partition::new(SpaceId::ROOT, partition.clone());
        match Slot::of(Some(row)).map_err(|damage| damage.at(&partition))? {
            Slot::Free => Ok(None),
            Slot::Held(current) => Ok(Some(current)),
            Slot::Renaming(_) => self.current(&partition).await,
        }
    }
}

/// Encodes the position of a row in a listing: the name, a zero byte, the key of the row.
fn marker(account: &[u8], partition: &[u8], key: &[u8]) -> Vec<u8> {
    [partition.strip_prefix(account).unwrap_or_default(), &[0], key].concat()
}

/// Returns the partition and row at which a page begins. A forged marker cannot lead out of the account.
pub(crate) fn position(account: &[u8], marker: &[u8]) -> (Bytes, Bytes) {
    let mut parts = marker.splitn(2, |byte| *byte == 0);
    let (name, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    ([account, name].concat().into(), Bytes::copy_from_slice(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_leads_back_to_its_row_and_never_out_of_the_account() {
        let account = b"blob/lapis/0000/";
        let row = (Bytes::from_static(b"blob/lapis/0000/con"), keys::deleted(Stamp::from_ticks(7)));
        assert_eq!(position(account, &marker(account, &row.0, &row.1)), row);
        for forged in [&b""[..], b"\0\0\0", b"con", b"../../x\0y"] {
            assert!(position(account, forged).0.starts_with(account));
        }
    }
}
