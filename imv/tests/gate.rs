//! What a gate is in the binary, and that it answers right in every place where it may stand.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(feature = "generic")))]

use std::any::type_name;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::mem::size_of;
use std::process::Command;

use dormouse_abi::site::{EventRecord, X86_JMP, X86_TEST};
use dormouse_imv::{
    Error, StaticKey, Writer, apply, disable, enable, key_sites, static_branch, status, visit_key_sites,
};

fn bytes_of(key: &StaticKey) -> Vec<[u8; 5]> {
    let mut all = Vec::new();
    visit_key_sites(key, |_, bytes| all.push(bytes)).unwrap();
    all
}

#[test]
fn the_constructor_has_put_sites_to_sleep() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!dormant.is_empty());
    assert!(dormant.iter().all(|bytes| bytes[0] == X86_TEST));
    assert!(!gate());
    let status = status().unwrap();
    assert_eq!(status.writer, Writer::Mprotect, "{}", status.reason);
}

#[test]
fn only_the_first_byte_differs_between_the_states() {
    static KEY: StaticKey = StaticKey::new();
    #[inline(never)]
    fn gate() -> bool {
        static_branch!(KEY)
    }
    let dormant = bytes_of(&KEY);
    assert!(!gate());
    enable(&KEY).unwrap();
    let armed = bytes_of(&KEY);
    assert!(gate());
    disable(&KEY).unwrap();
    assert_eq!(bytes_of(&KEY), dormant);
    assert!(!gate());
    assert_eq!(armed.len(), dormant.len());
    for (armed, dormant) in armed.iter().zip(&dormant) {
        assert_eq!((armed[0], dormant[0]), (X86_JMP, X86_TEST));
        assert_eq!(armed[1..], dormant[1..]);
    }
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
fn a_key_that_starts_enabled_is_armed() {
    static KEY: StaticKey = StaticKey::new_enabled();
    let gate = || static_branch!(KEY);
    assert!(gate());
    let count = key_sites(&KEY).unwrap();
    assert!(count.sites > 0 && count.patched == count.sites);
    disable(&KEY).unwrap();
    assert!(!gate());
    assert!(bytes_of(&KEY).iter().all(|bytes| bytes[0] == X86_TEST));
}

#[test]
fn a_batch_changes_several_keys() {
    static FIRST: StaticKey = StaticKey::new();
    static SECOND: StaticKey = StaticKey::new_enabled();
    static UNTOUCHED: StaticKey = StaticKey::new();
    let gates = || [static_branch!(FIRST), static_branch!(SECOND), static_branch!(UNTOUCHED)];
    assert_eq!(gates(), [false, true, false]);
    apply(&[(&FIRST, true), (&SECOND, false)]).unwrap();
    assert_eq!(gates(), [true, false, false]);
    assert_eq!(apply(&[(&FIRST, false), (&SECOND, false), (&UNTOUCHED, true)]), Err(Error::Unbalanced));
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

/// What `event!` will look like: a generic, always inlined function around a gate with a static of the macro's block.
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

/// The announcements of this test program.
fn announcements() -> Vec<(usize, usize)> {
    let start: *const EventRecord;
    let stop: *const EventRecord;
    // SAFETY: addresses of the linker's bounds of the section that the gates above fill.
    unsafe {
        std::arch::asm!(
            ".hidden __start_test_events", ".hidden __stop_test_events",
            "lea {start}, [rip + __start_test_events]", "lea {stop}, [rip + __stop_test_events]",
            start = out(reg) start, stop = out(reg) stop,
        );
    }
    let count = (stop as usize - start as usize) / size_of::<EventRecord>();
    // SAFETY: those bounds hold whole records.
    let records = unsafe { std::slice::from_raw_parts(start, count) };
    let resolve = |field: &i64| (field as *const i64 as usize).wrapping_add_signed(*field as isize);
    records.iter().map(|record| (resolve(&record.key), resolve(&record.describe))).collect()
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
            .map(|(_, function)| {
                // SAFETY: the record names an instance of `describe`, which has this type.
                let function = unsafe { std::mem::transmute::<usize, fn() -> &'static str>(function) };
                function().to_string()
            })
            .collect()
    };
    assert_eq!(described(key), BTreeSet::from(["(u64, &str)".to_string()]));
    assert_eq!(described(generic), BTreeSet::from(["u8".to_string(), "f64".to_string()]));

    enable(generic).unwrap();
    assert_eq!(inline_event(3_u8).1, Some(3));
    assert_eq!(inline_event(4.5_f64).1, Some(4.5));
    disable(generic).unwrap();
    assert_eq!(inline_event(3_u8).1, None);
    assert!(key_sites(generic).unwrap().sites >= 2);
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn golden_gate(value: u64) -> u64 {
    static KEY: StaticKey = StaticKey::new();
    if static_branch!(KEY) { value.wrapping_mul(3) } else { value }
}

/// As the compiler and linker left it: the born state, in a function that touches no memory before it.
#[test]
fn the_file_holds_born_sites() {
    assert_eq!(golden_gate(5), 5);
    let Ok(output) = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn", "--disassemble=golden_gate"])
        .arg(std::env::current_exe().unwrap())
        .output()
    else {
        eprintln!("skipped: no objdump");
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let instructions: Vec<&str> =
        text.lines().filter_map(|line| line.split_once(":\t")).map(|(_, instruction)| instruction.trim()).collect();
    let site = instructions.iter().position(|instruction| instruction.starts_with("jmp")).expect(&text);
    assert!(instructions[site].contains("<golden_gate+"), "{text}");
    // The dormant path is straight: no load, no other jump, then return.
    let dormant: Vec<_> = instructions[..].iter().take_while(|instruction| !instruction.starts_with("ret")).collect();
    assert!(dormant.iter().all(|instruction| !instruction.contains("(%rip)")), "{text}");
    assert_eq!(dormant.iter().filter(|instruction| instruction.starts_with('j')).count(), 1, "{text}");

    let raw = Command::new("objdump")
        .args(["-d", "--disassemble=golden_gate"])
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let raw = String::from_utf8(raw.stdout).unwrap();
    assert_eq!(raw.lines().filter(|line| line.contains("\te9 ")).count(), 1, "{raw}");
}
