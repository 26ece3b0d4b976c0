//! What operators do by HTTP: the master carries it out, and what it says of that is kept here to be asked for.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use cashew_api::ActionState;
use cashew_process::log::rfc3339_us;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::query;

/// Actions that are remembered.
const ACTIONS_MAX: usize = 64;
/// Lines of one action, and characters of each.
const LINES_MAX: usize = 100;
const LINE_SIZE_MAX: usize = 1000;

/// Passes a command on to the master: its number, what it is as the control socket has it, and who asks.
pub type SendCommand = Box<dyn Fn(u64, String, String) -> io::Result<()>>;

/// What the master says of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub number: u64,
    pub text: String,
    /// Set at the end.
    pub is_ok: Option<bool>,
    /// At the end: there was nothing to change.
    pub unchanged: bool,
    /// What was asked for, as JSON.
    pub document: Option<Vec<u8>>,
}

/// The document that was asked for, or why there is none.
pub(crate) type Answered = Result<Rc<Vec<u8>>, String>;

pub(crate) struct Operations {
    send: SendCommand,
    last: u64,
    actions: VecDeque<Action>,
    /// By number.
    questions: BTreeMap<u64, Question>,
    /// Whoever waits is woken when the master has said something.
    told: Rc<Notify>,
}

/// What is only to be answered. Those who ask the same at one time get one answer.
struct Question {
    command: String,
    waiting: usize,
    last_line: String,
    answer: Option<Answered>,
}

struct Action {
    number: u64,
    at_us: u64,
    name: &'static str,
    by: String,
    lines: Vec<String>,
    is_ok: Option<bool>,
    unchanged: bool,
}

/// Why nothing is done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotThere,
    Wrong(String),
    /// The master has no time to hear it.
    Busy,
}

impl Operations {
    pub(crate) fn new(send: SendCommand) -> Self {
        let (actions, questions) = (VecDeque::new(), BTreeMap::new());
        Self { send, last: 0, actions, questions, told: Rc::default() }
    }

    /// Has something done that is asked for at this path. Returns what is known of it.
    pub(crate) fn begin(
        &mut self,
        path: &str,
        query: &str,
        peer: Option<SocketAddr>,
    ) -> Result<Value, Refusal> {
        let (name, command) = command(path, query)?;
        let number = self.act(name, command.to_string(), peer)?;
        Ok(self.find(number).map_or(Value::Null, Action::shown))
    }

    /// Has a command carried out. Returns the number of the action.
    pub(crate) fn act(
        &mut self,
        name: &'static str,
        command: String,
        peer: Option<SocketAddr>,
    ) -> Result<u64, Refusal> {
        let by = self.send(command, peer)?;
        if self.actions.len() == ACTIONS_MAX {
            self.actions.pop_front();
        }
        let (number, at_us) = (self.last, now_us());
        let (lines, is_ok, unchanged) = (Vec::new(), None, false);
        self.actions.push_back(Action { number, at_us, name, by, lines, is_ok, unchanged });
        Ok(number)
    }

    /// Has a command answered. Returns the number of the question, to be [given up](Self::give_up).
    pub(crate) fn ask(
        &mut self,
        command: String,
        peer: Option<SocketAddr>,
    ) -> Result<u64, Refusal> {
        let is_same = |it: &Question| it.command == command && it.answer.is_none();
        if let Some((&number, question)) = self.questions.iter_mut().find(|(_, it)| is_same(it)) {
            question.waiting += 1;
            return Ok(number);
        }
        self.send(command.clone(), peer)?;
        let question = Question { command, waiting: 1, last_line: String::new(), answer: None };
        self.questions.insert(self.last, question);
        Ok(self.last)
    }

    pub(crate) fn answer(&self, number: u64) -> Option<Answered> {
        self.questions.get(&number)?.answer.clone()
    }

    /// One of those who have asked it waits no more.
    pub(crate) fn give_up(&mut self, number: u64) {
        if let Some(question) = self.questions.get_mut(&number) {
            question.waiting -= 1;
            if question.waiting == 0 {
                self.questions.remove(&number);
            }
        }
    }

    pub(crate) fn told(&self) -> Rc<Notify> {
        Rc::clone(&self.told)
    }

    pub(crate) fn action(&self, number: u64) -> Option<cashew_api::Action> {
        self.find(number).map(Action::described)
    }

    /// The newest first.
    pub(crate) fn actions(&self) -> Vec<cashew_api::Action> {
        self.actions.iter().rev().map(Action::described).collect()
    }

    fn find(&self, number: u64) -> Option<&Action> {
        self.actions.iter().find(|it| it.number == number)
    }

