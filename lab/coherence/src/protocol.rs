use core::ops::{AddAssign, Sub};

use super::Side;

/// The rules by which two caches agree on a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Modified, Exclusive, Shared, Invalid. A line that one side has modified is written back to memory when the other side loads it.
    Mesi,
    /// Like [`Protocol::Mesi`], but the side that has modified a line keeps it (Owned) when the other side loads it,
    /// and writes nothing back.
    Moesi,
    /// Like [`Protocol::Moesi`], but a side that loads a line which the other has modified takes it over in its
    /// modified state. This transfer from "M" to "M" is the reason why the producer's index was shadowed: each load of
    /// it is a transfer that the producer must wait for.
    Migratory,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Protocol; 3] = [Protocol::Mesi, Protocol::Moesi, Protocol::Migratory];

    /// Usual spelling of the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Mesi => "MESI",
            Protocol::Moesi => "MOESI",
            Protocol::Migratory => "MOESI, migratory",
        }
    }
}

/// Lines that moved because of one side's accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moves {
    /// Lines that came from the other side for a load, which waits for them.
    pub load_misses: u64,
    /// Lines that came from the other side for a store.
    pub store_misses: u64,
    /// Lines that both sides had and that were taken from the other side for a store.
    pub upgrades: u64,
    /// Lines that the other side wrote back for a load of this side.
    pub write_backs: u64,
    /// Lines that came from memory.
    pub fills: u64,
}

impl Moves {
    /// Lines that came from the other side.
    pub const fn transfers(&self) -> u64 {
        self.load_misses + self.store_misses
    }
}

impl Sub for Moves {
    type Output = Moves;

    fn sub(self, before: Moves) -> Moves {
        Moves {
            load_misses: self.load_misses - before.load_misses,
            store_misses: self.store_misses - before.store_misses,
            upgrades: self.upgrades - before.upgrades,
            write_backs: self.write_backs - before.write_backs,
            fills: self.fills - before.fills,
        }
    }
}

impl AddAssign for Moves {
    fn add_assign(&mut self, other: Moves) {
        self.load_misses += other.load_misses;
        self.store_misses += other.store_misses;
        self.upgrades += other.upgrades;
        self.write_backs += other.write_backs;
        self.fills += other.fills;
    }
}

/// A line's state in one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum State {
    #[default]
    Invalid,
    Shared,
    Exclusive,
    Owned,
    Modified,
}

/// A line's state in both caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Caches(pub(super) [State; 2]);

impl Caches {
    pub(super) fn access(&mut self, protocol: Protocol, side: Side, is_store: bool, moves: &mut Moves) {
        let (here, there) = (side as usize, side.other() as usize);
        let states = &mut self.0;
        match (states[here], states[there]) {
            (State::Invalid, State::Invalid) => moves.fills += 1,
            (State::Invalid, _) if is_store => moves.store_misses += 1,
            (State::Invalid, _) => moves.load_misses += 1,
            (State::Shared | State::Owned, State::Shared | State::Owned) if is_store => moves.upgrades += 1,
            _ => {}
        }
        if is_store {
            states[here] = State::Modified;
            states[there] = State::Invalid;
        } else if states[here] == State::Invalid {
            (states[here], states[there]) = match (states[there], protocol) {
                (State::Invalid, _) => (State::Exclusive, State::Invalid),
                (State::Modified, Protocol::Mesi) => {
                    moves.write_backs += 1;
                    (State::Shared, State::Shared)
                }
                (State::Modified, Protocol::Moesi) | (State::Owned, _) => (State::Shared, State::Owned),
                (State::Modified, Protocol::Migratory) => (State::Modified, State::Invalid),
                (State::Exclusive | State::Shared, _) => (State::Shared, State::Shared),
            };
        }
    }
}
