//! Experiment `filter`: the cost of an event that a rule rejects or accepts, beside the filters of other tracers.
//!
//! ```text
//!   engines       dormouse, lttng-ust-filter (each overwrite, and discard with a live consumer), perfetto, tracing,
//!                 tracing-filter (tool `env-filter`)
//!   state         armed: no condition     rejected, accepted: by a condition     sampled: one in 100 is recorded (ours)
//!                 dormant: ours by a condition that is false for every event of the class, others' not enabled
//!   fields        u64     path: a u64, and the text that is asked for     span: a field of the span (EnvFilter)
//!   comparisons   1, or 10 joined by `and`, of which the last one rejects
//!   context       process and thread; of `armed u64` also two tags (ours) or the thread's name (LTTng-UST's procname),
//!                 in a session of its own
//!   sessions      1, or 2 that record the event, or 1-of-2: the second rejects it by a comparison (armed u64)
//!   pressure      hot; with one u64 also L2, for ours and LTTng-UST
//! ```
//! Each case is an event class of its own with a rule of its own, all in one process and one session, so that no two
//! processes are compared where one tracer is. The process is in a second session too, which has rules for the two
//! classes of several sessions only. Events of one kind have the same values in all cases; only the conditions differ.
//!
//! Verified in discard mode, in each session: accepted events arrive or are lost, and rejected ones do neither. The
//! engines check that the classes of rejected events are armed; our second session counts those that it rejects.
//! Sampled events are measured in overwrite mode only, because chance decides how many arrive.

use std::time::Duration;

use dormouse_abi::tag::TagNames;
use dormouse_lab_harness::Walk;
use dormouse_owner::{Mode, Options, Session};

use crate::engines::{Engines, PEERS, RunningPeer, SECOND_CASES};
use crate::experiments::event::{DISCARD_BUDGET_BYTES, counts, in_sessions, session_options};
use crate::plan::{self, Axis, Plan, Turn, slot};
use crate::{Experiment, Host, LabError, RunOptions};

const NAME: &str = "filter";
const ENGINE: &str = "dormouse-lab-engine-filter";

