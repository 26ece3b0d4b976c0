//! Pools whose servers Sentinels name: the options, and groups among the servers.

use std::collections::HashMap;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::address::{ServerLine, check_name, parse_host, parse_port};
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::file::{Dialect, GroupSection, PoolSection};
use crate::loops::numeric_address;
use crate::resolve::{Context, MASTER};
use crate::secret;
use crate::section;
use crate::snapshot::{
    Address, Credentials, DEFAULT_USER, Endpoint, Group, Lineage, Listen, Sentinel, Server,
};
use crate::tree::{Kind, Node};
use crate::value::{Text, Value};

/// Most Sentinels of a pool.
const SENTINELS_MAX: usize = 32;

/// A list of `host:port`.
#[derive(Debug)]
pub(crate) struct Addresses(pub(crate) Vec<At<Address>>);

/// Whose addresses a list has, in words for errors.
pub(crate) struct AddressList {
    pub(crate) option: &'static str,
    pub(crate) one: &'static str,
    pub(crate) many: &'static str,
    pub(crate) example: &'static str,
    pub(crate) port_hint: &'static str,
    pub(crate) max: usize,
}

const SENTINELS: AddressList = AddressList {
    option: "sentinels",
    one: "a Sentinel",
    many: "Sentinels",
    example: "[10.0.0.1:26379, 10.0.0.2:26379]",
    port_hint: "expected host:port, and Sentinel's port is 26379",
    max: SENTINELS_MAX,
};

impl Value for Addresses {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(SENTINELS.is_none())
    }

    fn schema() -> Schema {
        SENTINELS.schema()
    }

    fn describe() -> String {
        "a list of `host:port`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        SENTINELS.read(key, node, report).map(Self)
    }
}

impl AddressList {
    pub(crate) fn is_none(&self) -> Complaint {
        let hint = format!("expected a list like \"{}\"", self.example);
        Complaint::new(format!("option \"{}\" takes a list", self.option)).hint(hint)
    }

    pub(crate) fn schema(&self) -> Schema {
        json_schema!({
            "type": "array", "minItems": 1, "maxItems": self.max,
            "items": { "type": "string", "pattern": "^.+:0*[1-9][0-9]*$" },
        })
    }

    pub(crate) fn read(
        &self,
        key: &str,
        node: &Node,
        report: &mut Report<'_>,
    ) -> Option<Vec<At<Address>>> {
        let items = match &node.kind {
            Kind::List(items) if (1..=self.max).contains(&items.len()) => items,
            Kind::List(items) => {
                let complaint = match items.len() {
                    0 => Complaint::new(format!("option \"{}\" is an empty list", self.option)),
                    many => {
                        let message = format!("{many} {} are too many for one pool", self.many);
                        Complaint::new(message).hint(format!("at most {}", self.max))
                    }
                };
                report.error(node.pos, complaint);
                return None;
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => {
                report.error(node.pos, self.is_none());
                return None;
            }
        };
        // Every address is read, so that every complaint is made.
        let addresses: Vec<_> = items.iter().map(|item| self.address(key, item, report)).collect();
        addresses.into_iter().collect()
    }

    fn address(&self, key: &str, node: &Node, report: &mut Report<'_>) -> Option<At<Address>> {
        let text = Text::read(key, node, report)?.0;
        let parse = || {
            let (host, port) = text.rsplit_once(':').ok_or_else(|| {
                let message = format!("\"{text}\" is not the address of {}", self.one);
                Complaint::new(message).hint(self.port_hint)
            })?;
            let port = parse_port(port).map_err(|c| c.offset(host.chars().count() + 1))?;
            Ok(Address { host: parse_host(host)?.to_owned(), port })
        };
        parse()
            .map(|value| At { value, pos: node.pos })
            .map_err(|complaint: Complaint| report.error(node.pos_of(complaint.offset), complaint))
            .ok()
    }

    /// Complains of addresses that are there twice.
    pub(crate) fn check_twice(&self, addresses: &[At<Address>], report: &mut Report<'_>) {
        let what = self.one.rsplit(' ').next().unwrap_or_default();
        let mut first_lines = HashMap::new();
        for At { value, pos } in addresses {
            if let Some(first) = first_lines.insert(value, pos.line) {
                let message = format!("the {what} {value} is given twice");
                report.error(*pos, Complaint::new(message).hint(format!("first on line {first}")));
            }
        }
    }

    /// Those that are the pool's own listener: it would ask itself.
    pub(crate) fn check_listen(
        &self,
        addresses: &[At<Address>],
        listen: &Listen,
        context: &Context<'_>,
        report: &mut Report<'_>,
    ) {
        let Listen::Tcp(listen) = listen else { return };
        let what = self.one.rsplit(' ').next().unwrap_or_default();
        for At { value, pos } in addresses {
            let endpoint = Endpoint::Tcp { host: value.host.clone(), port: value.port };
            let Some(address) = numeric_address(&endpoint) else { continue };
            let ip = address.ip();
            let is_here = || ip.is_loopback() || (context.is_local)(ip);
            let is_same = ip == listen.ip() || listen.ip().is_unspecified() && is_here();
            if is_same && address.port() == listen.port() {
                let complaint = Complaint::new(format!("this {what} is the pool's own listener"));
                report.error(*pos, complaint.hint(self.port_hint));
            }
        }
    }
}

/// A password, or a user and a password.
#[derive(Clone, Debug)]
pub(crate) struct SentinelAuth(Credentials);

impl Value for SentinelAuth {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let (user, password) = text.split_once(':').unwrap_or((DEFAULT_USER, text));
        if user.is_empty() || password.is_empty() || text.contains(char::is_control) {
            return Err(Complaint::new("this is no password").hint(Self::expected()));
        }
        Ok(Self(Credentials { user: user.to_owned(), password: password.to_owned() }))
    }

