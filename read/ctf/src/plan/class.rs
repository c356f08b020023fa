//! Event classes with their plans, by id.

use std::collections::BTreeMap;
use std::sync::Arc;

use dormouse_abi::class::ClassDecl;

use super::bits::{Cursor, FieldError};
use super::node::{Node, Slots, StructNode};
use super::program::{Known, Operation, fixed_size, program, run};
use super::walk::{Blind, Memory};
use crate::model::{EventClass, Scope, Struct};

/// An event class with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// The id that records carry.
    pub id: u64,
    /// Its name; of Dormouse's traces `provider:name`.
    pub full_name: String,
    /// Names and kinds of the fields, in traces of Dormouse.
    pub decl: Option<Box<ClassDecl>>,
    pub(crate) event_context: Option<StructNode>,
    pub(crate) own_context: Option<StructNode>,
    pub(crate) fields: Option<StructNode>,
    program: Box<[Operation]>,
    /// Bits of contexts and fields, where no value changes that.
    fixed_size_bits: Option<u64>,
}

impl Class {
    pub(super) fn new(
        event: &EventClass,
        decl: Option<ClassDecl>,
        event_context: Option<&Struct>,
        outer: &Slots,
        clock: Option<usize>,
        known: Known,
    ) -> Class {
        let (own, fields) = (event.context.as_ref(), event.fields.as_ref());
        let slots = outer.with([event_context, own, fields].into_iter().flatten());
        let node = |scope, structure: Option<&Struct>| structure.map(|structure| slots.node(scope, structure, clock));
        let event_context = node(Scope::EventContext, event_context);
        let own_context = node(Scope::OwnContext, own);
        let fields = node(Scope::Fields, fields);
        let program = program([&event_context, &own_context, &fields].into_iter().flatten(), known);
        Class {
            id: event.id,
            full_name: event.name.clone(),
            decl: decl.map(Box::new),
            fixed_size_bits: fixed_size(&program),
            event_context,
            own_context,
            fields,
            program,
        }
    }

    /// The structures that records have, in their order.
    pub(super) fn structures(&self) -> impl Iterator<Item = (Scope, &StructNode)> {
        let all = [
            (Scope::EventContext, &self.event_context),
            (Scope::OwnContext, &self.own_context),
            (Scope::Fields, &self.fields),
        ];
        all.into_iter().filter_map(|(scope, structure)| Some((scope, structure.as_ref()?)))
    }

    pub(super) fn fixed_size_bits(&self) -> Option<u64> {
        self.fixed_size_bits
    }

    /// Which field it is at which a record's fields cannot be read, its index being from 0, and why. Counts of Dormouse's sequences are
    /// one with what they count.
    #[cold]
    pub(super) fn failure(&self, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Option<(usize, FieldError)> {
        memory.begin();
        for context in [&self.event_context, &self.own_context].into_iter().flatten() {
            if let Err(error) = context.walk(cursor, memory, &mut Blind) {
                return Some((0, error));
            }
        }
        let fields = self.fields.as_ref()?;
        cursor.align(fields.align_bits);
        let mut index = 0;
        for (at, member) in fields.members.iter().enumerate() {
            if let Err(error) = member.node.walk(cursor, memory, &mut Blind) {
                // Elements that end early are as many too many.
                let error = match (&member.node, error) {
                    (Node::Array { count, .. }, FieldError::Cut) => FieldError::Count(count.get(memory)),
                    (_, error) => error,
                };
                return Some((index, error));
            }
            index += usize::from(self.decl.is_none() || !fields.is_count(at));
        }
        None
    }
}

impl StructNode {
    /// Whether a member is the count of the sequence that follows.
    pub(crate) fn is_count(&self, index: usize) -> bool {
        let slot = match &self.members[index].node {
            Node::Integer(integer) => integer.slot,
            _ => None,
        };
        let next = self.members.get(index + 1).map(|member| &member.node);
        slot.is_some_and(
            |slot| matches!(next, Some(Node::Array { count: super::node::Count::Slot(of), .. }) if *of == slot),
        )
    }
}

/// Classes by id, found quickly where ids are small.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClassTable {
    classes: Vec<Arc<Class>>,
    /// Bits of contexts and fields of each, or [`VARIABLE`]: in one place, because every record asks.
    sizes: Vec<u64>,
    /// By id.
    dense: Vec<Dense>,
    /// By id, the bytes of contexts and fields of the plain ones, or [`u32::MAX`]: apart and small, because the next record's place waits for it.
    steps_bytes: Vec<u32>,
    sparse: BTreeMap<u64, u32>,
}

