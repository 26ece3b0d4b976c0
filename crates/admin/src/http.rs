//! What the stats port answers to requests by HTTP.

use std::net::SocketAddr;

use cashew_api::{Failure, FailureKind};
use cashew_config::snapshot::Global;
use hyper::body::Body as HttpBody;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};

use crate::history::History;
use crate::operate::Refusal;
use crate::page::{self, Page};
use crate::roles::{self, Role};
use crate::server::Hub;
use crate::source::Source;
use crate::{events, hot, prometheus, readiness, slow, state, stats};

/// Longest request with all of its headers.
pub(crate) const REQUEST_SIZE_MAX: usize = 8192;
const METHOD_SIZE_MAX: usize = 16;

const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";

/// What a client's first bytes look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    Undecided,
    Http,
    /// Anything else: answered like nutcracker, without reading it.
    Other,
}

/// HTTP begins with a method in capitals and a space.
pub(crate) fn speech(input: &[u8]) -> Speech {
    let method = input.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match input.get(method) {
        _ if method > METHOD_SIZE_MAX => Speech::Other,
        None => Speech::Undecided,
        Some(b' ') if method > 0 => Speech::Http,
        Some(_) => Speech::Other,
    }
}

/// To a client that ended its side within a request.
pub(crate) fn bad_request() -> Vec<u8> {
    refusal("400 Bad Request", "bad request\n")
}

pub(crate) fn request_timeout() -> Vec<u8> {
    refusal("408 Request Timeout", "request timeout\n")
}

/// To a client of the API whose connection is needed, or whose server ends.
pub(crate) fn left() -> Vec<u8> {
    let cause = "the connection is needed for others, or the statistics go to another process";
    let remedy = "What was begun goes on: GET /api/v1/status and the audit log say how it ends";
    let failure = Failure::new(FailureKind::Busy, cause, remedy);
    let body = serde_json::to_string(&failure).unwrap_or_default() + "\n";
    refusal_of("503 Service Unavailable", JSON, &body)
}

fn refusal(status: &str, body: &str) -> Vec<u8> {
    refusal_of(status, TEXT, body)
}

