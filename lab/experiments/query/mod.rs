//! Experiment `query`: the time that whole programs take to answer questions, straight from a trace and from Parquet,
//! beside DuckDB over the same Parquet.
//!
//! ```text
//!   trace    builds of a C project under `dormouse record --libc`, each followed by copies of its files in pieces of 16 bytes;
//!            on disk and cached
//!   parquet  the same events, exported by `dormouse query --export`
//!   round    every way once, in an order drawn for it; each is a process, timed from outside, its output to /dev/null
//!     COUNTS, PAIRS, FILES, WIDE    .trace, .parquet: dormouse-query    .duckdb: DuckDB in Python
//!     perfetto, view                `dormouse export --to perfetto -o -`, `dormouse view`
//! ```
//! Both programs print CSV, and use all CPUs. The time that each takes to start and answer `select 1` is subtracted,
//! round by round. Before anything is timed, both must give as many rows with the same counts. Pairs may differ by one
//! in a hundred, because DuckDB has no pairs: it finds them by a window function, as the end that comes next.
//!
//! DuckDB reads the events of a class from a file of their own, sorted by time. To pair begins and ends it sorts them
//! by key.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use dormouse_abi::record::RecordKind;
use dormouse_owner::{Mode, Options, Session, find_libc_library};
use dormouse_testing::printed;

use crate::engine::{engine_path, find_part};
use crate::experiments::compile_job::find_project;
use crate::experiments::compile_job::project::{Goals, Project, directory_in, place};
use crate::plan::{self, Samples, in_turn};
use crate::statistics::{ROUNDS_MIN, measurement};
use crate::{Experiment, Host, LabError, Measurement, RunOptions};

/// Minimum number of events of a full experiment.
const EVENTS: u64 = 25_000_000;
/// Engine that runs and times a process.
const TIMER: &str = "dormouse-lab-engine-timer";
/// Figures that it reports, with their units.
const FIGURES: [(&str, &str); 3] = [("wall", "s"), ("cpu", "s"), ("peak", "MiB")];
/// Prints the answer to a query as CSV.
const DUCKDB: &str = r#"import duckdb, sys; duckdb.sql(f"copy ({sys.argv[1]}) to '/dev/stdout' (format csv, header)")"#;
/// Name of the question that only starts the programs.
const START_UP: &str = "start-up";

/// A question, in the language of both programs.
struct Question {
    name: &'static str,
    ours: &'static str,
    /// DuckDB's text, in which `FILES(a, b)` are the files of these classes.
    theirs: &'static str,
    /// Column, from 0, whose sums must agree, and the tolerance as a fraction.
    checked: (usize, f64),
}

const QUESTIONS: [Question; 5] = [
    Question { name: START_UP, ours: "select 1", theirs: "select 1", checked: (0, 0.0) },
    Question {
        name: "counts",
        ours: "select class, time_bucket('1s', time) as second, count(*) as events from events group by 1, 2",
        theirs: "select class, epoch_ns(time) // 1000000000 as second, count(*) as events from FILES(*) group by 1, 2",
        checked: (2, 0.0),
    },
    Question {
        name: "pairs",
        ours: "select process, count(*) as n, quantile(duration_ns, 0.99) as p99 from pairs('libc:malloc', 'libc:free', 'pid,ptr') group by 1",
        theirs: "with ends as (select process, class = 'libc:malloc' as is_begin, epoch_ns(time) - lag(epoch_ns(time)) over w as ns, \
                 lag(class) over w as before, lag(process) over w as of from FILES(libc:malloc, libc:free) window w as (partition by pid, ptr order by time)) \
                 select of, count(*) as n, approx_quantile(ns, 0.99) as p99 from ends where not is_begin and before = 'libc:malloc' group by 1",
        checked: (1, 0.01),
    },
    Question {
        name: "files",
        ours: "with calls as (\
               select time, pid, fd, path, 0 as bytes from \"libc:open\" where fd >= 0 union all select time, pid, fd, path, 0 from \"libc:openat\" where fd >= 0 \
               union all select time, pid, fd, null, greatest(result, 0) from \"libc:read\" union all select time, pid, fd, null, greatest(result, 0) from \"libc:write\"), \
               known as (select fd, bytes, locf(path) over (partition by pid, fd order by time) as path \
               from calls) select coalesce(path, 'none') as file, sum(bytes) as bytes from known group by 1 order by 2 desc, 1 limit 10",
        theirs: "with calls as (\
                 select time, pid, fd, path, 0 as bytes from FILES(libc:open, libc:openat) where fd >= 0 \
                 union all select time, pid, fd, null, greatest(result, 0) from FILES(libc:read, libc:write)), \
                 known as (select fd, bytes, last_value(path ignore nulls) over (partition by pid, fd order by time rows between unbounded preceding and current row) as path \
                 from calls) select coalesce(path, 'none') as file, sum(bytes) as bytes from known group by 1 order by 2 desc, 1 limit 10",
        checked: (1, 0.0),
    },
    Question {
        name: "wide",
        ours: "select time, cpu, pid, tid, process, size, ptr from \"libc:malloc\" where size > 200 and ptr > 4096",
        theirs: "select time, cpu, pid, tid, process, size, ptr from FILES(libc:malloc) where size > 200 and ptr > 4096",
        checked: (usize::MAX, 0.0),
    },
];

