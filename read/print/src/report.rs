//! Answers as text for people, in aligned columns.

use std::io::{self, Write};

use dormouse_abi::text::printable;
use dormouse_analysis::{
    ClassSamples, Diff, Distribution, Key, KeyValue, LatencyReport, Number, PERCENTILES, PairFields, Report, Rest, Row,
};
use dormouse_ctf::stats::LossPlaces;
use dormouse_ctf::time::since_ns;

use crate::events::{ClockFormat, ClockText};
use crate::loss;
use crate::sample;
use crate::units::{Unit, duration, figure};

/// How a report looks.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// Marks of headings.
    pub marks: Marks<'a>,
    /// Time to which others are relative, in nanoseconds since the epoch, and a line that says what it is.
    pub zero: Option<(i64, &'a str)>,
    /// Offset of local time in seconds east of UTC, for a time in seconds since the epoch.
    pub utc_offset_s: &'a dyn Fn(i64) -> i32,
    /// Command that prints what happened during the pairs, without the number of the slowest.
    pub view: &'a str,
}

impl Look<'_> {
    pub(crate) fn time(&self, format: ClockFormat, ns: i64) -> String {
        let mut text = Vec::new();
        ClockText::new(format, self.utc_offset_s).put(ns, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Text before and after headings; on a terminal, the sequences that make them bold.
pub type Marks<'a> = (&'a str, &'a str);

/// Writes a table. Columns are right-aligned, except the last `texts` ones.
fn table(
    out: &mut dyn Write,
    (on, off): Marks<'_>,
    heads: &[&str],
    texts: usize,
    rows: &[Vec<String>],
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let heads: Vec<String> = heads.iter().map(|head| head.to_string()).collect();
    let width = |column: usize| rows.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    writeln!(out)?;
    for (index, row) in [&heads].into_iter().chain(rows).enumerate() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = if column < row.len() - texts { format!("{cell:>width$}") } else { format!("{cell:width$}") };
            line += &cell;
            line += "  ";
        }
        let line = line.trim_end();
        if index == 0 { writeln!(out, "{on}{line}{off}")? } else { writeln!(out, "{line}")? }
    }
    Ok(())
}

/// Returns the unit of a report's values.
fn unit_of(report: &Report) -> Option<Unit> {
    match report.measure {
        "latency" => Some(Unit::Time(1.0)),
        _ => report.field.as_deref().and_then(Unit::of_field),
    }
}

fn measured(value: Option<f64>, unit: Option<Unit>) -> String {
    match (value, unit) {
        (None, _) => "-".into(),
        (Some(value), Some(unit)) => unit.text(value),
        (Some(value), None) => figure(value),
    }
}

fn number(value: Option<Number>, unit: Option<Unit>) -> String {
    match (value, unit) {
        (Some(Number::Whole(value)), None) => value.to_string(),
        (Some(Number::Whole(value)), Some(unit)) => unit.text(value as f64),
        (Some(Number::Real(value)), unit) => measured(Some(value), unit),
        (None, _) => "-".into(),
    }
}

fn rate(value: Option<f64>) -> String {
    value.map_or("-".into(), figure)
}

fn left_out(out: &mut dyn Write, rest: Option<Rest>, what: &str) -> io::Result<()> {
    match rest {
        Some(Rest { groups, count }) => writeln!(out, "… and {groups} more, {count} {what}"),
        None => Ok(()),
    }
}

/// Returns a part of a key as text.
pub(crate) fn shown(value: &KeyValue) -> String {
    match value {
        KeyValue::Unknown => "unknown".into(),
        KeyValue::Integer(value) => value.to_string(),
        KeyValue::Hexadecimal(value) => format!("0x{value:X}"),
        KeyValue::Real(bits) => f64::from_bits(*bits).to_string(),
        KeyValue::Text(text) => printable(text),
    }
}

/// Returns the name of what the report counts.
fn counted(report: &Report) -> &'static str {
    match report.measure {
        "field" => "values",
        "latency" => "pairs",
        _ => "events",
    }
}

