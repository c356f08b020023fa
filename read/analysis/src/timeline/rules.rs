//! Rules that say which events begin and end slices.

use std::collections::{BTreeSet, HashMap};

use dormouse_abi::class::matches;
use dormouse_ctf::hash::QuickMap;
use dormouse_ctf::{ClassRef, Selection, Trace, TraceRef};
use dormouse_filter::{Filter, Kind as FieldKind, parse_name};

use super::{GivenPair, Options};
use crate::pick::Picker;
use crate::query::{Latency, Measure, Query};
use crate::schema::Schema;

/// A rule: names of classes that belong together. `*` stands for the same text in all three.
struct Rule {
    begin: &'static str,
    end: &'static str,
    name: &'static str,
    /// Fields that both have; if empty, they are matched by thread.
    key: &'static [&'static str],
    /// Condition that the begin must meet; other events begin nothing.
    only: Option<&'static str>,
    /// Whether the slice is the wait inside a call, which does not always have to wait: begin and end are of one thread,
    /// and an end without a begin is a call that did not wait.
    is_wait: bool,
}

impl Rule {
    /// Whether its slices are on the track of their thread.
    const fn is_of_thread(&self) -> bool {
        self.key.is_empty() || self.is_wait
    }
}

const fn nested(begin: &'static str, end: &'static str, name: &'static str) -> Rule {
    Rule { begin, end, name, key: &[], only: None, is_wait: false }
}

const fn wait(begin: &'static str, end: &'static str, name: &'static str, key: &'static [&'static str]) -> Rule {
    Rule { begin, end, name, key, only: None, is_wait: true }
}

const fn held(
    begin: &'static str,
    end: &'static str,
    name: &'static str,
    key: &'static [&'static str],
    only: &'static str,
) -> Rule {
    Rule { begin, end, name, key, only: Some(only), is_wait: false }
}

/// A class takes its role from the first rule of threads that matches both it and a class for the other end, and another
/// role from the first such rule of lanes. A class that is the end of several begins, such as `X_end` of `X_begin` and
/// `X_start`, ends the slices of each; slices of different begins that would have one name are called by both ends.
const RULES: [Rule; 30] = [
    // System calls, as LTTng and perf name them.
    nested("syscall_entry_*", "syscall_exit_*", "syscall_*"),
    nested("compat_syscall_entry_*", "compat_syscall_exit_*", "compat_syscall_*"),
    nested("syscalls:sys_enter_*", "syscalls:sys_exit_*", "syscalls:sys_*"),
    nested("*:begin", "*:end", "*"),
    nested("*_begin", "*_end", "*"),
    nested("*:entry", "*:exit", "*"),
    nested("*_entry", "*_exit", "*"),
    nested("*:enter", "*:leave", "*"),
    nested("*_enter", "*_leave", "*"),
    nested("*_enter", "*_exit", "*"),
    nested("*:start", "*:stop", "*"),
    nested("*_start", "*_stop", "*"),
    nested("*:start", "*:end", "*"),
    nested("*_start", "*_end", "*"),
    nested("*:in", "*:out", "*"),
    nested("*_in", "*_out", "*"),
    // A thread that waits for a mutex, as LTTng's pthread wrapper records it.
    nested("*_req", "*_acq", "*"),
    // Functions of libc, traced by `dormouse record --libc`: how long a thread waits for a lock, how long it holds the
    // lock, and how long a file is open, by any thread. A thread that waits for a condition releases the mutex
    // meanwhile, and holds it again after the wait, also after a time-out.
    wait("libc:mutex_lock_begin", "libc:mutex_lock", "libc:mutex wait", MUTEX),
    wait("libc:rwlock_rdlock_begin", "libc:rwlock_rdlock", "libc:rwlock wait", RWLOCK),
    wait("libc:rwlock_wrlock_begin", "libc:rwlock_wrlock", "libc:rwlock wait", RWLOCK),
    held("libc:mutex_lock", "libc:mutex_unlock", "libc:mutex held", MUTEX, IS_HELD),
    held("libc:mutex_trylock", "libc:mutex_unlock", "libc:mutex held", MUTEX, IS_HELD),
    held("libc:cond_wait_end", "libc:cond_wait_begin", "libc:mutex held", MUTEX, IS_HELD),
    held("libc:rwlock_rdlock", "libc:rwlock_unlock", "libc:rwlock held", RWLOCK, IS_LOCKED),
    held("libc:rwlock_tryrdlock", "libc:rwlock_unlock", "libc:rwlock held", RWLOCK, IS_LOCKED),
    held("libc:rwlock_wrlock", "libc:rwlock_unlock", "libc:rwlock held", RWLOCK, IS_LOCKED),
    held("libc:rwlock_trywrlock", "libc:rwlock_unlock", "libc:rwlock held", RWLOCK, IS_LOCKED),
    held("libc:open", "libc:close", "libc:file open", FILE, IS_OPEN),
    held("libc:openat", "libc:close", "libc:file open", FILE, IS_OPEN),
    held("libc:fopen", "libc:fclose", "libc:file open", FILE, IS_OPEN),
];

