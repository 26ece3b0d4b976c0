//! Where clients come from: `allow_from`, `deny_from` and `proxy_protocol`.

use std::fmt::Write;
use std::net::IpAddr;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{Complaint, Report};
use crate::file::{PoolSection, ProxyProtocolSection};
use crate::section::{self, Section};
use crate::snapshot::{ClientSources, Listen, ProxyProtocol, Source};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value};

/// Most entries of one list: each new client is held against all of them.
const SOURCES_MAX: usize = 1024;

/// A list of addresses and networks.
#[derive(Clone, Debug)]
pub(crate) struct SourceList(pub(crate) Vec<Source>);

impl Value for SourceList {
    fn parse(text: &str) -> Result<Self, Complaint> {
        source(text).map(|source| Self(vec![source]))
    }

    fn schema() -> Schema {
        let item =
            json_schema!({ "type": "string", "pattern": "^(unix|[0-9a-fA-F:.]+(/[0-9]{1,3})?)$" });
        json_schema!({ "anyOf": [
            item,
            { "type": "array", "minItems": 1, "maxItems": SOURCES_MAX, "items": item },
        ] })
    }

    fn describe() -> String {
        "a list like `[10.0.0.0/8, fd00::/8, 192.0.2.7, unix]`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let read = |node: &Node, report: &mut Report<'_>| {
            let text = Text::read(key, node, report)?.0;
            source(&text).map_err(|complaint| report.error(node.pos, complaint)).ok()
        };
        let Kind::List(items) = &node.kind else {
            return read(node, report).map(|source| Self(vec![source]));
        };
        if items.is_empty() || items.len() > SOURCES_MAX {
            let message = match items.len() {
                0 => format!("option \"{key}\" is an empty list"),
                many => format!("option \"{key}\" has {many} entries"),
            };
            let hint = format!("expected 1 to {SOURCES_MAX}");
            report.error(node.pos, Complaint::new(message).hint(hint));
            return None;
        }
        // All are read, so that every error is reported.
        let sources: Vec<_> = items.iter().map(|item| read(item, report)).collect();
        sources.into_iter().collect::<Option<_>>().map(Self)
    }
}

fn source(text: &str) -> Result<Source, Complaint> {
    if text == "unix" {
        return Ok(Source::Unix);
    }
    let refused = |why: &str| {
        let hint = "expected an address, a network like 10.0.0.0/8 or fd00::/8, or unix";
        Complaint::new(format!("\"{text}\" {why}")).hint(hint)
    };
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let address: IpAddr =
        address.parse().map_err(|_| refused("is no IP address and no network"))?;
    if address != address.to_canonical() {
        return Err(refused("is an address of IPv4 in another form"));
    }
    let max = Source::bits_of(address);
    let bits = match bits {
        None => max,
        Some(bits) => bits
            .parse()
            .ok()
            .filter(|it| *it <= max)
            .ok_or_else(|| refused(&format!("has no prefix length of 0 to {max}")))?,
    };
    let source = Source::around(address, bits);
    match source {
        Source::Net { address: first, .. } if first != address => {
            let message = format!("\"{text}\" is an address with a prefix length, and no network");
            let hint = format!("its network is {source}, and the address alone is {address}");
            Err(Complaint::new(message).hint(hint))
        }
        _ => Ok(source),
    }
}

/// `true`, `false`, or a section.
#[derive(Clone, Debug)]
pub(crate) struct ProxyProtocolText(Option<ProxyProtocol>);

impl Value for ProxyProtocolText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "true" => Ok(Self(Some(protocol(ProxyProtocolSection::defaults())))),
            "false" => Ok(Self(None)),
            _ => Err(Complaint::new("option \"proxy_protocol\" takes a section, true or false")
                .hint(Self::expected())),
        }
    }

    fn schema() -> Schema {
        let section = section::schema::<ProxyProtocolSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [{ "type": "boolean" }, section] })
    }

    fn describe() -> String {
        "`true`, `false`, or a section like `{trusted: [10.0.0.0/24]}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let result = match &node.kind {
            Kind::Section(_) => {
                let what = format!("option \"{key}\"");
                Ok(Self(Some(protocol(section::read(&what, node.pos, node, report)))))
            }
            Kind::Scalar { text, .. } => Self::parse(text),
            Kind::Empty | Kind::List(_) => Self::parse(""),
        };
        result.map_err(|complaint| report.error(node.pos, complaint)).ok()
    }
}

fn protocol(section: ProxyProtocolSection) -> ProxyProtocol {
    let ProxyProtocolSection { trusted, timeout } = section;
    ProxyProtocol { trusted: trusted.map(|it| it.value.0), timeout_ms: timeout.value.0 }
}

pub(crate) fn resolve(
    section: &PoolSection,
    listen: Option<&Listen>,
    report: &mut Report<'_>,
) -> ClientSources {
    let list = |list: &Option<crate::diagnostic::At<SourceList>>| {
        list.as_ref().map_or_else(Vec::new, |list| list.value.0.clone())
    };
    let sources = ClientSources {
        allow_from: list(&section.allow_from),
        deny_from: list(&section.deny_from),
        proxy_protocol: section.proxy_protocol.value.0.clone(),
    };
    let is_for_all = sources.proxy_protocol.as_ref().is_some_and(|it| it.trusted.is_none());
    let is_reachable = matches!(listen, Some(Listen::Tcp(it)) if !it.ip().is_loopback());
    if is_for_all && is_reachable {
        let message = "whoever reaches this pool may claim any address as its own";
        let hint = "\"proxy_protocol: {trusted: [10.0.0.7]}\" names the proxies that are believed";
        report.warning(section.proxy_protocol.pos, Complaint::new(message).hint(hint));
    }
    sources
}

/// For a line about what is new.
pub(crate) fn shown(sources: &[Source]) -> String {
    match sources {
        [] => "none".to_owned(),
        _ => sources.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

pub(crate) fn shown_protocol(protocol: Option<&ProxyProtocol>) -> String {
    let Some(ProxyProtocol { trusted, timeout_ms }) = protocol else { return "false".to_owned() };
    let mut text = match trusted {
        None => "from everybody".to_owned(),
        Some(trusted) => format!("from {}", shown(trusted)),
    };
    let _ = write!(text, ", timeout {}", crate::replica_reads::SpanText(*timeout_ms));
    text
}
