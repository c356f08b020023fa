//! Tests that a gate answers correctly in every place where it may be used, patched or not (`--features generic`).
#![cfg(target_os = "linux")]

use std::any::type_name;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::size_of;

use dormouse_abi::site::EventRecord;
use dormouse_imv::{Change, CodeWriter, Error, StaticKey, disable, enable, key_sites, static_branch, status, update};

#[test]
fn the_generic_build_says_so() {
    let has_patcher = cfg!(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little")));
    let generic = cfg!(feature = "generic") || !has_patcher;
    let status = status().unwrap();
    assert_eq!(status.writer == CodeWriter::None, generic, "{}", status.reason);
    assert_eq!(status.count.sites == 0, generic);
}

#[test]
fn a_key_counts() {
    static KEY: StaticKey = StaticKey::new();
    let gate = || static_branch!(KEY);
    enable(&KEY).unwrap();
    enable(&KEY).unwrap();
    disable(&KEY).unwrap();
    assert!(gate());
    disable(&KEY).unwrap();
    assert!(!gate());
    assert_eq!(disable(&KEY), Err(Error::Unbalanced));
    assert!(!KEY.is_enabled());
    enable(&KEY).unwrap();
    assert!(gate());
}

#[test]
fn a_batch_changes_several_keys() {
    static FIRST: StaticKey = StaticKey::new();
    static SECOND: StaticKey = StaticKey::new_enabled();
    static UNTOUCHED: StaticKey = StaticKey::new();
    let gates = || [static_branch!(FIRST), static_branch!(SECOND), static_branch!(UNTOUCHED)];
    assert_eq!(gates(), [false, true, false]);
    update(&[Change::key(&FIRST, true), Change::key(&SECOND, false)]).unwrap();
    assert_eq!(gates(), [true, false, false]);
    let changes = [Change::key(&FIRST, false), Change::key(&SECOND, false), Change::key(&UNTOUCHED, true)];
    assert_eq!(update(&changes), Err(Error::Unbalanced));
    assert_eq!(gates(), [false, false, true]);
}

#[test]
fn a_dormant_gate_evaluates_nothing() {
    static KEY: StaticKey = StaticKey::new();
    let evaluated = Cell::new(0);
    let argument = || evaluated.set(evaluated.get() + 1);
    let pass = || {
        if static_branch!(KEY) {
            argument();
        }
    };
    (0..1000).for_each(|_| pass());
    assert_eq!(evaluated.get(), 0);
    enable(&KEY).unwrap();
    pass();
    assert_eq!(evaluated.get(), 1);
}

/// A model of `event!`: a generic, always inlined function around a gate with a static in the macro's block.
trait Describe {
    fn describe() -> &'static str;
}

impl<T> Describe for T {
    fn describe() -> &'static str {
        type_name::<T>()
    }
}

fn describe<V: Describe>() -> &'static str {
    V::describe()
}

macro_rules! event {
    ($value:expr) => {{
        static KEY: StaticKey = StaticKey::new();
        #[inline(always)]
        fn fire<V: Describe>(value: impl FnOnce() -> V) -> Option<V> {
            if static_branch!(KEY, announce("test_events", describe::<V>)) { Some(value()) } else { None }
        }
        (&KEY, fire(|| $value))
    }};
}

#[inline]
fn inline_event<V: Copy>(value: V) -> (&'static StaticKey, Option<V>) {
    event!(value)
}

/// Returns the announcements of this test program.
fn announcements() -> Vec<(usize, usize)> {
    unsafe extern "C" {
        #[link_name = "__start_test_events"]
        static START: EventRecord;
        #[link_name = "__stop_test_events"]
        static STOP: EventRecord;
    }
    // The linker's bounds of the section that the gates above fill.
    let (start, stop) = (&raw const START, &raw const STOP);
    let count = (stop as usize - start as usize) / size_of::<EventRecord>();
    // SAFETY: the bounds contain whole records.
    let records = unsafe { std::slice::from_raw_parts(start, count) };
    let resolve = |field: &i64| (field as *const i64 as usize).wrapping_add_signed(*field as isize);
    records.iter().map(|record| (resolve(&record.key), resolve(&record.describe))).collect()
}

/// Calls an announced function.
fn call(function: usize) -> &'static str {
    // SAFETY: every record of the section names a function of this type.
    let function = unsafe { std::mem::transmute::<usize, fn() -> &'static str>(function) };
    function()
}

#[test]
fn each_instance_of_a_generic_gate_announces_its_own_function() {
    let (key, answer) = event!((7_u64, "text"));
    assert_eq!(answer, None);
    let (generic, _) = inline_event(1_u8);
    let (same, _) = inline_event(2.0_f64);
    assert!(std::ptr::eq(generic, same), "a static is shared by the instances of the function around it");
    let described = |key: &StaticKey| -> BTreeSet<String> {
        announcements()
            .into_iter()
            .filter(|(announced, _)| *announced == key as *const StaticKey as usize)
            .map(|(_, function)| call(function).to_string())
            .collect()
    };
    assert_eq!(described(key), BTreeSet::from(["(u64, &str)".to_string()]));
    assert_eq!(described(generic), BTreeSet::from(["u8".to_string(), "f64".to_string()]));

    enable(generic).unwrap();
    assert_eq!(inline_event(3_u8).1, Some(3));
    assert_eq!(inline_event(4.5_f64).1, Some(4.5));
    disable(generic).unwrap();
    assert_eq!(inline_event(3_u8).1, None);

    let patched = status().unwrap().writer != CodeWriter::None;
    assert_eq!(key_sites(generic).unwrap().sites >= 2, patched);
}

/// A tracer finds keys by their announcements: the compiler must not treat a key that no code changes as a constant.
#[test]
fn a_key_is_changed_through_its_announcement_alone() {
    fn fields() -> &'static str {
        "announced"
    }
    fn gate() -> bool {
        static UNNAMED: StaticKey = StaticKey::new();
        static_branch!(UNNAMED, announce("test_events", fields))
    }
    assert!(!gate());
    // The function is found by its result, because its address is not unique.
    let (key, _) = announcements().into_iter().find(|(_, function)| call(*function) == "announced").unwrap();
    // SAFETY: the address of the static key above.
    let key = unsafe { &*(key as *const StaticKey) };
    enable(key).unwrap();
    assert!(gate());
    disable(key).unwrap();
    assert!(!gate());
}
