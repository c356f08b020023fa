//! What was read, or why it could not be.
//!
//! ```text
//!   Told(value)      JSON: the value itself
//!   NotTold(cause)   JSON: {"not_told": "cause"}
//! ```
//! Reading is tolerant: a member that is missing, or that another version wrote in another form, is [`Fact::NotTold`]
//! and says which of the two it is. So results of other machines and versions load.

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

    /// This, or else what `other` finds. If both fail, the cause is the first one's.
    pub fn or_else(self, other: impl FnOnce() -> Fact<T>) -> Fact<T> {
        match self {
            Fact::Told(_) => self,
            Fact::NotTold(cause) => match other() {
                Fact::NotTold(_) => Fact::NotTold(cause),
                told => told,
            },
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
pub fn tolerant<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(reader: D) -> Result<T, D::Error> {
    let value = serde_json::Value::deserialize(reader)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

/// Whether something can be had here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Availability {
    /// It was tried, and works.
    Available,
    /// Why not.
    Not(String),
}

impl Availability {
    /// Whether it works.
    pub fn is_available(&self) -> bool {
        *self == Availability::Available
    }

    /// Why it does not.
    pub fn cause(&self) -> Option<&str> {
        match self {
            Availability::Available => None,
            Availability::Not(cause) => Some(cause),
        }
    }
}

impl Default for Availability {
    fn default() -> Availability {
        Availability::Not("this result does not have it".into())
    }
}

impl fmt::Display for Availability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Availability::Available => formatter.write_str("available"),
            Availability::Not(cause) => write!(formatter, "not available: {cause}"),
        }
    }
}

impl From<String> for Availability {
    fn from(text: String) -> Availability {
        match text.strip_prefix("not available: ") {
            Some(cause) => Availability::Not(cause.into()),
            None if text == "available" => Availability::Available,
            None => Availability::Not(text),
        }
    }
}

impl From<Availability> for String {
    fn from(availability: Availability) -> String {
        availability.to_string()
    }
}

impl From<Result<(), String>> for Availability {
    fn from(tried: Result<(), String>) -> Availability {
        tried.map_or_else(Availability::Not, |()| Availability::Available)
    }
}

impl From<Availability> for Result<(), String> {
    fn from(availability: Availability) -> Result<(), String> {
        match availability {
            Availability::Available => Ok(()),
            Availability::Not(cause) => Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Fact<u64> {
        serde_json::from_str(text).expect("a fact reads anything")
    }

    #[test]
    fn values_and_causes_survive_json() {
        for fact in [Fact::Told(7_u64), Fact::NotTold("no such file".into())] {
            let text = serde_json::to_string(&fact).expect("facts are JSON");
            assert_eq!(read(&text), fact, "{text}");
        }
        assert_eq!(serde_json::to_string(&Fact::Told(7)).expect("JSON"), "7");
    }

    #[test]
    fn another_form_is_no_error_and_says_so() {
        assert_eq!(read("\"seven\"").cause(), Some("another version wrote it as \"seven\""));
        assert_eq!(read("null").told(), None);
    }
}
