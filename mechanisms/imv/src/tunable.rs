//! Tunables: keys and values that a program exports to its operators.
//!
//! ```text
//!    object                                            registry, under its lock
//!   ┌─────────────────────────────────────────┐       ┌────────────────────────────────────┐
//!   │ static BATCH_SIZE: Imv<u32>             │◀──┐   │ objects: bounds of their records   │
//!   │ section dormouse_tunables:              │   │   │                                    │
//!   │   "server.batch_size", u32, 1..=1024 ───│───┘◀──│ visit_tunables, set_tunables       │
//!   └─────────────────────────────────────────┘       └────────────────────────────────────┘
//! ```
//!
//! A caller that sets a tunable passes its name and a text; type and range are checked here, by the program that owns
//! the variable. Tunables that are set together are one update: when it returns, all of them have changed, or none.

use core::ffi::CStr;
use core::fmt;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicI32, Ordering};

use dormouse_abi::site::{TunableRecord, TunableType};
use dormouse_abi::tunable::{TunableRange, TunableValue, Unfit, is_tunable_name};

use crate::records::name_of;
use crate::registry::{Change, Registry, elsewhere, with};
use crate::site::Variable;
use crate::{Error, Imv, SiteCount, StaticKey, Value};

fn range_of(record: &TunableRecord) -> TunableRange {
    // `RecordTables` does not return records of unknown types.
    let value_type = TunableType::from_number(record.value_type).unwrap_or(TunableType::Key);
    TunableRange { value_type, min: record.min, max: record.max }
}

fn value_of(record: &TunableRecord) -> TunableValue {
    use TunableType::*;
    let value_type = range_of(record).value_type;
    let bits = if value_type == Key {
        u64::from(key_count(record) > 0)
    } else {
        // SAFETY: `register_tunables`'s caller guarantees a live variable of this type; its alignment was checked.
        let variable = unsafe { Variable::at(record.variable.addr(), value_type.size_bytes()) };
        match value_type {
            F32 => f64::from(f32::from_bits(variable.load() as u32)).to_bits(),
            I8 | I16 | I32 => variable.load_signed(),
            _ => variable.load(),
        }
    };
    TunableValue { value_type, bits }
}

fn key_count(record: &TunableRecord) -> i32 {
    // SAFETY: `register_tunables`'s caller guarantees that this is a live static key.
    unsafe { AtomicI32::from_ptr(record.variable.cast()) }.load(Ordering::Relaxed)
}

/// A tunable with its current value.
#[derive(Debug, Clone, Copy)]
pub struct Tunable<'a> {
    /// Name of the tunable.
    pub name: &'a str,
    /// Purpose of the tunable, in one line.
    pub description: &'a CStr,
    /// Current value of its variable.
    pub value: TunableValue,
    /// Values that operators may set.
    pub range: TunableRange,
    /// Counts of the sites that read it.
    pub sites: SiteCount,
    /// Address of its variable, which identifies the object that contains it.
    pub address: usize,
}

/// Calls `visit` with every tunable, in the order of registration. A name may occur several times, each time for
/// another variable.
///
/// `visit` runs under the registry's lock. Its calls of this crate fail, and it must neither allocate nor call the
/// loader, whose locks other threads may hold while they wait for this one. Its argument may be invalid once this
/// function returns.
///
/// Errors: [`Error::Reentered`]. Blocking; async-signal-safe if `visit` is. Cost: tunables × sites comparisons.
pub fn visit_tunables(mut visit: impl FnMut(Tunable<'_>)) -> Result<(), Error> {
    with(|registry| {
        for record in registry.tunables.tunables() {
            let Ok(name) = str::from_utf8(name_of(record)) else { continue };
            let empty = record.description.is_null();
            visit(Tunable {
                name,
                // SAFETY: `register_tunables`'s caller guarantees that the description is NUL-terminated and stays
                // loaded.
                description: if empty { c"" } else { unsafe { CStr::from_ptr(record.description) } },
                value: value_of(record),
                range: range_of(record),
                sites: registry.sites_of(record.variable.addr()),
                address: record.variable.addr(),
            });
        }
    })
}

/// A tunable's name and its new value as text; after the update also the values before and after it.
#[derive(Debug)]
pub struct Assignment<'a> {
    name: &'a str,
    text: &'a str,
    /// Address of the variable.
    address: usize,
    change: Option<Change>,
    /// Change that reverts the change of a key.
    undo: Option<Change>,
    former: Option<TunableValue>,
    value: Option<TunableValue>,
}

