//! The JSON Schema of the file and the option tables of its documentation, both generated from the
//! declarations in [`crate::file`].

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::file::{
    AccessLogSection, AuditLogSection, ClientUserSection, ClusterSection, CommandSection,
    ConsulSection, DnsSection, EtcdSection, ExternalAuthSection, GlobalSection, GroupSection,
    KubernetesSection, PolicySection, PoolSection, ProxyProtocolSection, ServerGroupSection,
    ServerTlsSection, ServersFromSection, TlsSection, TracingSection, UserSection,
};
use crate::routes::{self, RouteSection};
use crate::section::{self, Section, prose};

/// The JSON Schema of a configuration file in either dialect.
pub fn json_schema() -> String {
    let schema = SchemaGenerator::default().into_root_schema_for::<AnyFile>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    format!("{text}\n")
}

/// The options of `global:`, as a Markdown table.
pub fn global_table() -> String {
    table::<GlobalSection>()
}

/// The options of a pool, as a Markdown table.
pub fn pool_table() -> String {
    table::<PoolSection>()
}

/// The options of a route, as a Markdown table.
pub fn route_table() -> String {
    table::<RouteSection>()
}

/// The options of a pool's `cluster`, as a Markdown table.
pub fn cluster_table() -> String {
    table::<ClusterSection>()
}

/// The options of a pool's `servers_from`, and of each source of it, as Markdown tables.
pub fn servers_from_tables() -> [(&'static str, String); 5] {
    [
        ("servers from", table::<ServersFromSection>()),
        ("dns", table::<DnsSection>()),
        ("etcd", table::<EtcdSection>()),
        ("consul", table::<ConsulSection>()),
        ("kubernetes", table::<KubernetesSection>()),
    ]
}

/// The options of one of a pool's `commands`, as a Markdown table.
pub fn command_table() -> String {
    table::<CommandSection>()
}

/// The options of a pool's `command_policy`, as a Markdown table.
pub fn policy_table() -> String {
    table::<PolicySection>()
}

/// The options of a group among a pool's `servers`, as a Markdown table.
pub fn group_table() -> String {
    table::<GroupSection>()
}

/// The options of a group with replicas among a pool's `servers`, as a Markdown table.
pub fn server_group_table() -> String {
    table::<ServerGroupSection>()
}

/// The options of a pool's `tls`, as a Markdown table.
pub fn tls_table() -> String {
    table::<TlsSection>()
}

/// The options of `client_user`, as a Markdown table.
pub fn client_user_table() -> String {
    table::<ClientUserSection>()
}

/// The options of one of a pool's `users`, as a Markdown table.
pub fn user_table() -> String {
    table::<UserSection>()
}

/// The options of a pool's `server_tls`, as a Markdown table.
pub fn server_tls_table() -> String {
    table::<ServerTlsSection>()
}

/// The options of a pool's `proxy_protocol`, as a Markdown table.
pub fn proxy_protocol_table() -> String {
    table::<ProxyProtocolSection>()
}

/// The options of `tracing`, as a Markdown table.
pub fn tracing_table() -> String {
    table::<TracingSection>()
}

/// The options of `audit_log`, as a Markdown table.
pub fn audit_log_table() -> String {
    table::<AuditLogSection>()
}

/// The options of `external_auth`, as a Markdown table.
pub fn external_auth_table() -> String {
    table::<ExternalAuthSection>()
}

/// The options of `access_log`, as a Markdown table.
pub fn access_log_table() -> String {
    table::<AccessLogSection>()
}

fn table<S: Section>() -> String {
    let mut table = String::from("| Option | Value | Default | Meaning |\n|---|---|---|---|\n");
    for option in S::options() {
        let default = match option.default {
            Some(default) => format!("`{default}`"),
            None if option.required => "required".to_owned(),
            None => "none".to_owned(),
        };
        let (value, meaning) = ((option.describe)(), prose(option.doc));
        table += &format!("| `{}` | {value} | {default} | {meaning} |\n", option.key);
    }
    table
}

/// Both dialects.
struct AnyFile;

impl JsonSchema for AnyFile {
    fn schema_name() -> Cow<'static, str> {
        "Cashew configuration".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let global = generator.subschema_for::<Of<GlobalSection>>();
        let pool = generator.subschema_for::<Of<PoolSection>>();
        let servers = json_schema!({ "oneOf": [
            { "required": ["servers"] }, { "required": ["servers_from"] }, { "required": ["cluster"] },
        ] });
        let pool = json_schema!({ "allOf": [pool, servers] });
        let listening = json_schema!({ "allOf": [pool, { "required": ["listen"] }] });
        let route = generator.subschema_for::<Of<RouteSection>>();
        generator.subschema_for::<RouteNode>();
        json_schema!({ "oneOf": [
            {
                "title": "Sections \"global\" and \"pools\"",
                "type": "object",
                "properties": {
                    "global": global,
                    "pools": { "type": "object", "minProperties": 1, "additionalProperties": pool },
                    "routes": { "type": "object", "minProperties": 1, "additionalProperties": route },
                },
                "required": ["pools"],
                "additionalProperties": false,
            },
            {
                "title": "Pools at the top level",
                "type": "object",
                "minProperties": 1,
                "properties": { "global": false, "pools": false },
                "additionalProperties": listening,
            },
        ] })
    }
}

/// A section as a definition of the schema.
struct Of<S>(std::marker::PhantomData<S>);

impl<S: Section> JsonSchema for Of<S> {
    fn schema_name() -> Cow<'static, str> {
        S::NAME.into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        section::schema::<S>(generator)
    }
}

/// A node of a route.
struct RouteNode;

impl JsonSchema for RouteNode {
    fn schema_name() -> Cow<'static, str> {
        "RouteNode".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        routes::node_schema(generator)
    }
}