/// Writes a report.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_report(report: &Report, out: &mut dyn Write, look: Look<'_>) -> io::Result<()> {
    let marks = look.marks;
    write_head(report, out)?;
    let is_relative = report.latency.is_some() || report.interval_ns.is_some();
    if let Some((_, line)) = look.zero.filter(|_| is_relative) {
        writeln!(out, "          {line}")?;
    }
    let zero_ns = look.zero.map(|(ns, _)| ns);
    write_rows(report, zero_ns, out, marks)?;
    if let Some(latency) = &report.latency {
        write_latency(latency, out, look)?;
    }
    let errors = report.rows.iter().chain(&report.other).filter_map(|row| row.values.as_deref());
    write_notes(report, out, errors)?;
    if let Some(note) = sample_note(report, is_scaled(report)) {
        writeln!(out, "\n{note}")?;
    }
    write_places(out, marks, &report.lost.places)?;
    report.warnings.iter().try_for_each(|warning| writeln!(out, "\nwarning: {}", printable(warning)))
}

fn write_head(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "events    {}, {}/s, {} bytes", report.events, rate(report.events_per_s), report.bytes)?;
    out.write_all(loss::summary(report.lost.events, &report.lost.possible).as_bytes())?;
    writeln!(out, "duration  {:.6} s", report.span.map_or(0.0, |span| span.duration_ns as f64 / 1e9))?;
    let Some(latency) = &report.latency else { return Ok(()) };
    let pairs: u64 = report.rows.iter().chain(&report.other).map(|row| row.count).sum::<u64>()
        + report.rest.map_or(0, |rest| rest.count);
    writeln!(out, "pairs     {pairs}; alone: begins {}, ends {}", latency.unpaired_begins, latency.unpaired_ends)?;
    match &latency.pairing_note {
        Some(note) => writeln!(out, "          {}", printable(note))?,
        None if latency.paired_by.is_empty() => {}
        None => writeln!(out, "          paired by {}", printable(&latency.paired_by.join(", ")))?,
    }
    let others = [
        ("not selected by the conditions", latency.pairs_not_selected),
        ("left out, because events were lost between begin and end", latency.pairs_across_losses),
        ("events without thread or key", latency.events_without_key),
        ("begins that were not followed, because too many others were open", latency.begins_not_followed),
        ("events lost at times that nobody knows, so pairs can be wrong", report.lost.unplaced),
    ];
    for (what, count) in others.into_iter().filter(|(_, count)| *count > 0) {
        writeln!(out, "          {what}: {count}")?;
    }
    Ok(())
}

fn write_rows(report: &Report, zero_ns: Option<i64>, out: &mut dyn Write, marks: Marks<'_>) -> io::Result<()> {
    let is_measured = report.measure != "count";
    let is_scaled = is_scaled(report);
    let heads: &[&str] = match (report.measure, is_scaled) {
        ("count", false) => &["EVENTS", "EVENTS/S", "BYTES"],
        ("count", true) => &["EVENTS", "ESTIMATED", "ERROR", "EVENTS/S", "BYTES"],
        (_, false) => &["COUNT", "SUM", "MIN", "MEAN"],
        (_, true) => &["COUNT", "ESTIMATED", "ERROR", "SUM", "ESTIMATED SUM", "MIN", "MEAN"],
    };
    let mut heads: Vec<String> = heads.iter().map(|head| head.to_string()).collect();
    if is_measured {
        heads.extend(PERCENTILES.map(|(_, name)| format!("P{name}")));
        heads.push("MAX".into());
    }
    let texts = report.by.len();
    heads.extend(
        report
            .by
            .iter()
            .map(|name| if name == "interval_begin_ns" { "FROM".into() } else { printable(name).to_uppercase() }),
    );
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut rows: Vec<Vec<String>> = report.rows.iter().map(|row| cells(report, row, zero_ns)).collect();
    if let Some(other) = &report.other {
        let mut cells = cells(report, other, zero_ns);
        cells.extend((0..texts).map(|index| if index == 0 { "(other)".to_string() } else { String::new() }));
        rows.push(cells);
    }
    table(out, marks, &heads, texts, &rows)?;
    left_out(out, report.rest, counted(report))
}

/// Whether rows have estimates, because events were left out by samples.
fn is_scaled(report: &Report) -> bool {
    !report.samples.is_empty() && report.measure != "latency"
}

/// Maximum number of classes in a note about samples.
const SAMPLED_MAX: usize = 4;