/// Query for the number of events that the question about files looks at.
const OF_FILES: &str =
    "select count(*) as events from events where class in ('libc:open', 'libc:openat', 'libc:read', 'libc:write')";

/// A process that is timed once a round.
struct Turn {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Turn {
    fn new(name: String, program: &Path, arguments: &[&str]) -> Turn {
        Turn { name, program: program.into(), arguments: arguments.iter().map(OsString::from).collect() }
    }

    fn output(&self) -> Result<String, LabError> {
        printed(Command::new(&self.program).args(&self.arguments), &self.name).map_err(LabError::Engine)
    }
}

/// Returns the names of directory entries `levels` levels deeper.
fn names_below(dir: &Path, levels: u32) -> Vec<OsString> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    match levels {
        0 => entries.map(|entry| entry.file_name()).collect(),
        _ => entries.flat_map(|entry| names_below(&entry.path(), levels - 1)).collect(),
    }
}

/// Replaces `FILES(…)` by DuckDB's expression for the files of classes. A class without events has no file, which would
/// be an error in DuckDB.
fn with_files(sql: &str, parquet: &Path, known: &[OsString]) -> String {
    let mut text = String::new();
    let mut rest = sql;
    while let Some((before, from)) = rest.split_once("FILES(") {
        let (classes, behind) = from.split_once(')').unwrap_or((from, ""));
        let directories = classes.split(',').map(|class| format!("class={}", class.trim().replace(':', "%3A")));
        let is_there = |name: &String| name == "class=*" || known.iter().any(|known| known == name.as_str());
        let glob = |name: String| format!("'{}/**/{name}/*.parquet'", parquet.display());
        let globs: Vec<String> = directories.filter(is_there).map(glob).collect();
        text += &format!(
            "{before}read_parquet([{}], hive_partitioning = true, hive_types_autocast = false, union_by_name = true)",
            globs.join(", ")
        );
        rest = behind;
    }
    text + rest
}

/// Program that copies files a few times, in pieces of 16 bytes.
const COPY: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(int count, char **paths) {
    for (int i = 0; i < 3 * (count - 1); i++) {
        int from = open(paths[1 + i % (count - 1)], O_RDONLY), to = open("/dev/null", O_WRONLY);
        char piece[16];
        ssize_t size;
        while ((size = read(from, piece, sizeof piece)) > 0)
            if (write(to, piece, size) != size)
                return 1;
        close(from);
        close(to);
    }
}
"#;

/// Compiles the copying program.
fn copier(dir: &Path) -> Result<PathBuf, LabError> {
    let (source, program) = (dir.join("copy.c"), dir.join("copy"));
    std::fs::write(&source, COPY).map_err(|error| LabError::System { what: "cannot write copy.c", error })?;
    printed(Command::new("cc").arg("-o").args([&program, &source]), "cc").map_err(LabError::Engine)?;
    Ok(program)
}

/// Records builds of a project below a directory. Returns the path of the trace, and its number of events.
fn record(options: &RunOptions, dir: &Path, project: &Path, library: PathBuf) -> Result<(PathBuf, u64), LabError> {
    let project = Project::copy(project, Goals::new(options.is_quick, 3, Goals::All))?;
    let of = Options {
        mode: Mode::Discard,
        rules: vec!["libc:*".into()],
        context: RecordKind::Ids,
        ..Options::new(dir.join("trace"))
    };
    let session = Session::create(&Options { command_line: "make".into(), ..of.clone() })?;
    let mut environment = vec![("LD_PRELOAD", library.into())];
    environment.extend(session.environment()?);
    let copy = copier(dir)?;
    // A build of Lua has about seven million events, few of which concern files.
    for _ in 0..if options.is_quick { 1 } else { 4 } {
        project.build(&environment)?;
        let mut command = Command::new(&copy);
        command.args(project.source_files()).envs(environment.iter().map(|(name, value)| (name, value)));
        printed(&mut command, "copy").map_err(LabError::Engine)?;
    }
    let summary = session.finish();
    if !options.is_quick && summary.events < EVENTS {
        return Err(LabError::Project(format!(
            "{} events recorded, fewer than {EVENTS}: name a larger project",
            summary.events
        )));
    }
    Ok((of.dir, summary.events))
}