    /// Under the next number. Returns who has asked.
    fn send(&mut self, command: String, peer: Option<SocketAddr>) -> Result<String, Refusal> {
        self.last = self.last.max(now_us()) + 1;
        let by = peer.map_or_else(|| "an address that is gone".to_owned(), |peer| peer.to_string());
        (self.send)(self.last, command, by.clone()).map_err(|_| Refusal::Busy)?;
        Ok(by)
    }

    pub(crate) fn said(&mut self, said: Said) {
        self.told.notify_waiters();
        if let Some(question) = self.questions.get_mut(&said.number) {
            return question.said(said);
        }
        let Some(action) = self.actions.iter_mut().find(|it| it.number == said.number) else {
            return;
        };
        // The last one says why it has failed.
        let has_room = action.lines.len() < LINES_MAX || said.is_ok.is_some();
        if !said.text.is_empty() && has_room && action.is_ok.is_none() {
            action.lines.push(said.text.chars().take(LINE_SIZE_MAX).collect());
        }
        action.is_ok = action.is_ok.or(said.is_ok);
        action.unchanged |= said.unchanged;
    }

    /// The newest first, or only that of a number.
    pub(crate) fn listing(&self, query: &str) -> Result<Value, String> {
        let mut number = None;
        for (name, value) in query::pairs(query) {
            match name {
                "id" => number = Some(value.parse().map_err(|_| "id is a number".to_owned())?),
                _ => return Err(format!("there is no parameter {name}")),
            }
        }
        let wanted = |it: &&Action| number.is_none_or(|number: u64| it.number == number);
        let shown: Vec<Value> =
            self.actions.iter().rev().filter(wanted).map(Action::shown).collect();
        Ok(json!({ "actions": shown }))
    }
}

impl Question {
    fn said(&mut self, said: Said) {
        if !said.text.is_empty() {
            self.last_line = said.text;
        }
        self.answer = match (said.is_ok, said.document) {
            (None, _) => return,
            (Some(true), Some(document)) => Some(Ok(Rc::new(document))),
            (Some(true), None) => Some(Err("the answer is empty".to_owned())),
            (Some(false), _) => Some(Err(std::mem::take(&mut self.last_line))),
        };
    }
}

impl Action {
    fn described(&self) -> cashew_api::Action {
        cashew_api::Action {
            id: self.number,
            time: rfc3339_us(self.at_us),
            operation: self.name.to_owned(),
            by: self.by.clone(),
            state: match self.is_ok {
                None => ActionState::Running,
                Some(true) => ActionState::Done,
                Some(false) => ActionState::Failed,
            },
            changed: self.is_ok.map(|is_ok| is_ok && !self.unchanged),
            lines: self.lines.clone(),
        }
    }

    fn shown(&self) -> Value {
        let state = match self.is_ok {
            None => "running",
            Some(true) => "done",
            Some(false) => "failed",
        };
        json!({
            "id": self.number,
            "time": rfc3339_us(self.at_us),
            "action": self.name,
            "by": self.by,
            "state": state,
            "lines": self.lines,
        })
    }
}

