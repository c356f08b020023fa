//! Rules and their patterns of event classes, and messages about patterns that match no class and conditions on fields
//! that no class has.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use dormouse_abi::class::{self, ClassDecl, FieldType, Level, matches};
use dormouse_abi::rule::Sample;
use dormouse_ctf::processes::ProcessProperty;
use dormouse_filter::{Filter, FilterError, Kind, Name, Part, RuleText};
use dormouse_terminal::say;
use dormouse_tools::{FileClass, classes_of_command, classes_of_file};

/// Maximum number of names that a line lists. If there are more, the line tells the nearest one.
const NAMES_SHOWN_MAX: usize = 8;

/// An event class, with the types of its fields as far as they are known.
pub(crate) type KnownClass = ClassDecl<Option<FieldType>>;

/// Returns a class whose types are known.
pub(crate) fn known(decl: &ClassDecl) -> KnownClass {
    let ClassDecl { provider, name, fields, labels, level } = decl.clone();
    let fields = fields.into_iter().map(|(name, field_type)| (name, Some(field_type))).collect();
    ClassDecl { provider, name, fields, labels, level }
}

/// The rules that a user gives for a session.
pub(crate) struct GivenRules(Vec<RuleText>);

impl GivenRules {
    /// Parses the texts of rules.
    ///
    /// # Errors
    /// A text is not a rule; the error shows where.
    pub(crate) fn parse(texts: &[String]) -> Result<GivenRules, FilterError> {
        let parse = |text: &String| -> Result<RuleText, FilterError> {
            let rule = RuleText::parse(text.trim())?;
            rule.to_rule()?;
            Ok(rule)
        };
        Ok(GivenRules(texts.iter().map(parse).collect::<Result<Vec<RuleText>, FilterError>>()?))
    }

    /// Returns the patterns of all rules.
    pub(crate) fn patterns(&self) -> Vec<&str> {
        self.0.iter().map(|rule| rule.pattern.as_str()).collect()
    }

    /// Returns the patterns of classes that are recorded.
    pub(crate) fn included(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|rule| !rule.is_exclusion).map(|rule| rule.pattern.as_str())
    }

    /// Returns the patterns of classes that are not recorded.
    pub(crate) fn excluded(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|rule| rule.is_exclusion).map(|rule| rule.pattern.as_str())
    }

    /// Whether the rules are only patterns, without levels, conditions, samples and exclusions.
    pub(crate) fn is_plain(&self) -> bool {
        let is_plain = |rule: &RuleText| {
            rule.levels.is_none() && rule.filter.is_none() && rule.sample.is_none() && rule.tail.is_none()
        };
        self.0.iter().all(|rule| !rule.is_exclusion && is_plain(rule))
    }

    /// Returns the errors of conditions that are true for no event of these classes, because no class that the rule's
    /// pattern matches has a level within the rule's bound, a field of the condition, or one of a kind that can be
    /// compared so.
    fn wrong_conditions(&self, classes: &[KnownClass]) -> Vec<FilterError> {
        self.0.iter().filter_map(|rule| wrong_condition(rule, classes)).collect()
    }

    /// Checks the conditions.
    ///
    /// # Errors
    /// The first condition that is true for no event of these classes. If a rule's pattern matches none of them, its
    /// condition is not checked.
    pub(crate) fn check(&self, classes: &[KnownClass]) -> Result<(), FilterError> {
        self.wrong_conditions(classes).into_iter().next().map_or(Ok(()), Err)
    }
}

fn wrong_condition(rule: &RuleText, classes: &[KnownClass]) -> Option<FilterError> {
    let matching = classes.iter().filter(|class| matches(&rule.pattern, &class.full_name()));
    let mut matching: Vec<&KnownClass> = matching.collect();
    if matching.is_empty() {
        return None;
    }
    if let Some(bound) = rule.levels {
        let known: Vec<Level> = matching.iter().filter_map(|class| class.level).collect();
        matching.retain(|class| bound.admits(class.level));
        if matching.is_empty() {
            // Later classes may have what an exclusion excludes.
            return (!rule.is_exclusion).then(|| rule.outside(known));
        }
    }
    if let Some(Sample::By(name, _)) = &rule.sample
        && kinds_of(name, &matching).is_empty()
    {
        return Some(rule.no_key(field_names(&matching)));
    }
    if let Some(tail) = &rule.tail
        && kinds_of(&tail.key, &matching).is_empty()
    {
        return Some(rule.no_tail_key(field_names(&matching)));
    }
    let filters = rule.filter.iter().chain(rule.tail.iter().map(|tail| &tail.keep));
    filters.into_iter().find_map(|filter| wrong_filter(filter, &matching))
}

