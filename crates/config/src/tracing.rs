//! Where spans of requests are sent: `tracing`.

use std::net::Ipv6Addr;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Report};
use crate::file::TracingSection;
use crate::section;
use crate::snapshot::{CollectorUrl, KeysShown, Tracing};
use crate::tree::{Kind, Node};
use crate::value::{Value, list_of, named};

/// Where collectors listen for OTLP over HTTP.
const PORT: u16 = 4318;
/// What the specification appends to an endpoint.
const PATH: &str = "/v1/traces";
const HEADERS_MAX: usize = 32;
/// Headers that are about the message, so nobody else may set them.
const OWN_HEADERS: [&str; 6] =
    ["connection", "content-length", "content-type", "host", "transfer-encoding", "expect"];

#[derive(Debug)]
pub(crate) struct TracingText(pub(crate) Tracing);

impl Value for TracingText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"tracing\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<TracingSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{endpoint: http://127.0.0.1:4318, share: 1%}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: TracingSection = section::read(&what, node.pos, node, report);
        Some(Self(Tracing {
            endpoint: section.endpoint?.value.0,
            share_percent: section.share.value.0,
            headers: section.headers.map_or_else(Vec::new, |headers| headers.value.0),
            service_name: section.service_name.value.0,
            keys: section.keys.value,
        }))
    }
}

/// The URL of a collector.
#[derive(Clone, Debug)]
pub(crate) struct CollectorText(CollectorUrl);

impl Value for CollectorText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        if text.starts_with("https://") {
            let complaint = Complaint::new("spans are sent by http, not by https");
            return Err(complaint.hint("a collector on this machine can send them on by https"));
        }
        let url = collector(text)
            .ok_or_else(|| Complaint::new(format!("\"{text}\" is no URL of a collector")));
        url.map(Self).map_err(|complaint| complaint.hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^http://[^@?#\\s]+$" })
    }

    fn describe() -> String {
        "a URL like `http://127.0.0.1:4318`".to_owned()
    }
}

fn collector(text: &str) -> Option<CollectorUrl> {
    let rest = text.strip_prefix("http://")?;
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['@', '?', '#']) {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, behind)
        }
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            (!host.is_empty() && host.bytes().all(is_good)).then_some((host, port))?
        }
    };
    let port = match port {
        "" => PORT,
        port => port.strip_prefix(':')?.parse().ok().filter(|&port| port > 0)?,
    };
    let base = path.trim_end_matches('/');
    let path = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    Some(CollectorUrl { host: host.to_owned(), port, path })
}

/// What goes with each export.
#[derive(Clone, Debug)]
pub(crate) struct Headers(Vec<(String, String)>);

impl Value for Headers {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"headers\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": HEADERS_MAX,
            "additionalProperties": { "type": ["string", "integer", "boolean"] },
        })
    }

    fn describe() -> String {
        "a section like `{x-scope: cache}`".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(entries) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        if entries.len() > HEADERS_MAX {
            let complaint = Complaint::new(format!("{} headers are too many", entries.len()));
            report.error(node.pos, complaint.hint(format!("at most {HEADERS_MAX}")));
            return None;
        }
        let mut headers = Vec::with_capacity(entries.len());
        for (name, value) in entries {
            match header(name, value) {
                Ok(header) => headers.push(header),
                Err(complaint) => report.error(name.pos, complaint),
            }
        }
        Some(Self(headers))
    }
}

/// The value may be a secret: no complaint has it.
fn header(name: &At<String>, value: &Node) -> Result<(String, String), Complaint> {
    let name = name.value.as_str();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(Complaint::new(format!("\"{name}\" is no name of a header")));
    }
    if OWN_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        return Err(Complaint::new(format!("the header \"{name}\" is set by the gateway")));
    }
    let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    match &value.kind {
        Kind::Scalar { text, .. } if text.bytes().all(is_visible) => {
            Ok((name.to_owned(), text.trim().to_owned()))
        }
        _ => Err(Complaint::new(format!("the header \"{name}\" has no value that can be sent"))
            .hint("expected ASCII text")),
    }
}

/// As [`KeysShown`] is serialized.
const KEYS_SHOWN: [&str; 3] = ["hash", "full", "none"];

impl Value for KeysShown {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to show keys", &KEYS_SHOWN)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": KEYS_SHOWN })
    }

    fn describe() -> String {
        list_of(&KEYS_SHOWN)
    }
}

/// In words for an operator, without the values of headers.
pub(crate) fn shown(tracing: &Option<Tracing>) -> String {
    let Some(tracing) = tracing else { return "none".to_owned() };
    let Tracing { endpoint, share_percent, headers, service_name, keys } = tracing;
    let mut text = format!(
        "{endpoint}, share {share_percent}%, service_name {service_name}, keys {}",
        keys.name()
    );
    if !headers.is_empty() {
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        text += &format!(", headers {}", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_where_traces_are_posted() {
        let url = |text: &str| CollectorText::parse(text).ok().map(|url| url.0.to_string());
        let table = [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector", "http://collector:4318/v1/traces"),
            ("http://collector/", "http://collector:4318/v1/traces"),
            ("http://[::1]:80/otlp/", "http://[::1]:80/otlp/v1/traces"),
            ("http://c:1/v1/traces", "http://c:1/v1/traces"),
        ];
        for (text, expected) in table {
            assert_eq!(url(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "collector:4318",
            "https://collector",
            "http://",
            "http://:4318",
            "http://c:0",
            "http://c:99999",
            "http://c:",
            "http://user:secret@c",
            "http://c/?x",
            "http://[::1",
            "http://[c]:1",
            "http://a b",
        ] {
            assert_eq!(url(text), None, "{text}");
        }
    }
}
