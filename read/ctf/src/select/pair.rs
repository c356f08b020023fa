//! Conditions on pairs of events, which name values of both.

use std::borrow::Cow;

use dormouse_filter::{Binding, Fields, Filter, FilterError, Kind, Labels, Name, Part, Test, Value};

use super::{ClassRef, Place, Values, WELL_KNOWN, Writer, Writers, properties_of};
use crate::hash::QuickMap;
use crate::stream::{Event, EventFields, Scratch};

/// An event of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PairEnd {
    /// The event that begins the pair.
    Begin,
    /// The event that ends it.
    End,
}

impl PairEnd {
    /// Splits `begin.NAME` and `end.NAME`. Any other name is that of the begin, or of the end if the begin has no such
    /// value.
    pub fn split(name: &Name) -> (Option<PairEnd>, Name) {
        let end = match name.parts.as_slice() {
            [Part::Member(word), _, ..] if word == "begin" => PairEnd::Begin,
            [Part::Member(word), _, ..] if word == "end" => PairEnd::End,
            _ => return (None, name.clone()),
        };
        (Some(end), Name { parts: name.parts[1..].to_vec() })
    }
}

/// A condition on pairs of events.
///
/// A name stands for a value of the begin, or of the end if the begin has no such value. `begin.NAME` and `end.NAME`
/// stand for a value of only one of them, and `latency` for the time between them in nanoseconds.
#[derive(Debug)]
pub struct PairFilter {
    test: Test,
    names: Vec<Wanted>,
    /// Locations of the names' values, by address of the class.
    places: QuickMap<usize, Vec<Option<Place>>>,
    scratch: Scratch,
}

/// Value that a name of a condition stands for.
#[derive(Debug)]
enum Wanted {
    Latency,
    Value(Option<PairEnd>, Name),
    /// The begin's or the end's, of which at least one does not have it from its process alone.
    OfEither(Name),
}

/// Values of a begin that conditions name, kept until its end.
#[derive(Debug, Default)]
pub struct KeptValues(Box<[Option<KeptValue>]>);

#[derive(Debug)]
enum KeptValue {
    Integer(i128),
    Float(f64),
    Text(Box<[u8]>),
    Boolean(bool),
    Enumeration(i128, OwnLabels),
}

/// The labels of one value of an enumeration.
#[derive(Debug)]
struct OwnLabels(Box<[Box<[u8]>]>);

impl Labels for OwnLabels {
    fn any(&self, _: i128, is_it: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.0.iter().any(|label| is_it(label))
    }
}

impl KeptValue {
    fn of(value: Value<'_>) -> KeptValue {
        match value {
            Value::Integer(number) => KeptValue::Integer(number),
            Value::Float(float) => KeptValue::Float(float),
            Value::Text(text) => KeptValue::Text(text.into_owned().into()),
            Value::Boolean(boolean) => KeptValue::Boolean(boolean),
            Value::Enumeration(number, labels) => {
                let mut own: Vec<Box<[u8]>> = Vec::new();
                labels.any(number, &mut |label| {
                    own.push(label.into());
                    false
                });
                KeptValue::Enumeration(number, OwnLabels(own.into()))
            }
        }
    }

    fn value(&self) -> Value<'_> {
        match self {
            KeptValue::Integer(number) => Value::Integer(*number),
            KeptValue::Float(float) => Value::Float(*float),
            KeptValue::Text(text) => Value::Text(Cow::Borrowed(text)),
            KeptValue::Boolean(boolean) => Value::Boolean(*boolean),
            KeptValue::Enumeration(number, labels) => Value::Enumeration(*number, labels),
        }
    }
}

impl PairFilter {
    /// Creates a condition on pairs of events of these classes.
    ///
    /// # Errors
    /// No class has a name that the filter uses, or the kinds that it compares are never equal.
    pub fn new(filter: &Filter, begins: &[ClassRef<'_>], ends: &[ClassRef<'_>]) -> Result<PairFilter, FilterError> {
        let kinds_in = |classes: &[ClassRef<'_>], name: &Name| -> Vec<Kind> {
            classes.iter().filter_map(|class| Some(class.find(name)?.1)).collect()
        };
        let (mut names, mut kinds) = (Vec::new(), Vec::new());
        for (index, name) in filter.names().enumerate() {
            let (end, inner) = PairEnd::split(name);
            let mut found = Vec::new();
            if end != Some(PairEnd::End) {
                found.extend(kinds_in(begins, &inner));
            }
            if end != Some(PairEnd::Begin) {
                found.extend(kinds_in(ends, &inner));
            }
            if found.is_empty() && name.word() == Some("latency") {
                names.push(Wanted::Latency);
                kinds.push(vec![Kind::Number]);
                continue;
            }
            if found.is_empty() {
                let fields = |classes: &[ClassRef<'_>], before: &str| -> Vec<String> {
                    let names = classes.iter().flat_map(|class| class.class.names());
                    names.map(|name| format!("{before}{name}")).collect()
                };
                let all = match end {
                    None => [fields(begins, ""), fields(ends, "")].concat(),
                    Some(PairEnd::Begin) => fields(begins, "begin."),
                    Some(PairEnd::End) => fields(ends, "end."),
                };
                let classes = [begins, ends].concat();
                let own = WELL_KNOWN.into_iter().chain(properties_of(&classes)).chain(["latency"]);
                return Err(filter.unknown(index, own.chain(all.iter().map(String::as_str))));
            }
            // A field of the end goes before a property of the begin's process.
            let has_own = |class: &ClassRef<'_>| class.find_as_rule(&inner).is_some();
            let is_own = end.is_none() && begins.iter().chain(ends).any(has_own);
            names.push(if is_own { Wanted::OfEither(inner) } else { Wanted::Value(end, inner) });
            kinds.push(found);
        }
        if let Some(error) = filter.mismatch(|name| kinds[name].clone()) {
            return Err(error);
        }
        let test = filter.compile(&vec![Binding::Field(Kind::Any); names.len()]);
        Ok(PairFilter { test, names, places: QuickMap::default(), scratch: Scratch::default() })
    }