impl<'a> Assignment<'a> {
    /// Returns an assignment that sets `name` to the value that `text` denotes (see [`TunableRange::parse`]).
    pub const fn new(name: &'a str, text: &'a str) -> Assignment<'a> {
        Assignment { name, text, address: 0, change: None, undo: None, former: None, value: None }
    }

    /// Returns the values before and after the update; `None` if it was not set.
    pub fn outcome(&self) -> Option<(TunableValue, TunableValue)> {
        self.former.zip(self.value)
    }

    /// Finds the variable, reads the text, and plans the change.
    fn plan(&mut self, registry: &Registry) -> Result<(), Refusal> {
        let named = registry.tunables.records().filter(|record| name_of(record) == self.name.as_bytes());
        let record = named.clone().next().ok_or(Refusal::Unknown)?;
        if named.clone().any(|other| other.variable != record.variable || other.value_type != record.value_type) {
            return Err(Refusal::Ambiguous);
        }
        let range = range_of(record);
        let value = range.parse(self.text).map_err(|unfit| Refusal::Unfit(range, unfit))?;
        let former = value_of(record);
        let address = record.variable.addr();
        self.change = match value.value_type {
            TunableType::Key => {
                let count = key_count(record);
                if value.bits == 0 && count > 1 {
                    return Err(Refusal::Held(count));
                }
                // SAFETY: `register_tunables`'s caller guarantees that this is a static key; it is loaded while the
                // lock is held, and the change does not outlive that.
                let key: &'static StaticKey = unsafe { &*record.variable.cast_const().cast() };
                let turn = |on| (value != former).then(|| Change::key(key, on));
                self.undo = turn(value.bits == 0);
                turn(value.bits != 0)
            }
            value_type => {
                let is_f32 = value_type == TunableType::F32;
                let bits = if is_f32 { (f64::from_bits(value.bits) as f32).to_bits().into() } else { value.bits };
                // SAFETY: `register_tunables`'s caller guarantees the variable, which is loaded while the lock is held;
                // the change does not outlive that.
                Some(unsafe { Change::value(address, value_type.size_bytes(), bits) })
            }
        };
        (self.address, self.former, self.value) = (address, Some(former), Some(value));
        Ok(())
    }
}

/// The reason why an [`Assignment`] cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No tunable has that name.
    Unknown,
    /// Several variables, in several objects, have the name.
    Ambiguous,
    /// The text is not a value of the type, or is out of range.
    Unfit(TunableRange, Unfit),
    /// The key should be disabled, but the program has enabled it this many times.
    Held(i32),
    /// Another assignment of the batch is to this variable.
    Twice,
}

/// The reason why tunables were not set. None of them was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunableError<'a> {
    /// One assignment cannot be made.
    Refused {
        /// Name in the assignment.
        name: &'a str,
        /// Text in the assignment.
        text: &'a str,
        /// Reason why it cannot be made.
        refusal: Refusal,
    },
    /// The update was refused, or reverted.
    Update(Error),
}

