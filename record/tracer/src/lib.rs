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
//! A dormant event is a `nop` of five bytes: no load, no branch taken, no argument evaluated. An armed event is one
//! restartable sequence that reserves, stamps, writes and commits a record in memory that outlives the program.
//!
//! # How to arm events
//! * `dormouse record -e 'http:*' -- ./server` starts the program in a session. The program inherits the session's
//!   memory (`DORMOUSE_MEMORY`) and the path of its socket (`DORMOUSE_SESSION`).
//! * `dormouse arm PID 'http:*'` signals a running program. The next tracepoint starts a thread that listens on a
//!   socket and ends when no tool has connected for two seconds. `DORMOUSE_LISTEN=thread` makes the program listen from
//!   the start. A program started by `dormouse record` listens only if `DORMOUSE_LISTEN` says so. `DORMOUSE_LISTEN=0`
//!   turns listening off in any program, `stop_listening` from some point on, and without the feature `listen` the code
//!   is left out.
//! * `dormouse imv list PID` and `dormouse imv set PID NAME VALUE` reach the program's [tunables](imv::tunable) the same way.
//! * [`snapshot`] and [`Snapshot`] write what a session in overwrite mode retains as a trace, at once or when something
//!   happens; `DORMOUSE_SNAPSHOT_ON=crash,exit,USR2,event:shop:order_failed` does so without a line of code.
//! * `DORMOUSE_NO_RSEQ=1` forces the path for machines without restartable sequences.
//!
//! # Structure
//! ```text
//!   event!  →  gate (imv)  →  value: bytes and types, class: its id  →  record: a direct section,
//!                                             or the slow path: stream of the CPU (percpu), record (relay), offer (vring)
//!
//!   from bottom to top; each line uses the lines before it:
//!   arch, clock, disposition, environment, membarrier, spawn    thread: ids of the writer
//!   inherited: the memory's descriptor    presence, session: the memory    value, class, marks    record
//!   join: joining and leaving    control: registry and lock    tunable: what operators set
//!   snapshot, crash, watch, trigger: snapshots that the program requests, and their triggers
//!   listen: the socket    fork    interpose: functions that libraries export in place of libc's    start: constructor
//! ```
//!
//! # What it never does
//! It never blocks, aborts or prints in the traced program, and the record path never allocates. Events that cannot be
//! recorded are counted in the session's memory.
//!
//! # Limits
//! * Patching and rseq are for x86-64; elsewhere the gate is a load and the write path an atomic claim.
//! * Direct sections need a way to wait for them (`membarrier` with rseq, Linux 5.10); without it all events take the slow path.
//! * An event has at most 32 fields, and a record must fit a page (64 KiB by default).
//! * A process is in at most one session at a time.
//! * A child made by a raw `clone(CLONE_VM)` without `CLONE_THREAD` must not trace: it runs on its parent's
//!   thread-local data. So does a child of `vfork`; libdormouse and the preload library handle that for their own
//!   events, but a Rust program that calls `vfork` itself must not trace in the child.

#![cfg_attr(not(feature = "listen"), expect(dead_code, reason = "what tools ask for has nobody who asks"))]

mod arch;
mod class;
mod clock;
mod control;
mod crash;
mod disposition;
mod environment;
#[doc(hidden)]
pub mod foreign;
mod fork;
mod inherited;
#[doc(hidden)]
pub mod interpose;
mod join;
#[cfg(feature = "listen")]
mod listen;
mod marks;
mod membarrier;
#[cfg(feature = "listen")]
mod ordinary;
mod own;
mod presence;
mod record;
mod session;
mod snapshot;
mod spawn;
mod start;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod thread;
mod trigger;
mod tunable;
mod unheard;
mod value;
#[cfg(feature = "listen")]
mod wake;
mod watch;

/// Static branches, immediate values and tunables, which this crate itself uses.
pub use dormouse_imv as imv;
#[cfg(feature = "listen")]
pub use environment::ListenMode;
#[doc(hidden)]
pub use fork::{announce_vfork, real_vfork};
#[cfg(feature = "listen")]
pub use listen::{listen, listen_by, stop_listening};
pub use snapshot::{PreparedRequest, Snapshot, SnapshotError, TakenSnapshot, snapshot};
#[doc(hidden)]
pub use start::leave_to_sanitizer;
pub use start::{Listen, start};
#[doc(hidden)]
pub use thread::enter_tracer;
pub use trigger::Trigger;
pub use value::Value;

/// Checks that a buffer is backed by memory. Benchmarks on memory that was never written measure page faults, or the
/// zero page.
///
/// ```
/// let mut samples = vec![0u64; 1 << 16];
/// samples.fill(u64::MAX);
/// dormouse::pages::assert_backed(&samples);
/// ```
pub mod pages {
    pub use dormouse_backing::{BackingError, MissingBytes, NotBacked, assert_backed, check_backed, check_backed_raw};
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
/// The macro may be used in generic functions, closures, inline functions and shared libraries. Expressions may contain
/// `?`, `return` and `.await`;
/// the future is [`Send`] if what they evaluate to is.
///
/// ```
/// async fn wait() -> u64 { 7 }
/// fn spawn(future: impl Future + Send + 'static) {}
///
/// spawn(async { dormouse::event!(http.response, path = String::from("/"), bytes = wait().await) });
/// ```
///
/// Names must be ones that a trace can hold: ASCII letters, digits and `_`, no digit first, at most 255 bytes. A raw
/// identifier stands for its name: `r#type` is the field `type`. An event has at most 32 fields with different names.
/// Anything else does not compile:
///
/// ```compile_fail,E0080
/// dormouse::event!(größe.measured, n = 1u8);
/// ```
/// ```compile_fail,E0080
/// dormouse::event!(shop.order, größe = 1u8);
/// ```
/// ```compile_fail,E0080
/// dormouse::event!(shop.order, r#type = 1u8, type = 2u8);
/// ```
///
/// Wait-free and async-signal-safe if the expressions are.
#[macro_export]
macro_rules! event {
    ($($event:tt)*) => {
        $crate::__event!([$crate::__private::Fields::record] $($event)*)
    };
}

/// [`event!`] with a given function of the fields and the key that records the event. The lab compares several.
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ([$($record:tt)*] $provider:ident . $name:ident $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
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
        // The element types of the list follow from the values recorded below.
        let list = $crate::__private::Recorded::list();
        if gate(list) {
            let fields = $crate::__private::Fields::none();
            list.is_of($($record)*::<{ COUNT + 1 }, { 2 * COUNT + 1 }>(
                fields $(.and(&($crate::__private::value!($field $(= $value)?))))*,
                &KEY,
            ));
        }
    }};
}

/// Items that `event!` expands to. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::class::{EventKey, describe};
    pub use crate::record::record_segments;
    pub use crate::value::{Fields, Recorded, TypeList, Values};
    pub use dormouse_imv::static_branch;
    pub use dormouse_relay::Segment;

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
}

#[cfg(target_os = "linux")]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        start::by_itself();
    }
    constructor
};
