//! An event class with its declaration, and the meaning of names for it.
//!
//! A name is looked up in this order: `event`, `time`, `cpu`, `pid`, `tid`, `process` (or `comm`); the event's fields;
//! its contexts; then `vpid`, `vtid`, `procname` and `cpu_id`, which are synonyms of `pid`, `tid`, `process` and `cpu`
//! if the trace has no fields with these names, and `level`, if the class has one; then `uid`, `user`, `cgroup` and
//! `container`, which the state stream tells of the process. `fields.x` and `context.x` are looked up only there, but
//! `context.user` and so on are also those of the process.

use dormouse_abi::class::CLASS_ID_MAX;
use dormouse_filter::{Kind, Name, Part};

use crate::model::Scope;
use crate::plan::{Class, Pick, Projection, StreamPlan};
use crate::stream::{Event, TraceRef};

/// An event class with its declaration.
#[derive(Debug, Clone, Copy)]
pub struct ClassRef<'a> {
    /// Names and fields.
    pub class: &'a Class,
    pub(crate) trace: TraceRef<'a>,
    pub(crate) plan: &'a StreamPlan,
}

const FIELDS: &[Scope] = &[Scope::Fields];
const CONTEXTS: &[Scope] = &[Scope::OwnContext, Scope::EventContext];
const ALL: &[Scope] = &[Scope::Fields, Scope::OwnContext, Scope::EventContext];

impl<'a> ClassRef<'a> {
    /// Returns all classes of a trace.
    pub fn all(trace: TraceRef<'a>) -> impl Iterator<Item = ClassRef<'a>> {
        let of = move |plan: &'a StreamPlan| plan.classes().map(move |class| ClassRef { class, trace, plan });
        trace.plan.streams.iter().flat_map(of)
    }

    /// Returns the class of an event.
    pub fn of(event: &Event<'a>) -> ClassRef<'a> {
        ClassRef { class: event.class, trace: event.trace(), plan: event.plan() }
    }

    /// Whether its events are the session owner's, in the state stream of a Dormouse trace.
    pub fn is_state(&self) -> bool {
        self.trace.is_own() && self.class.id > CLASS_ID_MAX.into()
    }

    /// Whether its events have times.
    pub fn has_clock(&self) -> bool {
        self.plan.clock.is_some()
    }

    pub(super) fn key(&self) -> usize {
        std::ptr::from_ref(self.class).addr()
    }

    /// Finds a field or context and the kind of its value (`None` for a compound without a value of its own). A field
    /// takes precedence over a context of the same name, unless the name begins with `fields.` or `context.`.
    pub fn field(&self, name: &Name) -> Option<(Pick, Option<Kind>)> {
        let (scopes, parts) = match name.parts.as_slice() {
            [Part::Member(scope), rest @ ..] if scope == "fields" && !rest.is_empty() => (FIELDS, rest),
            [Part::Member(scope), rest @ ..] if scope == "context" && !rest.is_empty() => (CONTEXTS, rest),
            parts => (ALL, parts),
        };
        scopes.iter().find_map(|scope| self.plan.pick(self.class, *scope, parts))
    }

    /// Compiles a choice of members. `chosen` has, for each of [`Class::members`], the index of the visitor that
    /// receives it, if any.
    pub fn project(&self, chosen: &[Option<usize>]) -> Projection {
        Projection::new(self.plan, self.class, chosen)
    }
}
