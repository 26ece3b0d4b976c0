//! The control API: what operators do and see by HTTP and JSON. [`OPERATIONS`](cashew_api::OPERATIONS) says what there
//! is, the master does it, and what it says is waited for here.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use cashew_api::{
    Action, ActionList, ActionState, BASE, Command, Does, Failure, FailureKind, Misfit, Operation,
    Parameters, RouteQuestion, WAIT_DEFAULT, WAIT_MAX, is_integer, openapi,
};
use cashew_config::snapshot::Global;
use hyper::body::{Body as HttpBody, Bytes};
use hyper::header::{self, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout, timeout_at};

use crate::http::{JSON, keep_or_close, response, role_of, wants_to_stay};
use crate::operate::{Answered, Operations, Refusal};
use crate::query;
use crate::roles::{self, Role};
use crate::server::Hub;

/// The largest body. The master takes it as a message, in which quotes take more room.
const BODY_MAX: usize = 16 << 10;
/// How long a body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the master may take to answer a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const SEE: &str = "GET /api/v1/openapi.json describes what there is";

type Answer = Result<Response<Vec<u8>>, Refused>;

/// An answer that is none.
struct Refused {
    failure: Box<Failure>,
    header: Option<(header::HeaderName, String)>,
}

pub(crate) fn is_at(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// Answers once what is asked for is done, or has been waited for long enough.
pub(crate) async fn respond<B>(
    request: Request<B>,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Response<Vec<u8>>
where
    B: HttpBody<Data = Bytes>,
{
    let (head, body) = request.into_parts();
    let mut has_read_all = body.is_end_stream();
    let answer = answer(&head, body, &mut has_read_all, hub, peer).await;
    let mut response = answer.unwrap_or_else(Refused::shown);
    keep_or_close(&mut response, has_read_all && wants_to_stay(head.version, &head.headers));
    response
}

async fn answer<B>(
    head: &Parts,
    body: B,
    has_read_all: &mut bool,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Answer
where
    B: HttpBody<Data = Bytes>,
{
    let path = head.uri.path();
    check_length(head)?;
    let role = role_of(&head.headers, path, hub, peer);
    let (operation, number) = {
        let source = hub.source();
        let global = &source.snapshot().global;
        check_reader(role, global)?;
        let (operation, number) = find(&head.method, path)?;
        check_operator(operation, role, global, peer)?;
        (operation, number)
    };
    let query = head.uri.query().unwrap_or_default();
    match operation.does {
        Does::Describe => {
            no_parameters(query)?;
            Ok(shown(StatusCode::OK, &openapi(hub.source().version())))
        }
        Does::Actions => {
            no_parameters(query)?;
            let actions = hub.operations.borrow().actions();
            Ok(shown(StatusCode::OK, &ActionList { actions }))
        }
        Does::Action => {
            no_parameters(query)?;
            let number = number.unwrap_or_default();
            match hub.operations.borrow().action(number) {
                Some(action) => Ok(shown(StatusCode::OK, &action)),
                None => {
                    let cause = format!("no action {number} is remembered");
                    Err(Refused::new(FailureKind::NotFound, &cause, operation.remedy))
                }
            }
        }
        Does::Ask(name) => {
            ask(operation, command_of_query(operation, name, query)?, hub, peer).await
        }
        Does::Route => route(operation, &question_of(query)?, hub, peer).await,
        Does::Act(_) => {
            let wait = wait_of(query)?;
            let body = read(body).await?;
            *has_read_all = true;
            act(operation, command_of_body(operation, &body)?, wait, hub, peer).await
        }
    }
}

/// A body in chunks may have had a length as well, which is not seen here: what comes behind it would be another request
/// to some, and part of it to others.
fn check_length(head: &Parts) -> Result<(), Refused> {
    match head.headers.contains_key(header::TRANSFER_ENCODING) {
        true => Err(Refused::new(
            FailureKind::BadRequest,
            "the body comes with Transfer-Encoding",
            "Send it as a whole, with Content-Length",
        )),
        false => Ok(()),
    }
}

/// What the method has at the path.
fn find(method: &Method, path: &str) -> Result<(&'static Operation, Option<u64>), Refused> {
    let rest = path.strip_prefix(BASE).unwrap_or_default();
    let (there, number) = Operation::at(rest);
    if there.is_empty() {
        let cause = format!("there is nothing at {}", path.escape_debug());
        return Err(Refused::new(FailureKind::NotFound, &cause, SEE));
    }
    let method = if method == Method::HEAD { "GET" } else { method.as_str() };
    if let Some(operation) = there.iter().find(|it| it.method == method) {
        return Ok((operation, number));
    }
    let and_head = |method| if method == "GET" { vec![method, "HEAD"] } else { vec![method] };
    let methods: Vec<&str> = there.iter().flat_map(|it| and_head(it.method)).collect();
    let cause = match &methods[..] {
        [method] => format!("the method of {} is {method} only", path.escape_debug()),
        _ => format!("the methods of {} are {} only", path.escape_debug(), methods.join(" and ")),
    };
    let methods = methods.join(", ");
    let refused = Refused::new(FailureKind::MethodNotAllowed, &cause, SEE);
    Err(refused.with(header::ALLOW, methods))
}

fn check_reader(role: Role, global: &Global) -> Result<(), Refused> {
    if global.stats_token.is_none() || role >= Role::Read {
        return Ok(());
    }
    let cause = "this needs stats_token";
    let remedy = "Send the header Authorization: Bearer TOKEN";
    let refused = Refused::new(FailureKind::Unauthorized, cause, remedy);
    Err(refused.with(header::WWW_AUTHENTICATE, "Bearer realm=\"cashew\""))
}

fn check_operator(
    operation: &Operation,
    role: Role,
    global: &Global,
    peer: Option<SocketAddr>,
) -> Result<(), Refused> {
    if operation.role() == cashew_api::Role::Read {
        return Ok(());
    }
    if global.operate_token.is_none() {
        let cause = "nothing can be changed by HTTP, as there is no operate_token";
        let remedy =
            "Set operate_token in global of the configuration, and reload at the control socket";
        return Err(Refused::new(FailureKind::Forbidden, cause, remedy));
    }
    if !roles::may_operate_from(peer, global) {
        let cause = "nothing can be changed from this address";
        let remedy = "Have operate_from of the configuration name it; without operate_from it is loopback alone";
        return Err(Refused::new(FailureKind::Forbidden, cause, remedy));
    }
    if role == Role::Operate {
        return Ok(());
    }
    let cause = "this needs operate_token";
    let remedy = "Send the header Authorization: Bearer TOKEN";
    let refused = Refused::new(FailureKind::Unauthorized, cause, remedy);
    Err(refused.with(header::WWW_AUTHENTICATE, "Bearer realm=\"cashew\""))
}

/// Has the master answer.
async fn ask(
    operation: &Operation,
    command: Command,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Answer {
    let document = asked(operation, &command, hub, peer).await?;
    Ok(response(StatusCode::OK, JSON, in_a_line(document)))
}

/// What the master answers.
async fn asked(
    operation: &Operation,
    command: &Command,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Result<Vec<u8>, Refused> {
    let number = hub.operations.borrow_mut().ask(text_of(command), peer).map_err(Refused::from)?;
    let _asked = Asked { number, hub };
    let look = |operations: &Operations| operations.answer(number);
    let answered: Option<Answered> = wait(hub, Instant::now() + ANSWER_TIMEOUT, look).await;
    match answered {
        Some(Ok(document)) => Ok(document.to_vec()),
        Some(Err(why)) => {
            let is_status = *command == Command::Status;
            let kind = if is_status { FailureKind::Busy } else { FailureKind::BadRequest };
            Err(Refused::new(kind, &why, operation.remedy))
        }
        None => {
            let cause = "the master has not answered in time";
            Err(Refused::new(FailureKind::Busy, cause, operation.remedy))
        }
    }
}

/// Finds out where a key goes.
async fn route(
    operation: &Operation,
    question: &RouteQuestion,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Answer {
    let status = asked(operation, &Command::Status, hub, peer).await?;
    let status = serde_json::from_slice(&status);
    let source = hub.source();
    let (Ok(status), Some(tell)) = (status, source.routes()) else {
        let cause = "how the instance is cannot be read";
        return Err(Refused::new(FailureKind::Busy, cause, operation.remedy));
    };
    match tell(source.snapshot(), &status, question) {
        Ok(routes) => Ok(shown(StatusCode::OK, &routes)),
        Err(why) => Err(Refused::new(FailureKind::BadRequest, &why, operation.remedy)),
    }
}

fn question_of(query: &str) -> Result<RouteQuestion, Refused> {
    let mut parameters = Map::new();
    for (name, value) in query::pairs(query) {
        if parameters.insert(name.to_owned(), value.into()).is_some() {
            let why = format!("the parameter {} is given twice", name.escape_debug());
            return Err(Refused::misfit(&why));
        }
    }
    let question = serde_json::from_value(Value::Object(parameters));
    question.map_err(|error| Refused::misfit(&error.to_string()))
}

/// A question that somebody waits for.
struct Asked<'a> {
    number: u64,
    hub: &'a Hub,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.hub.operations.borrow_mut().give_up(self.number);
    }
}

/// Has the master do something.
async fn act(
    operation: &'static Operation,
    command: Command,
    patience: Duration,
    hub: &Hub,
    peer: Option<SocketAddr>,
) -> Answer {
    let begun = hub.operations.borrow_mut().act(operation.id, text_of(&command), peer);
    let number = begun.map_err(Refused::from)?;
    let has_ended = |operations: &Operations| match operations.action(number) {
        Some(Action { state: ActionState::Running, .. }) => None,
        // Of one that is forgotten already nobody knows.
        action => Some(action),
    };
    let ended = wait(hub, Instant::now() + patience, has_ended).await;
    let action = ended.unwrap_or_else(|| hub.operations.borrow().action(number));
    let Some(action) = action else {
        let cause = format!("action {number} is not remembered any more");
        let remedy = "The audit log says how it has ended";
        return Err(Refused::new(FailureKind::Busy, &cause, remedy));
    };
    match action.state {
        ActionState::Done => Ok(shown(StatusCode::OK, &action)),
        ActionState::Running => {
            let mut response = shown(StatusCode::ACCEPTED, &action);
            if let Ok(location) = HeaderValue::try_from(format!("{BASE}/actions/{number}")) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
        ActionState::Failed => {
            let cause = action.lines.last().cloned().unwrap_or_default();
            let mut refused = Refused::new(FailureKind::Failed, &cause, operation.remedy);
            refused.failure.action = Some(action);
            Err(refused)
        }
    }
}

/// Looks each time that the master has said something. `None` if the time is up.
async fn wait<T>(hub: &Hub, until: Instant, look: impl Fn(&Operations) -> Option<T>) -> Option<T> {
    let told = hub.operations.borrow().told();
    loop {
        let mut next = pin!(told.notified());
        next.as_mut().enable();
        if let Some(found) = look(&hub.operations.borrow()) {
            return Some(found);
        }
        timeout_at(until, next).await.ok()?;
    }
}

async fn read<B: HttpBody<Data = Bytes>>(body: B) -> Result<Vec<u8>, Refused> {
    let too_large = || {
        let cause = format!("the body has more than {BODY_MAX} bytes");
        Refused::new(FailureKind::TooLarge, &cause, "Ask for less at a time")
    };
    let mut body = pin!(body);
    let all = async {
        let mut bytes = Vec::new();
        while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
            let Ok(frame) = frame else {
                let cause = "the body cannot be read";
                return Err(Refused::new(FailureKind::BadRequest, cause, "Send all of it"));
            };
            if let Ok(data) = frame.into_data() {
                bytes.extend_from_slice(&data);
            }
            if bytes.len() > BODY_MAX {
                return Err(too_large());
            }
        }
        Ok(bytes)
    };
    timeout(BODY_TIMEOUT, all).await.unwrap_or_else(|_| {
        let cause = "the body did not come in time";
        Err(Refused::new(FailureKind::Timeout, cause, "Send all of it at once"))
    })
}

/// JSON, or nothing at all.
fn command_of_body(operation: &Operation, body: &[u8]) -> Result<Command, Refused> {
    let parameters = match body.trim_ascii() {
        [] => Map::new(),
        body => match serde_json::from_slice(body) {
            Ok(Parameters(parameters)) => parameters,
            Err(error) => return Err(Refused::misfit(&no_parameters_in(body, &error))),
        },
    };
    operation.command(parameters).map_err(Refused::from)
}

/// What is wrong with a body.
fn no_parameters_in(body: &[u8], error: &serde_json::Error) -> String {
    match serde_json::from_slice::<Value>(body) {
        Err(error) => format!("the body is no JSON: {error}"),
        Ok(Value::Object(_)) => error.to_string(),
        Ok(_) => "the body is JSON, but no object".to_owned(),
    }
}

fn command_of_query(operation: &Operation, name: &str, query: &str) -> Result<Command, Refused> {
    let mut parameters = Map::new();
    for (parameter, value) in query::pairs(query) {
        let value = match is_integer(name, parameter) {
            true => match value.parse::<u64>() {
                Ok(number) => number.into(),
                Err(_) => {
                    return Err(Refused::misfit(&format!("the parameter {parameter} is a number")));
                }
            },
            false => Value::from(value),
        };
        if parameters.insert(parameter.to_owned(), value).is_some() {
            return Err(Refused::twice(parameter));
        }
    }
    operation.command(parameters).map_err(Refused::from)
}

/// What is at a path, with a query and a body. A command is the same when the master has read it.
pub(crate) fn read_foreign(path: &str, query: &str, body: &[u8]) {
    _ = (wait_of(query).is_ok(), no_parameters(query).is_ok(), question_of(query).is_ok());
    for method in [Method::GET, Method::POST, Method::DELETE] {
        let Ok((operation, _)) = find(&method, path) else { continue };
        let Some(name) = operation.command_name() else { continue };
        let of_query = command_of_query(operation, name, query);
        let commands = [of_query, command_of_body(operation, body)];
        for command in commands.into_iter().filter_map(Result::ok) {
            let read: Result<Command, _> = serde_json::from_str(&text_of(&command));
            assert_eq!(read.ok().as_ref(), Some(&command));
            assert_eq!(Operation::of(&command).map(|(it, _)| it.id), Some(operation.id));
        }
    }
}

fn wait_of(query: &str) -> Result<Duration, Refused> {
    let mut wait = None;
    for (name, value) in query::pairs(query) {
        let seconds = value.parse().ok().filter(|seconds| *seconds <= WAIT_MAX);
        wait = match (name, seconds) {
            ("wait", Some(_)) if wait.is_some() => return Err(Refused::twice(name)),
            ("wait", Some(seconds)) => Some(seconds),
            ("wait", None) => {
                return Err(Refused::misfit(&format!(
                    "the parameter wait is a number from 0 to {WAIT_MAX}"
                )));
            }
            _ => return Err(Refused::no_parameter(name)),
        };
    }
    Ok(Duration::from_secs(wait.unwrap_or(WAIT_DEFAULT)))
}

fn no_parameters(query: &str) -> Result<(), Refused> {
    query::pairs(query).next().map_or(Ok(()), |(name, _)| Err(Refused::no_parameter(name)))
}

fn text_of(command: &Command) -> String {
    serde_json::to_string(command).unwrap_or_default()
}

fn shown(status: StatusCode, document: &impl Serialize) -> Response<Vec<u8>> {
    response(status, JSON, in_a_line(serde_json::to_vec(document).unwrap_or_default()))
}

fn in_a_line(mut json: Vec<u8>) -> Vec<u8> {
    json.push(b'\n');
    json
}

impl Refused {
    fn new(kind: FailureKind, cause: &str, remedy: &str) -> Self {
        Self { failure: Box::new(Failure::new(kind, cause, remedy)), header: None }
    }

    fn misfit(why: &str) -> Self {
        Self::new(FailureKind::BadRequest, why, SEE)
    }

    fn no_parameter(name: &str) -> Self {
        Self::misfit(&format!("there is no parameter {}", name.escape_debug()))
    }

    fn twice(name: &str) -> Self {
        Self::misfit(&format!("the parameter {} is there twice", name.escape_debug()))
    }

    fn with(self, name: header::HeaderName, value: impl Into<String>) -> Self {
        Self { header: Some((name, value.into())), ..self }
    }

    fn shown(self) -> Response<Vec<u8>> {
        let status = StatusCode::from_u16(self.failure.error.status());
        let mut response =
            shown(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &self.failure);
        if let Some((name, value)) = self.header
            && let Ok(value) = HeaderValue::try_from(value)
        {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<Misfit> for Refused {
    fn from(Misfit(why): Misfit) -> Self {
        Self::misfit(&why)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Busy => Self::new(FailureKind::Busy, "the master is busy", "Try again"),
            Refusal::Wrong(why) => Self::misfit(&why),
            Refusal::NotThere => Self::new(FailureKind::NotFound, "there is no such thing", SEE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_of_their_types() {
        let operation = |path| Operation::at(path).0[0];
        let events = |query| command_of_query(operation("/events"), "events", query);
        assert_eq!(
            events("since=7&kind=reload_done").ok(),
            Some(Command::Events { since: 7, kind: Some("reload_done".to_owned()) })
        );
        for query in ["since=x", "since=-1", "x=1", "command=reload", "since=1&since=2"] {
            let refused = events(query).err().unwrap();
            assert_eq!(refused.failure.error, FailureKind::BadRequest, "{query}");
        }
        let reload = |body: &str| command_of_body(operation("/reload"), body.as_bytes());
        assert_eq!(reload("").ok(), Some(Command::Reload { dry_run: false }));
        assert_eq!(reload(" {\"dry_run\":true}\n").ok(), Some(Command::Reload { dry_run: true }));
        for (body, words) in [
            ("[]", "The body is JSON, but no object"),
            ("{", "The body is no JSON"),
            ("1", "The body is JSON, but no object"),
            ("{\"pool\":1}", "There is no parameter pool"),
            ("{\"dry_run\":true,\"dry_run\":false}", "The parameter dry_run is there twice"),
        ] {
            let refused = reload(body).err().unwrap();
            assert!(refused.failure.cause.starts_with(words), "{body}: {:?}", refused.failure);
        }
        assert_eq!(wait_of("").ok(), Some(Duration::from_secs(WAIT_DEFAULT)));
        assert_eq!(wait_of("wait=0").ok(), Some(Duration::ZERO));
        for query in ["wait=61", "await=1", "wait=1&wait=2"] {
            assert!(wait_of(query).is_err(), "{query}");
        }
    }

    #[test]
    fn questions_for_routes_have_a_key_and_nothing_else_that_is_unknown() {
        let question = question_of("key=a%20b&pool=p&as_if=s%3Ddown").ok().unwrap();
        assert_eq!((&*question.key, question.pool.as_deref()), ("a b", Some("p")));
        assert_eq!(question.as_if.as_deref(), Some("s=down"));
        for query in ["", "pool=p", "key=a&x=1", "key=a&key=b"] {
            let refused = question_of(query).err().unwrap();
            assert_eq!(refused.failure.error, FailureKind::BadRequest, "{query}");
        }
    }

    #[test]
    fn methods_are_those_of_the_path() {
        let found = |method, path| find(&method, path).map(|(it, number)| (it.id, number));
        assert_eq!(found(Method::HEAD, "/api/v1/status").ok(), Some(("status", None)));
        assert_eq!(found(Method::GET, "/api/v1/actions/7").ok(), Some(("action", Some(7))));
        let refused = found(Method::DELETE, "/api/v1/reload").err().unwrap();
        assert_eq!(refused.failure.error, FailureKind::MethodNotAllowed);
        let response = refused.shown();
        assert_eq!(
            (response.status().as_u16(), response.headers()[header::ALLOW].to_str().unwrap()),
            (405, "POST")
        );
        let refused = found(Method::POST, "/api/v1/status").err().unwrap();
        assert!(refused.failure.cause.contains("are GET and HEAD only"), "{:?}", refused.failure);
        assert_eq!(refused.shown().headers()[header::ALLOW], "GET, HEAD");
        for path in ["/api", "/api/", "/api/v2/status", "/api/v1", "/api/v1/upgrade"] {
            assert!(is_at(path));
            let refused = found(Method::GET, path).err().unwrap();
            assert_eq!(refused.failure.error, FailureKind::NotFound, "{path}");
        }
        assert!(!is_at("/apis") && !is_at("/stats"));
    }
}
