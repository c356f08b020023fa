//! Types in the text: names in their scopes, and fields that refer to other fields.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::error::{Checked, fail};
use super::scalars::{align_of, encoding, float, integer};
use super::syntax::{At, Declarator, Length, Member, Type, TypeDeclaration, TypeKind};
use crate::model::{self, ByteOrder, ClockClass, FieldClass, FieldPath, Integer, Label, Range, Scope, Struct};

/// Meaning of a name.
#[derive(Debug, Clone)]
pub(super) enum Named<'a> {
    Class(Arc<FieldClass>),
    /// A structure or a variant.
    Tree(&'a Type<'a>),
    /// An array with these lengths.
    Array(&'a Type<'a>, &'a [(At, Length<'a>)]),
}

/// Minimum budget of fields, to which the length of the text is added. The budget bounds structures that contain one
/// another several times.
const FIELD_COUNT_MIN: usize = 1 << 20;
/// Maximum depth of nested structures.
const DEPTH_MAX: usize = 64;
/// Maximum depth of nested arrays, with or without structures between them.
const ARRAYS_MAX: usize = 64;
/// Number of name comparisons that cost as much of the budget as one field.
pub(super) const NAMES_PER_FIELD: usize = 64;

/// Names of types in nested scopes, and the reader's position within structures.
pub(super) struct Types<'a> {
    byte_order: ByteOrder,
    clocks: Vec<ClockClass>,
    /// Names of each scope, with the position of the declaration. A name is not visible before it.
    scopes: Vec<HashMap<String, (At, Named<'a>)>>,
    /// Number of fields that may still be created.
    budget: Cell<usize>,
    /// Number of arrays around the current field.
    arrays: usize,
    root: Scope,
    /// Structures and variants around the current field, outermost first.
    levels: Vec<Level>,
}

/// A structure or variant that is being read.
struct Level {
    is_variant: bool,
    members: Vec<model::Member>,
}

type Before<'b> = [(Scope, Option<&'b Struct>)];

/// Prefixes of absolute paths, by scope.
const SCOPES: [(&str, Scope); 6] = [
    ("trace.packet.header.", Scope::PacketHeader),
    ("stream.packet.context.", Scope::PacketContext),
    ("stream.event.header.", Scope::EventHeader),
    ("stream.event.context.", Scope::EventContext),
    ("event.context.", Scope::OwnContext),
    ("event.fields.", Scope::Fields),
];

