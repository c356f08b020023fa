//! Atomics for tests, with which models check code whose words are at given addresses.
//!
//! ```text
//!   memory of the layout   … │ word │ word │ …         a word is a place: it has the size and the address
//!                               │      │
//!                               ▼      ▼
//!   objects of the checker   [ 0 ]  [ 1 ]  [ 2 ] …     made at a model's beginning; the first access to a place takes one
//! ```
//! The model checker's atomics are objects that do not fit into the memory that a layout describes. In a model each word
//! is therefore only the name of such an object. Outside of models it is an ordinary atomic, so that other tests run as
//! they do without this module.
//!
//! A model can leave out an ordering ([`Fault`]), and a thread can die before any of its accesses ([`dies_before`]).

use std::boxed::Box;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::vec::Vec;

pub use core::sync::atomic::Ordering;

use loom::thread::ThreadId;

/// Number of objects of each width in a model.
const OBJECT_COUNT: usize = 96;

/// Maximum number of an execution's steps.
const STEPS_MAX: usize = 20_000;

/// An ordering that all accesses of a model leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Stores and fences do not release.
    Releases,
    /// Loads and fences do not acquire.
    Acquires,
}

std::thread_local! {
    // All threads of a model run on the thread that checks it.
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
    static OBJECTS: RefCell<Option<Objects>> = const { RefCell::new(None) };
    /// The thread that dies, and the number of accesses until then.
    static MORTAL: Cell<Option<(ThreadId, usize)>> = const { Cell::new(None) };
}

/// Objects of one width: those that no place has taken, and the others by address.
struct Width<T> {
    unused: Vec<Rc<T>>,
    by_address: BTreeMap<usize, Rc<T>>,
}

impl<T> Width<T> {
    fn new(object: impl Fn() -> T) -> Width<T> {
        Width { unused: (0..OBJECT_COUNT).map(|_| Rc::new(object())).collect(), by_address: BTreeMap::new() }
    }

    /// Returns the object of a place, and whether the place has just taken it.
    fn of(&mut self, address: usize) -> (Rc<T>, bool) {
        let Width { unused, by_address } = self;
        let is_new = !by_address.contains_key(&address);
        let object = by_address.entry(address).or_insert_with(|| unused.pop().expect("a model has more objects"));
        (object.clone(), is_new)
    }
}

/// Ends a thread that dies.
struct Death;

/// Checks a model with at most this many preemptions in an execution, or with any number.
pub fn check(preemptions: Option<usize>, fault: Fault, model: impl Fn() + Send + Sync + 'static) {
    /// Returns the objects at the end of an execution. After a failure the checker is gone, and they are leaked.
    struct Execution;
    impl Drop for Execution {
        fn drop(&mut self) {
            let objects = OBJECTS.take();
            if std::thread::panicking() {
                core::mem::forget(objects);
            }
        }
    }
    let mut builder = loom::model::Builder::new();
    // `LOOM_MAX_PREEMPTIONS` allows more.
    builder.preemption_bound = builder.preemption_bound.or(preemptions);
    builder.max_branches = STEPS_MAX;
    FAULT.set(fault);
    builder.check(move || {
        OBJECTS.set(Some(Objects::new()));
        let _execution = Execution;
        model();
    });
    FAULT.set(Fault::None);
}

/// Runs `act` on the calling thread of a model, and ends it before its access number `count`. Returns whether it was
/// ended: `act` may have fewer accesses.
pub fn dies_before(count: usize, act: impl FnOnce()) -> bool {
    MORTAL.set(Some((loom::thread::current().id(), count)));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
    MORTAL.set(None);
    match result {
        Ok(()) => false,
        Err(death) if death.is::<Death>() => true,
        Err(failure) => std::panic::resume_unwind(failure),
    }
}

/// Counts an access of the calling thread.
fn step() {
    if let Some((thread, left)) = MORTAL.get()
        && thread == loom::thread::current().id()
    {
        let Some(left) = left.checked_sub(1) else {
            MORTAL.set(None);
            std::panic::resume_unwind(Box::new(Death));
        };
        MORTAL.set(Some((thread, left)));
    }
}

/// Returns the ordering without what the model's fault leaves out.
fn weakened(ordering: Ordering) -> Ordering {
    match (FAULT.get(), ordering) {
        (Fault::Releases, Ordering::AcqRel) => Ordering::Acquire,
        (Fault::Acquires, Ordering::AcqRel) => Ordering::Release,
        (Fault::Releases, Ordering::Release) | (Fault::Acquires, Ordering::Acquire) => Ordering::Relaxed,
        _ => ordering,
    }
}

