//! Requests that concern all workers, or their clients: this one asks the others, and puts their
//! answers together with its own.
//!
//! What is asked is the client's request itself, which each worker answers by
//! [`Engine::handle_question`], the one that asks too: only its caller knows where connections lead
//! from and to. A client that asks is owed nothing before, and what follows waits for the answer.

use cashew_protocol::Span;
use cashew_protocol::redis::{self as table, Command, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser, Version, encode};

use crate::base::action::{Action, Scope};
use crate::base::id::{ClientId, ConnId, ListenerId, RequestId};
use crate::base::time::Time;
use crate::downstream::client::{Client, State};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::redis::acl::write_acl_log;
use crate::redis::client_list::{NO_KILL, Question, Reach};
use crate::redis::exec_effects::write_with_error;

/// How long other workers' answers are waited for. Whoever passes questions on gives up before.
const PATIENCE_US: u64 = 3_000_000;

/// Longest request that is passed on.
const QUESTION_SIZE_MAX: usize = 64 * 1024;

/// Inquiries that may be open at once.
const OPEN_MAX: usize = 1024;

const UNANSWERED: &str = "ERR not all worker processes of this gateway have answered in time; those \
                          that have did as they were asked";

/// Where a client's connection is, as the kernel has it and Redis writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub peer: String,
    pub local: String,
    pub is_unix: bool,
    pub descriptor: i32,
}

impl Place {
    /// Of a connection that is just about to go.
    pub const UNKNOWN: Self =
        Self { peer: String::new(), local: String::new(), is_unix: false, descriptor: -1 };

    /// The address without the port. All who come by a Unix socket come from the same host.
    pub(crate) fn host(&self) -> &str {
        self.peer.rsplit_once(':').map_or("", |(host, _)| host)
    }
}

/// Whether more answers to a question come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    Awaited,
    /// All have answered.
    None,
    /// No more come, though not all have answered.
    Missing,
}

/// Requests that wait for answers of other workers.
#[derive(Default)]
pub(crate) struct Inquiries {
    open: Vec<WorkerQuery>,
    last_ticket: u64,
}

struct WorkerQuery {
    ticket: u64,
    client: ConnId,
    /// Means nothing once the client is gone.
    request: RequestId,
    answer: Answer,
    /// The client is among those that are to be closed: it is when it has been answered.
    ends: bool,
    since: Time,
}

/// What all workers know together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A line for each client.
    Lines(Vec<u8>),
    Count(u64),
    /// An error when there is nobody to count.
    AnyOf(u64),
    Done,
    /// Whether a client is to be closed that may close nobody else; an error when it is not.
    Oneself {
        is_killed: bool,
        is_old: bool,
    },
    /// The reply itself.
    Encoded(Vec<u8>),
    /// Logs of what users were denied, of which so many entries are shown.
    Denials {
        told: Vec<u8>,
        most: usize,
    },
    /// What a server has answered to EXEC, kept with the request; in this place of it is what all
    /// workers are asked for.
    Executed(u32),
}

