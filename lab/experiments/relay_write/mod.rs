//! Experiment `relay-write`: the write to a buffer of pages, in the ways of Desnoyers (2009) and ours.
//!
//! # The problem
//! In 2009 the function that writes to LTTng's buffers took much of a traced kernel's time. Its author replaced the call of `memcpy` by
//! single stores for 1, 2, 4 and 8 bytes, and then inlined the way to the cached page. What this is worth to a build is measured by
//! `compile-job`; to the write itself, here.
//!
//! # The picture
//! ```text
//!   write.WAY.RECORD[.unaligned][.PAGES][.L2]
//!     WAY      memcpy           called, and memcpy called in it
//!              specialised      called: a switch to single stores for 1, 2, 4, 8 bytes, else memcpy called
//!              words            called: our copy by words, which may overlap
//!              inlined          inlined, with our copy
//!              checked-bytes    as specialised, but what is not aligned is copied byte by byte: for machines without
//!              checked-memcpy   … or by memcpy                                   efficient unaligned accesses
//!     RECORD   1 2 4 8 16 64 256 bytes; mix: a record of a few fields
//!     PAGES    list: 16 KiB in pages of 4 KiB, linked                table: the same pages, in a table
//!              large-list, large-table: 4 MiB in pages of 4 KiB      huge-list: 4 MiB in pages of 2 MiB
//!     L2       each iteration after a walk that drives the buffer, and all else, out of L2
//!   i686.WAY   eight bytes in a program of 32 bits (`stores.c`): u64, u32-twice, memcpy, u64-at-4
//!   list.entries-walked   of a list, by one write, at most: a count
//! ```
//! A cost is that of one record, less the loop that writes nothing. There is no clock in it, no reservation and no commit.
//!
//! # What is verified
//! No write was refused, there were as many as were asked for, and each case's buffer is read back and compared with a list.

mod stores;

use std::time::Duration;

use dormouse_lab_harness::Walk;

use crate::engine::Engine;
use crate::engines::{self, Engines};
use crate::plan::{self, Axis, Plan, slot};
use crate::rounds::{self, Turn};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const NAME: &str = "relay-write";
const ENGINE: &str = "dormouse-lab-engine-relay";

/// What a name is made of: `write.inlined.8-bytes.unaligned.table.L2`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("record"),
    Axis::without("alignment", "aligned"),
    Axis::without("pages", "list"),
    Axis::without("pressure", "hot"),
];

/// As the engine calls them, and as they are labelled.
const RECORDS: [(&str, &str); 8] = [
    ("1", "1-byte"),
    ("2", "2-bytes"),
    ("4", "4-bytes"),
    ("8", "8-bytes"),
    ("16", "16-bytes"),
    ("64", "64-bytes"),
    ("256", "256-bytes"),
    ("mix", "mix"),
];
const WAYS: [&str; 6] = ["memcpy", "specialised", "words", "inlined", "checked-bytes", "checked-memcpy"];
const ALIGNMENTS: [&str; 2] = ["aligned", "unaligned"];
const PAGES: [&str; 5] = ["list", "table", "large-list", "large-table", "huge-list"];

/// What is measured under memory pressure: records, and pages. The larger buffers are out of L2 by their own size, or nearly.
const COLD_RECORDS: [&str; 3] = ["8", "64", "mix"];
const COLD_PAGES: [&str; 2] = ["list", "table"];
/// And so many of the ways.
const COLD_WAYS: usize = 4;

