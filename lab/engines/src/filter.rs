//! Engine of Dormouse for the experiment `filter`: events on which the session's rules have conditions.
//!
//! ```text
//!   empty            the loop alone                     empty_path        … which also chooses a text
//!   armed_FIELDS     an event without a condition       accepted_FIELDS   … whose condition is true
//!   rejected_FIELDS  … whose condition is false         rejected_u64_10   … the last of whose ten comparisons is false
//!   sampled_u64      … of which one in 100 is recorded, by chance
//!   dormant_u64      … whose condition is false for every event of its class
//!   armed_u64_both   an event that a second session records too
//!   armed_u64_first  … that a second session rejects by a condition
//! ```
//! `FIELDS` is `u64`, or `path`: a number and a text of 32 bytes. Each case has a class of its own, with the case's
//! name; the experiment gives each class its rule. The second session wants the classes of two cases only.
//!
//! The thread has two tags, which are part of its events in sessions that ask for them.
//!
//! An event that nobody wants would cost less than one that a condition rejects, and neither arrives. So the program
//! does not start unless the classes of rejected events are armed, and that of the dormant one is not.

use std::hint::black_box;
use std::process::ExitCode;

use dormouse_lab_harness::{Case, Engine, Loop, repeat};

/// Texts of 32 bytes, the same as in `lab/peers/c/lttng_ust_filter.c`.
static TEXTS: [&str; 4] = [
    "/var/lib/shop/orders/1831/items0",
    "/var/lib/shop/orders/1832/items1",
    "/var/lib/shop/orders/1833/items2",
    "/var/lib/shop/orders/1834/items3",
];

fn text(number: u64) -> &'static str {
    TEXTS[number as usize % TEXTS.len()]
}

repeat!(empty, number => {});
repeat!(empty_path, number => black_box(text(number)));
repeat!(armed_u64, number => dormouse::event!(lab.armed_u64, number));
repeat!(armed_u64_both, number => dormouse::event!(lab.armed_u64_both, number));
repeat!(armed_u64_first, number => dormouse::event!(lab.armed_u64_first, number));
repeat!(rejected_u64, number => dormouse::event!(lab.rejected_u64, number));
repeat!(accepted_u64, number => dormouse::event!(lab.accepted_u64, number));
repeat!(rejected_u64_10, number => dormouse::event!(lab.rejected_u64_10, number));
repeat!(sampled_u64, number => dormouse::event!(lab.sampled_u64, number));
repeat!(dormant_u64, number => dormouse::event!(lab.dormant_u64, number));
repeat!(armed_path, number => dormouse::event!(lab.armed_path, number, path = text(number)));
repeat!(rejected_path, number => dormouse::event!(lab.rejected_path, number, path = text(number)));
repeat!(accepted_path, number => dormouse::event!(lab.accepted_path, number, path = text(number)));

/// Whether a class is armed: whether the values of one of its events are evaluated. The event ends there, because one of
/// a sample might be recorded.
macro_rules! is_armed {
    ($name:ident $(, $field:ident = $value:expr)*) => {{
        let is_evaluated = || {
            dormouse::event!(
                lab.$name,
                number = {
                    if black_box(true) {
                        return true;
                    }
                    0u64
                }
                $(, $field = $value)*
            );
            false
        };
        is_evaluated()
    }};
}

fn case(name: &'static str, run: Loop) -> Case {
    let is_recorded = name.starts_with("armed") || name.starts_with("accepted");
    Case { name, run, events_per_iteration: is_recorded.into() }
}

fn main() -> ExitCode {
    let cases: &[(&str, Loop)] = &[
        ("empty", empty),
        ("empty_path", empty_path),
        ("armed_u64", armed_u64),
        ("armed_u64_both", armed_u64_both),
        ("armed_u64_first", armed_u64_first),
        ("rejected_u64", rejected_u64),
        ("accepted_u64", accepted_u64),
        ("rejected_u64_10", rejected_u64_10),
        ("sampled_u64", sampled_u64),
        ("dormant_u64", dormant_u64),
        ("armed_path", armed_path),
        ("rejected_path", rejected_path),
        ("accepted_path", accepted_path),
    ];
    let _request = dormouse::tag!(request = 17_u64);
    let _tenant = dormouse::tag!(tenant = "/var/lib/shop");
    for (name, is_armed, is_wanted) in [
        ("rejected_u64", is_armed!(rejected_u64), true),
        ("rejected_u64_10", is_armed!(rejected_u64_10), true),
        ("rejected_path", is_armed!(rejected_path, path = ""), true),
        ("sampled_u64", is_armed!(sampled_u64), true),
        ("dormant_u64", is_armed!(dormant_u64), false),
    ] {
        if is_armed != is_wanted {
            eprintln!("dormouse: lab:{name} is {}", if is_armed { "armed" } else { "not armed" });
            return ExitCode::from(2);
        }
    }
    dormouse_lab_harness::main(&Engine {
        name: "dormouse",
        version: env!("CARGO_PKG_VERSION").into(),
        cases: cases.iter().map(|(name, run)| case(name, *run)).collect(),
        // The lab owns the session and counts the events itself.
        arrived: None,
    })
}
