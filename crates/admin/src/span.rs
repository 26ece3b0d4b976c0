//! Requests as spans of OpenTelemetry, in the JSON of its protocol: ids in hex, long numbers as text, enumerations
//! as numbers.

use std::net::SocketAddr;

use cashew_config::Snapshot;
use cashew_config::snapshot::{Endpoint, KeysShown, Protocol, Tracing};
use cashew_metrics::{SeenRequest, Times, key_hash};
use serde_json::{Value, json};

use crate::request_tap::{Random, TraceId};

/// The longest name of a command that becomes that of a span: anybody may send anything.
const NAME_MAX: usize = 32;

const KIND_INTERNAL: u8 = 1;
const KIND_SERVER: u8 = 2;
const KIND_CLIENT: u8 = 3;
const STATUS_ERROR: u8 = 2;

/// What the spans of one export have in common.
pub(crate) struct Resource<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) tracing: &'a Tracing,
    pub(crate) version: &'a str,
    pub(crate) host: &'a str,
    /// When the instance started, in seconds since 1970.
    pub(crate) started_at: u64,
}

/// How many spans a request becomes.
pub(crate) fn count(request: &SeenRequest) -> usize {
    1 + parts(request.times).filter(|part| part.us > 0).count()
}

/// The body of an export.
pub(crate) fn export(
    requests: &[(SeenRequest, TraceId)],
    resource: &Resource<'_>,
    random: &mut Random,
) -> Value {
    let spans: Vec<Value> = requests
        .iter()
        .flat_map(|(request, trace_id)| of_request(request, *trace_id, resource, random))
        .collect();
    let Resource { tracing, version, host, started_at, .. } = resource;
    let attributes = vec![
        text("service.name", &tracing.service_name),
        text("service.version", version),
        text("service.instance.id", &format!("{host}:{started_at}")),
        text("host.name", host),
    ];
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes },
        "scopeSpans": [{ "scope": { "name": "cashew", "version": version }, "spans": spans }],
    }] })
}

struct Part {
    name: &'static str,
    us: u64,
}

/// In the order in which they are laid out. The gateway may have been busy before the request was read and before
/// its reply was; only the sum is known.
fn parts(times: Times) -> impl Iterator<Item = Part> {
    let Times { gateway_us, queue_us, server_us, order_us, client_us } = times;
    let all = [
        ("gateway", gateway_us),
        ("queue", queue_us),
        ("server", server_us),
        ("order", order_us),
        ("client", client_us),
    ];
    all.into_iter().map(|(name, us)| Part { name, us })
}

fn of_request(
    request: &SeenRequest,
    trace_id: TraceId,
    resource: &Resource<'_>,
    random: &mut Random,
) -> Vec<Value> {
    let trace = format!("{:032x}", trace_id.0);
    let root = format!("{:016x}", random.number());
    let mut at_us = request.at_us.saturating_sub(request.times.total_us());
    let system = system(request, resource.snapshot);
    let name = operation(request, system);
    let mut span = json!({
        "traceId": trace,
        "spanId": root,
        "name": name,
        "kind": KIND_SERVER,
        "startTimeUnixNano": nanos(at_us),
        "endTimeUnixNano": nanos(request.at_us),
        "attributes": attributes(request, system, &name, resource),
    });
    if !request.failure.is_empty() {
        span["status"] = json!({ "code": STATUS_ERROR, "message": request.failure });
    }
    let mut spans = vec![span];
    for Part { name, us } in parts(request.times).filter(|part| part.us > 0) {
        let is_server = name == "server";
        let mut span = json!({
            "traceId": trace,
            "spanId": format!("{:016x}", random.number()),
            "parentSpanId": root,
            "name": name,
            "kind": if is_server { KIND_CLIENT } else { KIND_INTERNAL },
            "startTimeUnixNano": nanos(at_us),
            "endTimeUnixNano": nanos(at_us + us),
        });
        if is_server {
            let mut attributes = vec![text("db.system.name", system)];
            attributes.extend(server(request, resource.snapshot));
            span["attributes"] = attributes.into();
        }
        at_us += us;
        spans.push(span);
    }
    spans
}

fn attributes(
    request: &SeenRequest,
    system: &str,
    operation: &str,
    resource: &Resource<'_>,
) -> Vec<Value> {
    let mut attributes = vec![
        text("db.system.name", system),
        text("db.operation.name", operation),
        text("cashew.pool", &request.pool),
        number("cashew.worker", request.worker.into()),
        number("cashew.request.size", request.request_bytes),
        number("cashew.reply.size", request.reply_bytes),
    ];
    attributes.push(json!({ "key": "cashew.slow", "value": { "boolValue": request.is_slow } }));
    if !request.failure.is_empty() {
        attributes.push(text("error.type", &request.failure));
    }
    attributes.extend(server(request, resource.snapshot));
    attributes.extend(client(request));
    attributes.extend(key(request, resource.tracing.keys));
    let times = parts(request.times);
    attributes.extend(times.map(|part| number(&format!("cashew.time.{}_us", part.name), part.us)));
    attributes
}

