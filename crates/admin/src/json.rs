//! JSON whose objects keep the order of insertion. `serde_json`'s own would sort them.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

pub(crate) enum Json<'a> {
    Null,
    Number(u64),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Object<'a>),
}

#[derive(Default)]
pub(crate) struct Object<'a>(Vec<(&'a str, Json<'a>)>);

impl<'a> Object<'a> {
    pub(crate) fn insert(&mut self, key: &'a str, value: impl Into<Json<'a>>) {
        self.0.push((key, value.into()));
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(have, _)| *have == key)
    }
}

impl Json<'_> {
    /// As text that ends in a newline.
    pub(crate) fn to_line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("keys are strings and memory does not fail");
        line.push(b'\n');
        line
    }
}

impl From<u64> for Json<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<Option<u64>> for Json<'_> {
    fn from(number: Option<u64>) -> Self {
        number.map_or(Self::Null, Self::Number)
    }
}

impl<'a> From<&'a str> for Json<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Option<String>> for Json<'_> {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(text.into()))
    }
}

impl<'a> From<Object<'a>> for Json<'a> {
    fn from(object: Object<'a>) -> Self {
        Self::Object(object)
    }
}

impl<T: Into<Self>> FromIterator<T> for Json<'_> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Self::List(items.into_iter().map(Into::into).collect())
    }
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(items) => serializer.collect_seq(items),
            Self::Object(Object(pairs)) => {
                serializer.collect_map(pairs.iter().map(|(key, value)| (key, value)))
            }
        }
    }
}
