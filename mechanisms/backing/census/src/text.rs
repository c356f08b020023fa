//! A census as text for people.
//!
//! ```text
//!   NAME                                 size  unbacked   zero   small  huge  swapped
//!   .bss of frames                        16M      4.0M   6.0M    6.0M     –        –
//!   …
//!   all                                   …
//!
//!   on the zero page: read, and never written
//!   4.0M of 4.0M  read_only_of_zeroes in frames
//! ```
//!
//! And the result of a command:
//! ```text
//!   read from the zero page:
//!     ZERO AT END   SIZE  SHARE  BUFFER
//!     4.0M   4.0M   4.0M   98 %  frame in codec            ← found
//!   …
//! ```

use std::fmt::Write;
use std::path::Path;

use crate::census::Row;
use crate::fix::{Change, Comparison, Fixed};
use crate::machine::{MachineCensus, ZeroProcess};
use crate::{
    Buffer, BufferName, Census, CodePlace, Counts, LeftAlone, Mapping, Name, Pages, Populated, Run, Sample, SourceLine,
    Speed, Verdict,
};

/// Columns of figures, and the width of each.
const COLUMNS: [&str; 6] = ["size", "unbacked", "zero", "small", "huge", "swapped"];
const COLUMN_WIDTH: usize = 10;
/// Minimum width of the name column.
const NAME_WIDTH_MIN: usize = 24;
/// Maximum number of variables, buffers and processes that are listed.
const VARIABLES_MAX: usize = 20;
/// Minimum size of a listed buffer. Smaller buffers are listed only if they were found.
const LISTED_BYTES_MIN: u64 = 16 << 10;
/// Number of bars of a series over time.
const BARS: usize = 48;

/// Returns the census as a table of at most `columns` columns, with a line break at its end. Neighbours with the same
/// name are one line, or with `is_each` a line each.
pub fn table(census: &Census, columns: usize, is_each: bool) -> String {
    let name_width = columns.saturating_sub(COLUMNS.len() * COLUMN_WIDTH).max(NAME_WIDTH_MIN);
    let mut text = format!("{}, process {}\n\n{:name_width$}", census.command, census.pid, "");
    // Writing to a String does not fail.
    for column in COLUMNS {
        let _ = write!(text, "{column:>COLUMN_WIDTH$}");
    }
    text.push('\n');
    let rows = census.rows(|mapping| match mapping {
        Mapping { start, access, name, .. } if is_each => format!("{start:x} {access} {name}"),
        Mapping { name, .. } => name.to_string(),
    });
    let size = rows.iter().map(|row| row.size).sum();
    let all = Row { name: "all".into(), addresses: 0..0, size, pages: census.total };
    for Row { name, size, pages: Pages { unbacked, zero, small, huge, swapped, .. }, .. } in rows.iter().chain([&all]) {
        let name = shortened(name, name_width - 1);
        let _ = write!(text, "{name:name_width$}");
        for bytes in [*size, *unbacked, *zero, *small, *huge, *swapped] {
            let _ = write!(text, "{:>COLUMN_WIDTH$}", bytes_text(bytes));
        }
        text.push('\n');
    }
    if !census.zero_variables.is_empty() {
        text.push_str("\non the zero page: read, and never written\n");
        for variable in census.zero_variables.iter().take(VARIABLES_MAX) {
            let (zero, size) = (bytes_text(variable.zero), bytes_text(variable.size));
            let _ = writeln!(text, "{zero:>8} of {size:>6}  {} in {}", variable.name, file_name(&variable.path));
        }
        more(&mut text, census.zero_variables.len());
    }
    unseen(&mut text, &census.unseen);
    text
}

fn unseen(text: &mut String, lines: &[String]) {
    if !lines.is_empty() {
        text.push('\n');
        lines.iter().for_each(|line| {
            let _ = writeln!(text, "not seen: {line}");
        });
    }
}

/// Returns the result of a command, in at most `columns` columns: with samples, the buffers read from the zero page and
/// their effect on speed; without, the census at the end.
pub fn run_table(run: &Run, columns: usize, is_each: bool) -> String {
    if run.period_ms.is_some() { watched(run) } else { at_end(run, columns, is_each) }
}

/// Formats a time: `8.3 ms`, `1.25 s`
pub(crate) fn time_text(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.1} ms") } else { format!("{:.2} s", ms / 1e3) }
}

