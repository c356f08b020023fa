//! Event classes of this process: the object that announces each, the id that the session gave it, and whether it is
//! armed.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet};

#[cfg(target_pointer_width = "64")]
use dormouse_abi::class::rust_event;
use dormouse_abi::class::{
    Announcement, CClass, CLASS_ID_NONE, ClassDecl, FIELD_COUNT_MAX, FieldType, LABELLED, Label, Labels, Level,
    NAME_LEN_MAX, is_labelled,
};
use dormouse_abi::site::EventRecord;
use dormouse_imv::{StaticKey, is_same_text};

use crate::name::{check, cooked, refuse};
use crate::value::{Description, StaticLabel, TypeList};

/// Static data of an `event!`: its gate and the ids of its classes.
///
/// One expression in a generic function can be several classes (the field types differ) with one gate. The id of the
/// first class is in this struct; those of the others are in a list. `Description::fingerprint` tells classes apart.
/// The address of a description cannot, because a constant has a different address in each codegen unit that uses it.
#[repr(C)]
#[derive(Debug)]
pub struct EventKey {
    gate: StaticKey,
    id: AtomicU32,
    /// Fingerprint of the first class, or 0.
    primary: AtomicU64,
    others: AtomicPtr<FurtherClass>,
    provider: &'static str,
    name: &'static str,
    fields: &'static [&'static str],
    /// The level, as [`Level::byte_of`] has it.
    level: u64,
}

// Tools find the names at these offsets in a program's file.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(core::mem::offset_of!(EventKey, gate) == 0 && core::mem::offset_of!(EventKey, id) == 4);
    assert!(core::mem::offset_of!(EventKey, provider) == rust_event::PROVIDER_OFFSET);
    assert!(core::mem::offset_of!(EventKey, name) == rust_event::NAME_OFFSET);
    assert!(core::mem::offset_of!(EventKey, fields) == rust_event::FIELDS_OFFSET);
    assert!(core::mem::offset_of!(EventKey, level) == rust_event::LEVEL_OFFSET);
    assert!(size_of::<&str>() == rust_event::SLICE_SIZE_BYTES);
};

// The record functions read the fingerprint directly after the id.
const _: () = assert!(core::mem::offset_of!(EventKey, primary) == core::mem::offset_of!(EventKey, id) + 4);

/// Message for a name that no level has.
const NO_LEVEL: &str = "there is no level of this name (EMERG, ALERT, CRIT, ERR, WARNING, NOTICE, INFO, DEBUG_SYSTEM, \
                        DEBUG_PROGRAM, DEBUG_PROCESS, DEBUG_MODULE, DEBUG_UNIT, DEBUG_FUNCTION, DEBUG_LINE, DEBUG)";

/// A further class of a key. Never freed, because a thread may be writing a record of it at any time.
#[derive(Debug)]
struct FurtherClass {
    fingerprint: u64,
    id: AtomicU32,
    next: *mut FurtherClass,
}

/// An event's gate is an ordinary static branch.
impl core::ops::Deref for EventKey {
    type Target = StaticKey;
    #[inline(always)]
    fn deref(&self) -> &StaticKey {
        &self.gate
    }
}

