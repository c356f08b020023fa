//! Writes the log records of Ballista and DataFusion as lines to standard error.

use dormouse_terminal::say;
use log::{LevelFilter, Log, Metadata, Record};

struct Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        let is_ours = record.target().starts_with("ballista") || record.target().starts_with("datafusion");
        if self.enabled(record.metadata()) && is_ours {
            // Only the first line: a plan has many.
            let text = record.args().to_string();
            say(format_args!(
                "{}: {}",
                record.level().as_str().to_lowercase(),
                text.lines().next().unwrap_or_default()
            ));
        }
    }

    fn flush(&self) {}
}

/// Installs the logger. It writes errors and warnings; if `is_verbose`, also information.
pub(crate) fn begin(is_verbose: bool) {
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(if is_verbose { LevelFilter::Info } else { LevelFilter::Warn });
    }
}
