//! Changes of a space's header: open, close, epoch.
//!
//! ```text
//! E1  root -> changing{id}, only if its header is the expected one     the change can no longer fail
//! E2  along the chain: each shard -> frozen{id}
//! E3  root -> normal with the new header, decided = id                 the change takes effect
//! E4  each shard in frozen{f} with f <= decided -> normal with the root's header
//! ```
//!
//! If the root is the only shard, one op changes the header. The root's batcher performs E1, so its outcome
//! is known even if the reply is lost.

use std::sync::Arc;

use lazuli_rados::ObjectName;
use lazuli_store::SpaceId;

use super::Protocol;
use crate::access::{AccessError, StepOutcome};
use crate::events::ProtocolEvent;
use crate::header::ShardState;
use crate::keys::root_name;

/// The result of freezing one shard.
enum Freeze {
    /// The shard is frozen for this change, and its link cannot change.
    Frozen(Option<ObjectName>),
    /// The shard is gone, because the space is being swept.
    Missing,
    /// A later change has frozen the shard, so this one is decided.
    Overtaken,
}

impl Protocol {
    /// Performs E2 to E4 of a change that has begun.
    pub(crate) async fn finish_change(
        self: &Arc<Self>,
        space: SpaceId,
        change: u64,
        as_helper: bool,
    ) -> Result<(), AccessError> {
        let root_name = root_name(space);
        if as_helper {
            self.access.count(ProtocolEvent::HelpedChange);
        }
        while let Some(root) = self.access.header(&root_name).await?
            && root.header.decided < change
        {
            let mut next = root.header.next().filter(|_| !crate::planted(4));
            while let Some(name) = next {
                next = match self.freeze(space, &name, change).await? {
                    Freeze::Frozen(_) if crate::planted(5) => None,
                    Freeze::Frozen(next) => next,
                    Freeze::Missing => None,
                    Freeze::Overtaken => {
                        self.access.count(ProtocolEvent::OvertakenHelper);
                        return Ok(());
                    }
                };
            }
            let Some(decided) = root.header.decided() else { continue };
            if self.access.replace_header(&root_name, &root, &decided).await? == StepOutcome::Done {
                self.access.count(ProtocolEvent::ChangeDecided);
            }
        }
        self.thaw_chain(space).await
    }

    /// Performs E2 for one shard.
    async fn freeze(
        self: &Arc<Self>,
        space: SpaceId,
        name: &ObjectName,
        change: u64,
    ) -> Result<Freeze, AccessError> {
        loop {
            let Some(seen) = self.access.header(name).await? else { return Ok(Freeze::Missing) };
            match seen.header.state {
                ShardState::Splitting { .. } => self.finish_split(space, name, true).await?,
                ShardState::Building { .. } => self.activate(space, name, true).await?,
                ShardState::Frozen { change: other } if other == change => {
                    return Ok(Freeze::Frozen(seen.header.next()));
                }
                ShardState::Frozen { .. } if crate::planted(3) => {
                    return Ok(Freeze::Frozen(seen.header.next()));
                }
                ShardState::Frozen { change: other } if other > change && !crate::planted(11) => {
                    return Ok(Freeze::Overtaken);
                }
                _ => {
                    let Some(frozen) = seen.header.frozen(change) else { return Ok(Freeze::Overtaken) };
                    let again = matches!(seen.header.state, ShardState::Frozen { .. });
                    if self.access.replace_header(name, &seen, &frozen).await? == StepOutcome::Done {
                        let event =
                            if again { ProtocolEvent::ShardFrozenAgain } else { ProtocolEvent::ShardFrozen };
                        self.access.count(event);
                        return Ok(Freeze::Frozen(frozen.next()));
                    }
                    // A change that is decided must not freeze anything.
                    let root = self.access.root(space).await?;
                    if root.is_none_or(|root| root.header.decided >= change) {
                        return Ok(Freeze::Overtaken);
                    }
                }
            }
        }
    }

    /// Performs E4 for all shards.
    async fn thaw_chain(&self, space: SpaceId) -> Result<(), AccessError> {
        let mut next = self.access.root(space).await?.and_then(|root| root.header.next());
        while let Some(name) = next {
            self.thaw(space, &name).await?;
            next = self.access.header(&name).await?.and_then(|seen| seen.header.next());
        }
        Ok(())
    }
}
