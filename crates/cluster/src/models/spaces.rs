//! Splits and changes of a space's header: every interleaving with writers and readers of one row, stale
//! headers, crashes, and helpers. One step is one op on one object.
//!
//! The root is shard 0. The row `count` lies in shard X, which is the root or shard 1; a split moves it to
//! shard 2 or 3. A split may be given up, as in a full pool. The model checks:
//!
//! - a commit takes effect only on the shard that owns the row, and in the decided epoch;
//! - a read returns an epoch and a row that were current together at a moment of the read;
//! - no commit is lost, and none takes effect twice;
//! - from every state the processes come to an end.

mod cases;

use super::explore::{ModelState, explore};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Absent,
    Normal,
    Splitting(usize),
    Building,
    Frozen(u8),
    Changing(u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ModelShard {
    generation: u8,
    epoch: u8,
    phase: Phase,
    /// The next shard of the chain, or 0.
    next: usize,
    count: u8,
}

/// The work of a process after a split or an activation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Then {
    Finish,
    Change(u8),
    Freeze(u8),
    Client,
}

/// The next op of a process, with what it knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Pc {
    Idle,
    Crashed,
    Done,
    LookAtSplit(Then, bool),
    BeginSplit(Then, ModelShard),
    Create(Then, ModelShard, usize),
    LookAtNew(Then, ModelShard, usize),
    CopyRead(Then, ModelShard, usize, u8),
    CopyWrite(Then, ModelShard, usize, u8, u8),
    Narrow(Then, ModelShard, usize),
    FollowLink(Then),
    LookAtBuilt(Then, usize),
    LookAtOld(Then, usize, u8),
    Activate(Then, usize, u8, u8),
    LookAtRoot(u8),
    BeginChange(u8, ModelShard),
    Walk(u8),
    LookToFreeze(u8, usize, ModelShard),
    Freeze(u8, usize, ModelShard, ModelShard),
    CheckFreeze(u8, ModelShard),
    Decide(u8, ModelShard),
    LookToThaw(usize),
    AskToThaw(usize, ModelShard),
    Thaw(usize, ModelShard, u8),
    Read(usize),
    AskRoot(usize, ModelShard, u8),
    Write(usize, ModelShard),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    Writer(u8),
    Reader(u8),
    Splitter,
    Changer(u8),
    /// Carries out what is left, as often as needed.
    Helper,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Process {
    role: Role,
    pc: Pc,
    /// The pairs of epoch and count that were current since a read began, as bits.
    current: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Spaces {
    shards: [ModelShard; 4],
    /// The shard that holds the row at first.
    x: usize,
    decided: u8,
    commits: u8,
    can_give_up: bool,
    processes: Vec<Process>,
}

fn bit(epoch: u8, count: u8) -> u64 {
    1 << (u32::from(epoch) * 8 + u32::from(count))
}

/// Builds the successors of one process.
struct Stepper<'a> {
    state: &'a Spaces,
    process: usize,
    next: Vec<Spaces>,
}

