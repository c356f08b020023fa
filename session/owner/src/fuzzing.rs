//! The owner's reading side over memory that somebody else writes: without server and threads, for the targets in `fuzz`. Panics
//! where a session would report an error of the system.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use dormouse_abi::record::RecordKind;
use dormouse_abi::session::{Geometry, MODE_DISCARD};
use dormouse_abi::wire::ClassDecl;
use dormouse_backing::{MemoryOptions, Pool};
use dormouse_relay::{Memory, Setup};

use crate::budget::Budget;
use crate::clock::Clock;
use crate::session::{Context, Cpus, Options, Shared};
use crate::snapshot::{Snapshot, SnapshotError, Take};
use crate::trace::Trace;
use crate::whereabouts::LeftBehind;
use crate::{drain, snapshot};

/// A session that nobody joins.
#[derive(Debug)]
pub struct Owner {
    pub(crate) shared: RefCell<Shared>,
    kind: RecordKind,
}

/// What was drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Events that were written.
    pub events: u64,
    /// Events that were lost, as the memory says.
    pub lost: u64,
    /// Packets that were left out.
    pub packets_refused: u64,
}

/// The identity of the trace, in every packet.
pub const UUID: [u8; 16] = [7; 16];

impl Owner {
    /// Of a session without processors, all of whose streams are claimed. The trace goes to `dir`, which is new or empty.
    pub fn new(dir: &Path, geometry: Geometry, kind: RecordKind) -> Owner {
        let context = if kind == RecordKind::Compact { Context::None } else { Context::Ids };
        let options = Options { context, ..Options::new(dir.into()) };
        let clock = Clock::new();
        let trace = Trace::create(&options, &clock, UUID, geometry.page_size_bytes).expect("a directory for the trace");
        let pool = Pool::new("dormouse-fuzz", geometry.size_bytes(), MemoryOptions::new()).expect("memory");
        let cpus = Cpus { online: Vec::new(), ..options.cpus };
        let budget = Budget::new(&pool, geometry, geometry.page_count, &cpus).expect("memory");
        let memory = lay_out(&pool, &geometry, MODE_DISCARD, clock.source, kind);
        let (stop, snapshots) = (AtomicBool::new(false), Mutex::new(()));
        let left = LeftBehind::new(None);
        let shared = Shared { pool, memory, clock, trace, left, stop, snapshots, budget };
        Owner { shared: RefCell::new(shared), kind }
    }

    /// The id of a class.
    pub fn declare(&self, class: &ClassDecl) -> u32 {
        self.shared.borrow().trace.class_id(class).expect("a place for the class")
    }

    /// The session's memory. It stays mapped as long as the owner lives.
    pub fn memory(&self) -> Memory {
        self.shared.borrow().memory
    }

    /// Lays the memory out anew, empty, in a mode of [`dormouse_abi::session`].
    pub fn reset(&self, mode: u32) {
        let mut shared = self.shared.borrow_mut();
        let geometry = *shared.memory.geometry();
        // SAFETY: the pool is that long, and nobody reads it meanwhile.
        unsafe { shared.pool.base().write_bytes(0, geometry.size_bytes()) };
        shared.memory = lay_out(&shared.pool, &geometry, mode, shared.clock.source, self.kind);
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// As for a session's owner.
    pub fn snapshot(&self, wanted: &Take) -> Result<Snapshot, SnapshotError> {
        snapshot::take(&self.shared.borrow(), wanted)
    }

    /// Writes what is offered, closed and committed, as at a session's end. The event streams' files must not be there.
    pub fn drain(&self) -> Drained {
        let drain::Drained { written, lost, .. } = drain::run_once(&self.shared.borrow());
        assert_eq!(written.write_error, None);
        Drained { events: written.events, lost, packets_refused: written.packets_refused }
    }
}

fn lay_out(pool: &Pool, geometry: &Geometry, mode: u32, clock: u32, kind: RecordKind) -> Memory {
    let page_limit = geometry.page_count;
    let setup = Setup { mode, clock, uuid: UUID, kind, page_limit, reserved_for: &[], reserve_each: 0 };
    // SAFETY: the pool is that long, zeroed and this process's alone; it lives as long as the view, in the same owner.
    unsafe { Memory::initialise(pool.base(), geometry, &setup) }
}
