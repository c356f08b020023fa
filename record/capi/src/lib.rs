//! libdormouse: the tracer for C and C++.
//!
//! # The problem
//! `DORMOUSE_EVENT(db, query, (rows, n))` in a C program should cost nothing until it is armed, with any compiler, in
//! inline functions and plugins, without a code generator or a second build step. So the header does everything that a
//! compiler can do (types, names, gate), and this library only what needs a running process.
//!
//! # Structure
//! ```text
//!    program or plugin (C, C++)                                        libdormouse
//!   ┌─────────────────────────────────────────┐
//!   │ site  0F 1F 44 00 00         (dormant)   │    constructor
//!   │ class {enabled, id, names, fields}       │───────────────────▶ dormouse_imv_register     imv: patches sites
//!   │ section dormouse_sites:  site, key       │───────────────────▶ dormouse_register_events  control: enters classes
//!   │ section dormouse_events: class           │
//!   │                                          │    armed
//!   │ values on the stack: numbers,            │───────────────────▶ dormouse_record_words     write: one rseq section
//!   │ addresses of text, {address, count}      │───────────────────▶ dormouse_record_values
//!   └─────────────────────────────────────────┘
//!                                                    destructor (exit, dlclose)
//!                                              ────────────────────▶ dormouse_unregister_events, dormouse_imv_unregister
//! ```
//!
//! The headers are in `include/dormouse/`; programs include `event.h`. The layouts that both sides share are those of
//! `dormouse-abi`, with twins under `include/dormouse/abi/` that a test compares.
//!
//! # Cost
//! A dormant event is the site's one instruction. An armed event with fields of fixed size costs a call through the
//! procedure linkage table more than an event in Rust: its values are stored contiguously, and the record is made from
//! them. If a field is text, bytes or a sequence, the library also reads the class's types, field by field.
//!
//! # Limits
//! * Only this crate exports unmangled symbols, so that other libraries that contain the tracer do not export them too.
//!   Parts of it are also compiled as libraries of their own for programs without the tracer: `imv.rs` as
//!   `libdormouse_imv` (immediate values), `relay.rs` as `libdormouse_relay` (buffers of pages), `vring.rs` as
//!   `libdormouse_vring` (virtqueues), and `backing.rs` as `libdormouse_backing` (memory). libdormouse contains all of
//!   them: of the archives, link either libdormouse alone, or the others. If both shared libraries are loaded, objects
//!   register their sites with the one that the loader finds first, and libdormouse changes its keys there.
//! * `vfork` has a wrapper here, so that a child that traces before `exec` does so under its own id and without
//!   restartable sequences, for which the kernel has not registered it. A program that makes the system call directly
//!   must not trace in the child.
//! * `sigaction`, `signal`, `sysv_signal`, `_exit`, `_Exit`, `mlockall` and `opendir` have wrappers here as well: to
//!   report crashes, and so that a session's memory is not locked, and its descriptor not listed. The wrappers have no
//!   effect in a library that is loaded by `dlopen`.
//! * A process should have one libdormouse. A program with `libdormouse.a` and a plugin with `libdormouse.so` trace
//!   separately, and each joins the session.
//! * A library that contains `libdormouse.a` stays mapped for ever once it is loaded: threads and handlers run its
//!   code.
//! * A static program is traced like any other. Its linker warns about `getaddrinfo` and `getpwuid_r`, which Rust's
//!   standard library refers to and libdormouse never calls. A program with musl needs an archive that is built for it,
//!   and records without restartable sequences.
//! * Events before the object's constructors (in `ifunc` resolvers, `.preinit_array`) are not recorded.

#[path = "../../../mechanisms/backing/capi/face.rs"]
mod backing;
#[path = "../../../mechanisms/imv/capi/face.rs"]
mod imv;
#[cfg(feature = "listen")]
#[path = "../../../mechanisms/imv/capi/listen.rs"]
mod imv_listen;
mod listen;
#[path = "../../../mechanisms/percpu/capi/face.rs"]
mod percpu;
#[path = "../../../mechanisms/relay/capi/face.rs"]
mod relay;
mod snapshot;
mod tag;
mod tunable;
#[path = "../../../mechanisms/vring/capi/face.rs"]
mod vring;

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use dormouse_abi::class::CClass;
use dormouse_abi::site::EventRecord;
use dormouse_locks::call_loader;
use tracer::Listen;
use tracer::foreign::{Texts, object_of};

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("a version has no NUL"),
};

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
tracer::define_vfork!();

