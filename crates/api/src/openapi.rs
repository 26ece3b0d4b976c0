//! The description of the API, as OpenAPI 3.1 has it.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::action::{Action, ActionList};
use crate::command::Command;
use crate::failure::{Failure, FailureKind};
use crate::operation::{BASE, Does, OPERATIONS, Operation, Role, WAIT_DEFAULT, WAIT_MAX};
use crate::status::Status;
use crate::{EventList, RouteList, RouteQuestion};

const JSON: &str = "application/json";

const ABOUT: &str = "What `cashew` does with a running instance, by HTTP at its stats port.\n\n\
    GET changes nothing. What changes something needs `operate_token` as a bearer token, and comes from an address \
    in `operate_from`, which is loopback alone if it is not set. What only shows something needs `stats_token`, if \
    there is one; `operate_token` does as well.\n\n\
    What is asked for is an action with a number. The answer waits for its end, for as long as `wait` says: status \
    200 if it is done, 409 if it has failed, and 202 if it goes on, with its address in `Location`. Whoever leaves \
    ends nothing. To ask for something again does no harm: `changed` is false if there was nothing left to do.\n\n\
    Every answer whose status is 400 or higher is a `Failure`: also 404 where there is no such path, and 405 where a \
    path has no such method. Answers may have more members in later versions.";

/// The description, for instances of that version.
pub fn openapi(version: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = format!("{BASE}{}", operation.path);
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[operation.method.to_lowercase()] = described(operation, &mut schemas);
    }
    let mut components = json!({
        "securitySchemes": {
            "stats_token": {
                "type": "http",
                "scheme": "bearer",
                "description": "`stats_token` of the configuration, or `operate_token`.",
            },
            "operate_token": {
                "type": "http",
                "scheme": "bearer",
                "description": "`operate_token` of the configuration.",
            },
        },
    });
    components["schemas"] = schemas.finish();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Cashew",
            "version": version,
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "The stats port" }],
        "paths": paths,
        "components": components,
    })
}

/// Whether that parameter of a command is a number.
pub fn is_integer(command: &str, parameter: &str) -> bool {
    let schemas = Schemas::new();
    let its = &schemas.parameters.get(command).map_or(&Value::Null, |it| &it["properties"]);
    match &its[parameter]["type"] {
        Value::String(name) => name == "integer",
        Value::Array(names) => names.iter().any(|name| name == "integer"),
        _ => false,
    }
}

/// The types of requests and of answers. What may be left out of a request is in every answer.
struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
    /// By the name of a command: what it is given.
    parameters: Map<String, Value>,
}

impl Schemas {
    fn new() -> Self {
        let mut settings = SchemaSettings::draft2020_12();
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
        let answers = settings.clone().for_serialize().into_generator();
        let mut requests = settings.for_deserialize().into_generator();
        let commands = requests.root_schema_for::<Command>().to_value();
        let variants = commands["oneOf"].as_array().cloned().unwrap_or_default();
        let parameters = variants.into_iter().filter_map(without_command).collect();
        Self { requests, answers, parameters }
    }

    fn answer(&mut self, does: Does) -> Value {
        let schema = match does {
            Does::Ask("events") => self.answers.subschema_for::<EventList>(),
            Does::Ask(_) => self.answers.subschema_for::<Status>(),
            Does::Actions => self.answers.subschema_for::<ActionList>(),
            Does::Act(_) | Does::Action => self.answers.subschema_for::<Action>(),
            Does::Describe => return json!({ "type": "object" }),
            Does::Route => self.answers.subschema_for::<RouteList>(),
        };
        schema.to_value()
    }

    fn route_question(&self) -> Value {
        schemars::schema_for!(RouteQuestion).to_value()
    }

    fn failure(&mut self) -> Value {
        self.answers.subschema_for::<Failure>().to_value()
    }

    fn finish(mut self) -> Value {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all.remove("Command");
        Value::Object(all)
    }
}

/// The name of the command and what else it has.
fn without_command(mut variant: Value) -> Option<(String, Value)> {
    let properties = variant.get_mut("properties")?.as_object_mut()?;
    let name = properties.remove("command")?.get("const")?.as_str()?.to_owned();
    if let Some(required) = variant.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|it| it != "command");
    }
    let variant = variant.as_object_mut()?;
    variant
        .retain(|key, value| key != "description" && !(key == "required" && *value == json!([])));
    variant.insert("additionalProperties".to_owned(), false.into());
    Some((name, Value::Object(variant.clone())))
}

fn described(operation: &Operation, schemas: &mut Schemas) -> Value {
    let mut text = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses(operation, schemas),
        "security": match operation.role() {
            Role::Read => json!([{}, { "stats_token": [] }, { "operate_token": [] }]),
            Role::Operate => json!([{ "operate_token": [] }]),
        },
    });
    if !operation.description.is_empty() {
        text["description"] = operation.description.into();
    }
    let parameters = parameters(operation, schemas);
    if !parameters.is_empty() {
        text["parameters"] = parameters.into();
    }
    if let Does::Act(name) = operation.does {
        let schema = schemas.parameters[name].clone();
        let is_required = schema.get("required").is_some();
        text["requestBody"] =
            json!({ "required": is_required, "content": { JSON: { "schema": schema } } });
    }
    text
}

