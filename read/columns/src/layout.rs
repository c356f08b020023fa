//! The columns of a request, and the members of classes that fill them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow_array::StringArray;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dormouse_abi::class::matches;
use dormouse_ctf::model::Scope;
use dormouse_ctf::plan::{MemberRef, Pick, Projection};
use dormouse_ctf::stream::Choice;
use dormouse_ctf::{ClassRef, Selection, TraceRef};
use dormouse_filter::{Filter, FilterError};

use crate::column::Column;
use crate::kind::Kind;
use crate::part::{MixedKinds, PartColumn, part_columns};

/// The requested events and columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Names of classes, in which `*` matches any characters and `?` one character. If empty: all classes.
    pub events: Vec<String>,
    /// Names of columns, or of fields nested in others, in the order of the result. `None`: all columns.
    pub columns: Option<Vec<String>>,
    /// Earliest time of events, in nanoseconds since the epoch. With a limit, events without a time are left out.
    pub since_ns: Option<i64>,
    /// Time that all events precede, in nanoseconds since the epoch.
    pub until_ns: Option<i64>,
    /// Conditions that all must be true for an event, in the language of `dormouse_filter`.
    pub conditions: Vec<String>,
    /// Whether text columns are binary.
    pub is_text_binary: bool,
    /// Additional columns, after the others.
    pub extras: Vec<Extra>,
    /// Whether the records that describe a Dormouse session are left out if `events` is empty.
    pub is_without_state: bool,
}

/// An additional column that is not a single field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// `process`: name of the process that wrote the event, as text. Null if the trace does not have it.
    Process,
    /// `thread`: name of the thread that wrote the event, as text. Null if it has none of its own.
    Thread,
    /// `fields`: contexts and fields as a JSON object, in the form of `dormouse view --format json`.
    Json,
}

impl Request {
    /// Whether an event with this time is requested.
    #[inline]
    pub(crate) fn is_within(&self, time_ns: Option<i64>) -> bool {
        let Some(time_ns) = time_ns else { return self.since_ns.is_none() && self.until_ns.is_none() };
        self.since_ns.is_none_or(|since| time_ns >= since) && self.until_ns.is_none_or(|until| time_ns < until)
    }
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum RequestError {
    #[error("no event class matches `{pattern}`; there are {known}")]
    NoClass { pattern: String, known: String },
    #[error("where: {0}")]
    Condition(#[from] FilterError),
    #[error("there is no column `{name}`; there are {known}")]
    NoColumn { name: String, known: String },
    #[error(transparent)]
    Mixed(#[from] MixedKinds),
}

/// Columns that all events have.
pub const COMMON: [&str; 5] = ["time", "cpu", "pid", "tid", "event"];

/// Stands for the class of a state record that is read only because it describes the processes of other events.
pub(crate) const STATE: usize = usize::MAX;

/// Maximum number of names in an error message.
const SHOWN_COUNT: usize = 20;

/// Source of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Time,
    Cpu,
    Event,
    Process,
    Thread,
    Json,
    /// Members fill the column with this index.
    Members(usize),
}

/// A class that is read.
#[derive(Debug)]
pub(crate) struct Chosen<'a> {
    pub class: ClassRef<'a>,
    pub projection: Projection,
    /// Nested fields, each with its column.
    pub parts: Vec<(Pick, usize)>,
    /// Whether its events describe the processes of other events.
    pub is_state: bool,
    /// Indices of the columns that it fills.
    pub columns: Vec<usize>,
    /// Key of its name in the dictionary of names.
    pub name: i32,
}

/// The columns, and how the traces `'a` fill them.
#[derive(Debug)]
pub struct Layout<'a> {
    schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) chosen: Vec<Chosen<'a>>,
    /// Choice of events for each trace.
    pub(crate) choices: Vec<Choice<'a>>,
    pub(crate) names: Arc<StringArray>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) request: Request,
}

/// A class and the columns for its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassColumns {
    /// Full name, `provider:name`.
    pub name: String,
    /// Columns for the fields, without those that all events have.
    pub fields: Vec<Field>,
}

