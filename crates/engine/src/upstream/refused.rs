//! What a lane's server has refused to run, while replies to the rest are awaited.
//!
//! A server that becomes a replica, or loads its data, refuses all that is on its way there, and surely
//! runs none of it. These requests are not answered: nothing more is sent on the connection, and once all
//! replies have come it is closed, and they stand in front of what was not sent, in their order. There they
//! wait as what else was not sent (see [`crate::upstream::connect_attempts`]), or go to another server.
//!
//! A client's requests run in the order in which it sent them. So where one behind a refused one has run, or
//! may have, the refused one is not sent again: its client gets the server's error. A read that has run
//! behind it is as good as not run, and sent again with it.

use std::collections::{BTreeMap, HashMap};

use cashew_protocol::redis::{self, Access, Group, Lookup};
use cashew_protocol::resp::{Parsed, RequestParser};

use crate::base::buffer::{BufPool, LARGE, Output};
use crate::base::failure::Failure;
use crate::base::id::{ClientId, RequestId};
use crate::base::outcome::{Execution, Outcome, Refusal, Sign};
use crate::base::time::Time;
use crate::request::Role;
use crate::request::slab::Requests;
use crate::upstream::backend::Backend;
use crate::upstream::lane::Lane;

pub(crate) struct Refused {
    /// Why the lane's server is of no use for now.
    pub(crate) why: Failure,
    /// By number, in their order.
    requests: BTreeMap<u64, RefusedRequest>,
    /// The number of the next one.
    next: u64,
    /// The numbers of those of each, by the number of who has asked.
    by_asker: HashMap<u32, Vec<u64>>,
    /// The clients of all up to here are fenced.
    fenced: u64,
}

/// A request that is to be sent again. It still counts as being in the lane.
pub(crate) struct RefusedRequest {
    pub(crate) request: RequestId,
    /// The number of who has asked: see [`crate::redis::sent_on`].
    pub(crate) asker: u32,
    /// As it was sent.
    pub(crate) bytes: Vec<u8>,
    /// What it is answered if it is not sent again.
    pub(crate) reply: Vec<u8>,
}

impl Refused {
    fn new(why: Failure) -> Self {
        let (requests, by_asker) = (BTreeMap::new(), HashMap::new());
        Self { why, requests, next: 0, by_asker, fenced: 0 }
    }

    fn push(&mut self, request: RefusedRequest) {
        self.by_asker.entry(request.asker).or_default().push(self.next);
        self.requests.insert(self.next, request);
        self.next += 1;
    }

    /// Whether there are any of who is known by that number.
    pub(crate) fn has_of(&self, asker: u32) -> bool {
        self.by_asker.contains_key(&asker)
    }

    /// Takes them out.
    fn take_of(&mut self, asker: u32) -> Vec<RefusedRequest> {
        let numbers = self.by_asker.remove(&asker).unwrap_or_default();
        numbers.iter().filter_map(|number| self.requests.remove(number)).collect()
    }

    /// Those whose clients are to be fenced, each once.
    pub(crate) fn take_unfenced(&mut self) -> Vec<RequestId> {
        let from = std::mem::replace(&mut self.fenced, self.next);
        self.requests.range(from..).map(|(_, it)| it.request).collect()
    }
}

impl Lane {
    /// Those of whoever is known by that number are not sent again: what was asked behind them has run, or may have.
    pub(crate) fn take_refused_of(&mut self, asker: u32) -> Vec<RefusedRequest> {
        self.refused.as_mut().map_or_else(Vec::new, |refused| refused.take_of(asker))
    }

    /// Keeps what was the head, since it is to be sent again.
    pub(crate) fn keep_refused(&mut self, why: Failure, request: RefusedRequest) {
        self.refused.get_or_insert_with(|| Box::new(Refused::new(why))).push(request);
    }

