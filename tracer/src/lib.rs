//! Dormouse: always-on tracing for native Linux programs.
//!
//! ```
//! fn serve(id: u64, path: &str) {
//!     dormouse::event!(http.request, id, path);
//!     let status = 200u16;
//!     dormouse::event!(http.response, id, status = status, bytes = [1u32, 2, 3]);
//! }
//! # serve(7, "/");
//! ```
//!
//! A dormant event is a `nop` of five bytes: no load, no branch taken, no argument evaluated. Armed, it is
//! one restartable sequence that reserves, stamps, writes and commits a record in memory that outlives the program.
//!
//! # How it is armed
//! * `dormouse record -e 'http:*' -- ./server` starts the program in a session (environment variable `DORMOUSE_SESSION`).
//! * `dormouse arm PID 'http:*'` reaches a program that runs already, through the socket in `$XDG_RUNTIME_DIR/dormouse` on
//!   which one thread of the program sleeps. `DORMOUSE_LISTEN=0` does without.
//! * `dormouse imv list PID` and `dormouse imv set PID NAME VALUE` reach the program's [tunables](imv::tunable) the same way.
//! * [`snapshot`] and [`Snapshot`] have what a session in overwrite mode retains written as a trace, at once or when something
//!   happens; `DORMOUSE_SNAPSHOT_ON=crash,exit,USR2,event:shop:order_failed` does so without a line of code.
//! * `DORMOUSE_NO_RSEQ=1` forces the path for machines without restartable sequences.
//!
//! # Where things are
//! ```text
//!   event!  →  gate (imv)  →  value: bytes and types  →  write: stream of the processor (percpu), record (relay), offer (vring)
//!   start: constructor   process: the session   control: registry and lock   listen: the socket   thread: who writes
//!   tunable: what operators set   snapshot: what the program asks for   watch: events that have it ask
//! ```
//!
//! # What it never does
//! It never blocks, aborts or prints in the traced program, and the record path never allocates. What cannot be recorded
//! is counted in the session's memory.
//!
//! # Limits
//! * Patching and rseq are for x86-64; elsewhere the gate is a load and the write path an atomic claim.
//! * Sections of the shortest kind need a way to wait for them (`membarrier` with rseq, Linux 5.10); without it events take the way
//!   with one more call and its checks.
//! * An event has at most 32 fields, and a record fits a page (64 KiB by default).
//! * A process is in at most one session at a time.
//! * A child made by a raw `clone(CLONE_VM)` without `CLONE_THREAD` must not trace: it runs on its parent's thread-local
//!   data. A child of `vfork` does so too; libdormouse and the preload library take care of it for their own events, but a
//!   Rust program that calls `vfork` by itself must not trace in the child.

mod arch;
mod class;
mod control;
#[doc(hidden)]
pub mod foreign;
mod listen;
mod membarrier;
mod presence;
mod process;
mod snapshot;
mod start;
mod thread;
mod tunable;
mod value;
mod variant;
mod watch;
mod write;

/// Static branches, immediate values and tunables, as this crate uses them itself.
pub use dormouse_imv as imv;
pub use snapshot::{Prepared, Snapshot, SnapshotError, Taken, Trigger, snapshot};
pub use start::{Listen, start};
pub use thread::{before_vfork, enter_tracer};
pub use value::Value;

/// Whether a buffer is memory: for benchmarks, which on memory that nobody has written measure page faults, or the one page of zeroes.
///
/// ```
/// let mut samples = vec![0u64; 1 << 16];
/// samples.fill(u64::MAX);
/// dormouse::pages::assert_backed(&samples);
/// ```
pub mod pages {
    pub use dormouse_backing::{BackingError, Missing, NotBacked, assert_backed, check_backed, check_backed_raw};
}

