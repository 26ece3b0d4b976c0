//! What the parameters of commands have to be, in words: by their types, which the description has as well.

use schemars::schema_for;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::command::Command;

/// An object of JSON that has each name once.
#[derive(Debug, Default, PartialEq)]
pub struct Parameters(pub Map<String, Value>);

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Once;

        impl<'de> Visitor<'de> for Once {
            type Value = Parameters;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parameters, A::Error> {
                let mut parameters = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if parameters.contains_key(&name) {
                        let name = name.escape_debug();
                        return Err(A::Error::custom(format!(
                            "the parameter {name} is there twice"
                        )));
                    }
                    parameters.insert(name, value);
                }
                Ok(Parameters(parameters))
            }
        }

        from.deserialize_map(Once)
    }
}

/// What is wrong with what a command is given, if its types say so.
pub(crate) fn wrong(command: &str, given: &Map<String, Value>) -> Option<String> {
    let schema = schema_for!(Command).to_value();
    let is_its = |it: &&Value| it["properties"]["command"]["const"] == command;
    let its = schema["oneOf"].as_array()?.iter().find(is_its)?;
    let types = its["properties"].as_object()?;
    for (name, value) in given {
        let Some(of) = types.get(name).filter(|_| name != "command") else {
            return Some(format!("there is no parameter {}", name.escape_debug()));
        };
        let what = Type::of(of, &schema["$defs"]);
        if what.as_ref().is_some_and(|what| !what.is(value)) {
            return what.map(|what| format!("the parameter {name} is {}", what.described()));
        }
    }
    let required = its["required"].as_array()?.iter().filter_map(Value::as_str);
    let missing = required.filter(|it| *it != "command").find(|it| !given.contains_key(*it))?;
    Some(format!("the parameter {missing} is missing"))
}

/// What a value may be.
struct Type {
    kind: Kind,
    may_be_null: bool,
}

enum Kind {
    Switch,
    Number { min: u64, max: Option<u64> },
    Text,
    Texts,
    OneOf(Vec<String>),
}

impl Type {
    /// As the schema says; `None` if it is none of those that parameters have.
    fn of(schema: &Value, definitions: &Value) -> Option<Self> {
        if let Some(name) = schema["$ref"].as_str() {
            return Self::of(&definitions[name.rsplit('/').next()?], definitions);
        }
        let names: Vec<&str> = match &schema["type"] {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let may_be_null = names.contains(&"null");
        let words = |values: &Value, of: fn(&Value) -> Option<&str>| -> Vec<String> {
            values.as_array().into_iter().flatten().filter_map(of).map(str::to_owned).collect()
        };
        let mut named = words(&schema["enum"], Value::as_str);
        named.extend(words(&schema["oneOf"], |it| it["const"].as_str()));
        let kind = match names.iter().find(|name| **name != "null") {
            _ if !named.is_empty() => Kind::OneOf(named),
            Some(&"boolean") => Kind::Switch,
            Some(&"integer") => Kind::Number {
                min: schema["minimum"].as_u64().unwrap_or(0),
                max: schema["maximum"].as_u64(),
            },
            Some(&"string") => Kind::Text,
            Some(&"array") => Kind::Texts,
            _ => return None,
        };
        Some(Self { kind, may_be_null })
    }

    fn is(&self, value: &Value) -> bool {
        if value.is_null() {
            return self.may_be_null;
        }
        match &self.kind {
            Kind::Switch => value.is_boolean(),
            Kind::Number { min, max } => value
                .as_u64()
                .is_some_and(|number| number >= *min && max.is_none_or(|max| number <= max)),
            Kind::Text => value.is_string(),
            Kind::Texts => value.as_array().is_some_and(|all| all.iter().all(Value::is_string)),
            Kind::OneOf(names) => {
                value.as_str().is_some_and(|it| names.iter().any(|name| name == it))
            }
        }
    }

    fn described(&self) -> String {
        match &self.kind {
            Kind::Switch => "true or false".to_owned(),
            Kind::Number { min, max: Some(max) } => format!("a number from {min} to {max}"),
            Kind::Number { min, max: None } => format!("a number from {min} on"),
            Kind::Text => "a text".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::OneOf(names) => format!("one of {}", names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_parameter_has_a_type_that_is_known() {
        let schema = schema_for!(Command).to_value();
        for variant in schema["oneOf"].as_array().unwrap() {
            let properties = variant["properties"].as_object().unwrap();
            for (name, of) in properties.iter().filter(|(name, _)| *name != "command") {
                assert!(Type::of(of, &schema["$defs"]).is_some(), "{name}: {of}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_words() {
        let said = |command: &str, given: Value| wrong(command, given.as_object().unwrap());
        let server = json!({"pool": "p", "server": "s", "percent": 50});
        assert_eq!(said("weight", server.clone()), None);
        let with = |name: &str, value: Value| {
            let mut given = server.clone();
            given[name] = value;
            said("weight", given).unwrap()
        };
        for number in [json!(-1), json!(101), json!(50.5), json!("50"), json!(1e18), json!(null)] {
            assert_eq!(with("percent", number), "the parameter percent is a number from 0 to 100");
        }
        assert_eq!(with("pool", json!(1)), "the parameter pool is a text");
        assert_eq!(with("x", json!(1)), "there is no parameter x");
        assert_eq!(
            said("weight", json!({"pool": "p", "percent": 1})).unwrap(),
            "the parameter server is missing"
        );
        assert_eq!(
            said("reload", json!({"dry_run": 1})).unwrap(),
            "the parameter dry_run is true or false"
        );
        assert_eq!(
            said("events", json!({"since": -1})).unwrap(),
            "the parameter since is a number from 0 on"
        );
        assert_eq!(said("events", json!({"kind": null})), None);
        assert_eq!(
            said("migrate", json!({"action": "sideways"})).unwrap(),
            "the parameter action is one of start, pause, resume, verify, cut_over, roll_back"
        );
        let keys = json!({"from": "a", "to": "b", "keys": ["k", 1]});
        assert_eq!(said("move_keys", keys).unwrap(), "the parameter keys is a list of texts");
        assert_eq!(
            said("undrain", json!({"command": "reload"})).unwrap(),
            "there is no parameter command"
        );
        assert_eq!(said("undrain", json!({})), None);
    }

    #[test]
    fn a_name_is_there_once() {
        let read = |text: &str| serde_json::from_str::<Parameters>(text).map(|it| it.0);
        assert_eq!(read(r#"{"a": 1, "b": [2]}"#).unwrap().len(), 2);
        let why = read(r#"{"dry_run": true, "dry_run": false}"#).unwrap_err().to_string();
        assert!(why.starts_with("the parameter dry_run is there twice"), "{why}");
        for text in ["[]", "1", "null", "\"a\""] {
            assert!(read(text).unwrap_err().is_data(), "{text}");
        }
    }
}
