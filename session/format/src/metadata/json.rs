//! JSON values with properties in the order of the text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Json {
    Null,
    Flag(bool),
    Number(i128),
    /// A number that is not an integer or that is too large for one.
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Returns the value of a property.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(properties) => properties.iter().find(|(name, _)| name == key).map(|(_, value)| value),
            _ => None,
        }
    }

    /// Returns the text of a text.
    pub fn text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    /// Describes the value for people.
    pub fn kind(&self) -> Cow<'static, str> {
        match self {
            Json::Null => "null".into(),
            Json::Flag(flag) => flag.to_string().into(),
            Json::Number(number) => number.to_string().into(),
            Json::Float(float) => float.to_string().into(),
            Json::Text(text) => format!("{text:?}").into(),
            Json::List(_) => "an array".into(),
            Json::Object(_) => "an object".into(),
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }
    fn visit_bool<E>(self, flag: bool) -> Result<Json, E> {
        Ok(Json::Flag(flag))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(Json::Number(number.into()))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Float(number))
    }
    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.into()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            list.push(element);
        }
        Ok(Json::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let (mut properties, mut keys) = (Vec::new(), std::collections::HashSet::new());
        while let Some((key, value)) = entries.next_entry::<String, Json>()? {
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format!(
                    "the property {key:?} is in this object twice; take one of the two away"
                )));
            }
            properties.push((key, value));
        }
        Ok(Json::Object(properties))
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Json::Null => serializer.serialize_unit(),
            Json::Flag(flag) => serializer.serialize_bool(*flag),
            Json::Number(number) => serializer.serialize_i128(*number),
            Json::Float(float) => serializer.serialize_f64(*float),
            Json::Text(text) => serializer.serialize_str(text),
            Json::List(list) => serializer.collect_seq(list),
            Json::Object(properties) => serializer.collect_map(properties.iter().map(|(key, value)| (key, value))),
        }
    }
}

/// Returns an object with these properties.
pub fn object(properties: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
    Json::Object(properties.into_iter().map(|(name, value)| (name.into(), value)).collect())
}

/// Returns a list of these elements.
pub fn list(elements: impl IntoIterator<Item = Json>) -> Json {
    Json::List(elements.into_iter().collect())
}

/// Returns a text.
pub fn text(text: &str) -> Json {
    Json::Text(text.into())
}
