//! libdormouse: the tracer for C and C++.
//!
//! # The problem
//! A C program wants `DORMOUSE_EVENT(db, query, (rows, n))` to cost nothing until somebody asks for it, in any compiler, in
//! inline functions and plugins, without a generator and without a second build step. So the header does all that a
//! compiler can do (types, names, gate), and this library only what needs a running process.
//!
//! # Picture
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
//! The headers are in `include/dormouse/`; `event.h` is the one that programs include. Layouts that both sides share are
//! those of `dormouse-abi`, with twins under `include/dormouse/abi/` that a test compares.
//!
//! # Cost
//! A dormant event is the site's one instruction. An armed one is a call through the procedure linkage table on top of what
//! an event costs in Rust, if its fields are of fixed size: their values are stored in one place, and the record is made of that. Where
//! a field is text, bytes or a sequence, the library reads the class's types, field by field.
//!
//! # Limits
//! * Symbols are exported here and nowhere else: this crate alone has unmangled functions, so that other libraries that
//!   contain the tracer do not export them too. `imv.rs` is compiled a second time as `libdormouse_imv`, for programs that want
//!   immediate values and no tracer, `relay.rs` as `libdormouse_relay`, for those that want buffers of pages, `vring.rs` as
//!   `libdormouse_vring`, for those that want virtqueues, and `backing.rs` as `libdormouse_backing`, for those that want memory. libdormouse
//!   contains all of it: of archives, link it alone, or the others. Where both shared
//!   libraries are loaded, objects give their sites to the one that the loader finds first, and libdormouse has its keys changed
//!   there.
//! * `vfork` goes through a door here, so that a child that traces before `exec` does so under its own id and without the
//!   restartable sequences that the kernel has not registered for it. A program that reaches the system call by itself has
//!   to leave events out of such a child.
//! * `sigaction`, `signal`, `sysv_signal`, `_exit`, `_Exit`, `mlockall` and `opendir` go through doors here as well: for crashes, and so that a session's memory
//!   is not locked, and its descriptor not listed. They are not there for a library that comes by `dlopen`.
//! * One process should have one libdormouse. A program with `libdormouse.a` in it and a plugin with `libdormouse.so` each
//!   trace by themselves, and each joins the session.
//! * A library that contains `libdormouse.a` stays mapped for good once it is loaded: threads and handlers run its code.
//! * A static program is traced like any other. Its linker warns of `getaddrinfo` and `getpwuid_r`, which Rust's standard library names and
//!   libdormouse never calls. A program with musl takes an archive that is built for it, and records without restartable sequences.
//! * Events that run before the object's constructors (in `ifunc` resolvers, `.preinit_array`) are not recorded.

#[path = "../../../mechanisms/backing/capi/face.rs"]
mod backing;
#[path = "../../../mechanisms/imv/capi/face.rs"]
mod imv;
mod listen;
#[path = "../../../mechanisms/percpu/capi/face.rs"]
mod percpu;
#[path = "../../../mechanisms/relay/capi/face.rs"]
mod relay;
mod snapshot;
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

#[cfg(target_arch = "x86_64")]
tracer::define_vfork!();

tracer::define_libc_functions!();

/// Before the tracer crate's own constructor, which would start listening: objects that register themselves do so, unless their program has
/// said before that it does not want that. After those of a program that contains the archive.
#[used]
#[unsafe(link_section = ".init_array.00102")]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn constructor() {
        tracer::start(Listen::OnRequest);
    }
    constructor
};

/// The library's version, such as `0.1.0`. Static; wait-free; async-signal-safe.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_version() -> *const c_char {
    VERSION.as_ptr()
}

/// Writes one record whose fields are all of fixed size.
///
/// # Safety
/// As [`tracer::foreign::record_words`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_words(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    unsafe { tracer::foreign::record_words(class, values, len) }
}

/// Writes one record of values as C has them.
///
/// # Safety
/// As [`tracer::foreign::record_values`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_values(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    unsafe { tracer::foreign::record_values(class, values, len, Texts::Terminated) }
}

/// Writes one record of values as C++ has them.
///
/// # Safety
/// As [`tracer::foreign::record_values`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_record_views(class: *const CClass, values: *const u8, len: usize) {
    // SAFETY: handed on to the caller.
    unsafe { tracer::foreign::record_values(class, values, len, Texts::Counted) }
}

/// Starts the tracer if nothing has, has it listen unless the program does not want that, and adds an object's event classes.
///
/// In a program that contains `libdormouse.a` this is what brings the tracer in: a linker takes from an archive only what
/// somebody names, and nobody names its constructor.
///
/// # Safety
/// As [`tracer::foreign::register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_register_events(start: *const EventRecord, stop: *const EventRecord) {
    agree_on_a_registry();
    tracer::start(Listen::ByDefault);
    // SAFETY: handed on to the caller.
    unsafe { tracer::foreign::register(start, stop) }
}

/// Forgets an object's event classes.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_unregister_events(start: *const EventRecord) {
    tracer::foreign::unregister(start);
}

/// Once: if objects give their sites to libdormouse_imv, because the loader finds it first, keys are changed there.
fn agree_on_a_registry() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    // Now, so that no `vfork` waits for a thread that is in `dlopen`.
    tracer::real_vfork();
    tracer::interpose::prepare();
    if is_static() {
        let symbols = dormouse_percpu::rseq_symbols!();
        // SAFETY: the program's own libc's, or null.
        unsafe { dormouse_percpu::Rseq::tell_of_libc(symbols) };
    }
    // SAFETY: looks a name up, as the loader does for objects that name it. Nothing is found in a static program.
    let found = call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dormouse_imv_update".as_ptr()) });
    let (Some(there), Some(here)) = (object_of(found.addr()), object_of((&raw const DONE).addr())) else { return };
    if there.dli_fbase == here.dli_fbase {
        return;
    }
    // From now on it stays. Only the program itself may not be found by its name, and that stays in any case.
    // SAFETY: a name by `dladdr`.
    unsafe { tracer::foreign::keep_loaded(there.dli_fname) };
    // SAFETY: the function of this name in a library of ours has this type.
    let update = unsafe { core::mem::transmute::<*mut c_void, dormouse_imv::ForeignUpdate>(found) };
    // SAFETY: it is the other library's, which stays loaded.
    unsafe { dormouse_imv::hand_over(update) };
}

/// Whether the program is static: then there are no names to look up.
fn is_static() -> bool {
    // SAFETY: looks a name up, which every libc has.
    call_loader(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) }).is_null()
}
