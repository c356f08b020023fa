//! Command-line arguments.

use std::path::PathBuf;

use clap::Parser;
use dormouse_terminal::{EXIT_CODES, parse_size};

/// Put closed traces into a store of Parquet, which `dormouse query` and others read
#[derive(Debug, Parser)]
#[command(name = "dormouse-ship", bin_name = "dormouse ship", version, max_term_width = 100, after_help = after_help())]
pub(crate) struct Ship {
    /// A trace, a directory with traces below, or an archive of such
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The store: s3://BUCKET/PREFIX, or a directory
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: String,
    /// The host that the traces are of, in place of the one that they name
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Go on: put each trace when it is closed, until SIGTERM
    #[arg(long)]
    pub(crate) follow: bool,
    /// Say what would be put, and put nothing
    #[arg(long, conflicts_with = "follow")]
    pub(crate) dry_run: bool,
    /// Print what is done with each trace as JSON, an object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory for rows that are not written yet
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    pub(crate) memory: u64,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  dormouse ship /var/lib/dormouse/web --to s3://traces/fleet
  dormouse ship traces --to /srv/store --dry-run         what would be put, and what is passed over
  dormouse ship traces --to s3://traces/fleet --follow   as a service: each trace when it is closed
  dormouse query s3://traces/fleet 'select host, count(*) from events group by host'

A trace is closed when its session has ended properly, and a chunk that LTTng has rotated when it lies in `archives`. What is still written is passed over, \
and a line on standard error says so.

Each trace is put once, however often and by however many this is run: its files have keys that are made of it, nothing is overwritten, and its manifest is \
written last, if it is not there. A run that is killed leaves nothing that a reader takes; the next one makes it whole. docs/machines.md has the layout.

A server is found by AWS_ENDPOINT_URL (http only where that says http), AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. What it does not do is tried \
again at most five times, for a minute. Files are made in TMPDIR.

Exit code: 0, also when SIGTERM ends --follow; 1 if a trace is damaged or cannot be read (the others are put); 2 if the store cannot be written.

{EXIT_CODES}"
    )
}