    fn schema() -> Schema {
        json_schema!({ "type": ["string", "number"] })
    }

    fn describe() -> String {
        "`password` or `user:password`".to_owned()
    }
}

/// Whether a server that is given as a section is meant to be a group.
pub(crate) fn is_group(entries: &[(At<String>, Node)]) -> bool {
    let is_meant = |key: &str| key.starts_with("sentinel") || nearest(key, ["sentinel"]).is_some();
    entries.iter().any(|(key, _)| is_meant(&key.value))
}

pub(crate) fn group_schema() -> Schema {
    section::schema::<GroupSection>(&mut SchemaGenerator::default())
}

/// `None` after a complaint.
pub(crate) fn read_group(node: &Node, report: &mut Report<'_>) -> Option<ServerLine> {
    let section: GroupSection = section::read("a group", node.pos, node, report);
    let (name, master) = (section.name?, section.sentinel?);
    let checked = check_name("server", &name.value.0).map_err(|c| report.error(name.pos, c));
    let checked_master = check_master(&master.value.0).map_err(|c| report.error(master.pos, c));
    (checked.is_ok() && checked_master.is_ok()).then(|| ServerLine {
        is_group: false,
        name: name.value.0,
        endpoint: Endpoint::unknown(),
        weight: section.weight.value.0 as u32,
        group: Some(master.value.0),
        zone: None,
        replicas: Vec::new(),
    })
}

/// Sentinel takes no other names.
fn check_master(name: &str) -> Result<(), Complaint> {
    check_name("group", name)?;
    match name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
        true => Ok(()),
        false => Err(Complaint::new(format!("\"{name}\" is no name of a group of Sentinel's"))
            .hint("Sentinel's names have letters, digits, \".\", \"-\" and \"_\"")),
    }
}

