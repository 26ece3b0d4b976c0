//! SCAN over several servers, one after the other: the cursor says which one is next.

use cashew_protocol::Span;
use cashew_protocol::resp::{self, encode};

use super::cursor::{self, Cursor, Walk};
use super::merge;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, RequestId, ServerId};
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};

/// Where a page of a SCAN comes from.
#[derive(Clone, Copy, Debug)]
struct Page {
    walk: Walk,
    server: ServerId,
}

impl Page {
    /// The server's page, with a cursor that the client may come back with.
    fn write(
        self,
        engine: &Engine,
        backend: BackendId,
        reply: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut reply = merge::Aggregate::of(reply)?;
        let inner = cursor::number(merge::text(reply.next()?)?)?;
        let next = match inner {
            0 => engine.page_behind(backend, self),
            inner => Some(Cursor { server: self.server, inner }),
        };
        let number = match next {
            None => 0,
            Some(cursor) => match self.walk.write(cursor) {
                Some(number) => number,
                None => {
                    let text = b"ERR the server's cursor is too large for a SCAN over several";
                    encode::write_error(out, text);
                    return Some(());
                }
            },
        };
        encode::write_array_header(out, 2);
        encode::write_bulk(out, number.to_string().as_bytes());
        out.extend_from_slice(reply.elements);
        Some(())
    }
}

impl Flow for Page {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        if resp::is_error(reply) {
            return Step::Answer;
        }
        cx.reply_or_bad(reply.len() + 32, |cx, out| self.write(cx.engine, cx.backend(), reply, out))
    }
}

impl Engine {
    pub(super) fn scan(&mut self, client: ClientId, bytes: &[u8], args: &[Span]) -> Plan {
        let backend = self.backend_of(client);
        let (pool, walk) = (&self.backends[backend], self.redis_backends[backend].walk);
        let topology = &pool.topology;
        let first = || topology.heads().next();
        let cursor = match walk.read(args[1].of(bytes)) {
            Ok(Some(cursor)) => Some(cursor),
            Ok(None) => first().map(|server| Cursor { server, inner: 0 }),
            Err(bad) => return self.reply_error(client, bad.text()),
        };
        let Some(Cursor { server, inner }) = cursor else {
            return self.fail(client, Failure::NoServer);
        };
        if !topology.is_head(server) {
            let name = &pool.config.servers[server.index()].name;
            let why = match topology.live()[server.index()] {
                true => "is no primary any more",
                false => "has been ejected",
            };
            let text = format!(
                "ERR the server that this SCAN was at, '{name}', {why}; start again with cursor 0"
            );
            return self.reply_error(client, &text);
        }
        let lane = match self.lane_for(client, server, bytes.len()) {
            Ok(lane) => lane,
            Err(failure) => return self.fail_for(client, server, failure),
        };
        let mut text = self.bufs.take_for(bytes.len() + 32);
        encode::write_array_header(&mut text, args.len());
        encode::write_bulk(&mut text, args[0].of(bytes));
        encode::write_bulk(&mut text, inner.to_string().as_bytes());
        args[2..].iter().for_each(|arg| encode::write_bulk(&mut text, arg.of(bytes)));
        let request = self.new_request(client);
        let page = Step::Send(Attempts::one(Target::Lane(lane), Text::Owned(text)));
        self.begin_flow(request, Box::new(Page { walk, server }), None, page);
        Plan::Done
    }

    /// The beginning of the next shard on the ring, if there is one.
    fn page_behind(&self, backend: BackendId, page: Page) -> Option<Cursor> {
        let topology = &self.backends[backend].topology;
        let server = if self.redis_backends[backend].walk == page.walk {
            topology.heads_behind(topology.shard_of(page.server)).next()?
        } else {
            // By a list that has changed nobody will go on: the next cursor is refused.
            let next = page.server.number() + 1;
            (next < page.walk.servers()).then_some(ServerId::new(next))?
        };
        Some(Cursor { server, inner: 0 })
    }
}
