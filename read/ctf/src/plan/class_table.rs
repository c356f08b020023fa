//! Event classes with their plans, by id.

use std::collections::BTreeMap;
use std::sync::Arc;

use dormouse_abi::class::{ClassDecl, Level};

use super::bits::{Cursor, FieldError};
use super::node::{Node, Slots, StructNode};
use super::program::{Known, Operation, fixed_size, program, run};
use super::walk::{Blind, Memory};
use crate::model::{EventClass, Scope, Struct};

/// An event class with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Id in the records.
    pub id: u64,
    /// Name; `provider:name` in Dormouse's traces.
    pub full_name: String,
    /// Level, if the class has one.
    pub level: Option<Level>,
    /// Names and kinds of the fields, in Dormouse's traces.
    pub decl: Option<Box<ClassDecl>>,
    /// Context that all classes of the stream have.
    pub event_context: Option<StructNode>,
    /// Context that only this class has.
    pub own_context: Option<StructNode>,
    /// Fields of the payload.
    pub fields: Option<StructNode>,
    program: Box<[Operation]>,
    /// Size of contexts and fields in bits, if it is constant.
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
            level: event.level,
            decl: decl.map(Box::new),
            fixed_size_bits: fixed_size(&program),
            event_context,
            own_context,
            fields,
            program,
        }
    }

    /// Returns the structures of a record, in order.
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

    /// Returns the index of the first field that cannot be read, from 0, and the reason. In Dormouse's traces, the
    /// count of a sequence has no index of its own.
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
                // An array that is cut off is reported as having too many elements.
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
    /// Whether a member is the count of the sequence that follows it.
    pub fn is_count(&self, index: usize) -> bool {
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

/// Event classes by id, with fast lookup of small ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ClassTable {
    classes: Vec<Arc<Class>>,
    /// Size of each class's contexts and fields in bits, or [`VARIABLE`]. The sizes are kept together because every
    /// record needs one.
    sizes: Vec<u64>,
    /// Classes by id.
    dense: Vec<Dense>,
    /// Size in bytes of contexts and fields of plain records, by id, or [`u32::MAX`]. This table is separate and small,
    /// because the position of the next record depends on it.
    steps_bytes: Vec<u32>,
    sparse: BTreeMap<u64, u32>,
}

/// Properties of a class that every record needs, kept together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dense {
    /// Index of the class plus 1; 0 if there is no class.
    number: u32,
    /// Size of contexts and fields in bits; [`Dense::NOT_PLAIN`] if there is no class, or if the size is not constant
    /// or not below that value.
    size_bits: u32,
}

impl Dense {
    const NOT_PLAIN: u32 = u32::MAX;
    const NONE: Dense = Dense { number: 0, size_bits: Dense::NOT_PLAIN };
}

/// Size of records of variable size.
const VARIABLE: u64 = u64::MAX;

/// Ids below this bound are always in the dense table.
const DENSE_MIN: u64 = 1024;

impl ClassTable {
    /// Adds a class, unless its id is taken. Returns whether it was added.
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
        // A class can be in the sparse table because the bound was lower when it was inserted.
        let number = dense.or_else(|| if self.sparse.is_empty() { None } else { self.sparse.get(&id).copied() })?;
        Some(number as usize - 1)
    }

    /// Skips contexts and fields of a record of the class with this index.
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

    /// Returns the index of the class with this id and the constant size of contexts and fields in bits. `None` for
    /// classes with records of variable size, and for some others.
    #[inline(always)]
    pub(super) fn plain(&self, id: u64) -> Option<(usize, u64)> {
        let Dense { number, size_bits } = *self.dense.get(id as usize)?;
        (size_bits != Dense::NOT_PLAIN).then(|| (number as usize - 1, size_bits.into()))
    }

    /// Returns the size of contexts and fields in bytes, rounded up, where [`ClassTable::plain`] has one.
    #[inline(always)]
    pub(super) fn step_bytes(&self, id: u64) -> Option<u64> {
        self.steps_bytes.get(id as usize).filter(|step| **step != u32::MAX).map(|step| (*step).into())
    }

    /// Returns the ids that [`ClassTable::plain`] can know.
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