fn refusal_of(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    let size = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {size}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The connection is closed unless the client asks for more by name, as browsers do: scripts that
/// speak HTTP/1.1 by hand read to the end.
pub(crate) fn respond<B: HttpBody>(
    request: &Request<B>,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Response<Vec<u8>> {
    let asked = Asked {
        method: request.method(),
        uri: request.uri(),
        wants_page: accepts_html(request.headers()),
    };
    let source = hub.source();
    let global = &source.snapshot().global;
    let is_open = matches!(asked.uri.path(), "/healthz" | "/livez" | "/readyz");
    let role = match is_open {
        true => Role::of(request.headers(), global),
        false => role_of(request.headers(), asked.uri.path(), hub, peer),
    };
    let mut response = match asked.uri.path().starts_with("/operate/") {
        true => operate(&asked, role, global, hub, peer),
        false if is_open || global.stats_token.is_none() || role >= Role::Read => {
            match asked.uri.path() {
                "/operate.json" if is_reading(&asked) => {
                    let query = asked.uri.query().unwrap_or_default();
                    let listing = hub.operations.borrow().listing(query);
                    self::listing(listing.map(|listing| line_of(&listing)))
                }
                _ => answer(&asked, &source, &hub.history.borrow()),
            }
        }
        false => unauthorized(),
    };
    let keeps =
        wants_to_stay(request.version(), request.headers()) && request.body().is_end_stream();
    keep_or_close(&mut response, keeps);
    response
}

/// Whether the client asks for more by this connection.
pub(crate) fn wants_to_stay(version: Version, headers: &HeaderMap) -> bool {
    version == Version::HTTP_11 && has(headers, header::CONNECTION, "keep-alive")
}

pub(crate) fn keep_or_close(response: &mut Response<Vec<u8>>, keeps: bool) {
    let connection = if keeps { "keep-alive" } else { "close" };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static(connection));
}

/// What somebody has shown. A token that is none is told of.
pub(crate) fn role_of(
    headers: &HeaderMap,
    path: &str,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Role {
    let source = hub.source();
    let global = &source.snapshot().global;
    let role = Role::of(headers, global);
    if role == Role::Impostor && has_tokens(global) {
        hub.token_is_wrong(peer, path);
    }
    role
}

fn has_tokens(global: &Global) -> bool {
    global.stats_token.is_some() || global.operate_token.is_some()
}

/// What changes something. A browser cannot be made to ask for it by another site: it shows no bearer token by itself.
fn operate(
    asked: &Asked<'_>,
    role: Role,
    global: &Global,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Response<Vec<u8>> {
    if global.operate_token.is_none() {
        return text(StatusCode::FORBIDDEN, "nothing can be changed by HTTP, see operate_token\n");
    }
    if !roles::may_operate_from(peer, global) {
        return text(StatusCode::FORBIDDEN, "not from this address, see operate_from\n");
    }
    if role != Role::Operate {
        let mut response = text(
            StatusCode::UNAUTHORIZED,
            "this needs operate_token as Authorization: Bearer TOKEN\n",
        );
        let asked = HeaderValue::from_static("Bearer realm=\"cashew\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, asked);
        return response;
    }
    if asked.method != Method::POST {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let query = asked.uri.query().unwrap_or_default();
    let begun = hub.operations.borrow_mut().begin(asked.uri.path(), query, peer);
    match begun {
        Ok(action) => response(StatusCode::ACCEPTED, JSON, line_of(&action)),
        Err(Refusal::Wrong(why)) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
        Err(Refusal::Busy) => text(StatusCode::SERVICE_UNAVAILABLE, "the master is busy\n"),
        Err(Refusal::NotThere) => text(
            StatusCode::NOT_FOUND,
            "/operate/reload, /operate/failover and /operate/log-level are here\n",
        ),
    }
}

fn line_of(value: &serde_json::Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

fn unauthorized() -> Response<Vec<u8>> {
    let mut response = text(StatusCode::UNAUTHORIZED, "this needs the token, see stats_token\n");
    let asked = HeaderValue::from_static("Basic realm=\"cashew\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, asked);
    response
}

fn accepts_html(headers: &HeaderMap) -> bool {
    has(headers, header::ACCEPT, "text/html")
}

/// Whether a list in a header has the word, whatever its parameters.
fn has(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    let mut words = values
        .flat_map(|value| value.split(','))
        .map(|item| item.split(';').next().unwrap_or_default().trim());
    words.any(|item| item.eq_ignore_ascii_case(word))
}

pub(crate) struct Asked<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    /// Rather than what programs read.
    pub(crate) wants_page: bool,
}

fn is_reading(asked: &Asked<'_>) -> bool {
    asked.method == Method::GET || asked.method == Method::HEAD
}

fn answer(asked: &Asked<'_>, source: &Source, history: &History) -> Response<Vec<u8>> {
    if !is_reading(asked) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let query = asked.uri.query().unwrap_or_default();
    match asked.uri.path() {
        "/" if asked.wants_page && query.is_empty() => html(page::page()),
        "/" | "/stats" => json(stats::in_format(query, source)),
        "/workers" => json(stats::fork_shape(source).to_line()),
        "/state.json" => json(state::document(source, history).to_line()),
        "/history.json" => match history.told(query) {
            Ok(told) => json(told.to_line()),
            Err(why) => text(StatusCode::NOT_FOUND, &format!("{why}\n")),
        },
        "/events.json" => listing(events::json(source, query)),
        "/slow.json" => listing(slow::json(source, query)),
        "/hot.json" => listing(hot::json(source, query)),
        "/metrics" => response(
            StatusCode::OK,
            prometheus::CONTENT_TYPE,
            prometheus::exposition(source).into_bytes(),
        ),
        "/healthz" | "/livez" if source.is_healthy() => text(StatusCode::OK, "ok\n"),
        "/healthz" | "/livez" => {
            text(StatusCode::SERVICE_UNAVAILABLE, "no worker shows that it runs\n")
        }
        "/readyz" => match readiness::reasons_against(source) {
            reasons if reasons.is_empty() => text(StatusCode::OK, "ready\n"),
            reasons => text(StatusCode::SERVICE_UNAVAILABLE, &(reasons.join("\n") + "\n")),
        },
        _ => text(
            StatusCode::NOT_FOUND,
            "/stats, /workers, /state.json, /history.json, /events.json, /slow.json, /hot.json, \
             /operate.json, /metrics, /healthz, /livez and /readyz are here, / for browsers, and the API \
             that /api/v1/openapi.json describes\n",
        ),
    }
}

/// What a query asks for, or what is wrong with it.
fn listing(listing: Result<Vec<u8>, String>) -> Response<Vec<u8>> {
    match listing {
        Ok(body) => json(body),
        Err(why) => text(StatusCode::BAD_REQUEST, &format!("{why}\n")),
    }
}

fn text(status: StatusCode, text: &str) -> Response<Vec<u8>> {
    response(status, TEXT, text.into())
}

fn json(body: Vec<u8>) -> Response<Vec<u8>> {
    response(StatusCode::OK, JSON, body)
}

fn html(page: Page) -> Response<Vec<u8>> {
    let mut response = response(StatusCode::OK, "text/html; charset=utf-8", page.text);
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::try_from(page.policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

pub(crate) fn response(
    status: StatusCode,
    content_type: &'static str,
    body: Vec<u8>,
) -> Response<Vec<u8>> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // What is shown has names from files and keys of clients.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use cashew_metrics::monotonic_ms;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};

    fn ask(method: Method, target: &str, wants_page: bool) -> Response<Vec<u8>> {
        let uri = target.parse().unwrap();
        let asked = Asked { method: &method, uri: &uri, wants_page };
        answer(&asked, &busy_source(), &History::default())
    }

    fn get(target: &str) -> (StatusCode, String) {
        let response = ask(Method::GET, target, false);
        (response.status(), String::from_utf8(response.into_body()).unwrap())
    }

    fn content_type(response: &Response<Vec<u8>>) -> &str {
        response.headers()[header::CONTENT_TYPE].to_str().unwrap()
    }

    #[test]
    fn the_first_bytes_decide_the_protocol() {
        for undecided in ["", "G", "GET", "ABCDEFGHIJKLMNOP"] {
            assert_eq!(speech(undecided.as_bytes()), Speech::Undecided, "{undecided}");
        }
        for http in ["GET ", "GET / HTTP/1.1\r\n", "BREW tea"] {
            assert_eq!(speech(http.as_bytes()), Speech::Http, "{http}");
        }
        for other in ["stats\r\n", " GET", "\n", "G\r", "\x16\x03\x01", "ABCDEFGHIJKLMNOPQ"] {
            assert_eq!(speech(other.as_bytes()), Speech::Other, "{other}");
        }
    }

    #[test]
    fn paths_lead_to_their_shapes() {
        for path in ["/", "/stats", "/stats?format=nutcracker"] {
            let response = ask(Method::GET, path, false);
            assert_eq!((response.status(), content_type(&response)), (StatusCode::OK, JSON));
            assert!(response.body().starts_with(b"{\"service\":\"nutcracker\""));
        }
        for path in ["/stats?format=fork", "/stats?x=1&format=fork", "/workers"] {
            assert!(get(path).1.starts_with("[{\"service\":\"nutcracker\""), "{path}");
        }
        let response = ask(Method::GET, "/metrics", false);
        assert_eq!(content_type(&response), "text/plain; version=0.0.4; charset=utf-8");
        assert!(response.body().starts_with(b"# HELP cashew_info "));
        assert_eq!(get("/metrics/").0, StatusCode::NOT_FOUND);
        assert_eq!(get("/history.json?pool=none").0, StatusCode::NOT_FOUND);
        for path in ["/events.json", "/slow.json", "/hot.json"] {
            assert_eq!(content_type(&ask(Method::GET, path, false)), JSON, "{path}");
        }
        let (status, why) = get("/hot.json?by=luck");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(why, "by is one of requests, bytes, time and size\n");
        assert!(get("/state.json").1.starts_with("{\"version\":\"1.2.3\""));
    }

    #[test]
    fn browsers_get_a_page_at_the_root_alone() {
        let page = ask(Method::GET, "/", true);
        assert_eq!(content_type(&page), "text/html; charset=utf-8");
        let policy = page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"));
        for path in ["/stats", "/?format=fork", "/state.json"] {
            assert_eq!(content_type(&ask(Method::GET, path, true)), JSON, "{path}");
        }
        let accepts = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            accepts_html(&headers)
        };
        assert!(accepts("text/html,application/xhtml+xml,*/*;q=0.8"));
        assert!(accepts("image/png, Text/HTML;q=0.9"));
        assert!(!accepts("*/*") && !accepts("application/json") && !accepts("text/htmlx"));
        assert!(!accepts_html(&HeaderMap::new()));
    }

    #[test]
    fn other_methods_are_refused() {
        let refused = ask(Method::POST, "/stats", false);
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()[header::ALLOW], "GET, HEAD");
    }

    #[test]
    fn healthy_while_one_worker_beats() {
        let (source, segments) = source_of(snapshot(&[("a", &["x"])]), 2);
        let status = || {
            let uri = Uri::from_static("/healthz");
            let asked = Asked { method: &Method::GET, uri: &uri, wants_page: false };
            answer(&asked, &source, &History::default()).status().as_u16()
        };
        assert_eq!(status(), 200);
        let workers = [segments.writer(0), segments.writer(1)];
        workers.iter().for_each(|worker| {
            worker.set_pid(1);
            worker.beat(1);
        });
        // The machine may have been up for less than the maximum age of a heartbeat.
        if monotonic_ms() > 60_000 {
            assert_eq!(status(), 503);
        }
        workers[1].beat(monotonic_ms());
        assert_eq!(status(), 200);
    }
}
