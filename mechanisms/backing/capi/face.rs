//! Memory for C: the functions of `dormouse/backing.h`.
//!
//! ```text
//!   pool                         a memory file, memory of this process only, or another's file       struct dormouse_backing_pool, opaque
//!   options, obtained, missing   owned by the caller, in C layout
//! ```

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

use dormouse_backing::{
    BackingError, Huge, Mapping, MemoryOptions, MissingBytes, Nodes, NotBacked, NotPopulated, Obtained, Pool,
    PrivatePool, check_backed_raw, populate_raw,
};

/// `DORMOUSE_BACKING_LAZY` and the flags that follow it in the header.
const LAZY: c_uint = 1;
const LOCK: c_uint = 2;
const GUARD: c_uint = 4;
const NEAR_CPU: c_uint = 8;
const AT_CPU: c_uint = 16;

/// `struct dormouse_backing_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    size_bytes: usize,
    capacity_bytes: usize,
    flags: c_uint,
    huge: c_uint,
    cpu: c_uint,
}

/// `struct dormouse_backing_obtained`.
#[repr(C)]
pub struct CObtained {
    size_bytes: usize,
    hugetlb_bytes: usize,
    thp_bytes: usize,
    small_bytes: usize,
    missing_bytes: usize,
    is_huge_told: c_uint,
    nodes: c_uint,
    node: c_uint,
    away_bytes: usize,
}

/// `struct dormouse_backing_pool`.
pub enum CPool {
    File(Pool),
    Private(PrivatePool),
    Attached(Mapping),
}

impl CPool {
    fn mapping(&self) -> &Mapping {
        match self {
            CPool::File(pool) => pool.mapping(),
            CPool::Private(pool) => pool.mapping(),
            CPool::Attached(mapping) => mapping,
        }
    }
}

thread_local! {
    static WHY: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Stores a line for [`dormouse_backing_why`]. The texts contain no NUL.
fn remember(text: String) {
    WHY.with(|why| *why.borrow_mut() = CString::new(text).ok());
}

/// Stores the error's text, and returns its errno.
fn errno_of(error: BackingError) -> c_int {
    remember(error.to_string());
    match error {
        BackingError::Size { .. }
        | BackingError::Range { .. }
        | BackingError::NotSealed
        | BackingError::NotMemory
        | BackingError::NotOurs => libc::EINVAL,
        BackingError::NotEnough { .. } | BackingError::NotHuge { .. } => libc::ENOMEM,
        BackingError::NoSpace { .. } => libc::ENOSPC,
        BackingError::Lock { .. } => libc::EPERM,
        BackingError::NoCpu { .. } => libc::ENODEV,
        BackingError::System { errno, .. } => errno.raw_os_error(),
        _ => libc::EOPNOTSUPP,
    }
}

fn answer(done: Result<(), BackingError>) -> c_int {
    done.map_or_else(|error| -errno_of(error), |()| 0)
}

/// Returns the pool, or NULL and sets `errno`.
fn handed_out(made: Result<CPool, c_int>) -> Option<NonNull<CPool>> {
    made.inspect_err(|&error| {
        // SAFETY: the function has no precondition and always returns an address.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: the address is that of the thread's own `errno`.
        unsafe { *errno = error };
    })
    .ok()
    .map(|pool| NonNull::from(Box::leak(Box::new(pool))))
}

fn refused(text: &str) -> c_int {
    remember(text.into());
    libc::EINVAL
}

fn options(c_options: &COptions) -> Result<MemoryOptions, c_int> {
    let COptions { capacity_bytes, flags, huge, cpu, .. } = *c_options;
    let is = |flag| flags & flag != 0;
    if flags & !(LAZY | LOCK | GUARD | NEAR_CPU | AT_CPU) != 0 || is(NEAR_CPU) && is(AT_CPU) {
        return Err(refused("unknown flags, or flags that contradict one another"));
    }
    let huge = match huge {
        0 => Huge::AsConfigured,
        1 => Huge::Never,
        2 => Huge::Prefer,
        3 => Huge::Require,
        _ => return Err(refused("unknown kind of huge pages")),
    };
    let options = MemoryOptions::new().prefault(!is(LAZY)).huge(huge).lock(is(LOCK)).guard(is(GUARD));
    let options = options.capacity_bytes(capacity_bytes);
    Ok(match (is(NEAR_CPU), is(AT_CPU)) {
        (true, _) => options.near_cpu(cpu),
        (_, true) => options.at_cpu(cpu),
        _ => options,
    })
}

/// Creates a pool. If it fails, returns NULL and sets `errno`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_backing_create(name: *const c_char, c_options: &COptions) -> Option<NonNull<CPool>> {
    let made = options(c_options).and_then(|options| {
        let made = if name.is_null() {
            PrivatePool::new(c_options.size_bytes, options).map(CPool::Private)
        } else {
            // SAFETY: the caller guarantees that a name that is not NULL is a NUL-terminated string.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
            Pool::new(&name, c_options.size_bytes, options).map(CPool::File)
        };
        made.map_err(errno_of)
    });
    handed_out(made)
}

/// Calls [`Mapping::map`]. If it fails, returns NULL and sets `errno`.
///
/// # Safety
/// The descriptor stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_backing_attach(file: c_int, is_prefaulted: c_int) -> Option<NonNull<CPool>> {
    if file < 0 {
        return handed_out(Err(refused("there is no such file")));
    }
    // SAFETY: the caller guarantees that the descriptor stays open during the call; it is not negative.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    handed_out(Mapping::map(file, is_prefaulted != 0).map(CPool::Attached).map_err(errno_of))
}