    /// Whether the head may be sent again after the reply whose last bytes are `end`: why, and what was
    /// sent. `is_behind` is whether it stands behind a request of its client's that is to be sent again.
    pub(crate) fn may_repeat(
        &mut self,
        backend: &Backend,
        requests: &Requests,
        bufs: &mut BufPool,
        end: &[u8],
        (is_behind, now): (bool, Time),
    ) -> Option<(Failure, Vec<u8>)> {
        let request = &requests[self.head];
        let is_whole = match request.role {
            Role::Single => true,
            Role::Fragment { parent, .. } => matches!(requests[parent].role, Role::Parent { .. }),
            Role::Parent { .. } | Role::Flow { .. } | Role::Probe { .. } | Role::Own(_) => false,
        };
        let is_short = request.reply.len() + end.len() < LARGE;
        if !is_whole || !is_short || request.streaming || !self.keeps_sent() || !backend.keeps_sent
        {
            return None;
        }
        if !self.keeps_head(bufs) {
            return None;
        }
        let refusal = self.refusal_worth_waiting(backend, requests, end, now);
        let why = refusal.or_else(|| {
            let refused = self.refused.as_ref().filter(|_| is_behind)?;
            Some(refused.why)
        })?;
        let wire_len = request.wire_len as usize;
        let mut bytes = bufs.take_for(wire_len);
        self.sent.copy_front(wire_len, &mut bytes);
        if !may_run_again(&bytes, refusal.is_some()) {
            bufs.give(bytes);
            return None;
        }
        Some((why, bytes))
    }

    /// The failure that the head waits for the end of if it is answered so; or it goes to another server.
    fn refusal_worth_waiting(
        &self,
        backend: &Backend,
        requests: &Requests,
        end: &[u8],
        now: Time,
    ) -> Option<Failure> {
        let request = &requests[self.head];
        let refusal = match request.reply.is_empty() {
            true => Refusal::of(end),
            false => Refusal::of(&[&request.reply, end].concat()),
        }?;
        let outcome = Outcome::from(refusal);
        let why = refusal
            .absence(backend.topology.has_slots())
            .filter(|_| outcome.execution == Execution::No)?;
        let is_primary = backend.topology.primary_of(self.server) == self.server;
        let waited_until = request.started.plus_micros(backend.failover_wait_us);
        let waits = waited_until > now && !backend.servers[self.server].ejected;
        let moves = request.moves_left > 0;
        match outcome.sign {
            Sign::NotPrimary => waits && is_primary,
            _ => waits || moves,
        }
        .then_some(why)
    }

    /// Puts what was refused in front of what is not sent, where somebody still wants it. Nothing is in
    /// flight. Returns how many these are, and those that nobody waits for any more.
    pub(crate) fn put_refused_back(
        &mut self,
        refused: Refused,
        requests: &mut Requests,
        bufs: &mut BufPool,
    ) -> (u64, Vec<RefusedRequest>) {
        let is_wanted = |it: &RefusedRequest| requests.waiting_client(it.request) != ClientId::NONE;
        let (wanted, unwanted): (Vec<_>, Vec<_>) =
            refused.requests.into_values().partition(is_wanted);
        assert!(self.in_flight == 0 && self.partial == 0 && self.head == self.first_unsent);
        let mut output = Output::default();
        for it in &wanted {
            output.push(&it.bytes, bufs);
        }
        output.append(std::mem::take(&mut self.output), bufs);
        self.output = output;
        let count = wanted.len() as u64;
        for RefusedRequest { request, bytes, reply, .. } in wanted.into_iter().rev() {
            bufs.give(bytes);
            bufs.give(reply);
            let slot = &mut requests[request];
            slot.next_in_lane = self.head;
            if self.tail == RequestId::NONE {
                self.tail = request;
            }
            (self.head, self.first_unsent) = (request, request);
            self.count_unsent(slot.wire_len);
        }
        (count, unwanted)
    }
}

/// Whether a request that a server refused, or that has run behind such a one, may be sent once more. What a
/// script or a module was asked answers errors of its own making.
pub(crate) fn may_run_again(bytes: &[u8], is_refused: bool) -> bool {
    let mut parser = RequestParser::default();
    if !matches!(parser.parse(bytes, usize::MAX), Parsed::Complete { len } if len == bytes.len()) {
        return false;
    }
    match redis::find(bytes, parser.args()) {
        Lookup::Found(command) if command.is_sealed() || command.group == Group::Module => false,
        Lookup::Found(command) => is_refused || command.access == Access::Read,
        Lookup::WrongArity(_) | Lookup::UnknownCommand | Lookup::UnknownSubcommand(_) => false,
    }
}
