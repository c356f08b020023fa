//! Tunables of this program and of its C libraries, and refused assignments (`--features generic`: without sites).
#![cfg(target_os = "linux")]

#[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
mod alone;

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use dormouse_abi::site::{TUNABLES_SECTION, TunableType};
use dormouse_imv::{
    Assignment, Error, Imv, Refusal, StaticKey, Tunable, TunableError, TunableRecord, TunableValue, Unfit, disable,
    enable, imv, imv_read, register_tunables, set_tunables, static_branch, tunable, unregister_tunables,
    visit_tunables,
};
use dormouse_testing::{Lack, include_dirs, skip};

imv! {
    static BATCH_SIZE: u32 = 16;
    static OFFSET: i16 = -3;
    static WIDE: u64 = 1 << 40;
    static RATIO: f32 = 0.25;
    static SCALE: f64 = 1.5;
    static STRICT: bool = false;
    static COUNT: usize = 4;
    /// A name that the macro might define too.
    static NAME: i8 = 1;
}
static VERBOSE: StaticKey = StaticKey::new();
static HELD: StaticKey = StaticKey::new();

tunable!(BATCH_SIZE, "test.batch_size", "requests handled at once", 1..=1024);
tunable!(OFFSET, "test.offset", "minutes from noon", -720..=720);
tunable!(WIDE, "test.wide", "");
tunable!(RATIO, "test.ratio", "Anteil, größer als nichts", 0.1..=0.9);
tunable!(SCALE, concat!("test", ".scale"), "any number",);
tunable!(STRICT, "test.strict", "refuse what is odd");
tunable!(COUNT, "test.count", "how many");
tunable!(NAME, "test.name", "");
tunable!(VERBOSE, "test.verbose", "tell everything");
tunable!(HELD, "test.held", "");
// A repeated record, which a header could cause, does no harm.
tunable!(BATCH_SIZE, "test.batch_size", "requests handled at once", 1..=1024);
// A second name for one variable.
tunable!(COUNT, "test.count_alias", "how many");

imv! {
    static ONE: u8 = 1;
    static OTHER: u8 = 2;
}
tunable!(ONE, "test.twins", "the first");
tunable!(OTHER, "test.twins", "the second");

/// Tests take turns, because they set the same variables.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> impl Drop {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns every tunable as a line, without its sites.
fn listed() -> Vec<String> {
    let mut lines = Vec::new();
    // The test's allocations do not involve the registry's lock.
    visit_tunables(|tunable: Tunable<'_>| {
        let Tunable { name, description, value, range, .. } = tunable;
        let kind = value.value_type.name();
        lines.push(format!("{name} {kind} {value} ({range}) {}", description.to_string_lossy()));
    })
    .unwrap();
    lines.retain(|line| line.starts_with("test."));
    lines
}

fn refusal(name: &str, text: &str) -> (Refusal, String) {
    let mut assignments = [Assignment::new(name, text)];
    let error = set_tunables(&mut assignments).unwrap_err();
    let TunableError::Refused { refusal, .. } = error else { panic!("{name} {text}") };
    assert_eq!(assignments[0].outcome(), None);
    (refusal, error.to_string())
}

/// Sets a tunable; returns the values before and after.
fn set_tunable<'a>(name: &'a str, text: &'a str) -> Result<(TunableValue, TunableValue), TunableError<'a>> {
    let mut assignments = [Assignment::new(name, text)];
    set_tunables(&mut assignments)?;
    Ok(assignments[0].outcome().unwrap())
}

#[test]
fn every_type_is_listed_with_its_range() {
    let _turn = turn();
    let mut lines = listed();
    lines.sort();
    // Its type is that of an address.
    let count = format!("u{} 4 (a whole number from 0 to {})", usize::BITS, usize::MAX);
    let [count, alias] = ["test.count", "test.count_alias"].map(|name| format!("{name} {count} how many"));
    assert_eq!(
        lines,
        [
            "test.batch_size u32 16 (a whole number from 1 to 1024) requests handled at once",
            &count,
            &alias,
            "test.held key off (on or off) ",
            "test.name i8 1 (a whole number from -128 to 127) ",
            "test.offset i16 -3 (a whole number from -720 to 720) minutes from noon",
            "test.ratio f32 0.25 (a number from 0.1 to 0.9) Anteil, größer als nichts",
            "test.scale f64 1.5 (a number) any number",
            "test.strict bool false (true or false) refuse what is odd",
            "test.twins u8 1 (a whole number from 0 to 255) the first",
            "test.twins u8 2 (a whole number from 0 to 255) the second",
            "test.verbose key off (on or off) tell everything",
            "test.wide u64 1099511627776 (a whole number from 0 to 18446744073709551615) ",
        ]
    );
}