    /// Returns the values of a begin that the condition names.
    pub fn keep(&mut self, event: &Event<'_>, writers: &mut Writers) -> KeptValues {
        let PairFilter { names, places, scratch, .. } = self;
        let body = event.body();
        let mut values = values_of(names, places, scratch, event, &body, writers.of(event));
        let keep = |(index, name): (usize, &Wanted)| match name {
            Wanted::Value(None | Some(PairEnd::Begin), _) | Wanted::OfEither(_) => {
                values.value(index).map(KeptValue::of)
            }
            _ => None,
        };
        KeptValues(names.iter().enumerate().map(keep).collect())
    }

    /// Whether the condition is true for a pair. `begin`: values of its begin; `end`: the event that ends it.
    pub fn wants(&mut self, begin: &KeptValues, latency_ns: u64, end: &Event<'_>, writers: &mut Writers) -> bool {
        self.answer(Some(begin), Some(latency_ns), Some((end, writers))) == Some(true)
    }

    /// Whether the condition can be true for a begin without an end.
    pub fn may_want_begin(&mut self, begin: &KeptValues) -> bool {
        self.answer(Some(begin), None, None) != Some(false)
    }

    /// Whether the condition can be true for an end without a begin.
    pub fn may_want_end(&mut self, end: &Event<'_>, writers: &mut Writers) -> bool {
        self.answer(None, None, Some((end, writers))) != Some(false)
    }

    fn answer(
        &mut self,
        begin: Option<&KeptValues>,
        latency_ns: Option<u64>,
        end: Option<(&Event<'_>, &mut Writers)>,
    ) -> Option<bool> {
        let PairFilter { test, names, places, scratch } = self;
        let body = end.as_ref().map(|(event, _)| event.body());
        let end = match (end, &body) {
            (Some((event, writers)), Some(body)) => {
                Some(values_of(names, places, scratch, event, body, writers.of(event)))
            }
            _ => None,
        };
        let mut values = PairValues { names, begin, latency_ns, end };
        match test {
            Test::Always => Some(true),
            Test::Never => Some(false),
            Test::Ask(question) => question.ask(&mut values),
        }
    }
}

/// Returns the values of an event for these names.
fn values_of<'v>(
    names: &[Wanted],
    places: &'v mut QuickMap<usize, Vec<Option<Place>>>,
    scratch: &'v mut Scratch,
    event: &Event<'v>,
    body: &'v EventFields<'v>,
    writer: Writer<'v>,
) -> Values<'v, 'v> {
    let class = ClassRef::of(event);
    let place = |name: &Wanted| match name {
        Wanted::Latency => None,
        Wanted::Value(_, name) => Some(class.find(name)?.0),
        Wanted::OfEither(name) => Some(class.find_as_rule(name)?.0),
    };
    let places = places.entry(class.key()).or_insert_with(|| names.iter().map(place).collect());
    Values { event: body, name: event.class.full_name.as_bytes(), writer, places, scratch }
}

/// Values of a pair for a condition. What is not known is `None`.
struct PairValues<'a> {
    names: &'a [Wanted],
    begin: Option<&'a KeptValues>,
    latency_ns: Option<u64>,
    end: Option<Values<'a, 'a>>,
}

impl<'a> Fields<'a> for PairValues<'a> {
    fn value(&mut self, name: usize) -> Option<Value<'a>> {
        let begin = |begin: Option<&'a KeptValues>| Some(begin?.0.get(name)?.as_ref()?.value());
        match self.names.get(name)? {
            Wanted::Latency => Some(Value::Integer(self.latency_ns?.into())),
            Wanted::Value(Some(PairEnd::Begin), _) => begin(self.begin),
            Wanted::Value(Some(PairEnd::End), _) => self.end.as_mut()?.value(name),
            Wanted::Value(None, _) | Wanted::OfEither(_) => {
                begin(self.begin).or_else(|| self.end.as_mut()?.value(name))
            }
        }
    }
}
