//! The objects that have sites, and the only code that changes their bytes.

use core::cell::{Cell, UnsafeCell};
use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};

use dormouse_abi::site::{SiteRecord, TunableRecord};
use dormouse_locks::{OwnerLock, Rank, Reentered};

use crate::code_writer::{CodeWriter, Ladder, synchronise_cores};
use crate::pace::Pace;
use crate::records::RecordTables;
use crate::segment::{Segment, executable_segment_of};
use crate::site::{OBJECT_COUNT_MAX, Site, Store, Variable};
use crate::{Error, StaticKey, arch};

/// The sites of one loaded object (program or shared library).
#[derive(Clone)]
struct Object {
    sites: &'static [SiteRecord],
    text: Segment,
    /// Range from the first to the last site that an update concerns. Other sites may be between them.
    concerned: Range<usize>,
}

impl Object {
    const NONE: Object = Object { sites: &[], text: Segment::EMPTY, concerned: 0..0 };

    /// Returns the sites whose key or variable passes `concerned`, once the range `self.concerned` has been set for it.
    fn concerned_sites(&self, concerned: impl Fn(usize) -> bool + Clone) -> impl Iterator<Item = Site> + Clone {
        let sites = self.sites.get(self.concerned.clone()).unwrap_or_default();
        sites.iter().filter_map(Site::of).filter(move |site| concerned(site.key))
    }
}

pub(crate) struct Registry {
    objects: [Object; OBJECT_COUNT_MAX],
    object_count: usize,
    pub(crate) tunables: RecordTables,
    ladder: Ladder,
    pace: Pace,
    prepared: bool,
}

struct Locked {
    lock: OwnerLock,
    registry: UnsafeCell<Registry>,
}

// SAFETY: the registry is reached only through `with`, which holds the lock, and its pointers are to static data.
unsafe impl Sync for Locked {}

static LOCKED: Locked = Locked {
    lock: OwnerLock::new(Rank::Registry),
    registry: UnsafeCell::new(Registry {
        objects: [Object::NONE; OBJECT_COUNT_MAX],
        object_count: 0,
        tunables: RecordTables::NONE,
        ladder: if arch::PATCHED { Ladder::new() } else { Ladder::unpatched_architecture() },
        pace: Pace::new(),
        prepared: false,
    }),
};

pub(crate) fn with<R>(work: impl FnOnce(&mut Registry) -> R) -> Result<R, Error> {
    let locked = || {
        // SAFETY: the lock is held and refuses re-entry, so this is the only reference.
        let registry = unsafe { &mut *LOCKED.registry.get() };
        if !registry.prepared {
            registry.prepared = true;
            registry.ladder.prepare();
        }
        work(registry)
    };
    LOCKED.lock.with(locked).map_err(|Reentered| Error::Reentered)
}

impl Registry {
    fn objects(&self) -> &[Object] {
        &self.objects[..self.object_count]
    }

    fn sites(&self) -> impl Iterator<Item = Site> {
        self.objects().iter().flat_map(|object| object.sites).filter_map(Site::of)
    }

    /// Counts the sites of a key or value by its address.
    pub(crate) fn sites_of(&self, address: usize) -> SiteCount {
        SiteCount::of(self.sites().filter(|site| site.key == address))
    }

