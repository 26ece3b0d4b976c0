//! TLS towards clients and servers: `tls` and `server_tls`.

use std::path::Path;

use cashew_tls::{
    Acceptor, Certificate, Ciphers, ClientAuth, ClientUser, Connector, Identity, ListenerTls,
    ServerTls, Version,
};
use schemars::{Schema, SchemaGenerator, json_schema};

use crate::client_user::ClientUserText;
use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::{PoolSection, ServerTlsSection, TlsSection};
use crate::resolve::Context;
use crate::section::{self, Section};
use crate::snapshot::Endpoint;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Value, list_of, named};

/// The authorities that the distribution trusts.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";
/// How long before it expires a certificate is warned of.
const EXPIRY_WARNING: u64 = 30 * DAY;
const DAY: u64 = 86_400;
/// Most certificates of a listener.
const CERTIFICATES_MAX: usize = 256;

const VERSIONS: [&str; 2] = ["1.2", "1.3"];
const CIPHERS: [&str; 2] = ["default", "strong"];
const CLIENT_USERS: [&str; 5] = ["off", "cn", "san_dns", "san_uri", "san_email"];
const CLIENT_AUTHS: [&str; 3] = ["none", "optional", "required"];

impl Value for Version {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "version of TLS", &VERSIONS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": ["1.2", "1.3", 1.2, 1.3] })
    }

    fn describe() -> String {
        list_of(&VERSIONS)
    }
}

impl Value for Ciphers {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "choice of ciphers", &CIPHERS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": CIPHERS })
    }

    fn describe() -> String {
        list_of(&CIPHERS)
    }
}

impl Value for ClientAuth {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "way to ask clients for certificates", &CLIENT_AUTHS)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": CLIENT_AUTHS })
    }

    fn describe() -> String {
        list_of(&CLIENT_AUTHS)
    }
}

impl Value for ClientUser {
    fn parse(text: &str) -> Result<Self, Complaint> {
        // As Redis writes it.
        let text = if text == "CN" { "cn" } else { text };
        named(text, "name in certificates", &CLIENT_USERS)
    }

    fn schema() -> Schema {
        // YAML 1.1 takes a bare "off" for false.
        json_schema!({ "enum": ["off", false, "cn", "CN", "san_dns", "san_uri", "san_email"] })
    }

    fn describe() -> String {
        list_of(&CLIENT_USERS)
    }
}

/// One file or several.
#[derive(Debug)]
pub(crate) struct Files(Vec<At<FilePath>>);

impl Value for Files {
    fn parse(text: &str) -> Result<Self, Complaint> {
        FilePath::parse(text).map(|value| Self(vec![At { value, pos: Pos::NONE }]))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            FilePath::schema(),
            { "type": "array", "minItems": 1, "maxItems": CERTIFICATES_MAX, "items": FilePath::schema() },
        ] })
    }

    fn describe() -> String {
        "`/path`, or a list of paths".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let read = |node: &Node, report: &mut Report<'_>| {
            FilePath::read(key, node, report).map(|value| At { value, pos: node.pos })
        };
        let Kind::List(items) = &node.kind else {
            return read(node, report).map(|file| Self(vec![file]));
        };
        if items.is_empty() || items.len() > CERTIFICATES_MAX {
            let message = format!("option \"{key}\" has {} files", items.len());
            let hint = format!("expected 1 to {CERTIFICATES_MAX}");
            report.error(node.pos, Complaint::new(message).hint(hint));
            return None;
        }
        // All are read, so that every error is reported.
        let files: Vec<_> = items.iter().map(|item| read(item, report)).collect();
        files.into_iter().collect::<Option<_>>().map(Self)
    }
}

#[derive(Debug)]
pub(crate) struct TlsText(TlsSection);

impl Value for TlsText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"tls\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<TlsSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{certificate: /path, key: /path}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        Some(Self(section::read(&format!("option \"{key}\""), node.pos, node, report)))
    }
}

#[derive(Debug)]
pub(crate) struct ServerTlsText(ServerTlsSection);

