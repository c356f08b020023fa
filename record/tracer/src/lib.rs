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
//! A dormant event is a `nop` (five bytes on x86-64): no load, no branch taken, no argument evaluated. If the program's
//! text cannot be changed, a dormant event reads a variable instead. An armed event enters a restartable sequence that
//! reserves space, reads the clock, and writes and commits a record in memory that outlives the program.
//!
//! # How programs are controlled
//! * `dormouse record -e 'http:*' -- ./server` starts the program in a session. The program inherits the session's
//!   memory (`DORMOUSE_MEMORY`) and the path of its socket (`DORMOUSE_SESSION`).
//! * `dormouse arm PID 'http:*'` sends a running program a signal. The next thread that passes a tracepoint starts a
//!   listener thread with a socket. That thread ends two seconds after the last tool has disconnected, but not while
//!   the program is in a session that it was asked to join.
//! * `dormouse imv list PID` and `dormouse imv set PID NAME VALUE` contact the program in the same way, and list and
//!   set its [tunables](imv::tunable).
//! * [`snapshot`] takes a snapshot: it saves, as a trace of their own, the events that a session in overwrite mode
//!   still holds. [`Snapshot`] accepts options and triggers: with `Snapshot::on`, a snapshot is saved when something
//!   happens. The variable `DORMOUSE_SNAPSHOT_ON=crash,exit,USR2,event:shop:order_failed` does the same without a
//!   change of code.
//!
//! | environment variable | effect |
//! | --- | --- |
//! | `DORMOUSE_LISTEN=thread` | the listener thread runs from the start |
//! | `DORMOUSE_LISTEN=0` | the program does not listen |
//! | `DORMOUSE_LISTEN` not set | as described above; a program that `dormouse record` has started does not listen |
//! | `DORMOUSE_NO_RSEQ=1` | restartable sequences are not used |
//!
//! `stop_listening` turns listening off at run time. A build without the cargo feature `listen` contains no code for
//! listening.
//!
//! # Structure
//! ```text
//!   event! ─▶ gate (imv) ─▶ class: its id; value: its fields as bytes ─▶ record ─▶ direct section
//!                                                                             └──▶ slow path: percpu, relay, vring
//! ```
//! A *direct section* is a restartable sequence that a site enters without calling a function. What it cannot do is
//! left to the slow path, which finds the CPU's stream, writes the record, switches pages and offers full ones to the
//! owner.
//!
//! The modules, lower ones first:
//!
//! | module | contents |
//! | --- | --- |
//! | `arch`, `clock` | thread-local words; clocks |
//! | `disposition`, `membarrier` | signal actions; the barrier that restarts critical sections |
//! | `environment`, `own`, `thread` | variables; what a process finds out about itself; ids of the writing thread |
//! | `inherited` | the inherited descriptors of the sessions' memory |
//! | `presence`, `session` | the sessions' memory: what is resident; who uses it |
//! | `tag_words`, `known_texts` | names of tags; their texts by number |
//! | `name`, `value`, `class` | names; fields as bytes; event classes |
//! | `rule` | rules of a session, bound to a class |
//! | `readers`, `plan` | threads that use a plan; plans of classes that have rules, triggers or several sessions |
//! | `record` | writing a record |
//! | `tag_texts` | texts of tags |
//! | `unheard`, `join` | joining and leaving a session |
//! | `control` | the registry of classes and the lock |
//! | `tag` | values that a thread gives to all of its events |
//! | `snapshot`, `crash`, `watch`, `trigger` | snapshots that the program requests, and their triggers |
//! | `wake`, `ordinary`, `listen` | the listener thread and its socket |
//! | `fork`, `interpose` | forked children; functions that libraries export in place of libc's |
//! | `start`, `foreign` | the constructor; the interface for libdormouse |
//!
//! # What it never does
//! It never aborts the traced program, and never prints. Recording neither blocks nor allocates; joining a session
//! blocks for at most 50 ms. Events that cannot be recorded are counted in the session's memory.
//!
//! # Limits
//! * Gates are patched on x86-64 and AArch64; elsewhere they read a variable. So it is with direct
//!   sections: elsewhere every record takes the slow path.
//! * Direct sections need a libc that uses restartable sequences (glibc 2.35), and a `membarrier` that can restart them
//!   (Linux 5.10), since running sections must be restarted when the session changes. Unless both are present, every
//!   record takes the slow path.
//! * An event has at most 32 fields, and a record must fit a page (64 KiB by default).
//! * A process is in at most 32 sessions at a time.
//! * Do not trace in a child made by a raw `clone(CLONE_VM)` without `CLONE_THREAD`, nor, in Rust, in a child of
//!   `vfork`: it runs on its parent's thread-local data, while the kernel does not restart its sequences. Its records
//!   would have the parent's ids, and could overwrite other threads' records. libdormouse and the preload library
//!   handle `vfork` for their own events.

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
mod known_texts;
#[cfg(feature = "listen")]
mod listen;
mod membarrier;
mod name;
#[cfg(feature = "listen")]
mod ordinary;
mod own;
mod plan;
mod presence;
mod readers;
mod record;
mod rule;
mod session;
mod snapshot;
mod start;
mod tag;
mod tag_texts;
mod tag_words;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod thread;
mod trigger;
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
pub use tag::{Tag, TagScope, TagValue, Tags, TagsScope};
#[doc(hidden)]
pub use thread::{enter_tracer, own_pid};
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
///   event!(level: WARNING, provider.name, …);          an event of a level
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
/// A level says how important an event is: `EMERG`, `ALERT`, `CRIT`, `ERR`, `WARNING`, `NOTICE`, `INFO`,
/// `DEBUG_SYSTEM`, `DEBUG_PROGRAM`, `DEBUG_PROCESS`, `DEBUG_MODULE`, `DEBUG_UNIT`, `DEBUG_FUNCTION`, `DEBUG_LINE` or
/// `DEBUG`, as in LTTng-UST. Rules and tools select by it; it changes nothing in the program's code. Any other word
/// does not compile:
///
/// ```
/// let (id, attempts) = (7u64, 3u32);
/// dormouse::event!(level: WARNING, shop.retried, id, attempts);
/// ```
/// ```compile_fail,E0080
/// dormouse::event!(level: LOUD, shop.retried, id = 7u64);
/// ```
///
/// Wait-free and async-signal-safe if the expressions are.
#[macro_export]
macro_rules! event {
    (level: $level:ident, $($event:tt)*) => {
        $crate::__event!([$crate::__private::Fields::record] [.with_level(::core::stringify!($level))] $($event)*)
    };
    ($($event:tt)*) => {
        $crate::__event!([$crate::__private::Fields::record] [] $($event)*)
    };
}