    /// Patches the sites in `objects` whose key or variable passes `concerned`, so that they agree with it. Those of a
    /// value that changes too often become loads of its variable.
    ///
    /// ```text
    ///   if a site's next store lets threads into the code of an enabled key:  every core serialises (once)
    ///   until no site needs a store (three rounds for a branch, two for the first patch of a gated value, one for another value):
    ///     for each object with a site that needs a store:  write all its stores (one change of protection)
    ///     every core serialises (once)
    ///   if something was stored, on AArch64:  for each object:  write all again; every core serialises (once)
    /// ```
    ///
    /// Returns whether every site agrees with its key or variable.
    fn patch(&mut self, objects: Range<usize>, concerned: impl Fn(usize) -> bool) -> bool {
        let concerned = &concerned;
        for object in &mut self.objects[objects.clone()] {
            let is_concerned = |record: &SiteRecord| Site::of(record).is_some_and(|site| concerned(site.key));
            let first = object.sites.iter().position(is_concerned);
            let last = object.sites.iter().rposition(is_concerned);
            object.concerned = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
        }
        let opens =
            |of: &[Object]| of.iter().flat_map(|object| object.concerned_sites(concerned)).any(arch::opens_at_once);
        // (E) pairs with (D): what was written before the key was enabled is visible behind gates that read no key.
        if self.ladder.writer != CodeWriter::None && opens(&self.objects[objects.clone()]) && !synchronise_cores() {
            self.ladder.refuse(BARRIER_REFUSED);
        }
        // A branch needs three rounds: out of its state, the other bytes, into the new state. A fourth round is for the
        // stores that a refused writer left to the next one.
        let mut is_written = false;
        for _ in 0..4 {
            let mut tried = false;
            for object in &self.objects[objects.clone()] {
                let bytes_only = self.ladder.writer == CodeWriter::ProcMem;
                let next = |site: Site| arch::next_store(site, bytes_only, self.pace.is_variable(site.key));
                let stores = object.concerned_sites(concerned).filter_map(next);
                let Some(span) = span_of(stores.clone()) else { continue };
                tried |= self.ladder.writer != CodeWriter::None;
                // `stores` reads the text again, so after a write that failed half-way the next rung writes only the
                // rest.
                self.ladder.write(&object.text, span, stores);
            }
            if !tried {
                break;
            }
            is_written = true;
            // Also after a failed write, which may have made some of its stores.
            if !synchronise_cores() {
                self.ladder.refuse(BARRIER_REFUSED);
            }
        }
        if is_written && arch::STORES_TWICE {
            self.write_again(objects.clone(), concerned);
        }
        !self.objects[objects].iter().flat_map(|object| object.concerned_sites(concerned)).any(arch::is_stale)
    }

    /// Stores at patched sites what is there already, for emulators: documentation of the architecture's module.
    fn write_again(&mut self, objects: Range<usize>, concerned: impl Fn(usize) -> bool + Copy) {
        for object in &self.objects[objects] {
            let stores = object.concerned_sites(concerned).filter_map(arch::repeated_store);
            if let Some(span) = span_of(stores.clone()) {
                self.ladder.write(&object.text, span, stores);
            }
        }
        if !synchronise_cores() {
            self.ladder.refuse(BARRIER_REFUSED);
        }
    }
}

const BARRIER_REFUSED: &str = "membarrier(PRIVATE_EXPEDITED_SYNC_CORE) was refused after start";

/// Returns the range from the first address to one past the last.
fn span_of(stores: impl Iterator<Item = Store>) -> Option<Range<usize>> {
    stores.map(Store::span).reduce(|span, store| span.start.min(store.start)..span.end.max(store.end))
}

/// Registers the sites of one object and patches them into the state of their keys and values, in one batch.
///
/// `start` and `stop` bound the object's `dormouse_sites` section. Registering the same start again changes nothing.
/// Errors: [`Error::Reentered`], [`Error::TooManyObjects`]: the sites then read their keys. [`Error::Unpatched`]: the
/// system refused a store between two stores of one branch, and that branch falls through, whatever its key says; the
/// object is registered. Blocking; not async-signal-safe (it asks the loader how the text is protected).
///
/// # Safety
///
/// The records between `start` and `stop` are those of the gates of a loaded object, and neither the object's text nor
/// its keys are unloaded before [`unregister_object`].
pub unsafe fn register_object(start: *const SiteRecord, stop: *const SiteRecord) -> Result<(), Error> {
    let size_bytes = (stop as usize).saturating_sub(start as usize);
    if !arch::PATCHED || size_bytes < size_of::<SiteRecord>() {
        return Ok(());
    }
    // SAFETY: the caller guarantees that the range is the object's read-only table of records.
    let sites = unsafe { core::slice::from_raw_parts(start, size_bytes / size_of::<SiteRecord>()) };
    let text = match sites.iter().find_map(Site::of) {
        Some(site) => executable_segment_of(site.address),
        None => return Ok(()),
    };
    let object = Object { sites, text, concerned: 0..0 };
    with(|registry| {
        if registry.objects().iter().any(|known| known.sites.as_ptr() == start) {
            return Ok(());
        }
        let index = registry.object_count;
        *registry.objects.get_mut(index).ok_or(Error::TooManyObjects)? = object;
        registry.object_count += 1;
        registry.patch(index..index + 1, |_| true).then_some(()).ok_or(Error::Unpatched)
    })?
}

