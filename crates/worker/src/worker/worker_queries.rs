//! Queries about clients, from clients here and from other workers.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cashew_control::{ToMaster, seal, unseal};
use cashew_engine::{ListenerId, Rest, Scope};

use super::Worker;
use crate::clock::now;
use crate::place::place;

/// The time spent on answers per tick. With thousands of clients an answer takes milliseconds,
/// since each client costs a system call.
const ANSWERING_MAX: Duration = Duration::from_millis(5);

/// A client's query about the clients of all workers.
pub(super) struct WorkerQuery {
    pub(super) ticket: u64,
    pub(super) scope: Scope,
    pub(super) pool: ListenerId,
    /// The id of that client.
    pub(super) by: u64,
    pub(super) request: Vec<u8>,
}

impl<D: cashew_driver::Driver> Worker<D> {
    /// Answers some of the pending queries.
    pub(super) fn answer_some_queries(&mut self) {
        let until = now() + ANSWERING_MAX;
        while let Some(query) = self.worker_queries.pop_front() {
            self.run_query(query);
            if now() >= until {
                return;
            }
        }
    }

    /// Answers all pending queries.
    pub(super) fn answer_all_queries(&mut self) {
        while let Some(query) = self.worker_queries.pop_front() {
            self.run_query(query);
            self.core.show_life();
        }
    }

    /// Answers a query for this worker, and sends it to all others.
    fn run_query(&mut self, query: WorkerQuery) {
        let WorkerQuery { ticket, scope, pool, by, request } = query;
        // Pauses that other workers have published meanwhile hold here too.
        self.core.follow_pauses();
        let pause = self.core.engine.client_pause(pool);
        let own = self.own_answer(pool, by, &request);
        let mut is_shared = true;
        if self.core.engine.client_pause(pool) != pause {
            // Published before the query is sent: a worker that starts now does not get the query.
            is_shared = self.core.share_pause(pool);
            if is_shared {
                self.log_pause(pool, by);
            }
        }
        let now = self.core.now;
        let engine = &mut self.core.engine;
        if !is_shared {
            return engine.handle_answer(ticket, &[], Rest::Missing, now);
        }
        if scope == Scope::Here {
            return engine.handle_answer(ticket, &own, Rest::None, now);
        }
        engine.handle_answer(ticket, &own, Rest::Awaited, now);
        let request = self.question_for_others(pool, by, request);
        let engine = &mut self.core.engine;
        let question = seal(&request)
            .inspect_err(|error| tracing::error!("the other workers cannot be queried: {error}"));
        match question {
            Ok(question) if self.is_master_alive => {
                let pool = engine.listener_config(pool).name.clone();
                self.outbox.push_with(ToMaster::Ask { ticket, pool, by }, Some(question));
            }
            Ok(_) | Err(_) => engine.handle_answer(ticket, &[], Rest::Missing, now),
        }
    }

    /// Takes the answer of another worker for a client here.
    pub(super) fn take_answer(
        &mut self,
        ticket: u64,
        rest: cashew_control::Rest,
        answer: &[OwnedFd],
    ) {
        let (answer, rest) = match content(answer) {
            Ok(answer) => (answer, as_engine_has_it(rest)),
            Err(error) => {
                tracing::error!("an answer cannot be read: {error}");
                (Vec::new(), Rest::Missing)
            }
        };
        self.core.engine.handle_answer(ticket, &answer, rest, self.core.now);
    }

    /// Answers a query of another worker.
    pub(super) fn answer(&mut self, number: u64, pool: &str, by: u64, question: &[OwnedFd]) {
        // Without a free descriptor the query was lost on the way.
        let question = question.first().ok_or(std::io::ErrorKind::UnexpectedEof.into());
        let request = match question.and_then(unseal) {
            Ok(request) => request,
            Err(error) => return tracing::error!("a query cannot be read: {error}"),
        };
        // Many queries may come together.
        self.core.show_life();
        // During a reload only one of the two workers may have the pool; then the answer is empty.
        let answer = match self.core.engine.listener_named(pool) {
            Some(pool) => self.own_answer(pool, by, &request),
            None => Vec::new(),
        };
        // The pauses known here may be out of date.
        self.core.follow_pauses();
        match (!answer.is_empty()).then(|| seal(&answer)).transpose() {
            Ok(answer) => self.outbox.push_with(ToMaster::Answer { number }, answer),
            // The sender learns that an answer is missing.
            Err(error) => tracing::error!("a query cannot be answered: {error}"),
        }
    }

    fn question_for_others(&self, pool: ListenerId, by: u64, request: Vec<u8>) -> Vec<u8> {
        let listen = &self.core.engine.listener_config(pool).listen;
        let place = |conn| place(&self.driver, &self.core.told, listen, conn);
        self.core.engine.question_for_others(pool, by, request, &place)
    }

    fn own_answer(&mut self, pool: ListenerId, by: u64, request: &[u8]) -> Vec<u8> {
        let (driver, told) = (&self.driver, &self.core.told);
        let listen = self.core.engine.listener_config(pool).listen.clone();
        let place = |conn| place(driver, told, &listen, conn);
        self.core.engine.handle_question(pool, by, request, &place, self.core.now)
    }
}

/// The content of the memfd that came with a message, if any.
fn content(descriptors: &[OwnedFd]) -> std::io::Result<Vec<u8>> {
    descriptors.first().map_or(Ok(Vec::new()), unseal)
}

fn as_engine_has_it(rest: cashew_control::Rest) -> Rest {
    match rest {
        cashew_control::Rest::Awaited => Rest::Awaited,
        cashew_control::Rest::None => Rest::None,
        cashew_control::Rest::Missing => Rest::Missing,
    }
}