/// Returns the distinct classes of traces, in alphabetical order.
pub fn classes<'a>(traces: impl IntoIterator<Item = TraceRef<'a>>) -> Vec<ClassColumns> {
    let mut found: BTreeMap<&str, Table> = BTreeMap::new();
    for class in traces.into_iter().flat_map(ClassRef::all) {
        found.entry(&class.class.full_name).or_default().add(class);
    }
    let columns = |(name, table): (&str, Table)| {
        let fields = table.columns.iter().filter(|column| !COMMON.contains(&column.name.as_str()));
        let fields = fields.map(|column| Field::new(&column.name, column.kind.data_type(false), true)).collect();
        ClassColumns { name: name.into(), fields }
    };
    found.into_iter().map(columns).collect()
}

/// Returns the classes with this name: for each its members, and for each member the column that it fills.
pub fn filled<'a>(
    traces: impl IntoIterator<Item = TraceRef<'a>>,
    class: &str,
) -> Vec<Vec<(MemberRef<'a>, Option<String>)>> {
    let mut table = Table::of_events();
    let named = traces.into_iter().flat_map(ClassRef::all).filter(|one| one.class.full_name == class);
    let of_class = |class: ClassRef<'a>| {
        let columns = table.add(class).into_iter();
        let names = columns.map(|column| column.map(|column| table.columns[column].name.clone()));
        class.class.members().into_iter().zip(names).collect()
    };
    named.map(of_class).collect()
}

/// A column with name and kind.
#[derive(Debug)]
struct Named {
    name: String,
    kind: Kind,
    /// Name of the class that it was made for.
    class: String,
}

/// The columns that members of classes fill.
#[derive(Debug, Default)]
struct Table {
    columns: Vec<Named>,
    index: std::collections::HashMap<String, usize>,
}

impl Table {
    /// Returns a table with the columns of all events, which exist even if no class fills them.
    fn of_events() -> Table {
        let mut table = Table::default();
        for name in ["pid", "tid"] {
            table.column(name, "", &Kind::UINT32, &HashSet::new());
        }
        table
    }

    /// Returns the column with this name if a common kind holds both, otherwise a column with another name.
    fn column(&mut self, name: &str, class: &str, kind: &Kind, taken: &HashSet<usize>) -> usize {
        let mut name = name.to_string();
        loop {
            let Some(index) = self.index.get(&name).copied() else {
                self.columns.push(Named { name: name.clone(), kind: kind.clone(), class: class.into() });
                self.index.insert(name, self.columns.len() - 1);
                return self.columns.len() - 1;
            };
            let before = &self.columns[index];
            // Within one class, differing integer types of several programs share a column.
            let common =
                if before.class == class { before.kind.common_or_wide(kind) } else { before.kind.common(kind) };
            let common = common.filter(|_| !taken.contains(&index));
            if let Some(common) = common {
                self.columns[index].kind = common;
                return index;
            }
            name =
                if taken.contains(&index) || name.starts_with(class) { name + "_" } else { format!("{class}.{name}") };
        }
    }

    /// Adds a class, and returns the column that each of its members fills.
    fn add(&mut self, class: ClassRef<'_>) -> Vec<Option<usize>> {
        let members = class.class.members();
        let full_name = &class.class.full_name;
        let sources = ["pid", "tid"].map(|name| source(&members, name));
        let mut taken = HashSet::new();
        let mut columns = Vec::new();
        for (at, member) in members.iter().enumerate() {
            let kind = Kind::new(member.field, member.declared);
            let column = match sources.iter().position(|source| *source == Some(at)) {
                _ if member.is_count => None,
                Some(of) => Some(self.column(["pid", "tid"][of], full_name, &Kind::UINT32, &taken)),
                None => Some(self.column(&column_name(member), full_name, &kind, &taken)),
            };
            taken.extend(column);
            columns.push(column);
        }
        columns
    }
}