/// Forgets an object, before it is unloaded. Its sites stay as they are. Unknown starts are ignored.
///
/// Errors: [`Error::Reentered`]. Blocking; async-signal-safe.
pub fn unregister_object(start: *const SiteRecord) -> Result<(), Error> {
    with(|registry| {
        let Some(index) = registry.objects().iter().position(|known| known.sites.as_ptr() == start) else { return };
        registry.object_count -= 1;
        registry.objects[index] = registry.objects[registry.object_count].clone();
    })
}

/// Registers the tunables of one object. `start` and `stop` bound its `dormouse_tunables` section. Registering the same
/// start again changes nothing. Records of types that this version does not know, or with invalid names, are ignored.
///
/// Errors: [`Error::Reentered`], [`Error::TooManyObjects`]; these tunables are then not exported. Blocking;
/// async-signal-safe.
///
/// # Safety
/// Between `start` and `stop` are the records of a loaded object. Neither they nor the data to which they point are
/// unloaded before [`unregister_tunables`], and only this crate changes the variables.
pub unsafe fn register_tunables(start: *const TunableRecord, stop: *const TunableRecord) -> Result<(), Error> {
    let size_bytes = stop.addr().saturating_sub(start.addr());
    if size_bytes < size_of::<TunableRecord>() {
        return Ok(());
    }
    with(|registry| {
        // SAFETY: the caller guarantees records that stay until they are unregistered.
        let is_added = unsafe { registry.tunables.add(start, size_bytes) };
        is_added.then_some(()).ok_or(Error::TooManyObjects)
    })?
}

/// Forgets an object's tunables, before it is unloaded. Unknown starts are ignored.
///
/// Errors: [`Error::Reentered`]. Blocking (it waits for a thread that is setting one); async-signal-safe.
pub fn unregister_tunables(start: *const TunableRecord) -> Result<(), Error> {
    with(|registry| registry.tunables.remove(start))
}

/// Registers the object that this crate is linked into. A constructor does it at load; code that may run before
/// constructors (a preloaded library's wrappers) may call it first. Later calls do nothing.
///
/// Errors: those of [`register_object`]. Blocking the first time, wait-free later; not async-signal-safe.
pub fn ensure_registered() -> Result<(), Error> {
    static FORK_HANDLED: AtomicBool = AtomicBool::new(false);
    static REGISTERED: AtomicBool = AtomicBool::new(false);

    if REGISTERED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    if !FORK_HANDLED.swap(true, Ordering::Relaxed) {
        // SAFETY: pthread_atfork(3) with handlers that live as long as the object that registers them. If it fails (no
        // memory), a child that is forked during another thread's update cannot change keys; it has no other effect.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    }
    if !arch::PATCHED {
        return Ok(());
    }
    let (start, stop) = arch::own_sites();
    // The lock is taken once even if this object has no sites: the first time prepares the writer while there are few
    // threads. SAFETY: the linker's bounds of this object's own records, which live as long as this registry.
    let answer = with(|_| ()).and_then(|()| unsafe { register_object(start, stop) });
    if answer == Err(Error::Reentered) {
        REGISTERED.store(false, Ordering::Relaxed);
    }
    answer
}

unsafe extern "C" fn before_fork() {
    LOCKED.lock.before_fork();
}

unsafe extern "C" fn after_fork_in_parent() {
    LOCKED.lock.after_fork_in_parent();
}

unsafe extern "C" fn after_fork_in_child() {
    LOCKED.lock.after_fork_in_child();
}

/// Registers the object that this crate is linked into, when it is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER_AT_LOAD: extern "C" fn() = {
    extern "C" fn register_at_load() {
        // `status` reports a failure: the program continues with sites that read their keys.
        let _ = ensure_registered();
        let (start, stop) = arch::own_tunables();
        // A refused table is not exported; there is no caller to report it to. The registry is unloaded with the
        // object. SAFETY: the linker's bounds of this object's own records.
        let _ = unsafe { register_tunables(start, stop) };
    }
    register_at_load
};