/// The command for the master. Another program than the one that runs is for the control socket alone.
pub(crate) fn command(path: &str, query: &str) -> Result<(&'static str, Value), Refusal> {
    let (mut pool, mut group, mut server, mut level) = (None, None, None, None);
    let (mut force, mut dry_run) = (false, false);
    let is_true = |name: &str, value: &str| match value {
        "" | "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(Refusal::Wrong(format!("{name} is true or false"))),
    };
    for (name, value) in query::pairs(query) {
        match (path, name) {
            ("/operate/reload", "dry_run") => dry_run = is_true(name, &value)?,
            ("/operate/failover", "pool") => pool = Some(value),
            ("/operate/failover", "group") => group = Some(value),
            ("/operate/failover", "server") => server = Some(value),
            ("/operate/failover", "force") => force = is_true(name, &value)?,
            ("/operate/log-level", "level") => level = value.parse::<u8>().ok(),
            _ => return Err(Refusal::Wrong(format!("there is no parameter {name}"))),
        }
    }
    match path {
        "/operate/reload" => Ok(("reload", json!({ "command": "reload", "dry_run": dry_run }))),
        "/operate/failover" => {
            let (Some(pool), Some(server)) = (pool, server) else {
                return Err(Refusal::Wrong("a failover needs pool and server".to_owned()));
            };
            let command = json!({
                "command": "failover",
                "pool": pool,
                "group": group,
                "server": server,
                "force": force,
            });
            Ok(("failover", command))
        }
        "/operate/log-level" => match level.filter(|level| *level <= 11) {
            Some(level) => Ok(("log-level", json!({ "command": "log_level", "level": level }))),
            None => Err(Refusal::Wrong("level is a number from 0 to 11".to_owned())),
        },
        _ => Err(Refusal::NotThere),
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn commands_are_sent_and_their_answers_kept() {
        let sent = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&sent);
        let mut operations = Operations::new(Box::new(move |number, command, by| {
            log.borrow_mut().push((number, command, by));
            Ok(())
        }));
        let peer = Some("127.0.0.1:5".parse().unwrap());
        let begun = operations.begin("/operate/reload", "", peer).unwrap();
        let (number, command, by) = sent.borrow()[0].clone();
        assert_eq!((begun["id"].as_u64(), by.as_str()), (Some(number), "127.0.0.1:5"));
        assert_eq!(command, r#"{"command":"reload","dry_run":false}"#);
        assert_eq!(begun["state"], "running");
        let said = |number, text: &str, is_ok| Said {
            number,
            text: text.into(),
            is_ok,
            unchanged: false,
            document: None,
        };
        operations.said(said(number, "a: b", None));
        operations.said(said(number, "no", Some(false)));
        operations.said(said(1, "of another", Some(true)));
        let listing = operations.listing(&format!("id={number}")).unwrap();
        let action = &listing["actions"][0];
        assert_eq!(
            (&action["state"], &action["lines"]),
            (&json!("failed"), &json!(["a: b", "no"]))
        );
        let query = "pool=p&server=s%201&force";
        operations.begin("/operate/failover", query, None).unwrap();
        assert!(sent.borrow()[1].1.contains(r#""server":"s 1""#), "{sent:?}");
        assert!(sent.borrow()[1].0 > number);
        for (path, query) in [
            ("/operate/failover", "pool=p"),
            ("/operate/log-level", "level=12"),
            ("/operate/reload", "pool=p"),
            ("/operate/reload", "dry_run=perhaps"),
        ] {
            let refused = operations.begin(path, query, None);
            assert!(matches!(refused, Err(Refusal::Wrong(_))), "{path} {query}");
        }
        assert_eq!(operations.begin("/operate/upgrade", "", None), Err(Refusal::NotThere));
        assert_eq!(operations.listing("").unwrap()["actions"].as_array().unwrap().len(), 2);
        assert!(operations.listing("x=1").is_err() && operations.listing("id=x").is_err());
        for _ in 0..2 * ACTIONS_MAX {
            operations.begin("/operate/reload", "", None).unwrap();
        }
        assert_eq!(operations.actions.len(), ACTIONS_MAX);
    }

    #[test]
    fn those_who_ask_the_same_at_one_time_get_one_answer() {
        let sent = Rc::new(RefCell::new(0));
        let count = Rc::clone(&sent);
        let mut operations = Operations::new(Box::new(move |_, _, _| {
            *count.borrow_mut() += 1;
            Ok(())
        }));
        let ask = |operations: &mut Operations, command: &str| {
            operations.ask(command.to_owned(), None).unwrap()
        };
        let number = ask(&mut operations, "status");
        assert_eq!(ask(&mut operations, "status"), number);
        let other = ask(&mut operations, "events");
        assert!(other > number && *sent.borrow() == 2);
        let (unchanged, is_ok) = (false, Some(true));
        let document = Some(b"{}".to_vec());
        operations.said(Said { number, text: String::new(), is_ok, unchanged, document });
        operations.said(Said {
            number: other,
            text: "no such kind".into(),
            is_ok: Some(false),
            unchanged,
            document: None,
        });
        assert_eq!(operations.answer(number), Some(Ok(Rc::new(b"{}".to_vec()))));
        assert_eq!(operations.answer(other), Some(Err("no such kind".to_owned())));
        // What has been answered is asked anew.
        assert!(ask(&mut operations, "status") > other);
        operations.give_up(number);
        assert!(operations.answer(number).is_some());
        operations.give_up(number);
        assert_eq!(operations.answer(number), None);
        assert!(operations.actions().is_empty());
    }

    #[test]
    fn why_it_has_failed_is_kept_whatever_was_said_before() {
        let mut operations = Operations::new(Box::new(|_, _, _| Ok(())));
        let number = operations.begin("/operate/reload", "", None).unwrap()["id"].as_u64().unwrap();
        let mut say = |text: String, is_ok| {
            let (unchanged, document) = (false, None);
            operations.said(Said { number, text, is_ok, unchanged, document });
        };
        (0..2 * LINES_MAX).for_each(|at| say(at.to_string(), None));
        say("no".into(), Some(false));
        let lines = operations.listing("").unwrap()["actions"][0]["lines"].clone();
        let lines = lines.as_array().unwrap();
        assert_eq!((lines.len(), lines.last().unwrap()), (LINES_MAX + 1, &json!("no")));
    }
}
