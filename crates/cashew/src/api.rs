//! Commands for an instance elsewhere, by its control API.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::thread;
use std::time::Duration;

use cashew_api::status::Status;
use cashew_api::{
    Action, ActionState, Answer, BASE, Command, EventList, Failure, Operation, WAIT_MAX,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::stats_port::{TOKEN_VARIABLE, address_of, encoded};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest that an answer is waited for, which waits itself for the end of what was asked for.
const TIMEOUT: Duration = Duration::from_secs(WAIT_MAX + 10);
/// How long an answer waits there. New lines are printed as often.
const WAIT: u64 = 2;
const PAUSE: Duration = Duration::from_millis(500);
const RESPONSE_MAX: u64 = 64 << 20;

/// Does the command there. Calls `on_answer` as the control socket would: with each line, with what was asked for, and
/// with the end.
pub(crate) fn ask(
    url: &str,
    token_file: Option<&Path>,
    command: &Command,
    on_answer: &mut impl FnMut(Answer),
) -> Result<(), String> {
    let Some((operation, parameters)) = Operation::of(command) else {
        return Err("this is for the control socket alone: run it where the instance is".to_owned());
    };
    let there = There { address: address_of(url)?, token: token(token_file)? };
    match command {
        Command::Status => {
            let status = there.get(operation, &parameters)?;
            on_answer(Answer::Status(Box::new(status)));
        }
        Command::Events { .. } => {
            let EventList { events } = there.get(operation, &parameters)?;
            on_answer(Answer::Events(events));
        }
        _ => return there.act(operation, parameters, on_answer),
    }
    on_answer(Answer::Done(false));
    Ok(())
}

/// How the instance there is.
pub(crate) fn status(url: &str, token_file: Option<&Path>) -> Result<Status, String> {
    let mut status = None;
    ask(url, token_file, &Command::Status, &mut |answer| {
        if let Answer::Status(its) = answer {
            status = Some(*its);
        }
    })?;
    status.ok_or_else(|| "no status came".to_owned())
}

/// The token in the file, or in the environment.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<String>, String> {
    let Some(file) = file else { return Ok(std::env::var(TOKEN_VARIABLE).ok()) };
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(Some(text.trim().to_owned()))
}

struct There {
    address: String,
    token: Option<String>,
}

impl There {
    fn get<T: DeserializeOwned>(
        &self,
        operation: &Operation,
        parameters: &Map<String, Value>,
    ) -> Result<T, String> {
        let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let query: Vec<String> =
            parameters.iter().map(|(name, it)| format!("{name}={}", encoded(&value(it)))).collect();
        let target = format!("{BASE}{}?{}", operation.path, query.join("&"));
        let (status, body) = self.say("GET", &target, "")?;
        match status {
            200 => read(&body),
            _ => Err(failure(status, &body).0),
        }
    }

    fn act(
        &self,
        operation: &Operation,
        parameters: Map<String, Value>,
        on_answer: &mut impl FnMut(Answer),
    ) -> Result<(), String> {
        let target = format!("{BASE}{}?wait={WAIT}", operation.path);
        let body = Value::Object(parameters).to_string();
        let (status, answer) = self.say(operation.method, &target, &body)?;
        let (mut action, mut why) = acted(status, &answer)?;
        let mut shown = 0;
        loop {
            // The last line of what has failed is why.
            let lines = action.lines.len() - usize::from(why.is_some()).min(action.lines.len());
            for line in action.lines.iter().take(lines).skip(shown) {
                on_answer(Answer::Say(line.clone()));
            }
            shown = lines.max(shown);
            match (action.state, why) {
                (ActionState::Done, _) => {
                    on_answer(Answer::Done(action.changed.unwrap_or(true)));
                    return Ok(());
                }
                (ActionState::Failed, why) => {
                    let last = action.lines.last().cloned().unwrap_or_default();
                    on_answer(Answer::Failed(why.unwrap_or(last)));
                    return Ok(());
                }
                (ActionState::Running, _) => {}
            }
            thread::sleep(PAUSE);
            let target = format!("{BASE}/actions/{}", action.id);
            let (status, answer) = self.say("GET", &target, "").map_err(|why| {
                format!("{why}; what was asked for goes on, and the audit log says how it ends")
            })?;
            action = match status {
                200 => read(&answer)?,
                _ => return Err(failure(status, &answer).0),
            };
            why = (action.state == ActionState::Failed)
                .then(|| action.lines.last().cloned().unwrap_or_default());
        }
    }