/// One change of an [`update`]. Shared with C as `struct dormouse_imv_change`.
#[repr(C)]
#[derive(Debug, Clone)]
pub struct Change {
    /// Address of the key or variable.
    address: usize,
    /// The value, in the lowest bytes.
    bits: u64,
    /// `SET`, `PUBLISH`, `ENABLE` or `DISABLE`.
    operation: u32,
    /// Size of the value, in bytes.
    size_bytes: u32,
    /// Value before the change, while an update runs.
    former: Cell<u64>,
}

/// [`Change::operation`]: the variable is set to a value.
const SET: u32 = 0;
/// [`Change::operation`]: the variable is set to a reference, whose target becomes visible first.
const PUBLISH: u32 = 3;
/// [`Change::operation`]: the key's count is incremented.
const ENABLE: u32 = 1;
/// [`Change::operation`]: the key's count is decremented.
const DISABLE: u32 = 2;

impl Change {
    /// Returns the change that enables a key once, or disables it once.
    pub fn key(key: &'static StaticKey, enable: bool) -> Change {
        let operation = if enable { ENABLE } else { DISABLE };
        Change { address: core::ptr::from_ref(key).addr(), bits: 0, operation, size_bytes: 0, former: Cell::new(0) }
    }

    /// Returns the change that sets a value of 1, 2, 4 or 8 bytes, by its variable's address.
    ///
    /// # Safety
    /// If the change is [valid](Change::is_valid), the variable stays loaded, and only this crate changes it.
    pub const unsafe fn value(address: usize, size_bytes: usize, bits: u64) -> Change {
        // SAFETY: the caller guarantees what `value_of_kind` requires.
        unsafe { Change::value_of_kind(address, size_bytes, bits, false) }
    }

    /// Returns the change that sets a value, which may be a reference to data that becomes visible first.
    ///
    /// # Safety
    /// The conditions of [`Change::value`].
    pub(crate) const unsafe fn value_of_kind(address: usize, size_bytes: usize, bits: u64, publishes: bool) -> Change {
        let operation = if publishes { PUBLISH } else { SET };
        Change { address, bits, operation, size_bytes: size_bytes as u32, former: Cell::new(0) }
    }

    /// Whether the operation and the size are known and the variable is aligned, for a change that C made.
    pub fn is_valid(&self) -> bool {
        let size_bytes = match self.operation {
            SET | PUBLISH => self.size_bytes as usize,
            ENABLE | DISABLE => size_of::<StaticKey>(),
            _ => return false,
        };
        matches!(size_bytes, 1 | 2 | 4 | 8) && self.address != 0 && self.address.is_multiple_of(size_bytes)
    }

    /// Returns the key and the difference of its count, if the change is to a key.
    fn key_change(&self) -> Option<(&StaticKey, i32)> {
        let difference = match self.operation {
            ENABLE => 1,
            DISABLE => -1,
            _ => return None,
        };
        // SAFETY: the address of a key that lives as long as the change: `Change::key` took a static, and `update`'s
        // caller in C guarantees it.
        Some((unsafe { &*(self.address as *const StaticKey) }, difference))
    }

    /// Returns the variable and its new value, if the change is to a value.
    fn value_change(&self) -> Option<(Variable<'_>, u64)> {
        if !matches!(self.operation, SET | PUBLISH) {
            return None;
        }
        // SAFETY: the caller of `Change::value`, or of `update` in C, guarantees that the variable stays loaded, is
        // aligned, and is changed only by this crate.
        Some((unsafe { Variable::at(self.address, self.size_bytes as usize) }, self.bits))
    }
}

