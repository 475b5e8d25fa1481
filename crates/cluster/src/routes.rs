//! The shards of spaces, as far as this front end knows them. Only a hint: a shard's own header decides.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use lazuli_rados::ObjectName;
use lazuli_store::SpaceId;
use parking_lot::Mutex;

use crate::keys::root_name;

/// Maximum number of shards that are remembered. Then all are forgotten and read again.
const MAX_SHARDS: usize = 1 << 18;

/// The shards of spaces, by the first partition key that each may hold.
#[derive(Default)]
pub(crate) struct Routes(Mutex<RouteMap>);

#[derive(Default)]
struct RouteMap {
    spaces: HashMap<SpaceId, BTreeMap<Bytes, ObjectName>>,
    shards: usize,
}

impl Routes {
    /// Returns the last known shard whose range begins at or below a partition key. The shard may have given
    /// the key to a later one meanwhile.
    pub(crate) fn locate(&self, space: SpaceId, partition: &Bytes) -> ObjectName {
        let routes = self.0.lock();
        let shards = routes.spaces.get(&space);
        let last = shards.and_then(|shards| shards.range(..=partition.clone()).next_back());
        last.map_or_else(|| root_name(space), |(_, name)| name.clone())
    }

    /// Remembers the shard whose range begins at `lower`.
    pub(crate) fn learn(&self, space: SpaceId, lower: Bytes, name: ObjectName) {
        let mut routes = self.0.lock();
        if routes.shards >= MAX_SHARDS {
            *routes = RouteMap::default();
        }
        let is_new = routes.spaces.entry(space).or_default().insert(lower, name).is_none();
        routes.shards += usize::from(is_new);
    }

    /// Forgets the shards of a space.
    pub(crate) fn forget(&self, space: SpaceId) {
        let mut routes = self.0.lock();
        if let Some(shards) = routes.spaces.remove(&space) {
            routes.shards -= shards.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_is_located_in_the_last_shard_that_begins_at_or_below_it() {
        let (routes, space) = (Routes::default(), SpaceId(1));
        let locate = |partition: &'static str| routes.locate(space, &partition.into()).0;
        assert_eq!(locate("a"), root_name(space).0);
        routes.learn(space, "m".into(), ObjectName("y".into()));
        routes.learn(space, "t".into(), ObjectName("z".into()));
        for (partition, shard) in [("l", &root_name(space).0[..]), ("m", "y"), ("s", "y"), ("t", "z")] {
            assert_eq!(locate(partition), shard);
        }
        routes.forget(space);
        assert_eq!(locate("z"), root_name(space).0);
    }
}
