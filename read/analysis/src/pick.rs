//! Reads single fields of events.

use std::collections::HashMap;

use dormouse_ctf::model::Base;
use dormouse_ctf::plan::{Pick, Picked};
use dormouse_ctf::{ClassRef, Event, Scratch};
use dormouse_filter::{Name, parse_name};

use crate::distribution::Number;

/// Value of a field in an event.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Said {
    #[default]
    Nothing,
    Number(Number),
    /// Text, or the label of an enumeration's value.
    Text,
}

/// A field's value. Its memory for texts is reused.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub said: Said,
    /// The number; also if it has a label.
    pub number: Option<Number>,
    pub text: Vec<u8>,
    /// Whether the field is shown in hexadecimal in at least one class.
    pub is_hexadecimal: bool,
}

impl Cell {
    fn take(&mut self, picked: Option<Picked<'_>>) {
        (self.said, self.number) = (Said::Nothing, None);
        match picked {
            None => {}
            Some(Picked::Integer(value, class)) => {
                let number = Number::Whole(if class.is_signed { i128::from(value as i64) } else { i128::from(value) });
                match class.label(value) {
                    Some(label) => self.say(Said::Text, label.as_bytes()),
                    None => self.said = Said::Number(number),
                }
                self.number = Some(number);
                self.is_hexadecimal |= class.base == Base::Hexadecimal;
            }
            Some(Picked::Float(value)) => {
                self.number = Some(Number::Real(value));
                self.said = Said::Number(Number::Real(value));
            }
            Some(Picked::Text(text)) => self.say(Said::Text, &text),
        }
    }

    fn say(&mut self, said: Said, text: &[u8]) {
        self.said = said;
        self.text.clear();
        self.text.extend_from_slice(text);
    }
}

/// Reads selected fields of events.
#[derive(Debug, Default)]
pub(crate) struct Picker {
    wanted: Vec<Name>,
    /// Locations of the wanted fields, by the address of the class; `None` for a field that the class lacks.
    places: HashMap<usize, Vec<Option<Pick>>>,
    scratch: Scratch,
    cells: Vec<Cell>,
}

impl Picker {
    /// Adds a wanted field and returns its index.
    pub(crate) fn want(&mut self, name: &str) -> usize {
        let name = parse_name(name);
        self.wanted.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.wanted.push(name);
            self.cells.push(Cell::default());
            self.wanted.len() - 1
        })
    }

    /// Returns a picker of the same fields that has read nothing.
    pub(crate) fn unread(&self) -> Picker {
        let cells = self.wanted.iter().map(|_| Cell::default()).collect();
        Picker { wanted: self.wanted.clone(), cells, ..Picker::default() }
    }

    /// Reads the wanted fields of an event.
    pub(crate) fn read(&mut self, event: &Event<'_>) {
        if self.wanted.is_empty() {
            return;
        }
        let Picker { wanted, places, scratch, cells } = self;
        let places = places.entry(std::ptr::from_ref(event.class).addr()).or_insert_with(|| {
            let class = ClassRef::of(event);
            wanted.iter().map(|name| Some(class.field(name)?.0)).collect()
        });
        for (cell, place) in cells.iter_mut().zip(places) {
            cell.take(place.as_ref().and_then(|pick| event.pick(pick, scratch)));
        }
    }

    /// Returns the value of a field in the event that was read last.
    pub(crate) fn cell(&self, index: usize) -> &Cell {
        &self.cells[index]
    }
}