impl EventKey {
    /// Returns a key that no session knows, for names in the form that `stringify!` gives.
    ///
    /// # Panics
    /// At compile time, for names or fields that no trace can hold.
    #[track_caller]
    pub const fn new(provider: &'static str, name: &'static str, fields: &'static [&'static str]) -> EventKey {
        check(provider);
        check(name);
        assert!(fields.len() <= FIELD_COUNT_MAX, "an event has at most 32 fields");
        let mut index = 0;
        while index < fields.len() {
            check(fields[index]);
            let mut other = 0;
            while other < index {
                if is_same_text(cooked(fields[index]), cooked(fields[other])) {
                    refuse("two fields of an event have this name", fields[index]);
                }
                other += 1;
            }
            index += 1;
        }
        EventKey {
            gate: StaticKey::new(),
            id: AtomicU32::new(CLASS_ID_NONE),
            primary: AtomicU64::new(0),
            others: AtomicPtr::new(ptr::null_mut()),
            provider,
            name,
            fields,
            level: 0,
        }
    }

    /// Returns the key with a level, by its name. The level is only told to tools and sessions: sites do not read it.
    ///
    /// # Panics
    /// At compile time, if there is no such level.
    #[track_caller]
    pub const fn with_level(mut self, name: &'static str) -> EventKey {
        match Level::named(name) {
            None => refuse(NO_LEVEL, name),
            level => self.level = Level::byte_of(level) as u64,
        }
        self
    }

    /// Returns the id of the class whose field types have this fingerprint. Wait-free; async-signal-safe.
    #[inline(always)]
    pub fn id(&self, fingerprint: u64) -> Option<&AtomicU32> {
        // Relaxed: the fingerprint guards no data other than the id, which is a number by itself.
        if self.primary.load(Ordering::Relaxed) == fingerprint { Some(&self.id) } else { self.other(fingerprint) }
    }

    /// Returns the address of the first class's id; most keys have no other class. The pointer may be used to access
    /// the whole key.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    pub(crate) fn first_id(&self) -> *const u32 {
        ptr::from_ref(self).wrapping_byte_add(core::mem::offset_of!(EventKey, id)).cast()
    }

    /// Returns the key that an id belongs to.
    ///
    /// # Safety
    /// `id` was returned by [`EventKey::first_id`] of a key that is still alive.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) unsafe fn of_first_id<'a>(id: *const u32) -> &'a EventKey {
        // SAFETY: the caller guarantees that `first_id` returned `id` for a live key. The id's offset leads back to
        // that key.
        unsafe { &*id.wrapping_byte_sub(core::mem::offset_of!(EventKey, id)).cast() }
    }

    #[cold]
    fn other(&self, fingerprint: u64) -> Option<&'static AtomicU32> {
        // (F) Acquire pairs with the Release in `slot`: a node is initialised before it is linked.
        let mut node = self.others.load(Ordering::Acquire);
        // SAFETY: nodes are leaked boxes, initialised before they are linked.
        while let Some(other) = unsafe { node.as_ref::<'static>() } {
            if other.fingerprint == fingerprint {
                return Some(&other.id);
            }
            node = other.next;
        }
        None
    }

    /// Returns the id for these field types, and adds an entry for it if there is none. Called under the registry's
    /// lock.
    fn slot(&'static self, fingerprint: u64) -> &'static AtomicU32 {
        let primary = self.primary.load(Ordering::Relaxed);
        if primary == 0 {
            self.primary.store(fingerprint, Ordering::Relaxed);
        }
        if primary == 0 || primary == fingerprint {
            return &self.id;
        }
        if let Some(id) = self.other(fingerprint) {
            return id;
        }
        let next = self.others.load(Ordering::Relaxed);
        let other = Box::leak(Box::new(FurtherClass { fingerprint, id: AtomicU32::new(CLASS_ID_NONE), next }));
        // (G) Release pairs with (F).
        self.others.store(ptr::from_mut(other), Ordering::Release);
        // SAFETY: the node was leaked above, so it is never freed.
        unsafe { &(*ptr::from_mut(other)).id }
    }
}

/// An event class of this process.
#[derive(Debug)]
pub(crate) struct Class {
    /// Start of the event records of the object that announced it.
    pub(crate) object: usize,
    /// Its gate, which other classes may share.
    pub(crate) gate: &'static StaticKey,
    /// Destination of its id.
    pub(crate) id: &'static AtomicU32,
    /// Names and types.
    pub(crate) decl: ClassDecl,
    /// Whether this process has enabled the gate for this class.
    pub(crate) armed: bool,
    /// The class in each session that has given it an id, by slot.
    pub(crate) sessions: BTreeMap<usize, InSession>,
}

/// A class in a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InSession {
    pub(crate) id: u32,
    /// Whether the session records its events.
    pub(crate) is_armed: bool,
}

/// Function that returns a Rust class's field types. An event record of a C class has none.
pub type DescribeFn = extern "C" fn() -> *const Description;

/// Target of [`EventRecord::describe`] for a list of field types. The address that it returns identifies nothing: one
/// description may have several copies, and several descriptions may share one.
pub extern "C" fn describe<List: TypeList>() -> *const Description {
    const { &List::DESCRIPTION }
}

/// A class that no trace can hold. It is announced like others, so that the session owner can report it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnfitClass {
    /// Start of the event records of the object that announced it.
    pub(crate) object: usize,
    /// Names and types.
    pub(crate) announcement: Announcement,
}

/// Classes that an object's event records declare.
#[derive(Debug, Default)]
pub(crate) struct DeclaredClasses {
    pub(crate) classes: Vec<Class>,
    pub(crate) unfit: Vec<UnfitClass>,
}