fn parameters(operation: &Operation, schemas: &Schemas) -> Vec<Value> {
    match operation.does {
        Does::Act(_) => vec![json!({
            "name": "wait",
            "in": "query",
            "description": "How many seconds the answer waits for the end of the action.",
            "schema": {
                "type": "integer", "minimum": 0, "maximum": WAIT_MAX, "default": WAIT_DEFAULT,
            },
        })],
        Does::Ask(name) => {
            let properties = schemas.parameters[name].get("properties").and_then(Value::as_object);
            let parameter = |(name, schema): (&String, &Value)| {
                let mut schema = schema.clone();
                let description = schema.as_object_mut().and_then(|it| it.remove("description"));
                json!({ "name": name, "in": "query", "description": description, "schema": schema })
            };
            properties.into_iter().flatten().map(parameter).collect()
        }
        Does::Action => vec![json!({
            "name": "id",
            "in": "path",
            "required": true,
            "description": "The number of the action.",
            "schema": { "type": "integer", "minimum": 0 },
        })],
        Does::Route => {
            let schema = schemas.route_question();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let parameter = |(name, schema): (&String, &Value)| {
                let mut schema = schema.clone();
                let description = schema.as_object_mut().and_then(|it| it.remove("description"));
                json!({ "name": name, "in": "query", "required": required.contains(&name.clone().into()),
                        "description": description, "schema": schema })
            };
            let properties = schema["properties"].as_object();
            properties.into_iter().flatten().map(parameter).collect()
        }
        Does::Actions | Does::Describe => Vec::new(),
    }
}

fn responses(operation: &Operation, schemas: &mut Schemas) -> Value {
    let content = |schema: Value| json!({ JSON: { "schema": schema } });
    let mut responses = Map::new();
    let answer = schemas.answer(operation.does);
    let meaning = match operation.does {
        Does::Act(_) => "It is done, or there was nothing to do.",
        Does::Ask(_) | Does::Actions | Does::Action | Does::Describe | Does::Route => {
            "As asked for."
        }
    };
    responses.insert(
        "200".to_owned(),
        json!({ "description": meaning, "content": content(answer.clone()) }),
    );
    if let Does::Act(_) = operation.does {
        let location = json!({
            "description": "Where the action is shown.",
            "schema": { "type": "string" },
        });
        let accepted = json!({
            "description": "It goes on.",
            "headers": { "Location": location },
            "content": content(answer),
        });
        responses.insert("202".to_owned(), accepted);
    }
    for kind in failures(operation.does) {
        let described =
            json!({ "description": kind.meaning(), "content": content(schemas.failure()) });
        responses.insert(kind.status().to_string(), described);
    }
    responses.into()
}

/// Those that are possible where the path and the method are right.
fn failures(does: Does) -> Vec<FailureKind> {
    use FailureKind as Kind;
    match does {
        Does::Describe => vec![Kind::Unauthorized],
        Does::Actions => vec![Kind::BadRequest, Kind::Unauthorized],
        Does::Action => vec![Kind::BadRequest, Kind::Unauthorized, Kind::NotFound],
        Does::Ask(_) | Does::Route => vec![Kind::BadRequest, Kind::Unauthorized, Kind::Busy],
        Does::Act(_) => vec![
            Kind::BadRequest,
            Kind::Unauthorized,
            Kind::Forbidden,
            Kind::Timeout,
            Kind::Failed,
            Kind::TooLarge,
            Kind::Busy,
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::*;

    fn refs_of(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    found.push(to.clone());
                }
                members.values().for_each(|it| refs_of(it, found));
            }
            Value::Array(items) => items.iter().for_each(|it| refs_of(it, found)),
            _ => {}
        }
    }

    #[test]
    fn what_is_referred_to_is_there() {
        let description = openapi("1.2.3");
        let mut refs = Vec::new();
        refs_of(&description, &mut refs);
        assert!(refs.iter().any(|it| it == "#/components/schemas/Failure"), "{refs:?}");
        for to in refs {
            assert!(description.pointer(to.trim_start_matches('#')).is_some(), "{to}");
        }
    }

    #[test]
    fn requests_have_the_limits_of_their_commands() {
        let description = openapi("1.2.3");
        let schema = |path: &str, method: &str| {
            let at = &description["paths"][format!("{BASE}{path}")][method];
            at["requestBody"]["content"][JSON]["schema"].clone()
        };
        let level = &schema("/log-level", "put")["properties"]["level"];
        assert_eq!((&level["minimum"], &level["maximum"]), (&json!(0), &json!(11)));
        let failover = schema("/failover", "post");
        assert_eq!(failover["required"], json!(["pool", "server"]));
        assert_eq!(failover["additionalProperties"], json!(false));
        let seconds = &schema("/drain", "post")["properties"]["seconds"];
        assert_eq!(seconds["maximum"], json!(crate::DRAIN_MAX_SECONDS));
        let kind = &description["paths"][format!("{BASE}/events")]["get"]["parameters"];
        assert_eq!(kind.as_array().unwrap().len(), 2, "{kind}");
        assert!(is_integer("events", "since") && is_integer("drain", "seconds"));
        assert!(!is_integer("events", "kind") && !is_integer("events", "x"));
    }

    #[test]
    fn the_docs_have_it() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/cashew.openapi.json");
        let described = openapi(env!("CARGO_PKG_VERSION"));
        let text = serde_json::to_string_pretty(&described).unwrap() + "\n";
        if env::var_os("CASHEW_BLESS").is_some() {
            fs::write(file, &text).unwrap();
        }
        let kept = fs::read_to_string(file).unwrap_or_default();
        assert!(kept == text, "{file} is another one: CASHEW_BLESS=1 cargo test -p cashew-api");
    }
}
