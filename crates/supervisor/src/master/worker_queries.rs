//! Queries of one worker to all others.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use cashew_control::{Rest, ToChild};

use super::Master;
use crate::child::Role;
use crate::worker_queries::{Asker, Begun};

impl Master {
    /// A worker has a query for all others, in the memfd that came with it.
    pub(super) fn ask(
        &mut self,
        asker: Asker,
        pool: String,
        by: u64,
        question: Vec<OwnedFd>,
        now: Instant,
    ) {
        // A worker that is not ready has no clients.
        let asked = self.workers().filter(|(_, member)| member.is_answering());
        let asked: Vec<u32> = asked.map(|(slot, _)| slot).collect();
        let (number, whom) = match self.worker_queries.begin(asker, asked.into_iter(), now) {
            Begun::Asked { number, whom } => (number, whom),
            Begun::Alone => return self.reply_to_asker(asker, Rest::None, Vec::new(), now),
            Begun::Refused => return self.reply_to_asker(asker, Rest::Missing, Vec::new(), now),
        };
        let question: Vec<Rc<OwnedFd>> = question.into_iter().map(Rc::new).collect();
        for slot in whom {
            let message = ToChild::Question { number, pool: pool.clone(), by };
            self.post_if_read(slot, message, question.clone(), now);
        }
    }

    pub(super) fn take_answer(
        &mut self,
        number: u64,
        slot: u32,
        answer: Vec<OwnedFd>,
        now: Instant,
    ) {
        if let Some((asker, is_last)) = self.worker_queries.answered(number, slot) {
            let answer = answer.into_iter().map(Rc::new).collect();
            let rest = if is_last { Rest::None } else { Rest::Awaited };
            self.reply_to_asker(asker, rest, answer, now);
        }
    }

    pub(super) fn end_worker_queries(&mut self, now: Instant) {
        for asker in self.worker_queries.handle_timeout(now) {
            self.reply_to_asker(asker, Rest::Missing, Vec::new(), now);
        }
    }

    pub(super) fn reply_to_asker(
        &mut self,
        asker: Asker,
        rest: Rest,
        answer: Vec<Rc<OwnedFd>>,
        now: Instant,
    ) {
        let Asker { slot, ticket } = asker;
        self.post_if_read(slot, ToChild::Answer { ticket, rest }, answer, now);
    }

    /// Skips a worker that does not read its messages: it must not be aborted because of clients'
    /// queries, and its answer is not waited for without limit.
    fn post_if_read(
        &mut self,
        slot: u32,
        message: ToChild,
        descriptors: Vec<Rc<OwnedFd>>,
        now: Instant,
    ) {
        let role = Role::Worker { slot };
        if self.members.get(&role).is_some_and(|member| member.reads()) {
            self.post(role, message, descriptors, now);
        }
    }
}