impl Stepper<'_> {
    /// Adds a successor with another next op.
    fn go(&mut self, pc: Pc) {
        self.change(pc, |_| ());
    }

    /// Adds a successor with a changed state.
    fn change(&mut self, pc: Pc, change: impl FnOnce(&mut Spaces)) {
        let mut next = self.state.clone();
        change(&mut next);
        next.processes[self.process].pc = pc;
        let now = bit(next.shards[0].epoch, next.commits);
        next.processes.iter_mut().filter(|p| p.current != 0).for_each(|p| p.current |= now);
        self.next.push(next);
    }

    /// Replaces a header if its generation is the one that was seen.
    fn replace(&mut self, shard: usize, seen: ModelShard, to: ModelShard, done: Pc, refused: Pc) {
        if self.state.shards[shard].generation == seen.generation {
            self.change(done, |next| {
                let count = next.shards[shard].count;
                next.shards[shard] = ModelShard { generation: seen.generation + 1, count, ..to };
            });
        } else {
            self.go(refused);
        }
    }

    fn after(&mut self, then: Then) {
        self.go(match then {
            Then::Finish => self.end(),
            Then::Change(to) => Pc::LookAtRoot(to),
            Then::Freeze(change) => Pc::Walk(change),
            Then::Client => Pc::Read(self.state.x),
        });
    }

    fn end(&self) -> Pc {
        match self.state.processes[self.process].role {
            Role::Helper => Pc::Idle,
            Role::Changer(to) if self.state.shards[0].epoch < to => Pc::LookAtRoot(to),
            _ => Pc::Done,
        }
    }

    fn read_returns(&mut self, epoch: u8, count: u8) -> Result<(), String> {
        let process = self.process;
        if self.state.processes[process].current & bit(epoch, count) == 0 {
            return Err(format!("a read returned epoch {epoch} and count {count}"));
        }
        self.change(Pc::Idle, |next| {
            next.processes[process].current = 0;
            next.processes[process].role = spend(next.processes[process].role);
        });
        Ok(())
    }

    fn step(&mut self, mistake: u8) -> Result<(), String> {
        let (shards, x) = (&self.state.shards, self.state.x);
        match self.state.processes[self.process].pc {
            Pc::Done | Pc::Crashed => {}
            Pc::Idle => self.begin(),
            Pc::LookAtSplit(then, begins) => match shards[x].phase {
                Phase::Splitting(new) => self.go(Pc::Create(then, shards[x], new)),
                Phase::Normal if begins && shards[x].next == 0 => self.go(Pc::BeginSplit(then, shards[x])),
                _ => self.go(Pc::FollowLink(then)),
            },
            Pc::BeginSplit(then, seen) => {
                let looked = Pc::LookAtSplit(then, false);
                match (2..4).find(|new| shards[*new].phase == Phase::Absent) {
                    Some(new) => {
                        self.replace(
                            x,
                            seen,
                            ModelShard { phase: Phase::Splitting(new), ..seen },
                            looked,
                            looked,
                        );
                    }
                    None => self.go(looked),
                }
            }
            Pc::Create(then, seen, new) => self.change(Pc::LookAtNew(then, seen, new), |next| {
                if next.shards[new].phase == Phase::Absent {
                    next.shards[new] = ModelShard { generation: 1, phase: Phase::Building, count: 0, ..seen };
                }
            }),
            Pc::LookAtNew(then, seen, new) => match shards[new].phase {
                Phase::Building => self.go(Pc::CopyRead(then, seen, new, shards[new].generation)),
                _ => self.go(Pc::LookAtSplit(then, false)),
            },
            Pc::CopyRead(then, seen, new, generation) => {
                self.go(Pc::CopyWrite(then, seen, new, generation, shards[x].count));
            }
            Pc::CopyWrite(then, seen, new, generation, count) => {
                if self.state.can_give_up {
                    let whole = ModelShard { phase: Phase::Normal, ..seen };
                    self.replace(x, seen, whole, Pc::FollowLink(then), Pc::LookAtSplit(then, false));
                }
                if shards[new].generation == generation || mistake == 1 {
                    let after = if mistake == 2 {
                        Pc::Activate(then, new, generation, seen.epoch)
                    } else {
                        Pc::Narrow(then, seen, new)
                    };
                    self.change(after, |next| next.shards[new].count = count);
                } else {
                    self.go(Pc::LookAtSplit(then, false));
                }
            }
            Pc::Narrow(then, seen, new) => {
                let narrow = ModelShard { phase: Phase::Normal, next: new, ..seen };
                self.replace(x, seen, narrow, Pc::FollowLink(then), Pc::LookAtSplit(then, false));
            }
            Pc::FollowLink(then) => match shards[x].next {
                0 => self.after(then),
                new => self.go(Pc::LookAtBuilt(then, new)),
            },
            Pc::LookAtBuilt(then, new) => match shards[new].phase {
                Phase::Building => self.go(Pc::LookAtOld(then, new, shards[new].generation)),
                _ => self.after(then),
            },
            Pc::LookAtOld(then, new, generation) => match shards[x].next {
                0 => self.after(then),
                _ => self.go(Pc::Activate(then, new, generation, shards[x].epoch)),
            },
            Pc::Activate(then, new, generation, epoch) => {
                let seen = ModelShard { generation, ..shards[new] };
                let active = ModelShard { phase: Phase::Normal, epoch, ..seen };
                let next = match (then, mistake) {
                    (_, 2) => Pc::Narrow(then, shards[x], new),
                    (Then::Client, _) => Pc::Read(x),
                    _ => Pc::LookAtSplit(then, false),
                };
                self.replace(new, seen, active, next, next);
            }
            _ => return self.step_of_change(mistake),
        }
        Ok(())
    }

    fn step_of_change(&mut self, mistake: u8) -> Result<(), String> {
        let (shards, x) = (&self.state.shards, self.state.x);
        match self.state.processes[self.process].pc {
            Pc::LookAtRoot(to) => match shards[0].phase {
                Phase::Normal if shards[0].epoch < to => self.go(Pc::BeginChange(to, shards[0])),
                Phase::Splitting(_) => self.go(Pc::LookAtSplit(Then::Change(to), false)),
                Phase::Changing(change, _) => self.go(Pc::Walk(change)),
                _ => self.go(Pc::Done),
            },
            Pc::BeginChange(to, seen) => {
                let change = self.state.decided + 1;
                let alone = seen.next == 0;
                let phase = if alone { Phase::Normal } else { Phase::Changing(change, to) };
                let epoch = if alone { to } else { seen.epoch };
                let done = if alone { Pc::Done } else { Pc::Walk(change) };
                let begins = shards[0].generation == seen.generation;
                self.replace(0, seen, ModelShard { phase, epoch, ..seen }, done, Pc::LookAtRoot(to));
                if let (true, true, Some(next)) = (begins, alone, self.next.last_mut()) {
                    next.decided = change;
                }
            }
            Pc::Walk(change) => match shards[0].phase {
                Phase::Changing(current, _) if current == change => match shards[0].next {
                    0 => self.go(Pc::Decide(change, shards[0])),
                    _ if mistake == 4 => self.go(Pc::Decide(change, shards[0])),
                    first => self.go(Pc::LookToFreeze(change, first, shards[0])),
                },
                _ => self.go(Pc::LookToThaw(shards[0].next)),
            },
            Pc::LookToFreeze(change, shard, root) => {
                let seen = shards[shard];
                let frozen = match seen.next {
                    0 => Pc::Decide(change, root),
                    _ if mistake == 5 => Pc::Decide(change, root),
                    next => Pc::LookToFreeze(change, next, root),
                };
                match seen.phase {
                    Phase::Splitting(_) => self.go(Pc::LookAtSplit(Then::Freeze(change), false)),
                    Phase::Building => self.go(Pc::LookAtBuilt(Then::Freeze(change), shard)),
                    Phase::Frozen(other) if other == change || mistake == 3 => self.go(frozen),
                    Phase::Frozen(other) if other > change && mistake != 11 => self.go(self.end()),
                    _ => self.go(Pc::Freeze(change, shard, seen, root)),
                }
            }
            Pc::Freeze(change, shard, seen, root) => {
                let to = ModelShard { phase: Phase::Frozen(change), ..seen };
                let done = match seen.next {
                    0 => Pc::Decide(change, root),
                    _ if mistake == 5 => Pc::Decide(change, root),
                    next => Pc::LookToFreeze(change, next, root),
                };
                self.replace(shard, seen, to, done, Pc::CheckFreeze(change, root));
            }
            Pc::CheckFreeze(change, _) => {
                self.go(if self.state.decided >= change { self.end() } else { Pc::Walk(change) });
            }
            Pc::Decide(change, root) => {
                let Phase::Changing(_, to) = root.phase else { return Err("a change without a root".into()) };
                let decides = shards[0].generation == root.generation;
                let decided = ModelShard { phase: Phase::Normal, epoch: to, ..root };
                self.replace(0, root, decided, Pc::LookToThaw(root.next), Pc::LookToThaw(root.next));
                if let (true, Some(next)) = (decides, self.next.last_mut()) {
                    next.decided = change;
                    let now = bit(next.shards[0].epoch, next.commits);
                    next.processes.iter_mut().filter(|p| p.current != 0).for_each(|p| p.current |= now);
                }
            }
            Pc::LookToThaw(0) => self.go(self.end()),
            Pc::LookToThaw(shard) => match shards[shard].phase {
                Phase::Frozen(_) => self.go(Pc::AskToThaw(shard, shards[shard])),
                _ => self.go(Pc::LookToThaw(shards[shard].next)),
            },
            Pc::AskToThaw(shard, seen) => match seen.phase {
                Phase::Frozen(change) if self.state.decided >= change || mistake == 6 => {
                    self.go(Pc::Thaw(shard, seen, shards[0].epoch));
                }
                _ => self.go(self.end()),
            },
            Pc::Thaw(shard, seen, epoch) => {
                let thawed = ModelShard { phase: Phase::Normal, epoch, ..seen };
                let next = match self.state.processes[self.process].role {
                    Role::Writer(_) | Role::Reader(_) => Pc::Read(x),
                    _ => Pc::LookToThaw(seen.next),
                };
                self.replace(shard, seen, thawed, next, next);
            }
            _ => return self.step_of_client(mistake),
        }
        Ok(())
    }

    fn step_of_client(&mut self, mistake: u8) -> Result<(), String> {
        let shards = &self.state.shards;
        let is_writer = matches!(self.state.processes[self.process].role, Role::Writer(_));
        match self.state.processes[self.process].pc {
            Pc::Read(shard) if shard == self.state.x && shards[shard].next != 0 => {
                self.go(Pc::Read(shards[shard].next));
            }
            Pc::Read(shard) => {
                let seen = shards[shard];
                match seen.phase {
                    // The client helps, and begins again.
                    Phase::Building => self.go(Pc::LookAtBuilt(Then::Client, shard)),
                    Phase::Frozen(_) if !is_writer && mistake == 8 => {
                        return self.read_returns(seen.epoch, seen.count);
                    }
                    Phase::Frozen(change) => {
                        if !is_writer || self.state.decided >= change {
                            self.go(Pc::AskRoot(shard, seen, change));
                        }
                    }
                    Phase::Normal if is_writer => self.go(Pc::Write(shard, seen)),
                    Phase::Splitting(_) if is_writer && mistake == 7 => self.go(Pc::Write(shard, seen)),
                    _ if is_writer => {}
                    _ => return self.read_returns(seen.epoch, seen.count),
                }
            }
            Pc::AskRoot(shard, seen, change) => {
                let (decided, epoch) = (self.state.decided, shards[0].epoch);
                if is_writer {
                    self.go(Pc::Thaw(shard, seen, epoch));
                } else if decided <= change || mistake == 10 {
                    return self.read_returns(epoch, seen.count);
                } else {
                    self.go(Pc::Thaw(shard, seen, epoch));
                }
            }
            Pc::Write(shard, seen) => {
                let current = shards[shard];
                if (current.generation, current.count) != (seen.generation, seen.count) {
                    self.go(Pc::Read(self.state.x));
                    return Ok(());
                }
                self.check_commit(shard, seen)?;
                let process = self.process;
                self.change(Pc::Idle, |next| {
                    next.shards[shard].count += 1;
                    next.commits += 1;
                    next.processes[process].role = spend(next.processes[process].role);
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn check_commit(&self, shard: usize, seen: ModelShard) -> Result<(), String> {
        let owner = self.state.owner();
        if seen.epoch != self.state.shards[0].epoch {
            return Err(format!("a commit of epoch {} after the next was decided", seen.epoch));
        }
        if owner != Some(shard) {
            return Err(format!("a commit on shard {shard}, which does not own the row"));
        }
        if seen.count != self.state.commits {
            return Err("a commit was lost".into());
        }
        Ok(())
    }

    /// Begins the next operation of a client, or the next work of a helper.
    fn begin(&mut self) {
        let (state, process) = (self.state, self.process);
        let x = &state.shards[state.x];
        match state.processes[process].role {
            Role::Writer(0) | Role::Reader(0) => self.go(Pc::Done),
            Role::Splitter => self.go(Pc::LookAtSplit(Then::Finish, true)),
            Role::Changer(to) => self.go(Pc::LookAtRoot(to)),
            Role::Writer(_) | Role::Reader(_) => {
                // A client may know the new shard from earlier.
                let is_known = |shard: &usize| {
                    let linked = x.next == *shard;
                    linked || (!state.can_give_up && state.shards[*shard].phase != Phase::Absent)
                };
                for shard in (2..4).filter(is_known).chain([state.x]) {
                    self.change(Pc::Read(shard), |next| {
                        next.processes[process].current = bit(next.shards[0].epoch, next.commits);
                    });
                }
            }
            Role::Helper => self.help(),
        }
    }

    fn help(&mut self) {
        let (state, process) = (self.state, self.process);
        let x = state.shards[state.x];
        let is_resting = |p: &Process| matches!(p.pc, Pc::Done | Pc::Crashed);
        let work = match state.shards[0].phase {
            Phase::Changing(change, _) => Some(Pc::Walk(change)),
            _ if matches!(x.phase, Phase::Splitting(_)) => Some(Pc::LookAtSplit(Then::Finish, false)),
            _ if x.next != 0 && state.shards[x.next].phase == Phase::Building => {
                Some(Pc::FollowLink(Then::Finish))
            }
            _ if state.shards[1..].iter().any(|shard| matches!(shard.phase, Phase::Frozen(_))) => {
                Some(Pc::LookToThaw(state.shards[0].next))
            }
            _ if state.processes.iter().enumerate().all(|(i, p)| i == process || is_resting(p)) => {
                Some(Pc::Done)
            }
            _ => None,
        };
        if let Some(work) = work {
            self.go(work);
        }
    }
}

/// Returns the role after one more operation.
fn spend(role: Role) -> Role {
    match role {
        Role::Writer(left) => Role::Writer(left - 1),
        Role::Reader(left) => Role::Reader(left - 1),
        other => other,
    }
}

impl Spaces {
    fn new(x: usize, roles: &[Role], can_give_up: bool) -> Self {
        let shard = |phase| ModelShard { generation: 1, epoch: 0, phase, next: 0, count: 0 };
        let mut shards = [Phase::Normal, Phase::Absent, Phase::Absent, Phase::Absent].map(shard);
        if x == 1 {
            shards[1].phase = Phase::Normal;
            shards[0].next = 1;
        }
        let processes = roles.iter().map(|role| Process { role: *role, pc: Pc::Idle, current: 0 }).collect();
        Self { shards, x, decided: 0, commits: 0, can_give_up, processes }
    }

    /// Returns the shard that owns the row.
    fn owner(&self) -> Option<usize> {
        match self.shards[self.x].next {
            0 => Some(self.x),
            new => matches!(self.shards[new].phase, Phase::Normal | Phase::Frozen(_)).then_some(new),
        }
    }
}

impl ModelState for Spaces {
    fn successors(&self, mistake: u8) -> Result<Vec<Self>, String> {
        let mut all = vec![];
        for process in 0..self.processes.len() {
            let mut stepper = Stepper { state: self, process, next: vec![] };
            stepper.step(mistake)?;
            let Process { role, pc, .. } = &self.processes[process];
            let is_helped = self.processes.iter().any(|process| process.role == Role::Helper);
            let may_crash = is_helped && matches!(role, Role::Splitter | Role::Changer(_));
            if may_crash && !matches!(pc, Pc::Done | Pc::Crashed | Pc::Idle) {
                stepper.go(Pc::Crashed);
            }
            all.append(&mut stepper.next);
        }
        Ok(all)
    }

    fn check_end(&self) -> Result<(), String> {
        if !self.processes.iter().all(|p| matches!(p.pc, Pc::Done | Pc::Crashed)) {
            return Err("stuck".into());
        }
        let count = self.owner().map(|owner| self.shards[owner].count);
        if count == Some(self.commits) { Ok(()) } else { Err(format!("the row is {count:?}")) }
    }
}
