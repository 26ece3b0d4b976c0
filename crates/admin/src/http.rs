//! HTTP/1.1 as far as a stats port needs it: one GET or HEAD, one response, close.

use crate::source::Source;
use crate::{events, prometheus, readiness, stats};

/// Longest request with all of its headers.
pub(crate) const REQUEST_SIZE_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
const METHOD_SIZE_MAX: usize = 16;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

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

/// The response, once the request is complete or cannot become valid.
pub(crate) fn answer(input: &[u8], source: &Source) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(input) {
        Ok(httparse::Status::Complete(_)) => {
            let method = request.method.unwrap_or_default();
            Some(route(method, request.path.unwrap_or_default(), source))
        }
        Ok(httparse::Status::Partial) if input.len() < REQUEST_SIZE_MAX => None,
        Ok(httparse::Status::Partial) | Err(_) => Some(bad_request()),
    }
}

pub(crate) fn bad_request() -> Vec<u8> {
    Response::text("400 Bad Request", "bad request\n").encode(false)
}

pub(crate) fn request_timeout() -> Vec<u8> {
    Response::text("408 Request Timeout", "request timeout\n").encode(false)
}

fn route(method: &str, target: &str, source: &Source) -> Vec<u8> {
    let head_only = method == "HEAD";
    if !head_only && method != "GET" {
        return Response::text("405 Method Not Allowed", "only GET and HEAD\n").encode(false);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let response = match path {
        "/" | "/stats" => Response::json(stats::in_format(query, source)),
        "/workers" => Response::json(stats::fork_shape(source).to_line()),
        "/metrics" => Response {
            status: "200 OK",
            content_type: prometheus::CONTENT_TYPE,
            body: prometheus::exposition(source).into_bytes(),
        },
        "/events.json" => match events::json(source, query) {
            Ok(body) => Response::json(body),
            Err(why) => Response::text("400 Bad Request", &format!("{why}\n")),
        },
        "/healthz" if source.is_healthy() => Response::text("200 OK", "ok\n"),
        "/healthz" => Response::text("503 Service Unavailable", "no worker shows that it runs\n"),
        "/readyz" => match readiness::reasons_against(source) {
            reasons if reasons.is_empty() => Response::text("200 OK", "ready\n"),
            reasons => Response::text("503 Service Unavailable", &(reasons.join("\n") + "\n")),
        },
        _ => Response::text(
            "404 Not Found",
            "/stats, /workers, /events.json, /metrics, /healthz and /readyz are here\n",
        ),
    };
    response.encode(head_only)
}

struct Response {
    status: &'static str,
    content_type: &'static str,
    body: Vec<u8>,
}

impl Response {
    fn text(status: &'static str, text: &str) -> Self {
        Self { status, content_type: TEXT, body: text.into() }
    }

    fn json(body: Vec<u8>) -> Self {
        Self { status: "200 OK", content_type: JSON, body }
    }

    fn encode(self, head_only: bool) -> Vec<u8> {
        let Self { status, content_type, body } = self;
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let mut bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             {allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        if !head_only {
            bytes.extend_from_slice(&body);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::monotonic_ms;

    use super::*;
    use crate::testing::{busy_source, snapshot, source_of};

    fn ask(request: &str) -> (String, String) {
        let response = answer(request.as_bytes(), &busy_source()).expect("a whole request");
        let response = String::from_utf8(response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.to_string(), body.to_string())
    }

    fn get(path: &str) -> (String, String) {
        ask(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
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
            let (head, body) = get(path);
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(head.contains("\r\nContent-Type: application/json\r\n"));
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
            assert!(head.ends_with("\r\nConnection: close"));
            assert!(body.starts_with("{\"service\":\"nutcracker\""));
        }
        for path in ["/stats?format=fork", "/stats?x=1&format=fork", "/workers"] {
            assert!(get(path).1.starts_with("[{\"service\":\"nutcracker\""), "{path}");
        }
        let (head, body) = get("/metrics");
        assert!(head.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
        assert!(body.starts_with("# HELP cashew_info "));
        assert!(get("/metrics/").0.starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn head_has_the_length_and_no_body() {
        let (head, body) = ask("HEAD /healthz HTTP/1.1\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("Content-Length: 3\r\n"));
        assert_eq!(body, "");
    }

    #[test]
    fn other_methods_are_refused() {
        let (head, _) = ask("POST /stats HTTP/1.1\r\nContent-Length: 5\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("\r\nAllow: GET, HEAD\r\n"));
    }

    #[test]
    fn malformed_and_oversized_requests_are_refused() {
        for request in ["GET / HTTP/9\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/1.1\r\n\0\r\n\r\n"] {
            assert!(ask(request).0.starts_with("HTTP/1.1 400 "), "{request}");
        }
        let headers: String = (0..=HEADERS_MAX).map(|at| format!("a{at}: b\r\n")).collect();
        assert!(ask(&format!("GET / HTTP/1.1\r\n{headers}\r\n")).0.starts_with("HTTP/1.1 400 "));
        let mut long = b"GET / HTTP/1.1\r\nX: ".to_vec();
        long.resize(REQUEST_SIZE_MAX - 1, b'x');
        assert!(answer(&long, &busy_source()).is_none());
        long.push(b'x');
        assert_eq!(answer(&long, &busy_source()), Some(bad_request()));
    }

    #[test]
    fn any_prefix_of_a_request_waits_for_the_rest() {
        let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
        let source = busy_source();
        for end in 0..request.len() {
            assert!(answer(&request[..end], &source).is_none(), "{end}");
        }
        assert!(answer(request, &source).is_some());
    }

    #[test]
    fn healthy_while_one_worker_beats() {
        let (source, segments) = source_of(snapshot(&[("a", &["x"])]), 2);
        let status = |source: &Source| {
            let response = answer(b"GET /healthz HTTP/1.1\r\n\r\n", source).unwrap();
            String::from_utf8(response).unwrap()[9..12].parse::<u32>().unwrap()
        };
        assert_eq!(status(&source), 200);
        let workers = [segments.writer(0), segments.writer(1)];
        workers.iter().for_each(|worker| {
            worker.set_pid(1);
            worker.beat(1);
        });
        // The machine may have been up for less than the maximum age of a heartbeat.
        if monotonic_ms() > 60_000 {
            assert_eq!(status(&source), 503);
        }
        workers[1].beat(monotonic_ms());
        assert_eq!(status(&source), 200);
    }
}
