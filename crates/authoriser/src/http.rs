//! A service that is asked by HTTP.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use zeroize::Zeroizing;

use crate::{THREADS_MAX, Verdict, lock};

/// Largest answer.
const ANSWER_SIZE_MAX: u64 = 64 << 10;
/// Connections that nothing came on for so long are closed: services close theirs a bit later, as a rule.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// Sets of trusted certificates that connections are kept for.
const AGENTS_MAX: usize = 64;

/// What is sent.
#[derive(Serialize)]
pub(crate) struct Asked<'a> {
    pub(crate) pool: &'a str,
    pub(crate) name: &'a str,
    pub(crate) password: &'a str,
    pub(crate) address: &'a str,
}

/// What comes back. What else is in it is for others.
#[derive(Deserialize)]
struct Granted {
    user: String,
    /// Seconds.
    expires_in: Option<u64>,
}

/// Whom to trust: a file as it was when it was read.
type Trust = Option<(PathBuf, Option<SystemTime>)>;

#[derive(Default)]
pub(crate) struct Service(Mutex<HashMap<Trust, Agent>>);

impl Service {
    pub(crate) fn verdict(
        &self,
        url: &str,
        ca: Option<&Path>,
        token_file: Option<&Path>,
        asked: &Asked<'_>,
        deadline: Instant,
    ) -> Result<Verdict, String> {
        let agent = self.agent(ca)?;
        let body = serde_json::to_vec(asked).map(Zeroizing::new);
        let body = body.map_err(|error| error.to_string())?;
        let token = token_file.map(bearer).transpose()?;
        let mut again = true;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match post(&agent, url, token.as_ref(), &body, left) {
                // It may have closed the connection that is used just now. Asking again does no harm.
                Err(error) if again && !matches!(error, ureq::Error::Timeout(_)) => again = false,
                Err(error) => return Err(error.to_string()),
                Ok((status, answer)) => return verdict(status, &answer),
            }
        }
    }

    /// With the certificates that the file has now.
    fn agent(&self, ca: Option<&Path>) -> Result<Agent, String> {
        let trust = ca.map(|path| {
            let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
            (path.to_owned(), changed.ok())
        });
        let mut agents = lock(&self.0);
        if let Some(agent) = agents.get(&trust) {
            return Ok(agent.clone());
        }
        let roots = ca.map_or(Ok(Vec::new()), certificates)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::Specific(Arc::new(roots)));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // What is asked about may be told to nobody else.
            .max_redirects(0)
            .proxy(None)
            .user_agent("cashew")
            .max_idle_connections(THREADS_MAX)
            .max_idle_connections_per_host(THREADS_MAX)
            .max_idle_age(IDLE_MAX)
            .tls_config(tls.build());
        let agent = Agent::new_with_config(config.build());
        if agents.len() >= AGENTS_MAX {
            agents.clear();
        }
        agents.insert(trust, agent.clone());
        Ok(agent)
    }
}

fn post(
    agent: &Agent,
    url: &str,
    token: Option<&Zeroizing<String>>,
    body: &[u8],
    left: Duration,
) -> Result<(u16, Vec<u8>), ureq::Error> {
    // A time of zero would be none at all.
    let left = left.max(Duration::from_millis(1));
    let request = agent.post(url).config().timeout_global(Some(left)).build();
    let mut request = request.header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", token.as_str());
    }
    let mut response = request.send(body)?;
    let status = response.status().as_u16();
    let answer = response.body_mut().with_config().limit(ANSWER_SIZE_MAX).read_to_vec()?;
    Ok((status, answer))
}

fn verdict(status: u16, answer: &[u8]) -> Result<Verdict, String> {
    match status {
        401 | 403 => Ok(Verdict::Refused),
        200 => match serde_json::from_slice(answer) {
            Ok(Granted { expires_in: Some(0), .. }) => Ok(Verdict::Refused),
            Ok(Granted { user, expires_in }) => {
                Ok(Verdict::User { user, expires_in: expires_in.map(Duration::from_secs) })
            }
            // What serde says may have parts of the answer.
            Err(error) => Err(format!(
                "its answer is not like {{\"user\": \"app\", \"expires_in\": 3600}} (line {}, column {})",
                error.line(),
                error.column()
            )),
        },
        status => Err(format!("it answers with status {status}")),
    }
}

fn bearer(path: &Path) -> Result<Zeroizing<String>, String> {
    // Who opens what is no regular file may wait for ever.
    let is_file = fs::metadata(path).map(|metadata| metadata.is_file());
    let text = match is_file {
        Ok(false) => return Err(format!("{} is no regular file", path.display())),
        _ => fs::read_to_string(path).map(Zeroizing::new),
    };
    let text = text.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    match text.trim() {
        token if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Zeroizing::new(format!("Bearer {token}")))
        }
        _ => Err(format!("{} has no token", path.display())),
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(format!("{} is no regular file", path.display()));
    }
    let pem = fs::read(path);
    let pem = pem.map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
    let found: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() { Err(format!("{} has no certificate", path.display())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_not_waited_for() {
        let reason = bearer(Path::new("/dev/zero")).err();
        assert_eq!(reason.as_deref(), Some("/dev/zero is no regular file"));
        let reason = certificates(Path::new("/dev/zero")).err();
        assert_eq!(reason.as_deref(), Some("/dev/zero is no regular file"));
    }

    #[test]
    fn answers_are_taken_by_their_status() {
        let user = |expires_in: Option<u64>| Verdict::User {
            user: "app".to_owned(),
            expires_in: expires_in.map(Duration::from_secs),
        };
        assert_eq!(verdict(200, br#"{"user": "app", "more": [1]}"#), Ok(user(None)));
        assert_eq!(verdict(200, br#"{"user": "app", "expires_in": 60}"#), Ok(user(Some(60))));
        for (status, answer) in [(401, ""), (403, "{}"), (200, r#"{"user":"a","expires_in":0}"#)] {
            assert_eq!(verdict(status, answer.as_bytes()), Ok(Verdict::Refused), "{status}");
        }
        for (status, answer) in [
            (200, ""),
            (200, "{}"),
            (200, r#"{"user": 3}"#),
            (200, r#"{"user": "app", "expires_in": -1}"#),
            (204, r#"{"user": "app"}"#),
            (302, ""),
            (500, ""),
        ] {
            assert!(verdict(status, answer.as_bytes()).is_err(), "{status} {answer}");
        }
    }
}
