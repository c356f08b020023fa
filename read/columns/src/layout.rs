//! Which columns there are, and which members of which classes fill them.

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

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Names of classes, in which `*` stands for any characters and `?` for one; none: all classes.
    pub events: Vec<String>,
    /// Names of columns, or of fields that lie within others, in their order; `None`: all columns.
    pub columns: Option<Vec<String>>,
    /// No event is earlier; nanoseconds since the epoch. Events without a time are left out.
    pub since_ns: Option<i64>,
    /// All events are earlier.
    pub until_ns: Option<i64>,
    /// What has to be true of events, in the language of `dormouse_filter`: all of it.
    pub conditions: Vec<String>,
    /// Whether text becomes binary columns.
    pub is_text_binary: bool,
    /// Columns behind the others.
    pub extras: Vec<Extra>,
    /// Whether the records in which a session of Dormouse says of itself are left out where all classes are asked for.
    pub is_without_state: bool,
}

/// A column of what no field says by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extra {
    /// `process`: what the process calls itself that wrote the event; text, null where the trace does not say it.
    Process,
    /// `fields`: contexts and fields as an object of JSON, as `dormouse view --format json` has them.
    Json,
}

impl Request {
    /// Whether an event of this time is asked for.
    #[inline]
    pub(crate) fn is_within(&self, time_ns: Option<i64>) -> bool {
        let Some(time_ns) = time_ns else { return self.since_ns.is_none() && self.until_ns.is_none() };
        self.since_ns.is_none_or(|since| time_ns >= since) && self.until_ns.is_none_or(|until| time_ns < until)
    }
}

/// Why nothing can be read.
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

/// The columns that all events have.
pub(crate) const COMMON: [&str; 5] = ["time", "cpu", "pid", "tid", "event"];

/// In place of a class: its events are the session owner's, and say whose other events are.
pub(crate) const STATE: usize = usize::MAX;

/// Names that an error shows.
const SHOWN_COUNT: usize = 20;

/// Where a column's values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Time,
    Cpu,
    Event,
    Process,
    Json,
    /// The column with this index of those that are filled by members.
    Members(usize),
}

/// A class that is read.
#[derive(Debug)]
pub(crate) struct Chosen<'a> {
    pub class: ClassRef<'a>,
    pub projection: Projection,
    /// Fields that lie within others, each with its column.
    pub parts: Vec<(Pick, usize)>,
    /// Whether its events say whose other events are.
    pub is_state: bool,
    /// Indices of the columns that it fills.
    pub columns: Vec<usize>,
    /// The key of its name.
    pub name: i32,
}

/// Which columns there are, and how they are filled from the traces `'a`.
#[derive(Debug)]
pub struct Layout<'a> {
    schema: SchemaRef,
    pub(crate) origins: Vec<Origin>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) chosen: Vec<Chosen<'a>>,
    /// By trace.
    pub(crate) choices: Vec<Choice<'a>>,
    pub(crate) names: Arc<StringArray>,
    pub(crate) filters: Vec<Filter>,
    pub(crate) request: Request,
}

/// A class with the columns that it fills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassColumns {
    /// `provider:name`.
    pub name: String,
    /// The fields as columns, without those that all events have.
    pub fields: Vec<Field>,
}

/// The classes of traces, each name once, in alphabetical order.
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

/// The classes of this name, each with its members and for each member the column that it fills.
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

/// A column and its kind.
#[derive(Debug)]
struct Named {
    name: String,
    kind: Kind,
    /// The class that it was made for.
    class: String,
}

/// The columns that members of classes fill.
#[derive(Debug, Default)]
struct Table {
    columns: Vec<Named>,
    index: std::collections::HashMap<String, usize>,
}

impl Table {
    /// The columns that all events have are there whether or not a class fills them.
    fn of_events() -> Table {
        let mut table = Table::default();
        for name in ["pid", "tid"] {
            table.column(name, "", &Kind::UINT32, &HashSet::new());
        }
        table
    }

    /// The column of this name and a kind that holds both, or one of another name.
    fn column(&mut self, name: &str, class: &str, kind: &Kind, taken: &HashSet<usize>) -> usize {
        let mut name = name.to_string();
        loop {
            let Some(index) = self.index.get(&name).copied() else {
                self.columns.push(Named { name: name.clone(), kind: kind.clone(), class: class.into() });
                self.index.insert(name, self.columns.len() - 1);
                return self.columns.len() - 1;
            };
            let before = &self.columns[index];
            // What programs write as one class is one thing, whatever the types are that they take for it.
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

    /// For each member of the class the column that it fills.
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

/// Which context says whose an event is.
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
    /// Finds out what has to be read of these traces.
    ///
    /// # Errors
    /// A pattern matches no class, or a column is in none of the classes; with what there is.
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
        if !filters.is_empty() || request.extras.contains(&Extra::Process) {
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

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Which events are read of the trace with this index.
    pub fn choice(&self, trace: usize) -> &Choice<'a> {
        &self.choices[trace]
    }

    /// The first and the last time that is asked for, nanoseconds since the epoch.
    pub fn times(&self) -> (i64, i64) {
        let Request { since_ns, until_ns, .. } = self.request;
        (since_ns.unwrap_or(i64::MIN), until_ns.map_or(i64::MAX, |until| until.saturating_sub(1)))
    }

    /// Empty columns for what members fill.
    pub(crate) fn columns(&self) -> Vec<Column> {
        self.kinds.iter().map(|kind| Column::new(kind.clone(), self.request.is_text_binary)).collect()
    }
}

/// Origins and types of the columns that are asked for, and for each of the table its index among those that are filled.
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
            Extra::Json => (Origin::Json, "fields"),
        };
        origins.push(origin);
        fields.push(Field::new(name, DataType::Utf8, *extra == Extra::Process));
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
