//! Lost events as text for people.

use std::fmt::Write;

use dormouse_abi::text::printable;
use dormouse_ctf::loss::{Uncounted, how_many};
use dormouse_ctf::stats::{LossPlace, LossPlaces};

/// Column heads of [`rows`].
pub(crate) const HEADS: [&str; 5] = ["LOST", "PACKETS", "FROM", "TO", "STREAM"];

/// Returns the number of lost events, and a line for each cause that can have lost further ones.
pub(crate) fn summary(lost: u64, possible: &[Uncounted]) -> String {
    let mut text = format!("lost      {}\n", how_many(lost, possible.is_empty()));
    for Uncounted { cause, count } in possible {
        let count = if *count > 0 { format!(" ({count})") } else { String::new() };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "          because {}{count}", printable(cause));
    }
    text
}

/// Returns the rows of a table of places.
pub(crate) fn rows(losses: &LossPlaces) -> Vec<Vec<String>> {
    let row = |place: &LossPlace| {
        let counts = [place.events.to_string(), place.packets.to_string()];
        let times = [place.begin_ns, place.end_ns].map(seconds);
        counts.into_iter().chain(times).chain([printable(&place.stream)]).collect()
    };
    losses.places.iter().map(row).collect()
}

/// Returns seconds since the epoch, as `dormouse view --clock seconds` prints them.
pub(crate) fn seconds(ns: Option<i64>) -> String {
    let shown = |ns: i64| format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    ns.map_or("unknown".into(), shown)
}
