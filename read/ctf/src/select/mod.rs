//! Selection of events: patterns of class names and filters, bound to the classes of traces.
//!
//! ```text
//!   Filter ──┐                       ┌─▶ constant: all of the class's events are wanted, or none
//!            ├─▶ Bound, by class ────┤
//!   Class ───┘                       └─▶ Test on fields of the class's records (`plan::Pick`)
//! ```
//!
//! [`ClassRef`] describes the meaning of names.

mod class_ref;
mod pair;
mod tail;
mod weights;
mod writers;

pub use class_ref::ClassRef;
pub use pair::{KeptValues, PairEnd, PairFilter};
pub use tail::TailSampler;
pub use weights::{Estimate, RuleTimes, SampledRules, Weigher, Weight, WeightCounts, Weights};
pub use writers::{Writer, Writers};

use std::borrow::Cow;

use dormouse_abi::class::Level;
use dormouse_abi::page::CPU_UNKNOWN;
use dormouse_filter::{Binding, Fields, Filter, FilterError, Kind, Labels, Name, Part, Test, Value};

use crate::hash::QuickMap;
use crate::model::Meaning;
use crate::plan::{IntegerNode, Pick, Picked};
use crate::processes::{ProcessProperty, PropertyValue};
use crate::stream::{Event, EventFields, Scratch, TraceRef};

/// Names that are known even if no field has them.
const WELL_KNOWN: [&str; 7] = ["event", "time", "cpu", "pid", "tid", "process", "comm"];

/// Location of a name's value.
#[derive(Debug, Clone, PartialEq)]
enum Place {
    Event,
    Time,
    Cpu,
    Pid,
    Tid,
    Process,
    /// Level of the class.
    Level(Level),
    /// Where the process runs.
    Property(ProcessProperty),
    Field(Pick),
}

