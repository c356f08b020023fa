//! Metadata of CTF 2 (CTF2-SPEC-2.0): a JSON text sequence (RFC 7464). Each of its texts is a fragment of the
//! description.
//!
//! ```text
//!   text ─▶ Json ─▶ node (values with positions) ─▶ resolve, fields ─▶ model
//!                                               └─▶ own (Dormouse's only)
//!   model ─▶ translate ─▶ Json ─▶ text
//! ```
//!
//! # Limits
//! * Fragments and properties of unspecified kinds are ignored. No extensions are supported, and metadata with
//!   extensions are refused.
//! * Floating-point numbers have 16, 32 or 64 bits.
//! * If a location leads into a variant, only one of the options may have the field.
//! * Namespaces, names and unique ids of traces, streams and clocks, and a clock's precision and accuracy, are checked
//!   but not kept.

mod fields;
mod node;
mod own;
mod position;
mod resolve;
#[cfg(test)]
mod tests;
mod translate;

use super::error::{MetadataError, line_of};
use super::{Described, Metadata};
use dormouse_format::metadata::ctf2::SEPARATOR;
use dormouse_format::metadata::json::Json;
use node::Failure;
use position::{Step, locate};
pub(super) use translate::translate;

/// Fragments of a text, and the offset of each.
struct Fragments<'a> {
    text: &'a str,
    offsets: Vec<usize>,
    values: Vec<Json>,
}

impl<'a> Fragments<'a> {
    fn parse(text: &'a str) -> Result<Fragments<'a>, MetadataError> {
        let mut fragments = Fragments { text, offsets: Vec::new(), values: Vec::new() };
        let mut parts = text.split(SEPARATOR);
        let mut end = parts.next().map_or(0, str::len);
        if end > 0 {
            return Err(MetadataError::at(text, 0, "expected the separator of a JSON text sequence (0x1E)"));
        }
        for part in parts {
            let offset = end + SEPARATOR.len_utf8();
            end = offset + part.len();
            // Empty texts between separators are allowed.
            if part.trim_ascii().is_empty() {
                continue;
            }
            let number = fragments.values.len() + 1;
            match serde_json::from_str(part) {
                Ok(value) => {
                    fragments.offsets.push(offset);
                    fragments.values.push(value);
                }
                Err(error) if error.is_eof() && end == text.len() => {
                    return Err(MetadataError::CutOff { line: line_of(text, offset) });
                }
                Err(error) => {
                    let line_start =
                        part.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
                    let at = (line_start + error.column().saturating_sub(1)).min(part.len());
                    // The position in serde's message is relative to the fragment, so it is removed.
                    let what = error.to_string();
                    let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
                    return Err(MetadataError::at(text, offset + at, format!("fragment {number}: {what}")));
                }
            }
        }
        Ok(fragments)
    }

    /// Converts a failure to an error with its position in the text.
    fn error(&self, failure: &Failure) -> MetadataError {
        let Failure { fragment, steps, what } = failure;
        let mut path = format!("fragment {}", fragment + 1);
        for (index, step) in steps.iter().enumerate() {
            path += match step {
                Step::Index(_) => "",
                Step::Key(_) if index == 0 => ", ",
                Step::Key(_) => ".",
            };
            path += &step.to_string();
        }
        let offset = self.offsets.get(*fragment).copied().unwrap_or(0);
        let text = self.text[offset..].split(SEPARATOR).next().unwrap_or_default();
        MetadataError::at(self.text, offset + locate(text, steps), format!("{path}: {what}"))
    }
}

/// Parses metadata of any tracer.
pub(super) fn describe(text: &str) -> Result<Described, MetadataError> {
    let fragments = Fragments::parse(text)?;
    let class = resolve::resolve(&fragments.values, text.len()).map_err(|failure| fragments.error(&failure))?;
    let own = match own::is_own(&class) {
        true => Some(own::read(&fragments.values, &class).map_err(|failure| fragments.error(&failure))?),
        false => None,
    };
    Ok(Described { class, own })
}

/// Parses metadata that Dormouse has written.
pub(super) fn parse(text: &str) -> Result<Metadata, MetadataError> {
    let fragments = Fragments::parse(text)?;
    let read = |class| own::read(&fragments.values, &class);
    resolve::resolve(&fragments.values, text.len()).and_then(read).map_err(|failure| fragments.error(&failure))
}
