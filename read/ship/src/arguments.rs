//! Command-line arguments.

use std::path::PathBuf;

use clap::Parser;
use dormouse_terminal::{EXIT_CODES, parse_size};

/// Copy closed traces into a Parquet store, which `dormouse query` and other tools read
#[derive(Debug, Parser)]
#[command(name = "dormouse-ship", bin_name = "dormouse ship", version, max_term_width = 100, after_help = after_help())]
pub(crate) struct Ship {
    /// A trace directory, a directory that contains traces, or an archive of these
    #[arg(value_name = "TRACE")]
    pub(crate) dir: PathBuf,
    /// Store to write to: s3://BUCKET/PREFIX, or a directory
    #[arg(long, value_name = "PLACE")]
    pub(crate) to: String,
    /// Name of the host of the traces, instead of the one in their metadata
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Continue, and ship each trace when it is closed, until SIGTERM
    #[arg(long)]
    pub(crate) follow: bool,
    /// Print what would be shipped, but ship nothing
    #[arg(long, conflicts_with = "follow")]
    pub(crate) dry_run: bool,
    /// Print what is done with each trace as JSON, an object on each line
    #[arg(long)]
    pub(crate) json: bool,
    /// Memory for rows that are not yet written
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_size)]
    pub(crate) memory: u64,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  dormouse ship /var/lib/dormouse/web --to s3://traces/fleet
  dormouse ship traces --to /srv/store --dry-run         what would be shipped or skipped
  dormouse ship traces --to s3://traces/fleet --follow   as a service: each trace when it is closed
  dormouse query s3://traces/fleet 'select host, count(*) from events group by host'

A trace is closed when its session has ended properly; a chunk of LTTng is closed when LTTng has rotated it into `archives`. Traces that are still being written are skipped, \
and a line on standard error says so.

Each trace is shipped once, even if several of these commands run repeatedly or at once: the keys of its files are derived from the trace, nothing is overwritten, and its manifest is \
written last, if it does not exist yet. Readers ignore what a killed run leaves behind; the next run completes it. docs/machines.md describes the layout.

These variables name the server and its credentials: AWS_ENDPOINT_URL (plain http only if the URL says http), AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. A request that fails is \
repeated at most five times, for at most a minute. Files are created in TMPDIR.

Exit code: 0, also when SIGTERM ends --follow; 1 if a trace is damaged or cannot be read (the others are shipped); 2 if the store cannot be written.

{EXIT_CODES}"
    )
}