impl Answer {
    /// As it is told to other workers.
    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Lines(text) | Self::Encoded(text) | Self::Denials { told: text, .. } => text,
            Self::Count(0) | Self::AnyOf(0) => Vec::new(),
            Self::Done | Self::Oneself { .. } | Self::Executed(_) => Vec::new(),
            Self::Count(count) | Self::AnyOf(count) => count.to_string().into_bytes(),
        }
    }

    /// Bytes allocated.
    fn size(&self) -> usize {
        match self {
            Self::Lines(text) | Self::Encoded(text) | Self::Denials { told: text, .. } => {
                text.capacity()
            }
            Self::Count(_)
            | Self::AnyOf(_)
            | Self::Done
            | Self::Oneself { .. }
            | Self::Executed(_) => 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Lines(text) | Self::Encoded(text) | Self::Denials { told: text, .. } => {
                text.extend_from_slice(bytes);
            }
            Self::Count(count) | Self::AnyOf(count) => {
                let more = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                *count = count.saturating_add(more.unwrap_or(0));
            }
            Self::Oneself { is_killed, .. } => *is_killed |= !bytes.is_empty(),
            Self::Done | Self::Executed(_) => {}
        }
    }

    fn write(&self, now: Time, resp: Version, out: &mut Vec<u8>) {
        match self {
            Self::Lines(lines) => encode::write_verbatim_of(out, resp, *b"txt", &in_order(lines)),
            Self::Encoded(reply) => out.extend_from_slice(reply),
            Self::Denials { told, most } => write_acl_log((told, *most), now, resp, out),
            Self::Count(count) => encode::write_integer(out, *count as i64),
            Self::Oneself { is_killed: false, .. } => encode::write_error(out, NO_KILL.as_bytes()),
            Self::Oneself { is_old: false, .. } => encode::write_integer(out, 1),
            Self::Oneself { .. } => out.extend_from_slice(b"+OK\r\n"),
            Self::AnyOf(0) => out.extend_from_slice(b"-ERR No such client\r\n"),
            Self::AnyOf(_) | Self::Done | Self::Executed(_) => out.extend_from_slice(b"+OK\r\n"),
        }
    }
}

/// Lines by the ids that they begin with. A client that went from one worker to another meanwhile
/// may have been told of by both.
fn in_order(lines: &[u8]) -> Vec<&[u8]> {
    let id = |line: &[u8]| -> u64 {
        let digits = line.iter().skip(b"id=".len()).take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |id, digit| id.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    };
    let mut lines: Vec<(u64, &[u8])> =
        lines.split_inclusive(|&byte| byte == b'\n').map(|line| (id(line), line)).collect();
    lines.sort_by_key(|&(id, _)| id);
    lines.dedup_by_key(|&mut (id, _)| id);
    lines.into_iter().map(|(_, line)| line).collect()
}

impl Engine {
    /// A request about clients, of any worker.
    pub(crate) fn inquire(
        &mut self,
        client: ClientId,
        command: &Command,
        request: &[u8],
        args: &[Span],
    ) -> Plan {
        let question = match Question::parse(command, request, args) {
            Ok(question) => question,
            Err(text) => return self.reply_error(client, &text),
        };
        if let Some(text) = self.refusal_of_question(client, &question) {
            return self.reply_error(client, &text);
        }
        let reach = self.redis_listeners[self.clients[client].listener].reach;
        if self.clients[client].requests > 0 {
            return Plan::Wait;
        }
        if request.len() > QUESTION_SIZE_MAX {
            let text = "ERR the request is too long to be passed on to all worker processes";
            return self.reply_error(client, text);
        }
        // This worker answers at once: and many clients of a cluster may come together.
        if question.scope(reach) == Scope::Everywhere && self.inquiries.open.len() >= OPEN_MAX {
            let text = "ERR too many clients ask all worker processes";
            return self.reply_error(client, text);
        }
        let ticket = self.ask_workers(client, question.scope(reach), request.to_vec());
        let request_ctx = self.new_request(client);
        self.await_workers(client, ticket, request_ctx, question.answer(reach));
        self.clients[client].fenced = true;
        Plan::Done
    }

    /// Why the client may not ask that.
    pub(crate) fn refusal_of_question(
        &self,
        client: ClientId,
        question: &Question<'_>,
    ) -> Option<String> {
        let Client { listener, session, .. } = &self.clients[client];
        let reach = self.redis_listeners[*listener].reach;
        let pool = &self.listeners[*listener];
        if let Some(user) = question.user().filter(|user| pool.users.named(user).is_none()) {
            return Some(format!("ERR No such user '{}'", String::from_utf8_lossy(user)));
        }
        question.refusal(session.id, reach, pool.config.client_pause_max_ms)
    }

    /// Has all workers do what a client wants of them. Nobody waits for their answers.
    pub(crate) fn ask_everybody(&mut self, client: ClientId, question: Vec<u8>) {
        self.ask_workers(client, Scope::Everywhere, question);
    }

