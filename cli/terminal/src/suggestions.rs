//! Suggestions for mistyped names.

use clap::Error;
use clap::error::{ContextKind, ContextValue};

/// Kinds of error context: a wrong name, and the suggestion for it.
const PAIRS: [(ContextKind, ContextKind); 3] = [
    (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
    (ContextKind::InvalidArg, ContextKind::SuggestedArg),
    (ContextKind::InvalidValue, ContextKind::SuggestedValue),
];

/// Removes suggestions that only share some letters with the written name, such as `disarm` for `histogram`.
pub(crate) fn leave_out_far(error: &mut Error) {
    // Removes the tip to write `--` before the value: no path of a trace begins with two dashes.
    error.remove(ContextKind::Suggested);
    for (wrong, suggested) in PAIRS {
        let Some(ContextValue::String(written)) = error.get(wrong).cloned() else { continue };
        match error.remove(suggested) {
            Some(ContextValue::Strings(names)) => {
                let near: Vec<String> = names.into_iter().filter(|name| is_near(&written, name)).collect();
                if !near.is_empty() {
                    error.insert(suggested, ContextValue::Strings(near));
                }
            }
            // The usage contains the suggestion too.
            Some(ContextValue::String(name)) if !is_near(&written, &name) => {
                error.remove(ContextKind::Usage);
            }
            Some(other) => {
                error.insert(suggested, other);
            }
            None => {}
        }
    }
}

/// Whether at least half of the letters match, or one name is a prefix of the other.
fn is_near(written: &str, name: &str) -> bool {
    let (written, name) = (written.trim_start_matches('-'), name.trim_start_matches('-'));
    let written = written.split_once('=').map_or(written, |(name, _)| name);
    let is_beginning = name.starts_with(written) || written.starts_with(name);
    is_beginning || strsim::normalized_damerau_levenshtein(written, name) >= 0.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dissimilar_names_are_not_suggested() {
        let suggested = |arguments: &[&str]| {
            let names = ["disarm", "view", "snapshot"].map(clap::Command::new);
            let command = clap::Command::new("x").subcommand_required(true).subcommands(names);
            let command =
                command.mut_subcommand("view", |view| view.arg(clap::arg!(--format <F>)).arg(clap::arg!(--disarm)));
            let mut error = command.try_get_matches_from(arguments).expect_err("a wrong name");
            leave_out_far(&mut error);
            error.to_string()
        };
        assert!(!suggested(&["x", "histogram"]).contains("disarm"));
        for (wrong, right) in [("veiw", "'view'"), ("snap", "'snapshot'"), ("dsarm", "'disarm'")] {
            let text = suggested(&["x", wrong]);
            assert!(text.contains(right), "{text}");
        }
        let text = suggested(&["x", "view", "--formt=json"]);
        assert!(text.contains("'--format'"), "{text}");
        let text = suggested(&["x", "view", "--histogram"]);
        assert!(!text.contains("disarm"), "{text}");
    }
}
