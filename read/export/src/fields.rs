//! Names of fields, and properties that the stream does not contain. They are determined once for each class.

use std::collections::HashMap;

use dormouse_abi::class::Kind;
use dormouse_analysis::{QuickMap, Recent};
use dormouse_ctf::model::{Meaning, Scope};
use dormouse_ctf::plan::{FieldRef, Projection, Shape};
use dormouse_ctf::{ClassRef, Trace, TraceRef};

use crate::annotation::{POINTER, named, number_kind};
use crate::wire::Piece;

/// Contexts that identify the writer of an event. They are left out, since the event's track shows them.
const SAID_BY_TRACK: [&str; 7] = ["vpid", "vtid", "pid", "tid", "procname", "comm", "cpu_id"];

/// A member of contexts or fields that is shown. Members that the track shows, and element counts of the next member,
/// are left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    /// Number of its name.
    pub number: u64,
    /// Its name, as annotations refer to it.
    pub name: Piece,
    /// Number of the annotation field for its values, if these are plain integers only.
    pub plain: Option<u64>,
    pub is_boolean: bool,
    pub is_pointer: bool,
}

/// Members that are shown of the events of a class.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    pub members: Vec<Member>,
    /// Passes each member with its index.
    pub projection: Projection,
}

/// All names, and the shown members of each class.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    names: HashMap<String, (u64, Piece)>,
    /// Index into `all_shown`, by the address of the class, which does not move during the life of its trace.
    shown: QuickMap<usize, u32>,
    all_shown: Vec<Shown>,
}

impl Fields {
    pub(crate) fn of(traces: &[&Trace]) -> Fields {
        let mut fields = Fields::default();
        for class in traces.iter().flat_map(|trace| ClassRef::all(TraceRef::from(*trace))) {
            let (mut shown, mut chosen) = (Shown::default(), Vec::new());
            for member in class.class.members() {
                fields.take_parts(member.field);
                fields.take(member.name);
                let is_said = member.scope != Scope::Fields && SAID_BY_TRACK.contains(&member.name);
                if is_said || member.is_count {
                    chosen.push(None);
                    continue;
                }
                chosen.push(Some(shown.members.len()));
                let kind = member.declared.filter(|declared| !declared.sequence).map(|declared| declared.kind);
                let (is_boolean, is_pointer) = (kind == Some(Kind::Bool), kind == Some(Kind::Pointer));
                let plain = match member.field.shape() {
                    Shape::Integer(_) if is_pointer => Some(POINTER),
                    Shape::Integer(class)
                        if !is_boolean && class.meaning == Meaning::Number && class.labels.is_none() =>
                    {
                        Some(number_kind(class))
                    }
                    _ => None,
                };
                let number = fields.number(member.name);
                shown.members.push(Member { number, name: named(number), plain, is_boolean, is_pointer });
            }
            shown.projection = class.project(&chosen);
            fields.shown.insert(std::ptr::from_ref(class.class).addr(), fields.all_shown.len() as u32);
            fields.all_shown.push(shown);
        }
        fields
    }

    fn take(&mut self, name: &str) {
        let number = self.next_number();
        if !self.names.contains_key(name) {
            self.names.insert(name.into(), (number, named(number)));
        }
    }

    /// Returns the number after those of all names. Numbers start at 1.
    pub(crate) fn next_number(&self) -> u64 {
        self.names.len() as u64 + 1
    }

    fn take_parts(&mut self, field: FieldRef<'_>) {
        match field.shape() {
            Shape::Struct(parts) | Shape::Variant(parts) => {
                for (name, part) in parts {
                    self.take(name);
                    self.take_parts(part);
                }
            }
            Shape::Optional(part) | Shape::Array(part) => self.take_parts(part),
            _ => {}
        }
    }

    /// Returns each name with its number, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, u64)> {
        self.names.iter().map(|(name, (number, _))| (name.as_str(), *number))
    }

    /// Returns the name of an annotation in the form that is written.
    pub(crate) fn named(&self, name: &str) -> &Piece {
        self.names.get(name).map_or(&Piece::NONE, |(_, piece)| piece)
    }

    /// Returns the number of a name; 0 if the metadata do not contain it.
    fn number(&self, name: &str) -> u64 {
        self.names.get(name).map_or(0, |(number, _)| *number)
    }

    /// Returns the shown members of the class at this address.
    #[inline(always)]
    pub(crate) fn shown(&self, address: usize, recent: &mut Recent) -> Option<&Shown> {
        let index = recent.get(address, || self.shown.get(&address).copied())?;
        self.all_shown.get(index as usize)
    }
}