/// Returns the number of rows of CSV, and the sum of a column.
fn checked(text: &str, column: usize) -> (usize, f64) {
    let rows: Vec<&str> = text.lines().skip(1).collect();
    let number = |row: &&str| row.split(',').nth(column).and_then(|cell| cell.trim_matches('"').parse::<f64>().ok());
    (rows.len(), rows.iter().filter_map(number).sum())
}

/// Checks that both programs give the same answer. Returns the number of rows.
fn verify(question: &Question, ours: &Turn, theirs: &Turn) -> Result<usize, LabError> {
    let (column, tolerance) = question.checked;
    let [one, other] = [ours.output()?, theirs.output()?].map(|text| checked(&text, column));
    let is_near = (one.1 - other.1).abs() <= tolerance * other.1.abs();
    let is_same = is_near && (one.0 == other.0 || tolerance > 0.0);
    let wrong = || LabError::Engine(format!("{}: rows and sums {one:?} of ours, {other:?} of DuckDB", question.name));
    is_same.then_some(one.0).ok_or_else(wrong)
}

/// Runs the experiment by name; it does not use the host. A missing program is a note, not an error.
pub(super) fn run_query(options: &RunOptions, _: &Host) -> Result<Experiment, LabError> {
    let dir = directory_in("/var/tmp")?;
    let mut notes = vec![format!("trace and Parquet are in {}, and cached", place(dir.path()))];
    let project = find_project(options.project.as_deref()).map_err(|error| error.to_string());
    let library = find_libc_library().map_err(|error| error.to_string());
    let (project, library) = match (project, library) {
        (Ok(project), Ok(library)) => (project, library),
        (Err(why), _) | (_, Err(why)) => {
            notes.push(format!("query not measured: {why}"));
            return Ok(Experiment { name: "query".into(), notes, ..Experiment::default() });
        }
    };
    let (trace, events) = record(options, dir.path(), &project, library)?;
    let mut measurements = vec![Measurement::exact("events", "count", events as f64)];
    let unoptimised = if cfg!(debug_assertions) { "unoptimised-" } else { "" };
    let mut turns = Vec::new();
    let trace_text = trace.display().to_string();
    match find_part("dormouse") {
        Some(command) => {
            let view = Turn::new(format!("{unoptimised}view"), &command, &["view", &trace_text]);
            let export = ["export", &trace_text, "--to", "perfetto", "-o", "-"];
            turns.extend([view, Turn::new(format!("{unoptimised}perfetto"), &command, &export)]);
        }
        None => notes.push("perfetto not measured: `dormouse` is not here; `cargo xtask lab query` builds it".into()),
    }
    let parquet = dir.path().join("parquet");
    let parquet_text = parquet.display().to_string();
    let ours = find_part("dormouse-query");
    let theirs = ["duckdb/bin/python", "../duckdb/bin/python"].into_iter().find_map(find_part);
    match (&ours, &theirs) {
        (Some(ours), Some(theirs)) => {
            let of_files = Turn::new("events of files".into(), ours, &[&trace_text, OF_FILES, "--format", "csv"]);
            measurements.push(Measurement::exact("events_of_files", "count", checked(&of_files.output()?, 0).1));
            let export = Turn::new("export".into(), ours, &[&trace_text, "--export", &parquet_text]);
            export.output()?;
            // The classes' directories are below those of host and day.
            let known = names_below(&parquet.join("events"), 2);
            for question in &QUESTIONS {
                let name = question.name;
                let sql = with_files(question.theirs, &parquet, &known);
                let of_duckdb = Turn::new(format!("{name}.duckdb"), theirs, &["-c", DUCKDB, &sql]);
                for (source, path) in [("trace", &trace_text), ("parquet", &parquet_text)] {
                    let words = [path, question.ours, "--format", "csv"];
                    let of_ours = Turn::new(format!("{name}.{unoptimised}{source}"), ours, &words);
                    let rows = verify(question, &of_ours, &of_duckdb)?;
                    notes.push(format!("{name}: {rows} rows of {source}"));
                    turns.push(of_ours);
                }
                turns.push(of_duckdb);
            }
        }
        (None, _) => notes.push(
            "trace and parquet not measured: dormouse-query is not here; `cargo xtask lab query` builds it".into(),
        ),
        (_, None) => notes
            .push("duckdb not measured: it is not here; `cargo xtask lab query` installs it (duckdb of PyPI)".into()),
    }
    let (rounds, timer) = (options.rounds(ROUNDS_MIN, 2 * ROUNDS_MIN), engine_path(TIMER)?);
    let (mut samples, mut signals) = (Samples::new(), plan::signals()?);
    in_turn("query", rounds + 1, turns.len(), Some(&mut signals), |round, index, bar| {
        let turn = &turns[index];
        bar.set_message(turn.name.clone());
        let text = printed(Command::new(&timer).arg(&turn.program).args(&turn.arguments), &turn.name);
        let text = text.map_err(LabError::Engine)?;
        let taken: [f64; 3] = serde_json::from_str(&text).map_err(|error| LabError::Engine(error.to_string()))?;
        for ((figure, unit), value) in FIGURES.into_iter().zip(taken) {
            // In the first round files are read from disk.
            samples.entry((format!("{}.{figure}", turn.name), unit)).or_default().extend((round > 0).then_some(value));
        }
        Ok(())
    })?;
    notes.push(format!(
        "{events} events; {rounds} rounds, each in an order of its own, and one before them that does not count"
    ));
    measurements.extend(figures(&samples));
    Ok(Experiment { name: "query".into(), measurements, notes, ..Experiment::default() })
}