/// A lock is unlocked by the thread that holds it.
const MUTEX: &[&str] = &["pid", "tid", "mutex"];
const RWLOCK: &[&str] = &["pid", "tid", "rwlock"];
/// -130 is `EOWNERDEAD`: the thread holds the mutex, whose last holder has died. -110 is `ETIMEDOUT`: a wait for a
/// condition timed out, and the mutex is held; a lock that timed out is not held.
const IS_HELD: &str = "result == 0 or result == -130 or event == \"libc:cond_wait_end\" and result == -110";
const IS_LOCKED: &str = "result == 0";
/// Field of functions of libc that have one event, after the call: the time that it took, in nanoseconds.
const CALL_NS: &str = "fields.duration_ns";
const FILE: &[&str] = &["pid", "fd"];
const IS_OPEN: &str = "fd >= 0";

/// Classes that begin and end slices of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceRule {
    /// Name of the slices.
    pub name: String,
    /// Names of the classes that begin them.
    pub begins: Vec<String>,
    /// Names of the classes that end them.
    pub ends: Vec<String>,
    /// Fields that both have; if empty, they are matched by thread.
    pub key: &'static [&'static str],
    /// Condition that the begin must meet; other events begin nothing.
    pub only: Option<&'static str>,
    /// Whether an end without a begin is a call that did not wait.
    pub is_wait: bool,
}

/// Returns the slices that the names of a trace's classes define.
pub fn slice_rules(trace: TraceRef<'_>) -> Vec<SliceRule> {
    let classes: Vec<_> = ClassRef::all(trace).filter(|class| !class.is_state()).collect();
    let names = Names::new(classes.iter().map(|class| class.class.full_name.as_str()).collect());
    let mut found: Vec<SliceRule> = Vec::new();
    let mut index: HashMap<(String, &[&str]), usize> = HashMap::new();
    for class in &classes {
        for (at, name, is_begin) in names.rules_of(class) {
            let rule = &RULES[at];
            let at = *index.entry((name.clone(), rule.key)).or_insert_with(|| {
                let (key, is_wait) = (rule.key, rule.is_wait);
                found.push(SliceRule { name, begins: Vec::new(), ends: Vec::new(), key, only: None, is_wait });
                found.len() - 1
            });
            let ends = if is_begin { &mut found[at].begins } else { &mut found[at].ends };
            ends.push(class.class.full_name.clone());
            found[at].only = found[at].only.or(rule.only);
        }
    }
    found
}

/// Names of the classes of a trace, and what they define.
pub(super) struct Names<'n> {
    all: BTreeSet<&'n str>,
    /// Names of slices that begins of several names would share.
    shared: BTreeSet<String>,
}

