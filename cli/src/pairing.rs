//! Finds the fields by which slices are paired, with a progress bar, and prints them.

use dormouse_analysis::timeline::{self, FoundKey, Options};
use dormouse_reader::{Reading, TraceFiles};
use dormouse_terminal::say;

use crate::progress::Progress;
use crate::selection::SelectionOptions;

/// Adds the keys that the selected events show to the options of a timeline. Prints which, each after the prefix
/// `before`, and returns these lines. `memory`: maximum memory in bytes.
pub(crate) fn find_keys(
    options: &mut Options,
    files: &TraceFiles,
    selection: &SelectionOptions,
    memory: usize,
    before: &str,
) -> anyhow::Result<Vec<String>> {
    options.found = survey(options, files, selection.reading(files)?, memory)?;
    let lines: Vec<String> = options.found.iter().map(FoundKey::text).collect();
    lines.iter().for_each(|line| say(format_args!("{before}{line}")));
    Ok(lines)
}

/// Memory for open begins while the fields of the keys of pairs are looked for, in bytes.
pub(crate) const SURVEY_BYTES: usize = 256 << 20;

/// Returns the keys that the events of a reading show. `memory`: maximum memory in bytes.
pub(crate) fn survey(
    options: &Options,
    files: &TraceFiles,
    mut reading: Reading<'_>,
    memory: usize,
) -> anyhow::Result<Vec<FoundKey>> {
    // The reading keeps names too.
    reading.limit_names(memory / 4);
    let mut progress = Progress::of(&reading, true);
    let traces_of_streams = files.readers().map(|(trace, _)| trace);
    timeline::find_keys(options, files.described(), traces_of_streams, memory, |survey| {
        reading.each_wanted(|next| survey.take(next), |reading| progress.step(reading));
    })
    .map_err(anyhow::Error::msg)
}
