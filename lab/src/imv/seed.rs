//! Desnoyers's (2008) tables with his figures (Pentium 4, 3 GHz, 2008) beside this machine's, and its arithmetic.
//!
//! ```text
//!   loop       base, and a branch on: the instruction stream, a variable in L1, a variable in memory
//!   rate       events/s × (cycles beyond the base) ÷ (cycles/s)
//!   getppid    2 × (memory − L1) ÷ (getppid − timestamps), the latter under memory pressure
//! ```
//! Cycles are those of the timestamp counter. Errors are standard deviations, propagated as independent.
//!
//! # Source
//! Mathieu Desnoyers, "Immediate Values - Documentation", patch 6/7 of the series of 2 February 2008.

use std::fmt::Write;

use crate::statistics::Uncertain;
use crate::{Experiment, Measurement};

/// Means, and deviations where the paper gives them.
const LOOP_2008: [f64; 4] = [77.5044, 85.3438, 89.6413, 636.611];
const HZ_2008: f64 = 3e9;
/// Of its test with errors: timestamps and getppid, alone and under memory pressure.
const TIMESTAMPS_2008: [[f64; 2]; 2] = [[150.92, 1.01], [578.22, 269.51]];
const GETPPID_2008: [[f64; 2]; 2] = [[1462.09, 18.87], [17113.33, 1655.92]];
/// Of its first test, without: markers compiled out, by immediate values, by variables.
const MARKED_2008: [[f64; 2]; 3] = [[1681.4, 15691.6], [1681.84, 11793.0], [1669.06, 12535.0]];
const SHARE_2008: &str = "6.72 ± 0.70";
/// Its rate of two markers for each packet of a ping flood, per second.
const RATE: f64 = 15_348.0;

/// The measurements of an experiment, in cycles where there is a counter of them.
struct Figures<'a> {
    experiment: &'a Experiment,
    /// Cycles of a nanosecond.
    rate: Option<f64>,
}

impl Figures<'_> {
    fn of(experiment: &Experiment) -> Figures<'_> {
        let rate = |m: &Measurement| Some(m.tsc_cycles? / m.median).filter(|rate| rate.is_finite() && *rate > 0.0);
        Figures { experiment, rate: experiment.measurements.iter().find_map(rate) }
    }

    fn unit(&self) -> &'static str {
        if self.rate.is_some() { "cycles" } else { "ns" }
    }

    fn per_second(&self) -> f64 {
        self.rate.unwrap_or(1.0) * 1e9
    }

    fn find(&self, name: &str) -> Option<&Measurement> {
        self.experiment.measurements.iter().find(|m| m.name == name)
    }

    fn get(&self, name: &str) -> Option<Uncertain> {
        let m = self.find(name)?;
        Some(Uncertain { mean: m.mean, stddev: m.stddev } * self.rate.unwrap_or(1.0))
    }

    /// Beyond the base of the loop.
    fn beyond(&self, name: &str) -> Option<Uncertain> {
        Some(self.get(name)? - self.get("loop.none")?)
    }

    /// A getppid without the timestamps around it.
    fn call(&self, tool: &str, pressure: &str) -> Option<Uncertain> {
        Some(self.get(&format!("getppid.{tool}{pressure}"))? - self.get(&format!("getppid.timestamps{pressure}"))?)
    }
}

fn said(value: Option<Uncertain>) -> String {
    value.map_or_else(|| "–".into(), |value| value.to_string())
}

fn pair([mean, stddev]: [f64; 2]) -> Uncertain {
    Uncertain { mean, stddev }
}

fn percent(share: Uncertain) -> String {
    let Uncertain { mean, stddev } = share * 100.0;
    let decimals = match mean.abs().max(stddev) {
        size if size >= 100.0 => 0,
        size if size >= 1.0 => 2,
        _ => 4,
    };
    format!("{mean:.decimals$} ± {stddev:.decimals$} %")
}