impl<'a> Types<'a> {
    pub(super) fn new(byte_order: ByteOrder, clocks: Vec<ClockClass>, text_len: usize) -> Types<'a> {
        let budget = Cell::new(FIELD_COUNT_MIN + text_len);
        let scopes = vec![HashMap::new()];
        Types { byte_order, clocks, scopes, budget, arrays: 0, root: Scope::Fields, levels: Vec::new() }
    }

    pub(super) fn into_clocks(self) -> Vec<ClockClass> {
        self.clocks
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close(&mut self) {
        self.scopes.pop();
    }

    pub(super) fn insert(&mut self, at: At, name: String, named: Named<'a>) -> Checked<()> {
        let scope = self.scopes.last_mut().expect("the outermost scope is never closed");
        match scope.insert(name.clone(), (at, named)) {
            None => Ok(()),
            Some(_) => fail(at, format!("the type `{name}` is declared already")),
        }
    }

    /// Adds the names that a declaration defines.
    pub(super) fn declare(&mut self, declaration: &'a TypeDeclaration<'a>) -> Checked<()> {
        match declaration {
            TypeDeclaration::Alias(original, name_at, name) => {
                let named = self.named(original)?;
                self.insert(*name_at, name.clone(), named)
            }
            TypeDeclaration::Typedef(original, declarators) => {
                let named = self.named(original)?;
                for declarator in declarators {
                    check_lengths(declarator)?;
                    let named = match declarator.lengths.as_slice() {
                        [] => named.clone(),
                        lengths => Named::Array(original, lengths),
                    };
                    self.insert(declarator.at, declarator.name.to_string(), named)?;
                }
                self.define(original).map(drop)
            }
            TypeDeclaration::Definition(definition) => {
                if !self.define(definition)? {
                    self.check(definition)?;
                }
                Ok(())
            }
        }
    }

    /// Adds the name of a structure, variant or enumeration, if the definition has one. Returns whether it has.
    pub(super) fn define(&mut self, definition: &'a Type<'a>) -> Checked<bool> {
        let name = match &definition.kind {
            TypeKind::Struct { name: Some(name), members: Some(_), .. } => format!("struct {name}"),
            TypeKind::Variant { name: Some(name), options: Some(_), .. } => format!("variant {name}"),
            TypeKind::Enum { name: Some(name), labels: Some(_), .. } => format!("enum {name}"),
            _ => return Ok(false),
        };
        let named = self.named(definition)?;
        self.insert(definition.at, name, named)?;
        Ok(true)
    }

    /// Scalars are resolved at their declaration. Structures and variants are not, because their content can depend on
    /// the place of use.
    fn named(&mut self, original: &'a Type<'a>) -> Checked<Named<'a>> {
        Ok(match &original.kind {
            TypeKind::Struct { .. } | TypeKind::Variant { .. } => {
                self.check(original)?;
                Named::Tree(original)
            }
            TypeKind::Named(name) => self.find(original.at, name)?,
            _ => Named::Class(Arc::new(self.scalar(original)?)),
        })
    }

    /// Checks a type whether or not a field uses it. Only its references to other fields are not resolved.
    fn check(&mut self, class: &'a Type<'a>) -> Checked<()> {
        match &class.kind {
            TypeKind::Struct { members: Some(members), align, .. } => {
                if let Some((at, number)) = align {
                    align_of(*at, *number)?;
                }
                self.check_members(members)
            }
            TypeKind::Variant { options: Some(options), .. } => self.check_members(options),
            TypeKind::Struct { name: Some(name), .. } => self.find(class.at, &format!("struct {name}")).map(drop),
            TypeKind::Variant { name: Some(name), .. } => self.find(class.at, &format!("variant {name}")).map(drop),
            TypeKind::Named(name) => self.find(class.at, name).map(drop),
            _ => self.scalar(class).map(drop),
        }
    }

    fn check_members(&mut self, members: &'a [Member<'a>]) -> Checked<()> {
        self.open();
        let mut names = HashSet::new();
        for member in members {
            match member {
                Member::Type(declaration) => self.declare(declaration)?,
                Member::Fields(class, declarators) => {
                    if !self.define(class)? {
                        self.check(class)?;
                    }
                    for declarator in declarators {
                        if !names.insert(declarator.name.as_ref()) {
                            return fail(declarator.at, format!("there is a field `{}` already", declarator.name));
                        }
                        self.check_name(declarator)?;
                        check_lengths(declarator)?;
                    }
                }
            }
        }
        self.close();
        Ok(())
    }

    /// Checks that a field's name is not the name of a type.
    fn check_name(&self, declarator: &Declarator<'_>) -> Checked<()> {
        match self.find(declarator.at, &declarator.name) {
            Ok(_) => fail(declarator.at, format!("`{}` is the name of a type", declarator.name)),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn find(&self, at: At, name: &str) -> Checked<Named<'a>> {
        let is_before = |(declared, _): &&(At, Named<'a>)| declared.0 <= at.0;
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name).filter(is_before));
        found.map_or_else(|| fail(at, format!("there is no type `{name}` before this")), |(_, named)| Ok(named.clone()))
    }

    /// Resolves the structure of a scope. Its fields may refer to the scopes in `before`.
    pub(super) fn root(&mut self, root: Scope, class: &'a Type<'a>, before: &Before<'_>) -> Checked<Struct> {
        self.root = root;
        self.levels.clear();
        match self.class(class, "", before)?.as_ref() {
            FieldClass::Struct(structure) => Ok(structure.clone()),
            _ => fail(class.at, "expected a structure"),
        }
    }

    /// Resolves the class of a field with this name.
    fn class(&mut self, class: &'a Type<'a>, field: &str, before: &Before<'_>) -> Checked<Arc<FieldClass>> {
        self.charge(class.at, 1)?;
        if self.levels.len() >= DEPTH_MAX {
            return fail(class.at, format!("there are more than {DEPTH_MAX} structures in one another"));
        }
        let found = match &class.kind {
            TypeKind::Struct { members: Some(_), .. } | TypeKind::Variant { options: Some(_), .. } => {
                self.define(class)?;
                Arc::new(self.compound(class, None, before)?)
            }
            TypeKind::Struct { name, .. } => {
                let name = format!("struct {}", name.unwrap_or_default());
                self.of_name(class.at, &name, None, before)?
            }
            TypeKind::Variant { name, tag, .. } => {
                let name = format!("variant {}", name.unwrap_or_default());
                self.of_name(class.at, &name, tag.as_ref().map(|(at, tag)| (*at, tag.as_ref())), before)?
            }
            TypeKind::Named(name) => self.of_name(class.at, name, None, before)?,
            _ => {
                if matches!(&class.kind, TypeKind::Enum { name: Some(_), labels: Some(_), .. }) {
                    self.define(class)?;
                }
                Arc::new(self.scalar(class)?)
            }
        };
        self.with_clock(class.at, field, found)
    }

    fn charge(&self, at: At, count: usize) -> Checked<()> {
        match self.budget.get().checked_sub(count) {
            Some(budget) => self.budget.set(budget),
            None => return fail(at, "structures that hold or name one another have too many fields"),
        }
        Ok(())
    }

    fn of_name(
        &mut self,
        at: At,
        name: &str,
        tag: Option<(At, &str)>,
        before: &Before<'_>,
    ) -> Checked<Arc<FieldClass>> {
        match self.find(at, name)? {
            Named::Class(class) => Ok(class),
            Named::Array(original, lengths) => self.array(original, lengths, "", before),
            Named::Tree(tree) => match &tree.kind {
                // Names are followed only once: named structures that refer to one another could recurse without end.
                TypeKind::Struct { members: Some(_), .. } | TypeKind::Variant { options: Some(_), .. } => {
                    Ok(Arc::new(self.compound(tree, tag, before)?))
                }
                TypeKind::Struct { name: Some(inner), .. } => {
                    self.renamed(at, name, &format!("struct {inner}"), tag, before)
                }
                TypeKind::Variant { name: Some(inner), tag: own, .. } => {
                    let own = own.as_ref().map(|(at, tag)| (*at, tag.as_ref()));
                    self.renamed(at, name, &format!("variant {inner}"), tag.or(own), before)
                }
                _ => fail(at, format!("`{name}` is not a type of fields")),
            },
        }
    }

    fn renamed(
        &mut self,
        at: At,
        name: &str,
        other: &str,
        tag: Option<(At, &str)>,
        before: &Before<'_>,
    ) -> Checked<Arc<FieldClass>> {
        if name == other {
            return fail(at, format!("`{name}` is not declared but by itself"));
        }
        match self.find(at, other)? {
            Named::Tree(tree)
                if matches!(
                    &tree.kind,
                    TypeKind::Struct { members: Some(_), .. } | TypeKind::Variant { options: Some(_), .. }
                ) =>
            {
                Ok(Arc::new(self.compound(tree, tag, before)?))
            }
            _ => fail(at, format!("`{other}` is not declared")),
        }
    }

    /// Resolves a structure or variant that has braces.
    fn compound(&mut self, class: &'a Type<'a>, tag: Option<(At, &str)>, before: &Before<'_>) -> Checked<FieldClass> {
        match &class.kind {
            TypeKind::Struct { members: Some(members), align, .. } => {
                let members = self.members(members, false, before)?;
                let mut align_bits = members.iter().map(|member| member.class.align_bits()).max().unwrap_or(1);
                if let Some((at, number)) = align {
                    align_bits = align_bits.max(align_of(*at, *number)?);
                }
                Ok(FieldClass::Struct(Struct { align_bits, members }))
            }
            TypeKind::Variant { tag: own, options: Some(options), .. } => {
                let Some((tag_at, tag)) = tag.or(own.as_ref().map(|(at, tag)| (*at, tag.as_ref()))) else {
                    return fail(class.at, "this variant has no tag");
                };
                let (tag, integer) = self.reference(tag_at, tag, before)?;
                let Some(labels) = integer.labels.clone() else {
                    return fail(tag_at, "the tag of a variant is an enumeration");
                };
                let members = self.members(options, true, before)?;
                let mut ranges: HashMap<&str, Vec<Range>> = HashMap::new();
                labels.iter().for_each(|label| ranges.entry(&label.name).or_default().push(label.range));
                let mut option = |member: model::Member| {
                    let ranges = ranges.remove(member.name.as_str()).unwrap_or_default();
                    model::Option_ { ranges, name: member.name, class: member.class }
                };
                let options = members.into_iter().map(&mut option).collect();
                Ok(FieldClass::Variant(model::Variant { tag, is_tag_signed: integer.is_signed, options }))
            }
            _ => fail(class.at, "expected a structure or a variant"),
        }
    }

    fn members(
        &mut self,
        members: &'a [Member<'a>],
        is_variant: bool,
        before: &Before<'_>,
    ) -> Checked<Vec<model::Member>> {
        self.open();
        self.levels.push(Level { is_variant, members: Vec::new() });
        let mut names = HashSet::new();
        for member in members {
            match member {
                Member::Type(declaration) => self.declare(declaration)?,
                Member::Fields(class, declarators) => {
                    for (index, declarator) in declarators.iter().enumerate() {
                        let name = declarator.name.as_ref();
                        // The first underscore of a field's name is not part of it.
                        let shown = if is_variant { name } else { name.strip_prefix('_').unwrap_or(name) };
                        if !names.insert(shown) {
                            return fail(declarator.at, format!("there is a field `{shown}` already"));
                        }
                        self.check_name(declarator)?;
                        if index > 0
                            && matches!(
                                class.kind,
                                TypeKind::Struct { name: Some(_), .. }
                                    | TypeKind::Variant { name: Some(_), .. }
                                    | TypeKind::Enum { name: Some(_), .. }
                            )
                        {
                            return fail(declarator.at, "write a declaration of its own for this field");
                        }
                        let member = self.member(class, declarator, before)?;
                        let level = self.levels.last_mut().expect("pushed above");
                        level.members.push(member);
                    }
                }
            }
        }
        let level = self.levels.pop().expect("pushed above");
        self.close();
        Ok(level.members)
    }

    fn member(
        &mut self,
        class: &'a Type<'a>,
        declarator: &'a Declarator<'a>,
        before: &Before<'_>,
    ) -> Checked<model::Member> {
        let class = self.array(class, &declarator.lengths, &declarator.name, before)?;
        Ok(model::Member { name: declarator.name.to_string(), class })
    }

    /// Builds nested arrays of a class, or the class itself if there are no lengths.
    fn array(
        &mut self,
        class: &'a Type<'a>,
        lengths: &'a [(At, Length<'a>)],
        field: &str,
        before: &Before<'_>,
    ) -> Checked<Arc<FieldClass>> {
        // References to length fields are resolved from here, not from within the elements.
        let mut found = Vec::new();
        for (at, length) in lengths {
            found.push(match length {
                Length::Number(number) => model::Length::Fixed(fixed_length(*at, *number)?),
                Length::Field(path) => {
                    let (path, integer) = self.reference(*at, path, before)?;
                    if integer.is_signed {
                        return fail(*at, "the field with the length of a sequence is not signed");
                    }
                    model::Length::Field(path)
                }
            });
        }
        if self.arrays + lengths.len() > ARRAYS_MAX {
            return fail(class.at, format!("there are more than {ARRAYS_MAX} arrays in one another"));
        }
        self.arrays += lengths.len();
        let class = self.class(class, field, before);
        self.arrays -= lengths.len();
        let mut class = class?;
        for (index, length) in found.into_iter().rev().enumerate() {
            let is_text = index == 0 && matches!(class.as_ref(), FieldClass::Integer(integer) if is_text(integer));
            class = Arc::new(FieldClass::Array { element: class, length, is_text, align_bits: 1 });
        }
        Ok(class)
    }

    /// Finds the field that a path names: from the innermost structure outwards or, with the prefix of a scope, in that
    /// scope.
    fn reference(&self, at: At, path: &str, before: &Before<'_>) -> Checked<(FieldPath, Integer)> {
        let mut compared = 0;
        let absolute = SCOPES.iter().find_map(|(prefix, scope)| Some((*scope, path.strip_prefix(prefix)?)));
        let found = match absolute {
            Some((scope, rest)) if scope == self.root => self.in_levels(rest, 1, &mut compared),
            Some((scope, rest)) => {
                before.iter().find(|(known, _)| *known == scope).and_then(|found| in_scope(found, rest, &mut compared))
            }
            None => (1..=self.levels.len()).rev().find_map(|count| self.in_levels(path, count, &mut compared)),
        };
        self.charge(at, compared / NAMES_PER_FIELD)?;
        match found {
            Some((path, class)) => match class.as_ref() {
                FieldClass::Integer(integer) => Ok((path, integer.clone())),
                _ => fail(at, "this field is no number"),
            },
            None => fail(at, format!("there is no field `{path}` before this one")),
        }
    }

    /// Finds a field by its path below the structure at nesting depth `count`.
    fn in_levels(&self, path: &str, count: usize, compared: &mut usize) -> Option<(FieldPath, Arc<FieldClass>)> {
        let level = self.levels.get(count - 1).filter(|level| !level.is_variant)?;
        let (mut indices, class) = descend(&level.members, path, compared)?;
        // In each enclosing structure, the current member's index is the number of members before it.
        let mut around: Vec<usize> = self.levels[..count - 1].iter().map(|level| level.members.len()).collect();
        around.append(&mut indices);
        Some((FieldPath { scope: self.root, path: around }, class))
    }

    /// Resolves a class of numbers or texts.
    pub(super) fn scalar(&mut self, class: &'a Type<'a>) -> Checked<FieldClass> {
        match &class.kind {
            TypeKind::Integer(properties) => {
                Ok(FieldClass::Integer(integer(self.byte_order, &self.clocks, class.at, properties)?))
            }
            TypeKind::Float(properties) => Ok(FieldClass::Float(float(self.byte_order, class.at, properties)?)),
            TypeKind::Text(properties) => {
                for property in properties {
                    if property.key == "encoding" {
                        encoding(property)?;
                    }
                }
                Ok(FieldClass::Text(model::Text::TERMINATED))
            }
            TypeKind::Enum { name: Some(name), labels: None, .. } => {
                match self.find(class.at, &format!("enum {name}"))? {
                    Named::Class(class) => Ok(class.as_ref().clone()),
                    _ => fail(class.at, "this is no enumeration"),
                }
            }
            TypeKind::Enum { container, labels: Some(labels), .. } => {
                let container = match container {
                    Some(container) => match &container.kind {
                        TypeKind::Named(name) => self.find(container.at, name)?,
                        _ => Named::Class(Arc::new(self.scalar(container)?)),
                    },
                    None => self.find(class.at, "int")?,
                };
                let Named::Class(container) = container else {
                    return fail(class.at, "an enumeration is one of whole numbers");
                };
                let FieldClass::Integer(integer) = container.as_ref() else {
                    return fail(class.at, "an enumeration is one of whole numbers");
                };
                let (mut next, mut all) = (0i128, Vec::with_capacity(labels.len()));
                for label in labels {
                    let bounds = label.range.unwrap_or((next, next));
                    if bounds.0 > bounds.1 {
                        return fail(label.at, "the first value of this range is above the last");
                    }
                    next = bounds.1 + 1;
                    all.push(Label { name: label.name.to_string(), range: Range { bounds } });
                }
                Ok(FieldClass::Integer(Integer { labels: Some(all.into()), ..integer.clone() }))
            }
            _ => fail(class.at, "expected a number or a text"),
        }
    }

    /// Assigns a clock to times that do not name one: the only clock, or nanoseconds if there is no clock.
    fn with_clock(&mut self, at: At, field: &str, class: Arc<FieldClass>) -> Checked<Arc<FieldClass>> {
        let is_time = match self.root {
            Scope::EventHeader => field == "timestamp",
            Scope::PacketContext => self.levels.len() == 1 && matches!(field, "timestamp_begin" | "timestamp_end"),
            _ => false,
        };
        match class.as_ref() {
            FieldClass::Integer(integer) if is_time && integer.clock.is_none() => {
                if self.clocks.is_empty() {
                    self.clocks.push(ClockClass {
                        name: "default".into(),
                        description: "Default clock".into(),
                        frequency_hz: 1_000_000_000,
                        offset_s: 0,
                        offset_cycles: 0,
                        is_absolute: false,
                    });
                }
                if self.clocks.len() > 1 {
                    return fail(at, "this time does not say of which clock it is, and there are several");
                }
                Ok(Arc::new(FieldClass::Integer(Integer { clock: Some(0), ..integer.clone() })))
            }
            _ => Ok(class),
        }
    }

    /// Returns the clock of a stream's times, which is that of the first field with a clock.
    pub(super) fn clock_of_stream(&self, stream: &model::StreamClass) -> Option<usize> {
        let scopes = [&stream.packet_context, &stream.event_header, &stream.event_context];
        let of_events = stream.events.iter().flat_map(|event| [&event.context, &event.fields]);
        let mut structures = scopes.into_iter().chain(of_events).flatten();
        structures.find_map(|structure| structure.members.iter().find_map(|member| clock_of(&member.class)))
    }
}

