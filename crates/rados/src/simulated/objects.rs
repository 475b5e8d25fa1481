//! The objects of a simulated cluster, and the effect of an op on one of them. No time and no faults.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::{
    ObjectName, OmapComparison, OmapPage, OmapRange, Pool, PoolSpace, ReadFailure, ReadOp, ReadReply,
    ReadStep, ReadValue, WriteError, WriteOp, WriteStep,
};

/// Larger ops are refused, as by `osd_max_write_size`.
const MAX_OP_BYTES: usize = 90 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StoredObject {
    omap: BTreeMap<Bytes, Bytes>,
    data: Vec<u8>,
}

impl StoredObject {
    fn bytes(&self) -> usize {
        let omap: usize = self.omap.iter().map(|(key, value)| key.len() + value.len()).sum();
        omap + self.data.len()
    }
}

/// All objects of a cluster.
#[derive(Debug, Default)]
pub(super) struct ObjectMap(BTreeMap<(Pool, ObjectName), StoredObject>);

impl ObjectMap {
    /// Performs an op, or returns why it has no effect. `is_full` refuses what needs more space.
    pub(super) fn write(
        &mut self,
        pool: Pool,
        name: &ObjectName,
        op: &WriteOp,
        is_full: bool,
    ) -> Result<(), WriteError> {
        let id = (pool, name.clone());
        let current = self.0.get(&id);
        check(current, op)?;
        if op_bytes(op) > MAX_OP_BYTES {
            return Err(WriteError::TooLarge);
        }
        if is_full && !op.may_exceed_full && grows(current, op) {
            return Err(WriteError::Full);
        }
        let object = self.0.entry(id.clone()).or_default();
        if !change(object, op) {
            self.0.remove(&id);
        }
        Ok(())
    }

    /// Performs a read. `page_limit` bounds every page of keys.
    pub(super) fn read(
        &self,
        pool: Pool,
        name: &ObjectName,
        op: &ReadOp,
        page_limit: usize,
    ) -> Result<ReadReply, ReadFailure> {
        let object = self.0.get(&(pool, name.clone())).ok_or(ReadFailure::NoObject)?;
        Ok(op.steps.iter().map(|step| read_step(object, step, page_limit)).collect())
    }

    /// Returns the names of all objects in a pool.
    pub(super) fn names(&self, pool: Pool) -> Vec<ObjectName> {
        self.0.keys().filter(|(in_pool, _)| *in_pool == pool).map(|(_, name)| name.clone()).collect()
    }

    /// Returns the space that a pool's objects use.
    pub(super) fn space(&self, pool: Pool) -> PoolSpace {
        let objects = || self.0.iter().filter(|((in_pool, _), _)| *in_pool == pool);
        let used_bytes = objects().map(|(_, object)| object.bytes() as u64).sum();
        PoolSpace { used_bytes, available_bytes: 1 << 40, objects: objects().count() as u64 }
    }
}

fn op_bytes(op: &WriteOp) -> usize {
    let step_bytes = |step: &WriteStep| match step {
        WriteStep::SetOmap(entries) => entries.iter().map(|(key, value)| key.len() + value.len()).sum(),
        WriteStep::WriteAt(_, bytes) => bytes.len(),
        _ => 0,
    };
    op.steps.iter().map(step_bytes).sum()
}

