//! Command-line arguments.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use dormouse_terminal::{EXIT_CODES, Output, parse_size};

use crate::catalog::Limits;
use crate::export::export;
use crate::functions::FUNCTIONS;
use crate::named::{ALL, Named};
use crate::output::Format;
use crate::run::{INTERRUPTED, Session, TERMINATED};
use crate::source::Source;
use crate::{cluster, facts, named, shell, statements};

/// Partitions of a plan for a cluster: enough for four executors with four threads each.
const CLUSTER_THREADS: usize = 16;

/// Rows of a table that are shown by default.
const TABLE_ROWS: usize = 1000;

/// Query traces, or a store of traces, in SQL
#[derive(Debug, Parser)]
#[command(name = "dormouse-query", bin_name = "dormouse query", version, max_term_width = 100, after_help = after_help())]
pub(crate) struct Query {
    /// Trace directories, directories that contain traces, archives of these (.tar, .tar.gz, .tar.zst), or `-` for an archive on standard
    /// input; or one store, a directory or s3://BUCKET/PREFIX; then the query. Without a query, start a shell on a terminal, otherwise read
    /// the query from standard input. Semicolons separate queries
    #[arg(value_name = "TRACE… [SQL]")]
    words: Vec<String>,
    /// Run a named query; without NAME, list them
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    named: Option<Option<String>>,
    /// Print the SQL of the named query, as a starting point for your own
    #[arg(long, requires = "named")]
    show: bool,
    /// Format of the result [default: table on a terminal, otherwise csv]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Write the result to FILE
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the traces as a Parquet store to DIR, which must be new or empty:
    /// events/host=H/day=D/class=C/*.parquet, pairs, processes and others; with --format arrow only events, as Arrow
    #[arg(long, value_name = "DIR", conflicts_with_all = ["named", "output"])]
    export: Option<PathBuf>,
    /// Memory for the state of a query; beyond it, sorting, grouping and joining use temporary files (TMPDIR)
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    memory: u64,
    /// Correct the times of traces with FILE.json, which `dormouse clocks` writes
    #[arg(long, value_name = "FILE.json")]
    clocks: Option<PathBuf>,
    /// Number of threads; with --cluster, number of tasks that run at once [default: number of CPUs; with --cluster 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Run the query on the cluster whose scheduler has this address; `dormouse cluster` starts one
    #[arg(long, value_name = "df://HOST:PORT", value_parser = cluster::parse)]
    cluster: Option<cluster::Cluster>,
    /// Show at most N rows of a table, or of a named query in any format [default: 1000; what the named query says]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
}

fn after_help() -> String {
    let mut text = String::from(
        "\
Examples:
  dormouse query trace 'select class, count(*) from events group by class'
  dormouse query trace 'select time, path from \"http:request\" where bytes > 4096 order by time'
  dormouse query trace \"select time_bucket('100ms', time) t, count(*) from events group by t\"
  dormouse query trace \"select quantile(duration_ns, 0.99) from pairs('http:begin', 'http:end')\"
  dormouse query trace --named slowest          the slowest pairs
  dormouse query --named                        a list of the named queries
  dormouse query trace 'describe \"http:request\"'          the columns of a table
  dormouse query trace 'select …' --format parquet -o result.parquet
  dormouse query trace --export DIR             the whole trace as Parquet, for DuckDB and others
  dormouse query A B 'select …'                 two traces as one
  dormouse query trace                          a shell, which completes names
  dormouse query s3://bucket/traces 'select host, count(*) from events group by host'
  dormouse query --cluster df://scheduler:50050 s3://bucket/traces --named slowest

Tables (put a name with a colon or capitals in double quotes):
",
    );
    let row = |name: &str, about: &str| format!("  {name:<17}{about}\n");
    text +=
        &row("\"PROVIDER:NAME\"", "a row for each event of a class: time, cpu, pid, tid, process, thread, its fields");
    text += &row("events", "a row for each event: time, class, process, pid, tid, thread, cpu, fields as JSON");
    text += &row("pairs", "pairs of X_begin and X_end, system calls, …: name, times, duration_ns");
    facts::TABLES.iter().for_each(|(name, about, _)| text += &row(name, about));
    text += "\nFunctions, in addition to those that DataFusion documents:\n";
    FUNCTIONS.iter().for_each(|(call, about)| text += &format!("  {call}\n      {about}\n"));
    text += &format!(
        "
Times are in UTC: `where time >= '2026-11-26T10:15:00Z'`. Rows have no order unless the query has `order by`.

A query reads only the columns that it names, and checks conditions on time and class, and simple conditions on fields, while it reads.

Exit code: 0; 1 if the trace is damaged or pairs were left out (the result covers what can be read); 2 if the trace cannot be read or the query is wrong.

{EXIT_CODES}"
    );
    text
}