/// Name of the measurement, what to call it, and which of the paper's it is.
const LOOPS: [(&str, &str, Option<usize>); 6] = [
    ("loop.none", "base: the pointer alone, from a modulo", Some(0)),
    ("loop.static-branch", "instruction stream: static branch", Some(1)),
    ("loop.immediate-value", "instruction stream: immediate value, branch", Some(1)),
    ("loop.variable", "variable in L1, branch", Some(2)),
    ("loop.variable-in-memory", "variable in memory, branch", Some(3)),
    ("loop.variable-awaited", "… and the next has to wait for it", Some(3)),
];

fn loops(figures: &Figures, text: &mut String) -> std::fmt::Result {
    let Some(base) = figures.find("loop.none") else { return Ok(()) };
    writeln!(
        text,
        "  The loop of 2008: {} runs of 100,000 branches, {} of an iteration, mean ± σ of the runs\n",
        base.n,
        figures.unit()
    )?;
    writeln!(text, "  {:46} {:>10} {:>9} {:>19} {:>19}", "", "2008", "beyond", "here", "beyond the base")?;
    for (name, what, of_2008) in LOOPS.iter().filter(|(name, ..)| figures.find(name).is_some()) {
        let then = of_2008.map(|index| LOOP_2008[index]);
        let beyond_then = then.map(|then| then - LOOP_2008[0]).filter(|beyond| *beyond > 0.0);
        let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
        let beyond = if *name == "loop.none" { String::new() } else { said(figures.beyond(name)) };
        let (then, beyond_then) = (number(then), number(beyond_then));
        writeln!(text, "  {what:46} {then:>10} {beyond_then:>9} {:>19} {beyond:>19}", said(figures.get(name)))?;
    }
    writeln!(text)
}

/// Slowdowns at rates of events.
fn rates(figures: &Figures, text: &mut String) -> std::fmt::Result {
    if figures.find("loop.none").is_none() {
        return Ok(());
    }
    let rates = [1.0, 10.0, 100.0, 1000.0].map(|factor| factor * RATE);
    writeln!(
        text,
        "  Share of a processor's time at so many branches a second: rate × {} ÷ {:.3e}/s\n",
        figures.unit(),
        figures.per_second()
    )?;
    let heads: String = rates.iter().map(|rate| format!(" {:>19}", format!("{rate:.0}/s"))).collect();
    writeln!(text, "  {:46}{heads}", "")?;
    let row = |text: &mut String, what: &str, cost: Uncertain, per_second: f64| {
        let cells: String = rates.iter().map(|rate| format!(" {:>19}", percent(cost * (rate / per_second)))).collect();
        writeln!(text, "  {what:46}{cells}")
    };
    for (name, what, of_2008) in LOOPS.iter().skip(1) {
        let Some(cost) = figures.beyond(name) else { continue };
        row(text, what, cost, figures.per_second())?;
        let is_repeated = matches!(*name, "loop.immediate-value" | "loop.variable-in-memory");
        if let Some(then) = of_2008.filter(|_| !is_repeated) {
            let cells: String = rates
                .iter()
                .map(|rate| {
                    let share = (LOOP_2008[then] - LOOP_2008[0]) * rate / HZ_2008 * 100.0;
                    let digits = if share < 1.0 { 4 } else { 2 };
                    format!(" {:>19}", format!("{share:.digits$} %"))
                })
                .collect();
            writeln!(text, "  {:46}{cells}", "  2008")?;
        }
    }
    writeln!(text)
}

/// Tool, what to call it, and which of the paper's first test it is.
const MARKERS: [(&str, &str, usize); 4] = [
    ("none", "getppid, markers compiled out", 0),
    ("static-branch", "getppid, two static branches", 1),
    ("immediate-value", "getppid, two immediate values and branches", 1),
    ("variable", "getppid, two variables and branches", 2),
];

/// How measurements after a walk are called, and what the walk is.
const WALKS: [(&str, &str); 4] =
    [("", "alone"), (".L2", "walk over L1, L2"), (".linear-L2", "linear walk"), (".L3", "walk over L3")];