/// What every record asks of its class, in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dense {
    /// Index of the class plus 1; 0 if there is none.
    number: u32,
    /// Bits of contexts and fields; [`Dense::NOT_PLAIN`] without a class, or where that is not one number below it.
    size_bits: u32,
}

impl Dense {
    const NOT_PLAIN: u32 = u32::MAX;
    const NONE: Dense = Dense { number: 0, size_bits: Dense::NOT_PLAIN };
}

/// The size of records that have not all the same.
const VARIABLE: u64 = u64::MAX;

/// Ids below are always in the dense table.
const DENSE_MIN: u64 = 1024;

impl ClassTable {
    /// Adds a class, unless there is one with its id.
    pub(super) fn insert(&mut self, class: Class) -> bool {
        let id = class.id;
        if self.index(id).is_some() {
            return false;
        }
        self.sizes.push(class.fixed_size_bits.unwrap_or(VARIABLE));
        self.classes.push(Arc::new(class));
        let number = self.classes.len() as u32;
        if id < DENSE_MIN.max(4 * u64::from(number)) {
            let len = self.dense.len().max(id as usize + 1);
            self.dense.resize(len, Dense::NONE);
            let size_bits = self.sizes.last().and_then(|size_bits| u32::try_from(*size_bits).ok());
            self.dense[id as usize] = Dense { number, size_bits: size_bits.unwrap_or(Dense::NOT_PLAIN) };
            self.steps_bytes.resize(len, u32::MAX);
            self.steps_bytes[id as usize] = size_bits.map_or(u32::MAX, |size_bits| size_bits.div_ceil(8));
        } else {
            self.sparse.insert(id, number);
        }
        true
    }

    #[inline(always)]
    pub(super) fn index(&self, id: u64) -> Option<usize> {
        let dense = self.dense.get(id as usize).map(|dense| dense.number).filter(|number| *number != 0);
        // The bound was lower when some were inserted.
        let number = dense.or_else(|| if self.sparse.is_empty() { None } else { self.sparse.get(&id).copied() })?;
        Some(number as usize - 1)
    }

    /// Passes over contexts and fields of a record of the class with this index.
    #[inline(always)]
    pub(super) fn pass(&self, index: usize, cursor: &mut Cursor<'_>, memory: &mut Memory) -> Result<(), FieldError> {
        match self.sizes[index] {
            VARIABLE => {
                memory.begin();
                run(&self.classes[index].program, cursor, memory)
            }
            size_bits => cursor.skip(size_bits),
        }
    }

    /// The index of the class with this id, and the bits of contexts and fields that all its records have; `None` of some classes, and of all whose
    /// records have not all one size.
    #[inline(always)]
    pub(super) fn plain(&self, id: u64) -> Option<(usize, u64)> {
        let Dense { number, size_bits } = *self.dense.get(id as usize)?;
        (size_bits != Dense::NOT_PLAIN).then(|| (number as usize - 1, size_bits.into()))
    }

    /// Bytes, the last of which may be used in part, of contexts and fields, where [`ClassTable::plain`] has them.
    #[inline(always)]
    pub(super) fn step_bytes(&self, id: u64) -> Option<u64> {
        self.steps_bytes.get(id as usize).filter(|step| **step != u32::MAX).map(|step| (*step).into())
    }

    /// Those that [`ClassTable::plain`] may know.
    pub(super) fn dense_ids(&self) -> std::ops::Range<u64> {
        0..self.dense.len() as u64
    }

    #[inline(always)]
    pub(super) fn at(&self, index: usize) -> &Class {
        &self.classes[index]
    }

    pub(super) fn count(&self) -> usize {
        self.classes.len()
    }

    pub(super) fn by_id(&self) -> impl Iterator<Item = &Class> {
        let mut classes: Vec<&Class> = self.classes.iter().map(Arc::as_ref).collect();
        classes.sort_by_key(|class| class.id);
        classes.into_iter()
    }
}