/// Returns the error of a condition that is true for no event of these classes.
fn wrong_filter(filter: &Filter, matching: &[&KnownClass]) -> Option<FilterError> {
    let kinds: Vec<Vec<Kind>> = filter.names().map(|name| kinds_of(name, matching)).collect();
    if let Some(unknown) = kinds.iter().position(Vec::is_empty) {
        let is_of_process = filter.names().nth(unknown).is_some_and(|name| ProcessProperty::of(name).is_some());
        return Some(match is_of_process {
            true => filter.not_in_rules(unknown),
            false => filter.unknown(unknown, field_names(matching)),
        });
    }
    filter.mismatch(|name| kinds.get(name).cloned().unwrap_or_default())
}

/// Returns the names of the fields of classes.
fn field_names<'c>(classes: &[&'c KnownClass]) -> impl Iterator<Item = &'c str> {
    classes.iter().flat_map(|class| class.fields.iter().map(|(name, _)| name.as_str()))
}

/// Returns the kinds of values that a name has in events of these classes. Any program may set any tag.
fn kinds_of(name: &Name, classes: &[&KnownClass]) -> Vec<Kind> {
    if name.tag().is_some() {
        return vec![Kind::Enumeration];
    }
    let (first, is_whole) = match name.parts.as_slice() {
        [Part::Member(scope), Part::Member(first), rest @ ..] if scope == "fields" => (first, rest.is_empty()),
        [Part::Member(first), rest @ ..] => (first, rest.is_empty()),
        // Elsewhere such a name is an error.
        _ => return vec![Kind::Any],
    };
    let of_field = |(field, of): &(String, Option<FieldType>)| match is_whole {
        true if *first == format!("_{field}_length") => Some(Kind::Number),
        _ if field != first => None,
        // A sequence has values in its elements.
        true if of.is_some_and(|of| of.sequence || of.kind == class::Kind::Bytes) => None,
        true => Some(kind_of(*of)),
        false => Some(Kind::Any),
    };
    let mut found: Vec<Kind> = match name.word() {
        Some("event") => vec![Kind::Text],
        _ => classes.iter().flat_map(|class| class.fields.iter().filter_map(of_field)).collect(),
    };
    // The level of a class that has no field of this name.
    if name.word() == Some("level") && classes.iter().any(|class| class.level.is_some()) {
        found.push(Kind::Enumeration);
    }
    found
}

/// Returns the kind of a field's values, as far as its type says it: an integer may be an enumeration, which is
/// compared with numbers and with text.
fn kind_of(field_type: Option<FieldType>) -> Kind {
    match field_type {
        Some(FieldType { kind: class::Kind::Str, sequence: false }) => Kind::Text,
        Some(FieldType { kind: class::Kind::F32 | class::Kind::F64 | class::Kind::Pointer, sequence: false }) => {
            Kind::Number
        }
        _ => Kind::Any,
    }
}

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

/// Prints, before a command runs, which patterns of the rules and `triggers` match no event in its file, nor in the
/// library of `--libc` if that is given, and which conditions are true for none of their events. Prints nothing about a
/// file without events, because other programs and libraries may have them.
pub(crate) fn say_wrong_in_files(program: &OsStr, library: Option<&Path>, rules: &GivenRules, triggers: &[&str]) {
    let decls = |classes: Vec<FileClass>| -> Vec<KnownClass> { classes.into_iter().map(|class| class.decl).collect() };
    let classes_of_libc = decls(library.and_then(|library| classes_of_file(library).ok()).unwrap_or_default());
    let of_libc = names_of(&classes_of_libc);
    let (path, mut all): (Option<PathBuf>, Vec<KnownClass>) = match classes_of_command(program) {
        Some((path, classes)) => (Some(path), decls(classes)),
        None => (None, Vec::new()),
    };
    all.extend(classes_of_libc);
    let names = names_of(&all);
    let patterns: Vec<&str> = rules.patterns().into_iter().chain(triggers.iter().copied()).collect();
    for pattern in unmatched(&patterns, &names) {
        match &path {
            _ if pattern.starts_with("libc:") || pattern.starts_with("libc.") => match library {
                Some(_) if of_libc.is_empty() => {}
                Some(_) => say_unmatched(&[pattern], &of_libc, " of --libc"),
                None => say_needs_libc(pattern),
            },
            Some(path) => {
                let (path, instead) = (path.display(), instead(&[pattern], &names));
                say(format_args!(
                    "no event in {path} matches {pattern}; {instead}; libraries and other programs may have others"
                ));
            }
            None => {}
        }
    }
    let of = path.map_or(" of --libc".into(), |path| format!(" in {}", path.display()));
    for error in rules.wrong_conditions(&all) {
        say(format_args!("-e: {error}\n  among the events{of}; libraries and other programs may have others"));
    }
}

/// Prints that a pattern is one of libc's events, which the recording does not have.
pub(crate) fn say_needs_libc(pattern: &str) {
    say(format_args!("no event matches {pattern}; add `--libc` to trace a command's calls of libc"));
}