#[test]
fn what_is_set_is_what_the_program_reads() {
    let _turn = turn();
    fn sets<T: dormouse_imv::Value + PartialEq + std::fmt::Debug>(
        value: &'static Imv<T>,
        read: impl Fn() -> T,
        name: &str,
        texts: &[(&str, T)],
    ) {
        let first = read();
        for (text, expected) in texts {
            let (_, now) = set_tunable(name, text).unwrap();
            assert_eq!(read(), *expected, "{name}");
            assert_eq!(now.to_string(), *text);
        }
        value.set(first).unwrap();
    }
    sets(&BATCH_SIZE, || imv_read!(BATCH_SIZE), "test.batch_size", &[("1", 1), ("1024", 1024), ("7", 7)]);
    sets(&OFFSET, || imv_read!(OFFSET), "test.offset", &[("-720", -720), ("0", 0), ("720", 720)]);
    sets(&WIDE, || imv_read!(WIDE), "test.wide", &[("0", 0), ("18446744073709551615", u64::MAX)]);
    sets(&RATIO, || imv_read!(RATIO), "test.ratio", &[("0.1", 0.1), ("0.9", 0.9)]);
    sets(&SCALE, || imv_read!(SCALE), "test.scale", &[("-1e300", -1e300), ("0.1", 0.1)]);
    sets(&STRICT, || imv_read!(STRICT), "test.strict", &[("true", true), ("false", false)]);
    sets(&COUNT, || imv_read!(COUNT), "test.count", &[("9", 9)]);
    sets(&NAME, || imv_read!(NAME), "test.name", &[("-128", -128), ("127", 127)]);

    for (text, expected) in [("on", true), ("on", true), ("off", false), ("off", false)] {
        let (_, now) = set_tunable("test.verbose", text).unwrap();
        assert_eq!((now.to_string().as_str(), static_branch!(VERBOSE)), (text, expected));
    }
}

#[test]
fn refusals_name_a_remedy() {
    let _turn = turn();
    let (why, text) = refusal("test.batch_sise", "64");
    assert_eq!((why, text.as_str()), (Refusal::Unknown, "there is no tunable `test.batch_sise`"));
    let (why, text) = refusal("test.batch_size", "abc");
    assert!(matches!(why, Refusal::Unfit(_, Unfit::Type)));
    assert_eq!(text, "`abc` is not of type u32: `test.batch_size` takes a whole number from 1 to 1024");
    let (why, text) = refusal("test.batch_size", "5000");
    assert!(matches!(why, Refusal::Unfit(_, Unfit::Range)));
    assert_eq!(text, "`5000` is out of range: `test.batch_size` takes a whole number from 1 to 1024");
    let (_, text) = refusal("test.batch_size", "1\u{1b}[2J");
    assert!(!text.chars().any(char::is_control), "{text}");
    let (_, text) = refusal("test.verbose", "2");
    assert_eq!(text, "`2` is not of type key: `test.verbose` takes on or off");
    assert_eq!(refusal("test.twins", "1").0, Refusal::Ambiguous);
    assert_eq!((ONE.read(), OTHER.read()), (1, 2));

    enable(&HELD).unwrap();
    enable(&HELD).unwrap();
    let (why, text) = refusal("test.held", "off");
    assert_eq!(why, Refusal::Held(2));
    assert!(text.contains("enabled it 2 times"), "{text}");
    set_tunable("test.held", "on").unwrap();
    disable(&HELD).unwrap();
    set_tunable("test.held", "off").unwrap();
    assert_eq!(disable(&HELD), Err(Error::Unbalanced));
}

