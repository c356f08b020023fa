//! The event classes of a trace by their ids.

use dormouse_abi::class::{CLASS_ID_MAX, ClassDecl};
use dormouse_abi::page::{STREAM_EVENTS, STREAM_STATE};
use dormouse_abi::record::{COMPACT_HEADER_SIZE_BYTES, HEADER_SIZE_BYTES, RecordKind};

use crate::state::StateRecord;

/// An event class with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// The id that records carry.
    pub id: u16,
    /// Names and fields.
    pub decl: ClassDecl,
    /// `provider:name`.
    pub full_name: String,
    /// Bytes of all fields where no value changes that.
    pub(crate) fixed_size_bytes: Option<usize>,
}

/// Classes by id. Ids up to [`CLASS_ID_MAX`] belong to programs, those above to the state stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    kind: RecordKind,
    /// Indexed by id.
    events: Vec<Option<Box<Class>>>,
    /// Indexed by id - [`CLASS_ID_MAX`] - 1.
    state: Vec<Option<Box<Class>>>,
    /// Bytes of a record of an event class, its header (the compact one, if there are two) included, by id; 0 where that depends on
    /// the values, and where there is no class.
    record_sizes: Vec<u32>,
}

impl Default for Classes {
    fn default() -> Classes {
        Classes::new()
    }
}

impl Classes {
    /// The classes that every trace has: those of the state stream. Its event records have context.
    pub fn new() -> Classes {
        Classes::of_records(RecordKind::Ids)
    }

    /// The same of a trace whose event records are of this kind.
    pub fn of_records(kind: RecordKind) -> Classes {
        let mut classes = Classes::empty(kind);
        for (id, decl) in StateRecord::classes() {
            classes.insert(id, decl);
        }
        classes
    }

    pub(crate) fn empty(kind: RecordKind) -> Classes {
        Classes { kind, events: Vec::new(), state: Vec::new(), record_sizes: Vec::new() }
    }

    /// What headers event records have.
    pub fn record_kind(&self) -> RecordKind {
        self.kind
    }

    /// Whether the classes of the state stream are those that this crate reads.
    pub(crate) fn has_state(&self) -> bool {
        self.state == Classes::new().state
    }

    /// Adds a class. Returns whether the id was free; a class that is there already stays.
    pub fn insert(&mut self, id: u16, decl: ClassDecl) -> bool {
        let (table, index) = match id.checked_sub(CLASS_ID_MAX + 1) {
            None => (&mut self.events, id as usize),
            Some(index) => (&mut self.state, index as usize),
        };
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        let free = table[index].is_none();
        if free {
            let fixed_size_bytes: Option<usize> =
                decl.fields.iter().map(|(_, field_type)| field_type.fixed_size_bytes()).sum();
            if id <= CLASS_ID_MAX {
                let header_size_bytes = match self.kind {
                    RecordKind::Ids => HEADER_SIZE_BYTES,
                    RecordKind::Compact => COMPACT_HEADER_SIZE_BYTES,
                };
                let size_bytes = fixed_size_bytes.map_or(0, |size| header_size_bytes + size);
                self.record_sizes.resize(self.record_sizes.len().max(index + 1), 0);
                self.record_sizes[index] = u32::try_from(size_bytes).unwrap_or(0);
            }
            table[index] = Some(Box::new(Class { id, full_name: decl.full_name(), decl, fixed_size_bytes }));
        }
        free
    }

    /// The class with this id in a stream with this `stream_id`.
    pub fn get(&self, stream_id: u32, id: u16) -> Option<&Class> {
        match (stream_id, id.checked_sub(CLASS_ID_MAX + 1)) {
            (STREAM_EVENTS, None) => self.events.get(id as usize)?.as_deref(),
            (STREAM_STATE, Some(index)) => self.state.get(index as usize)?.as_deref(),
            _ => None,
        }
    }

    /// Bytes of a record of the event class with this id, its header (the compact one) included, where that is all that there is to
    /// know.
    #[inline(always)]
    pub(crate) fn record_size_bytes(&self, id: u16) -> Option<usize> {
        self.record_sizes.get(id as usize).map(|size| *size as usize).filter(|size| *size != 0)
    }

    /// The classes of programs, by rising id.
    pub fn events(&self) -> impl Iterator<Item = &Class> {
        self.events.iter().flatten().map(Box::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_belongs_to_one_stream_and_is_given_once() {
        let decl = |name: &str| ClassDecl { provider: "p".into(), name: name.into(), fields: vec![] };
        let mut classes = Classes::new();
        assert!(classes.insert(3, decl("a")) && !classes.insert(3, decl("b")));
        assert_eq!(classes.get(STREAM_EVENTS, 3).unwrap().full_name, "p:a");
        assert_eq!(classes.get(STREAM_STATE, 3), None);
        assert_eq!(classes.get(STREAM_EVENTS, CLASS_ID_MAX + 1), None);
        assert_eq!(classes.get(STREAM_STATE, CLASS_ID_MAX + 1).unwrap().full_name, "dormouse:process");
        assert_eq!(classes.get(STREAM_STATE, u16::MAX), None);
        assert_eq!(classes.events().count(), 1);
    }
}