tracer::define_libc_functions!();

/// Runs before the tracer crate's own constructor, which would start listening. Objects that register themselves start
/// it, unless their program has turned it off before. In a program that contains the archive, this runs after the
/// program's objects have registered.
#[used]
#[unsafe(link_section = ".init_array.00102")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        tracer::start(Listen::OnRequest);
    }
    constructor
};

/// Returns the library's version, such as `0.1.0`. Static; wait-free; async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Writes one record whose fields are all of fixed size.
///
/// # Safety
/// The conditions of [`tracer::foreign::record_words`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_words(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: the caller satisfies the conditions of `tracer::foreign::record_words`.
    unsafe { tracer::foreign::record_words(class, values, len) }
}

/// Writes one record from values in the representation of C.
///
/// # Safety
/// The conditions of [`tracer::foreign::record_values`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_values(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: the caller satisfies the conditions of `tracer::foreign::record_values`.
    unsafe { tracer::foreign::record_values(class, values, len, Texts::Terminated) }
}

/// Writes one record from values in the representation of C++.
///
/// # Safety
/// The conditions of [`tracer::foreign::record_values`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_views(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: the caller satisfies the conditions of `tracer::foreign::record_values`.
    unsafe { tracer::foreign::record_values(class, values, len, Texts::Counted) }
}

/// Starts the tracer if it was not started, lets it listen unless the program has turned that off, and adds an object's
/// event classes.
///
/// In a program that contains `libdormouse.a`, this function makes the linker include the tracer: a linker takes from
/// an archive only what other code refers to, and no code refers to the tracer's constructor.
///
/// # Safety
/// The conditions of [`tracer::foreign::register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_register_events(start: *const EventRecord, stop: *const EventRecord) {
    agree_on_a_registry();
    tracer::start(Listen::ByDefault);
    // SAFETY: the caller satisfies the conditions of `tracer::foreign::register`.
    unsafe { tracer::foreign::register(start, stop) }
}

/// Forgets an object's event classes.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_unregister_events(start: *const EventRecord) {
    tracer::foreign::unregister(start);
}

/// Makes libdormouse change keys in libdormouse_imv, once, if objects register their sites there because the loader
/// finds it first.
fn agree_on_a_registry() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // Looked up now, so that `vfork` never waits for a thread in `dlopen`.
    tracer::real_vfork();
    tracer::interpose::prepare();
    if is_static() {
        let symbols = dormouse_percpu::rseq_symbols!();
        // SAFETY: symbols of the program's own libc, or null.
        unsafe { dormouse_percpu::Rseq::tell_of_libc(symbols) };
    }
    // SAFETY: looks up a name, like the loader for objects that refer to it. In a static program nothing is found.
    let found = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dormouse_imv_update".as_ptr()) });
    let (Some(there), Some(here)) = (object_of(found.addr()), object_of((&raw const DONE).addr())) else { return };
    if there.dli_fbase == here.dli_fbase {
        return;
    }
    // The library stays loaded from now on. Only the program itself may not be found by its name, and it is never
    // unloaded.
    // SAFETY: `dladdr` returned the name, which ends in NUL.
    unsafe { tracer::foreign::keep_loaded(there.dli_fname) };
    // SAFETY: in our libraries, the function with this name has this type.
    let update = unsafe { core::mem::transmute::<*mut c_void, dormouse_imv::ForeignUpdate>(found) };
    // SAFETY: the function belongs to the other library, which stays loaded.
    unsafe { dormouse_imv::hand_over(update) };
}

/// Whether the program is static, so that there are no names to look up.
fn is_static() -> bool {
    // SAFETY: looks up a name, which every libc has.
    call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }).is_null()
}
