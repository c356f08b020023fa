//! Parts that the engines of peers in Rust share: loops, the empty loops that other loops are compared with, strings to
//! record, and the report of counts.
//!
//! # The counts
//! An engine answers the harness's `arrived` with the number of events that its reader found. If the tracer may lose
//! events, it also knows how many. The engine writes both, in a line `ARRIVED LOST TEXT`, to the file that [`COUNTS`]
//! names, and the lab checks them against the number of events that were emitted.

use std::hint::black_box;

pub use dormouse_lab_harness::{COUNTS, report};
use dormouse_lab_harness::{Case, Loop, opaque};

pub mod counters;

/// Strings of 32 bytes that differ in the first byte.
pub const TEXTS: [&str; 8] = [
    "a0123456789abcdefghijklmnopqrstu",
    "b0123456789abcdefghijklmnopqrstu",
    "c0123456789abcdefghijklmnopqrstu",
    "d0123456789abcdefghijklmnopqrstu",
    "e0123456789abcdefghijklmnopqrstu",
    "f0123456789abcdefghijklmnopqrstu",
    "g0123456789abcdefghijklmnopqrstu",
    "h0123456789abcdefghijklmnopqrstu",
];

/// Returns one of [`TEXTS`].
#[inline(always)]
pub fn text(number: u64) -> &'static str {
    TEXTS[number as usize % TEXTS.len()]
}

/// The loop of all engines. The body gets numbers that the compiler knows nothing about. It is repeated eight times in
/// a row, so that the loop's alignment hardly matters.
#[inline(always)]
pub fn each(iterations: u64, first: u64, body: impl Fn(u64)) {
    let end = first.wrapping_add(iterations);
    let mut number = first;
    while end.wrapping_sub(number) >= 8 {
        body(opaque(number));
        body(opaque(number + 1));
        body(opaque(number + 2));
        body(opaque(number + 3));
        body(opaque(number + 4));
        body(opaque(number + 5));
        body(opaque(number + 6));
        body(opaque(number + 7));
        number += 8;
    }
    while number != end {
        body(opaque(number));
        number += 1;
    }
}

/// A function with one tracepoint or none.
pub type Site = fn(u64);

/// Coprime to 10 and to 1,000: every site has its turn, and sites that are called one after another are not adjacent in
/// memory.
const STRIDE: u64 = 377;

/// Calls the first `COUNT` sites in turn, in an order without stride.
#[inline(always)]
pub fn each_site<const COUNT: usize>(iterations: u64, first: u64, sites: &[Site]) {
    // One bounds check before the loop, none inside it.
    let Some(sites) = sites.first_chunk::<COUNT>() else { return };
    each(iterations, first, |number| sites[(number.wrapping_mul(STRIDE) % COUNT as u64) as usize](number));
}

/// A thousand functions, each from its own expansion of the macro `$site` with a number: `[[[Site; 10]; 10]; 10]`.
#[macro_export]
macro_rules! sites {
    (@ten $site:ident $($digits:tt)*) => {
        [$site!($($digits)* 0), $site!($($digits)* 1), $site!($($digits)* 2), $site!($($digits)* 3), $site!($($digits)* 4),
         $site!($($digits)* 5), $site!($($digits)* 6), $site!($($digits)* 7), $site!($($digits)* 8), $site!($($digits)* 9)]
    };
    (@hundred $site:ident $hundreds:tt) => {
        [$crate::sites!(@ten $site $hundreds 0), $crate::sites!(@ten $site $hundreds 1), $crate::sites!(@ten $site $hundreds 2),
         $crate::sites!(@ten $site $hundreds 3), $crate::sites!(@ten $site $hundreds 4), $crate::sites!(@ten $site $hundreds 5),
         $crate::sites!(@ten $site $hundreds 6), $crate::sites!(@ten $site $hundreds 7), $crate::sites!(@ten $site $hundreds 8),
         $crate::sites!(@ten $site $hundreds 9)]
    };
    ($site:ident) => {
        [$crate::sites!(@hundred $site 0), $crate::sites!(@hundred $site 1), $crate::sites!(@hundred $site 2),
         $crate::sites!(@hundred $site 3), $crate::sites!(@hundred $site 4), $crate::sites!(@hundred $site 5),
         $crate::sites!(@hundred $site 6), $crate::sites!(@hundred $site 7), $crate::sites!(@hundred $site 8),
         $crate::sites!(@hundred $site 9)]
    };
}

/// The functions that [`sites!`] returns.
pub type Sites = [[[Site; 10]; 10]; 10];

/// Returns the functions as one list.
pub fn flat(sites: &'static Sites) -> &'static [Site] {
    sites.as_flattened().as_flattened()
}

/// A site without a tracepoint. It contains its number, so that the compiler merges no two of them.
#[inline(never)]
fn empty_site<const NUMBER: u64>(value: u64) {
    black_box(value ^ NUMBER);
}

macro_rules! empty_site {
    ($a:literal $b:literal $c:literal) => {
        empty_site::<{ $a * 100 + $b * 10 + $c }>
    };
}

static EMPTY_SITES: Sites = sites!(empty_site);

extern "C" fn empty(iterations: u64, first: u64) {
    each(iterations, first, |_| {});
}

extern "C" fn empty_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&EMPTY_SITES));
}

extern "C" fn empty_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&EMPTY_SITES));
}

/// Makes a case of an engine of `event` or `filter`: one event for each iteration if its name starts with `armed` or
/// `accepted`, otherwise none.
pub fn case(name: &'static str, run: Loop) -> Case {
    let is_recorded = name.starts_with("armed") || name.starts_with("accepted");
    Case { name, run, events_per_iteration: is_recorded.into() }
}

/// Makes cases with the names of their functions: `cases![armed_u64, dormant_u64]`.
#[macro_export]
macro_rules! cases {
    ($($run:ident),+) => {
        [$($crate::case(stringify!($run), $run)),+]
    };
}

/// The empty loop.
pub const EMPTY: Case = Case { name: "empty", run: empty, events_per_iteration: 0 };

/// Calls of empty functions.
pub const EMPTY_SITES_CASES: [Case; 2] = [
    Case { name: "empty_sites_10", run: empty_sites_10, events_per_iteration: 0 },
    Case { name: "empty_sites_1000", run: empty_sites_1000, events_per_iteration: 0 },
];

/// Returns the version of a crate that is built in, from the lock file.
pub fn version(name: &str) -> String {
    const LOCK: &str = include_str!("../../Cargo.lock");
    let start = format!("name = \"{name}\"\nversion = \"");
    let version = LOCK.split_once(&start).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or("?").into()
}

/// Waits until a count that other threads advance no longer changes. Returns it.
pub fn settled(mut count: impl FnMut() -> u64) -> u64 {
    const STEP: std::time::Duration = std::time::Duration::from_millis(20);
    // A reader that is only preempted advances the count within this time.
    const STEPS_STILL: u32 = 25;
    let (mut last, mut still) = (count(), 0);
    while still < STEPS_STILL {
        std::thread::sleep(STEP);
        let now = count();
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_distinct() {
        let mut addresses: Vec<usize> = flat(&EMPTY_SITES).iter().map(|site| *site as usize).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 1000);
    }

    #[test]
    fn versions_are_those_of_the_lock() {
        assert_eq!(version("dormouse-lab-peer"), env!("CARGO_PKG_VERSION"));
        assert_eq!(version("no-such-crate"), "?");
    }

    #[test]
    fn texts_have_32_bytes() {
        assert!(TEXTS.iter().all(|text| text.len() == 32));
    }
}