/// Returns the first requirement of an op that does not hold.
fn check(object: Option<&StoredObject>, op: &WriteOp) -> Result<(), WriteError> {
    let creates = op.steps.contains(&WriteStep::CreateExclusive);
    for (index, step) in op.steps.iter().enumerate() {
        match (step, object) {
            (WriteStep::CreateExclusive, Some(_)) => return Err(WriteError::Exists),
            (WriteStep::AssertExists | WriteStep::Compare { .. }, None) if !creates => {
                return Err(WriteError::NoObject);
            }
            (WriteStep::Compare { key, comparison, value }, object) => {
                let stored =
                    object.and_then(|object| object.omap.get(key)).map_or(&b""[..], |value| &value[..]);
                let holds = match comparison {
                    OmapComparison::Equal => stored == value,
                    OmapComparison::Greater => stored > &value[..],
                    OmapComparison::Less => stored < &value[..],
                };
                if !holds {
                    return Err(WriteError::Compared(index));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether an op needs more space than it frees.
fn grows(object: Option<&StoredObject>, op: &WriteOp) -> bool {
    let mut after = object.cloned().unwrap_or_default();
    change(&mut after, op) && object.is_none_or(|before| after.bytes() > before.bytes())
}

/// Performs the changes of an op. Returns false if the op removes the object.
fn change(object: &mut StoredObject, op: &WriteOp) -> bool {
    // Ranges are resolved against the state before the op, so keys that the op adds stay.
    let ranges: Vec<Vec<Bytes>> = op.steps.iter().map(|step| keys_of_range(object, step)).collect();
    for (step, keys) in op.steps.iter().zip(ranges) {
        match step {
            WriteStep::CreateExclusive | WriteStep::AssertExists | WriteStep::Compare { .. } => {}
            WriteStep::RemoveOmapRange(_) => keys.iter().for_each(|key| _ = object.omap.remove(key)),
            WriteStep::RemoveOmap(keys) => keys.iter().for_each(|key| _ = object.omap.remove(key)),
            WriteStep::SetOmap(entries) => {
                object.omap.extend(entries.iter().map(|(key, value)| (detached(key), detached(value))));
            }
            WriteStep::WriteAt(offset, bytes) => {
                let start = usize::try_from(*offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(bytes.len());
                object.data.resize(object.data.len().max(end), 0);
                object.data[start..end].copy_from_slice(bytes);
            }
            WriteStep::Truncate(length) => {
                object.data.resize(usize::try_from(*length).unwrap_or(usize::MAX), 0);
            }
            WriteStep::Remove => return false,
        }
    }
    true
}

fn keys_of_range(object: &StoredObject, step: &WriteStep) -> Vec<Bytes> {
    match step {
        WriteStep::RemoveOmapRange(range) => {
            omap_range(&object.omap, range).map(|(key, _)| key.clone()).collect()
        }
        _ => vec![],
    }
}

/// Copies bytes, because a slice would keep a whole batch in memory.
fn detached(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

fn omap_range<'a>(
    omap: &'a BTreeMap<Bytes, Bytes>,
    range: &Range<Bytes>,
) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> {
    // An inverted range is empty.
    omap.range(range.start.clone()..range.end.clone().max(range.start.clone()))
}

fn read_step(object: &StoredObject, step: &ReadStep, page_limit: usize) -> ReadValue {
    match step {
        ReadStep::Omap(keys) => {
            let mut keys = keys.clone();
            keys.sort();
            keys.dedup();
            let entry = |key: Bytes| object.omap.get(&key).map(|value| (key, value.clone()));
            ReadValue::Omap(keys.into_iter().filter_map(entry).collect())
        }
        ReadStep::OmapRange(OmapRange { from, end, limit }) => {
            let range = from.clone()..end.clone();
            let mut entries = omap_range(&object.omap, &range);
            let limit = (*limit).min(page_limit);
            let page = entries.by_ref().take(limit).map(|(key, value)| (key.clone(), value.clone()));
            let page = page.collect();
            ReadValue::OmapRange(OmapPage { entries: page, more: entries.next().is_some() })
        }
        ReadStep::Data(range) => {
            let length = object.data.len() as u64;
            let bytes = &object.data[range.start.min(length) as usize..range.end.min(length) as usize];
            ReadValue::Data(Bytes::copy_from_slice(bytes))
        }
        ReadStep::Length => ReadValue::Length(object.data.len() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> ObjectName {
        ObjectName("o".into())
    }

    fn set(key: &'static str, value: &'static str) -> WriteStep {
        WriteStep::SetOmap(vec![(key.into(), value.into())])
    }

    fn compare(key: &'static str, comparison: OmapComparison, value: &'static str) -> WriteStep {
        WriteStep::Compare { key: key.into(), comparison, value: value.into() }
    }

    fn keys(objects: &ObjectMap) -> Vec<Bytes> {
        let range = OmapRange { from: Bytes::new(), end: "~".into(), limit: 100 };
        let read = ReadOp::new([ReadStep::OmapRange(range)]);
        match &objects.read(Pool::Meta, &name(), &read, 100).unwrap()[0] {
            ReadValue::OmapRange(page) => page.entries.iter().map(|(key, _)| key.clone()).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn failed_comparison_is_named_and_leaves_no_effect() {
        use OmapComparison::{Equal, Greater, Less};
        let mut objects = ObjectMap::default();
        let mut write =
            |steps: Vec<WriteStep>| objects.write(Pool::Meta, &name(), &WriteOp::new(steps), false);
        assert_eq!(write(vec![compare("a", Equal, "")]), Err(WriteError::NoObject));
        write(vec![WriteStep::CreateExclusive, compare("a", Equal, ""), set("a", "m")]).unwrap();
        assert_eq!(write(vec![WriteStep::CreateExclusive]), Err(WriteError::Exists));
        for (comparison, value, holds) in [
            (Equal, "m", true),
            (Equal, "", false),
            (Greater, "l", true),
            (Greater, "m", false),
            (Less, "mm", true),
            (Less, "m", false),
        ] {
            let expected = if holds { Ok(()) } else { Err(WriteError::Compared(1)) };
            let steps = vec![compare("b", Equal, ""), compare("a", comparison, value), set("c", "x")];
            assert_eq!(write(steps), expected, "{comparison:?} {value}");
            write(vec![WriteStep::RemoveOmap(vec!["c".into()])]).unwrap();
        }
        assert_eq!(keys(&objects), ["a"]);
    }

    #[test]
    fn range_removal_does_not_see_keys_that_the_same_op_added() {
        let mut objects = ObjectMap::default();
        let remove = || WriteStep::RemoveOmapRange("a".into().."z".into());
        objects.write(Pool::Meta, &name(), &WriteOp::new([set("b", "1"), set("zz", "1")]), false).unwrap();
        objects.write(Pool::Meta, &name(), &WriteOp::new([set("c", "1"), remove()]), false).unwrap();
        assert_eq!(keys(&objects), ["c", "zz"]);
        objects.write(Pool::Meta, &name(), &WriteOp::new([remove(), set("d", "1")]), false).unwrap();
        assert_eq!(keys(&objects), ["d", "zz"]);
    }

    #[test]
    fn full_pool_refuses_growth_except_for_ops_that_may_exceed_it() {
        let mut objects = ObjectMap::default();
        let mut write = |op: &WriteOp| objects.write(Pool::Meta, &name(), op, true);
        let op = WriteOp::new([set("a", "1")]);
        assert_eq!(write(&op), Err(WriteError::Full));
        write(&op.may_exceed_full()).unwrap();
        write(&WriteOp::new([set("a", "2")])).unwrap();
        write(&WriteOp::new([WriteStep::Remove])).unwrap();
    }
}
