//! Questions by HTTP that block the thread that asks them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cashew_config::snapshot::SourceTls;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// Largest answer, and longest line of one that goes on.
const ANSWER_SIZE_MAX: u64 = 64 << 20;
const LINE_SIZE_MAX: u64 = 16 << 20;
/// As much of an error as is told.
const ERROR_SHOWN_MAX: usize = 200;
/// To connect, and to look up the name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Until an answer begins.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Connections that nothing came on for so long are closed.
const IDLE_MAX: Duration = Duration::from_secs(4);

pub(super) struct Http {
    tls: SourceTls,
    agent: Option<(Vec<Stamp>, Agent)>,
}

/// A file as it was when it was read.
type Stamp = (PathBuf, Option<SystemTime>);

pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    headers: ureq::http::HeaderMap,
}

/// An answer that goes on.
pub(super) struct Lines(BufReader<Box<dyn Read + Send>>);

/// Why there is no next line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The answer is complete.
    Over,
    /// Nothing has come for as long as may be.
    Silent,
    Lost(String),
}

/// What goes with a question.
pub(super) type Headers<'a> = [(&'a str, &'a str)];

impl Http {
    pub(super) fn new(tls: SourceTls) -> Self {
        Self { tls, agent: None }
    }

    pub(super) fn get(
        &mut self,
        url: &str,
        headers: &Headers<'_>,
        limit: Duration,
    ) -> Result<Answer, String> {
        let mut request = self.agent()?.get(parse(url)?);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.config().timeout_global(Some(limit)).build();
        answer(request.call().map_err(in_words)?)
    }

    pub(super) fn post(
        &mut self,
        url: &str,
        headers: &Headers<'_>,
        body: &[u8],
        limit: Duration,
    ) -> Result<Answer, String> {
        let mut request = self.agent()?.post(parse(url)?);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.config().timeout_global(Some(limit)).build();
        answer(request.send(body).map_err(in_words)?)
    }

    /// The status, and the answer if that is 200. `silence` is how long nothing may come.
    pub(super) fn get_lines(
        &mut self,
        url: &str,
        headers: &Headers<'_>,
        silence: Duration,
    ) -> Result<Result<Lines, Answer>, String> {
        let mut request = self.agent()?.get(parse(url)?);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let config = request.config().timeout_recv_response(Some(BEGIN_TIMEOUT));
        let request = config.timeout_per_read(Some(silence)).build();
        lines(request.call().map_err(in_words)?)
    }

    pub(super) fn post_lines(
        &mut self,
        url: &str,
        headers: &Headers<'_>,
        body: &[u8],
        silence: Duration,
    ) -> Result<Result<Lines, Answer>, String> {
        let mut request = self.agent()?.post(parse(url)?);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let config = request.config().timeout_recv_response(Some(BEGIN_TIMEOUT));
        let request = config.timeout_per_read(Some(silence)).build();
        lines(request.send(body).map_err(in_words)?)
    }

    /// With the certificates that the files have now.
    fn agent(&mut self) -> Result<Agent, String> {
        let files = self.tls.ca.iter();
        let files = files.chain(self.tls.identity.iter().flat_map(|(cert, key)| [cert, key]));
        let stamp = |path: &PathBuf| {
            let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
            (path.clone(), changed.ok())
        };
        let stamps: Vec<Stamp> = files.map(stamp).collect();
        if let Some((its, agent)) = &self.agent
            && *its == stamps
        {
            return Ok(agent.clone());
        }
        let agent = new_agent(&self.tls)?;
        self.agent = Some((stamps, agent.clone()));
        Ok(agent)
    }
}

