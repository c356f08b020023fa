//! Results as an experiment would write them, from numbers that are the same every time.

use dormouse_lab::statistics::{self, measurement};
use dormouse_lab::{Experiment, Host, Labels, Measurement, Ratio, Report, SCHEMA};

fn ratio(name: &str, numerator: &[f64], denominator: &[f64]) -> Ratio {
    statistics::ratio(name, numerator, denominator).expect("no denominator here comes near zero")
}

/// SplitMix64 generator.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns rounds near `center`: a bell curve, a slow start, and occasionally a neighbour.
    fn rounds(&mut self, center: f64, n: usize) -> Vec<f64> {
        let round = |index: usize| {
            let bell = (0..6).map(|_| self.unit()).sum::<f64>() / 3.0 - 1.0;
            let start = if index < 4 { 0.06 / (index + 1) as f64 } else { 0.0 };
            let neighbour = if self.unit() > 0.97 { self.unit() * 0.8 } else { 0.0 };
            center * (1.0 + 0.05 * bell + start + neighbour)
        };
        (0..n).map(round).collect()
    }
}

pub fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

/// Tools with the cost of an armed event and of a dormant one.
const TOOLS: [(&str, f64, Option<f64>); 10] = [
    ("dormouse", 14.5, Some(0.21)),
    ("lttng-ust", 152.0, Some(0.98)),
    ("tracy", 24.0, Some(1.4)),
    ("fastrace", 41.0, Some(2.2)),
    ("tracing", 310.0, Some(1.1)),
    ("perfetto", 480.0, Some(1.9)),
    ("usdt", 1240.0, Some(0.28)),
    ("floor", 7.1, None),
    ("rdtsc", 6.6, None),
    ("empty", 0.3, None),
];

fn event() -> Experiment {
    let mut random = Random(1);
    let mut measurements: Vec<Measurement> = Vec::new();
    let base = [("fields", "u64"), ("threads", "1"), ("pressure", "hot"), ("mode", "overwrite"), ("sites", "1")];
    let mut add = |tool: &str, state: &str, change: Option<(&str, &str)>, cost: f64| {
        let mut labels = labels(&base);
        labels.extend(self::labels(&[("tool", tool), ("state", state)]));
        labels.extend(change.map(|(axis, value)| (axis.to_string(), value.to_string())));
        let suffix = change.map(|(axis, value)| format!(".{axis}-{value}")).unwrap_or_default();
        let mut m = measurement(&format!("{tool}.{state}{suffix}"), "ns", &random.rounds(cost, 60));
        m.tsc_cycles = Some(m.median * 2.45);
        m.counters = [("instructions".to_string(), cost * 3.0), ("branch_misses".to_string(), 0.002)].into();
        m.labels = labels;
        measurements.push(m);
    };
    for (tool, armed, dormant) in TOOLS {
        for (state, cost) in [("armed", Some(armed)), ("dormant", dormant)] {
            let Some(cost) = cost else { continue };
            add(tool, state, None, cost);
            let fields = [("none", 0.9), ("ints3", 1.12), ("str32", 1.6)];
            for (value, factor) in fields.into_iter().filter(|_| dormant.is_some()) {
                let factor = if state == "armed" { factor } else { 1.0 };
                add(tool, state, Some(("fields", value)), cost * factor);
            }
            let pressure = [("L1", 1.1), ("L2", 1.5), ("L3", 2.4), ("linear-L2", 1.2)];
            let is_under_pressure = ["dormouse", "lttng-ust", "tracy", "tracing"].contains(&tool);
            for (value, factor) in pressure.into_iter().filter(|_| is_under_pressure) {
                add(tool, state, Some(("pressure", value)), cost * factor);
            }
            if is_under_pressure {
                add(tool, state, Some(("threads", "2")), cost * 1.07);
            }
        }
    }
    add("dormouse", "armed", Some(("mode", "discard")), 14.9);
    add("lttng-ust", "armed", Some(("mode", "discard")), 161.0);
    add("dormouse", "dormant", Some(("sites", "10")), 0.22);
    add("dormouse", "dormant", Some(("sites", "1000")), 0.81);
    let samples = |name: &str| &measurements.iter().find(|m| m.name == name).expect("it was added").samples;
    let armed = samples("dormouse.armed");
    let ratios = vec![
        ratio("armed_vs_lttng_ust", armed, samples("lttng-ust.armed")),
        ratio("armed_vs_tracy", armed, samples("tracy.armed")),
        ratio("armed_vs_floor", armed, samples("floor.armed")),
        ratio("dormant_vs_lttng_ust", samples("dormouse.dormant"), samples("lttng-ust.dormant")),
        ratio("discard_vs_overwrite", samples("dormouse.armed.mode-discard"), &Random(3).rounds(14.9, 60)),
    ];
    let notes = [
        "each case less the empty loop of the same round; 1000000 iterations a round, one thread on processor 1",
        "noisy neighbour: the processor was taken away for 1.8 % of the time of tracing_armed",
        "outliers: 3 of 60 rounds of perfetto_armed lie far from the others; stop what else runs and measure again",
        "hardware counters not available: perf_event_paranoid is 4",
    ];
    Experiment {
        name: "event".into(),
        measurements,
        ratios,
        notes: notes.map(String::from).into(),
        ..Experiment::default()
    }
}