#[test]
fn a_batch_is_applied_completely_or_not_at_all() {
    let _turn = turn();
    let mut batch = [
        Assignment::new("test.batch_size", "100"),
        Assignment::new("test.verbose", "on"),
        Assignment::new("test.offset", "60"),
    ];
    set_tunables(&mut batch).unwrap();
    assert_eq!((imv_read!(BATCH_SIZE), static_branch!(VERBOSE), imv_read!(OFFSET)), (100, true, 60));
    let told: Vec<String> = batch
        .iter()
        .map(|assignment| {
            let (former, value) = assignment.outcome().unwrap();
            format!("{former} → {value}")
        })
        .collect();
    assert_eq!(told, ["16 → 100", "off → on", "-3 → 60"]);

    let mut batch = [
        Assignment::new("test.batch_size", "16"),
        Assignment::new("test.verbose", "off"),
        Assignment::new("test.offset", "721"),
    ];
    let refused = set_tunables(&mut batch);
    assert!(matches!(refused, Err(TunableError::Refused { name: "test.offset", refusal: Refusal::Unfit(..), .. })));
    assert_eq!((imv_read!(BATCH_SIZE), static_branch!(VERBOSE), imv_read!(OFFSET)), (100, true, 60));
    assert!(batch.iter().all(|assignment| assignment.outcome().is_none()));

    for twice in [["test.offset", "test.offset"], ["test.count", "test.count_alias"]] {
        let mut batch = twice.map(|name| Assignment::new(name, "5"));
        let refused = set_tunables(&mut batch);
        assert_eq!(refused, Err(TunableError::Refused { name: twice[1], text: "5", refusal: Refusal::Twice }));
    }

    let mut batch = [
        Assignment::new("test.batch_size", "16"),
        Assignment::new("test.verbose", "off"),
        Assignment::new("test.offset", "-3"),
    ];
    set_tunables(&mut batch).unwrap();
    assert_eq!((imv_read!(BATCH_SIZE), static_branch!(VERBOSE), imv_read!(OFFSET)), (16, false, -3));
    assert_eq!(set_tunables(&mut []), Ok(()));
}

#[test]
fn sites_are_counted_and_visitors_cannot_set_values() {
    let _turn = turn();
    imv_read!(BATCH_SIZE);
    let mut seen = 0;
    visit_tunables(|tunable| {
        assert_eq!(set_tunable("test.count", "1"), Err(TunableError::Update(Error::Reentered)));
        if tunable.name == "test.batch_size" {
            seen += 1;
            let sites = tunable.sites;
            assert_eq!(sites.patched, sites.sites);
            assert_eq!(sites.sites > 0, cfg!(all(target_arch = "x86_64", not(feature = "generic"))));
        }
    })
    .unwrap();
    assert_eq!(seen, 1, "repetitions are dropped");
}

/// A table as an object contains it, with the padding and unknown records that a compiler or another version may have
/// put between known records.
#[repr(C)]
struct Table([TunableRecord; 8]);

// SAFETY: only the registry writes the variable in these tests.
unsafe impl Sync for Variable {}
struct Variable(UnsafeCell<u32>);

#[test]
fn tables_of_loaded_and_unloaded_objects_are_listed() {
    let _turn = turn();
    static VARIABLE: Variable = Variable(UnsafeCell::new(5));
    const fn record(name: &'static CStr, value_type: u32, offset_bytes: usize) -> TunableRecord {
        TunableRecord {
            name: name.as_ptr(),
            description: c"of a table".as_ptr(),
            variable: VARIABLE.0.get().cast::<u8>().wrapping_add(offset_bytes).cast(),
            value_type,
            reserved: 0,
            min: 0,
            max: 9,
        }
    }
    const PADDING: TunableRecord = TunableRecord {
        name: std::ptr::null(),
        description: std::ptr::null(),
        variable: std::ptr::null_mut(),
        value_type: 0,
        reserved: 0,
        min: 0,
        max: 0,
    };
    static TABLE: Table = Table([
        record(c"table.first", TunableType::U32 as u32, 0),
        PADDING,
        record(c"table.unknown_type", TunableType::ALL.len() as u32, 0),
        record(c"table.has blanks", TunableType::U32 as u32, 0),
        record(c"table.unaligned", TunableType::U32 as u32, 1),
        TunableRecord { reserved: 1, ..record(c"table.reserved", TunableType::U32 as u32, 0) },
        TunableRecord { description: std::ptr::null(), ..record(c"table.last", TunableType::U32 as u32, 0) },
        PADDING,
    ]);
    let names = || {
        let mut names = Vec::new();
        visit_tunables(|tunable| {
            if tunable.name.starts_with("table.") {
                names.push((tunable.name.to_string(), tunable.description.to_bytes().to_vec()));
            }
        })
        .unwrap();
        names
    };
    let bounds = TABLE.0.as_ptr_range();
    for _ in 0..2 {
        assert!(names().is_empty());
        for _ in 0..2 {
            // SAFETY: a table that lives as long as the program.
            unsafe { register_tunables(bounds.start, bounds.end) }.unwrap();
        }
        assert_eq!(names(), [("table.first".into(), b"of a table".to_vec()), ("table.last".into(), Vec::new())]);
        set_tunable("table.first", "9").unwrap();
        let (former, _) = set_tunable("table.last", "3").unwrap();
        assert_eq!(former.to_string(), "9");
        unregister_tunables(bounds.start).unwrap();
        unregister_tunables(bounds.start).unwrap();
        let refused = set_tunable("table.first", "1");
        assert!(matches!(refused, Err(TunableError::Refused { refusal: Refusal::Unknown, .. })));
    }
    // SAFETY: the table was unregistered.
    assert_eq!(unsafe { *VARIABLE.0.get() }, 3);
    // The bounds are too short for a record, like those of an object without tunables. SAFETY: nothing is between the
    // bounds.
    unsafe { register_tunables(bounds.start, bounds.start) }.unwrap();
    assert!(names().is_empty());
}

