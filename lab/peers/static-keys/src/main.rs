//! Engine `static-keys`: the branches of the crate static_keys, for the experiment `imv`.
//!
//! # Configuration
//! Keys that are false at first and unlikely branches, as in its documentation. A dormant site is a nop of five bytes.
//! `global_init` runs before there is a second thread.
//!
//! # Cases
//! The cases are those of the same names in `lab/engines/src/imv/main.rs`: one site, 16 in a row with a key each, 1,000
//! functions with a site each (of one key), and a key with 1, 100 or 1,000 sites that is enabled and disabled.
//!
//! # Counts
//! Each toggling is an event. It has arrived if the site has answered `true` after enabling and `false` after
//! disabling.
//!
//! # Limits
//! The crate's documentation forbids enabling and disabling while other threads run. Here one thread does it while the
//! engine's main thread sleeps in a system call, so no other thread is in the pages that the crate replaces. A second
//! thread that runs through the sites meanwhile, which `imv` measures for ours, is not measured here.
//!
//! Source: the crate's documentation, "Usage" and that of `GenericStaticKey::enable`; its writer for Linux,
//! `src/os/linux.rs`, which makes a new mapping for each site, fills it with the os_page's bytes, and moves it over the
//! page.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_lab_harness::{Case, Engine, Loop, opaque, repeat};
use dormouse_lab_peer::{EMPTY, EMPTY_SITES_CASES, each_site, flat, report, sites, version};
use static_keys::{StaticFalseKey, define_static_key_false, global_init, new_static_false_key, static_branch_unlikely};

/// Number of gates that were found open although their keys were not enabled.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Function that every gate guards.
#[cold]
#[inline(never)]
fn taken() {
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// Defines a loop with one gate after another, each with a key of its own.
macro_rules! in_a_row {
    ($case:ident, $module:ident: $($name:ident)*) => {
        mod $module {
            use super::*;
            $(#[used] pub(super) static $name: StaticFalseKey = new_static_false_key();)*
        }

        extern "C" fn $case(iterations: u64, first: u64) {
            for number in first..first.wrapping_add(iterations) {
                opaque(number);
                $(if static_branch_unlikely!($module::$name) {
                    taken();
                })*
            }
        }
    };
}

define_static_key_false!(KEY);
repeat!(branch, number => if static_branch_unlikely!(KEY) { taken(); });
in_a_row!(branch_16, keys: A B C D E F G H I J K L M N O P);

extern "C" fn empty_16(iterations: u64, first: u64) {
    for number in first..first.wrapping_add(iterations) {
        opaque(number);
    }
}

#[inline(never)]
fn site<const NUMBER: u64>(value: u64) {
    black_box(value ^ NUMBER);
    if static_branch_unlikely!(KEY) {
        taken();
    }
}

macro_rules! site {
    ($a:literal $b:literal $c:literal) => {
        site::<{ $a * 100 + $b * 10 + $c }>
    };
}

static SITES: dormouse_lab_peer::Sites = sites!(site);

extern "C" fn branch_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&SITES));
}

/// A function that returns its gate's answer.
type ToggledSite = fn(u64) -> bool;

/// Defines a key, a function with one of its gates for each number, and a table of them.
macro_rules! toggled {
    ($key:ident, $site:ident, $table:ident: $type:ty = $sites:expr) => {
        define_static_key_false!($key);

        #[inline(never)]
        fn $site<const NUMBER: u64>(value: u64) -> bool {
            black_box(value ^ NUMBER);
            static_branch_unlikely!($key)
        }

        static $table: $type = $sites;
    };
}

macro_rules! of_100 {
    ($a:literal $b:literal $c:literal) => {
        toggled_100::<{ $a * 100 + $b * 10 + $c }>
    };
}

macro_rules! of_1000 {
    ($a:literal $b:literal $c:literal) => {
        toggled_1000::<{ $a * 100 + $b * 10 + $c }>
    };
}

toggled!(TOGGLED_1, toggled_1, TOGGLED_1_SITES: [ToggledSite; 1] = [toggled_1::<0>]);
toggled!(TOGGLED_100, toggled_100, TOGGLED_100_SITES: [[ToggledSite; 10]; 10] = sites!(@hundred of_100 0));
toggled!(TOGGLED_1000, toggled_1000, TOGGLED_1000_SITES: [[[ToggledSite; 10]; 10]; 10] = sites!(of_1000));

/// Number of times that a gate answered as its key wanted, both enabled and disabled.
static RIGHT: AtomicU64 = AtomicU64::new(0);

fn toggle(key: &StaticFalseKey, sites: &[ToggledSite], iterations: u64, first: u64) {
    for number in first..first.wrapping_add(iterations) {
        let site = sites[number as usize % sites.len()];
        // SAFETY: initialised in `main`; meanwhile no other thread enables or disables, or runs in this program's text.
        unsafe { key.enable() };
        let is_taken = site(number);
        // SAFETY: initialised in `main`; meanwhile no other thread enables or disables, or runs in this program's text.
        unsafe { key.disable() };
        RIGHT.fetch_add(u64::from(is_taken && !site(number)), Ordering::Relaxed);
    }
}

extern "C" fn toggle_1(iterations: u64, first: u64) {
    toggle(&TOGGLED_1, &TOGGLED_1_SITES, iterations, first);
}

extern "C" fn toggle_100(iterations: u64, first: u64) {
    toggle(&TOGGLED_100, TOGGLED_100_SITES.as_flattened(), iterations, first);
}

extern "C" fn toggle_1000(iterations: u64, first: u64) {
    toggle(&TOGGLED_1000, TOGGLED_1000_SITES.as_flattened().as_flattened(), iterations, first);
}

fn arrived() -> Result<u64, String> {
    match TAKEN.load(Ordering::Relaxed) {
        0 => report(RIGHT.load(Ordering::Relaxed), 0, "one mapping replaced for each site, by mremap"),
        taken => Err(format!("{taken} closed gates were found open")),
    }
}

fn main() -> ExitCode {
    global_init();
    let cases: [(&str, Loop); 7] = [
        ("branch", branch),
        ("empty_16", empty_16),
        ("branch_16", branch_16),
        ("branch_sites_1000", branch_sites_1000),
        ("toggle_1", toggle_1),
        ("toggle_100", toggle_100),
        ("toggle_1000", toggle_1000),
    ];
    let case = |(name, run): (&'static str, Loop)| {
        let events_per_iteration = name.starts_with("toggle").into();
        Case { name, run, events_per_iteration }
    };
    let cases = [EMPTY].into_iter().chain(EMPTY_SITES_CASES).chain(cases.map(case)).collect();
    dormouse_lab_harness::main(&Engine {
        name: "static-keys",
        version: version("static-keys"),
        cases,
        arrived: Some(arrived),
    })
}