fn getppid(figures: &Figures, text: &mut String) -> std::fmt::Result {
    let Some(alone) = figures.find("getppid.none") else { return Ok(()) };
    let walks = || WALKS.iter().filter(|(pressure, _)| figures.find(&format!("getppid.none{pressure}")).is_some());
    writeln!(
        text,
        "  getppid between two markers: {} runs of 100 iterations (fewer after a walk over L3), {}, mean ± σ of the runs\n",
        alone.n,
        figures.unit()
    )?;
    let heads: String = walks().map(|(_, what)| format!(" {what:>19}")).collect();
    writeln!(text, "  {:46}{heads}", "")?;
    let here = |text: &mut String, tool: &str, what: &str| {
        let cell = |(pressure, _): &(&str, &str)| said(figures.get(&format!("getppid.{tool}{pressure}")));
        let cells: String = walks().map(|walk| format!(" {:>19}", cell(walk))).collect();
        writeln!(text, "  {what:46}{cells}")
    };
    let then = |text: &mut String, what: &str, [alone, pressed]: [String; 2]| {
        writeln!(text, "  {:46} {alone:>19} {pressed:>19}", format!("  2008{what}"))
    };
    here(text, "timestamps", "reading timestamps")?;
    then(text, "", TIMESTAMPS_2008.map(|value| pair(value).to_string()))?;
    let mut previous = None;
    for (tool, what, of_2008) in MARKERS {
        if figures.find(&format!("getppid.{tool}")).is_none() {
            continue;
        }
        here(text, tool, what)?;
        if tool == "none" {
            then(text, ", with errors", GETPPID_2008.map(|value| pair(value).to_string()))?;
        }
        if previous != Some(of_2008) {
            then(text, ", first test", MARKED_2008[of_2008].map(|mean| format!("{mean:.2}")))?;
        }
        previous = Some(of_2008);
    }
    writeln!(text)
}

/// What two markers add to a getppid after a walk: by variables in memory and by static branches, as shares.
struct Shares {
    /// What the walk is over.
    after: &'static str,
    by_variable: Uncertain,
    by_branch: Uncertain,
}

/// The paper's own way: twice what a branch costs in the loop. Its processor did not overlap loads, so that the awaited one is meant.
/// And its walk was over all caches that it had; here those of L1 and L2 leave L3, so that over L3 is meant where there is one.
fn shares(figures: &Figures) -> Option<Shares> {
    let after = |pressure| Some((figures.call("none", pressure)?, pressure));
    let (call, pressure) = after(".L3").or_else(|| after(".L2"))?;
    let memory = figures.get("loop.variable-awaited")? - figures.get("loop.variable")?;
    let branch = figures.beyond("loop.static-branch")?;
    let after = if pressure == ".L3" { "L1, L2 and L3" } else { "L1 and L2" };
    Some(Shares { after, by_variable: memory * 2.0 / call, by_branch: branch * 2.0 / call })
}

fn arithmetic(figures: &Figures, text: &mut String) -> std::fmt::Result {
    let Some(shares) = shares(figures) else { return Ok(()) };
    let (memory, cache) = (figures.get("loop.variable-awaited"), figures.get("loop.variable"));
    let added = memory.zip(cache).map(|(memory, cache)| memory - cache);
    let twice = added.map(|added| added * 2.0);
    writeln!(text, "  The arithmetic of 2008, with this machine's figures ({})\n", figures.unit())?;
    writeln!(text, "    memory read                {} - {} = {}", said(memory), said(cache), said(added))?;
    writeln!(text, "    two                        2 × {} = {}", said(added), said(twice))?;
    for (pressure, what) in WALKS {
        let name = |tool: &str| format!("getppid.{tool}{pressure}");
        let (with, without) = (figures.get(&name("none")), figures.get(&name("timestamps")));
        let Some(call) = figures.call("none", pressure) else { continue };
        let what = format!("getppid, {what}");
        writeln!(text, "    {what:26} {} - {} = {call}", said(with), said(without))?;
        if !matches!(pressure, ".L2" | ".L3") {
            continue;
        }
        let share = |cost: Option<Uncertain>| cost.map_or_else(|| "–".into(), |cost| percent(cost / call));
        let line = |text: &mut String, what: &str, cost| writeln!(text, "      {what:50} {:>20}", share(cost));
        line(text, "two variables in memory, as in 2008", twice)?;
        line(text, "two static branches, likewise", figures.beyond("loop.static-branch").map(|cost| cost * 2.0))?;
        // What a variable costs that this very walk has driven out.
        let driven_out = figures.get(&format!("branch.variable{pressure}"));
        line(text, "two variables that the walk has driven out", driven_out.map(|cost| cost * 2.0))?;
        for (tool, what) in [("variable", "two variables"), ("static-branch", "two static branches")] {
            let measured = figures.call(tool, pressure).map(|with| with - call);
            // The call's own deviation is in the difference already.
            let measured = measured.map(|added| percent(added / exact(call))).unwrap_or_else(|| "–".into());
            writeln!(text, "      {:50} {measured:>20}", format!("{what}, measured around the call"))?;
        }
    }
    writeln!(
        text,
        "\n  Adding 2 markers that read memory costs {} of a getppid after a walk over {}, in the instruction\n  stream {}; \
         in 2008: {SHARE_2008} %.\n",
        percent(shares.by_variable),
        shares.after,
        percent(shares.by_branch)
    )
}