/// Writes one line for the user who gave name and text.
impl fmt::Display for TunableError<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, text, refusal) = match self {
            TunableError::Refused { name, text, refusal } => (name, text, refusal),
            TunableError::Update(error) => return error.fmt(formatter),
        };
        match refusal {
            Refusal::Unknown => write!(formatter, "there is no tunable `{}`", name.escape_debug()),
            Refusal::Ambiguous => write!(
                formatter,
                "several variables are called `{name}`; rename all but one of them, or unload the libraries that they are in"
            ),
            Refusal::Unfit(range, Unfit::Type) => {
                let kind = range.value_type.name();
                write!(formatter, "`{}` is not of type {kind}: `{name}` takes {range}", text.escape_debug())
            }
            Refusal::Unfit(range, Unfit::Range) => {
                write!(formatter, "`{}` is out of range: `{name}` takes {range}", text.escape_debug())
            }
            Refusal::Held(count) => write!(
                formatter,
                "`{name}` stays on: the program itself has enabled it {count} times, and has to disable it as often"
            ),
            Refusal::Twice => write!(formatter, "`{name}` would be set twice; give it one value"),
        }
    }
}

impl core::error::Error for TunableError<'_> {}

/// Sets several tunables by name, all of them or none: one [`update`](crate::update), with one synchronisation of the cores.
///
/// When this returns `Ok`, every later execution of a site gives the new state. To switch a key on, it is enabled once,
/// if it is off; to switch a key off, it is disabled, if it was enabled once.
///
/// Errors: [`TunableError`]. Blocking; async-signal-safe. Does not allocate.
///
/// ```
/// use dormouse_imv::{Assignment, imv, imv_read, set_tunables, tunable};
///
/// imv! { static BATCH_SIZE: u32 = 16; }
/// tunable!(BATCH_SIZE, "server.batch_size", "requests handled at once", 1..=1024);
///
/// let mut assignments = [Assignment::new("server.batch_size", "64")];
/// set_tunables(&mut assignments).unwrap();
/// assert_eq!(imv_read!(BATCH_SIZE), 64);
/// let (former, value) = assignments[0].outcome().unwrap();
/// assert_eq!(format!("{former} → {value}"), "16 → 64");
/// ```
pub fn set_tunables<'a>(assignments: &mut [Assignment<'a>]) -> Result<(), TunableError<'a>> {
    // Names are looked up under this registry's lock, and the other registry's lock must not be taken inside it: `fork`
    // takes both, in its own order.
    if elsewhere().is_some() {
        return Err(TunableError::Update(Error::Elsewhere));
    }
    let answer = with(|registry| {
        for index in 0..assignments.len() {
            let (earlier, rest) = assignments.split_at_mut(index);
            let Assignment { name, text, .. } = rest[0];
            let refused = |refusal| TunableError::Refused { name, text, refusal };
            rest[0].plan(registry).map_err(refused)?;
            if earlier.iter().any(|other| other.address == rest[0].address) {
                return Err(refused(Refusal::Twice));
            }
        }
        let assignments = &*assignments;
        let done = registry.update(|| assignments.iter().filter_map(|assignment| assignment.change.as_ref()));
        let done = done.or_else(|error| {
            // An update that fails reverts its values, and leaves its keys changed. Changing one back may fail too, if
            // text can no longer be written: some of its sites are then dormant.
            let undo = || assignments.iter().filter_map(|assignment| assignment.undo.as_ref());
            registry.update(undo).and(Err(error))
        });
        done.map_err(TunableError::Update)
    });
    let answer = answer.unwrap_or_else(|error| Err(TunableError::Update(error)));
    for assignment in assignments {
        if answer.is_err() {
            *assignment = Assignment::new(assignment.name, assignment.text);
        }
        // The changes name objects that may be unloaded from now on.
        (assignment.change, assignment.undo) = (None, None);
    }
    answer
}

/// Types that an [`Imv`] may have to be a tunable: `bool`, integers and floats.
pub trait Scalar: Value {
    /// Type of the tunable.
    const TYPE: TunableType;
}

macro_rules! scalars {
    ($($type:ty: $variant:ident),*) => {$(
        impl Scalar for $type {
            const TYPE: TunableType = TunableType::$variant;
        }
    )*};
}
scalars!(
    bool: Bool, u8: U8, u16: U16, u32: U32, u64: U64, i8: I8, i16: I16, i32: I32, i64: I64, f32: F32, f64: F64
);
#[cfg(target_pointer_width = "64")]
scalars!(usize: U64, isize: I64);
#[cfg(target_pointer_width = "32")]
scalars!(usize: U32, isize: I32);