impl Query {
    pub(crate) fn run(self, out: &mut Output) -> Result<u8> {
        let named = match &self.named {
            Some(None) if self.words.is_empty() => return list(out),
            Some(None) => bail!("--named needs the name of a query; `dormouse query --named` lists them"),
            Some(Some(name)) => Some(find(name)?),
            None => None,
        };
        if self.show
            && let Some(named) = named
        {
            out.write_all(named.shown().as_bytes())?;
            return Ok(0);
        }
        let (paths, sql) = split(&self.words, named.is_some() || self.export.is_some())?;
        let format = self.format.unwrap_or(match std::io::stdout().is_terminal() && self.output.is_none() {
            true => Format::Table,
            false => Format::Csv,
        });
        let here = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.cluster.is_some() { CLUSTER_THREADS } else { here };
        let limits = Limits {
            memory_bytes: usize::try_from(self.memory).unwrap_or(usize::MAX),
            threads: self.threads.map_or(threads, |threads| threads as usize),
            temporary: std::env::temp_dir(),
            is_cluster: self.cluster.is_some(),
        };
        if let Some(dir) = &self.export {
            let format = match self.format {
                None | Some(Format::Parquet) => dormouse_store::Format::Parquet,
                Some(Format::Arrow) => dormouse_store::Format::Arrow,
                _ => bail!("--export writes only --format parquet or arrow; `dormouse export` writes other formats"),
            };
            return export(&paths, self.clocks.as_deref(), dir, format, limits.memory_bytes);
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let workers = if limits.is_cluster { here } else { limits.threads };
        let runtime = builder.worker_threads(workers).enable_all().build().context("cannot start threads")?;
        let source = Source::open(&paths, self.clocks.as_deref(), &runtime)?;
        if limits.is_cluster && matches!(source, Source::Traces(_)) {
            bail!("--cluster queries only stores; `dormouse query TRACE --export DIR` makes one");
        }
        let session = Session::new(source, self.cluster, &limits, runtime)?;
        let sql = match (named, sql) {
            (Some(named), _) => {
                if let Some(table) = named.lacks(session.tables()) {
                    let libc = if table.starts_with("libc:") {
                        "; `dormouse record --libc -- COMMAND` records it"
                    } else {
                        ""
                    };
                    let noun = source.noun();
                    bail!("--named {} needs events of {table}, but this {noun} has none{libc}", named.name);
                }
                named.text(source.is_a_store())
            }
            (None, Some(sql)) => sql,
            (None, None) => {
                if std::io::stdin().is_terminal() {
                    return shell::run(&session, self.rows.unwrap_or(TABLE_ROWS), out);
                }
                let mut sql = String::new();
                std::io::stdin().read_to_string(&mut sql).context("cannot read the query from standard input")?;
                sql
            }
        };
        let queries = statements::of(&sql);
        if queries.len() > 1 && (self.output.is_some() || !format.is_text()) {
            bail!(
                "several queries have several results, which can only be printed as --format table, json or csv; run one query, or leave out -o"
            );
        }
        let rows = self.rows.unwrap_or(TABLE_ROWS);
        let rows_max = named.and_then(Named::rows_max).map(|rows_max| self.rows.unwrap_or(rows_max));
        let mut code = 0;
        for query in &queries {
            match session.run(query, format, rows, rows_max, self.output.as_deref(), out)? {
                ended @ (INTERRUPTED | TERMINATED) => return Ok(ended),
                of_query => code = code.max(of_query),
            }
        }
        Ok(code)
    }
}

fn list(out: &mut Output) -> Result<u8> {
    for named in ALL {
        writeln!(out, "{:<20}{}", named.name, named.about())?;
    }
    Ok(0)
}

fn find(name: &str) -> Result<&'static Named> {
    Named::find(name).with_context(|| format!("no query is called {name}{}", named::nearest(name)))
}

/// Splits the words into traces and the query. The last word is the query if it has a space and no file has its name.
fn split(words: &[String], is_named: bool) -> Result<(Vec<PathBuf>, Option<String>)> {
    let is_trace = |word: &String| word == "-" || Path::new(word).exists() || Source::is_store(word);
    let (sql, paths) = match words.split_last() {
        None => bail!("name a trace, then a query; `dormouse query --help` has examples"),
        Some((last, before)) if !is_named && !is_trace(last) && last.contains(char::is_whitespace) => {
            (Some(last), before)
        }
        Some(_) => (None, words),
    };
    if paths.is_empty() {
        bail!("name a trace before the query");
    }
    Ok((paths.iter().map(PathBuf::from).collect(), sql.cloned()))
}