fn exact(value: Uncertain) -> Uncertain {
    Uncertain { stddev: 0.0, ..value }
}

/// The paper's tables, with a line break at the end; empty for another experiment.
pub(crate) fn tables(experiment: &Experiment) -> String {
    let figures = Figures::of(experiment);
    let mut text = String::new();
    if experiment.name == "imv" {
        // Writing to a String does not fail.
        let _ = loops(&figures, &mut text);
        let _ = rates(&figures, &mut text);
        let _ = getppid(&figures, &mut text);
        let _ = arithmetic(&figures, &mut text);
    }
    text
}

/// The paper's last sentence, as a note.
pub(crate) fn conclusion(experiment: &Experiment) -> Option<String> {
    let shares = shares(&Figures::of(experiment))?;
    Some(format!(
        "two markers that read memory add {} to a getppid after a walk over {}, two in the instruction stream {}, by Desnoyers's (2008) \
         arithmetic (there, on a Pentium 4: {SHARE_2008} %)",
        percent(shares.by_variable),
        shares.after,
        percent(shares.by_branch)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::measurement;

    fn experiment() -> Experiment {
        // The paper's own means and deviations, as cycles of a counter of 1 GHz.
        let two = |mean: f64, stddev: f64| {
            let half = stddev / 2f64.sqrt();
            [mean - half, mean + half]
        };
        let figures = [
            ("loop.none", 77.5044, 0.0),
            ("loop.static-branch", 85.3438, 0.0),
            ("loop.variable", 88.16, 1.35),
            ("loop.variable-awaited", 644.09, 11.39),
            ("getppid.timestamps", 150.92, 1.01),
            ("getppid.none", 1462.09, 18.87),
            ("getppid.timestamps.L2", 578.22, 269.51),
            ("getppid.none.L2", 17113.33, 1655.92),
        ];
        let measurements = figures.map(|(name, mean, stddev)| {
            let mut m = measurement(name, "ns", &two(mean, stddev));
            m.tsc_cycles = Some(m.median);
            m
        });
        Experiment { name: "imv".into(), measurements: measurements.into(), ..Experiment::default() }
    }

    #[test]
    fn the_arithmetic_is_that_of_2008() {
        let experiment = experiment();
        let text = tables(&experiment);
        for figure in ["555.93 ± 11.47", "1311.17 ± 18.90", "16535.11 ± 1677.71", "1111.86 ± 22.94", "6.72 ± 0.70 %"]
        {
            assert!(text.contains(figure), "{figure} in {text}");
        }
        assert!(
            conclusion(&experiment).unwrap().contains("add 6.72 ± 0.70 % to a getppid after a walk over L1 and L2")
        );
    }

    #[test]
    fn rates_are_shares_of_a_second() {
        let text = tables(&experiment());
        // 7.8394 cycles, 15,348 times a second, of 1e9; and in 2008 of 3e9.
        assert!(text.contains("0.0120 ± 0.0000 %") && text.contains("0.0040 %"), "{text}");
        assert!(text.contains("15348000/s"), "{text}");
    }

    #[test]
    fn another_experiment_has_none() {
        let other = Experiment { name: "event".into(), ..experiment() };
        assert!(tables(&other).is_empty());
        let empty = Experiment { name: "imv".into(), ..Experiment::default() };
        assert!(tables(&empty).is_empty() && conclusion(&empty).is_none());
    }
}