/// A variable that [`tunable!`](crate::tunable) can export: an [`Imv`] of a [`Scalar`], or a [`StaticKey`].
pub trait Export {
    /// Type of its values.
    const TYPE: TunableType;
}

impl<T: Scalar> Export for Imv<T> {
    const TYPE: TunableType = T::TYPE;
}

impl Export for StaticKey {
    const TYPE: TunableType = TunableType::Key;
}

/// The parts that [`tunable!`](crate::tunable) computes at compile time.
#[doc(hidden)]
pub mod tunable_parts {
    use super::*;

    /// Returns the range of all values of the variable's type.
    pub const fn whole<E: Export>(_: &E) -> TunableRange {
        TunableRange::whole(E::TYPE)
    }

    /// Returns a range of the variable's own type.
    pub const fn range<T: Scalar>(_: &Imv<T>, range: &RangeInclusive<T>) -> TunableRange {
        let range = TunableRange { value_type: T::TYPE, min: widen(range.start()), max: widen(range.end()) };
        let is_empty = match T::TYPE {
            TunableType::I8 | TunableType::I16 | TunableType::I32 | TunableType::I64 => {
                range.min as i64 > range.max as i64
            }
            TunableType::F32 | TunableType::F64 => {
                let (least, greatest) = (f64::from_bits(range.min), f64::from_bits(range.max));
                least > greatest || least.is_nan() || greatest.is_nan()
            }
            _ => range.min > range.max,
        };
        assert!(!is_empty, "the range of a tunable holds no value");
        range
    }

    /// Returns the value as 64 bits: `u64` for unsigned types, `i64` for signed ones, `f64` for floats.
    const fn widen<T: Scalar>(value: &T) -> u64 {
        let value = core::ptr::from_ref(value);
        macro_rules! read {
            ($type:ty) => {
                // SAFETY: a reference to a value of the type that `TYPE` names.
                unsafe { *value.cast::<$type>() }
            };
        }
        match T::TYPE {
            TunableType::Key => 0,
            TunableType::Bool => read!(bool) as u64,
            TunableType::U8 => read!(u8) as u64,
            TunableType::U16 => read!(u16) as u64,
            TunableType::U32 => read!(u32) as u64,
            TunableType::U64 => read!(u64),
            TunableType::I8 => read!(i8) as u64,
            TunableType::I16 => read!(i16) as u64,
            TunableType::I32 => read!(i32) as u64,
            TunableType::I64 => read!(i64) as u64,
            TunableType::F32 => (read!(f32) as f64).to_bits(),
            TunableType::F64 => read!(f64).to_bits(),
        }
    }

    /// Returns a name with a NUL at its end.
    pub const fn name<const LEN_WITH_NUL: usize>(name: &str) -> [u8; LEN_WITH_NUL] {
        assert!(
            is_tunable_name(name.as_bytes()),
            "the name of a tunable is 1 to 255 visible ASCII characters without blanks"
        );
        terminated(name)
    }

    /// Returns a description with a NUL at its end.
    pub const fn description<const LEN_WITH_NUL: usize>(description: &str) -> [u8; LEN_WITH_NUL] {
        terminated(description)
    }

    const fn terminated<const LEN_WITH_NUL: usize>(text: &str) -> [u8; LEN_WITH_NUL] {
        let text = text.as_bytes();
        assert!(text.len() + 1 == LEN_WITH_NUL);
        let mut bytes = [0; LEN_WITH_NUL];
        let mut index = 0;
        while index < text.len() {
            assert!(text[index] >= b' ' && text[index] != 0x7F, "the description of a tunable is one line");
            bytes[index] = text[index];
            index += 1;
        }
        bytes
    }
}

