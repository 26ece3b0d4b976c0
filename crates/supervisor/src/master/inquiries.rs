//! Questions of one worker to all.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use cashew_control::ToChild;

use super::Master;
use crate::child::Role;
use crate::inquiries::Asker;

impl Master {
    /// A worker has a question for all others, which is in the memfd that came with it.
    pub(super) fn ask(
        &mut self,
        asker: Asker,
        pool: String,
        by: u64,
        question: Vec<OwnedFd>,
        now: Instant,
    ) {
        let may_answer = |(slot, member): (u32, &crate::member::Member)| {
            let running = member.running.as_ref()?;
            (running.is_ready && !running.is_foreign()).then_some(slot)
        };
        let asked: Vec<u32> = self.workers().filter_map(may_answer).collect();
        let Some(number) = self.inquiries.begin(asker, asked.into_iter(), now) else {
            return self.tell_asker(asker, true, Vec::new(), now);
        };
        let question: Vec<Rc<OwnedFd>> = question.into_iter().map(Rc::new).collect();
        for slot in self.inquiries.asked(number).collect::<Vec<u32>>() {
            let message = ToChild::Question { number, pool: pool.clone(), by };
            self.post(Role::Worker { slot }, message, question.clone(), now);
        }
    }

    pub(super) fn take_answer(
        &mut self,
        number: u64,
        slot: u32,
        answer: Vec<OwnedFd>,
        now: Instant,
    ) {
        if let Some((asker, is_last)) = self.inquiries.answered(number, slot) {
            let answer = answer.into_iter().map(Rc::new).collect();
            self.tell_asker(asker, is_last, answer, now);
        }
    }

    pub(super) fn end_inquiries(&mut self, now: Instant) {
        for asker in self.inquiries.handle_timeout(now) {
            self.tell_asker(asker, true, Vec::new(), now);
        }
    }

    pub(super) fn tell_asker(
        &mut self,
        asker: Asker,
        is_last: bool,
        answer: Vec<Rc<OwnedFd>>,
        now: Instant,
    ) {
        let Asker { slot, ticket } = asker;
        self.post(Role::Worker { slot }, ToChild::Answer { ticket, is_last }, answer, now);
    }
}