#[test]
fn the_c_header_is_the_twin_of_the_rust_layout() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tunables-layout");
    let machine = Command::new("cc").arg("-dumpmachine").output().map(|output| output.stdout).unwrap_or_default();
    if !machine.starts_with(std::env::consts::ARCH.as_bytes()) {
        return skip(Lack::machine(
            "the compiler is not of this architecture",
            "run the tests on a machine of this one",
        ));
    }
    let compiled = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        .args(include_dirs().flat_map(|dir| ["-I".into(), dir]))
        .arg("-o")
        .arg(&program)
        .arg(package.join("tests/c/tunables.c"))
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut expected = format!("size {}\n", size_of::<TunableRecord>());
    macro_rules! fields {
        ($($field:ident),*) => {$(
            expected += &format!("{} {}\n", stringify!($field), offset_of!(TunableRecord, $field));
        )*};
    }
    fields!(name, description, variable, value_type, reserved, min, max);
    for value_type in TunableType::ALL {
        expected += &format!("{} {}\n", value_type.name().to_uppercase(), value_type as u32);
    }
    expected += &format!("section {TUNABLES_SECTION}\n");
    assert_eq!(String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap(), expected);
}

/// Runs one test in a process of its own.
#[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
#[test]
fn a_failed_write_leaves_the_whole_batch_unchanged() {
    if alone::is_child() {
        return with_mprotect_refused();
    }
    alone::assert_passed(&alone::run("a_failed_write_leaves_the_whole_batch_unchanged", |_| {}));
}

#[cfg(all(target_arch = "x86_64", not(feature = "generic")))]
fn with_mprotect_refused() {
    let all = || (imv_read!(BATCH_SIZE), imv_read!(WIDE), static_branch!(VERBOSE), static_branch!(HELD));
    enable(&HELD).unwrap();
    assert_eq!(all(), (16, 1 << 40, false, true));
    // SAFETY: prctl(2) PR_SET_MDWE with PR_MDWE_REFUSE_EXEC_GAIN takes no pointers.
    if unsafe { libc::prctl(65, 1_u64, 0_u64, 0_u64, 0_u64) } != 0 {
        return skip(Lack::machine("no PR_SET_MDWE", "Linux 6.3 or later"));
    }
    // A gate can still be written by single bytes, but the immediate in an instruction of four bytes cannot.
    let mut batch = [
        Assignment::new("test.verbose", "on"),
        Assignment::new("test.wide", "7"),
        Assignment::new("test.held", "off"),
        Assignment::new("test.batch_size", "64"),
    ];
    assert_eq!(set_tunables(&mut batch), Err(TunableError::Update(Error::Stale)));
    assert!(batch.iter().all(|assignment| assignment.outcome().is_none()));
    assert_eq!(all(), (16, 1 << 40, false, true));
    assert_eq!((BATCH_SIZE.read(), WIDE.read(), VERBOSE.is_enabled(), HELD.is_enabled()), (16, 1 << 40, false, true));
    set_tunables(&mut batch[..3]).unwrap();
    assert_eq!(all(), (16, 7, true, false));
}