fn at_end(run: &Run, columns: usize, is_each: bool) -> String {
    let mut text = String::new();
    if let Some(census) = &run.census {
        // The census's limits are printed below, with those that concern all processes.
        text = table(&Census { unseen: Vec::new(), ..census.clone() }, columns, is_each);
    }
    if !run.others.is_empty() {
        text.push_str("\nother processes, at their end\n");
        let _ = writeln!(text, "{:>8}{:>10}{:>10}{:>10}{:>10}", "process", "zero", "small", "huge", "swapped");
    }
    for other in run.others.iter().take(VARIABLES_MAX) {
        let _ = write!(text, "{:>8}", other.pid);
        for bytes in [other.total.zero, other.total.small, other.total.huge, other.total.swapped] {
            let _ = write!(text, "{:>10}", bytes_text(bytes));
        }
        let _ = writeln!(text, "  {}", other.command);
    }
    more(&mut text, run.others.len());
    unseen(&mut text, &run.unseen);
    text
}

fn more(text: &mut String, count: usize) {
    let more = count.saturating_sub(VARIABLES_MAX);
    if more > 0 {
        let _ = writeln!(text, "         and {more} smaller ones; --json has all");
    }
}

fn watched(run: &Run) -> String {
    let name = run.command.first().map_or("", String::as_str);
    let mut text = format!(
        "{name}: {} with exit code {}; {} samples\n",
        time_text(run.duration_ms),
        run.exit_code,
        run.sample_count
    );
    let listed = |buffer: &&Buffer| buffer.is_found || buffer.zero >= LISTED_BYTES_MIN;
    let buffers: Vec<&Buffer> = run.buffers.iter().filter(listed).collect();
    let is_one_process = buffers.iter().all(|buffer| Some(buffer.pid) == run.census.as_ref().map(|census| census.pid));
    if buffers.is_empty() {
        text.push_str("\nread from the zero page: nothing significant\n");
    } else {
        text.push_str("\nread from the zero page: read, and not written before\n");
        text.push_str("    ZERO  AT END    SIZE   SHARE  BUFFER\n");
    }
    for buffer in buffers.iter().take(VARIABLES_MAX) {
        let [zero, at_end, size] = [buffer.zero, buffer.zero_at_end, buffer.size].map(bytes_text);
        let process =
            if is_one_process { String::new() } else { format!(", process {} ({})", buffer.pid, buffer.command) };
        let mark = if buffer.is_found { "  ← found" } else { "" };
        let share = buffer.share_percent;
        let _ = writeln!(text, "{zero:>8}{at_end:>8}{size:>8}{share:>6.1} %  {}{process}{mark}", buffer.what);
        if let Some(place) = &buffer.first_read {
            let _ = writeln!(text, "{:34}first read by {place}", "");
        }
    }
    more(&mut text, buffers.len());
    if let Some(speed) = &run.speed {
        let _ = writeln!(text, "\n{}", speed_text(speed));
    }
    text.push('\n');
    text.push_str(&counts_text(run));
    unseen(&mut text, &run.unseen);
    let limits = &run.limits;
    let limit = format!(
        "limits: {} % of the memory that its process has touched, {}",
        limits.share_percent,
        bytes_text(limits.size_bytes)
    );
    let verdict = match run.verdict {
        Verdict::Found => {
            let count = run.buffers.iter().filter(|buffer| buffer.is_found).count();
            let (buffers, them) =
                if count == 1 { ("1 buffer".into(), "it") } else { (format!("{count} buffers"), "them") };
            format!("found: {buffers} read from the zero page; write to {them} before measuring ({limit})")
        }
        Verdict::NotFound => format!("found: nothing ({limit})"),
        Verdict::Unknown => "found: nothing, but the zero page could not be seen; the lines above say why".into(),
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

/// Returns the zero page in several processes as a table, those with most of it first.
pub fn machine_table(census: &MachineCensus) -> String {
    let MachineCensus { process_count, processes, zero, zero_entries, unseen: limits, .. } = census;
    let mut text = format!("the zero page in {process_count} processes\n\n");
    text.push_str("    ZERO  MAPPINGS   SHARE  PROCESS  COMMAND          LARGEST BUFFER\n");
    for ZeroProcess { pid, command, zero, zero_entries, touched, largest } in processes.iter().take(VARIABLES_MAX) {
        let share = 100.0 * *zero as f64 / (*touched).max(1) as f64;
        let largest = largest.as_ref().map(BufferName::to_string).unwrap_or_default();
        let zero = bytes_text(*zero);
        let _ = writeln!(text, "{zero:>8}{zero_entries:>10}{share:>6.1} %{pid:>9}  {command:<15}  {largest}");
    }
    more(&mut text, processes.len());
    let (zero, share) = (bytes_text(*zero), census.share_percent());
    let _ = writeln!(text, "{zero:>8}{zero_entries:>10}{share:>6.1} %      all");
    unseen(&mut text, limits);
    text
}

/// Returns the zero page in several processes as a line of a table over time, and before the first one the table's head.
/// `time_s`: time since the first, in seconds.
pub fn machine_line(census: &MachineCensus, time_s: f64, is_first: bool) -> String {
    let MachineCensus { process_count, refused_count, zero, zero_entries, .. } = census;
    let mut text = String::new();
    if is_first {
        text.push_str("    TIME    ZERO  MAPPINGS   SHARE  PROCESSES  NOT READ  LARGEST\n");
    }
    let largest = census
        .processes
        .first()
        .map(|ZeroProcess { pid, command, zero, .. }| format!("{} in {command} ({pid})", bytes_text(*zero)));
    let (zero, share) = (bytes_text(*zero), census.share_percent());
    let _ = writeln!(
        text,
        "{time_s:>6.1} s{zero:>8}{zero_entries:>10}{share:>6.1} %{process_count:>11}{refused_count:>10}  {}",
        largest.unwrap_or_default()
    );
    text
}

/// Returns the result of a command that was run as it is and with its memory populated.
pub fn fixed_table(fixed: &Fixed) -> String {
    let Fixed { before, after, comparison } = fixed;
    let name = after.command.first().map_or("", String::as_str);
    let runs: Vec<(&str, &Run)> = before.iter().map(|run| ("as it is", run)).chain([("populated", after)]).collect();
    let kinds = if before.is_some() { "as it is, and with its memory populated" } else { "with its memory populated" };
    let mut text = format!("{name}: {kinds}\n\n{:<12}ZERO PAGE  MAPPINGS   WALL TIME  EXIT CODE\n", "");
    for (kind, run) in &runs {
        let entries = if run.zero_entries_max == 0 { "–".into() } else { run.zero_entries_max.to_string() };
        let (zero, time) = (bytes_text(run.zero_max), time_text(run.duration_ms));
        let _ = writeln!(text, "{kind:<12}{zero:>9}{entries:>10}{time:>12}{:>11}", run.exit_code);
    }
    if let Some(Populated { size, calls, duration_ms, left_alone }) = &after.populated {
        let (size, time) = (bytes_text(*size), time_text(*duration_ms));
        let _ = writeln!(text, "\npopulated: {size} by {calls} calls, {time} of its time");
        for LeftAlone { reason, count, size } in left_alone {
            let ranges = if *count == 1 { "range" } else { "ranges" };
            let _ = writeln!(text, "left alone: {} in {count} {ranges}: {reason}", bytes_text(*size));
        }
    }
    let is_listed = |change: &Change| change.before.unwrap_or(0).max(change.after) >= LISTED_BYTES_MIN;
    let changes: Vec<Change> = fixed.changes().into_iter().filter(is_listed).collect();
    if !changes.is_empty() {
        text.push_str("\nread from the zero page\n  BEFORE   AFTER  BUFFER\n");
    }
    for Change { name, before, after, first_read } in changes.iter().take(VARIABLES_MAX) {
        let before = before.map_or("?".into(), bytes_text);
        let _ = writeln!(text, "{before:>8}{:>8}  {name}", bytes_text(*after));
        if let Some(place) = first_read {
            let _ = writeln!(text, "{:18}first read by {place}", "");
        }
    }
    more(&mut text, changes.len());
    if let Some(Comparison { pairs, before, after, factor }) = comparison {
        let row =
            |[median, low, high]: [f64; 3]| format!("{} [{}, {}]", time_text(median), time_text(low), time_text(high));
        let [median, low, high] = factor;
        let _ = writeln!(text, "\nwall time, median of {} runs of each with a 95 % interval", pairs.len());
        let _ = writeln!(text, "as it is    {}\npopulated   {}", row(*before), row(*after));
        let _ = writeln!(text, "populated, it takes {median:.2} times as long [{low:.2}, {high:.2}]");
    }
    let mut lines: Vec<String> = Vec::new();
    for line in runs.iter().flat_map(|(_, run)| &run.unseen) {
        if !lines.contains(line) {
            lines.push(line.clone());
        }
    }
    unseen(&mut text, &lines);
    let rest: u64 = after.buffers.iter().filter(|buffer| buffer.is_found).map(|buffer| buffer.zero).sum();
    let is_populated = after.populated.is_some();
    let is_another_end = before.as_ref().is_some_and(|before| before.exit_code != after.exit_code);
    let verdict = match (after.verdict, before.as_ref().map(|before| before.verdict)) {
        _ if is_another_end => "the runs ended with different exit codes, so they cannot be compared".into(),
        _ if !is_populated => "not mended: no memory was populated; the lines above say why".into(),
        (Verdict::Unknown, _) | (_, Some(Verdict::Unknown)) => {
            "the zero page could not be seen, so what this changed is not known; the lines above say why".into()
        }
        (Verdict::Found, _) => format!(
            "not mended: {} are still read from the zero page: memory that was left alone (above), given back to the kernel and read again, \
             on the first thread's stack, or obtained by a 32-bit program",
            bytes_text(rest)
        ),
        (Verdict::NotFound, Some(Verdict::Found)) => "mended: no buffer is read from the zero page any more".into(),
        (Verdict::NotFound, Some(Verdict::NotFound)) => "nothing to mend: no buffer was read from the zero page".into(),
        (Verdict::NotFound, None) => "no buffer is read from the zero page".to_string(),
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

/// Describes how much faster the zero page is read than written memory, in two lines.
pub(crate) fn speed_text(speed: &Speed) -> String {
    let Speed { factor, factor_ci95: [low, high], zero_gb_per_s, written_gb_per_s, .. } = speed;
    let (size, huge) = (bytes_text(speed.size), if speed.is_huge { " in huge pages" } else { "" });
    let part = if speed.is_whole { "" } else { " (only a part of it, because memory is bounded)" };
    format!(
        "it seems {factor:.2} times as fast as memory [{low:.2}, {high:.2}]: here, {size}{huge} of the zero page are read at {zero_gb_per_s:.1} GB/s,\n\
         {size} of written memory at {written_gb_per_s:.1} GB/s, in order{part}"
    )
}

fn counts_text(run: &Run) -> String {
    let row = |name: &str, counts: &Counts, ms: f64| {
        let Counts { faults_minor, faults_major, first_touches, touched } = counts;
        let touched = bytes_text(*touched);
        let per_second = (faults_minor + faults_major) as f64 / (ms / 1e3).max(1e-9);
        format!("{name:<26}{faults_minor:>10}{faults_major:>8}{per_second:>12.0}{first_touches:>15}{touched:>12}\n")
    };
    let [from, until] = run.measured_ms;
    let mut text = format!(
        "{:<26}{:>10}{:>8}{:>12}{:>15}{:>12}\n",
        "page faults", "minor", "major", "per second", "first touches", "new memory"
    );
    let whole = from <= 0.0 && until >= run.duration_ms;
    if !whole {
        let name = format!("{} … {}", time_text(from), time_text(until));
        text.push_str(&row(&name, &run.measured, until - from));
    }
    text.push_str(&row(if whole { "measured: the whole run" } else { "the whole run" }, &run.whole, run.duration_ms));
    let rates = fault_rates(&run.samples, run.duration_ms, BARS);
    if let Some(top) = rates.iter().copied().reduce(f64::max).filter(|top| *top > 0.0) {
        let bar = |rate: &f64| ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][((rate / top * 7.0).ceil() as usize).min(7)];
        let bars: String = rates.iter().map(bar).collect();
        let _ = writeln!(text, "over time {bars} up to {top:.0} a second");
    }
    text
}

/// Returns page faults per second, for `count` equal parts of the time from start to end. Between two samples the rate
/// is taken as constant.
pub(crate) fn fault_rates(samples: &[Sample], duration_ms: f64, count: usize) -> Vec<f64> {
    let step = duration_ms / count as f64;
    if samples.len() < 2 || step <= 0.0 {
        return Vec::new();
    }
    let total = |time: f64| {
        let mut before = (0.0, 0.0);
        for sample in samples {
            let now = (sample.time_ms, (sample.counts.faults_minor + sample.counts.faults_major) as f64);
            if now.0 >= time {
                let part = if now.0 > before.0 { (time - before.0) / (now.0 - before.0) } else { 1.0 };
                return before.1 + part * (now.1 - before.1);
            }
            before = now;
        }
        before.1
    };
    (0..count).map(|part| (total((part + 1) as f64 * step) - total(part as f64 * step)) * 1e3 / step).collect()
}

impl std::fmt::Display for CodePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CodePlace { function, offset, path, lines } = self;
        match function {
            Some(function) => write!(f, "{function}+{offset:#x} in {}", file_name(path))?,
            None => write!(f, "{offset:#x} in {}", file_name(path))?,
        }
        for (index, SourceLine { function, file, line }) in lines.iter().enumerate() {
            f.write_str(if index == 0 { " (" } else { ", inlined in " })?;
            // The function of the last line is the one above.
            if let Some(function) = function.as_ref().filter(|_| index + 1 < lines.len()) {
                write!(f, "{function} at ")?;
            }
            write!(f, "{}:{line}", file_name(Path::new(file)))?;
        }
        if lines.is_empty() { Ok(()) } else { f.write_str(")") }
    }
}

impl std::fmt::Display for BufferName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BufferName::Variable { name, path } => write!(f, "{name} in {}", file_name(path)),
            BufferName::Mapping { name } => name.fmt(f),
            BufferName::Allocation { by } => write!(f, "obtained by {by}"),
        }
    }
}