/// The cases without memory pressure, or those with it: in one and the same rounds the latter would leave nothing warm for the former.
fn costs(engines: &[Engine], walks: &[(&'static str, Walk)], is_quick: bool, is_cold: bool) -> Plan {
    let mut plan = Plan::new(AXES);
    let places: Vec<(&str, Walk)> = if is_cold {
        walks.iter().copied().filter(|(label, _)| *label == "L2").collect()
    } else {
        vec![("hot", Walk::None)]
    };
    let lasting = match (is_cold, is_quick) {
        (false, true) => 300,
        (false, false) => 2_000,
        (true, true) => 3_000,
        (true, false) => 20_000,
    };
    let turn = Turn::Lasting(Duration::from_micros(lasting));
    for (pressure, walk) in places {
        for pages in PAGES {
            for (record, label) in RECORDS {
                if is_cold && !(COLD_RECORDS.contains(&record) && COLD_PAGES.contains(&pages)) {
                    continue;
                }
                for alignment in ALIGNMENTS {
                    let at = [("record", label), ("alignment", alignment), ("pages", pages), ("pressure", pressure)];
                    let mut add = |way: &str, pairs: &[(&str, &str)], base| {
                        // What the engine does not have is left out.
                        let slot = slot(0, &format!("{way}_{record}_{alignment}_{pages}"), walk, turn);
                        plan.add(engines, slot, &[pairs, &at].concat(), base)
                    };
                    let base = add("empty", &[("state", "empty"), ("tool", "none")], None);
                    for way in &WAYS[..if is_cold { COLD_WAYS } else { WAYS.len() }] {
                        add(way, &[("state", "write"), ("tool", way)], base);
                    }
                }
            }
        }
    }
    plan
}

/// Runs the experiment.
///
/// # Errors
/// See [`LabError`].
pub fn run_relay_write(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let cpus = &options.cpus;
    let mut engines = Engines::new(options);
    let of_ours = dir.path().to_path_buf();
    engines.add(move || engines::of_ours(ENGINE, &of_ours, wrong))?;
    let mut notes = engines.shortcomings(host);
    let walks = plan::walks_or_note(host, &mut notes);

    let (rounds, processes) = (options.rounds(12, 80), rounds::processes(options.is_quick));
    let parts = plan::warm_and_cold(&mut engines, NAME, rounds, processes, |engines, is_cold| {
        costs(&engines.all, &walks, options.is_quick, is_cold)
    })?;

    let found = engines.finish()?;
    notes.push(format!("dormouse: {} records written; {}", found[0].emitted, found[0].text));
    let of_32_bits = stores::measure(dir.path(), rounds, cpus[0]).unwrap_or_else(|why| {
        notes.push(format!("stores of 32-bit programs not available: {why}"));
        Vec::new()
    });
    notes.push(format!(
        "each cost is one record's, less the loop that writes nothing, in the same round; {rounds} rounds of each part, {} of them \
         warm-up; {processes} processes of the engine for either; processors {cpus:?}",
        plan::warm_ups(&parts)
    ));
    let mut experiment = plan::experiment(NAME, parts, &RATIOS, notes, host);
    experiment.measurements.extend(of_32_bits);
    let entries = found[0].text.rsplit_once(ENTRIES).and_then(|(_, count)| count.parse().ok());
    experiment.measurements.extend(entries.map(|count| Measurement::exact("list.entries-walked", "count", count)));
    Ok(experiment)
}

/// What the engine's count of the entries that a write went over stands behind.
const ENTRIES: &str = "entries walked over at most: ";

/// What is wrong where not all was written, or a buffer did not hold it.
fn wrong(written: u64, emitted: u64) -> String {
    format!("{written} of {emitted} records were written")
}

/// Name, numerator, denominator: what the paper does not speak of, and the two changes that it makes.
const RATIOS: [(&str, &str, &str); 9] = [
    ("inlined_vs_memcpy", "write.inlined.mix.unaligned", "write.memcpy.mix.unaligned"),
    ("specialised_vs_memcpy", "write.specialised.mix.unaligned", "write.memcpy.mix.unaligned"),
    ("words_vs_specialised", "write.words.mix.unaligned", "write.specialised.mix.unaligned"),
    ("inlined_vs_words", "write.inlined.mix.unaligned", "write.words.mix.unaligned"),
    ("table_vs_list", "write.inlined.mix.unaligned.table", "write.inlined.mix.unaligned"),
    ("large_table_vs_list", "write.inlined.mix.unaligned.large-table", "write.inlined.mix.unaligned.large-list"),
    ("huge_vs_4_kib", "write.inlined.mix.unaligned.huge-list", "write.inlined.mix.unaligned.large-list"),
    ("inlined_cold_vs_memcpy", "write.inlined.mix.unaligned.L2", "write.memcpy.mix.unaligned.L2"),
    ("table_cold_vs_list", "write.inlined.mix.unaligned.table.L2", "write.inlined.mix.unaligned.L2"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_different_names_and_are_of_what_is_measured() {
        crate::plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
        for (_, of, to) in RATIOS {
            for name in [of, to] {
                let parts: Vec<&str> = name.split('.').collect();
                assert!(parts[0] == "write" && WAYS.contains(&parts[1]), "{name}");
                assert!(RECORDS.iter().any(|(_, label)| *label == parts[2]), "{name}");
                let is_known = |part: &&str| ALIGNMENTS.contains(part) || PAGES.contains(part) || **part == *"L2";
                assert!(parts[3..].iter().all(is_known), "{name}");
            }
        }
    }
}
