//! Positions of values in JSON text.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde_json::value::RawValue;

/// A step from a value to a contained one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Key(key) => f.write_str(key),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Returns the offset of the value that these steps lead to.
pub(super) fn locate(text: &str, steps: &[Step]) -> usize {
    let mut at = text;
    for step in steps {
        let found: Option<&RawValue> = match step {
            Step::Key(key) => serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(at)
                .ok()
                .and_then(|properties| properties.get(key.as_str()).copied()),
            Step::Index(index) => {
                serde_json::from_str::<Vec<&RawValue>>(at).ok().and_then(|list| list.get(*index).copied())
            }
        };
        // A missing value is reported at its container.
        let Some(found) = found else { break };
        at = found.get();
    }
    let blank = at.len() - at.trim_start().len();
    at.as_ptr() as usize - text.as_ptr() as usize + blank
}
