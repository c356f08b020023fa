//! Experiment `relay-write`: the write to a buffer of pages, in the ways of Desnoyers (2009) and in ours.
//!
//! In 2009 the function that writes to LTTng's buffers took much of a traced kernel's time. Its author replaced the
//! call of `memcpy` by single stores for 1, 2, 4 and 8 bytes, and then inlined the path to the cached page.
//! `compile-job` measures the effect on a build; this experiment measures the effect on the write itself.
//!
//! ```text
//!   write.WAY.RECORD[.unaligned][.PAGES][.L2]   cases of the engine, which lists them: `lab/engines/src/relay/main.rs`;
//!                                               L2: each iteration after a walk that drives the buffer and all other data out of L2
//!   write.c-inlined…, write.c-called…           a channel written to from C: `lab/engines/c/relay.c`
//!   write.lttng-ust.8-bytes.event               LTTng-UST's event with one field of eight bytes, in overwrite mode: with its header, clock
//!                                               and filters, which a channel leaves to its user
//!   i686.WAY                eight bytes in a program of 32 bits (`stores.c`): u64, u32-twice, memcpy, u64-at-4
//!   list.entries-walked     maximum number of list entries that one write walks over: a count; `.nested`: with a handler that
//!                           writes after each field of the record that it interrupts; `.signals`: with signals, whose handler
//!                           writes, wherever they interrupt the writer; list.signals-inside-writes: their number
//!   write.inside-…          with and without a check of alignment, in one function whose loops each run finds at another place
//! ```
//! A cost is that of one record, minus the loop that writes nothing. It includes no clock, and except in a channel no
//! reservation and no commit. Verified: no write was refused, the number of writes is right, and each case's buffer is read back and
//! compared with a list.

mod stores;

use std::time::Duration;

use dormouse_lab_harness::Walk;
use dormouse_owner::Mode;

use crate::engine::Engine;
use crate::engines::{self, Engines, LTTNG_UST};
use crate::plan::{self, Axis, Plan, Turn, slot};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

const ENGINE: &str = "dormouse-lab-engine-relay";
const ENGINE_IN_C: &str = "dormouse-lab-engine-relay-c";

/// Axes of names: `write.inlined.8-bytes.unaligned.table.L2`.
const AXES: &[Axis] = &[
    Axis::plain("state"),
    Axis::plain("tool"),
    Axis::plain("record"),
    Axis::without("alignment", "aligned"),
    Axis::without("pages", "list"),
    Axis::without("pressure", "hot"),
];

/// Whether a case is also measured under memory pressure. The larger buffers exceed L2 by their own size, or nearly.
fn is_cold_too(way: &str, record: &str, pages: &str) -> bool {
    !way.starts_with("checked")
        && !way.starts_with("inside")
        && ["8", "64", "mix"].contains(&record)
        && ["list", "table"].contains(&pages)
}

