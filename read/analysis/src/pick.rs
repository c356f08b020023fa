//! Takes single fields from events, by the plan of their class.

use std::collections::HashMap;

use dormouse_ctf::model::Scope;
use dormouse_ctf::plan::{Class, Group, IntegerNode, Visitor};
use dormouse_ctf::{Event, Scratch};

use crate::distribution::Number;

/// A field that a question is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Names of the structures that it is in, and its own.
    pub path: Vec<String>,
    /// Whether it is one of contexts alone. Others are looked for in the fields first.
    pub is_of_context: bool,
}

impl Wanted {
    pub(crate) fn new(name: &str) -> Wanted {
        Wanted { path: name.split('.').map(str::to_string).collect(), is_of_context: false }
    }

    pub(crate) fn of_context(name: &str) -> Wanted {
        Wanted { is_of_context: true, ..Wanted::new(name) }
    }
}

/// What an event says of a field.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Said {
    #[default]
    Nothing,
    Number(Number),
    /// Text, or the label of an enumeration's value.
    Text,
}

/// A field's value. The memory of texts is used again.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub said: Said,
    /// The number, where it has a label.
    pub number: Option<Number>,
    pub text: Vec<u8>,
}

/// Where the wanted fields are, for one class: those that each member leads to, counted through contexts and fields.
#[derive(Debug, Default)]
struct Places {
    leads_to: Vec<Vec<usize>>,
    is_any: bool,
}

/// Takes fields from events.
#[derive(Debug, Default)]
pub(crate) struct Picker {
    wanted: Vec<Wanted>,
    /// By the class's place in memory.
    places: HashMap<usize, Places>,
    scratch: Scratch,
    cells: Vec<Cell>,
    matched: Vec<usize>,
}

impl Picker {
    /// One field more; gives its index.
    pub(crate) fn want(&mut self, wanted: Wanted) -> usize {
        let found = self.wanted.iter().position(|known| *known == wanted);
        found.unwrap_or_else(|| {
            self.wanted.push(wanted);
            self.cells.push(Cell::default());
            self.matched.push(0);
            self.wanted.len() - 1
        })
    }

    /// Reads the wanted fields of an event.
    pub(crate) fn read(&mut self, event: &Event<'_>) {
        if self.wanted.is_empty() {
            return;
        }
        let Picker { wanted, places, scratch, cells, matched } = self;
        let places =
            places.entry(std::ptr::from_ref(event.class).addr()).or_insert_with(|| Places::of(event.class, wanted));
        cells.iter_mut().for_each(|cell| (cell.said, cell.number) = (Said::Nothing, None));
        if places.is_any {
            let mut visit = Visit { wanted, places, cells, matched, depth: 0, next: 0, at: &[] };
            event.visit(scratch, &mut visit);
        }
    }

    /// What the event that was read last says of a field.
    pub(crate) fn cell(&self, index: usize) -> &Cell {
        &self.cells[index]
    }
}

impl Places {
    fn of(class: &Class, wanted: &[Wanted]) -> Places {
        let members: Vec<(Scope, &str)> = class.members().collect();
        let mut leads_to = vec![Vec::new(); members.len()];
        for (index, wanted) in wanted.iter().enumerate() {
            let find = |is_fields: bool| {
                members
                    .iter()
                    .position(|(scope, name)| (*scope == Scope::Fields) == is_fields && *name == wanted.path[0])
            };
            let fields = if wanted.is_of_context { None } else { find(true) };
            if let Some(place) = fields.or_else(|| find(false)) {
                leads_to[place].push(index);
            }
        }
        Places { is_any: leads_to.iter().any(|wanted| !wanted.is_empty()), leads_to }
    }
}

struct Visit<'a> {
    wanted: &'a [Wanted],
    places: &'a Places,
    cells: &'a mut [Cell],
    /// How much of each path leads to the field at hand.
    matched: &'a mut [usize],
    depth: usize,
    next: usize,
    /// Those that the member at hand leads to.
    at: &'a [usize],
}

impl Visit<'_> {
    fn step(&mut self, name: &str) {
        let depth = self.depth;
        for wanted in self.at {
            let matched = &mut self.matched[*wanted];
            let is_so =
                *matched >= depth - 1 && self.wanted[*wanted].path.get(depth - 1).is_some_and(|part| part == name);
            *matched = if is_so { depth } else { (*matched).min(depth - 1) };
        }
    }

    fn say(&mut self, said: Said, number: Option<Number>, text: &[u8]) {
        for wanted in self.at {
            if self.matched[*wanted] == self.depth && self.wanted[*wanted].path.len() == self.depth {
                let cell = &mut self.cells[*wanted];
                (cell.said, cell.number) = (said, number);
                cell.text.clear();
                cell.text.extend_from_slice(text);
            }
        }
    }
}

impl Visitor for Visit<'_> {
    fn name(&mut self, name: &str) {
        if self.depth == 1 {
            self.at = self.places.leads_to.get(self.next).map_or(&[], Vec::as_slice);
            self.next += 1;
            self.at.iter().for_each(|wanted| self.matched[*wanted] = 0);
        }
        if !self.at.is_empty() {
            self.step(name);
        }
    }

    fn option(&mut self, name: &str) {
        if !self.at.is_empty() {
            self.step(name);
        }
    }

    /// Elements have no names.
    fn element(&mut self, _: u64) {}

    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if self.at.is_empty() {
            return;
        }
        let number = Number::Whole(if class.is_signed { i128::from(value as i64) } else { i128::from(value) });
        let labels = class.labels.as_deref().unwrap_or_default();
        match labels.iter().find(|label| label.range.contains(value, class.is_signed)) {
            Some(label) => self.say(Said::Text, Some(number), label.name.as_bytes()),
            None => self.say(Said::Number(number), Some(number), b""),
        }
    }

    fn float(&mut self, value: f64) {
        if !self.at.is_empty() {
            let number = Number::Real(value);
            self.say(Said::Number(number), Some(number), b"");
        }
    }

    fn text(&mut self, text: &[u8]) {
        if !self.at.is_empty() {
            self.say(Said::Text, None, text);
        }
    }

    // What could be missing and is there is asked for by its own name.
    fn open(&mut self, group: Group) {
        self.depth += usize::from(group != Group::Optional);
    }

    fn close(&mut self, group: Group) {
        self.depth -= usize::from(group != Group::Optional);
    }
}