/// Traces an event.
///
/// ```text
///   event!(provider.name);
///   event!(provider.name, field = expression, field = expression, …);
///   event!(provider.name, variable, …);                a variable stands for field = variable
/// ```
///
/// Expressions are evaluated only when the event is armed, by reference; their types are those that implement [`Value`].
/// It may stand in generic functions, closures, inline functions and shared libraries.
///
/// Wait-free and async-signal-safe if the expressions are.
#[macro_export]
macro_rules! event {
    ($provider:ident . $name:ident $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
        static KEY: $crate::__private::EventKey = $crate::__private::EventKey::new(
            ::core::stringify!($provider),
            ::core::stringify!($name),
            &[$(::core::stringify!($field)),*],
        );
        /// The gate: one site for each list of field types.
        #[inline(always)]
        fn gate<List: $crate::__private::TypeList>(_: $crate::__private::Recorded<List>) -> bool {
            $crate::__private::static_branch!(
                KEY,
                announce("dormouse_events", $crate::__private::describe::<List>)
            )
        }
        const COUNT: usize = 0 $(+ { let _ = ::core::stringify!($field); 1 })*;
        // Which types it lists follows from what is recorded below.
        let list = $crate::__private::Recorded::list();
        if gate(list) {
            let mut payload = $crate::__private::Payload::<{ 8 * (COUNT + 1) }, { 2 * COUNT + 1 }>::new();
            let recorder = $crate::__private::Recorder::new(&KEY, &mut payload);
            list.is_of(recorder $(.field(&($crate::__private::value!($field $(= $value)?))))* .end());
        }
    }};
}

/// What `event!` expands to. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::class::{EventKey, describe};
    pub use crate::value::{Cons, Nil, Payload, TypeList, Words};
    pub use dormouse_imv::static_branch;

    use crate::value::Value;
    use core::marker::PhantomData;

    /// A variable, or the expression of a field.
    #[doc(hidden)]
    #[macro_export]
    macro_rules! __value {
        ($field:ident) => {
            $field
        };
        ($field:ident = $value:expr) => {
            $value
        };
    }
    pub use crate::__value as value;

    /// Takes an event's fields one after the other.
    #[derive(Debug)]
    pub struct Recorder<'a, List, const BYTES: usize, const RUNS: usize> {
        key: &'static EventKey,
        payload: &'a mut Payload<BYTES, RUNS>,
        words: Words,
        list: PhantomData<List>,
    }

    /// The event is written; what remains are its field types.
    #[derive(Debug)]
    pub struct Recorded<List>(PhantomData<List>);

    impl<List> Clone for Recorded<List> {
        #[inline(always)]
        fn clone(&self) -> Self {
            *self
        }
    }

    impl<List> Copy for Recorded<List> {}

    impl<List> Recorded<List> {
        /// A list that is still to be found out.
        #[inline(always)]
        pub fn list() -> Recorded<List> {
            Recorded(PhantomData)
        }

        /// Tells the compiler that it is this one.
        #[inline(always)]
        pub fn is_of(self, _: Recorded<List>) {}
    }

    impl<'a, const BYTES: usize, const RUNS: usize> Recorder<'a, Nil, BYTES, RUNS> {
        /// No fields yet.
        #[inline(always)]
        pub fn new(key: &'static EventKey, payload: &'a mut Payload<BYTES, RUNS>) -> Self {
            Recorder { key, payload, words: Words::default(), list: PhantomData }
        }
    }

    impl<'a, List: TypeList, const BYTES: usize, const RUNS: usize> Recorder<'a, List, BYTES, RUNS> {
        /// Adds a field.
        #[inline(always)]
        pub fn field<T: Value + ?Sized>(self, value: &T) -> Recorder<'a, Cons<List, T::Type>, BYTES, RUNS> {
            // Both ways are gone until the last field tells which it is; what the other has gathered the compiler leaves out.
            value.put(self.payload);
            let words = match List::FIXED_SIZE_BYTES {
                Some(offset) => self.words.and(offset, value.bits()),
                None => self.words,
            };
            Recorder { key: self.key, payload: self.payload, words, list: PhantomData }
        }

        /// Writes the record.
        #[inline(always)]
        pub fn end(self) -> Recorded<List> {
            let fingerprint = const { List::DESCRIPTION.fingerprint() };
            match const { List::WORDS_SIZE_BYTES } {
                Some(len) => self.words.record(self.key, fingerprint, len),
                None => {
                    if let Some(id) = self.key.id(fingerprint) {
                        self.payload.record(id);
                    }
                }
            }
            Recorded(PhantomData)
        }
    }
}

#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        start(default_listen());
    }
    constructor
};

/// What the constructor does when nobody has called [`start`] before.
fn default_listen() -> Listen {
    Listen::ByDefault
}