    /// The same, but the reply to EXEC that is kept with the request goes to the client when they
    /// have answered; at once, and not by this, if too many others wait.
    pub(crate) fn ask_before_answer(
        &mut self,
        client: ClientId,
        request: RequestId,
        place: u32,
        question: Vec<u8>,
    ) -> bool {
        let ticket = self.ask_workers(client, Scope::Everywhere, question);
        let has_room = self.inquiries.open.len() < OPEN_MAX;
        if has_room {
            self.await_workers(client, ticket, request, Answer::Executed(place));
        }
        has_room
    }

    /// Returns what the answers are to be known by.
    fn ask_workers(&mut self, client: ClientId, scope: Scope, request: Vec<u8>) -> u64 {
        self.inquiries.last_ticket += 1;
        let ticket = self.inquiries.last_ticket;
        let (listener, by) = (self.clients[client].listener, self.clients[client].session.id);
        self.actions.push_back(Action::Ask { ticket, scope, listener, by, request });
        ticket
    }

    fn await_workers(&mut self, client: ClientId, ticket: u64, request: RequestId, answer: Answer) {
        let (client, since) = (self.client_conn(client), self.now);
        let worker_query = WorkerQuery { ticket, client, request, answer, ends: false, since };
        self.inquiries.open.push(worker_query);
    }

    /// What a worker, perhaps this one, wants to know about the clients of a pool here, asked by
    /// the request of its client `by`. `place` is asked only about those that are told of.
    pub fn handle_question(
        &mut self,
        listener: ListenerId,
        by: u64,
        request: &[u8],
        place: &dyn Fn(ConnId) -> Place,
        now: Time,
    ) -> Vec<u8> {
        self.now = now;
        let mut parser = RequestParser::default();
        let Parsed::Complete { .. } = parser.parse(request, QUESTION_SIZE_MAX) else {
            return Vec::new();
        };
        let Lookup::Found(command) = table::find(request, parser.args()) else {
            return Vec::new();
        };
        match Question::passed_on(command, request, parser.args()) {
            Ok(question) => self.census(listener, by, &question, place).into_bytes(),
            Err(_) => Vec::new(),
        }
    }

    /// The request of [`Action::Ask`] as other workers are to be asked it.
    pub fn question_for_others(
        &self,
        listener: ListenerId,
        by: u64,
        request: Vec<u8>,
        place: &dyn Fn(ConnId) -> Place,
    ) -> Vec<u8> {
        let mut parser = RequestParser::default();
        let Parsed::Complete { .. } = parser.parse(&request, QUESTION_SIZE_MAX) else {
            return request;
        };
        let Lookup::Found(command) = table::find(&request, parser.args()) else { return request };
        let asker = self.client_called(listener, by).map(|asker| place(self.client_conn(asker)));
        match (Question::parse(command, &request, parser.args()), asker) {
            (Ok(Question::Unblock { id, with_error, .. }), Some(asker)) => {
                Question::unblock_by(id, with_error, asker.host())
            }
            _ => request,
        }
    }

    /// The connection of the pool's client of this id, if it is here.
    pub fn client_of(&self, listener: ListenerId, id: u64) -> Option<ConnId> {
        self.client_called(listener, id).map(|client| self.client_conn(client))
    }

    /// What one worker answered to [`Action::Ask`], this one included.
    pub fn handle_answer(&mut self, ticket: u64, answer: &[u8], rest: Rest, now: Time) {
        self.now = now;
        let mut open = self.inquiries.open.iter_mut();
        let Some(at) = open.position(|worker_query| worker_query.ticket == ticket) else { return };
        let worker_query = &mut self.inquiries.open[at];
        self.bufs.discharge(worker_query.answer.size());
        worker_query.answer.add(answer);
        let size = worker_query.answer.size();
        self.bufs.charge(size);
        if rest != Rest::Awaited || self.is_too_long(at) {
            self.conclude(at, rest);
        }
    }

