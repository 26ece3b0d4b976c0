//! Asks the stats port once a second, beside the terminal: a port that is slow keeps no key waiting.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::state::{History, State};

const INTERVAL: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(3);
/// Points of the history that are asked for: as many as a wide terminal has columns for.
const POINTS: usize = 240;
const RESPONSE_MAX: u64 = 64 << 20;

/// A pool and perhaps a server of it, whose history is shown.
pub(super) type Wanted = Option<(String, Option<String>)>;

/// What came, or why nothing did.
pub(super) type News = Result<(State, Option<(Wanted, History)>), String>;

pub(super) struct Feed {
    news: Receiver<News>,
    wanted: Arc<Mutex<Wanted>>,
    nudge: Sender<()>,
}

impl Feed {
    pub(super) fn start(address: String) -> Self {
        let (sender, news) = channel();
        let (nudge, nudged) = channel::<()>();
        let wanted: Arc<Mutex<Wanted>> = Arc::default();
        let of_thread = Arc::clone(&wanted);
        thread::spawn(move || {
            loop {
                let asked = Instant::now();
                if sender.send(ask(&address, &of_thread)).is_err() {
                    return;
                }
                // Sooner where something else is selected.
                let _ = nudged.recv_timeout(INTERVAL.saturating_sub(asked.elapsed()));
            }
        });
        Self { news, wanted, nudge }
    }

    pub(super) fn news(&self) -> impl Iterator<Item = News> {
        self.news.try_iter()
    }

    pub(super) fn want(&self, wanted: Wanted) {
        let mut current = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != wanted {
            *current = wanted;
            let _ = self.nudge.send(());
        }
    }
}

fn ask(address: &str, wanted: &Mutex<Wanted>) -> News {
    let state = state(address)?;
    let mut current = wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if current.is_none() {
        current = state.pools.first().map(|pool| (pool.name.clone(), None));
    }
    let Some((pool, server)) = &current else { return Ok((state, None)) };
    let mut path = format!("/history.json?last={POINTS}&pool={}", encoded(pool));
    if let Some(server) = server {
        path += &format!("&server={}", encoded(server));
    }
    // It may be of a server that is gone, or there is none of so many.
    let history = get(address, &path).ok();
    Ok((state, history.map(|history| (current, history))))
}

pub(super) fn state(address: &str) -> Result<State, String> {
    get(address, "/state.json")
}

fn get<T: DeserializeOwned>(address: &str, path: &str) -> Result<T, String> {
    let body = fetch(address, path).map_err(|why| format!("http://{address}{path}: {why}"))?;
    serde_json::from_slice(&body).map_err(|error| format!("http://{address}{path}: {error}"))
}

/// HTTP/1.0, whose answer ends with the connection.
fn fetch(address: &str, path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut last = "it has no address".to_owned();
    for at in address.to_socket_addrs().map_err(failed)? {
        let mut stream = match TcpStream::connect_timeout(&at, TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => {
                last = error.to_string();
                continue;
            }
        };
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut response = Vec::new();
        stream.take(RESPONSE_MAX).read_to_end(&mut response).map_err(failed)?;
        return body_of(response);
    }
    Err(last)
}

fn body_of(mut response: Vec<u8>) -> Result<Vec<u8>, String> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.ok_or("the answer is not HTTP: is it the stats port?")?;
    let head = String::from_utf8_lossy(&response[..end]).into_owned();
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if status != "200" {
        return Err(format!("status {status}: is it cashew, and as new as this one?"));
    }
    response.drain(..end + 4);
    Ok(response)
}

/// `host:port` of a URL, or of something that looks like it.
pub(super) fn address_of(url: &str) -> Result<String, String> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    if rest.contains("://") {
        return Err(format!("--url {url}: only http:// is spoken"));
    }
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let has_port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.contains(']') && port.parse::<u16>().is_ok()
    });
    match (has_port, authority) {
        (_, "") => Err(format!("--url {url}: no host is in it")),
        (true, _) => Ok(authority.to_owned()),
        (false, _) => Ok(format!("{authority}:80")),
    }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().fold(String::new(), |mut done, byte| {
        match plain(byte) {
            true => done.push(char::from(byte)),
            false => done += &format!("%{byte:02X}"),
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_from_urls() {
        for (url, address) in [
            ("http://gw1:22222/", "gw1:22222"),
            ("http://gw1", "gw1:80"),
            ("10.0.0.1:22222", "10.0.0.1:22222"),
            ("http://[::1]:5/state.json?x", "[::1]:5"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            assert_eq!(address_of(url).unwrap(), address);
        }
        for url in ["https://gw1/", "http://", "unix:///x"] {
            assert!(address_of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn only_good_answers_have_a_body() {
        assert_eq!(body_of(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}".to_vec()).unwrap(), b"{}");
        assert!(body_of(b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec()).unwrap_err().contains("404"));
        assert!(body_of(b"{\"service\":\"nutcracker\"}\n".to_vec()).is_err());
    }

    #[test]
    fn names_are_written_as_forms_do() {
        assert_eq!(encoded("a/b &ä"), "a%2Fb%20%26%C3%A4");
    }
}
