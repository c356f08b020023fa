//! Error messages about a query: one line, the line of the query, a caret below the place, and the probably intended
//! name.

use datafusion::common::{Diagnostic, SchemaError};
use datafusion::error::DataFusionError;
use dormouse_filter::FilterError;

use crate::traces::{CATALOG, SCHEMA};

/// Maximum number of names that are listed in full. For more, only the nearest name or the count is given.
const LISTED_MAX: usize = 8;

/// Returns the most similar of these names, if one is similar enough.
pub(crate) fn meant<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let likeness = |other: &str| strsim::normalized_damerau_levenshtein(&name.to_lowercase(), &other.to_lowercase());
    let best = names.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    best.filter(|best| likeness(best) >= 0.5)
}

/// Returns the probably intended name, or the existing names, as the end of a sentence.
pub(crate) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<&str> = names.collect();
    match (meant(name, &names), names.first()) {
        (Some(best), _) => format!("; did you mean {}?", quoted(best)),
        (None, Some(_)) if names.len() <= LISTED_MAX => {
            let all: Vec<String> = names.iter().map(|name| quoted(name)).collect();
            format!("; there are {}", all.join(", "))
        }
        (None, Some(_)) => {
            format!("; there are {}, which `select * from classes` or `describe TABLE` lists", names.len())
        }
        (None, None) => String::new(),
    }
}

/// Quotes a name for SQL if needed.
pub(crate) fn quoted(name: &str) -> String {
    let is_word = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_word { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A place in a text: line and column, from 1.
type Place = (usize, usize);

/// Returns the error message for a query. `tables` has the names of all tables.
pub(crate) fn told(sql: &str, error: &DataFusionError, tables: &[String]) -> String {
    if let Some(line) = of_store(error).or_else(|| of_store_text(&error.to_string())) {
        return line;
    }
    let place = error.diagnostic().and_then(span);
    let root = error.find_root();
    let (what, place) = match root {
        DataFusionError::SQL(parser, _) => {
            let text = parser.to_string();
            let text = text.strip_prefix("sql parser error: ").unwrap_or(&text);
            let (what, found) = without_place(text);
            (with_hint(&what, sql, found.or(place)), found.or(place))
        }
        DataFusionError::SchemaError(schema, _) => (of_schema(schema), place),
        DataFusionError::ResourcesExhausted(why) => {
            let first = why.lines().next().unwrap_or_default();
            (format!("--memory is too small for this query, which cannot use temporary files: {first}"), None)
        }
        DataFusionError::Plan(why) => match missing_table(why) {
            Some(name) => (
                format!("there is no table {}{}", quoted(name), nearest(name, tables.iter().map(String::as_str))),
                place.or_else(|| find(sql, name)),
            ),
            None => (why.clone(), place),
        },
        other => (other.message().into_owned(), place),
    };
    let what = what.trim_end_matches('.').to_string();
    match place.and_then(|(line, column)| Some((line, column, sql.lines().nth(line.checked_sub(1)?)?))) {
        Some((line, column, excerpt)) if column > 0 => {
            FilterError { line, column, what, excerpt: excerpt.to_string() }.to_string()
        }
        _ => what,
    }
}

/// Returns the message for an object store's error that Parquet or a cluster has turned into text.
pub(crate) fn of_store_text(text: &str) -> Option<String> {
    let path = text.split_once("Object at location ").and_then(|(_, rest)| Some(rest.split_once(" not found")?.0));
    if let Some(path) = path {
        return Some(format!("cannot read {path}: it does not exist"));
    }
    text.contains("<Code>").then_some(())?;
    let source = text.to_string().into();
    let reason = dormouse_store::reason(&object_store::Error::Generic { store: "S3", source })?;
    Some(format!("cannot read the store: {reason}"))
}

/// Returns the message for an error of an object store, with the object's path if the error has it.
fn of_store(error: &DataFusionError) -> Option<String> {
    let reason = dormouse_store::reason(error)?;
    let mut sources = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
    let path = sources.find_map(|error| {
        let boxed = error.downcast_ref::<Box<object_store::Error>>().map(Box::as_ref);
        match error.downcast_ref::<object_store::Error>().or(boxed)? {
            object_store::Error::NotFound { path, .. }
            | object_store::Error::PermissionDenied { path, .. }
            | object_store::Error::Unauthenticated { path, .. } => Some(path.clone()),
            _ => None,
        }
    });
    Some(format!("cannot read {}: {reason}", path.as_deref().unwrap_or("the store")))
}

fn span(diagnostic: &Diagnostic) -> Option<Place> {
    let start = diagnostic.span?.start;
    Some((usize::try_from(start.line).ok()?, usize::try_from(start.column).ok()?))
}

/// Returns the place of a text in a query.
fn find(sql: &str, text: &str) -> Option<Place> {
    let before = &sql[..sql.find(text)?];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Some((before.matches('\n').count() + 1, before[line_start..].chars().count() + 1))
}

/// Splits the place off a parser's message, which has it at the end.
fn without_place(text: &str) -> (String, Option<Place>) {
    let Some((what, place)) = text.rsplit_once(" at Line: ") else { return (text.into(), None) };
    let place = place
        .split_once(", Column: ")
        .and_then(|(line, column)| Some((line.parse().ok()?, column.trim().parse().ok()?)));
    (what.into(), place)
}

fn with_hint(what: &str, sql: &str, place: Option<Place>) -> String {
    let around = place.and_then(|(line, column)| {
        let line = sql.lines().nth(line.checked_sub(1)?)?;
        Some(line.chars().skip(column.saturating_sub(2)).take(3).collect::<String>())
    });
    match around {
        Some(around) if around.contains(':') => {
            format!("{what}; put the name of an event class in double quotes: \"http:request\"")
        }
        _ => what.into(),
    }
}

fn of_schema(error: &SchemaError) -> String {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let names: Vec<&str> = valid_fields.iter().map(|field| field.name.as_str()).collect();
            format!("there is no column {}{}", quoted(&field.name), nearest(&field.name, names.into_iter()))
        }
        other => other.to_string(),
    }
}

/// Returns NAME of the message `table 'dormouse.trace.NAME' not found`.
fn missing_table(why: &str) -> Option<&str> {
    let name = why.strip_prefix("table '")?.strip_suffix("' not found")?;
    Some(name.strip_prefix(&format!("{CATALOG}.{SCHEMA}.")).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_position_and_a_suggestion() {
        assert_eq!(
            without_place("Expected: x, found: y at Line: 1, Column: 15"),
            ("Expected: x, found: y".into(), Some((1, 15)))
        );
        assert_eq!(
            nearest("http:reqest", ["http:request", "http:response"].into_iter()),
            "; did you mean \"http:request\"?"
        );
        assert_eq!(nearest("x", ["events", "pairs"].into_iter()), "; there are events, pairs");
        assert_eq!(find("select *\nfrom evnts", "evnts"), Some((2, 6)));
        assert_eq!((quoted("a_1"), quoted("A"), quoted("p:e")), ("a_1".into(), "\"A\"".into(), "\"p:e\"".into()));
    }
}
