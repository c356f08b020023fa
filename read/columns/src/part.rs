//! Columns for nested fields, requested by name: `at.x`, `a[2]`.

use std::collections::HashSet;

use dormouse_abi::class::{FieldType, Kind as Declared};
use dormouse_ctf::ClassRef;
use dormouse_ctf::model::Scope;
use dormouse_ctf::plan::Pick;
use dormouse_filter::{Name, Part, parse_name};

use crate::kind::Kind;

/// A column of the fields with one name. Names are resolved as in `dormouse_filter`.
#[derive(Debug)]
pub(crate) struct PartColumn {
    pub name: String,
    pub kind: Kind,
    /// Field of each class, in the order in which the classes were given.
    pub picks: Vec<Option<Pick>>,
}

/// Fields that have one name, but no common column.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` of {first} and of {second} are not of one kind, and make no column together")]
pub struct MixedKinds {
    /// Requested name.
    pub name: String,
    /// A class that has the field.
    pub first: String,
    /// A class whose field is of another kind.
    pub second: String,
}

/// Returns columns for these names, without those that no class has.
///
/// # Errors
/// Classes have fields of one name that share no column.
pub(crate) fn part_columns<'n>(
    names: impl Iterator<Item = &'n str>,
    classes: &[ClassRef<'_>],
) -> Result<Vec<PartColumn>, MixedKinds> {
    let (mut columns, mut known) = (Vec::new(), HashSet::new());
    for name in names.filter(|name| known.insert(*name)) {
        let parsed = parse_name(name);
        let picks: Vec<Option<Pick>> = classes.iter().map(|class| Some(class.field(&parsed)?.0)).collect();
        let mut found: Option<(Kind, &str)> = None;
        for (class, pick) in classes.iter().zip(&picks) {
            let Some(pick) = pick else { continue };
            let (kind, of) = (Kind::new(pick.field(), declared(class, &parsed)), class.class.full_name.as_str());
            let common = match &found {
                Some((before, first)) => before.common(&kind).ok_or_else(|| MixedKinds {
                    name: name.into(),
                    first: (*first).into(),
                    second: of.into(),
                })?,
                None => kind,
            };
            found = Some((common, found.map_or(of, |(_, first)| first)));
        }
        columns.extend(found.map(|(kind, _)| PartColumn { name: name.into(), kind, picks }));
    }
    Ok(columns)
}

/// Returns the declared type of a field, or of the sequence whose element it is, in Dormouse's traces.
fn declared(class: &ClassRef<'_>, name: &Name) -> Option<FieldType> {
    let parts = match name.parts.as_slice() {
        [Part::Member(scope), rest @ ..] if scope == "fields" && !rest.is_empty() => rest,
        parts => parts,
    };
    let (Part::Member(member), rest) = parts.split_first()? else { return None };
    let members = class.class.members();
    let member =
        members.iter().find(|found| found.scope == Scope::Fields && !found.is_count && found.name == member)?;
    match (rest, member.declared?) {
        ([], declared) => Some(declared),
        ([Part::Index(_)], FieldType { kind: kind @ Declared::Bool, sequence: true }) => Some(FieldType::scalar(kind)),
        _ => None,
    }
}