impl<'n> Names<'n> {
    pub(super) fn new(all: BTreeSet<&'n str>) -> Names<'n> {
        let mut names = Names { all, shared: BTreeSet::new() };
        let (mut known, mut shared) = (BTreeSet::new(), BTreeSet::new());
        for begin in &names.all {
            let Some((at, text)) = names.begin_of(begin) else { continue };
            let name = RULES[at].name.replace('*', text);
            if !known.insert(name.clone()) {
                shared.insert(name);
            }
        }
        names.shared = shared;
        names
    }

    /// Returns the rules that apply to a class: their indices, the names of the slices, and whether the class begins.
    fn rules_of(&self, class: &ClassRef<'_>) -> Vec<(usize, String, bool)> {
        let full_name = class.class.full_name.as_str();
        let has = |part: &str| matches!(part, "pid" | "tid" | "cpu") || class.field(&parse_name(part)).is_some();
        let mut rules = Vec::new();
        for is_of_thread in [true, false] {
            let Some((at, text, is_begin)) = self.rule_of(full_name, is_of_thread, has) else { continue };
            if is_begin || !RULES[at].name.contains('*') {
                rules.push((at, self.slice_name(at, text), is_begin));
                continue;
            }
            // An end ends the slices of all begins that have it as their end.
            let before = rules.len();
            let begins = RULES.iter().filter(|rule| rule.name.contains('*'));
            let begins = begins.filter_map(|rule| Some(rule.begin.replace('*', star(rule.end, full_name)?)));
            let begins: Vec<String> = begins.filter(|begin| self.all.contains(begin.as_str())).collect();
            for begin in &begins {
                match self.begin_of(begin) {
                    Some((at, text)) if RULES[at].end.replace('*', text) == full_name => {
                        rules.push((at, self.slice_name(at, text), false));
                    }
                    _ => {}
                }
            }
            // If all have another one, it is another end of the first.
            if rules.len() == before
                && let Some((at, text)) = begins.iter().find_map(|begin| self.begin_of(begin))
            {
                rules.push((at, self.slice_name(at, text), false));
            }
        }
        rules
    }

    /// Returns the name of the slices of a rule: that of the rule, or that of both ends if other slices have it too.
    fn slice_name(&self, at: usize, text: &str) -> String {
        let Rule { begin, end, name, .. } = &RULES[at];
        let name = name.replace('*', text);
        match self.shared.contains(&name) {
            true => format!("{}..{}", begin.replace('*', text), end.replace('*', text)),
            false => name,
        }
    }

    /// Returns the rule by which a class begins slices of its thread whose name is a part of the class's: its index, and
    /// the text that `*` stands for.
    fn begin_of<'t>(&self, full_name: &'t str) -> Option<(usize, &'t str)> {
        let (at, text, is_begin) = self.rule_of(full_name, true, |_| true)?;
        (is_begin && RULES[at].name.contains('*')).then_some((at, text))
    }

    /// Returns the first rule, of threads or of lanes, that applies to a class: its index, the text that `*` stands for,
    /// and whether the class begins. `has`: whether the class has a part of a key.
    fn rule_of<'t>(
        &self,
        full_name: &'t str,
        is_of_thread: bool,
        has: impl Fn(&str) -> bool,
    ) -> Option<(usize, &'t str, bool)> {
        RULES.iter().enumerate().filter(|(_, rule)| rule.is_of_thread() == is_of_thread).find_map(|(at, rule)| {
            let (text, is_begin) = match star(rule.begin, full_name) {
                Some(text) => (text, true),
                None => (star(rule.end, full_name)?, false),
            };
            let other = if is_begin { rule.end } else { rule.begin };
            // An end without `*` ends the slices of all begins of the rule.
            let is_there = match is_begin || rule.end.contains('*') {
                true => self.all.contains(other.replace('*', text).as_str()),
                false => self.all.iter().any(|name| star(other, name).is_some()),
            };
            (is_there && rule.key.iter().all(|part| has(part))).then_some((at, text, is_begin))
        })
    }
}

/// A part of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The trace of the event. Process ids of different traces can be those of different processes.
    Trace,
    Cpu,
    Pid,
    Tid,
    /// Field, by its index in the picker.
    Field(usize),
}

/// A key that the events of a slice share.
#[derive(Debug)]
pub(super) struct KeyOf {
    pub parts: Vec<Part>,
}

/// Role of a class in slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Role {
    /// Index of a name that both ends share.
    pub pair: u32,
    /// Index of the slice's name.
    pub name: u32,
    pub is_begin: bool,
    /// Index of the key; `None` if the ends are matched by thread.
    pub key: Option<usize>,
    /// Index of the condition.
    pub only: Option<usize>,
    /// Whether an end without a begin is a call that did not wait.
    pub is_wait: bool,
    /// Whether begins and ends are on different threads, and no field tells which belong together.
    pub is_doubtful: bool,
}

/// A name of items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameText {
    /// The full name.
    pub text: String,
    /// Text before the first colon, which is the provider; empty without a colon.
    pub category: String,
    /// Whether no slice of this name is certain, see [`Doubt::Threads`](super::Doubt::Threads). The text says so too.
    pub is_doubtful: bool,
    /// What begins and ends of this name are paired by: fields, `pid`, `tid`, `cpu`; empty for pairs of a thread.
    pub key: Vec<String>,
}