/// Reads an object's event records and returns the classes that are not in `known`.
///
/// Records repeat if code was inlined or instantiated several times.
///
/// # Safety
/// `start..stop` is an object's event section, made by the compiler and the macros, and stays mapped until the object
/// is
/// unregistered.
pub(crate) unsafe fn read_records(
    start: *const EventRecord,
    stop: *const EventRecord,
    known: &DeclaredClasses,
) -> DeclaredClasses {
    let mut found = DeclaredClasses::default();
    let mut ids: BTreeSet<usize> = known.classes.iter().map(|class| ptr::from_ref(class.id).addr()).collect();
    let object = start as usize;
    let mut record = start;
    while record < stop {
        // SAFETY: `record` is below `stop`, and the caller guarantees that the section up to there is an object's
        // mapped event records.
        let EventRecord { key, describe } = unsafe { record.read() };
        let base = record.cast::<u8>();
        let key = base.wrapping_offset(key as isize);
        record = record.wrapping_add(1);
        let (gate, id, announcement) = if describe == 0 {
            // SAFETY: in an event record of the C macro, `key` points to a class of static storage.
            unsafe { c_class(key.cast()) }
        } else {
            let describe =
                base.wrapping_offset(core::mem::offset_of!(EventRecord, describe) as isize + describe as isize);
            // SAFETY: in an event record of the Rust macro, the fields point to an `EventKey` and a `DescribeFn`.
            unsafe { rust_class(key.cast(), describe) }
        };
        let address = ptr::from_ref(id).addr();
        if ids.contains(&address) {
            continue;
        }
        match announcement.check() {
            Ok(decl) => {
                ids.insert(address);
                found.classes.push(Class { object, gate, id, decl, armed: false, sessions: BTreeMap::new() });
            }
            Err(_) => {
                let unfit = UnfitClass { object, announcement };
                if !known.unfit.contains(&unfit) && !found.unfit.contains(&unfit) {
                    found.unfit.push(unfit);
                }
            }
        }
    }
    found
}

/// A class's gate, the location of its id, and its announcement.
type ClassParts = (&'static StaticKey, &'static AtomicU32, Announcement);

/// # Safety
/// `key` points to an [`EventKey`] and `describe` to a [`DescribeFn`], both valid as long as the object is loaded.
unsafe fn rust_class(key: *const EventKey, describe: *const u8) -> ClassParts {
    // SAFETY: the caller guarantees that this is an `EventKey`, valid as long as the object is loaded.
    let key: &'static EventKey = unsafe { &*key };
    // SAFETY: the caller guarantees that this is the address of a `DescribeFn`.
    let describe: DescribeFn = unsafe { core::mem::transmute(describe) };
    // SAFETY: a `DescribeFn` returns a promoted constant.
    let description: &'static Description = unsafe { &*describe() };
    let names = key.fields.iter().map(|name| cooked(name).into());
    let fields = names.zip(description.types().map(FieldType::to_u8)).collect();
    let label = |StaticLabel(name, bits): &StaticLabel| Label { name: cooked(name).into(), bits: *bits };
    let labels = description.labels().map(|(index, labels)| (index, labels.iter().map(label).collect())).collect();
    let level = u8::try_from(key.level).ok().and_then(Level::of_byte).flatten();
    let (provider, name) = (cooked(key.provider).into(), cooked(key.name).into());
    let announcement = Announcement { provider, name, fields, labels, level };
    (&key.gate, key.slot(description.fingerprint()), announcement)
}

