//! Transactions and calls that wait, in front of a cluster: what a node has not run goes to another.
//!
//! A transaction is kept here until EXEC and sent as a whole, since what is queued at a node whose slot moves away is
//! lost there. WATCH goes to a node at once: if what is watched moves, EXEC does nothing, as if it had changed.

use cashew_protocol::resp::encode;

use crate::base::failure::Failure;
use crate::base::id::{ClientId, LaneId, RequestId, ServerId};
use crate::base::time::Time;
use crate::engine::Engine;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::redirects::{ABORTED, is_redirect};
use crate::redis::transaction::Transaction;
use crate::request::replay::Replay;
use crate::upstream::redirect::{Elsewhere, RefusedPart};

const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";
const PREVIOUS_ERRORS: &[u8] = b"-EXECABORT Transaction discarded because of previous errors";

/// So often a transaction or a call is sent elsewhere.
const HOPS_MAX: u8 = 5;
/// How long one waits that no node takes for now, before it is sent again.
const TRY_AGAIN_MS: u64 = 20;
/// As long as `failover_wait` it is sent again, and at least this.
const TRY_AGAIN_LONGEST_US: u64 = 1_000_000;

/// A transaction or a call that nodes have sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentBack {
    /// A node where it is sent behind ASKING.
    pub(crate) ask_at: Option<ServerId>,
    hops: u8,
    /// Until then it is sent again though no node takes it.
    until: Time,
    /// When that was.
    at: Time,
}

impl SentBack {
    /// Whether a call has waited at a node since: then it has been sent back for other reasons than before.
    pub(crate) fn has_waited(&self, now: Time) -> bool {
        self.at.plus_micros(TRY_AGAIN_LONGEST_US) <= now
    }
}

/// EXEC of a transaction that was sent as a whole.
pub(crate) struct HeldExec {
    lane: LaneId,
    again: Option<Box<Transaction>>,
}

impl std::fmt::Debug for HeldExec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldExec").field("lane", &self.lane).finish_non_exhaustive()
    }
}

impl HeldExec {
    pub(crate) fn new(lane: LaneId, again: Box<Transaction>) -> Self {
        Self { lane, again: Some(again) }
    }
}

impl Flow for HeldExec {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        let refused = cx.engine.lanes[self.lane].refused_part.take();
        let noted = refused.as_ref().and_then(|part| part.elsewhere);
        let client = cx.client();
        let is_refused = reply.starts_with(b"-") && client != ClientId::NONE;
        let Some(again) = self.again.as_ref().filter(|_| is_refused) else {
            return Step::Answer;
        };
        if again.has_watched() {
            if noted.is_none() && cx.engine.elsewhere(self.lane, reply).is_none() {
                return answer(cx, refused, reply);
            }
            // As if it had changed: clients know what to do then.
            let version = cx.engine.resp_of(client);
            return cx.reply(8, |out| encode::write_null_array(out, version));
        }
        let before = again.sent_back();
        let Some(sent_back) = cx.engine.goes_on(client, self.lane, before, (noted, reply)) else {
            return answer(cx, refused, reply);
        };
        let Some(again) = self.again.take() else { return Step::Answer };
        cx.engine.bufs.discharge(again.size());
        cx.engine.restore(client, again, sent_back);
        Step::TakeBack(Replay::new(EXEC, &mut cx.engine.bufs))
    }

    fn size(&self) -> usize {
        self.again.as_ref().map_or(0, |again| again.size())
    }
}

/// The client was told that all is queued before the node was asked: it hears with EXEC why that is not so, in the
/// words of a server that refuses at EXEC.
fn answer(cx: &mut FlowContext<'_>, refused: Option<Box<RefusedPart>>, reply: &[u8]) -> Step {
    let is_elsewhere = |part: &RefusedPart| is_redirect(&[b"-", &part.text[..], b"\r\n"].concat());
    if is_redirect(reply) || refused.as_deref().is_some_and(is_elsewhere) {
        return cx.reply(ABORTED.len(), |out| out.extend_from_slice(ABORTED));
    }
    let Some(refused) = refused.filter(|_| reply.starts_with(PREVIOUS_ERRORS)) else {
        return Step::Answer;
    };
    cx.reply(refused.text.len() + 64, |out| {
        out.extend_from_slice(b"-EXECABORT Transaction discarded because of: ");
        out.extend_from_slice(&refused.text);
        out.extend_from_slice(b"\r\n");
    })
}

/// WATCH on its way to a node.
#[derive(Debug)]
struct Watching {
    lane: LaneId,
    /// The client watches nothing else.
    is_first: bool,
    sent_back: Option<SentBack>,
}

impl Flow for Watching {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        let client = cx.client();
        if !reply.starts_with(b"-") || client == ClientId::NONE {
            return Step::Answer;
        }
        if !self.is_first {
            if cx.engine.elsewhere(self.lane, reply).is_none() {
                return Step::Answer;
            }
            cx.engine.lose_watch(client);
            return cx.reply(8, |out| out.extend_from_slice(b"+OK\r\n"));
        }
        let sent_back = cx.engine.goes_on(client, self.lane, self.sent_back, (None, reply));
        // The client is bound to no node.
        cx.engine.forget_watch(client);
        if sent_back.is_none() {
            return match is_redirect(reply) {
                true => Step::Fail(Failure::ClusterDown.into()),
                false => Step::Answer,
            };
        }
        cx.engine.clients[client].modes.enter().sent_back = sent_back;
        let text = cx.replay().to_vec();
        Step::TakeBack(Replay::new(&text, &mut cx.engine.bufs))
    }
}

impl Engine {
    /// WATCH is about to be sent to a node of a cluster.
    pub(crate) fn follow_watch(
        &mut self,
        request: RequestId,
        lane: LaneId,
        (is_first, sent_back): (bool, Option<SentBack>),
        bytes: &[u8],
    ) {
        let replay = Replay::new(bytes, &mut self.bufs);
        self.watch_reply(request, Box::new(Watching { lane, is_first, sent_back }), Some(replay));
    }

    /// How something goes on that a node has answered so, or before that to a part of it (`noted`). `None`: the client
    /// is to know of it. `before` is how it was sent back the last time.
    pub(crate) fn goes_on(
        &mut self,
        client: ClientId,
        lane: LaneId,
        before: Option<SentBack>,
        (noted, reply): (Option<Elsewhere>, &[u8]),
    ) -> Option<SentBack> {
        if !self.destination_of(client).leads_to(self.lanes[lane].backend) {
            // The client's requests go to other servers by now.
            return None;
        }
        let elsewhere = noted.or_else(|| self.elsewhere(lane, reply))?;
        let wait_us = self.backends[self.lanes[lane].backend].failover_wait_us;
        let until = self.now.plus_micros(wait_us.max(TRY_AGAIN_LONGEST_US));
        let SentBack { hops, until, .. } =
            before.unwrap_or(SentBack { ask_at: None, hops: 0, until, at: self.now });
        let (ask_at, hops) = match elsewhere {
            Elsewhere::Again if self.now < until => {
                self.slow_down(client, TRY_AGAIN_MS);
                (None, 0)
            }
            Elsewhere::Owner if hops < HOPS_MAX => (None, hops + 1),
            Elsewhere::Ask(server) if hops < HOPS_MAX => (Some(server), hops + 1),
            Elsewhere::Owner | Elsewhere::Ask(_) | Elsewhere::Again => return None,
        };
        Some(SentBack { ask_at, hops, until, at: self.now })
    }
}