fn fixed_length(at: At, number: i128) -> Checked<u64> {
    u32::try_from(number).map(u64::from).or_else(|_| fail(at, "an array has 0 to 2^32 - 1 elements"))
}

/// Checks that constant lengths are valid. Whether length fields exist depends on the place of use.
fn check_lengths(declarator: &Declarator<'_>) -> Checked<()> {
    declarator.lengths.iter().try_for_each(|(at, length)| match length {
        Length::Number(number) => fixed_length(*at, *number).map(drop),
        Length::Field(_) => Ok(()),
    })
}

fn clock_of(class: &FieldClass) -> Option<usize> {
    match class {
        FieldClass::Integer(integer) => integer.clock,
        FieldClass::Struct(structure) => structure.members.iter().find_map(|member| clock_of(&member.class)),
        FieldClass::Variant(variant) => variant.options.iter().find_map(|option| clock_of(&option.class)),
        FieldClass::Array { element, .. } => clock_of(element),
        // CTF 1.8 does not have the last two classes.
        FieldClass::Float(_) | FieldClass::Text(_) | FieldClass::Blob { .. } | FieldClass::Optional(_) => None,
    }
}

fn in_scope(
    scope: &(Scope, Option<&Struct>),
    path: &str,
    compared: &mut usize,
) -> Option<(FieldPath, Arc<FieldClass>)> {
    let (indices, class) = descend(&scope.1?.members, path, compared)?;
    Some((FieldPath { scope: scope.0, path: indices }, class))
}

/// Finds a member by its path through nested structures. Adds the number of compared names to `compared`.
fn descend(mut members: &[model::Member], path: &str, compared: &mut usize) -> Option<(Vec<usize>, Arc<FieldClass>)> {
    let mut indices = Vec::new();
    let mut parts = path.split('.').peekable();
    while let Some(part) = parts.next() {
        let index = members.iter().position(|member| member.name == part);
        *compared += index.map_or(members.len(), |index| index + 1);
        let index = index?;
        indices.push(index);
        let class = &members[index].class;
        if parts.peek().is_none() {
            return Some((indices, class.clone()));
        }
        members = &structure(class)?.members;
    }
    None
}

fn is_text(integer: &Integer) -> bool {
    integer.is_character && integer.size_bits == 8 && integer.align_bits == 8
}

/// Returns the class as a structure, if it is one.
fn structure(class: &FieldClass) -> Option<&Struct> {
    if let FieldClass::Struct(structure) = class { Some(structure) } else { None }
}
