//! The stats port of an instance: where it is, and what it answers.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::OnceLock;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::api;
use crate::arguments::InstanceArguments;
use crate::operate::status_if_running;

const TIMEOUT: Duration = Duration::from_secs(3);
const RESPONSE_MAX: u64 = 64 << 20;

/// What the stats port is shown, if it wants anything.
static TOKEN: OnceLock<Option<String>> = OnceLock::new();
/// Has the token of an instance elsewhere.
pub(crate) const TOKEN_VARIABLE: &str = "CASHEW_STATS_TOKEN";

/// Takes the token from the environment, or else from the instance's file.
pub(crate) fn find_token(instance: Option<&InstanceArguments>) {
    TOKEN.get_or_init(|| {
        let of_file = || {
            // Whoever may not read the file, or what it names, has no token. Without one most ports answer all the same.
            let loaded = cashew_config::load(&instance?.conf_file).ok()?;
            loaded.snapshot.global.stats_token
        };
        std::env::var(TOKEN_VARIABLE).ok().or_else(of_file)
    });
}

/// Where the statistics are, as `host:port`: where the instance says, or else its file.
pub(crate) fn address(instance: &InstanceArguments, url: Option<&str>) -> Result<String, String> {
    if let Some(url) = &instance.api {
        let token = api::token(instance.token_file.as_deref())?;
        TOKEN.get_or_init(|| token);
        return address_of(url);
    }
    if let Some(url) = url {
        // Another instance must not get this one's token.
        find_token(None);
        return address_of(url);
    }
    find_token(Some(instance));
    let running = status_if_running(instance);
    if let Some(address) = running.as_ref().ok().and_then(|status| status.statistics) {
        return Ok(reachable(address).to_string());
    }
    let loaded = cashew_config::load(&instance.conf_file).map_err(|error| {
        let why = running.err().map_or_else(String::new, |why| format!("{why}; "));
        format!("{why}{error}")
    })?;
    Ok(reachable(loaded.snapshot.global.stats_listen()).to_string())
}

/// What listens on all addresses listens on loopback.
pub(crate) fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

pub(crate) fn get<T: DeserializeOwned>(address: &str, path: &str) -> Result<T, String> {
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
        let token = TOKEN.get().and_then(|token| token.as_deref());
        let shown = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let shown = shown.unwrap_or_default();
        let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{shown}\r\n");
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
    // Of a query that it does not like it says why.
    if status == "400" {
        return Err(String::from_utf8_lossy(&response[end + 4..]).trim_end().to_owned());
    }
    if status == "401" {
        return Err(format!("it needs the stats_token: is {TOKEN_VARIABLE} set?"));
    }
    if status != "200" {
        return Err(format!("status {status}: is it cashew, and as new as this one?"));
    }
    response.drain(..end + 4);
    Ok(response)
}

/// `host:port` of a URL, or of something that looks like it.
pub(crate) fn address_of(url: &str) -> Result<String, String> {
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

pub(crate) fn encoded(text: &str) -> String {
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
        assert_eq!(
            body_of(b"HTTP/1.1 400 Bad Request\r\n\r\nno such key\n".to_vec()).unwrap_err(),
            "no such key"
        );
        assert!(body_of(b"{\"service\":\"nutcracker\"}\n".to_vec()).is_err());
    }

    #[test]
    fn names_are_written_as_forms_do() {
        assert_eq!(encoded("a/b &ä"), "a%2Fb%20%26%C3%A4");
    }

    #[test]
    fn all_addresses_are_reached_by_loopback() {
        for (listen, reached) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(reachable(listen.parse().unwrap()).to_string(), reached);
        }
    }
}