/// Returns the last part of a path.
fn file_name(path: &Path) -> std::path::Display<'_> {
    path.file_name().map_or(path, Path::new).display()
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Name::Object { path, access } => write!(f, "{access} of {}", file_name(path)),
            Name::Bss { path } => write!(f, ".bss of {}", file_name(path)),
            Name::Heap => f.write_str("heap"),
            Name::Stack { thread, name } => write!(f, "stack of {name} ({thread})"),
            Name::File { path } => write!(f, "file {}", path.display()),
            Name::Shared { name } if name.is_empty() => f.write_str("shared"),
            Name::Shared { name } => write!(f, "shared {name}"),
            Name::Anonymous { name } if name.is_empty() => f.write_str("anonymous"),
            Name::Anonymous { name } => write!(f, "anonymous {name}"),
            Name::Kernel { name } => f.write_str(name),
        }
    }
}

/// Shortens a text that is too long to its end: the end of a path says more than its beginning.
fn shortened(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.into();
    }
    std::iter::once('…').chain(text.chars().skip(count - (width - 1))).collect()
}

/// Formats a size: `–`, `4.0K`, `12M`
pub(crate) fn bytes_text(bytes: u64) -> String {
    if bytes == 0 {
        return "–".into();
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = ['K', 'M', 'G', 'T', 'P', 'E'].into_iter().peekable();
    loop {
        let unit = units.next().unwrap_or('E');
        if value < 1023.5 || units.peek().is_none() {
            return if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") };
        }
        value /= 1024.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, ZeroVariable};

    #[test]
    fn sizes_are_printed_briefly() {
        let cases =
            [(0, "–"), (512, "0.5K"), (4096, "4.0K"), (10 << 10, "10K"), (1 << 20, "1.0M"), (1023 << 10, "1023K")];
        for (bytes, text) in cases {
            assert_eq!(bytes_text(bytes), text);
        }
        assert_eq!(bytes_text(u64::MAX), "16E");
    }

    #[test]
    fn neighbours_with_the_same_name_are_one_line() {
        let mapping = |start: u64, name: Name, small: u64| Mapping {
            start,
            end: start + 8192,
            access: "rw-p".into(),
            name,
            pages: Pages { small, unbacked: 8192 - small, ..Pages::default() },
        };
        let object = || Name::Object { path: "/usr/bin/sleep".into(), access: "r--".into() };
        let mut census = Census {
            pid: 7,
            command: "sleep".into(),
            mappings: vec![mapping(0, object(), 4096), mapping(8192, object(), 8192), mapping(16384, Name::Heap, 0)],
            total: Pages { small: 12288, unbacked: 12288, ..Pages::default() },
            zero_variables: Vec::new(),
            sees_zero: true,
            unseen: vec!["much".into()],
            zero_runs: Vec::new(),
            allocations: Vec::new(),
        };
        let text = table(&census, 80, false);
        let line = |start: &str| {
            text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"))
        };
        let words = |start: &str| line(start).split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words("r-- of sleep")[3..], ["16K", "4.0K", "–", "12K", "–", "–"]);
        assert_eq!(words("all")[1..], ["24K", "12K", "–", "12K", "–", "–"]);
        assert!(text.contains("not seen: much") && !text.contains("zero page"));
        assert_eq!(table(&census, 80, true).matches("r-- of sleep").count(), 2);
        let variable = |index: u64| ZeroVariable {
            name: format!("array{index}"),
            path: "/bin/program".into(),
            address: 0,
            size: 8192,
            zero: 4096,
        };
        census.zero_variables = (0..22).map(variable).collect();
        let text = table(&census, 80, false);
        assert!(text.contains("4.0K of   8.0K  array0 in program") && text.contains("and 2 smaller ones"), "{text}");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("/usr/lib/libc.so.6", 10), "…libc.so.6");
        assert_eq!(shortened("short", 10), "short");
    }
}