/// Plans the engine's cases without memory pressure, or those with it.
fn costs(engines: &[Engine], walks: &[(&'static str, Walk)], is_quick: bool, is_cold: bool) -> Plan {
    let mut plan = Plan::new(AXES);
    let (pressure, lasting_us) = match (is_cold, is_quick) {
        (false, true) => ("hot", 300),
        (false, false) => ("hot", 2_000),
        (true, true) => ("L2", 3_000),
        (true, false) => ("L2", 20_000),
    };
    let turn = Turn::Lasting(Duration::from_micros(lasting_us));
    let Some((_, walk)) = [("hot", Walk::None)].iter().chain(walks).find(|(label, _)| *label == pressure) else {
        return plan;
    };
    let ours = engines.iter().enumerate().filter(|(_, engine)| engine.description().name.starts_with("dormouse"));
    let mut cases: Vec<(usize, Vec<&str>)> = ours
        .flat_map(|(index, engine)| {
            engine.description().cases.iter().map(move |case| (index, case.split('_').collect()))
        })
        .collect();
    // From the shortest record to the longest, and the mix.
    cases.sort_by_key(|(_, parts)| parts.get(1).and_then(|record| record.parse().ok()).unwrap_or(u32::MAX));
    for (engine, parts) in cases {
        let [way, record, alignment, pages] = parts[..] else { continue };
        if way == "empty" || is_cold && !is_cold_too(way, record, pages) {
            continue;
        }
        let unit = match record {
            "mix" => "",
            "1" => "-byte",
            _ => "-bytes",
        };
        let label = format!("{record}{unit}");
        let mut add = |case: &str, state, tool, base| {
            let at = [("record", label.as_str()), ("alignment", alignment), ("pages", pages), ("pressure", pressure)];
            let slot = slot(engine, &format!("{case}_{record}_{alignment}_{pages}"), *walk, turn);
            plan.add(engines, slot, &[&[("state", state), ("tool", tool)][..], &at].concat(), base)
        };
        let base = add("empty", "empty", if engine == 0 { "none" } else { "c" }, None);
        add(way, "write", way, base);
    }
    plan
}

/// Plans LTTng-UST's event with a field of eight bytes.
fn events(plan: &mut Plan, engines: &Engines, turn: Turn) {
    let overwriting = engines.peers.iter().find(|peer| peer.mode != Some(Mode::Discard));
    let Some(peer) = overwriting else { return };
    let mut add = |case: &str, state, base| {
        let pairs = [("state", state), ("tool", peer.name), ("record", "8-bytes"), ("pages", "event")];
        plan.add(&engines.all, slot(peer.engine, case, Walk::None, turn), &pairs, base)
    };
    let base = add("empty", "empty", None);
    if base.is_some() {
        add("armed_u64", "write", base);
    }
}

/// Runs the experiment.
pub(super) fn run_relay_write(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let dir = tempfile::tempdir().map_err(|error| LabError::System { what: "temporary directory", error })?;
    let mut engines = Engines::new(options)?;
    let wrong = |written: u64, emitted: u64| format!("{written} of {emitted} records were written");
    engines.add(move |dir| engines::of_ours(ENGINE, dir, wrong))?;
    let wrong_in_c = |right: u64, written: u64| format!("{right} of {written} records from C are there as written");
    let in_c = engines.add_if_built("the engine in C", move |dir| engines::of_ours(ENGINE_IN_C, dir, wrong_in_c));
    let mut notes: Vec<String> = in_c.into_iter().chain(engines.add_these([LTTNG_UST])).collect();
    let walks = plan::walks_or_note(host, &mut notes);
    let rounds = options.rounds(12, 80);
    let parts = plan::warm_and_cold(&mut engines, "relay-write", rounds, |engines, is_cold| {
        let mut plan = costs(&engines.all, &walks, options.is_quick, is_cold);
        if !is_cold {
            events(
                &mut plan,
                engines,
                Turn::Lasting(Duration::from_micros(if options.is_quick { 300 } else { 2_000 })),
            );
        }
        plan
    })?;

    let found = engines.finish(host, &mut notes)?;
    notes.push(format!("dormouse: {} records written; {}", found[0].emitted, found[0].text));
    let of_32_bits = stores::measure(dir.path(), rounds, options.cpus[0]).unwrap_or_else(|why| {
        notes.push(format!("stores of 32-bit programs not available: {why}"));
        Vec::new()
    });
    let mut experiment = plan::experiment("relay-write", parts, &RATIOS, notes, host);
    experiment.measurements.extend(of_32_bits);
    for (name, before) in [
        ("list.entries-walked", "entries walked over at most: "),
        ("list.entries-walked.nested", "with nested writers: "),
        ("list.entries-walked.signals", "with signals: "),
        ("list.signals-inside-writes", "signals inside writes: "),
    ] {
        let count = found[0].text.split_once(before).and_then(|(_, rest)| rest.split(';').next()?.parse().ok());
        experiment.measurements.extend(count.map(|count| Measurement::exact(name, "count", count)));
    }
    Ok(experiment)
}

/// Name, numerator and denominator of each ratio: comparisons that the paper does not make, and the two changes that it
/// makes.
const RATIOS: [(&str, &str, &str); 14] = [
    ("channel_write_vs_lttng", "write.inlined.8-bytes.channel", "write.lttng-ust.8-bytes.event"),
    ("c_channel_write_vs_lttng", "write.c-inlined.8-bytes.channel", "write.lttng-ust.8-bytes.event"),
    ("c_called_channel_write_vs_lttng", "write.c-called.8-bytes.channel", "write.lttng-ust.8-bytes.event"),
    ("alignment_check", "write.inside-checked-bytes.8-bytes", "write.inside-specialised.8-bytes"),
    ("alignment_check_4", "write.inside-checked-bytes.4-bytes", "write.inside-specialised.4-bytes"),
    ("channel_vs_list", "write.inlined.16-bytes.channel", "write.inlined.16-bytes"),
    ("inlined_vs_memcpy", "write.inlined.mix.unaligned", "write.memcpy.mix.unaligned"),
    ("specialised_vs_memcpy", "write.specialised.mix.unaligned", "write.memcpy.mix.unaligned"),
    ("words_vs_specialised", "write.words.mix.unaligned", "write.specialised.mix.unaligned"),
    ("inlined_vs_words", "write.inlined.mix.unaligned", "write.words.mix.unaligned"),
    ("table_vs_list", "write.inlined.mix.unaligned.table", "write.inlined.mix.unaligned"),
    ("large_table_vs_list", "write.inlined.mix.unaligned.large-table", "write.inlined.mix.unaligned.large-list"),
    ("inlined_cold_vs_memcpy", "write.inlined.mix.unaligned.L2", "write.memcpy.mix.unaligned.L2"),
    ("table_cold_vs_list", "write.inlined.mix.unaligned.table.L2", "write.inlined.mix.unaligned.L2"),
];
