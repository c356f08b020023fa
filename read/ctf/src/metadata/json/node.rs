//! JSON values with their positions, so that errors can be reported with a position.

use super::position::Step;
use dormouse_format::metadata::json::Json;

/// An error and its position.
#[derive(Debug)]
pub(super) struct Failure {
    /// Index of the fragment in the sequence, from 0.
    pub(super) fragment: usize,
    pub(super) steps: Vec<Step>,
    pub(super) what: String,
}

pub(super) type Checked<T> = Result<T, Failure>;

/// Position of a value.
#[derive(Debug, Clone, Copy)]
enum Place<'p> {
    Fragment(usize),
    Key(&'p Place<'p>, &'p str),
    Index(&'p Place<'p>, usize),
}

/// A value and its position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node<'j, 'p> {
    pub(super) json: &'j Json,
    place: Place<'p>,
}

impl<'j> Node<'j, '_> {
    /// Returns the fragment with this index, from 0.
    pub(super) fn of_fragment(fragment: usize, json: &'j Json) -> Node<'j, 'static> {
        Node { json, place: Place::Fragment(fragment) }
    }

    pub(super) fn fail<T>(&self, what: impl Into<String>) -> Checked<T> {
        let mut steps = Vec::new();
        let mut place = &self.place;
        let fragment = loop {
            match place {
                Place::Fragment(fragment) => break *fragment,
                Place::Key(before, key) => {
                    steps.push(Step::Key((*key).into()));
                    place = before;
                }
                Place::Index(before, index) => {
                    steps.push(Step::Index(*index));
                    place = before;
                }
            }
        };
        steps.reverse();
        Err(Failure { fragment, steps, what: what.into() })
    }

    fn expected<T>(&self, what: &str) -> Checked<T> {
        self.fail(format!("expected {what}, found {}", self.json.kind()))
    }

    /// Reads a property, if it is present.
    pub(super) fn with<T>(&self, key: &str, read: impl FnOnce(&Node<'j, '_>) -> Checked<T>) -> Checked<Option<T>> {
        let Json::Object(_) = self.json else { return self.expected("an object") };
        let Some(json) = self.json.get(key) else { return Ok(None) };
        read(&Node { json, place: Place::Key(&self.place, key) }).map(Some)
    }

    /// Reads a required property.
    pub(super) fn required<T>(&self, key: &str, read: impl FnOnce(&Node<'j, '_>) -> Checked<T>) -> Checked<T> {
        match self.with(key, read)? {
            Some(value) => Ok(value),
            None => self.fail(format!("there is no property {key:?}")),
        }
    }

    /// Reads each element of an array.
    pub(super) fn each<T>(&self, mut read: impl FnMut(usize, &Node<'j, '_>) -> Checked<T>) -> Checked<Vec<T>> {
        let Json::List(list) = self.json else { return self.expected("an array") };
        let read = |(index, json)| read(index, &Node { json, place: Place::Index(&self.place, index) });
        list.iter().enumerate().map(read).collect()
    }

    /// Reads each property of an object.
    pub(super) fn properties<T>(&self, mut read: impl FnMut(&'j str, &Node<'j, '_>) -> Checked<T>) -> Checked<Vec<T>> {
        let Json::Object(properties) = self.json else { return self.expected("an object") };
        let read = |(key, json): &'j (String, Json)| read(key, &Node { json, place: Place::Key(&self.place, key) });
        properties.iter().map(read).collect()
    }

    pub(super) fn text(&self) -> Checked<&'j str> {
        self.json.text().map_or_else(|| self.expected("a string"), Ok)
    }

    /// Maps a text to the value that `values` has for it.
    pub(super) fn one_of<T: Copy>(&self, values: &[(&str, T)]) -> Checked<T> {
        let found = self.json.text().and_then(|text| values.iter().find(|(name, _)| *name == text));
        if let Some((_, value)) = found {
            return Ok(*value);
        }
        let names: Vec<String> = values.iter().map(|(name, _)| format!("{name:?}")).collect();
        match names.as_slice() {
            [first, middle @ .., last] => {
                let middle: String = middle.iter().map(|name| format!(", {name}")).collect();
                self.expected(&format!("{first}{middle} or {last}"))
            }
            only => self.expected(&only.concat()),
        }
    }

    pub(super) fn number(&self, min: i128, max: i128) -> Checked<i128> {
        match self.json {
            Json::Number(number) if (min..=max).contains(number) => Ok(*number),
            _ => self.expected(&format!("a whole number from {min} to {max}")),
        }
    }

    pub(super) fn unsigned(&self) -> Checked<u64> {
        self.number(0, u64::MAX.into()).map(|number| number as u64)
    }

    /// Parses an alignment: a power of two.
    pub(super) fn alignment(&self) -> Checked<u64> {
        match self.json {
            Json::Number(number) if number.count_ones() == 1 && (1..=ALIGN_BITS_MAX).contains(number) => {
                Ok(*number as u64)
            }
            _ => self.expected("a power of two up to 2^32"),
        }
    }

    /// Checks the properties that every object may have: attributes, which a reader may ignore, and extensions, which
    /// it must support.
    pub(super) fn common(&self) -> Checked<()> {
        self.with("attributes", |attributes| attributes.properties(|_, _| Ok(())).map(drop))?;
        self.with("extensions", |extensions| {
            extensions.properties(|namespace, extensions| {
                extensions.properties(|name, extension| {
                    let what = "is not known, so the trace cannot be read";
                    extension.fail::<()>(format!("the extension {name:?} of {namespace:?} {what}"))
                })
            })
        })?;
        Ok(())
    }

    /// Returns a text property, if it is present.
    pub(super) fn may_have_text(&self, key: &str) -> Checked<Option<&'j str>> {
        self.with(key, |value| value.text())
    }
}

/// Maximum alignment, in bits.
const ALIGN_BITS_MAX: i128 = 1 << 32;