/// Properties of an event class.
#[derive(Debug, Default)]
pub(super) struct Kind {
    /// Index of the class's name.
    pub name: u32,
    /// Roles of the class, ends before begins.
    pub roles: Vec<Role>,
    /// Index in the picker and name of each counter.
    pub counters: Vec<(usize, u32)>,
    /// Index in the picker of the duration in nanoseconds of the call that the event ends.
    pub call: Option<usize>,
    /// Whether fields of the event are needed.
    pub is_picked: bool,
}

/// The rules, bound to the classes of traces.
#[derive(Debug, Default)]
pub(super) struct Bound {
    pub names: Vec<NameText>,
    /// Index of the kind, by the address of the class, which does not move during the life of its trace.
    pub kind_by_class: QuickMap<usize, usize>,
    pub kinds: Vec<Kind>,
    pub keys: Vec<KeyOf>,
    pub conditions: Vec<Filter>,
    known: HashMap<String, u32>,
}

/// Returns the text that `*` stands for, in a pattern that has at most one.
fn star<'n>(pattern: &str, name: &'n str) -> Option<&'n str> {
    let Some((before, behind)) = pattern.split_once('*') else { return (pattern == name).then_some("") };
    name.strip_prefix(before)?.strip_suffix(behind).filter(|text| !text.is_empty())
}

impl Bound {
    /// # Errors
    /// The traces lack something that the options name; the text names the nearest.
    pub(super) fn new(options: &Options, traces: &[&Trace], picker: &mut Picker) -> Result<Bound, String> {
        check(options, traces)?;
        let mut bound = Bound::default();
        let given_key = bound.key(&[], &options.key, picker);
        for trace in traces {
            let classes: Vec<_> = ClassRef::all(TraceRef::from(*trace)).filter(|class| !class.is_state()).collect();
            let names = classes.iter().map(|class| class.class.full_name.as_str());
            // Classes of the given pairs are not the other end of any rule.
            let is_given =
                |name: &&str| options.pairs.iter().any(|pair| matches(&pair.begin, name) || matches(&pair.end, name));
            let names = Names::new(names.filter(|name| !is_given(name)).collect());
            for class in &classes {
                let kind = bound.kind(class, options, given_key, &names, picker);
                bound.kind_by_class.insert(std::ptr::from_ref(class.class).addr(), bound.kinds.len());
                bound.kinds.push(kind);
            }
        }
        Ok(bound)
    }

    /// Returns the conditions as selections that can be applied to events.
    pub(super) fn selections(&self) -> Vec<Selection> {
        self.conditions.iter().map(|filter| Selection::unchecked(Vec::new(), vec![filter.clone()])).collect()
    }

    fn kind(
        &mut self,
        class: &ClassRef<'_>,
        options: &Options,
        given_key: Option<usize>,
        names: &Names<'_>,
        picker: &mut Picker,
    ) -> Kind {
        let full_name = class.class.full_name.as_str();
        let name = self.name(full_name);
        let mut roles = Vec::new();
        for GivenPair { name, begin, end } in &options.pairs {
            let pair = self.name(name);
            self.names[pair as usize].key.clone_from(&options.key);
            for (pattern, is_begin) in [(end, false), (begin, true)] {
                if matches(pattern, full_name) {
                    roles.push(Role {
                        pair,
                        name: pair,
                        is_begin,
                        key: given_key,
                        only: None,
                        is_wait: false,
                        is_doubtful: false,
                    });
                }
            }
        }
        if roles.is_empty() {
            roles.extend(names.rules_of(class).into_iter().map(|of| self.role(of, picker)));
        }
        for role in roles.iter_mut().filter(|role| role.key.is_none() && !role.is_wait) {
            let text = self.names[role.pair as usize].text.clone();
            let Some(found) = options.found.iter().find(|found| found.name == text) else { continue };
            role.is_doubtful = found.fields.is_empty();
            if role.is_doubtful {
                role.name = self.name(&format!("{text} (not certain)"));
                self.names[role.name as usize].is_doubtful = true;
            } else {
                self.names[role.pair as usize].key = [&["pid".into()], &found.fields[..]].concat();
                let fields = found.fields.iter().map(|field| format!("fields.{field}"));
                role.key = self.key(&[Part::Trace, Part::Pid], &fields.collect::<Vec<_>>(), picker);
            }
        }
        roles.sort_by_key(|role| role.is_begin);
        let counters = options.counters.iter().filter(|(pattern, _)| matches(pattern, full_name));
        let counters = counters.filter(|(_, field)| class.field(&parse_name(field)).is_some());
        let counters: Vec<_> =
            counters.map(|(_, field)| (picker.want(field), self.name(&format!("{full_name} {field}")))).collect();
        let has_duration =
            || class.field(&parse_name(CALL_NS)).is_some_and(|(_, kind)| kind == Some(FieldKind::Number));
        let is_call = options.has_calls && roles.is_empty() && full_name.starts_with("libc:") && has_duration();
        let call = is_call.then(|| picker.want(CALL_NS));
        let is_picked = !counters.is_empty() || is_call || roles.iter().any(|role| role.key.is_some());
        Kind { name, roles, counters, call, is_picked }
    }

