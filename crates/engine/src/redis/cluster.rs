//! Transactions and calls that wait, in front of a cluster: what a node has not run goes to another.
//!
//! A transaction is kept here until EXEC and sent as a whole, since what is queued at a node whose slot moves away is
//! lost there. WATCH goes to a node at once: if what is watched moves, EXEC does nothing, as if it had changed.

use crate::base::id::{LaneId, RequestId, ServerId};
use crate::engine::Engine;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::transaction::Transaction;
use crate::request::replay::Replay;
use crate::upstream::redirect::Elsewhere;

const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// So often a transaction or a call is sent elsewhere.
pub(crate) const HOPS_MAX: u8 = 5;
/// How long a transaction waits some of whose keys have moved.
const TRY_AGAIN_MS: u64 = 20;

/// A call that may wait, which a node has sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallSentBack {
    /// A node where it is sent behind ASKING.
    pub(crate) ask_at: Option<ServerId>,
    pub(crate) hops: u8,
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

    fn ask_again(&mut self, cx: &mut FlowContext<'_>, ask_at: Option<ServerId>) -> Step {
        let client = cx.client();
        let Some(again) = self.again.take() else { return Step::Answer };
        cx.engine.bufs.discharge(again.size());
        cx.engine.restore(client, again, ask_at);
        Step::TakeBack(Replay::new(EXEC, &mut cx.engine.bufs))
    }
}

impl Flow for HeldExec {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        let Some(again) = self.again.as_ref().filter(|_| reply.starts_with(b"-")) else {
            return Step::Answer;
        };
        let noted = cx.engine.lanes[self.lane].elsewhere.take();
        let elsewhere = noted.or_else(|| cx.engine.elsewhere(self.lane, reply));
        let Some(elsewhere) = elsewhere else { return Step::Answer };
        if again.has_watched() {
            // As if it had changed: clients know what to do then.
            let client = cx.client();
            let version = cx.engine.resp_of(client);
            return cx.reply(8, |out| {
                cashew_protocol::resp::encode::write_null_array(out, version);
            });
        }
        match elsewhere {
            Elsewhere::Owner => self.ask_again(cx, None),
            Elsewhere::Ask(server) => self.ask_again(cx, Some(server)),
            Elsewhere::Again => {
                let at = cx.engine.now.plus_millis(TRY_AGAIN_MS);
                cx.engine.wake_flow(cx.request, at);
                Step::Wait
            }
        }
    }

    fn on_timeout(&mut self, cx: &mut FlowContext<'_>) -> Step {
        self.ask_again(cx, None)
    }

    fn size(&self) -> usize {
        self.again.as_ref().map_or(0, |again| again.size())
    }
}

/// WATCH on its way to a node.
#[derive(Debug)]
struct Watching {
    lane: LaneId,
    /// The client watches nothing else.
    is_first: bool,
    hops: u8,
}

impl Flow for Watching {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        if !reply.starts_with(b"-") {
            return Step::Answer;
        }
        let client = cx.client();
        let elsewhere = cx.engine.elsewhere(self.lane, reply);
        let ask_at = match elsewhere.filter(|_| self.hops < HOPS_MAX) {
            Some(Elsewhere::Owner) => None,
            Some(Elsewhere::Ask(server)) => Some(server),
            Some(Elsewhere::Again) | None => {
                if self.is_first {
                    // The client is bound to no node.
                    cx.engine.forget_watch(client);
                }
                return Step::Answer;
            }
        };
        if !self.is_first {
            cx.engine.lose_watch(client);
            return cx.reply(8, |out| out.extend_from_slice(b"+OK\r\n"));
        }
        cx.engine.forget_watch(client);
        let sent_back = CallSentBack { ask_at, hops: self.hops + 1 };
        cx.engine.clients[client].modes.enter().sent_back = Some(sent_back);
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
        (is_first, hops): (bool, u8),
        bytes: &[u8],
    ) {
        let replay = Replay::new(bytes, &mut self.bufs);
        self.watch_reply(request, Box::new(Watching { lane, is_first, hops }), Some(replay));
    }
}
