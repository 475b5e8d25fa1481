//! The limits of a commit, which are the same in every engine.

use bytes::Bytes;

use crate::{
    Commit, CommitError, MAX_BULK_COMMIT_BYTES, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_MUTATIONS,
    MAX_VALUE_BYTES, Mutation, Partition,
};

/// Refuses a commit that exceeds a limit.
pub fn check_limits(partition: &Partition, commit: &Commit) -> Result<(), CommitError> {
    let most = if commit.bulk { MAX_BULK_COMMIT_BYTES } else { MAX_COMMIT_BYTES };
    let fits = |key: &Bytes| key.len() <= MAX_KEY_BYTES;
    let each = commit.mutations.iter().all(|mutation| match mutation {
        Mutation::Put(key, value) => fits(key) && value.len() <= MAX_VALUE_BYTES,
        Mutation::Delete(key) | Mutation::Add(key, _) => fits(key),
    });
    let fits = each
        && fits(&partition.key)
        && commit.mutations.len() <= MAX_MUTATIONS
        && commit_bytes(commit) <= most;
    if fits { Ok(()) } else { Err(CommitError::TooLarge) }
}

/// Returns the bytes of keys and values that a commit writes.
pub(crate) fn commit_bytes(commit: &Commit) -> usize {
    let bytes = |mutation: &Mutation| match mutation {
        Mutation::Put(key, value) => key.len() + value.len(),
        Mutation::Delete(key) | Mutation::Add(key, _) => key.len() + 8,
    };
    commit.mutations.iter().map(bytes).sum()
}