    /// HTTP/1.0, whose answer ends with the connection.
    fn say(&self, method: &str, target: &str, body: &str) -> Result<(u16, Vec<u8>), String> {
        let address = &self.address;
        let failed = |error: std::io::Error| format!("http://{address}: {error}");
        let mut last = format!("http://{address}: it has no address");
        for at in address.to_socket_addrs().map_err(failed)? {
            let mut stream = match TcpStream::connect_timeout(&at, CONNECT_TIMEOUT) {
                Ok(stream) => stream,
                Err(error) => {
                    last = failed(error);
                    continue;
                }
            };
            stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
            stream.set_write_timeout(Some(CONNECT_TIMEOUT)).map_err(failed)?;
            let token = self.token.as_ref();
            let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
            let request = format!(
                "{method} {target} HTTP/1.0\r\nHost: {address}\r\n{}Content-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                token.unwrap_or_default(),
                body.len()
            );
            stream.write_all(request.as_bytes()).map_err(failed)?;
            let mut response = Vec::new();
            stream.take(RESPONSE_MAX).read_to_end(&mut response).map_err(failed)?;
            return parted(response).map_err(|why| format!("http://{address}: {why}"));
        }
        Err(last)
    }
}

/// The status and the body.
fn parted(mut response: Vec<u8>) -> Result<(u16, Vec<u8>), String> {
    let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.ok_or("the answer is not HTTP: is it the stats port?")?;
    let head = String::from_utf8_lossy(&response[..end]).into_owned();
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or("the answer is not HTTP: is it the stats port?")?;
    response.drain(..end + 4);
    Ok((status, response))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the answer is another one: {error}"))
}

/// An action, and why it has failed if it has.
fn acted(status: u16, body: &[u8]) -> Result<(Action, Option<String>), String> {
    match status {
        200 | 202 => Ok((read(body)?, None)),
        _ => match failure(status, body) {
            (why, Some(action)) => Ok((action, Some(why))),
            (why, None) => Err(why),
        },
    }
}

/// What is wrong and what to do, and what was begun.
fn failure(status: u16, body: &[u8]) -> (String, Option<Action>) {
    match serde_json::from_slice(body) {
        Ok(Failure { cause, .. }) if status == 401 => {
            (format!("{cause} Give it by --token-file, or in {TOKEN_VARIABLE}."), None)
        }
        Ok(Failure { cause, remedy, action, .. }) => (format!("{cause} {remedy}"), action),
        Err(_) => (format!("status {status}: is it cashew, and as new as this one?"), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_have_a_status_and_a_body() {
        let response = b"HTTP/1.1 202 Accepted\r\nA: b\r\n\r\n{}".to_vec();
        assert_eq!(parted(response).unwrap(), (202, b"{}".to_vec()));
        for response in [&b"{\"service\":1}\n"[..], b"", b"HTTP/1.1\r\n\r\n"] {
            assert!(parted(response.to_vec()).is_err());
        }
    }

    #[test]
    fn failures_say_what_to_do() {
        let body = br#"{"error":"busy","cause":"The master is busy.","remedy":"Try again."}"#;
        assert_eq!(acted(503, body).unwrap_err(), "The master is busy. Try again.");
        assert!(acted(404, b"not here\n").unwrap_err().contains("404"));
        let body = br#"{"error":"failed","cause":"No.","remedy":"Do.","action":{"id":1,"time":"",
            "operation":"reload","by":"","state":"failed","changed":false,"lines":["no"]}}"#;
        let (action, why) = acted(409, body).unwrap();
        assert_eq!((action.id, why.as_deref()), (1, Some("No. Do.")));
    }

    #[test]
    fn another_program_is_for_the_control_socket_alone() {
        let command = Command::Upgrade { binary: None };
        let why = ask("http://127.0.0.1:1", None, &command, &mut |_| {}).unwrap_err();
        assert!(why.contains("control socket"), "{why}");
    }
}