/// # Safety
/// `class` points to a [`CClass`] of static storage that its description follows.
unsafe fn c_class(class: *const CClass) -> ClassParts {
    let description = CClass::description(class);
    // SAFETY: the caller guarantees a class of static storage. Only its atomics change.
    let class: &'static CClass = unsafe { &*class };
    // SAFETY: the caller guarantees that a description follows the class; its first byte is the count.
    let field_count = usize::from(unsafe { description.read() });
    // SAFETY: `field_count` type bytes follow the count.
    let types = unsafe { core::slice::from_raw_parts(description.wrapping_add(1), field_count) };
    // SAFETY: a byte for the level follows the type bytes.
    let level = unsafe { description.wrapping_add(1 + field_count).read() };
    // A level that is not known here is left out.
    let level = Level::of_byte(level).flatten();
    let mut names = description.wrapping_add(field_count + 2).cast::<c_char>();
    let mut name = || {
        // SAFETY: a description has a NUL-terminated text for the provider, the name, and each field, and the closure
        // is called once for each.
        let name = unsafe { CStr::from_ptr(names) };
        names = names.wrapping_add(name.count_bytes() + 1);
        text(name)
    };
    let (provider, event) = (name(), name());
    // An unknown type is announced as it is, and refused.
    let type_byte = |byte: &u8| if is_labelled(*byte) { byte & !LABELLED } else { *byte };
    let fields = types.iter().map(|byte| (name(), type_byte(byte))).collect();
    let mut labels: Labels = types
        .iter()
        .enumerate()
        .filter(|(_, field_type)| is_labelled(**field_type))
        .map(|(index, _)| {
            let of_field = core::iter::from_fn(|| Some(name()).filter(|name| !name.is_empty()));
            // A label may be qualified, as in C++.
            let cut = |name: String| name.rsplit("::").next().unwrap_or_default().into();
            (index, of_field.map(|name| Label { name: cut(name), bits: 0 }).collect())
        })
        .collect();
    let all_bits = names.wrapping_add(1).cast::<i64>();
    for (index, label) in labels.values_mut().flatten().enumerate() {
        // SAFETY: the bits of all labels follow the texts and a NUL, in the order of the labels.
        label.bits = unsafe { all_bits.wrapping_add(index).read_unaligned() };
    }
    let announcement = Announcement { provider, name: event, fields, labels, level };
    // SAFETY: `StaticKey` is one `AtomicI32`, like `enabled`, and `enabled` is the first field.
    let gate: &'static StaticKey = unsafe { &*ptr::from_ref(&class.enabled).cast::<StaticKey>() };
    (gate, &class.id, announcement)
}

/// Returns a name. A name that is too long is cut to a length that is still too long, so that it stays refused.
fn text(name: &CStr) -> String {
    let bytes = name.to_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(NAME_LEN_MAX + 1)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the compiler's message, which is the panic message because the key of an event is made at compile time.
    fn message(make: impl FnOnce() -> EventKey + std::panic::UnwindSafe) -> Option<String> {
        let refused = std::panic::catch_unwind(make).err()?;
        let text = refused.downcast_ref::<&str>().map(|text| text.to_string());
        text.or_else(|| refused.downcast_ref::<String>().cloned())
    }

    fn refusal(provider: &'static str, name: &'static str, fields: &'static [&'static str]) -> Option<String> {
        message(|| EventKey::new(provider, name, fields))
    }

    #[test]
    fn a_level_has_one_of_the_names() {
        for level in Level::ALL {
            let key = EventKey::new("t", "a", &[]).with_level(level.name());
            assert_eq!(key.level, u64::from(Level::byte_of(Some(level))));
        }
        assert_eq!(EventKey::new("t", "a", &[]).level, 0);
        assert!(NO_LEVEL.contains(&format!("({})", Level::LIST)), "{NO_LEVEL}");
        for name in ["debug", "WARN", "DEBUG_", ""] {
            let told = message(move || EventKey::new("t", "a", &[]).with_level(name));
            assert_eq!(told, Some(format!("{NO_LEVEL}: `{name}`")));
        }
    }

    #[test]
    fn invalid_names_are_refused_by_name() {
        let rule = "a trace cannot hold this name (ASCII letters, digits and `_`, no digit first, at most 255 bytes)";
        let long: &'static str = "n".repeat(256).leak();
        let longer: &'static str = "ß".repeat(1_000).leak();
        for name in ["größe", "9", "", "a b", "a$", "r#ß", long] {
            let expected = Some(format!("{rule}: `{name}`"));
            assert_eq!(refusal(name, "a", &[]), expected);
            assert_eq!(refusal("t", name, &[]), expected);
            assert_eq!(refusal("t", "a", vec!["n", name].leak()), expected);
        }
        assert!(refusal("t", longer, &[]).is_some_and(|message| message.starts_with(rule)));
        assert_eq!(refusal("r#match", "_9", vec!["r#type", "type_", &long[1..]].leak()), None);
        let twice = "two fields of an event have this name: `type`";
        assert_eq!(refusal("t", "a", &["r#type", "n", "type"]).as_deref(), Some(twice));
        let many: Vec<&'static str> = (0..33).map(|index| &*format!("f{index}").leak()).collect();
        let many = many.leak();
        assert_eq!(refusal("t", "a", &many[1..]), None);
        assert_eq!(refusal("t", "a", many).as_deref(), Some("an event has at most 32 fields"));
    }
}