/// Unmaps and frees a pool.
///
/// # Safety
/// `pool` is NULL, or was created or attached and not yet destroyed, and its memory is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_backing_destroy(pool: Option<NonNull<CPool>>) {
    if let Some(pool) = pool {
        // SAFETY: `handed_out` made the pointer from a box, and the caller guarantees that the pool was not yet
        // destroyed.
        drop(unsafe { Box::from_raw(pool.as_ptr()) });
    }
}

/// Calls [`Mapping::base`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_base(pool: &CPool) -> *mut c_void {
    pool.mapping().base().cast()
}

/// Calls [`Mapping::len`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_size_bytes(pool: &CPool) -> usize {
    pool.mapping().len()
}

/// Calls [`Mapping::capacity_bytes`].
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_capacity_bytes(pool: &CPool) -> usize {
    pool.mapping().capacity_bytes()
}

/// Calls [`Pool::file`]. Returns -EBADF if there is no file.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_file(pool: &CPool) -> c_int {
    match pool {
        CPool::File(pool) => pool.file().as_raw_fd(),
        CPool::Private(_) | CPool::Attached(_) => -libc::EBADF,
    }
}

/// Calls [`Pool::prefault`]. Returns 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_prefault(pool: &CPool, offset: usize, size_bytes: usize) -> c_int {
    let range = offset..offset.saturating_add(size_bytes);
    match pool {
        CPool::File(pool) => answer(pool.prefault(range)),
        CPool::Private(pool) => answer(pool.prefault(range)),
        CPool::Attached(_) => -refused("attached memory cannot be prefaulted later; attach it prefaulted"),
    }
}

/// Calls [`Pool::grow`]. Returns 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_grow(pool: &mut CPool, size_bytes: usize) -> c_int {
    match pool {
        CPool::File(pool) => answer(pool.grow(size_bytes)),
        CPool::Private(pool) => answer(pool.grow(size_bytes)),
        CPool::Attached(_) => -refused("attached memory cannot grow; all of it is mapped already"),
    }
}

/// Calls [`Pool::obtained`]. Returns 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_ask(pool: &CPool, target: &mut CObtained) -> c_int {
    let mapping = pool.mapping();
    let found = mapping.obtained(0..mapping.len());
    answer(found.map(
        |Obtained { size_bytes, hugetlb_bytes, thp_bytes, small_bytes, missing_bytes, is_huge_told, nodes, .. }| {
            let (nodes, node, away_bytes) = match nodes {
                Nodes::NotAsked => (0, 0, 0),
                Nodes::OnlyOne => (1, 0, 0),
                Nodes::Checked { node, away_bytes } => (3, node, away_bytes),
                _ => (2, 0, 0),
            };
            *target = CObtained {
                size_bytes,
                hugetlb_bytes,
                thp_bytes,
                small_bytes,
                missing_bytes,
                is_huge_told: is_huge_told.into(),
                nodes,
                node,
                away_bytes,
            };
        },
    ))
}

/// Returns the text of the last failure in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_backing_why() -> *const c_char {
    WHY.with(|why| why.borrow().as_deref().unwrap_or(c"").as_ptr())
}

/// Calls [`check_backed_raw`]. Returns 0, or a negative errno and stores the missing parts as `struct
/// dormouse_pages_missing`.
#[unsafe(no_mangle)]
pub extern "C" fn dormouse_pages_check(
    buffer: *const c_void,
    size_bytes: usize,
    target: Option<&mut MissingBytes>,
) -> c_int {
    let Err(error) = check_backed_raw(buffer.cast(), size_bytes) else { return 0 };
    let (errno, missing) = match error {
        NotBacked::Missing(missing) => (libc::EFAULT, missing),
        NotBacked::ZeroUnseen(missing) => (libc::EOPNOTSUPP, missing),
        NotBacked::Unknown(error) => return -errno_of(error),
        _ => return -libc::EIO,
    };
    remember(error.to_string());
    if let Some(target) = target {
        *target = missing;
    }
    -errno
}

/// Calls [`populate_raw`]. Returns 0, or a negative errno.
///
/// # Safety
/// The bytes are memory of this program, or not mapped at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_pages_populate(buffer: *mut c_void, size_bytes: usize) -> c_int {
    // SAFETY: the caller guarantees what the function requires; accesses of C code are outside Rust's rules.
    let Err(error) = (unsafe { populate_raw(buffer.cast(), size_bytes) }) else { return 0 };
    remember(error.to_string());
    -match error {
        NotPopulated::Size { .. } => libc::EINVAL,
        NotPopulated::NotMapped { .. } | NotPopulated::NoPage { .. } => libc::EFAULT,
        NotPopulated::ReadOnly { .. } => libc::EACCES,
        NotPopulated::StackLimit { .. } | NotPopulated::NotEnough { .. } => libc::ENOMEM,
        NotPopulated::System { errno, .. } => errno.raw_os_error(),
        _ => libc::EIO,
    }
}

/// Does what [`dormouse_backing::assert_backed`] does. For the macro, which passes file and line.
///
/// # Safety
/// `file` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dormouse_pages_assert(
    buffer: *const c_void,
    size_bytes: usize,
    file: *const c_char,
    line: c_uint,
) {
    if let Err(error) = check_backed_raw(buffer.cast(), size_bytes) {
        let file = if file.is_null() {
            c""
        } else {
            // SAFETY: the caller guarantees that a file name that is not NULL is a NUL-terminated string.
            unsafe { CStr::from_ptr(file) }
        };
        eprintln!("{}:{line}: {error}", file.to_string_lossy());
        std::process::abort();
    }
}