fn client(request: &SeenRequest) -> Vec<Value> {
    let mut attributes = vec![number("cashew.client.id", request.client_id)];
    if !request.client_name.is_empty() {
        let name = String::from_utf8_lossy(&request.client_name);
        attributes.push(text("cashew.client.name", &name));
    }
    if !request.user.is_empty() {
        attributes.push(text("user.name", &request.user));
    }
    match request.client.parse::<SocketAddr>() {
        Ok(address) => {
            attributes.push(text("client.address", &address.ip().to_string()));
            attributes.push(number("client.port", address.port().into()));
            attributes.push(text("network.peer.address", &address.ip().to_string()));
            attributes.push(number("network.peer.port", address.port().into()));
        }
        // A Unix socket.
        Err(_) if !request.client.is_empty() => {
            attributes.push(text("network.peer.address", &request.client));
        }
        Err(_) => {}
    }
    attributes
}

/// Its name, and where it is, if it is still there.
fn server(request: &SeenRequest, snapshot: &Snapshot) -> Vec<Value> {
    if request.server.is_empty() {
        return Vec::new();
    }
    let mut attributes = vec![text("cashew.server", &request.server)];
    let (pool, name) = place(request);
    let pools = snapshot.pools.iter().filter(|it| it.name == pool);
    let found = pools.flat_map(|pool| &pool.servers).find(|server| server.name == name);
    match found.map(|server| &server.endpoint) {
        Some(Endpoint::Tcp { host, port, .. }) => {
            attributes.push(text("server.address", host));
            attributes.push(number("server.port", (*port).into()));
        }
        Some(Endpoint::Unix(path)) => {
            attributes.push(text("server.address", &path.display().to_string()));
        }
        _ => {}
    }
    attributes
}

/// The pool and the name of the server: behind a route it is of another pool.
fn place(request: &SeenRequest) -> (&str, &str) {
    request.server.split_once('/').unwrap_or((&request.pool, &request.server))
}

fn key(request: &SeenRequest, shown: KeysShown) -> Vec<Value> {
    if request.key_hash == 0 || shown == KeysShown::None {
        return Vec::new();
    }
    let mut attributes = vec![text("cashew.key.hash", &format!("{:016x}", request.key_hash))];
    // One that was cut has another digest.
    let mut arguments = request.arguments.iter().skip(1);
    let found = arguments.find(|argument| key_hash(argument) == request.key_hash);
    if let Some(found) = found.filter(|_| shown == KeysShown::Full) {
        attributes.push(text("cashew.key", &String::from_utf8_lossy(found)));
    }
    attributes
}

fn system(request: &SeenRequest, snapshot: &Snapshot) -> &'static str {
    let pool = snapshot.pools.iter().find(|pool| pool.name == request.pool);
    match pool.map(|pool| pool.protocol) {
        Some(Protocol::Memcached) => "memcached",
        Some(Protocol::Tcp) => "tcp",
        Some(Protocol::Redis) | None => "redis",
    }
}

/// Redis' commands are known in upper case, memcached's in lower.
fn operation(request: &SeenRequest, system: &str) -> String {
    let Some(command) = request.arguments.first().filter(|it| !it.is_empty()) else {
        return "unknown".to_owned();
    };
    let is_plain = |byte: &u8| byte.is_ascii_graphic();
    let name: Vec<u8> = command.iter().copied().filter(is_plain).take(NAME_MAX).collect();
    let name = String::from_utf8_lossy(&name);
    if system == "redis" { name.to_ascii_uppercase() } else { name.to_ascii_lowercase() }
}