/// Makes several changes to keys and values, with one change of protection per object and one synchronisation of the
/// cores.
///
/// When this returns `Ok`, every later execution of a site gives the new state. Until then each site separately may
/// give the old or the new state. If `changes` has several changes of one key or value, they take effect in order.
///
/// Errors: [`Error::Reentered`] (nothing was changed); [`Error::Unbalanced`] (those keys were left out, all other
/// changes are made); [`Error::Unpatched`]; [`Error::Stale`] (no value was changed, all keys are). Blocking;
/// async-signal-safe. Cost: changes × sites comparisons and a few system calls.
pub fn update(changes: &[Change]) -> Result<(), Error> {
    let Some(update) = elsewhere() else { return with(|registry| registry.update(|| changes.iter()))? };
    // SAFETY: the other copy has the same structure of changes, and the same requirements for the variables that they
    // name.
    match -unsafe { update(changes.as_ptr(), changes.len()) } {
        0 => Ok(()),
        libc::EDEADLK => Err(Error::Reentered),
        libc::EINVAL => Err(Error::Unbalanced),
        _ if changes.iter().any(|change| change.value_change().is_some()) => Err(Error::Stale),
        _ => Err(Error::Unpatched),
    }
}

/// Enables a key once: [`update`] with a single change.
pub fn enable(key: &'static StaticKey) -> Result<(), Error> {
    update(&[Change::key(key, true)])
}

/// Disables a key once: [`update`] with a single change.
pub fn disable(key: &'static StaticKey) -> Result<(), Error> {
    update(&[Change::key(key, false)])
}

/// `dormouse_imv_update` of another copy of this crate: takes changes and their number, returns 0 or a negative errno.
pub type ForeignUpdate = unsafe extern "C" fn(*const Change, usize) -> c_int;

static ELSEWHERE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Makes another copy of this crate in the process do every later change. It is the copy with which objects have
/// registered their sites, if two libraries with these functions are loaded. Wait-free; async-signal-safe.
///
/// # Safety
/// `update` is that copy's `dormouse_imv_update`, and stays loaded.
pub unsafe fn hand_over(update: ForeignUpdate) {
    ELSEWHERE.store(update as *mut (), Ordering::Relaxed);
}

pub(crate) fn elsewhere() -> Option<ForeignUpdate> {
    let update = ELSEWHERE.load(Ordering::Relaxed);
    // SAFETY: null, or a function of this type from `hand_over`.
    unsafe { core::mem::transmute::<*mut (), Option<ForeignUpdate>>(update) }
}

impl Registry {
    /// Makes the changes like the function [`update`], for the holder of the lock.
    pub(crate) fn update<'a, I>(&mut self, changes: impl Fn() -> I) -> Result<(), Error>
    where
        I: DoubleEndedIterator<Item = &'a Change>,
    {
        let mut unbalanced = false;
        let mut turned = false;
        let mut publishes = false;
        for change in changes() {
            if let Some((key, difference)) = change.key_change() {
                let count = key.enabled.load(Ordering::Relaxed);
                match count.checked_add(difference).filter(|count| *count >= 0) {
                    Some(next) => {
                        // (B) pairs with (A): data that was prepared before the key was enabled is visible behind the
                        // gate. Only the lock's owner changes keys, so a plain store loses no change.
                        key.enabled.store(next, Ordering::Release);
                        turned |= (next > 0) != (count > 0);
                    }
                    None => unbalanced = true,
                }
            } else if let Some((variable, bits)) = change.value_change() {
                let former = variable.load();
                change.former.set(former);
                if change.operation == PUBLISH {
                    // (G) pairs with (F): what the value refers to is visible to a thread that loads the variable.
                    fence(Ordering::Release);
                }
                variable.store(bits);
                if variable.load() != former {
                    turned = true;
                    let is_patched = self.ladder.writer != CodeWriter::None;
                    let is_variable = is_patched && self.pace.change(change.address, monotonic_ns());
                    publishes |= change.operation == PUBLISH && is_patched && !is_variable;
                }
            }
        }
        if turned {
            // (I) pairs with (H): what a value refers to is visible to a thread that executes its new instruction.
            if publishes && !synchronise_cores() {
                self.ladder.refuse(BARRIER_REFUSED);
            }
            // Sites that are loads of their variables need no store and no barrier: the new value is visible before this
            // returns.
            fence(Ordering::SeqCst);
            let all = 0..self.object_count;
            let concerned = |address| changes().any(|change| change.address == address);
            if !self.patch(all.clone(), concerned) {
                // The old value at every site is better than two values.
                let mut stale = false;
                for change in changes().rev() {
                    if let Some((variable, _)) = change.value_change() {
                        variable.store(change.former.get());
                        stale = true;
                    }
                }
                if !stale || !self.patch(all, concerned) {
                    return Err(Error::Unpatched);
                }
                return Err(Error::Stale);
            }
        }
        if unbalanced { Err(Error::Unbalanced) } else { Ok(()) }
    }
}