/// Exports an immediate or a static key, so that operators can see and set it: `dormouse imv list PID` and
/// `dormouse imv set PID NAME VALUE` in a program that has called `dormouse_imv_control::listen()` or contains a tracer, or
/// [`visit_tunables`](crate::visit_tunables) and [`set_tunables`](crate::set_tunables).
///
/// ```text
///   tunable!(VARIABLE, "name", "what it is for, in one line");
///   tunable!(VARIABLE, "name", "what it is for, in one line", least..=greatest);
/// ```
///
/// It is an item. The variable is the path of a `static` [`Imv`](crate::Imv) of `bool`, an integer or a float, with a
/// range of that type if needed, or of a `static` [`StaticKey`](crate::StaticKey), which is on or off. Name,
/// description and range are constants. The name has 1 to 255 visible ASCII characters and no blanks, and should be
/// unique in the process: two variables with one name are both shown, and neither can be set.
///
/// The range limits what operators may set. It does not limit the program's own [`Imv::set`](crate::Imv::set).
///
/// ```
/// use dormouse_imv::{Assignment, StaticKey, imv, set_tunables, static_branch, tunable};
///
/// imv! {
///     static LEVEL: u8 = 2;
///     static SHARE: f64 = 0.5;
/// }
/// static AUDIT: StaticKey = StaticKey::new();
///
/// tunable!(LEVEL, "server.log_level", "0 errors, 1 warnings, 2 information, 3 everything", 0..=3);
/// tunable!(SHARE, "server.cache_share", "share of the memory that caches may take", 0.0..=0.9);
/// tunable!(AUDIT, "server.audit", "note who asks for what");
///
/// set_tunables(&mut [Assignment::new("server.audit", "on")]).unwrap();
/// assert!(static_branch!(AUDIT));
/// let refused = set_tunables(&mut [Assignment::new("server.log_level", "4")]).unwrap_err();
/// assert!(refused.to_string().starts_with("`4` is out of range"));
/// ```
///
/// A range, type or name that does not fit does not compile:
///
/// ```compile_fail
/// dormouse_imv::imv! { static LEVEL: u8 = 2; }
/// dormouse_imv::tunable!(LEVEL, "level", "", 0..=300);
/// ```
/// ```compile_fail
/// dormouse_imv::imv! { static LEVEL: u8 = 2; }
/// dormouse_imv::tunable!(LEVEL, "level", "", 3..=0);
/// ```
/// ```compile_fail
/// dormouse_imv::imv! { static LETTER: char = 'a'; }
/// dormouse_imv::tunable!(LETTER, "letter", "");
/// ```
/// ```compile_fail
/// dormouse_imv::imv! { static LEVEL: u8 = 2; }
/// dormouse_imv::tunable!(LEVEL, "log level", "");
/// ```
#[macro_export]
macro_rules! tunable {
    ($variable:path, $name:expr, $description:expr $(,)?) => {
        $crate::tunable!(@record $variable, $name, $description, $crate::tunable_parts::whole(&$variable));
    };
    ($variable:path, $name:expr, $description:expr, $range:expr $(,)?) => {
        $crate::tunable!(@record $variable, $name, $description, $crate::tunable_parts::range(&$variable, &$range));
    };
    (@record $variable:path, $name:expr, $description:expr, $range:expr) => {
        const _: () = {
            // Names in this block must differ from the variable's name.
            static TUNABLE_NAME_: [u8; $name.len() + 1] = $crate::tunable_parts::name($name);
            static TUNABLE_DESCRIPTION_: [u8; $description.len() + 1] = $crate::tunable_parts::description($description);
            const TUNABLE_RANGE_: $crate::TunableRange = $range;
            fn tunable_record_() {
                $crate::__tunable_record!(TUNABLE_NAME_, TUNABLE_DESCRIPTION_, $variable, TUNABLE_RANGE_)
            }
            // Linking the object links this function, and with it the record.
            #[used]
            static TUNABLE_RECORD_: fn() = tunable_record_;
        };
    };
}