/// Returns the names of properties of processes that events of these classes have.
fn properties_of<'n>(classes: &'n [ClassRef<'_>]) -> impl Iterator<Item = &'n str> {
    let is_there = |name: &&str| {
        let name = Name { parts: vec![Part::Member((*name).into())] };
        classes.iter().any(|class| class.process_property(&name).is_some())
    };
    ProcessProperty::NAMES.into_iter().filter(is_there)
}

/// A selection of events.
#[derive(Debug)]
pub struct Selection {
    patterns: Vec<String>,
    filters: Vec<Filter>,
    /// Bindings, by address of the class. A class does not move during the life of its trace.
    bound: QuickMap<usize, Bound>,
    /// Class of the previous event and the result for it, if the result does not depend on the event.
    last: Option<(usize, bool)>,
    scratch: Scratch,
}

/// Condition on the events of a class.
#[derive(Debug)]
enum Bound {
    All,
    None,
    Ask {
        tests: Vec<(Test, Vec<Option<Place>>)>,
        /// Whether a test refers to the writer of an event.
        is_of_writer: bool,
    },
}

impl ClassRef<'_> {
    /// Whether the name has a meaning for this class.
    pub fn has(&self, name: &Name) -> bool {
        self.find(name).is_some()
    }

    /// Returns the property of the process that a name stands for: the events of the class have no field of this name,
    /// and the trace can say where their processes run.
    pub fn process_property(&self, name: &Name) -> Option<ProcessProperty> {
        let property = ProcessProperty::of(name)?;
        let is_there = self.find_as_rule(name).is_none() && writers::Places::of(self).has_places();
        is_there.then_some(property)
    }

    fn find(&self, name: &Name) -> Option<(Place, Kind)> {
        let of_process = || self.process_property(name).map(|property| (Place::Property(property), property.kind()));
        self.find_as_rule(name).or_else(of_process)
    }

    /// Finds a name as programs do for a rule: they do not know where they run.
    fn find_as_rule(&self, name: &Name) -> Option<(Place, Kind)> {
        let known = |word: &str| {
            let writer = writers::Places::of(self);
            let (is_there, place, kind) = match word {
                "event" => (true, Place::Event, Kind::Text),
                "time" => (self.has_clock(), Place::Time, Kind::Number),
                "cpu" | "cpu_id" => (self.plan.packet_context.is_some(), Place::Cpu, Kind::Number),
                "pid" | "vpid" => (writer.has_pid(), Place::Pid, Kind::Number),
                "tid" | "vtid" => (writer.has_tid(), Place::Tid, Kind::Number),
                "process" | "comm" | "procname" => (writer.has_name(), Place::Process, Kind::Text),
                "level" => return self.class.level.map(|level| (Place::Level(level), Kind::Enumeration)),
                _ => return None,
            };
            is_there.then_some((place, kind))
        };
        if let Some(word) = name.word().filter(|word| WELL_KNOWN.contains(word)) {
            return known(word);
        }
        let field = self.field(name).and_then(|(pick, kind)| Some((Place::Field(pick), kind?)));
        field.or_else(|| known(name.word()?))
    }

    fn bind(&self, patterns: &[String], filters: &[Filter]) -> Bound {
        if !self.is_named(patterns) {
            return Bound::None;
        }
        let mut tests = Vec::new();
        for filter in filters {
            match self.bind_filter(filter, |name| self.find(name)) {
                (Test::Always, _) => {}
                (Test::Never, _) => return Bound::None,
                test => tests.push(test),
            }
        }
        let is_of_writer =
            |place: &Place| matches!(place, Place::Pid | Place::Tid | Place::Process | Place::Property(_));
        let is_of_writer = tests.iter().flat_map(|(_, places)| places).flatten().any(is_of_writer);
        if tests.is_empty() { Bound::All } else { Bound::Ask { tests, is_of_writer } }
    }

    /// Compiles a filter for the class. Returns the places of its names too, which `find` finds.
    fn bind_filter(
        &self,
        filter: &Filter,
        find: impl Fn(&Name) -> Option<(Place, Kind)>,
    ) -> (Test, Vec<Option<Place>>) {
        let places: Vec<_> = filter.names().map(find).collect();
        let binding = |place: &Option<(Place, Kind)>| match place {
            Some((_, kind)) => self.constant(place).map_or(Binding::Field(*kind), Binding::Constant),
            None => Binding::Missing,
        };
        let bindings: Vec<_> = places.iter().map(binding).collect();
        let test = filter.compile(&bindings);
        (test, places.into_iter().map(|place| Some(place?.0)).collect())
    }

    /// Returns the value at a place, if all events of the class have it.
    fn constant(&self, place: &Option<(Place, Kind)>) -> Option<Value<'_>> {
        match place {
            Some((Place::Event, _)) => Some(Value::Text(self.class.full_name.as_bytes().into())),
            Some((Place::Level(level), _)) => Some((*level).into()),
            _ => None,
        }
    }

    fn is_named(&self, patterns: &[String]) -> bool {
        patterns.is_empty()
            || patterns.iter().any(|pattern| dormouse_abi::class::matches(pattern, &self.class.full_name))
    }
}