/// Returns the time of a clock that does not go back, in nanoseconds. No system call on most machines.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every Linux has this clock, and `now` has room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sets how often the code of one value or static call may be changed in a second, after a burst of 64 changes; the
/// default is 200. Each change interrupts every running thread of the process. A value that is set more often is read
/// from its variable, as long as it is, and then [`SiteCount::patched`] is 0. `u32::MAX` is no limit. Keys have none.
///
/// Errors: [`Error::Reentered`]; [`Error::Elsewhere`]: another library has the sites. Blocking; async-signal-safe.
pub fn set_patch_rate(per_second: u32) -> Result<(), Error> {
    if elsewhere().is_some() {
        return Err(Error::Elsewhere);
    }
    with(|registry| registry.pace.per_second = per_second)
}

/// Number of sites, and how many of them are in the state that their key requires (the others read their key).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SiteCount {
    /// Number of registered sites.
    pub sites: usize,
    /// Number of sites whose instruction agrees with the key or value: it falls through or jumps as the key says, or
    /// has the value as its immediate.
    pub patched: usize,
}

impl SiteCount {
    fn of(sites: impl Iterator<Item = Site>) -> SiteCount {
        sites.fold(SiteCount::default(), |count, site| SiteCount {
            sites: count.sites + 1,
            patched: count.patched + usize::from(arch::is_in_line(site)),
        })
    }
}

/// The state of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Way in which sites are written.
    pub writer: CodeWriter,
    /// Reason for this writer, as text for people.
    pub reason: &'static str,
    /// Number of registered objects that have sites.
    pub objects: usize,
    /// Counts of sites, over all objects.
    pub count: SiteCount,
}

/// Returns the state of the registry. Reads the text of every site. Errors: [`Error::Reentered`]. Blocking;
/// async-signal-safe.
pub fn status() -> Result<Status, Error> {
    with(|registry| Status {
        writer: registry.ladder.writer,
        reason: registry.ladder.reason,
        objects: registry.object_count,
        count: SiteCount::of(registry.sites()),
    })
}

/// Counts the sites of one key. Errors: [`Error::Reentered`]. Blocking; async-signal-safe.
pub fn key_sites(key: &StaticKey) -> Result<SiteCount, Error> {
    sites_of(core::ptr::from_ref(key).addr())
}

/// Counts the sites of a key or value by its address. Errors: [`Error::Reentered`]. Blocking; async-signal-safe.
pub fn sites_of(address: usize) -> Result<SiteCount, Error> {
    with(|registry| registry.sites_of(address))
}

/// Calls `visit` with the address and the bytes of each gate of one key. `visit` runs under the lock: its calls of this
/// crate fail. Errors: [`Error::Reentered`]. Blocking; async-signal-safe if `visit` is.
pub fn visit_key_sites(key: &StaticKey, mut visit: impl FnMut(usize, &[u8])) -> Result<(), Error> {
    let address = core::ptr::from_ref(key).addr();
    with(|registry| {
        for site in registry.sites().filter(|site| site.key == address && site.is_branch()) {
            visit(site.address, &site.bytes::<{ arch::GATE_LEN }>());
        }
    })
}