/// Returns the sorted names of classes.
pub(crate) fn names_of(classes: &[KnownClass]) -> Vec<String> {
    classes.iter().map(ClassDecl::full_name).collect::<BTreeSet<_>>().into_iter().collect()
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

    fn class(name: &str, fields: &[(&str, FieldType)]) -> KnownClass {
        let fields = fields.iter().map(|(name, of)| (name.to_string(), Some(*of))).collect();
        ClassDecl { provider: "http".into(), name: name.into(), fields, labels: class::Labels::new(), level: None }
    }

    #[test]
    fn conditions_on_what_no_event_has_are_wrong() {
        let (text, number) = (FieldType::scalar(class::Kind::Str), FieldType::scalar(class::Kind::U64));
        let sizes = FieldType { kind: class::Kind::U32, sequence: true };
        let fields = [("path", text), ("bytes", number), ("sizes", sizes)];
        let begin = KnownClass { level: Some(Level::Info), ..class("begin", &fields) };
        let classes = [begin, class("end", &[("status", number)])];
        let wrong = |rule: &str| {
            let error = GivenRules::parse(&[rule.to_string()]).unwrap().check(&classes).err();
            error.map(|error| error.to_string()).unwrap_or_default()
        };
        for right in [
            "http:*",
            "!http:*",
            "http:* where bytes > 5 and status == 200",
            "http:begin where path ~ \"/tmp/*\"",
            "http:* where event == \"http:end\" or fields.bytes > 5 or _path_length > 1",
            "http:end where status == \"OK\"",
            "http:* level<=INFO where bytes > 5",
            "http:* where level <= 4 or level == \"INFO\"",
            "!http:* level==DEBUG",
            "http:* sample 1/100 where status >= 500",
            "http:* sample by bytes 1/100",
            "http:* where bytes > 5 and tag.user == \"alice\"",
            "http:end where context.tag.user ~ \"a*\" and tag.request == status",
            "http:* sample by tag.request 1/100",
            "http:* tail 10s by bytes keep status >= 500",
            "http:* tail 10s by tag.request keep status >= 500 or tag.user == \"root\"",
            "http:* sample by sizes[0] 1/100 where sizes[1] > 5 and _sizes_length > 1",
            "db:* sample by rows 1/100",
            "db:* level==DEBUG",
            // Its classes are not known.
            "db:* where rows > 5",
        ] {
            assert_eq!(wrong(right), "", "{right}");
        }
        for (rule, part) in [
            ("http:* where byts > 5", "no event has byts; bytes is the nearest"),
            ("http:end where bytes > 5", "no event has bytes"),
            ("http:* where tags.user == 5", "no event has tags.user"),
            ("http:* where tag.user.name == 5", "no event has tag.user.name"),
            ("http:* sample by tag 1/100", "has the field of this sample"),
            ("http:* level<=WARNING", "no event that http:* matches has such a level; there are INFO"),
            ("http:end level==INFO where status", "http:end matches has such a level; they have none"),
            ("http:* level==INFO where status == 200", "no event has status"),
            ("http:end where level == 4", "no event has level"),
            ("http:begin where path > 5", "text"),
            ("http:* sample by user 1/100", "has the field of this sample; there are bytes, path, sizes, status"),
            ("http:* sample by sizes 1/100", "has the field of this sample"),
            (
                "http:* tail 10s by id keep status >= 500",
                "has the field of this tail; there are bytes, path, sizes, status",
            ),
            ("http:* tail 10s by bytes keep stats >= 500", "no event has stats; status is the nearest"),
            ("http:begin tail 10s by bytes keep path > 5", "text"),
            ("http:* where sizes > 5", "sizes has parts"),
            ("http:end sample by bytes 1/100", "has the field of this sample; there are status"),
        ] {
            assert!(wrong(rule).contains(part) && wrong(rule).contains('^'), "{rule}: {}", wrong(rule));
        }
    }

    #[test]
    fn patterns_of_rules_are_told_apart() {
        let texts = ["a:* where x", "!a:b", "c:d"].map(String::from);
        let rules = GivenRules::parse(&texts).unwrap();
        assert_eq!(rules.patterns(), ["a:*", "a:b", "c:d"]);
        assert!(rules.included().eq(["a:*", "c:d"]) && rules.excluded().eq(["a:b"]) && !rules.is_plain());
        assert!(GivenRules::parse(&texts[2..]).unwrap().is_plain());
        for text in ["c:d level<=ERR", "c:d where x", "c:d sample 1/10", "c:d tail 1s by x keep y", "!c:d"] {
            assert!(!GivenRules::parse(&[text.into()]).unwrap().is_plain(), "{text}");
        }
        assert!(GivenRules::parse(&["a:* where".into()]).is_err());
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
