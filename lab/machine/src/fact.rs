//! What was read, or why it could not be.
//!
//! ```text
//!   Told(value)      JSON: the value itself
//!   NotTold(cause)   JSON: {"not_told": "cause"}
//! ```
//! A member that is missing, or that another version wrote in another form, is [`Fact::NotTold`] and says which: results of other machines
//! and versions load.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A property of the machine that may be hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact<T> {
    /// Its value.
    Told(T),
    /// Why there is none, in words.
    NotTold(String),
}

impl<T> Fact<T> {
    /// The value, if there is one.
    pub fn told(&self) -> Option<&T> {
        match self {
            Fact::Told(value) => Some(value),
            Fact::NotTold(_) => None,
        }
    }

    /// Why there is none.
    pub fn cause(&self) -> Option<&str> {
        match self {
            Fact::Told(_) => None,
            Fact::NotTold(cause) => Some(cause),
        }
    }

    /// Another form of the value; the cause stays.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Fact<U> {
        self.and_then(|value| Fact::Told(form(value)))
    }

    /// A further step that may fail too.
    pub fn and_then<U>(self, step: impl FnOnce(T) -> Fact<U>) -> Fact<U> {
        match self {
            Fact::Told(value) => step(value),
            Fact::NotTold(cause) => Fact::NotTold(cause),
        }
    }

    /// The value, or a fact that says `cause`.
    pub fn from_option(value: Option<T>, cause: impl FnOnce() -> String) -> Fact<T> {
        value.map_or_else(|| Fact::NotTold(cause()), Fact::Told)
    }
}

impl<T> Default for Fact<T> {
    fn default() -> Fact<T> {
        Fact::NotTold("this result does not have it".into())
    }
}

impl<T: fmt::Display> fmt::Display for Fact<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Told(value) => value.fmt(formatter),
            Fact::NotTold(cause) => write!(formatter, "not told: {cause}"),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Cause {
    not_told: String,
}

impl<T: Serialize> Serialize for Fact<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Fact::Told(value) => value.serialize(serializer),
            Fact::NotTold(cause) => Cause { not_told: cause.clone() }.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Fact<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fact<T>, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        // The cause first: a `T` all of whose members have defaults would take it for a value.
        if let Ok(Cause { not_told }) = Cause::deserialize(&value) {
            return Ok(Fact::NotTold(not_told));
        }
        Ok(match T::deserialize(&value) {
            Ok(told) => Fact::Told(told),
            Err(_) => Fact::NotTold(format!("another version wrote it as {value}")),
        })
    }
}

/// Reads any member: one that another version wrote in another form is the default.
pub(crate) fn tolerant<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(reader: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(reader)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_causes_survive_json_and_another_form_says_so() {
        let read = |text: &str| serde_json::from_str::<Fact<u64>>(text).expect("a fact reads anything");
        for fact in [Fact::Told(7_u64), Fact::NotTold("no such file".into())] {
            assert_eq!(read(&serde_json::to_string(&fact).expect("facts are JSON")), fact);
        }
        assert_eq!(serde_json::to_string(&Fact::Told(7)).expect("JSON"), "7");
        assert_eq!(read("\"seven\"").cause(), Some("another version wrote it as \"seven\""));
    }
}
