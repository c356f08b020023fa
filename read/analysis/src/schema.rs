//! Fields and classes of traces, and messages about missing ones.

use std::collections::BTreeSet;

use dormouse_abi::class::matches;
use dormouse_ctf::processes::ProcessProperty;
use dormouse_ctf::{ClassRef, Trace, TraceRef};
use dormouse_filter::{Kind, parse_name};

/// Event classes of traces, without those of state records.
#[derive(Debug)]
pub(crate) struct Schema<'a> {
    classes: Vec<ClassRef<'a>>,
}

impl<'a> Schema<'a> {
    pub(crate) fn of(traces: &[&'a Trace]) -> Schema<'a> {
        let classes = traces.iter().flat_map(|trace| ClassRef::all(TraceRef::from(*trace)));
        Schema { classes: classes.filter(|class| !class.is_state()).collect() }
    }

    /// Returns the classes that match a pattern.
    pub(crate) fn matching(&self, pattern: &str) -> Vec<ClassRef<'a>> {
        self.classes.iter().filter(|class| matches(pattern, &class.class.full_name)).copied().collect()
    }

    /// Checks that a class matches a pattern. The error names the nearest class.
    pub(crate) fn check_pattern(&self, pattern: &str) -> Result<(), String> {
        if self.classes.iter().any(|class| matches(pattern, &class.class.full_name)) {
            return Ok(());
        }
        let plain = pattern.replace(['*', '?'], "").replace('.', ":");
        let names: BTreeSet<&str> = self.classes.iter().map(|class| class.class.full_name.as_str()).collect();
        Err(format!("no event class of the trace matches `{pattern}`; {}", instead(&plain, names.into_iter())))
    }

    /// Returns the kind of a field in the classes that match. The error names the nearest field, or says that the field
    /// has parts. `words`: other valid names.
    pub(crate) fn check_field(&self, name: &str, patterns: &[String], words: &[&str]) -> Result<Kind, String> {
        let classes: Vec<_> =
            self.classes.iter().filter(|class| is_matched(patterns, &class.class.full_name)).collect();
        let wanted = parse_name(name);
        let kinds: Vec<Option<Kind>> = classes.iter().filter_map(|class| Some(class.field(&wanted)?.1)).collect();
        // A field that is text in some classes only counts as a number.
        let texts = kinds.iter().flatten().filter(|kind| **kind == Kind::Text).count();
        match kinds.iter().flatten().count() {
            0 if kinds.is_empty() => {}
            0 => return Err(format!("the field `{name}` has parts; name one of them: `{name}.MEMBER` or `{name}[0]`")),
            count if count == texts => return Ok(Kind::Text),
            _ => return Ok(Kind::Number),
        }
        let fields: Vec<String> = classes.iter().flat_map(|class| class.class.names()).collect();
        let names: BTreeSet<&str> = fields.iter().map(String::as_str).chain(words.iter().copied()).collect();
        let of = if patterns.is_empty() { "no event class" } else { "none of the event classes" };
        Err(format!("{of} has a field `{name}`; {}", instead(name, names.into_iter())))
    }

    /// Returns the property of processes that a name stands for: no class that matches has a field of this name, and the
    /// processes of at least one are known.
    pub(crate) fn process_property(&self, name: &str, patterns: &[String]) -> Option<ProcessProperty> {
        let wanted = parse_name(name);
        let property = ProcessProperty::of(&wanted)?;
        let mut classes = self.classes.iter().filter(|class| is_matched(patterns, &class.class.full_name));
        let is_field = classes.clone().any(|class| class.field(&wanted).is_some());
        (!is_field && classes.any(|class| class.process_property(&wanted).is_some())).then_some(property)
    }

    pub(crate) fn has_clock(&self) -> bool {
        self.classes.iter().any(ClassRef::has_clock)
    }

    /// Whether one of the names is known in any class.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        names.iter().map(|name| parse_name(name)).any(|name| self.classes.iter().any(|class| class.has(&name)))
    }
}

/// Returns the process that a trace belongs to, if it is a trace of a single process.
pub(crate) fn environment_pid(trace: &Trace) -> Option<u32> {
    trace.class.env.iter().find_map(|(name, value)| match value {
        dormouse_ctf::model::EnvValue::Number(vpid) if name == "vpid" => u32::try_from(*vpid).ok(),
        _ => None,
    })
}

/// Whether a name matches one of the patterns, or there are none.
pub(crate) fn is_matched(patterns: &[String], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches(pattern, name))
}

/// Returns a hint that names the nearest known name.
pub(crate) fn instead<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let likeness = |other: &&str| strsim::jaro_winkler(name, other);
    match names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(nearest) => format!("the nearest is `{nearest}`"),
        None => "there is none".into(),
    }
}
