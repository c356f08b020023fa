//! What the classes of traces have, and what is said of what they have not.

use std::collections::{BTreeMap, BTreeSet};

use dormouse_abi::class::matches;
use dormouse_abi::page::STREAM_STATE;
use dormouse_ctf::Trace;
use dormouse_ctf::model::{FieldClass, Struct};

/// What a field holds, as far as questions need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holds {
    Number,
    /// Numbers with names can be counted by, and measured.
    Text,
    /// Elements have no names of their own.
    Elements,
}

/// Classes of events, each with the names of its fields, and what its contexts have.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    pub classes: BTreeMap<String, BTreeMap<String, Holds>>,
    contexts: BTreeSet<String>,
    pub has_clock: bool,
    has_process_name: bool,
    has_environment_pid: bool,
}

impl Schema {
    pub(crate) fn of(traces: &[&Trace]) -> Schema {
        let mut schema = Schema::default();
        for trace in traces {
            let is_own = trace.own.is_some();
            schema.has_process_name |= is_own || trace.class.env_text("procname").is_some();
            schema.has_environment_pid |= environment_pid(trace).is_some();
            for stream in trace.class.streams.iter().filter(|stream| !(is_own && stream.id == u64::from(STREAM_STATE)))
            {
                schema.has_clock |= stream.clock.is_some();
                for class in &stream.events {
                    let fields = schema.classes.entry(class.name.clone()).or_default();
                    for context in [&stream.event_context, &class.context].into_iter().flatten() {
                        schema.contexts.extend(context.members.iter().map(|member| member.shown_name().to_string()));
                        put_fields("", context, fields);
                    }
                    // Fields come before contexts of the same name.
                    class.fields.iter().for_each(|structure| put_fields("", structure, fields));
                }
            }
        }
        schema
    }

    pub(crate) fn classes_of(&self, patterns: &[String]) -> impl Iterator<Item = (&String, &BTreeMap<String, Holds>)> {
        self.classes.iter().filter(move |(name, _)| is_matched(patterns, name))
    }

    /// Says which class is the nearest, if no class matches.
    pub(crate) fn check_pattern(&self, pattern: &str) -> Result<(), String> {
        if self.classes.keys().any(|name| matches(pattern, name)) {
            return Ok(());
        }
        let plain = pattern.replace(['*', '?'], "").replace('.', ":");
        Err(format!(
            "no event class of the trace matches `{pattern}`; {}",
            instead(&plain, self.classes.keys().map(String::as_str))
        ))
    }

    /// What a field of the classes that match holds. Says which is the nearest, if none of these has it.
    /// `words`: what it could be besides.
    pub(crate) fn check_field(&self, name: &str, patterns: &[String], words: &[&str]) -> Result<Holds, String> {
        let classes: Vec<_> = self.classes_of(patterns).collect();
        let found = classes.iter().filter_map(|(_, fields)| fields.get(name)).min();
        found.copied().ok_or_else(|| {
            let fields = classes.iter().flat_map(|(_, fields)| fields.keys().map(String::as_str));
            let names: BTreeSet<&str> = fields.chain(words.iter().copied()).collect();
            let of = if patterns.is_empty() { "no event class" } else { "none of the event classes" };
            format!("{of} has a field `{name}`; {}", instead(name, names.into_iter()))
        })
    }

    fn has_context(&self, names: [&str; 2]) -> bool {
        names.iter().any(|name| self.contexts.contains(*name))
    }

    pub(crate) fn has_pid(&self) -> bool {
        self.has_environment_pid || self.has_context(["vpid", "pid"])
    }

    pub(crate) fn has_tid(&self) -> bool {
        self.has_context(["vtid", "tid"])
    }

    pub(crate) fn has_process(&self) -> bool {
        self.contexts.contains("procname") || self.has_pid() || self.has_process_name
    }
}

/// The process that a trace is of, if it is of one alone.
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

fn put_fields(prefix: &str, structure: &Struct, fields: &mut BTreeMap<String, Holds>) {
    for member in &structure.members {
        put_field(format!("{prefix}{}", member.shown_name()), &member.class, fields);
    }
}

fn put_field(name: String, class: &FieldClass, fields: &mut BTreeMap<String, Holds>) {
    let holds = match class {
        FieldClass::Integer(_) | FieldClass::Float(_) => Holds::Number,
        FieldClass::Text(_) | FieldClass::Array { is_text: true, .. } => Holds::Text,
        FieldClass::Array { .. } | FieldClass::Blob { .. } => Holds::Elements,
        FieldClass::Optional(optional) => return put_field(name, &optional.class, fields),
        FieldClass::Struct(structure) => return put_fields(&format!("{name}."), structure, fields),
        FieldClass::Variant(variant) => {
            for option in &variant.options {
                let shown = option.name.strip_prefix('_').unwrap_or(&option.name);
                put_field(format!("{name}.{shown}"), &option.class, fields);
            }
            return;
        }
    };
    fields.insert(name, holds);
}

/// What there is in place of a name that is not there.
fn instead<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let likeness = |other: &&str| strsim::jaro_winkler(name, other);
    match names.max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
        Some(nearest) => format!("the nearest is `{nearest}`"),
        None => "there is none".into(),
    }
}
