//! Who is asked about names that are no user's here: `external_auth`.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::diagnostic::{At, Complaint, Pos, Report};
use crate::file::{ExternalAuthSection, PoolSection};
use crate::resolve::Context;
use crate::section;
use crate::snapshot::{AuthSource, ExternalAuth};
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Value};

#[derive(Debug)]
pub(crate) struct ExternalAuthText {
    auth: ExternalAuth,
    /// Files that have to be there for it.
    files: Vec<At<FilePath>>,
    ca: Option<At<FilePath>>,
}

impl Value for ExternalAuthText {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"external_auth\" takes a section").hint(Self::expected()))
    }

    fn schema() -> Schema {
        section::schema::<ExternalAuthSection>(&mut SchemaGenerator::default())
    }

    fn describe() -> String {
        "a section like `{url: https://auth.example.com/login, ca: /etc/cashew/ca.pem}` or `{file: \
         /etc/cashew/logins}`"
            .to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Section(_) = &node.kind else {
            return Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok();
        };
        let what = format!("option \"{key}\"");
        let section: ExternalAuthSection = section::read(&what, node.pos, node, report);
        let ExternalAuthSection { url, file, ca, token_file, timeout, cache } = section;
        let error = |pos: Pos, message: String, hint: &str, report: &mut Report<'_>| {
            report.error(pos, Complaint::new(message).hint(hint));
            None
        };
        let path = |file: &Option<At<FilePath>>| file.as_ref().map(|file| file.value.0.clone());
        let (source, files) = match (url, file) {
            (Some(url), None) => {
                let is_secured = url.value.0.starts_with("https://");
                match &ca {
                    None if is_secured => {
                        let message = format!("{what}: https needs a \"ca\"");
                        let hint = "the file with the certificates that are trusted";
                        return error(url.pos, message, hint, report);
                    }
                    Some(ca) if !is_secured => {
                        let message = format!("{what}: \"ca\" is for https");
                        return error(ca.pos, message, "with http it has no effect", report);
                    }
                    _ => {}
                }
                let (ca, token) = (path(&ca), path(&token_file));
                let source = AuthSource::Http { url: url.value.0, ca, token_file: token };
                (source, token_file.into_iter().collect())
            }
            (None, Some(file)) => {
                if let Some(other) = ca.as_ref().or(token_file.as_ref()) {
                    let message = format!("{what}: \"ca\" and \"token_file\" go with \"url\"");
                    return error(other.pos, message, "a file is not asked", report);
                }
                (AuthSource::File(file.value.0.clone()), vec![file])
            }
            (Some(_), Some(file)) => {
                let message = format!("{what} has both \"url\" and \"file\"");
                return error(file.pos, message, "expected one of them", report);
            }
            (None, None) => {
                let message = format!("{what} has neither \"url\" nor \"file\"");
                return error(node.pos, message, "expected one of them", report);
            }
        };
        let auth = ExternalAuth { source, timeout_ms: timeout.value.0, cache_ms: cache.value.0 };
        Some(Self { auth, files, ca })
    }
}

/// Where somebody is asked by HTTP.
#[derive(Clone, Debug)]
pub(crate) struct AuthUrl(String);

impl Value for AuthUrl {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split(['/', '?']).next().unwrap_or_default());
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_host = |host: &str| {
            let (name, port) = match host.rsplit_once(':') {
                Some((name, port)) if !port.ends_with(']') => (name, port),
                _ => (host, "80"),
            };
            !name.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        // A password in it would be told in logs.
        if !is_plain || text.contains(['@', '#']) || !host.is_some_and(is_host) {
            // So it would be in this text.
            let complaint = Complaint::new("this is no URL to ask at");
            return Err(complaint.hint(Self::expected()));
        }
        Ok(Self(text.to_owned()))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^https?://[^@#\\s]+$" })
    }

    fn describe() -> String {
        "a URL like `https://auth.example.com/login`".to_owned()
    }
}

/// What a pool has of it, whose files can be read.
pub(crate) fn resolve(
    section: &PoolSection,
    has_users: bool,
    context: &Context<'_>,
    report: &mut Report<'_>,
) -> Option<ExternalAuth> {
    let At { value: option, pos } = section.external_auth.as_ref()?;
    if !has_users {
        let complaint = Complaint::new("\"external_auth\" names users, and there are none");
        report.error(*pos, complaint.hint("it goes with \"users\" or \"acl_file\""));
    }
    let read = |file: &At<FilePath>, is_pem: bool, report: &mut Report<'_>| {
        let path = &file.value.0;
        let found = if is_pem { (context.read_pem)(path) } else { (context.read_secret)(path) };
        let found = found.map_err(|error| {
            report.error(
                file.pos,
                Complaint::new(format!("{} cannot be read: {error}", path.display())),
            );
        });
        found.ok()
    };
    for file in &option.files {
        read(file, false, report);
    }
    if let Some(ca) = &option.ca
        && let Some(found) = read(ca, true, report)
        && !found.text.contains("-----BEGIN CERTIFICATE-----")
    {
        let message = format!("{} has no certificate", ca.value.0.display());
        report.error(ca.pos, Complaint::new(message));
    }
    Some(option.auth.clone())
}

/// In words for an operator.
pub(crate) fn shown(auth: &Option<ExternalAuth>) -> String {
    let Some(ExternalAuth { source, timeout_ms, cache_ms }) = auth else {
        return "none".to_owned();
    };
    let more = match source {
        AuthSource::File(_) => String::new(),
        AuthSource::Http { ca, token_file, .. } => {
            let shown = |name: &str, path: &Option<std::path::PathBuf>| {
                path.as_ref().map_or_else(String::new, |it| format!(", {name} {}", it.display()))
            };
            format!("{}{}", shown("ca", ca), shown("token_file", token_file))
        }
    };
    format!("{source}{more}, timeout {timeout_ms}, cache {cache_ms}")
}
