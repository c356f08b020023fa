//! Xinyu Chen's (2008) question, put to this machine: is there a zero page, what does it pretend, and what does the first touch cost?
//!
//! The paper gives one figure: a codec's test with large reads took some 20 % longer on Linux 2.6.24, which had no zero page, than on 2.6.19, which
//! had one. The zero page has come back since (2.6.32), and huge pages have one of their own (3.8).
//!
//! # Source
//! Xinyu Chen, "ZERO PAGE removal influence: Codec Performance Differences between 2.6.19 and 2.6.24 kernel" (2008).

use std::fmt::Write;

use crate::{Experiment, Measurement, Ratio};

use super::{HUGE_PAGE_BYTES, NAME, Part, State, THPS, Thp};

/// What frames in memory that is there took in the paper, in terms of those from the zero page; about, as it says.
const SEED_FACTOR: f64 = 1.2;

fn find<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Measurement> {
    experiment.measurements.iter().find(|measurement| measurement.name == name)
}

fn ratio<'a>(experiment: &'a Experiment, name: &str) -> Option<&'a Ratio> {
    experiment.ratios.iter().find(|ratio| ratio.name == name)
}

fn interval(ratio: &Ratio) -> String {
    format!("{:.3} [{:.3}, {:.3}]", ratio.value, ratio.ci95[0], ratio.ci95[1])
}

/// What a number of times is the other way round.
fn times(ratio: &Ratio) -> String {
    format!("{:.2} times [{:.2}, {:.2}]", 1.0 / ratio.value, 1.0 / ratio.ci95[1], 1.0 / ratio.ci95[0])
}

fn thp_words(thp: Thp) -> &'static str {
    match thp {
        Thp::Never => "small pages",
        Thp::Unasked => "as the machine has it",
        Thp::Asked => "huge pages asked for",
    }
}

/// Part, pages and state of a line, as in names.
fn name(part: Part, state: State, thp: Thp) -> [String; 2] {
    let thp = if thp == Thp::Never { String::new() } else { format!(".thp-{}", thp.as_str()) };
    ["first", "later"].map(|pass| format!("{}.{}{thp}.{pass}", part.as_str(), state.as_str()))
}

fn counter(measurement: &Measurement, name: &str) -> f64 {
    measurement.counters.get(name).copied().unwrap_or_default()
}

/// The largest frame in each state, with its census; nothing for another experiment.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let mut text = String::new();
    if experiment.name != NAME {
        return text;
    }
    // Writing to a String does not fail.
    let _ = writeln!(text, "  The largest frame: what its passes took, and what its pages were (%)\n");
    let columns = ["first ms", "faults", "later ms", "GB/s", "unbacked", "zero", "huge zero", "small", "huge"];
    let _ = write!(text, "  {:46}", "");
    columns.iter().for_each(|column| _ = write!(text, " {column:>9}"));
    for part in [Part::Read, Part::Decode] {
        for thp in THPS {
            for state in super::STATES {
                let [first, later] = name(part, state, thp);
                let Some((first, later)) = find(experiment, &first).zip(find(experiment, &later)) else { continue };
                let kinds = ["unbacked", "zero", "huge_zero", "small", "huge"];
                let bytes = kinds.map(|kind| counter(later, &format!("{kind}_bytes")));
                let all = bytes.iter().sum::<f64>().max(1.0);
                let name = format!("{}, {}, {}", part.as_str(), thp_words(thp), state.as_str());
                let _ = write!(
                    text,
                    "\n  {name:46} {:>9.3} {:>9.0} {:>9.3} {:>9.2}",
                    first.median / 1e6,
                    counter(first, "faults"),
                    later.median / 1e6,
                    counter(later, "bytes_per_ns")
                );
                bytes.iter().for_each(|bytes| _ = write!(text, " {:>9.1}", 100.0 * bytes / all));
            }
        }
    }
    let _ = writeln!(text, "\n\n  Frames that grow, read again in small pages: GB/s\n");
    let _ = writeln!(text, "  {:12} {:>13} {:>9} {:>24}", "", "never written", "written", "time, never vs written");
    let mut sizes: Vec<&Measurement> = experiment
        .measurements
        .iter()
        .filter(|measurement| {
            let is = |axis: &str, value: &str| measurement.labels.get(axis).is_some_and(|label| label == value);
            is("part", "read")
                && is("state", "never-written")
                && is("thp", "never")
                && is("pass", "later")
                && is("shape", "growing")
        })
        .collect();
    sizes.sort_by(|a, b| a.median.total_cmp(&b.median));
    for never in sizes {
        let size = never.labels.get("size").map_or("", String::as_str);
        let (ending, of_ratio) = match size {
            "whole" => (String::new(), String::new()),
            size => (format!(".{size}"), format!("_{}", size.replace('-', "_"))),
        };
        let written = find(experiment, &format!("read.written.later{ending}"));
        let vs = ratio(experiment, &format!("zero_page_read_vs_real{of_ratio}"));
        let Some((written, vs)) = written.zip(vs) else { continue };
        let (a, b) = (counter(never, "bytes_per_ns"), counter(written, "bytes_per_ns"));
        let _ = writeln!(text, "  {:12} {a:>13.2} {b:>9.2} {:>24}", size.replace('-', " "), interval(vs));
    }
    let _ = writeln!(text);
    text
}

