//! Questions to other workers, and theirs.

use std::os::fd::OwnedFd;

use cashew_control::{ToMaster, seal, unseal};

use super::Worker;

impl<D: cashew_driver::Driver> Worker<D> {
    /// Asks all other workers what a client wants to know of everybody.
    pub(super) fn ask(&mut self, ticket: u64, pool: u32, by: u64, request: &[u8]) {
        let now = self.core.now;
        let question = match seal(request) {
            Ok(question) if self.is_master_alive => question,
            Ok(_) => return self.core.engine.handle_answer(ticket, &[], true, now),
            Err(error) => {
                tracing::error!("other workers cannot be asked: {error}");
                return self.core.engine.handle_answer(ticket, &[], true, now);
            }
        };
        let pool = self.core.engine.pool_config(pool).name.clone();
        self.outbox.say_with(ToMaster::Ask { ticket, pool, by }, Some(question));
    }

    /// Answers another worker's question.
    pub(super) fn answer(&mut self, number: u64, pool: &str, by: u64, question: &[OwnedFd]) {
        let request = content(question);
        // During a reload it may be that only one of the two still has the pool.
        let pool = self.core.engine.pool_named(pool);
        let now = self.core.now;
        let answer =
            pool.map(|pool| self.core.engine.handle_question(pool, by, &request, now));
        let answer = match answer.filter(|answer| !answer.is_empty()) {
            Some(answer) => seal(&answer)
                .inspect_err(|error| tracing::error!("a question cannot be answered: {error}"))
                .ok(),
            None => None,
        };
        self.outbox.say_with(ToMaster::Answer { number }, answer);
    }
}

/// What is in the memfd that came with a message, if one did.
pub(super) fn content(descriptors: &[OwnedFd]) -> Vec<u8> {
    let read = |memfd| {
        unseal(memfd).inspect_err(|error| tracing::error!("a message cannot be read: {error}")).ok()
    };
    descriptors.first().and_then(read).unwrap_or_default()
}