    /// Whether the client is to be closed for what it has asked for.
    fn is_too_long(&self, at: usize) -> bool {
        let WorkerQuery { client, answer, .. } = &self.inquiries.open[at];
        let client = self.clients.get(client.client(), client.generation());
        client.is_some_and(|client| {
            let limit = self.listeners[client.listener].limits.client_output_max;
            matches!(answer, Answer::Lines(lines) if lines.len() as u64 > limit)
        })
    }

    /// The client that asks is to be closed, as it asked for.
    pub(crate) fn end_asker(&mut self, client: ClientId) {
        let conn = self.client_conn(client);
        let asker = self.inquiries.open.iter_mut().find(|worker_query| worker_query.client == conn);
        if let Some(worker_query) = asker {
            worker_query.ends = true;
        }
    }

    /// Answers what others have not answered in time.
    pub(crate) fn maintain_worker_queries(&mut self) {
        let mut at = 0;
        while at < self.inquiries.open.len() {
            if self.now.micros_since(self.inquiries.open[at].since) < PATIENCE_US {
                at += 1;
            } else {
                self.conclude(at, Rest::Missing);
            }
        }
    }

    fn conclude(&mut self, at: usize, rest: Rest) {
        let WorkerQuery { client: conn, request, answer, ends, .. } =
            self.inquiries.open.swap_remove(at);
        self.bufs.discharge(answer.size());
        let client = conn.client();
        if !self.clients.is_current(client, conn.generation()) {
            return;
        }
        let (resp, now) = (self.resp_of(client), self.now);
        if ends {
            self.clients[client].state = State::Closing;
        }
        if let Answer::Executed(place) = answer {
            return self.pass_executed(request, place, rest);
        }
        self.answer_request(client, request, |out| match rest {
            Rest::Missing => encode::write_error(out, UNANSWERED.as_bytes()),
            Rest::None | Rest::Awaited => answer.write(now, resp, out),
        });
        if self.clients.is_current(client, conn.generation()) {
            self.check_output(client);
        }
    }
}

impl Engine {
    /// All have answered who will: the reply to EXEC may go to the client.
    fn pass_executed(&mut self, request: RequestId, place: u32, rest: Rest) {
        let mut reply = self.take_reply(request);
        if rest == Rest::Missing {
            let room = reply.len() + UNANSWERED.len() + 8;
            let known =
                self.bufs.written(room, |out| write_with_error(&reply, place, UNANSWERED, out));
            self.bufs.give(std::mem::replace(&mut reply, known));
        }
        self.charge(request, reply.len());
        self.deliver_buf(request, reply);
    }
}

impl Question<'_> {
    /// Whom it concerns.
    fn scope(&self, reach: Reach) -> Scope {
        match self {
            Self::Info | Self::Cluster(_) => Scope::Here,
            Self::Kill(_) if !reach.kill => Scope::Here,
            Self::List(_)
            | Self::Kill(_)
            | Self::Pause { .. }
            | Self::Unpause
            | Self::Unblock { .. }
            | Self::AclLog { .. }
            | Self::AclLogReset => Scope::Everywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_are_in_order_and_of_each_client_once() {
        let mut answer = Answer::Lines(Vec::new());
        for bytes in [&b"id=12 a\nid=3 b\n"[..], b"", b"id=3 c\nid=100 d\n"] {
            answer.add(bytes);
        }
        let mut out = Vec::new();
        answer.write(Time::ZERO, Version::Resp2, &mut out);
        assert_eq!(out, b"$24\r\nid=3 b\nid=12 a\nid=100 d\n\r\n");
    }

    #[test]
    fn counts_are_added() {
        let mut answer = Answer::Count(0);
        for bytes in [&b"2"[..], b"", b"not a number", b"40"] {
            answer.add(bytes);
        }
        assert_eq!(answer, Answer::Count(42));
        assert_eq!(answer.into_bytes(), b"42");
        let mut out = Vec::new();
        Answer::AnyOf(0).write(Time::ZERO, Version::Resp3, &mut out);
        assert_eq!(out, b"-ERR No such client\r\n");
    }
}