    /// Creates the role that a rule gives a class.
    fn role(&mut self, (at, name, is_begin): (usize, String, bool), picker: &mut Picker) -> Role {
        let rule = &RULES[at];
        let pair = self.name(&name);
        let key = if rule.is_of_thread() { None } else { self.key(&[Part::Trace], rule.key, picker) };
        if key.is_some() {
            self.names[pair as usize].key = rule.key.iter().map(|part| (*part).to_owned()).collect();
        }
        let only = rule.only.filter(|_| is_begin).and_then(|only| self.condition(only));
        Role { pair, name: pair, is_begin, key, only, is_wait: rule.is_wait, is_doubtful: false }
    }

    fn name(&mut self, text: &str) -> u32 {
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let category = text.split_once(':').map_or("", |(provider, _)| provider);
        self.names.push(NameText { text: text.into(), category: category.into(), is_doubtful: false, key: Vec::new() });
        let id = self.names.len() as u32 - 1;
        self.known.insert(text.into(), id);
        id
    }

    /// Returns the index of the key with these parts, and these properties after them; `None` if there are none.
    fn key<S: AsRef<str>>(&mut self, parts: &[Part], names: &[S], picker: &mut Picker) -> Option<usize> {
        let part = |name: &S| match name.as_ref() {
            "cpu" => Part::Cpu,
            "pid" => Part::Pid,
            "tid" => Part::Tid,
            field => Part::Field(picker.want(field)),
        };
        let parts: Vec<Part> = parts.iter().copied().chain(names.iter().map(part)).collect();
        if parts.is_empty() {
            return None;
        }
        let known = self.keys.iter().position(|key| key.parts == parts);
        Some(known.unwrap_or_else(|| {
            self.keys.push(KeyOf { parts });
            self.keys.len() - 1
        }))
    }

    fn condition(&mut self, text: &str) -> Option<usize> {
        self.conditions.push(Filter::parse(text).ok()?);
        Some(self.conditions.len() - 1)
    }
}

/// Checks that the traces have what the options need.
fn check(options: &Options, traces: &[&Trace]) -> Result<(), String> {
    for GivenPair { begin, end, .. } in &options.pairs {
        let (begin, end, key) = (begin.clone(), end.clone(), options.key.clone());
        let latency = Latency { begin, end, key, ..Latency::default() };
        Query { measure: Measure::Latency(latency), ..Query::default() }.check(traces)?;
    }
    if let Some(name) = options.key.iter().find(|name| matches!(name.as_str(), "event" | "process")) {
        return Err(format!("`{name}` is no key of slices; name fields, `pid`, `tid` or `cpu`"));
    }
    let schema = Schema::of(traces);
    for (pattern, field) in &options.counters {
        schema.check_pattern(pattern)?;
        if schema.check_field(field, std::slice::from_ref(pattern), &[])? == dormouse_filter::Kind::Text {
            return Err(format!("the field `{field}` is text, which is no counter"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_text_in_a_name() {
        for (pattern, name, expected) in [
            ("*:begin", "http:begin", Some("http")),
            ("*_entry", "app:request_entry", Some("app:request")),
            ("syscall_entry_*", "syscall_entry_openat", Some("openat")),
            ("*_begin", "_begin", None),
            ("libc:close", "libc:close", Some("")),
            ("libc:close", "libc:closed", None),
        ] {
            assert_eq!(star(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn rules_have_a_star_in_both_ends_or_a_key() {
        for rule in &RULES {
            let stars = [rule.begin, rule.end, rule.name].map(|text| text.matches('*').count());
            assert!(stars == [1, 1, 1] || (stars[0] <= 1 && stars[2] == 0 && !rule.key.is_empty()), "{}", rule.begin);
            assert!(!rule.is_wait || rule.key.contains(&"tid"), "{}", rule.begin);
            rule.only.iter().for_each(|only| drop(Filter::parse(only).unwrap()));
        }
    }
}