fn compile_job() -> Experiment {
    let mut random = Random(2);
    let ways = [
        ("none", 12.1),
        ("dormant", 12.12),
        ("armed-overwrite", 12.6),
        ("armed-discard", 12.8),
        ("lttng-ust-dormant", 12.3),
        ("lttng-ust", 15.9),
    ];
    let measure = |(way, seconds): (&str, f64)| {
        let mut m = measurement(way, "s", &random.rounds(seconds, 12));
        m.labels = labels(&[("way", way)]);
        m
    };
    let measurements: Vec<Measurement> = ways.map(measure).into();
    let against = |name: &str, way: usize| ratio(name, &measurements[way].samples, &measurements[0].samples);
    let ratios =
        vec![against("dormant_vs_none", 1), against("armed_overwrite_vs_none", 2), against("lttng_ust_vs_none", 5)];
    let notes = vec![
        "make -j2 of Lua, the ways in turn".to_string(),
        "not steady: the wall time falls from round to round".into(),
    ];
    Experiment { name: "compile-job".into(), measurements, ratios, notes, ..Experiment::default() }
}

/// Returns a report with all parts that experiments write.
pub fn full() -> Report {
    // Its paper has statements, but nothing here decides them.
    let of_a_paper = Experiment { name: "imv".into(), ..Experiment::default() };
    Report { schema: SCHEMA, host: Host::read(), experiments: vec![event(), compile_job(), of_a_paper] }
}

/// Returns malformed results, all of which must give a page.
pub fn odd() -> Report {
    let one = |name: &str, samples: &[f64]| measurement(name, "ns", samples);
    let experiment = |name: &str, measurements: Vec<Measurement>| Experiment {
        name: name.into(),
        measurements,
        ..Experiment::default()
    };
    let mut no_numbers = one("no numbers", &[f64::NAN, f64::INFINITY, 1.0, 2.0]);
    (no_numbers.median, no_numbers.mean, no_numbers.ci95) =
        (f64::NAN, f64::INFINITY, Some([f64::NEG_INFINITY, f64::NAN]));
    let mut infinite = one("an endless interval", &[1.0, 2.0, 3.0]);
    infinite.ci95 = Some([f64::NEG_INFINITY, f64::INFINITY]);
    let summed = Measurement { samples: Vec::new(), ..one("summed", &[1.0, 2.0, 3.0]) };
    let negative: Vec<f64> = (0..20).map(|number| f64::from(number) / 10.0 - 1.0).collect();
    let mut odd_ratios = experiment("odd ratios", vec![one("one", &[1.0])]);
    let with =
        |name: &str, value: f64, ci95: [f64; 2]| Ratio { name: name.into(), value, ci95: Some(ci95), means: None };
    odd_ratios.ratios = vec![
        with("nan_vs_nan", f64::NAN, [f64::NAN; 2]),
        with("endless", f64::INFINITY, [1.0, f64::INFINITY]),
        with("negative_vs_one", -0.3, [-1.0, 0.2]),
        with("one_vs_one", 1.0, [1.0, 1.0]),
    ];
    let experiments = vec![
        experiment("nothing", vec![]),
        experiment("no rounds", vec![summed, Measurement::exact("counted", "bytes", 7.0)]),
        experiment("one round", vec![one("one", &[5.0])]),
        experiment("equal rounds", vec![one("equal", &[5.0; 30]), one("zeroes", &[0.0; 30])]),
        experiment(
            "far",
            vec![one("far", &[&[1.0, 1.01, 1.02, 1.03].repeat(10)[..], &[1e9]].concat()), one("negative", &negative)],
        ),
        experiment("no numbers", vec![no_numbers, infinite]),
        odd_ratios,
    ];
    Report { schema: SCHEMA, host: Host::read(), experiments }
}

/// Text that tries to run a script on the reader's machine.
pub const HOSTILE: &str = concat!(
    "</script><script>window.hit = 1</script><img src=x onerror=\"window.hit = 2\">",
    "<a href='https://hit.invalid'>'\"><b>&lt;i&gt;{{%{x}<!--"
);

/// Returns a report with hostile text in every text field.
pub fn hostile() -> Report {
    let text = |text: &str| format!("{text} {HOSTILE}");
    let case = |tool: &str, fields: &str, threads: &str| {
        let mut m = measurement(&text(&format!("{tool} {fields} {threads}")), &text("ns"), &Random(4).rounds(10.0, 20));
        m.labels = labels(&[("tool", tool), ("state", "armed"), ("threads", threads)]);
        m.labels.insert("fields".into(), text(fields));
        m.labels.insert(text("label"), HOSTILE.into());
        m.counters.insert(text("counter"), 1.0);
        m
    };
    let measurements = vec![
        case("a", "x", "1"),
        case("a", "y", "1"),
        case("b", "x", "1"),
        case("a", "x", "2"),
        case(HOSTILE, "y", "1"),
    ];
    let ratios = vec![Ratio { name: text("a_vs_b"), value: 0.5, ci95: Some([0.4, 0.6]), means: Some([0.51, 0.02]) }];
    let notes = vec![text("noisy neighbour"), text("counters not available"), text("note")];
    let experiment = Experiment { name: text("event"), measurements, ratios, notes, ..Experiment::default() };
    let mut host = serde_json::to_value(Host::read()).expect("the host is JSON");
    for member in host.as_object_mut().expect("the host has members").values_mut().filter(|member| member.is_string()) {
        *member = HOSTILE.into();
    }
    Report { schema: SCHEMA, host: serde_json::from_value(host).expect("still a host"), experiments: vec![experiment] }
}
