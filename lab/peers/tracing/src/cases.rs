//! Cases of the engines for the tracing crate: events at level INFO, and the same events at level DEBUG, which the
//! level in force filters out.

use dormouse_lab_harness::Case;
use dormouse_lab_peer::{EMPTY, EMPTY_SITES_CASES, Sites, cases, each, each_site, flat, sites, text};
use tracing::Level;

/// Level of the recorded events.
pub const LEVEL: Level = Level::INFO;

extern "C" fn armed_none(iterations: u64, first: u64) {
    each(iterations, first, |_| tracing::event!(Level::INFO, "none"));
}

extern "C" fn armed_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::INFO, number, "u64"));
}

extern "C" fn armed_ints3(iterations: u64, first: u64) {
    each(iterations, first, |number| {
        tracing::event!(Level::INFO, a = number, b = -(number as i64), c = number as u32, "ints3");
    });
}

extern "C" fn armed_str32(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::INFO, text = text(number), "str32"));
}

extern "C" fn dormant_u64(iterations: u64, first: u64) {
    each(iterations, first, |number| tracing::event!(Level::DEBUG, number, "u64"));
}

/// Makes a function with an event of its own.
macro_rules! site {
    ($level:ident, $number:expr) => {{
        #[inline(never)]
        fn site(value: u64) {
            // It contains its number, so that the compiler merges no two functions; the empty sites contain theirs too.
            std::hint::black_box(value ^ $number);
            tracing::event!(Level::$level, number = value, "site");
        }
        site
    }};
}

macro_rules! armed_site {
    ($a:literal $b:literal $c:literal) => {
        site!(INFO, $a * 100 + $b * 10 + $c)
    };
}

macro_rules! dormant_site {
    ($a:literal $b:literal $c:literal) => {
        site!(DEBUG, $a * 100 + $b * 10 + $c)
    };
}

static ARMED_SITES: Sites = sites!(armed_site);
static DORMANT_SITES: Sites = sites!(dormant_site);

extern "C" fn armed_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&ARMED_SITES));
}

extern "C" fn armed_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&ARMED_SITES));
}

extern "C" fn dormant_sites_10(iterations: u64, first: u64) {
    each_site::<10>(iterations, first, flat(&DORMANT_SITES));
}

extern "C" fn dormant_sites_1000(iterations: u64, first: u64) {
    each_site::<1000>(iterations, first, flat(&DORMANT_SITES));
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let mut cases = vec![EMPTY];
    cases.extend(EMPTY_SITES_CASES);
    cases.extend(cases![
        armed_none,
        armed_u64,
        armed_ints3,
        armed_str32,
        armed_sites_10,
        armed_sites_1000,
        dormant_u64,
        dormant_sites_10,
        dormant_sites_1000
    ]);
    cases
}