/// [`event!`] with a given function of the fields and the key that records the event, of which the lab compares
/// several, and calls that complete the key.
#[doc(hidden)]
#[macro_export]
macro_rules! __event {
    ([$($record:tt)*] [$($with:tt)*] $provider:ident . $name:ident $(, $field:ident $(= $value:expr)?)* $(,)?) => {{
        static KEY: $crate::__private::EventKey = $crate::__private::EventKey::new(
            ::core::stringify!($provider),
            ::core::stringify!($name),
            &[$(::core::stringify!($field)),*],
        )
        $($with)*;
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

/// Gives all events of the calling thread a value, such as the request that it works on, until the result is dropped.
///
/// ```
/// fn serve(id: u64, user: &str) {
///     let _request = dormouse::tag!(request = id);
///     let _user = dormouse::tag!(user);            // a variable stands for user = user
///     dormouse::event!(http.begin);
/// }
/// # serve(7, "alice");
/// ```
/// Sessions record the tags that they ask for: `dormouse record --context tag.request,tag.user`. Each event then has a
/// value of 64 bits for each of them, 0 if its thread has no such tag. A value is an unsigned integer, or a text
/// ([`TagValue`]); of a text, traces have the first 255 bytes.
///
/// Within the scope of a tag, the same tag may be set again; the former value returns afterwards. Other threads that go
/// on with the work get the tags by [`Tags`]. A process has at most four tags, by their names: those that are set first.
/// A name is as in [`event!`], of at most 31 bytes:
///
/// ```compile_fail,E0080
/// let _user = dormouse::tag!(größe = 1u8);
/// ```
///
/// Setting a tag costs a thread-local store; a text is hashed. When it is first used, a tag takes a lock and looks its
/// name up, and so does a text that is new to the process. Not async-signal-safe.
#[macro_export]
macro_rules! tag {
    ($name:ident = $value:expr) => {{
        static TAG: $crate::Tag = $crate::Tag::new(::core::stringify!($name));
        TAG.enter(&$value)
    }};
    ($name:ident) => {
        $crate::tag!($name = $name)
    };
}

/// Items that `event!` expands to. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::class::{EventKey, describe};
    pub use crate::record::record_segments;
    pub use crate::value::sealed::Field;
    pub use crate::value::{
        Fields, HasTypeByte, Recorded, Scalar, StaticLabel, StaticLabels, TypeList, Values, enumeration_size_bytes,
        enumeration_type,
    };
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
