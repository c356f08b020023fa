//! The owner's reading side over memory that other code writes, without server and threads, for the targets in `fuzz`.
//! Panics where a session would report an error of the system.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use dormouse_abi::class::ClassDecl;
use dormouse_abi::message::Snapshot;
use dormouse_abi::record::RecordKind;
use dormouse_abi::session::Geometry;
use dormouse_control::Take;
use dormouse_relay::Memory;

use crate::clock::Clock;
use crate::error::Error;
use crate::ledger::{Entry, Ledger, Tally};
use crate::memory::{SessionMemory, create_pool, setup};
use crate::options::{Cpus, Options, Plan};
use crate::trace::Trace;
use crate::{drain, snapshot};

/// A session that no process joins.
#[derive(Debug)]
pub struct Owner {
    pub(crate) memory: RefCell<SessionMemory>,
    pub(crate) trace: Trace,
}

/// UUID of the trace, in every packet.
pub const UUID: [u8; 16] = [7; 16];

impl Owner {
    /// Creates a session without CPUs, all of whose streams are claimed. The trace goes to `dir`, which is new or
    /// empty.
    pub fn new(dir: &Path, geometry: Geometry, kind: RecordKind) -> Owner {
        let cpus = Cpus::pretended(0, 0);
        let plan = Options { context: kind, cpus, ..Options::new(dir.into()) }.plan().expect("options of our own");
        let plan = Plan { geometry, page_count_limit: geometry.page_count, ..plan };
        let clock = Clock::new();
        let layout = setup(&plan, clock.source, UUID).layout(&geometry);
        let ledger = Arc::new(Ledger::create(layout).expect("memory"));
        let trace = Trace::create(&plan, clock, UUID, Arc::clone(&ledger)).expect("a directory for the trace");
        let pool = create_pool(&plan).expect("memory");
        let memory = SessionMemory::new(pool, &plan, ledger).expect("memory");
        Owner { memory: RefCell::new(memory), trace }
    }

    /// Declares a class and returns its id.
    pub fn declare(&self, class: &ClassDecl) -> u32 {
        let id = self.trace.classes().events().count() as u16;
        self.trace.declare(&[(id, class.clone())]).expect("room on the disk");
        id.into()
    }

    /// Returns the session's memory. It stays mapped as long as the owner lives.
    pub fn memory(&self) -> Memory {
        self.memory.borrow().view()
    }

    /// Lays the memory out anew, empty, in a mode of [`dormouse_abi::session`], and forgets earlier writes. Earlier
    /// views keep the former mode.
    pub fn reset(&self, mode: u32) {
        self.memory.borrow_mut().reset(mode);
        for stream in 0..self.memory().geometry().stream_count {
            self.trace.ledger.commit_drained(stream, Entry::default(), &Tally::default());
        }
    }

    /// Takes a snapshot.
    ///
    /// # Errors
    /// See `snapshot::take`.
    pub fn snapshot(&self, wanted: &Take) -> Result<Snapshot, Error> {
        snapshot::take(&self.memory.borrow(), &self.trace, wanted, || {})
    }

    /// Writes offered, closed and committed pages, as at a session's end. The event streams' files must not exist.
    pub fn drain(&self) {
        assert_eq!(drain::run_once(&self.memory.borrow(), &self.trace).summary.write_error, None);
    }
}