/// `None` where the pool asks no Sentinels, or after a complaint. `servers` are sorted.
pub(crate) fn resolve(
    section: &PoolSection,
    servers: &[Server],
    dialect: Dialect,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Sentinel> {
    let auth = secret::resolve(
        "sentinel_auth",
        section.sentinel_auth.as_ref().map(|it| &it.value),
        context,
        report,
    );
    let lines = section.servers.as_ref().map_or(&[][..], |servers| &servers.value.0);
    let masters: HashMap<&str, (&str, Pos)> = lines
        .iter()
        .filter_map(|line| Some((&*line.value.name, (line.value.group.as_deref()?, line.pos))))
        .collect();
    let Some(sentinels) = &section.sentinels else {
        refuse_without_sentinels(section, lines, report);
        return None;
    };
    if masters.is_empty() {
        let hint = "a group among the servers is \"- {name: s1, sentinel: mymaster}\"";
        let complaint = Complaint::new("the pool has \"sentinels\" and no group that they name");
        report.error(sentinels.pos, complaint.hint(hint));
    }
    check_masters(&masters, report);
    if let (Dialect::Sectioned, true, Some((_, pos))) =
        (dialect, servers.len() > 1, masters.get(MASTER))
    {
        let complaint = Complaint::new("a group beside other servers cannot be named \"master\"");
        let hint = "a server of that name would make the others its replicas";
        report.error(*pos, complaint.hint(hint));
    }
    SENTINELS.check_twice(&sentinels.value.0, report);
    if let [only] = &sentinels.value.0[..] {
        let complaint = Complaint::new("one Sentinel decides alone where the primaries are")
            .hint("name all that watch the groups: three or more, of which most must agree");
        report.warning(only.pos, complaint);
    }
    let group = |server: &Server| {
        let (master, _) = masters.get(&*server.name)?;
        let (server, master) = (server.name.clone(), (*master).to_owned());
        Some(Group { server, master, config_epoch: None, lineage: Lineage::default(), moves: 0 })
    };
    Some(Sentinel {
        addresses: sentinels.value.0.iter().map(|address| address.value.clone()).collect(),
        auth: auth.map(|auth| auth.0),
        tls: super::tls::resolve_sentinels(section, context, report),
        groups: servers.iter().filter_map(group).collect(),
    })
}

/// The pool would ask itself.
pub(crate) fn check_listen(
    section: &PoolSection,
    listen: Option<&Listen>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) {
    if let (Some(sentinels), Some(listen)) = (&section.sentinels, listen) {
        SENTINELS.check_listen(&sentinels.value.0, listen, context, report);
    }
}

fn refuse_without_sentinels(
    section: &PoolSection,
    lines: &[At<ServerLine>],
    report: &mut Report<'_>,
) {
    let hint = "for example sentinels: [10.0.0.1:26379, 10.0.0.2:26379, 10.0.0.3:26379]";
    for line in lines.iter().filter(|line| line.value.group.is_some()) {
        let message = format!(
            "server \"{}\" is a group of Sentinel's, and the pool has no \"sentinels\"",
            line.value.name
        );
        report.error(line.pos, Complaint::new(message).hint(hint));
    }
    let auth = section.sentinel_auth.as_ref().map(|it| ("sentinel_auth", it.pos));
    let tls = section.sentinel_tls.as_ref().map(|it| ("sentinel_tls", it.pos));
    for (key, pos) in auth.into_iter().chain(tls) {
        let complaint = Complaint::new(format!("the pool has \"{key}\" and no \"sentinels\""));
        report.error(pos, complaint.hint(hint));
    }
}

/// One group by two names would have two shares of the keys.
fn check_masters(masters: &HashMap<&str, (&str, Pos)>, report: &mut Report<'_>) {
    let mut sorted: Vec<_> =
        masters.iter().map(|(name, (master, pos))| (*pos, name, master)).collect();
    sorted.sort_unstable_by_key(|(pos, ..)| pos.line);
    let mut first = HashMap::new();
    for (pos, name, master) in sorted {
        if let Some(other) = first.insert(*master, *name) {
            let message = format!("\"{name}\" is the same group as \"{other}\": {master}");
            report.error(pos, Complaint::new(message).hint("each group is named once"));
        }
    }
}

#[cfg(test)]
mod tests {
    fn errors(listen: &str, sentinels: &str, server: &str) -> String {
        let yaml = format!(
            "alpha:\n  listen: {listen}\n  redis: true\n  sentinels: [{sentinels}]\n  servers:\n   - \
             {server}\n"
        );
        let loaded = crate::parse("t.yml", &yaml, &crate::Context::of_system());
        loaded.map_or_else(|errors| errors.to_string(), |_| String::new())
    }

    const GROUP: &str = "{name: s1, sentinel: one}";

    #[test]
    fn a_mistyped_key_of_a_group_is_named() {
        let told = errors("127.0.0.1:1", "127.0.0.1:2", "{name: s1, sentinal: one}");
        let expected = "unknown option \"sentinal\"; did you mean \"sentinel\"?";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn a_sentinel_is_not_the_pool_itself() {
        for listen in ["127.0.0.1:22121", "0.0.0.0:22121"] {
            let told = errors(listen, "127.0.0.1:22121, 127.0.0.1:22122", GROUP);
            assert_eq!(told.matches("is the pool's own listener").count(), 1, "{told}");
            assert_eq!(errors(listen, "127.0.0.1:22122, 192.0.2.1:22121", GROUP), "");
        }
    }
}