/// Returns the index of the context that has the process or thread id.
fn source(members: &[MemberRef<'_>], name: &str) -> Option<usize> {
    let is = |member: &MemberRef<'_>, name: &str| {
        member.scope != Scope::Fields
            && member.name == name
            && matches!(Kind::new(member.field, None), Kind::Integer { .. })
    };
    let at = |name: &str| members.iter().position(|member| is(member, name));
    at(&format!("v{name}")).or_else(|| at(name))
}

fn column_name(member: &MemberRef<'_>) -> String {
    let scope = if member.scope == Scope::Fields { "fields" } else { "context" };
    let is_common = COMMON.contains(&member.name);
    if is_common { format!("{scope}.{}", member.name) } else { member.name.to_string() }
}

impl<'a> Layout<'a> {
    /// Finds out what to read of these traces.
    ///
    /// # Errors
    /// A pattern matches no class, a column is in none of the classes, or a condition is wrong. The error lists the
    /// known names.
    pub fn new(traces: &[TraceRef<'a>], request: &Request) -> Result<Layout<'a>, RequestError> {
        let classes: Vec<Vec<ClassRef<'a>>> = traces.iter().map(|trace| ClassRef::all(*trace).collect()).collect();
        let full_name = |class: &ClassRef<'a>| class.class.full_name.as_str();
        if let Some(pattern) = request
            .events
            .iter()
            .find(|pattern| !classes.iter().flatten().any(|class| matches(pattern, full_name(class))))
        {
            let known = listed(classes.iter().flatten().map(full_name));
            return Err(RequestError::NoClass { pattern: pattern.clone(), known });
        }
        let is_chosen = |class: &ClassRef<'a>| match request.events.is_empty() {
            true => !(request.is_without_state && class.is_state()),
            false => request.events.iter().any(|pattern| matches(pattern, full_name(class))),
        };
        let mut table = Table::of_events();
        let mut found = Vec::new();
        for (trace, classes) in classes.iter().enumerate() {
            for class in classes.iter().filter(|class| is_chosen(class)) {
                found.push((trace, *class, table.add(*class)));
            }
        }
        let asked_for = request.columns.iter().flatten().map(String::as_str);
        let is_part = |name: &&str| !COMMON.contains(name) && !table.index.contains_key(*name);
        let classes_found: Vec<ClassRef<'a>> = found.iter().map(|(_, class, _)| *class).collect();
        let parts = part_columns(asked_for.filter(is_part), &classes_found)?;
        let (origins, fields, kept) = columns(&table, &parts, request)?;
        let kept_count = kept.iter().flatten().count();
        let mut names: Vec<&str> = Vec::new();
        let mut name_index = std::collections::HashMap::new();
        let mut choices: Vec<Choice<'a>> = traces.iter().map(|_| Choice::default()).collect();
        let mut chosen = Vec::new();
        for (at, (trace, class, members)) in found.iter().enumerate() {
            let of_parts = parts.iter().enumerate();
            let of_parts = of_parts.filter_map(|(part, column)| Some((column.picks[at].clone()?, kept_count + part)));
            let of_parts: Vec<(Pick, usize)> = of_parts.collect();
            let of_member: Vec<Option<usize>> = members.iter().map(|column| kept[(*column)?]).collect();
            let name = *name_index.entry(full_name(class)).or_insert_with(|| {
                names.push(full_name(class));
                names.len() - 1
            });
            choices[*trace].add(*class, chosen.len());
            chosen.push(Chosen {
                class: *class,
                projection: class.project(&of_member),
                is_state: class.is_state(),
                columns: of_member.into_iter().flatten().chain(of_parts.iter().map(|(_, column)| *column)).collect(),
                parts: of_parts,
                name: name as i32,
            });
        }
        let filters = request.conditions.iter().map(|text| Filter::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if !filters.is_empty() {
            Selection::new(Vec::new(), filters.clone(), traces.iter().copied())?;
        }
        if !filters.is_empty() || request.extras.iter().any(|extra| *extra != Extra::Json) {
            for (choice, classes) in choices.iter_mut().zip(&classes) {
                let state = classes.iter().filter(|class| class.is_state() && !is_chosen(class));
                state.for_each(|class| choice.add(*class, STATE));
            }
        }
        let kinds = table.columns.iter().zip(&kept).filter(|(_, kept)| kept.is_some());
        let kinds = kinds.map(|(column, _)| &column.kind).chain(parts.iter().map(|part| &part.kind)).cloned().collect();
        Ok(Layout {
            schema: Arc::new(Schema::new(fields)),
            origins,
            kinds,
            chosen,
            choices,
            names: Arc::new(StringArray::from(names)),
            filters,
            request: request.clone(),
        })
    }

    /// Returns the columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Returns which events to read of the trace with this index.
    pub fn choice(&self, trace: usize) -> &Choice<'a> {
        &self.choices[trace]
    }

    /// Returns the first and the last requested time, in nanoseconds since the epoch.
    pub fn times(&self) -> (i64, i64) {
        let Request { since_ns, until_ns, .. } = self.request;
        (since_ns.unwrap_or(i64::MIN), until_ns.map_or(i64::MAX, |until| until.saturating_sub(1)))
    }

    /// Returns empty columns for members to fill.
    pub(crate) fn columns(&self) -> Vec<Column> {
        self.kinds.iter().map(|kind| Column::new(kind.clone(), self.request.is_text_binary)).collect()
    }
}

/// Origins and types of the requested columns, and for each column of the table its index among the filled ones.
type Columns = (Vec<Origin>, Vec<Field>, Vec<Option<usize>>);

fn columns(table: &Table, parts: &[PartColumn], request: &Request) -> Result<Columns, RequestError> {
    let of_members = table.columns.iter().map(|column| column.name.as_str());
    let others = of_members.clone().filter(|name| !COMMON.contains(name));
    let all: Vec<&str> = COMMON.into_iter().chain(others).collect();
    let wanted: Vec<&str> = match &request.columns {
        Some(columns) => columns.iter().map(String::as_str).collect(),
        None => all.clone(),
    };
    let is_wanted: HashSet<&str> = wanted.iter().copied().collect();
    let mut count = 0;
    let kept: Vec<Option<usize>> = of_members
        .map(|name| {
            is_wanted.contains(name).then(|| {
                count += 1;
                count - 1
            })
        })
        .collect();
    let (mut origins, mut fields) = (Vec::new(), Vec::new());
    for name in wanted {
        let (origin, data_type) = match name {
            "time" => (Origin::Time, DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))),
            "cpu" => (Origin::Cpu, DataType::UInt32),
            "event" => (Origin::Event, Kind::Label.data_type(false)),
            _ => {
                let of_member = table.index.get(name).and_then(|at| Some((kept[*at]?, &table.columns[*at].kind)));
                let of_part = || {
                    let at = parts.iter().position(|part| part.name == name)?;
                    Some((count + at, &parts[at].kind))
                };
                let no_column = || RequestError::NoColumn { name: name.into(), known: listed(all.iter().copied()) };
                let (at, kind) = of_member.or_else(of_part).ok_or_else(no_column)?;
                (Origin::Members(at), kind.data_type(request.is_text_binary))
            }
        };
        origins.push(origin);
        fields.push(Field::new(name, data_type, name != "event"));
    }
    for extra in &request.extras {
        let (origin, name) = match extra {
            Extra::Process => (Origin::Process, "process"),
            Extra::Thread => (Origin::Thread, "thread"),
            Extra::Json => (Origin::Json, "fields"),
        };
        origins.push(origin);
        fields.push(Field::new(name, DataType::Utf8, *extra != Extra::Json));
    }
    Ok((origins, fields, kept))
}

fn listed<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let mut names: Vec<&str> = names.collect();
    names.dedup();
    let more = names.len().saturating_sub(SHOWN_COUNT);
    names.truncate(SHOWN_COUNT);
    match (names.is_empty(), more) {
        (true, _) => "none".into(),
        (_, 0) => names.join(", "),
        _ => format!("{} and {more} more", names.join(", ")),
    }
}
