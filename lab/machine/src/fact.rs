//! A value that was read, or the reason why it could not be read.
//!
//! ```text
//!   Told(value)      JSON: the value itself
//!   NotTold(cause)   JSON: {"not_told": "cause"}
//! ```
//! A member that is missing, or that another version wrote in another form, becomes [`Fact::NotTold`] with that cause.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

/// A property of the machine that may be unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, from = "Value", bound(deserialize = "T: DeserializeOwned"))]
pub enum Fact<T> {
    /// Its value.
    Told(T),
    /// The cause, in words.
    NotTold(#[serde(serialize_with = "cause_to_json")] String),
}

impl<T> Fact<T> {
    /// The value, if there is one.
    pub fn told(&self) -> Option<&T> {
        if let Fact::Told(value) = self { Some(value) } else { None }
    }

    /// The cause, if there is no value.
    pub fn cause(&self) -> Option<&str> {
        if let Fact::NotTold(cause) = self { Some(cause) } else { None }
    }

    /// Applies `form` to the value; the cause stays.
    pub fn map<U>(self, form: impl FnOnce(T) -> U) -> Fact<U> {
        match self {
            Fact::Told(value) => Fact::Told(form(value)),
            Fact::NotTold(cause) => Fact::NotTold(cause),
        }
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

impl<T> From<Result<T, String>> for Fact<T> {
    fn from(read: Result<T, String>) -> Fact<T> {
        read.map_or_else(Fact::NotTold, Fact::Told)
    }
}

impl<T: DeserializeOwned> From<Value> for Fact<T> {
    fn from(value: Value) -> Fact<T> {
        // The cause is tried first: a `T` whose members all have defaults would accept it as a value.
        if let Some(cause) = value.get("not_told").and_then(Value::as_str) {
            return Fact::NotTold(cause.into());
        }
        T::deserialize(&value).map_err(|_| format!("another version wrote it as {value}")).into()
    }
}

fn cause_to_json<S: Serializer>(cause: &str, writer: S) -> Result<S::Ok, S::Error> {
    BTreeMap::from([("not_told", cause)]).serialize(writer)
}