/// Returns the figures: times, those of answers minus the time to start; and memory.
fn figures(samples: &Samples) -> Vec<Measurement> {
    let figure = |((name, unit), rounds): (&(String, &'static str), &Vec<f64>)| {
        let mut parts = name.split('.');
        let [of, tool, figure] = [parts.next(), parts.next(), parts.next()].map(Option::unwrap_or_default);
        let start_up = samples.get(&(format!("{START_UP}.{tool}.{figure}"), *unit));
        let start_up = start_up.filter(|_| *unit == "s" && of != START_UP);
        let less = |(round, taken): (usize, &f64)| taken - start_up.map_or(0.0, |of| of[round]);
        let rounds: Vec<f64> = rounds.iter().enumerate().map(less).collect();
        let (tool, state) = if figure.is_empty() { (of, tool) } else { (tool, figure) };
        let labels = plan::labels(&[("question", of), ("tool", tool), ("state", state)]);
        Measurement { labels, ..measurement(name, unit, &rounds) }
    };
    samples.iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_up_is_subtracted_from_times() {
        let of = |name: &str, unit, rounds: [f64; 2]| ((name.to_string(), unit), rounds.to_vec());
        let samples = Samples::from([
            of("counts.trace.wall", "s", [5.0, 7.0]),
            of("start-up.trace.wall", "s", [1.0, 2.0]),
            of("counts.trace.peak", "MiB", [5.0, 7.0]),
            of("start-up.trace.peak", "MiB", [5.0, 5.0]),
            of("view.wall", "s", [3.0, 3.0]),
        ]);
        let found = figures(&samples);
        let rounds = |name: &str| found.iter().find(|figure| figure.name == name).map(|figure| &figure.samples[..]);
        assert_eq!(rounds("counts.trace.wall"), Some(&[4.0, 5.0][..]));
        assert_eq!(rounds("counts.trace.peak"), Some(&[5.0, 7.0][..]));
        assert_eq!(rounds("start-up.trace.wall"), Some(&[1.0, 2.0][..]));
        assert_eq!(rounds("view.wall"), Some(&[3.0, 3.0][..]));
    }

    #[test]
    fn files_are_those_of_classes() {
        let known = ["class=libc%3Aopen", "class=x"].map(OsString::from);
        let text = with_files("select 1 from FILES(libc:open, none, x) where a", Path::new("/p"), &known);
        assert!(
            text.starts_with(
                "select 1 from read_parquet(['/p/**/class=libc%3Aopen/*.parquet', '/p/**/class=x/*.parquet'], "
            ),
            "{text}"
        );
        assert!(text.ends_with(") where a"), "{text}");
    }
}