/// Orders the accesses of this thread before and after it.
#[allow(dead_code, reason = "not every crate that has these atomics uses it")]
pub fn fence(ordering: Ordering) {
    let is_in_model = OBJECTS.with_borrow(|objects| objects.is_some());
    if !is_in_model {
        return core::sync::atomic::fence(ordering);
    }
    // No step: for other threads, dying before a fence is dying before the next access.
    let ordering = weakened(ordering);
    if ordering != Ordering::Relaxed {
        loom::sync::atomic::fence(ordering);
    }
}

macro_rules! atomics {
    ($($name:ident $word:ident),*) => {
        #[allow(non_snake_case, reason = "each field has the name of its objects' type")]
        struct Objects {
            $($name: Width<loom::sync::atomic::$name>,)*
        }

        impl Objects {
            fn new() -> Objects {
                Objects { $($name: Width::new(|| loom::sync::atomic::$name::new(0)),)* }
            }
        }

        $(
            /// A word, or in a model its place.
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(UnsafeCell<$word>);

            // SAFETY: the word is accessed by atomic operations only.
            unsafe impl Sync for $name {}

            #[allow(dead_code, reason = "each crate that has these atomics uses some of them")]
            impl $name {
                /// Returns a word with this value.
                pub const fn new(value: $word) -> $name {
                    $name(UnsafeCell::new(value))
                }

                /// Returns the address of the word.
                pub const fn as_ptr(&self) -> *mut $word {
                    self.0.get()
                }

                /// Returns the word at an address.
                ///
                /// # Safety
                /// The word is mapped and aligned for this lifetime, and accessed by atomic operations only.
                pub const unsafe fn from_ptr<'a>(word: *mut $word) -> &'a $name {
                    // SAFETY: the type is transparent; the caller guarantees the rest.
                    unsafe { &*word.cast::<$name>() }
                }

                fn real(&self) -> &core::sync::atomic::$name {
                    // SAFETY: the word is valid and aligned as long as this reference, and accessed by atomic operations
                    // only.
                    unsafe { core::sync::atomic::$name::from_ptr(self.0.get()) }
                }

                /// Returns the object of this place; `None` outside of models.
                fn object(&self) -> Option<Rc<loom::sync::atomic::$name>> {
                    let found = OBJECTS.with_borrow_mut(|objects| {
                        objects.as_mut().map(|objects| objects.$name.of(self.as_ptr().addr()))
                    });
                    let (object, is_new) = found?;
                    if is_new && self.real().load(Ordering::Relaxed) != 0 {
                        // Objects begin as zeroes, and so does the memory of layouts; only what was written before
                        // the model's threads began is something else.
                        object.store(self.real().load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                    step();
                    Some(object)
                }

                /// Loads the word.
                #[track_caller]
                pub fn load(&self, ordering: Ordering) -> $word {
                    self.object().map_or_else(|| self.real().load(ordering), |object| object.load(weakened(ordering)))
                }

                /// Stores the word.
                #[track_caller]
                pub fn store(&self, value: $word, ordering: Ordering) {
                    match self.object() {
                        Some(object) => object.store(value, weakened(ordering)),
                        None => self.real().store(value, ordering),
                    }
                }

                /// Replaces the word if it is `current`. Returns what it was, as an error if it was something else.
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    current: $word,
                    new: $word,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$word, $word> {
                    match self.object() {
                        Some(object) => object.compare_exchange(current, new, weakened(success), weakened(failure)),
                        None => self.real().compare_exchange(current, new, success, failure),
                    }
                }

                /// Adds to the word, and returns what it was.
                #[track_caller]
                pub fn fetch_add(&self, value: $word, ordering: Ordering) -> $word {
                    match self.object() {
                        Some(object) => object.fetch_add(value, weakened(ordering)),
                        None => self.real().fetch_add(value, ordering),
                    }
                }

                /// Sets bits of the word, and returns what it was.
                #[track_caller]
                pub fn fetch_or(&self, value: $word, ordering: Ordering) -> $word {
                    match self.object() {
                        Some(object) => object.fetch_or(value, weakened(ordering)),
                        None => self.real().fetch_or(value, ordering),
                    }
                }

                /// Replaces the word by what `update` returns, unless that is `None`.
                #[track_caller]
                pub fn fetch_update(
                    &self,
                    set: Ordering,
                    fetch: Ordering,
                    mut update: impl FnMut($word) -> Option<$word>,
                ) -> Result<$word, $word> {
                    let mut word = self.load(fetch);
                    while let Some(next) = update(word) {
                        match self.compare_exchange(word, next, set, fetch) {
                            Ok(word) => return Ok(word),
                            Err(other) => word = other,
                        }
                    }
                    Err(word)
                }
            }
        )*
    };
}

atomics!(AtomicU8 u8, AtomicU32 u32, AtomicU64 u64);