/// Returns a note that the trace is a sample, if it is one.
fn sample_note(report: &Report, is_scaled: bool) -> Option<String> {
    let of_class = |class: &ClassSamples| printable(&format!("{}: {}", class.class, sample::clauses(&class.samples)));
    let mut classes: Vec<String> = report.samples.iter().take(SAMPLED_MAX).map(of_class).collect();
    match report.samples.len() {
        0 => return None,
        count if count > SAMPLED_MAX => classes.push("…".into()),
        _ => {}
    }
    let pairs = match report.measure {
        "latency" => "; pairs are those of which both events were recorded",
        _ => "",
    };
    Some(match is_scaled {
        true => format!("{}\n      ({})", sample::NOTE, classes.join("; ")),
        false => {
            format!("note: the trace is a sample: counts are those of recorded events ({}){pairs}", classes.join("; "))
        }
    })
}

fn cells(report: &Report, row: &Row, zero_ns: Option<i64>) -> Vec<String> {
    let (mut cells, is_scaled) = (vec![row.count.to_string()], is_scaled(report));
    if is_scaled {
        cells.extend([row.estimated, row.estimated_error].map(sample::estimate));
    }
    if report.measure == "count" {
        cells.extend([rate(row.events_per_s), row.bytes.to_string()]);
    } else {
        let (values, unit) = (row.values.as_deref(), unit_of(report));
        cells.push(number(values.and_then(Distribution::sum), unit));
        if is_scaled {
            cells.push(measured(row.estimated_sum, unit));
        }
        cells.push(number(values.and_then(Distribution::min), unit));
        cells.push(measured(values.and_then(Distribution::mean), unit));
        cells.extend(
            PERCENTILES.map(|(percentile, _)| measured(values.and_then(|values| values.percentile(percentile)), unit)),
        );
        cells.push(number(values.and_then(Distribution::max), unit));
    }
    cells.extend(names(&row.key, zero_ns));
    cells
}

fn names(key: &Key, zero_ns: Option<i64>) -> Vec<String> {
    let begin = i128::from(zero_ns.unwrap_or(0));
    let name = |(name, value): &(String, KeyValue)| match value {
        KeyValue::Integer(ns) if name == "interval_begin_ns" => {
            format!("+{:.6} s", (ns - begin) as f64 / 1e9)
        }
        value => shown(value),
    };
    key.0.iter().map(name).collect()
}

fn write_notes<'d>(
    report: &Report,
    out: &mut dyn Write,
    values: impl Iterator<Item = &'d Distribution>,
) -> io::Result<()> {
    if let Some(other) = &report.other {
        writeln!(
            out,
            "\nnote: there are more groups than {}; (other) has {} {} of the rest. --groups-max tells more apart",
            report.rows.len(),
            other.count,
            counted(report)
        )?;
    }
    if report.measure == "count" || report.rows.is_empty() {
        return Ok(());
    }
    let (mut is_wide, mut not_finite) = (false, 0);
    for values in values {
        is_wide |= values.relative_error().is_none();
        not_finite += values.not_finite();
    }
    let of = if report.samples.is_empty() { "" } else { " for recorded events" };
    writeln!(
        out,
        "\nnote: percentiles are within 1 % of the value that has their rank; all other figures are exact{of}"
    )?;
    if is_wide {
        writeln!(
            out,
            "note: some values are more than 10^35 times others: low percentiles of these groups can be wrong"
        )?;
    }
    if not_finite > 0 {
        writeln!(out, "note: {not_finite} values are no numbers or infinite, and are left out")?;
    }
    Ok(())
}

fn write_latency(latency: &LatencyReport, out: &mut dyn Write, look: Look<'_>) -> io::Result<()> {
    let is_keyed = latency.slowest.iter().any(|pair| !pair.key.is_empty());
    let has_fields = latency.slowest.iter().any(|pair| pair.fields.iter().any(Option::is_some));
    let rows = latency.slowest.iter().map(|pair| {
        let mut cells = vec![
            duration(pair.latency_ns as f64),
            look.time(ClockFormat::TimeOfDay, pair.begin_ns),
            look.zero.map_or("unknown".into(), |(zero_ns, _)| since(pair.begin_ns, zero_ns)),
            pair.tid.map_or("unknown".into(), |tid| tid.to_string()),
            printable(&pair.process),
        ];
        if is_keyed {
            cells.push(pair.key.iter().map(shown).collect::<Vec<_>>().join(", "));
        }
        if has_fields {
            cells.push(pair_text(&pair.fields.each_ref().map(Option::as_ref)));
        }
        cells
    });
    let heads = ["SLOWEST", "BEGIN", "RELATIVE", "THREAD", "PROCESS"].into_iter();
    let heads = heads.chain(is_keyed.then_some("KEY")).chain(has_fields.then_some("FIELDS"));
    let heads: Vec<&str> = heads.collect();
    table(out, look.marks, &heads, heads.len() - 4, &rows.collect::<Vec<_>>())?;
    match latency.slowest.len() {
        0 => Ok(()),
        count => writeln!(out, "\nnote: `{} --slowest {count}` prints what happened during them", look.view),
    }
}

