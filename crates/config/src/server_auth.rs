//! What servers are given: `server_auth`.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Report};
use crate::file::{PoolSection, ServerAuthSection};
use crate::resolve::Context;
use crate::secret::{self, Secret};
use crate::section;
use crate::snapshot::{Credentials, DEFAULT_USER, Protocol, Server, ServerAuth, Topology};
use crate::tree::{Kind, Node};
use crate::value::{CREDENTIAL_SIZE_MAX, Text, Value};

const KEY: &str = "server_auth";
/// The most that are tried of one server.
const TRIED_MAX: usize = 8;

/// Users with their passwords, in the order in which they are tried.
#[derive(Clone, Debug)]
pub(crate) struct ServerCredentials(Vec<Credentials>);

impl Value for ServerCredentials {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let expected = || Complaint::new("this is no password").hint(Self::expected());
        let credentials = text.split_whitespace().map(|word| {
            let (user, password) = word.split_once(':').unwrap_or((DEFAULT_USER, word));
            let is_size = |part: &str| (1..=CREDENTIAL_SIZE_MAX).contains(&part.len());
            let is_good = is_size(user) && is_size(password) && !word.contains(char::is_control);
            let credentials = Credentials { user: user.to_owned(), password: password.to_owned() };
            is_good.then_some(credentials).ok_or_else(expected)
        });
        let credentials = credentials.collect::<Result<Vec<_>, Complaint>>()?;
        match (1..=TRIED_MAX).contains(&credentials.len()) {
            true => Ok(Self(credentials)),
            false => Err(expected()),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": ["string", "number"], "minLength": 1 })
    }

    fn describe() -> String {
        format!("`password` or `user:password`, up to {TRIED_MAX} with spaces between them")
    }
}

/// For all servers, and for some by name.
#[derive(Debug)]
pub(crate) struct ServerAuthOption {
    all: Option<Secret<ServerCredentials>>,
    by_server: Vec<(At<String>, Secret<ServerCredentials>)>,
}

impl Value for ServerAuthOption {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let all = Some(Secret::parse(text)?);
        Ok(Self { all, by_server: Vec::new() })
    }

    fn schema() -> Schema {
        let section = section::schema::<ServerAuthSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [ServerCredentials::schema(), section] })
    }

    fn describe() -> String {
        format!("{}, or a section", ServerCredentials::describe())
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            let all = Some(Secret::read(key, node, report)?);
            return Some(Self { all, by_server: Vec::new() });
        };
        let what = format!("option \"{key}\"");
        let section: ServerAuthSection = section::read(&what, node.pos, node, report);
        let by_server = section.servers.map_or_else(Vec::new, |servers| servers.value.0);
        let place = crate::file::SecretSection { file: section.file, env: section.env };
        let has_place = place.file.is_some() || place.env.is_some();
        let all = match has_place || by_server.is_empty() {
            true => Some(place.place(key, (node.pos, entries), report)?),
            false => None,
        };
        Some(Self { all, by_server })
    }
}

/// Of servers by name.
#[derive(Debug)]
pub(crate) struct ServerSecrets(Vec<(At<String>, Secret<ServerCredentials>)>);

impl Value for ServerSecrets {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("this names no servers").hint(Self::expected()))
    }

    fn schema() -> Schema {
        let secret = Secret::<ServerCredentials>::schema();
        json_schema!({ "type": "object", "minProperties": 1, "additionalProperties": secret })
    }

    fn describe() -> String {
        "a section with the names of servers or groups".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            let complaint = Complaint::new(format!("option \"{key}\" names no servers"));
            report.error(node.pos, complaint.hint("expected lines like `name: user:password`"));
            return None;
        };
        let mut found: Vec<(At<String>, _)> = Vec::new();
        for (name, node) in entries {
            if found.iter().any(|(known, _)| known.value == name.value) {
                let message = format!("server \"{}\" is given twice", name.value);
                report.error(name.pos, Complaint::new(message));
                continue;
            }
            if let Some(secret) = Secret::read(KEY, node, report) {
                found.push((name.clone(), secret));
            }
        }
        Some(Self(found))
    }
}

/// What the pool's servers are given. Those of Redis get `redis_auth` where nothing else is said.
pub(crate) fn resolve(
    section: &PoolSection,
    (servers, topology): (&[Server], &Topology),
    protocol: Protocol,
    redis_auth: Option<&Text>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> ServerAuth {
    let redis_auth = redis_auth.filter(|_| protocol == Protocol::Redis);
    let mut auth = ServerAuth::of_clients(redis_auth.map(|it| it.0.as_str()));
    let Some(At { value: option, pos }) = &section.server_auth else { return auth };
    let mut read = |secret: &Secret<ServerCredentials>, pos| {
        let found = secret::resolve(KEY, Some(secret), context, report);
        let credentials = found.map_or_else(Vec::new, |it| it.0);
        let has_default = credentials.iter().any(|it| it.user == DEFAULT_USER);
        if has_default && protocol == Protocol::Memcached {
            let message = format!("option \"{KEY}\" of a memcached pool has no user");
            report.error(pos, Complaint::new(message).hint("expected `user:password`"));
        }
        credentials
    };
    if let Some(all) = &option.all {
        auth.all = read(all, *pos);
    }
    for (name, secret) in &option.by_server {
        auth.by_server.insert(name.value.clone(), read(secret, name.pos));
    }
    for (At { value: name, pos }, _) in &option.by_server {
        let is_group = match topology {
            Topology::Groups(groups) => groups.iter().any(|it| it.name == *name),
            Topology::Sharded | Topology::MasterReplica { .. } => false,
        };
        if !is_group && servers.iter().all(|it| it.name != *name) {
            let message = format!("option \"{KEY}\": no server is named \"{name}\"");
            report.error(*pos, Complaint::new(message));
        }
    }
    auth
}