impl Selection {
    /// Selects events whose class name matches one of the patterns (any name, if there are no patterns), and for which
    /// all filters are true.
    ///
    /// # Errors
    /// Returns an error if no such class of these traces has a name that a filter uses, or if the kinds that it compares are
    /// never equal.
    pub fn new<'a>(
        patterns: Vec<String>,
        filters: Vec<Filter>,
        traces: impl IntoIterator<Item = TraceRef<'a>>,
    ) -> Result<Selection, FilterError> {
        let all = traces.into_iter().flat_map(ClassRef::all);
        let classes: Vec<ClassRef<'a>> = all.filter(|class| class.is_named(&patterns)).collect();
        for filter in &filters {
            let mut kinds: Vec<Vec<Kind>> = Vec::new();
            for (index, name) in filter.names().enumerate() {
                let found: Vec<Kind> = classes.iter().filter_map(|class| Some(class.find(name)?.1)).collect();
                if found.is_empty() {
                    let names: Vec<String> = classes.iter().flat_map(|class| class.class.names()).collect();
                    let own = WELL_KNOWN.into_iter().chain(properties_of(&classes));
                    return Err(filter.unknown(index, own.chain(names.iter().map(String::as_str))));
                }
                kinds.push(found);
            }
            if let Some(error) = filter.mismatch(|name| kinds[name].clone()) {
                return Err(error);
            }
        }
        Ok(Selection::unchecked(patterns, filters))
    }

    /// Returns a selection without these checks, for traces to which classes with the filters' names can still be
    /// added.
    pub fn unchecked(patterns: Vec<String>, filters: Vec<Filter>) -> Selection {
        Selection { patterns, filters, bound: QuickMap::default(), last: None, scratch: Scratch::default() }
    }

    /// Whether events of a class can be selected.
    pub fn may_want(&self, class: &ClassRef<'_>) -> bool {
        !matches!(class.bind(&self.patterns, &self.filters), Bound::None)
    }

    /// Whether every event is selected.
    #[inline]
    pub fn is_all(&self) -> bool {
        self.patterns.is_empty() && self.filters.is_empty()
    }

    /// Whether an event is selected.
    #[inline]
    pub fn wants(&mut self, event: &Event<'_>, writers: &mut Writers) -> bool {
        self.is_all() || self.wants_fields(&ClassRef::of(event), &event.body(), writers)
    }

    /// Whether an event with this class and these fields is selected.
    pub fn wants_fields(&mut self, class: &ClassRef<'_>, event: &EventFields<'_>, writers: &mut Writers) -> bool {
        let key = class.key();
        if let Some((last, answer)) = self.last
            && last == key
        {
            return answer;
        }
        let bound = self.bound.entry(key).or_insert_with(|| class.bind(&self.patterns, &self.filters));
        let answer = match bound {
            Bound::All => true,
            Bound::None => false,
            Bound::Ask { tests, is_of_writer } => {
                self.last = None;
                let writer = if *is_of_writer { writers.of_fields(class, event) } else { Writer::default() };
                let (name, scratch) = (class.class.full_name.as_bytes(), &mut self.scratch);
                let mut values = Values { event, name, writer, places: &[], scratch };
                return tests.iter().all(|(test, places)| {
                    values.places = places;
                    test.wants(&mut values)
                });
            }
        };
        self.last = Some((key, answer));
        answer
    }
}

/// Values of an event for a filter.
struct Values<'a, 's> {
    event: &'a EventFields<'a>,
    /// Name of the class.
    name: &'a [u8],
    writer: Writer<'a>,
    places: &'a [Option<Place>],
    scratch: &'s mut Scratch,
}

impl<'a> Fields<'a> for Values<'a, '_> {
    #[inline(always)]
    fn integer(&mut self, name: usize) -> Option<i128> {
        let Some(Place::Field(pick)) = self.places.get(name)? else { return None };
        let (value, class) = self.event.number(pick)?;
        let is_integer = class.meaning == Meaning::Number && class.labels.is_none();
        is_integer.then(|| if class.is_signed { i128::from(value as i64) } else { value.into() })
    }

    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        let number = |number: u64| Value::Integer(number.into());
        match self.places.get(name)?.as_ref()? {
            Place::Event => Some(Value::Text(Cow::Borrowed(self.name))),
            Place::Time => self.event.time_ns.map(|ns| Value::Integer(ns.into())),
            Place::Cpu => (self.event.cpu_id != CPU_UNKNOWN).then(|| number(self.event.cpu_id.into())),
            Place::Pid => self.writer.pid.map(number),
            Place::Tid => self.writer.tid.map(number),
            Place::Process => self.writer.name.clone().map(Value::Text),
            Place::Level(level) => Some((*level).into()),
            Place::Property(property) => self.writer.places.get(*property).map(|value| match value {
                PropertyValue::Number(value) => number(value.into()),
                PropertyValue::Text(text) => Value::Text(Cow::Borrowed(text.as_bytes())),
            }),
            Place::Field(pick) => Some(match self.event.pick(pick, self.scratch)? {
                Picked::Integer(value, class) if class.meaning == Meaning::Boolean => Value::Boolean(value != 0),
                Picked::Integer(value, class) => {
                    let number = if class.is_signed { i128::from(value as i64) } else { value.into() };
                    if class.labels.is_some() { Value::Enumeration(number, class) } else { Value::Integer(number) }
                }
                Picked::Float(float) => Value::Float(float),
                Picked::Text(text) => Value::Text(text),
            }),
        }
    }
}

impl Labels for IntegerNode {
    fn any(&self, number: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.labels_of(number as u64).any(|label| is_it(label.as_bytes()))
    }
}
