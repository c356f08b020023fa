//! Event classes of this process: who announces them, what id the session gave, which are armed.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeSet;

use dormouse_abi::class::{
    Announcement, CClass, CLASS_ID_NONE, ClassDecl, FIELD_COUNT_MAX, FieldType, NAME_LEN_MAX, is_name,
};
use dormouse_abi::site::EventRecord;
use dormouse_imv::{StaticKey, is_same_text};

use crate::value::{Description, TypeList};

/// What an `event!` leaves in static memory: its gate and the ids of its classes.
///
/// One expression in a generic function is several classes (the field types differ) behind one gate. The first has its id
/// here, the others in a list. They are told apart by `Description::fingerprint`: a constant has an address in each
/// codegen unit that uses it, so addresses tell nothing.
#[repr(C)]
#[derive(Debug)]
pub struct EventKey {
    gate: StaticKey,
    id: AtomicU32,
    /// Fingerprint of the first, or 0.
    primary: AtomicU64,
    others: AtomicPtr<Other>,
    provider: &'static str,
    name: &'static str,
    fields: &'static [&'static str],
}

// The record functions find the fingerprint behind the id.
const _: () = assert!(core::mem::offset_of!(EventKey, primary) == core::mem::offset_of!(EventKey, id) + 4);

/// A further class of a key. Never freed: records may be on their way at any time.
#[derive(Debug)]
struct Other {
    fingerprint: u64,
    id: AtomicU32,
    next: *mut Other,
}

/// An event's gate is a static branch like any other.
impl core::ops::Deref for EventKey {
    type Target = StaticKey;
    #[inline(always)]
    fn deref(&self) -> &StaticKey {
        &self.gate
    }
}

impl EventKey {
    /// A key that no session knows, of names as `stringify!` gives them.
    ///
    /// # Panics
    /// While it compiles, of what no trace can hold.
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
        }
    }

    /// Where the id of the class is whose field types have this fingerprint. Wait-free; async-signal-safe.
    #[inline(always)]
    pub fn id(&self, fingerprint: u64) -> Option<&AtomicU32> {
        // Relaxed: the fingerprint leads to nothing but the id, which is a number of its own.
        if self.primary.load(Ordering::Relaxed) == fingerprint { Some(&self.id) } else { self.other(fingerprint) }
    }

    /// Where the id is that most keys have only one of. The pointer is good for the whole key.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn first_id(&self) -> *const u32 {
        ptr::from_ref(self).wrapping_byte_add(core::mem::offset_of!(EventKey, id)).cast()
    }

    /// The key that an id belongs to.
    ///
    /// # Safety
    /// `id` is what [`EventKey::first_id`] gave of a key that still is.
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn of_first_id<'a>(id: *const u32) -> &'a EventKey {
        // SAFETY: the caller's word.
        unsafe { &*id.wrapping_byte_sub(core::mem::offset_of!(EventKey, id)).cast() }
    }

    #[cold]
    fn other(&self, fingerprint: u64) -> Option<&'static AtomicU32> {
        // (F) Acquire pairs with the Release in `slot`: a node is complete before it is linked.
        let mut node = self.others.load(Ordering::Acquire);
        // SAFETY: nodes are leaked boxes, linked once they are complete.
        while let Some(other) = unsafe { node.as_ref::<'static>() } {
            if other.fingerprint == fingerprint {
                return Some(&other.id);
            }
            node = other.next;
        }
        None
    }

    /// The id's place for these field types, made if need be. Called under the registry's lock.
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
        let other = Box::leak(Box::new(Other { fingerprint, id: AtomicU32::new(CLASS_ID_NONE), next }));
        // (G) Release pairs with (F).
        self.others.store(ptr::from_mut(other), Ordering::Release);
        // SAFETY: just leaked.
        unsafe { &(*ptr::from_mut(other)).id }
    }
}

/// The name that an identifier stands for: `type` of `r#type`.
const fn cooked(identifier: &str) -> &str {
    match identifier.as_bytes() {
        [b'r', b'#', ..] => identifier.split_at(2).1,
        _ => identifier,
    }
}

#[track_caller]
const fn check(identifier: &str) {
    if !is_name(cooked(identifier)) {
        refuse(
            "a trace cannot hold this name (ASCII letters, digits and `_`, no digit first, at most 255 bytes)",
            identifier,
        );
    }
}

/// Has the compiler say so. The message of a constant's panic is one text, so it is put together here; a long name is cut.
#[track_caller]
const fn refuse(why: &str, name: &str) -> ! {
    let mut message = [0; 512];
    let mut len = 0;
    let parts = [why, ": `", name, "`"];
    let mut part = 0;
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        let mut index = 0;
        while index < bytes.len() && len < message.len() {
            message[len] = bytes[index];
            index += 1;
            len += 1;
        }
        part += 1;
    }
    match core::str::from_utf8(message.split_at(len).0) {
        Ok(message) => panic!("{}", message),
        // Cut amid a character.
        Err(_) => panic!("{}", why),
    }
}

/// One class of this process.
#[derive(Debug)]
pub(crate) struct Class {
    /// Which object announced it (the start of its event records).
    pub(crate) object: usize,
    /// Its gate, which it may share with others.
    pub(crate) gate: &'static StaticKey,
    /// Where its id goes.
    pub(crate) id: &'static AtomicU32,
    /// Names and types.
    pub(crate) decl: ClassDecl,
    /// Whether this process has enabled the gate for it.
    pub(crate) armed: bool,
}

/// Function that gives a Rust class's field types; an event record of a C class has none.
pub type DescribeFn = extern "C" fn() -> *const Description;