fn nanos(us: u64) -> String {
    us.saturating_mul(1000).to_string()
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Long numbers are text in the JSON of protocol buffers.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.min(i64::MAX as u64).to_string() } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::snapshot;
    use cashew_config::snapshot::CollectorUrl;

    fn request() -> SeenRequest {
        SeenRequest {
            at_us: 1_700_000_000_000_100,
            pool: "alpha".into(),
            server: "one".into(),
            client: "[::1]:77".into(),
            client_id: 7,
            client_name: b"a\xffp".to_vec(),
            arguments: vec![b"get".to_vec(), b"key".to_vec()],
            times: Times { gateway_us: 10, server_us: 80, client_us: 10, ..Times::default() },
            key_hash: key_hash(b"key"),
            is_slow: true,
            ..SeenRequest::default()
        }
    }

    fn exported(request: SeenRequest, keys: KeysShown) -> Vec<Value> {
        let snapshot = snapshot(&[("alpha", &["one"])]);
        let tracing = Tracing {
            endpoint: CollectorUrl { host: "c".into(), port: 1, path: "/".into() },
            share_percent: 1,
            headers: Vec::new(),
            service_name: "cache".into(),
            keys,
        };
        let resource = Resource {
            snapshot: &snapshot,
            tracing: &tracing,
            version: "1",
            host: "h",
            started_at: 3,
        };
        let all = [(request, TraceId(0xab))];
        let body = export(&all, &resource, &mut Random::new());
        let of_service = &body["resourceSpans"][0];
        assert_eq!(of_service["resource"]["attributes"][0], text("service.name", "cache"));
        let spans = of_service["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        assert_eq!(spans.len(), count(&all[0].0));
        spans
    }

    fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
        let mut all = span["attributes"].as_array().unwrap().iter();
        let found = all.find(|it| it["key"] == key)?;
        found["value"].as_object().unwrap().values().next()
    }

    #[test]
    fn a_request_has_a_span_and_one_for_each_part_of_its_time() {
        let spans = exported(request(), KeysShown::Hash);
        let names: Vec<&str> = spans.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["GET", "gateway", "server", "client"]);
        let kinds: Vec<u64> = spans.iter().map(|it| it["kind"].as_u64().unwrap()).collect();
        assert_eq!(kinds, [2, 1, 3, 1]);
        let times = |span: &Value| {
            let of = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
            let start = 1_700_000_000_000_000_000;
            (of("startTimeUnixNano") - start, of("endTimeUnixNano") - start)
        };
        let times: Vec<_> = spans.iter().map(times).collect();
        assert_eq!(times, [(0, 100_000), (0, 10_000), (10_000, 90_000), (90_000, 100_000)]);
        let root = &spans[0];
        assert_eq!((&root["status"], &root["parentSpanId"]), (&Value::Null, &Value::Null));
        for span in &spans {
            assert_eq!(span["traceId"], "000000000000000000000000000000ab");
            assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
        }
        assert!(spans[1..].iter().all(|it| it["parentSpanId"] == root["spanId"]));
        let expected = [
            ("db.system.name", json!("redis")),
            ("db.operation.name", json!("GET")),
            ("cashew.pool", json!("alpha")),
            ("cashew.server", json!("one")),
            ("server.address", json!("127.0.0.1")),
            ("server.port", json!("6379")),
            ("client.address", json!("::1")),
            ("network.peer.port", json!("77")),
            ("cashew.client.id", json!("7")),
            ("cashew.client.name", json!("a\u{fffd}p")),
            ("cashew.slow", json!(true)),
            ("cashew.time.server_us", json!("80")),
            ("cashew.time.queue_us", json!("0")),
            ("cashew.key.hash", json!(format!("{:016x}", key_hash(b"key")))),
        ];
        for (key, value) in expected {
            assert_eq!(attribute(root, key), Some(&value), "{key}");
        }
        assert_eq!(attribute(&spans[2], "server.port"), Some(&json!("6379")));
    }

    #[test]
    fn keys_are_shown_as_far_as_wanted() {
        let shown = |keys| {
            let spans = exported(request(), keys);
            let of = |key| attribute(&spans[0], key).is_some();
            (of("cashew.key"), of("cashew.key.hash"))
        };
        assert_eq!(shown(KeysShown::None), (false, false));
        assert_eq!(shown(KeysShown::Hash), (false, true));
        assert_eq!(shown(KeysShown::Full), (true, true));
    }

    #[test]
    fn a_failure_is_an_error_and_names_are_short() {
        let failed = SeenRequest {
            failure: "timeout".into(),
            server: String::new(),
            arguments: vec![[b"e\n\x1b".as_slice(), &[b'x'; 500]].concat()],
            times: Times::default(),
            ..request()
        };
        let spans = exported(failed, KeysShown::Hash);
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0]["status"], json!({ "code": 2, "message": "timeout" }));
        assert_eq!(spans[0]["name"], format!("E{}", "X".repeat(31)));
        assert_eq!(attribute(&spans[0], "cashew.server"), None);
        let nameless = SeenRequest { arguments: Vec::new(), ..request() };
        assert_eq!(exported(nameless, KeysShown::Full)[0]["name"], "unknown");
    }
}