/// Rules of our sessions: patterns, each with the rest of its rule. LTTng-UST's filters are the same conditions in its
/// language ([`crate::engines::LTTNG_UST_FILTER`]). Numbers of events begin at 0 and stay far below all constants; texts
/// begin with `/var/`.
const RULES: [(&str, &str); 8] = [
    ("lab:armed_*", ""),
    ("lab:rejected_u64", "where number >= 1000000000000"),
    ("lab:accepted_u64", "where number < 1000000000000"),
    (
        "lab:rejected_u64_10",
        // Nine numbers of those that the last comparison accepts, so that one range does not decide.
        "where number != 2000000000001 and number != 2000000000003 and number != 2000000000005 and \
         number != 2000000000007 and number != 2000000000009 and number != 2000000000011 and \
         number != 2000000000013 and number != 2000000000015 and number != 2000000000017 and \
         number >= 1000000000000",
    ),
    ("lab:rejected_path", r#"where path ~ "/tmp/*""#),
    ("lab:accepted_path", r#"where path ~ "/var/*""#),
    ("lab:dormant_u64", r#"where event == "lab:none""#),
    ("lab:sampled_u64", "sample 1/100"),
];

/// Rules of our second sessions, in the order of [`SECOND_CASES`].
const SECOND_RULES: [(&str, &str); 2] =
    [("lab:armed_u64_both", ""), ("lab:armed_u64_first", "where number >= 1000000000000")];

/// Our sessions, in the order in which the engines are added: the mode, and the budget in bytes.
const SESSIONS: [(Mode, u64); 2] = [(Mode::Overwrite, 1 << 20), (Mode::Discard, DISCARD_BUDGET_BYTES)];

/// Peers: the name of the engine, and the tool's.
const TOOLS: [(&str, &str); 5] = [
    ("lttng-ust-filter", "lttng-ust"),
    (PROCNAME, "lttng-ust"),
    ("perfetto", "perfetto"),
    ("tracing", "tracing"),
    ("tracing-filter", "env-filter"),
];

/// Engine of LTTng-UST whose events have the thread's name, and ours whose events have two tags.
const PROCNAME: &str = "lttng-ust-procname";
const TAGGED: &str = "dormouse-tagged";
/// Tags of our sessions with tags.
const TAGS: [&str; 2] = ["request", "tenant"];

/// Notes on cases that are not measured, because the peer has no such condition.
const NOT_MEASURED: [&str; 2] = [
    "peer perfetto: rejected, accepted: not measured, it has no conditions on fields; a category is armed or dormant",
    "peer tracing: an event's own field: not measured, EnvFilter compares fields of spans only (env-filter)",
];

/// Lengths of a turn in µs: hot, and cold; for a full and a quick experiment.
const TURNS_US: [[u64; 2]; 2] = [[2_000, 10_000], [400, 1_500]];

/// Axes of names: `dormouse.rejected.u64.10-comparisons`, `lttng-ust.accepted.path.discard`.
const AXES: &[Axis] = &[
    Axis::plain("tool"),
    Axis::plain("state"),
    Axis::plain("fields"),
    Axis { name: "comparisons", silent: "1", shown: "{}-comparisons" },
    Axis { name: "sessions", silent: "1", shown: "{}-sessions" },
    Axis::plain("context"),
    Axis::without("pressure", "hot"),
    Axis::without("mode", "overwrite"),
];

/// State, fields, number of comparisons, and sessions.
type Case<'a> = [&'a str; 4];

/// Takes the name of a case apart: `STATE_FIELDS`, `STATE_FIELDS_COMPARISONS`, or `armed_FIELDS_both` and
/// `armed_FIELDS_first` in two sessions. Returns `None` if the experiment leaves it out: an engine of `event` has more
/// cases.
fn parse(name: &str) -> Option<Case<'_>> {
    let mut parts = name.split('_');
    let (state, fields, more) = (parts.next()?, parts.next()?, parts.next());
    let is_wanted = state != "empty" && ["u64", "path", "span"].contains(&fields);
    let [comparisons, sessions] = match (state, more) {
        ("armed", Some("both")) => ["", "2"],
        ("armed", Some("first")) => ["", "1-of-2"],
        ("armed", _) => ["", "1"],
        ("rejected" | "accepted", more) => [more.unwrap_or("1"), ""],
        _ => ["", ""],
    };
    is_wanted.then_some([state, fields, comparisons, sessions])
}

/// Returns the labels of a case; those without a value are left out.
fn labels<'a>(
    tool: &RunningPeer,
    [state, fields, comparisons, sessions]: Case<'a>,
    pressure: &'a str,
) -> Vec<(&'static str, &'a str)> {
    let name = TOOLS.iter().find(|(engine, _)| *engine == tool.name).map_or("dormouse", |(_, name)| *name);
    let context = match tool.name {
        PROCNAME if state != "empty" => "procname",
        TAGGED if state != "empty" => "2-tags",
        _ => "",
    };
    let all = [
        ("tool", name),
        ("state", state),
        ("fields", fields),
        ("comparisons", comparisons),
        ("sessions", sessions),
        ("context", context),
        ("pressure", pressure),
        ("mode", tool.mode.map_or("", Mode::name)),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// Whether a case is measured under this pressure.
fn is_wanted(tool: &RunningPeer, [state, fields, _, sessions]: Case<'_>, pressure: &str) -> bool {
    if [PROCNAME, TAGGED].contains(&tool.name) {
        return pressure == "hot" && [state, fields, sessions] == ["armed", "u64", "1"];
    }
    let has_filters = ["dormouse", "lttng-ust-filter"].contains(&tool.name);
    pressure == "hot" || pressure == "L2" && has_filters && fields == "u64" && tool.mode == Some(Mode::Overwrite)
}

/// Plans the cases of all tools.
fn slots(engines: &Engines, walks: &[(&'static str, Walk)]) -> Plan {
    let [hot, cold] = TURNS_US[usize::from(engines.options.is_quick)];
    let ours = ["dormouse", TAGGED].into_iter().flat_map(|name| SESSIONS.map(|(mode, _)| (name, mode)));
    let ours = ours.enumerate().map(|(engine, (name, mode))| RunningPeer { name, mode: Some(mode), engine });
    let ours: Vec<_> = ours.collect();
    let mut plan = Plan::new(AXES);
    for tool in ours.iter().chain(&engines.peers) {
        let engine = &engines.all[tool.engine];
        for (pressure, walk) in [("hot", Walk::None)].iter().chain(walks) {
            let lasting_us = match tool.mode {
                // Several cases record in each round, and the buffers have to hold what one of them writes.
                Some(Mode::Discard) => TURNS_US[1][0],
                _ if *pressure == "hot" => hot,
                _ => cold,
            };
            let turn = Turn::Lasting(Duration::from_micros(lasting_us));
            for name in &engine.description().cases {
                let case = parse(name).filter(|case| {
                    let is_verified = case[0] != "sampled" || tool.mode != Some(Mode::Discard);
                    is_verified && is_wanted(tool, *case, pressure)
                });
                let Some(case) = case else { continue };
                let mut add = |name: &str, case: Case<'_>, base| {
                    let slot = slot(tool.engine, name, *walk, turn);
                    plan.add(&engines.all, slot, &labels(tool, case, pressure), base)
                };
                // The empty loop of the same fields, if the engine has one.
                let own = format!("empty_{}", case[1]);
                let empty = if engine.has(&own) { (own.as_str(), case[1]) } else { ("empty", "") };
                let base = add(empty.0, ["empty", empty.1, "", ""], None);
                // Without an empty loop to subtract, there is no cost.
                if base.is_some() {
                    add(name, case, base);
                }
            }
        }
    }
    plan
}

/// Runs the experiment. A peer that is not installed is a note, not an error.
pub(super) fn run_filter(options: &RunOptions, host: &Host) -> Result<Experiment, LabError> {
    let mut engines = Engines::new(options)?;
    for has_tags in [false, true] {
        for (mode, budget_bytes) in SESSIONS {
            engines.add(move |dir| {
                let session = |name: &str, rules: &[(&str, &str)], cases| {
                    let rule = |(pattern, rest): &(&str, &str)| format!("{pattern} {rest}").trim_end().to_string();
                    let (rules, command_line) = (rules.iter().map(rule).collect(), ENGINE.into());
                    let options = session_options(&dir.join(name), mode, budget_bytes);
                    let tags = if has_tags { TagNames::new(TAGS).expect("names") } else { TagNames::NONE };
                    let options = Options { rules, command_line, tags, ..options };
                    Ok::<_, LabError>((Session::create(&options)?, options, cases))
                };
                let mut sessions = vec![session("first", &RULES, None)?];
                if !has_tags {
                    sessions.push(session("second", &SECOND_RULES, Some(SECOND_CASES))?);
                }
                in_sessions(sessions)
            })?;
        }
    }
    let is_tool = |name: &str| TOOLS.iter().any(|(engine, _)| *engine == name);
    let mut notes = engines.add_these(PEERS.into_iter().filter(|peer| is_tool(peer.name)));
    let walks = plan::walks_or_note(host, &mut notes);
    let slots = slots(&engines, &walks);
    let measured = slots.measure(&mut engines, options.rounds(12, 80), NAME)?;

    let found = engines.finish(host, &mut notes)?;
    notes.extend(counts(&found));
    notes.extend(NOT_MEASURED.iter().filter(|_| options.has_peers).map(ToString::to_string));
    Ok(plan::experiment(NAME, vec![measured], &RATIOS, notes, host))
}

/// Name, numerator and denominator of each ratio.
const RATIOS: [(&str, &str, &str); 33] = [
    ("rejected_vs_lttng_ust", "dormouse.rejected.u64", "lttng-ust.rejected.u64"),
    ("accepted_vs_lttng_ust", "dormouse.accepted.u64", "lttng-ust.accepted.u64"),
    ("rejected_prefix_vs_lttng_ust", "dormouse.rejected.path", "lttng-ust.rejected.path"),
    ("accepted_prefix_vs_lttng_ust", "dormouse.accepted.path", "lttng-ust.accepted.path"),
    (
        "rejected_10_comparisons_vs_lttng_ust",
        "dormouse.rejected.u64.10-comparisons",
        "lttng-ust.rejected.u64.10-comparisons",
    ),
    ("rejected_cold_vs_lttng_ust", "dormouse.rejected.u64.L2", "lttng-ust.rejected.u64.L2"),
    ("accepted_cold_vs_lttng_ust", "dormouse.accepted.u64.L2", "lttng-ust.accepted.u64.L2"),
    ("accepted_discard_vs_lttng_ust", "dormouse.accepted.u64.discard", "lttng-ust.accepted.u64.discard"),
    ("dormant_vs_lttng_ust", "dormouse.dormant.u64", "lttng-ust.dormant.u64"),
    ("rejected_vs_armed", "dormouse.rejected.u64", "dormouse.armed.u64"),
    ("accepted_vs_armed", "dormouse.accepted.u64", "dormouse.armed.u64"),
    ("sampled_vs_armed", "dormouse.sampled.u64", "dormouse.armed.u64"),
    ("sampled_vs_lttng_ust_armed", "dormouse.sampled.u64", "lttng-ust.armed.u64"),
    ("rejected_prefix_vs_armed", "dormouse.rejected.path", "dormouse.armed.path"),
    ("accepted_prefix_vs_armed", "dormouse.accepted.path", "dormouse.armed.path"),
    ("rejected_10_comparisons_vs_1", "dormouse.rejected.u64.10-comparisons", "dormouse.rejected.u64"),
    ("two_sessions_vs_lttng_ust", "dormouse.armed.u64.2-sessions", "lttng-ust.armed.u64.2-sessions"),
    ("two_sessions_vs_one", "dormouse.armed.u64.2-sessions", "dormouse.armed.u64"),
    ("one_of_two_sessions_vs_lttng_ust", "dormouse.armed.u64.1-of-2-sessions", "lttng-ust.armed.u64.1-of-2-sessions"),
    ("one_of_two_sessions_vs_one", "dormouse.armed.u64.1-of-2-sessions", "dormouse.armed.u64"),
    ("two_tags_vs_lttng_ust_procname", "dormouse.armed.u64.2-tags", "lttng-ust.armed.u64.procname"),
    ("two_tags_vs_none", "dormouse.armed.u64.2-tags", "dormouse.armed.u64"),
    ("lttng_ust_procname_vs_none", "lttng-ust.armed.u64.procname", "lttng-ust.armed.u64"),
    ("lttng_ust_two_sessions_vs_one", "lttng-ust.armed.u64.2-sessions", "lttng-ust.armed.u64"),
    ("lttng_ust_rejected_vs_armed", "lttng-ust.rejected.u64", "lttng-ust.armed.u64"),
    ("lttng_ust_accepted_vs_armed", "lttng-ust.accepted.u64", "lttng-ust.armed.u64"),
    ("lttng_ust_rejected_prefix_vs_armed", "lttng-ust.rejected.path", "lttng-ust.armed.path"),
    ("rejected_vs_perfetto_armed", "dormouse.rejected.u64", "perfetto.armed.u64"),
    ("dormant_vs_perfetto", "dormouse.dormant.u64", "perfetto.dormant.u64"),
    ("rejected_vs_env_filter", "dormouse.rejected.u64", "env-filter.rejected.span"),
    ("accepted_vs_env_filter", "dormouse.accepted.u64", "env-filter.accepted.span"),
    ("dormant_vs_env_filter", "dormouse.dormant.u64", "env-filter.dormant.u64"),
    ("env_filter_accepted_vs_tracing", "env-filter.accepted.span", "tracing.armed.u64"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::LTTNG_UST_FILTER;

    #[test]
    fn names_are_those_of_the_ratios() {
        let name = |tool: &str, mode, case: &str, pressure| {
            let name = TOOLS.iter().map(|(engine, _)| *engine).chain(["dormouse", TAGGED]).find(|name| *name == tool);
            let tool = RunningPeer { name: name.expect("a tool"), mode, engine: 0 };
            plan::name(AXES, &plan::labels(&labels(&tool, parse(case).expect("a case"), pressure)))
        };
        let overwrite = Some(Mode::Overwrite);
        for (found, wanted) in [
            (name("dormouse", overwrite, "armed_u64", "hot"), "dormouse.armed.u64"),
            (name("dormouse", overwrite, "rejected_u64_10", "hot"), "dormouse.rejected.u64.10-comparisons"),
            (name("dormouse", Some(Mode::Discard), "accepted_path", "hot"), "dormouse.accepted.path.discard"),
            (name("dormouse", Some(Mode::Discard), "armed_u64_both", "hot"), "dormouse.armed.u64.2-sessions.discard"),
            (name("lttng-ust-filter", overwrite, "armed_u64_first", "hot"), "lttng-ust.armed.u64.1-of-2-sessions"),
            (name("lttng-ust-filter", overwrite, "rejected_u64", "L2"), "lttng-ust.rejected.u64.L2"),
            (name(PROCNAME, overwrite, "armed_u64", "hot"), "lttng-ust.armed.u64.procname"),
            (name(TAGGED, overwrite, "armed_u64", "hot"), "dormouse.armed.u64.2-tags"),
            (name("perfetto", None, "dormant_u64", "hot"), "perfetto.dormant.u64"),
            (name("tracing-filter", None, "rejected_span", "hot"), "env-filter.rejected.span"),
        ] {
            assert_eq!(found, wanted);
        }
        for other in ["empty", "empty_path", "empty_sites_10", "armed_none", "armed_str32", "dormant_sites_10"] {
            assert_eq!(parse(other), None, "{other}");
        }
        plan::assert_different_names(RATIOS.iter().map(|(name, ..)| *name));
    }

    #[test]
    fn lttng_is_asked_the_same() {
        let of_lttng = |rest: &str| rest.trim_start_matches("where ").replace(" and ", " && ").replace(" ~ ", " == ");
        let ours = ["lab:dormant_u64", "lab:sampled_u64"];
        for (rules, events) in
            [(&RULES[..], LTTNG_UST_FILTER.events), (&SECOND_RULES, LTTNG_UST_FILTER.events_of_second)]
        {
            let asked = rules.iter().filter(|(pattern, _)| !ours.contains(pattern));
            let asked: Vec<_> = asked.map(|(pattern, rest)| (*pattern, of_lttng(rest))).collect();
            let theirs = events.iter().map(|(pattern, filter)| (*pattern, filter.to_string()));
            assert_eq!(asked, theirs.collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_rule_has_a_case() {
        for (engine, has_samples) in [("engines/src/filter.rs", true), ("peers/c/lttng_ust_filter.c", false)] {
            let path = format!("{}/{engine}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let rules = RULES
                .iter()
                .chain(&SECOND_RULES)
                .filter(|(pattern, rest)| !pattern.ends_with('*') && (has_samples || !rest.starts_with("sample")));
            for (pattern, rest) in rules {
                let case = pattern.strip_prefix("lab:").expect("the provider");
                assert!(text.contains(&format!("\"{case}\"")), "{path}: {case} {rest}");
            }
        }
        assert_eq!(SECOND_RULES.map(|(pattern, _)| pattern), SECOND_CASES.map(|case| format!("lab:{case}")));
    }
}