fn new_agent(tls: &SourceTls) -> Result<Agent, String> {
    let roots = tls.ca.as_deref().map_or(Ok(Vec::new()), certificates)?;
    let identity = match &tls.identity {
        Some((cert, key)) => {
            Some(ClientCert::new_with_certs(&certificates(cert)?, private_key(key)?))
        }
        None => None,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(provider)
        .root_certs(RootCerts::Specific(Arc::new(roots)))
        .client_cert(identity);
    let config = Agent::config_builder()
        .http_status_as_error(false)
        // Tokens are for nobody else.
        .max_redirects(0)
        .proxy(None)
        .user_agent("cashew")
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .max_idle_age(IDLE_MAX)
        .tls_config(tls.build());
    Ok(Agent::new_with_config(config.build()))
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// What it says, if it is a good one.
    pub(super) fn ok(self) -> Result<Self, String> {
        if self.status == 200 {
            return Ok(self);
        }
        let text = String::from_utf8_lossy(&self.body);
        let shown: String = text.trim().chars().filter(|it| !it.is_control()).collect();
        let end = shown.char_indices().nth(ERROR_SHOWN_MAX).map_or(shown.len(), |(at, _)| at);
        Err(format!("it answers with status {}: {}", self.status, &shown[..end]))
    }
}

impl Lines {
    /// Without what ends it. Waits for it.
    pub(super) fn next(&mut self) -> Result<Vec<u8>, End> {
        let mut line = Vec::new();
        match (&mut self.0).take(LINE_SIZE_MAX).read_until(b'\n', &mut line) {
            Ok(0) => Err(End::Over),
            Ok(_) if line.pop_if(|last| *last == b'\n').is_some() => Ok(line),
            Ok(_) => Err(End::Lost("its answer ended within a line".to_owned())),
            Err(error) if is_timeout(&error) => Err(End::Silent),
            Err(error) => Err(End::Lost(error.to_string())),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    error.kind() == io::ErrorKind::TimedOut || matches!(inner, Some(ureq::Error::Timeout(_)))
}

fn parse(url: &str) -> Result<Uri, String> {
    url.parse().map_err(|error| format!("{url} is no URL: {error}"))
}

fn in_words(error: ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "it does not answer in time".to_owned(),
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

fn answer(mut response: Response<Body>) -> Result<Answer, String> {
    let status = response.status().as_u16();
    let body = response.body_mut().with_config().limit(ANSWER_SIZE_MAX).read_to_vec();
    let body = body.map_err(in_words)?;
    Ok(Answer { status, body, headers: response.headers().clone() })
}

fn lines(response: Response<Body>) -> Result<Result<Lines, Answer>, String> {
    if response.status() != 200 {
        return answer(response).map(Err);
    }
    let reader: Box<dyn Read + Send> = Box::new(response.into_body().into_reader());
    Ok(Ok(Lines(BufReader::new(reader))))
}

/// What a name is in a URL.
pub(super) fn encoded(text: &str) -> String {
    let mut url = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                url.push(byte as char);
            }
            byte => url += &format!("%{byte:02X}"),
        }
    }
    url
}

/// The content of a small file, without white space around it.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let text = read(path)?;
    let text = String::from_utf8(text).map_err(|_| format!("{} is not text", path.display()))?;
    match text.trim() {
        text if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(text.to_owned())
        }
        _ => Err(format!("{} has not one word", path.display())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    // Who opens what is no regular file may wait for ever.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(format!("{} is no regular file", path.display()));
    }
    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let found: Vec<_> = parse_pem(&read(path)?)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() { Err(format!("{} has no certificate", path.display())) } else { Ok(found) }
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, String> {
    PrivateKey::from_pem(&read(path)?).map_err(|_| format!("{} has no key", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_for_urls() {
        assert_eq!(encoded("cache-1.a_b~"), "cache-1.a_b~");
        assert_eq!(encoded("a b/c?d&é"), "a%20b%2Fc%3Fd%26%C3%A9");
    }

    #[test]
    fn files_are_read_if_they_are_files() {
        let why = read_text(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(why, "/dev/zero is no regular file");
        assert!(certificates(Path::new("/proc/self/comm")).is_err());
    }
}
