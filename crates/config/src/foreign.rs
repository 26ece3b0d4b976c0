//! Hints for options and syntax of other programs.

use crate::address::ServerLine;
use crate::diagnostic::{At, Complaint};
use crate::file::{GlobalSection, PoolSection};
use crate::routes::{self, RouteSection};
use crate::section::Section;
use crate::tree::{Kind, Node};

/// Beginnings of other programs' options, and the equivalents here.
const OPTIONS: [(&[&str], &str); 10] = [
    (
        &["tls", "ssl"],
        "clients are secured by \"tls: {certificate: /path, key: /path}\", servers by \
         \"server_tls: {ca: /path}\"",
    ),
    (
        &["sentinel", "master_name"],
        "a pool has \"sentinels: [host:port, …]\", and among its servers groups like \
         \"- {name: s1, sentinel: mymaster}\"",
    ),
    (&["master", "slave"], "a group is \"{name: s1, primary: host:port, replicas: [host:port]}\""),
    (
        &["cluster"],
        "a pool in front of Redis Cluster has \"cluster: {seeds: [host:port, …]}\" instead of servers",
    ),
    (
        &["auth", "password", "requirepass", "masterauth", "username"],
        "a redis pool has \"redis_auth\", a memcached pool \"client_auth\" and \"server_auth\"",
    ),
    (&["db", "database"], "the database of a redis pool is \"redis_db\""),
    (
        &["host", "port", "bind", "address", "addr"],
        "clients connect where \"listen: 127.0.0.1:22121\" says, servers are lines like \
         \"- 127.0.0.1:6379:1\"",
    ),
    (
        &["threads", "workers", "worker_threads"],
        "\"worker_processes\" in the section \"global\" says how many there are",
    ),
    (
        &["max_clients", "maxclients", "max_connections", "maxconn"],
        "\"client_connections\" says how many clients a pool may have",
    ),
    (
        &["stats"],
        "the statistics are where \"stats_listen\" in the section \"global\" says, or -a and -s",
    ),
];

/// A hint for an option that the section does not have.
pub(crate) fn hint_of_option(section: &str, key: &str) -> Option<String> {
    let has = |name: &str, options: Vec<crate::section::OptionInfo>| {
        name != section && options.iter().any(|option| option.key == key)
    };
    if has(GlobalSection::NAME, GlobalSection::options()) {
        return Some("it belongs into the section \"global\", beside \"pools\"".to_owned());
    }
    if routes::is_of_node(section) {
        return None;
    }
    if section == RouteSection::NAME
        && let Some(hint) = routes::hint_of_option(key)
    {
        return Some(hint);
    }
    if section == PoolSection::NAME && matches!(key, "route" | "nodes") {
        let hint = "a pool has servers; what has a tree of nodes instead stands under \"routes:\", beside \
                    \"pools:\"";
        return Some(hint.to_owned());
    }
    if has(PoolSection::NAME, PoolSection::options()) {
        return Some("it is an option of pools".to_owned());
    }
    let key = key.to_ascii_lowercase().replace('-', "_");
    let is_meant = |start: &str| {
        key.strip_prefix(start)
            .is_some_and(|rest| matches!(rest, "" | "s") || rest.starts_with('_'))
    };
    let found = OPTIONS.iter().find(|(starts, _)| starts.iter().any(|start| is_meant(start)));
    found.map(|(_, hint)| (*hint).to_owned())
}

/// The error for an address that is a URL, `None` if it is not. Without the text, which may contain
/// a password.
pub(crate) fn url(text: &str, what: &str, weight: &str) -> Option<Complaint> {
    let (scheme, rest) = text.split_once("://")?;
    let rest = rest.split([' ', '?', '#']).next().unwrap_or_default();
    let mut hint = match scheme.to_ascii_lowercase() {
        scheme if scheme.contains("unix") || scheme.contains("socket") => {
            let path = rest.rsplit_once('@').map_or(rest, |(_, path)| path);
            format!("write \"{path}{weight}\"")
        }
        scheme => {
            let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
            let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
            let port = if scheme.starts_with("memcache") { 11211 } else { 6379 };
            let mut hint = format!("write \"{}\"", with_port(host, port, weight));
            if !user.is_empty() {
                hint += "; the password goes into \"redis_auth\"";
            }
            if path.bytes().any(|byte| byte.is_ascii_digit()) {
                hint += "; the database into \"redis_db\"";
            }
            hint
        }
    };
    if matches!(scheme.to_ascii_lowercase().as_str(), "rediss" | "valkeys" | "tls" | "https") {
        hint += "; \"server_tls\" secures the connections of a pool";
    }
    Some(Complaint::new(format!("a URL is no {what}")).hint(hint))
}

fn with_port(host: &str, port: u16, weight: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let bare = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    match bare.matches(':').count() {
        0 => format!("{host}:{port}{weight}"),
        1 if bare.rsplit_once(':').is_some_and(|(_, port)| is_number(port)) => {
            format!("{host}{weight}")
        }
        _ => host.to_owned(),
    }
}

/// The error for a server that is given as a section.
pub(crate) fn server_section(entries: &[(At<String>, Node)]) -> Complaint {
    let complaint = Complaint::new("option \"servers\": a server is a line of text, not a section");
    match line_of(entries) {
        Some(line) => complaint.hint(format!("write \"- {line}\"")),
        None if entries.is_empty() => complaint
            .hint("expected host:port:weight [name], or a group with \"name\" and \"primary\""),
        None => complaint.hint("expected host:port:weight [name] or /path:weight [name]"),
    }
}

/// The line that was probably intended.
fn line_of(entries: &[(At<String>, Node)]) -> Option<String> {
    let text = |node: &Node| match &node.kind {
        Kind::Scalar { text, .. } => Some(text.clone()),
        Kind::Empty | Kind::List(_) | Kind::Section(_) => None,
    };
    let get = |names: &[&str]| {
        let is_named = |key: &str| names.iter().any(|name| key.eq_ignore_ascii_case(name));
        let found = entries.iter().find(|(key, _)| is_named(&key.value))?;
        text(&found.1)
    };
    let (host, name) =
        match (get(&["host", "hostname", "address", "addr", "ip", "server"]), entries) {
            (Some(host), _) => (host, get(&["name", "alias", "id"])),
            // A space after a colon of the line makes it a section.
            (None, [(key, value)]) => (format!("{}:{}", key.value, text(value)?), None),
            (None, _) => return None,
        };
    let port = get(&["port"]).map_or_else(String::new, |port| format!(":{port}"));
    let weight = get(&["weight"]).unwrap_or_else(|| "1".to_owned());
    let name = name.map_or_else(String::new, |name| format!(" {name}"));
    let candidates = [format!("{host}{port}{name}"), format!("{host}{port}:{weight}{name}")];
    candidates.into_iter().find(|line| ServerLine::parse_line(line).is_ok())
}
