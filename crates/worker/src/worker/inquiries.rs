//! Questions about clients: those of clients here, and those of other workers.

use std::os::fd::OwnedFd;
use std::time::Duration;

use cashew_control::{ToMaster, seal, unseal};
use cashew_engine::{PoolId, Rest, Scope};

use super::Worker;
use crate::clock::now;
use crate::place::place;

/// After so long the rest of what clients ask is for the next turn: where there are thousands of them
/// each answer takes milliseconds, since the kernel is asked about each.
const ANSWERING_MAX: Duration = Duration::from_millis(5);

/// What a client wants to know of everybody.
pub(super) struct Inquiry {
    pub(super) ticket: u64,
    pub(super) scope: Scope,
    pub(super) pool: PoolId,
    /// Which client that is.
    pub(super) by: u64,
    pub(super) request: Vec<u8>,
}

impl<D: cashew_driver::Driver> Worker<D> {
    /// Answers some of what clients have asked.
    pub(super) fn inquire_some(&mut self) {
        let until = now() + ANSWERING_MAX;
        while let Some(inquiry) = self.inquiries.pop_front() {
            self.ask(inquiry);
            if now() >= until {
                return;
            }
        }
    }

    /// Answers all of it.
    pub(super) fn inquire_all(&mut self) {
        while let Some(inquiry) = self.inquiries.pop_front() {
            self.ask(inquiry);
            self.core.show_life();
        }
    }

    /// Answers what a client wants to know, and asks all other workers.
    fn ask(&mut self, inquiry: Inquiry) {
        let Inquiry { ticket, scope, pool, by, request } = inquiry;
        // What others have said meanwhile holds, too.
        self.core.follow_pauses();
        let pause = self.core.engine.client_pause(pool);
        let own = self.own_answer(pool, by, &request);
        let mut is_shared = true;
        if self.core.engine.client_pause(pool) != pause {
            // Before anybody is told: who begins to serve now is not among them.
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
            .inspect_err(|error| tracing::error!("other workers cannot be asked: {error}"));
        match question {
            Ok(question) if self.is_master_alive => {
                let pool = engine.pool_config(pool).name.clone();
                self.outbox.say_with(ToMaster::Ask { ticket, pool, by }, Some(question));
            }
            Ok(_) | Err(_) => engine.handle_answer(ticket, &[], Rest::Missing, now),
        }
    }

    /// Takes what another worker answered to a client here.
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

    /// Answers another worker's question.
    pub(super) fn answer(&mut self, number: u64, pool: &str, by: u64, question: &[OwnedFd]) {
        // Without a free descriptor it is lost on the way.
        let question = question.first().ok_or(std::io::ErrorKind::UnexpectedEof.into());
        let request = match question.and_then(unseal) {
            Ok(request) => request,
            Err(error) => return tracing::error!("a question cannot be read: {error}"),
        };
        // During a reload it may be that only one of the two still has the pool.
        // One of many perhaps that came together.
        self.core.show_life();
        let answer = match self.core.engine.pool_named(pool) {
            Some(pool) => self.own_answer(pool, by, &request),
            None => Vec::new(),
        };
        // It may be out of date already.
        self.core.follow_pauses();
        match (!answer.is_empty()).then(|| seal(&answer)).transpose() {
            Ok(answer) => self.outbox.say_with(ToMaster::Answer { number }, answer),
            // Who asked is told that an answer is missing.
            Err(error) => tracing::error!("a question cannot be answered: {error}"),
        }
    }

    fn question_for_others(&self, pool: PoolId, by: u64, request: Vec<u8>) -> Vec<u8> {
        let listen = &self.core.engine.pool_config(pool).listen;
        let place = |conn| place(&self.driver, listen, conn);
        self.core.engine.question_for_others(pool, by, request, &place)
    }

    fn own_answer(&mut self, pool: PoolId, by: u64, request: &[u8]) -> Vec<u8> {
        let driver = &self.driver;
        let listen = self.core.engine.pool_config(pool).listen.clone();
        let place = |conn| place(driver, &listen, conn);
        self.core.engine.handle_question(pool, by, request, &place, self.core.now)
    }
}

/// What is in the memfd that came with a message, if one did.
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
