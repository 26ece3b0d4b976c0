//! Requests that concern the clients of all workers: this one asks the others, and puts their
//! answers together with its own.

use crate::action::Action;
use crate::clients::Plan;
use crate::engine::Engine;
use crate::id::ConnId;
use crate::time::Time;

/// How long other workers' answers are waited for. Whoever passes questions on gives up before.
const PATIENCE_US: u64 = 4_000_000;

/// Longest request that is passed on.
const QUESTION_SIZE_MAX: usize = 64 * 1024;

/// Requests that wait for answers of other workers.
#[derive(Default)]
pub(crate) struct Inquiries {
    open: Vec<Inquiry>,
    last_ticket: u64,
}

struct Inquiry {
    ticket: u64,
    client: ConnId,
    /// Means nothing once the client is gone.
    request: u32,
    answer: Answer,
    since: Time,
}

/// What all workers know together.
pub(crate) enum Answer {
    /// Text, one after the other's.
    Text(Vec<u8>),
    Count(u64),
}

impl Answer {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Count(count) => *count == 0,
        }
    }

    /// As it is told to other workers.
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(0) => Vec::new(),
            Self::Count(count) => count.to_string().into_bytes(),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Text(text) => text.extend_from_slice(bytes),
            Self::Count(count) => {
                let more = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                *count += more.unwrap_or(0_u64);
            }
        }
    }
}

impl Engine {
    /// Answers a client's request when all other workers have answered it, too; `own` is what this
    /// one answers.
    pub(crate) fn inquire(&mut self, client: u32, request: &[u8], own: Answer) -> Plan {
        if request.len() > QUESTION_SIZE_MAX {
            let text = "ERR the request is too long to be passed on to all workers";
            return self.say_error(client, text);
        }
        self.inquiries.last_ticket += 1;
        let ticket = self.inquiries.last_ticket;
        let (pool, by) = (self.clients[client].pool, self.clients[client].session.id);
        let inquiry = Inquiry {
            ticket,
            client: self.client_conn(client),
            request: self.new_request(client),
            answer: own,
            since: self.now,
        };
        self.inquiries.open.push(inquiry);
        self.actions.push_back(Action::Ask { ticket, pool, by, request: request.to_vec() });
        Plan::Done
    }

    /// What another worker wants to know about the clients of a pool here, asked by the request of
    /// its client `by`.
    pub fn handle_question(&mut self, pool: u32, by: u64, request: &[u8], now: Time) -> Vec<u8> {
        self.now = now;
        self.census(pool, by, request).map(|answer| answer.to_bytes()).unwrap_or_default()
    }

    /// What one other worker answered to [`Action::Ask`], and whether it was the last.
    pub fn handle_answer(&mut self, ticket: u64, answer: &[u8], is_last: bool, now: Time) {
        self.now = now;
        let mut open = self.inquiries.open.iter_mut();
        let Some(at) = open.position(|inquiry| inquiry.ticket == ticket) else { return };
        self.inquiries.open[at].answer.add(answer);
        if is_last {
            let inquiry = self.inquiries.open.swap_remove(at);
            self.conclude(inquiry);
        }
    }

    /// Answers what others have not answered in time with what is known.
    pub(crate) fn tend_inquiries(&mut self) {
        let mut at = 0;
        while at < self.inquiries.open.len() {
            if self.now.micros_since(self.inquiries.open[at].since) < PATIENCE_US {
                at += 1;
            } else {
                let inquiry = self.inquiries.open.swap_remove(at);
                self.conclude(inquiry);
            }
        }
    }

    fn conclude(&mut self, inquiry: Inquiry) {
        let Inquiry { client, request, answer, .. } = inquiry;
        if !self.clients.is_current(client.index(), client.generation()) {
            return;
        }
        let dialect = self.clients[client.index()].session.dialect;
        self.answer_instead(request, |out| answer.write(dialect, out));
    }
}