impl Value for ServerTlsText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "true" => Ok(Self(ServerTlsSection::defaults())),
            _ => Err(Complaint::new("takes a section or true").hint(Self::expected())),
        }
    }

    fn schema() -> Schema {
        let section = section::schema::<ServerTlsSection>(&mut SchemaGenerator::default());
        json_schema!({ "anyOf": [{ "const": true }, section] })
    }

    fn describe() -> String {
        "`true`, or a section like `{ca: /path}`".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let result = match &node.kind {
            Kind::Section(_) => {
                let what = format!("option \"{key}\"");
                Ok(Self(section::read(&what, node.pos, node, report)))
            }
            Kind::Scalar { text, .. } if text == "true" => Self::parse(text),
            Kind::Scalar { .. } | Kind::Empty | Kind::List(_) => {
                let message = format!("option \"{key}\" takes a section or true");
                Err(Complaint::new(message).hint(Self::expected()))
            }
        };
        result.map_err(|complaint| report.error(node.pos, complaint)).ok()
    }
}

/// What clients are secured with; `None` too after an error.
pub(crate) fn resolve(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ListenerTls> {
    let Some(At { value: TlsText(tls), pos }) = &section.tls else {
        if let Some(listen) = &section.tls_listen {
            let complaint = Complaint::new("\"tls_listen\" needs \"tls\"");
            report.error(listen.pos, complaint.hint("it says what clients are secured with"));
        }
        return None;
    };
    let (Some(certificates), Some(keys)) = (&tls.certificate, &tls.key) else { return None };
    if certificates.value.0.len() != keys.value.0.len() {
        let message = "there are not as many keys as certificates";
        let hint = "expected a key for each certificate, in the same order";
        report.error(keys.pos, Complaint::new(message).hint(hint));
        return None;
    }
    let pairs = certificates.value.0.iter().zip(&keys.value.0);
    let identities: Vec<_> = pairs
        .map(|(certificate, key)| {
            let certificate = with_pos(certificate, certificates.pos);
            identity(&certificate, &with_pos(key, keys.pos), context, report)
        })
        .collect();
    let client_ca = match &tls.client_ca {
        Some(file) => Some(read("client_ca", file, context, report)?.text),
        None => None,
    };
    let by_default = if client_ca.is_some() { ClientAuth::Required } else { ClientAuth::None };
    let client_auth = tls.client_auth.as_ref().map_or(by_default, |auth| auth.value);
    if client_auth != ClientAuth::None && client_ca.is_none() {
        let complaint = Complaint::new("\"client_auth\" needs \"client_ca\"");
        let auth = tls.client_auth.as_ref().map_or(*pos, |auth| auth.pos);
        report.error(auth, complaint.hint("a file with those who sign clients' certificates"));
        return None;
    }
    let ClientUserText { from: client_user, names: client_names } = tls.client_user.value.clone();
    if client_user != ClientUser::Off {
        if client_auth == ClientAuth::None {
            let complaint = Complaint::new("\"client_user\" needs \"client_ca\"");
            let hint = "it is a name in a certificate that the client shows";
            report.error(tls.client_user.pos, complaint.hint(hint));
            return None;
        }
        if section.users.is_none() && section.acl_file.is_none() {
            let complaint = Complaint::new("\"client_user\" has no effect");
            let hint = "there are no \"users\", and no \"acl_file\"";
            report.warning(tls.client_user.pos, complaint.hint(hint));
        }
    }
    let resolved = ListenerTls {
        identities: identities.into_iter().collect::<Option<_>>()?,
        client_ca,
        client_auth,
        client_user,
        client_names,
        min_version: tls.min_version.value,
        ciphers: tls.ciphers.value,
        handshake_timeout_ms: tls.handshake_timeout.value.0,
        hand_over: tls.hand_over.value.0,
    };
    check(Acceptor::new(&resolved, None), "tls", *pos, report)?;
    Some(resolved)
}

/// What servers are secured with; `None` too after an error.
pub(crate) fn resolve_servers(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ServerTls> {
    let given = section.server_tls.as_ref()?;
    let At { value: ServerTlsText(tls), .. } = given;
    if tls.verify.value.0 && tls.server_name.is_none() {
        warn_of_unix(section, report);
    }
    resolve_options("server_tls", given, "servers", context, report)
}

/// What Sentinels are secured with; `None` too after an error.
pub(crate) fn resolve_sentinels(
    section: &PoolSection,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ServerTls> {
    let given = section.sentinel_tls.as_ref()?;
    resolve_options("sentinel_tls", given, "Sentinels", context, report)
}

fn resolve_options(
    key: &str,
    At { value: ServerTlsText(tls), pos }: &At<ServerTlsText>,
    whose: &str,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ServerTls> {
    let verify = tls.verify.value.0;
    let ca = match (&tls.ca, verify) {
        (Some(ca), true) => read("ca", ca, context, report)?.text,
        (None, true) => {
            let ca = At { value: FilePath(SYSTEM_CA.into()), pos: *pos };
            read("ca", &ca, context, report)?.text
        }
        (Some(ca), false) => {
            let complaint = Complaint::new("\"ca\" has no effect with \"verify: false\"");
            report.warning(ca.pos, complaint);
            String::new()
        }
        (None, false) => String::new(),
    };
    if !verify {
        let complaint = Complaint::new(format!("the certificates of the {whose} are not verified"));
        let hint = "anybody on the way can pose as a server; ca says whom to trust";
        report.warning(tls.verify.pos, complaint.hint(hint));
    }
    let identity = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => Some(identity(certificate, key, context, report)?),
        (None, None) => None,
        (Some(At { pos, .. }), None) | (None, Some(At { pos, .. })) => {
            let complaint = Complaint::new("\"certificate\" and \"key\" go together");
            report.error(*pos, complaint);
            return None;
        }
    };
    let resolved = ServerTls {
        ca,
        server_name: tls.server_name.as_ref().map(|name| name.value.0.clone()),
        identity,
        verify,
        min_version: tls.min_version.value,
        ciphers: tls.ciphers.value,
        mark: 0,
        trust_mark: 0,
    };
    check(Connector::new(&resolved), key, *pos, report)?;
    Some(resolved.marked())
}

/// A server at a path has no name that its certificate could be for.
fn warn_of_unix(section: &PoolSection, report: &mut Report<'_>) {
    let lines = section.servers.as_ref().map_or(&[][..], |servers| &servers.value.0);
    if let Some(line) = lines.iter().find(|it| matches!(it.value.endpoint, Endpoint::Unix(_))) {
        let complaint =
            Complaint::new("the certificate of a server at a path must be for localhost");
        report.warning(line.pos, complaint.hint("server_name says another name"));
    }
}

fn with_pos(file: &At<FilePath>, pos: Pos) -> At<FilePath> {
    match file.pos {
        Pos::NONE => At { value: file.value.clone(), pos },
        _ => file.clone(),
    }
}

/// What cannot be used although each file can be read.
fn check<T>(made: Result<T, String>, key: &str, pos: Pos, report: &mut Report<'_>) -> Option<T> {
    let complain = |why| Complaint::new(format!("option \"{key}\": {why}"));
    made.map_err(|why| report.error(pos, complain(why))).ok()
}

fn read(
    key: &str,
    file: &At<FilePath>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<crate::SecretFile> {
    let path = &file.value.0;
    let refuse = |error| {
        Complaint::new(format!("option \"{key}\": {} cannot be read: {error}", path.display()))
    };
    (context.read_pem)(path).map_err(|error| report.error(file.pos, refuse(error))).ok()
}

/// A certificate with its key. They are only held against each other where all is known.
fn identity(
    certificate: &At<FilePath>,
    key: &At<FilePath>,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<Identity> {
    let chain = read("certificate", certificate, context, report);
    let secret = read("key", key, context, report);
    let (chain, secret) = (chain?.text, secret?);
    if secret.is_public {
        let message = format!("every user of this machine can read {}", key.value.0.display());
        let hint = "it holds a private key: chmod 0600, or 0640 for a group";
        report.warning(key.pos, Complaint::new(message).hint(hint));
    }
    let path = &certificate.value.0;
    let found = match Certificate::of_pem(&chain) {
        Ok(found) => found,
        Err(why) => {
            let message = format!("option \"certificate\": {} {why}", path.display());
            report.error(certificate.pos, Complaint::new(message));
            return None;
        }
    };
    warn_of_time(path, &found, context.now, certificate.pos, report);
    let Certificate { names, expires_at, .. } = found;
    let [file, key_file] = [path, &key.value.0].map(|path| path.display().to_string());
    Some(Identity { file, key_file, chain, key: secret.text, names, expires_at })
}

/// A certificate that is no longer valid is refused by those who verify it, but not here: others may not.
fn warn_of_time(path: &Path, found: &Certificate, now: u64, pos: Pos, report: &mut Report<'_>) {
    let path = path.display();
    let message = match found.expires_at.checked_sub(now) {
        None => {
            let days = (now - found.expires_at) / DAY;
            format!("the certificate of {path} has expired {days} days ago")
        }
        Some(left) if left < EXPIRY_WARNING => {
            format!("the certificate of {path} expires in {} days", left / DAY)
        }
        Some(_) if found.begins_at > now => {
            format!(
                "the certificate of {path} is not valid before {} days are over",
                (found.begins_at - now).div_ceil(DAY)
            )
        }
        Some(_) => return,
    };
    report.warning(pos, Complaint::new(message));
}