/// What [`EventRecord::describe`] points to for a list of field types. The address that it gives tells nothing: there may be several copies of
/// one description, and one of several.
pub extern "C" fn describe<List: TypeList>() -> *const Description {
    const { &List::DESCRIPTION }
}

/// A class that no trace can hold. It is announced like others, so that the session owner can tell of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnfitClass {
    /// Which object announced it (the start of its event records).
    pub(crate) object: usize,
    /// Names and types.
    pub(crate) announcement: Announcement,
}

/// What an object's event records are of.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) classes: Vec<Class>,
    pub(crate) unfit: Vec<UnfitClass>,
}

impl Found {
    /// As the session owner hears of them, the classes first.
    pub(crate) fn announcements(&self) -> Vec<Announcement> {
        let classes = self.classes.iter().map(|class| Announcement::from(&class.decl));
        classes.chain(self.unfit.iter().map(|unfit| unfit.announcement.clone())).collect()
    }
}

/// Reads an object's event records and gives the classes that are not in `known`.
///
/// Records repeat where code was inlined or instantiated.
///
/// # Safety
/// `start..stop` is an object's event section, as the compiler and the macros made it, and stays mapped until the object is
/// unregistered.
pub(crate) unsafe fn read_records(start: *const EventRecord, stop: *const EventRecord, known: &Found) -> Found {
    let mut found = Found::default();
    let mut ids: BTreeSet<usize> = known.classes.iter().map(|class| ptr::from_ref(class.id).addr()).collect();
    let object = start as usize;
    let mut record = start;
    while record < stop {
        // SAFETY: within the section by the caller's word; the two fields are distances from themselves.
        let EventRecord { key, describe } = unsafe { record.read() };
        let base = record.cast::<u8>();
        let key = base.wrapping_offset(key as isize);
        record = record.wrapping_add(1);
        let (gate, id, announcement) = if describe == 0 {
            // SAFETY: the C macro points at a class of static storage.
            unsafe { c_class(key.cast()) }
        } else {
            let describe =
                base.wrapping_offset(core::mem::offset_of!(EventRecord, describe) as isize + describe as isize);
            // SAFETY: the Rust macro points at an `EventKey` and a `DescribeFn`.
            unsafe { rust_class(key.cast(), describe) }
        };
        let address = ptr::from_ref(id).addr();
        if ids.contains(&address) {
            continue;
        }
        match announcement.check() {
            Ok(decl) => {
                ids.insert(address);
                found.classes.push(Class { object, gate, id, decl, armed: false });
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

/// A class's gate, the place of its id, and what it says of itself.
type Parts = (&'static StaticKey, &'static AtomicU32, Announcement);

/// # Safety
/// `key` is an [`EventKey`] and `describe` a [`DescribeFn`], both for as long as the object stays.
unsafe fn rust_class(key: *const EventKey, describe: *const u8) -> Parts {
    // SAFETY: the caller's word.
    let key: &'static EventKey = unsafe { &*key };
    // SAFETY: the caller's word.
    let describe: DescribeFn = unsafe { core::mem::transmute(describe) };
    // SAFETY: a `DescribeFn` returns a promoted constant.
    let description: &'static Description = unsafe { &*describe() };
    let names = key.fields.iter().map(|name| cooked(name).into());
    let fields = names.zip(description.types().map(FieldType::to_u8)).collect();
    let announcement = Announcement { provider: cooked(key.provider).into(), name: cooked(key.name).into(), fields };
    (&key.gate, key.slot(description.fingerprint()), announcement)
}

/// # Safety
/// `class` is a [`CClass`] of static storage with its description behind it.
unsafe fn c_class(class: *const CClass) -> Parts {
    let description = CClass::description(class);
    // SAFETY: the caller's word; only its atomics change.
    let class: &'static CClass = unsafe { &*class };
    // SAFETY: a description has the count, which is a byte.
    let field_count = usize::from(unsafe { description.read() });
    // SAFETY: so many type bytes follow.
    let types = unsafe { core::slice::from_raw_parts(description.wrapping_add(1), field_count) };
    let mut names = description.wrapping_add(field_count + 2).cast::<c_char>();
    let mut name = || {
        // SAFETY: a description has a text for provider, name, and each field, and there are no more calls.
        let name = unsafe { CStr::from_ptr(names) };
        names = names.wrapping_add(name.count_bytes() + 1);
        text(name)
    };
    let (provider, event) = (name(), name());
    let fields = types.iter().map(|field_type| (name(), *field_type)).collect();
    let announcement = Announcement { provider, name: event, fields };
    // SAFETY: `StaticKey` is one `AtomicI32`, as `enabled` is, and it is the first field.
    let gate: &'static StaticKey = unsafe { &*ptr::from_ref(&class.enabled).cast::<StaticKey>() };
    (gate, &class.id, announcement)
}

/// A name. One that is too long is cut, but not to one that would do.
fn text(name: &CStr) -> String {
    let bytes = name.to_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(NAME_LEN_MAX + 1)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the compiler says, since the key of an event is made while it compiles.
    fn refusal(provider: &'static str, name: &'static str, fields: &'static [&'static str]) -> Option<String> {
        let refused = std::panic::catch_unwind(|| EventKey::new(provider, name, fields)).err()?;
        let text = refused.downcast_ref::<&str>().map(|text| text.to_string());
        text.or_else(|| refused.downcast_ref::<String>().cloned())
    }

    #[test]
    fn names_that_no_trace_can_hold_are_refused_by_name() {
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