/// The verdict, in lines.
pub(crate) fn conclusion(experiment: &Experiment, whole: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (what, thp, zero, name) in [
        ("small", "", "zero_bytes", "zero_page_read_vs_real"),
        ("huge", ".thp-asked", "huge_zero_bytes", "huge_zero_page_read_vs_real"),
    ] {
        let Some(never) = find(experiment, &format!("read.never-written{thp}.later")) else { continue };
        let Some(vs) = ratio(experiment, name) else { continue };
        let share = 100.0 * counter(never, zero) / whole as f64;
        lines.push(if share > 50.0 {
            format!(
                "verdict: this machine has a zero page for {what} pages ({share:.0} % of the frame that was read and never written): reading it \
                 is {} as fast as reading memory, {name} {}",
                times(vs),
                interval(vs)
            )
        } else {
            format!(
                "verdict: no zero page for {what} pages was seen ({share:.0} % of the frame that was read and never written); {name} {}",
                interval(vs)
            )
        });
    }
    if let Some(vs) = ratio(experiment, "zero_page_decode_vs_real") {
        lines.push(format!(
            "verdict: with what is computed of it, a frame from the zero page takes {} of one from memory; with Chen (2008), about {:.2}",
            interval(vs),
            1.0 / SEED_FACTOR
        ));
    }
    // The first pass less the later ones over the same pages.
    let first = |thp: &str, part: &str, page_bytes: f64| {
        let of = |pass: &str| find(experiment, &format!("{part}.never-written{thp}.{pass}.at-once"));
        let (first, later) = (of("first")?, of("later")?);
        Some((first.median - later.median) / (whole as f64 / page_bytes))
    };
    for (what, thp, page_bytes) in [("small", "", 4096.0), ("huge", ".thp-asked", HUGE_PAGE_BYTES as f64)] {
        if let (Some(read), Some(write)) = (first(thp, "read", page_bytes), first(thp, "write", page_bytes)) {
            lines.push(format!(
                "verdict: the first touch of a {what} page costs {:.2} µs to read and {:.2} µs to write, where huge pages are {}",
                read / 1e3,
                write / 1e3,
                if thp.is_empty() { "forbidden" } else { "asked for" }
            ));
        }
    }
    if let (Some(write), Some(read)) =
        (ratio(experiment, "populate_write_vs_real"), ratio(experiment, "populate_read_vs_real"))
    {
        lines.push(format!(
            "verdict: MADV_POPULATE_WRITE gives memory ({} of what was written by hand); MADV_POPULATE_READ does not ({})",
            interval(write),
            interval(read)
        ));
    }
    let policies: Vec<String> = super::POLICIES
        .iter()
        .filter_map(|policy| {
            let vs = ratio(experiment, &format!("zero_page_read_vs_real_{}", policy.as_str()))?;
            Some(format!("{} {}", policy.as_str(), interval(vs)))
        })
        .collect();
    if !policies.is_empty() {
        lines.push(format!(
            "verdict: it is not the scheduler: zero page against memory by policy: {}",
            policies.join(", ")
        ));
    }
    lines.push(
        "not reproduced: the kernel module of Chen (2008), whose arrays are memory from the start; `populate-write` stands for it".into(),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_and_the_verdict_are_of_what_was_measured() {
        let experiment = super::super::tests::experiment();
        let text = tables(&experiment);
        for part in [
            "read, small pages, never-written",
            "decode, huge pages asked for, populate-write",
            "\n  whole ",
            "\n  64 KiB ",
            "0.250 [0.250, 0.250]",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        let lines = conclusion(&experiment, 64 << 20);
        let has = |part: &str| lines.iter().any(|line| line.contains(part));
        assert!(has("has a zero page for small pages (100 %") && has("4.00 times [4.00, 4.00] as fast"), "{lines:#?}");
        assert!(has("no zero page for huge pages was seen (0 %"), "{lines:#?}");
        // The first pass takes three times as long: two sixteenths of a nanosecond for each byte that is read, two quarters of one written.
        assert!(has("the first touch of a small page costs 0.51 µs to read and 2.05 µs to write"), "{lines:#?}");
        assert!(has("fifo 0.250"), "{lines:#?}");
        assert_eq!(tables(&Experiment { name: "imv".into(), ..experiment }), "");
    }
}
