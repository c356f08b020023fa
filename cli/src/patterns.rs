//! Patterns of event classes, and messages about patterns that match no class.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use dormouse_abi::class::matches;
use dormouse_terminal::say;
use dormouse_tools::{FileClass, classes_of_command, classes_of_file};

/// Maximum number of names that a line lists. If there are more, the line tells the nearest one.
const NAMES_SHOWN_MAX: usize = 8;

/// Returns a number of event classes in words.
pub(crate) fn classes(count: u32) -> String {
    format!("{count} event class{}", if count == 1 { "" } else { "es" })
}

/// Returns the patterns that match none of the names.
pub(crate) fn unmatched<'a>(patterns: &[&'a str], names: &[String]) -> Vec<&'a str> {
    let is_unmatched = |pattern: &&str| !names.iter().any(|name| matches(pattern, name));
    patterns.iter().copied().filter(is_unmatched).collect()
}

/// Prints a line for each pattern that matches none of the names. `of` says where the names come from:
/// ` of process 7`.
pub(crate) fn say_unmatched(patterns: &[&str], names: &[String], of: &str) {
    for pattern in unmatched(patterns, names) {
        say(format_args!("no event{of} matches {pattern}; {}", instead(&[pattern], names)));
    }
}

/// Prints, before a command runs, which patterns match no event in its file, nor in the library of `--libc` if that is
/// given. Prints nothing about a file without events, because other programs and libraries may have them.
pub(crate) fn say_unmatched_in_files(program: &OsStr, library: Option<&Path>, patterns: &[&str]) {
    let of_libc = names_of(&library.and_then(|library| classes_of_file(library).ok()).unwrap_or_default());
    let own = classes_of_command(program).map(|(path, classes)| (path, names_of(&classes)));
    let mut names = own.iter().flat_map(|(_, names)| names).chain(&of_libc).cloned().collect::<Vec<_>>();
    names.sort();
    for pattern in unmatched(patterns, &names) {
        match &own {
            _ if pattern.starts_with("libc:") || pattern.starts_with("libc.") => match library {
                Some(_) if of_libc.is_empty() => {}
                Some(_) => say_unmatched(&[pattern], &of_libc, " of --libc"),
                None => say_needs_libc(pattern),
            },
            Some((path, _)) => {
                let (path, instead) = (path.display(), instead(&[pattern], &names));
                say(format_args!(
                    "no event in {path} matches {pattern}; {instead}; libraries and other programs may have others"
                ));
            }
            None => {}
        }
    }
}

/// Prints that a pattern is one of libc's events, which the recording does not have.
pub(crate) fn say_needs_libc(pattern: &str) {
    say(format_args!("no event matches {pattern}; add `--libc` to trace a command's calls of libc"));
}

/// Returns the sorted names of classes.
fn names_of(classes: &[FileClass]) -> Vec<String> {
    classes.iter().map(|class| class.decl.full_name()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns a text that tells which names exist, for patterns of which none matches. `names` must be sorted.
pub(crate) fn instead(patterns: &[&str], names: &[String]) -> String {
    match names.len() {
        0 => "there are none".into(),
        1 => format!("there is {}", names[0]),
        2..=NAMES_SHOWN_MAX => format!("there are {}", names.join(", ")),
        count => {
            let plain: Vec<String> = patterns.iter().map(|pattern| pattern.replace(['*', '?'], "")).collect();
            let likeness = |name: &String| {
                let each = plain.iter().map(|plain| strsim::jaro_winkler(&plain.replace('.', ":"), name));
                each.fold(0.0, f64::max)
            };
            let nearest = names.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            format!("{} is the nearest of {count}", nearest.map_or("none", String::as_str))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("shop:order_{number}")).collect()
    }

    #[test]
    fn few_names_are_listed_but_only_the_nearest_of_many() {
        assert_eq!(instead(&["x"], &[]), "there are none");
        assert_eq!(instead(&["x"], &names(1)), "there is shop:order_0");
        assert_eq!(instead(&["x"], &names(2)), "there are shop:order_0, shop:order_1");
        let mut many = names(NAMES_SHOWN_MAX + 1);
        many.push("http:request".into());
        for pattern in ["htpp:*", "http.reqest", "*request"] {
            assert_eq!(instead(&[pattern], &many), "http:request is the nearest of 10");
        }
        assert_eq!(unmatched(&["shop:*", "shop.order_?", "shop", ""], &many), ["shop", ""]);
    }
}
