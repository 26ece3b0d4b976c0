//! The options of pools with `protocol: tcp`, and those that such pools have not.

use schemars::{Schema, json_schema};

use crate::address::ServerLine;
use crate::diagnostic::{At, Complaint, Report};
use crate::file::PoolSection;
use crate::snapshot::{Balance, Protocol, SendProxy, Tcp, Wire};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value, list_of, named};

/// Whose sessions end sooner is likely to have meant seconds.
const IDLE_TIMEOUT_MIN_MS: u64 = 1000;

/// Options that only these pools have.
const OWN: [&str; 7] = [
    "balance",
    "idle_timeout",
    "server_connections_max",
    "connection_wait",
    "send_proxy",
    "backup",
    "server_rise",
];

/// Those that they have in common with other pools.
const COMMON: [&str; 19] = [
    "listen",
    "servers",
    "servers_from",
    "protocol",
    "redis",
    "backlog",
    "client_connections",
    "tcpkeepalive",
    "reuseport",
    "server_connect_timeout",
    "server_check_interval",
    "server_failure_limit",
    "server_retry_timeout",
    "tls",
    "tls_listen",
    "server_tls",
    "allow_from",
    "deny_from",
    "proxy_protocol",
];

impl PoolSection {
    /// What the pool's clients and servers speak.
    pub(crate) fn spoken(&self) -> Protocol {
        match (self.protocol.value, self.redis.value.0) {
            (Wire::Tcp, _) => Protocol::Tcp,
            (_, true) => Protocol::Redis,
            (_, false) => Protocol::Memcached,
        }
    }
}

/// Reports options that have no meaning for the pool's protocol.
pub(crate) fn check_options(section: &PoolSection, node: &Node, report: &mut Report<'_>) {
    let Kind::Section(entries) = &node.kind else { return };
    let is_tcp = section.spoken() == Protocol::Tcp;
    for (key, _) in entries {
        let name = key.value.as_str();
        if is_tcp && !OWN.contains(&name) && !COMMON.contains(&name) {
            let message =
                format!("option \"{name}\" is not valid for a pool with \"protocol: tcp\"");
            let hint = "such a pool passes bytes through and knows neither requests nor keys";
            report.error(key.pos, Complaint::new(message).hint(hint));
        } else if !is_tcp && OWN.contains(&name) {
            let message =
                format!("option \"{name}\" is only valid for a pool with \"protocol: tcp\"");
            report.error(key.pos, Complaint::new(message));
        }
    }
    if is_tcp && section.redis.value.0 {
        let complaint = Complaint::new("a pool with \"protocol: tcp\" cannot be \"redis: true\"");
        let hint = "it passes Redis's protocol through as any other, a connection at a time";
        report.error(section.redis.pos, complaint.hint(hint));
    }
}

/// `None` if the pool has another protocol.
pub(crate) fn resolve(
    section: &PoolSection,
    lines: &[At<ServerLine>],
    report: &mut Report<'_>,
) -> Option<Tcp> {
    if section.spoken() != Protocol::Tcp {
        return None;
    }
    for line in lines.iter().filter(|line| line.value.is_group) {
        let complaint = Complaint::new("a pool with \"protocol: tcp\" has no groups of servers");
        report.error(line.pos, complaint.hint("each server is a line of its own"));
    }
    let backup = section.backup.as_ref().map_or_else(Vec::new, |names| names.value.0.clone());
    if let Some(names) = &section.backup {
        let is_again = |at: usize| backup[..at].contains(&backup[at]);
        if let Some(at) = (0..backup.len()).find(|&at| is_again(at)) {
            let complaint = Complaint::new(format!("\"{}\" is in \"backup\" twice", backup[at]));
            report.error(names.pos, complaint.hint("each server is named once"));
        }
    }
    let idle_ms = section.idle_timeout.value.0;
    if (1..IDLE_TIMEOUT_MIN_MS).contains(&idle_ms) {
        let message = format!("connections are closed after {idle_ms} milliseconds without a byte");
        let hint = "a number without a unit is milliseconds; seconds are written like \"30s\"";
        report.warning(section.idle_timeout.pos, Complaint::new(message).hint(hint));
    }
    if let Some(names) = &section.backup
        && section.servers_from.is_none()
    {
        let is_server = |name: &&String| lines.iter().any(|line| line.value.name == **name);
        for name in names.value.0.iter().filter(|name| !is_server(name)) {
            let complaint = Complaint::new(format!("the pool has no server \"{name}\""));
            report.error(names.pos, complaint.hint("a server without a name is host:port"));
        }
        if lines.iter().all(|line| backup.contains(&line.value.name)) {
            let complaint = Complaint::new("all servers of the pool are backups");
            report.error(names.pos, complaint.hint("one at least has to be used at first"));
        }
    }
    Some(Tcp {
        balance: section.balance.value,
        idle_timeout_ms: section.idle_timeout.value.0,
        connections_max: section.server_connections_max.value.0 as u32,
        wait_ms: section.connection_wait.value.0,
        send_proxy: section.send_proxy.value,
        backup,
        rise: section.server_rise.value.0 as u32,
    })
}

/// Names of servers.
#[derive(Clone, Debug)]
pub(crate) struct ServerNames(pub(crate) Vec<String>);

impl Value for ServerNames {
    fn parse(text: &str) -> Result<Self, Complaint> {
        Ok(Self(vec![text.to_owned()]))
    }

    fn schema() -> Schema {
        json_schema!({ "type": ["array", "string"], "items": { "type": "string" } })
    }

    fn describe() -> String {
        "a list of names, like `[spare]`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) => items.as_slice(),
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => std::slice::from_ref(node),
        };
        // Every name is read, so that every error is reported.
        let names: Vec<_> = items.iter().map(|item| Text::read(key, item, report)).collect();
        let names = names.into_iter().collect::<Option<Vec<_>>>()?;
        Some(Self(names.into_iter().map(|name| name.0).collect()))
    }
}

/// As [`Balance`] is serialized.
const BALANCES: [&str; 4] = ["round_robin", "least_connections", "source", "random"];

impl Value for Balance {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to balance connections", &BALANCES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": BALANCES })
    }

    fn describe() -> String {
        list_of(&BALANCES)
    }
}

/// As [`SendProxy`] is serialized.
const HEADERS: [&str; 3] = ["off", "v1", "v2"];

impl Value for SendProxy {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "version of the PROXY protocol", &HEADERS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": HEADERS })
    }

    fn describe() -> String {
        list_of(&HEADERS)
    }
}
