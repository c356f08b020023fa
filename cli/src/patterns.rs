//! Patterns of event classes, and messages about patterns that match no class.

use dormouse_abi::class::matches;

use dormouse_terminal::say;

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