/// Returns the seconds from one time to another, as `--since` takes them. Times are in nanoseconds since the epoch.
pub(crate) fn since(ns: i64, zero_ns: i64) -> String {
    let ns = since_ns(ns, zero_ns);
    format!("+{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Returns the fields of a pair: those of the begin, and those of the end that have another name or value.
pub(crate) fn pair_text(ends: &[Option<&PairFields>; 2]) -> String {
    let of = |fields: Option<&PairFields>| fields.map_or(Vec::new(), |fields| fields.texts.clone());
    let begin = of(ends[0]);
    let end: Vec<_> = of(ends[1]).into_iter().filter(|field| !begin.contains(field)).collect();
    let text = |fields: &[(String, String)]| {
        let texts = fields.iter().map(|(name, value)| format!("{}={}", printable(name), printable(value)));
        texts.collect::<Vec<_>>().join(" ")
    };
    if end.is_empty() { text(&begin) } else { format!("{} → {}", text(&begin), text(&end)) }
}

fn write_places(out: &mut dyn Write, marks: Marks<'_>, losses: &LossPlaces) -> io::Result<()> {
    table(out, marks, &loss::HEADS, 1, &loss::rows(losses))?;
    if losses.more > 0 { writeln!(out, "… and {} more", losses.more) } else { Ok(()) }
}

/// Writes a comparison. `traces`: names of the two traces.
///
/// # Errors
/// Writing to `out` failed.
pub fn write_diff(diff: &Diff, out: &mut dyn Write, marks: Marks<'_>, traces: [&str; 2]) -> io::Result<()> {
    for (letter, (name, report)) in ["A", "B"].into_iter().zip(traces.into_iter().zip([&diff.a, &diff.b])) {
        if letter == "B" {
            writeln!(out)?;
        }
        writeln!(out, "{letter}: {}", printable(name))?;
        write_head(report, out)?;
        if let Some(note) = sample_note(report, false) {
            writeln!(out, "{note}")?;
        }
        report.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {}", printable(warning)))?;
    }
    let mut heads: Vec<String> = ["A", "B", "B/A", "FROM", "TO"].map(String::from).to_vec();
    heads.extend(["B IS".into(), "FIGURE".into()]);
    heads.extend(diff.a.by.iter().map(|name| printable(name).to_uppercase()));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let mut rows = Vec::new();
    for ratios in &diff.ratios {
        for figure in &ratios.figures {
            let unit = if figure.name == "events_per_s" { None } else { unit_of(&diff.a) };
            let end = |index: usize| match figure.ci95 {
                Some(ends) => ends[index].map_or("∞".into(), self::figure),
                None => "-".into(),
            };
            let mut cells =
                vec![measured(figure.a, unit), measured(figure.b, unit), rate(figure.ratio), end(0), end(1)];
            let name = if figure.name == "events_per_s" { "events/s" } else { figure.name };
            cells.extend([figure.verdict.to_string(), name.to_string()]);
            cells.extend(names(&ratios.key, None));
            rows.push(cells);
        }
    }
    table(out, marks, &heads, 2 + diff.a.by.len(), &rows)?;
    left_out(out, diff.rest, counted(&diff.a))?;
    for report in [&diff.a, &diff.b] {
        if let Some(other) = &report.other {
            writeln!(
                out,
                "\nnote: there are more groups than are told apart; {} {} of the rest are not compared. --groups-max tells more apart",
                other.count,
                counted(&diff.a)
            )?;
        }
    }
    writeln!(
        out,
        "\nnote: FROM and TO are the interval of 95 % of B/A; where it has 1 in it, a difference cannot be told. Of 20 rows that do not differ, one is likely to seem so"
    )
}
