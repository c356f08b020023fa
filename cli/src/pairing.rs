//! How slices are paired: the pass over the events that finds the fields by which they belong together.

use dormouse_analysis::timeline::{FoundKey, KeySurvey, Options};
use dormouse_ctf::Trace;
use dormouse_reader::{Item, Reading, TraceFiles};
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

/// Returns the keys that the events of a reading show. `memory`: maximum memory in bytes.
pub(crate) fn survey(
    options: &Options,
    files: &TraceFiles,
    mut reading: Reading<'_>,
    memory: usize,
) -> anyhow::Result<Vec<FoundKey>> {
    let traces: Vec<&Trace> = files.described().iter().collect();
    let survey = KeySurvey::new(options, &traces, files.readers().map(|(trace, _)| trace));
    let Some(mut survey) = survey.map_err(anyhow::Error::msg)? else { return Ok(Vec::new()) };
    survey.limit(memory);
    // The reading keeps names too.
    reading.limit_names(memory / 4);
    let mut progress = Progress::of(&reading, true);
    while let Some(item) = reading.next_item() {
        match item {
            Item::Wanted(event, _) => survey.event(&event),
            Item::Other(event) if event.is_state() => survey.event(&event),
            Item::Other(_) => {}
            Item::Notice(notice) => survey.notice(&notice),
        }
        progress.step(&reading);
    }
    Ok(survey.finish())
}
