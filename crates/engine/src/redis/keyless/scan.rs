//! SCAN over several servers, one after the other: the cursor says which one is next.
//!
//! If a shard's primary changes during the walk the shard is walked anew, at the new one: keys come twice
//! then, and none is left out.

use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::resp::{self, encode};

use super::cursor::{self, Cursor, Walk};
use super::merge;
use crate::base::failure::Failure;
use crate::base::id::{BackendId, ClientId, RequestId, ShardId};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};
use crate::redis::tenant::Named;

/// Where a page of a SCAN comes from.
#[derive(Clone, Debug)]
struct Page {
    walk: Walk,
    shard: ShardId,
    /// The shard's when the page was asked for.
    reign: u32,
    /// That of the keys of the client's user.
    prefix: Option<Arc<KeyPrefix>>,
}

impl Page {
    /// The server's page, with a cursor that the client may come back with.
    fn write(
        &self,
        engine: &Engine,
        backend: BackendId,
        reply: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut reply = merge::Aggregate::of(reply)?;
        let inner = cursor::number(merge::text(reply.next()?)?)?;
        let next = match inner {
            // What waited for a server may have been answered by the next one.
            _ if !self.is_current(engine, backend) => {
                Some(Cursor::new(self.shard, self.reign, inner.max(1)))
            }
            0 => engine.page_behind(backend, self),
            inner => Some(Cursor::new(self.shard, self.reign, inner)),
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

    /// Whether the shard's primary is the one that was asked. By a list that has changed nobody will go
    /// on anyway.
    fn is_current(&self, engine: &Engine, backend: BackendId) -> bool {
        !engine.redis_backends[backend].walk.has_same_shards(self.walk)
            || engine.backends[backend].topology.reign(self.shard) == self.reign
    }
}

impl Flow for Page {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        if resp::is_error(reply) {
            return Step::Answer;
        }
        let stripped = self.prefix.as_ref().and_then(|prefix| prefix.reply(Named::Page, reply));
        let reply = stripped.as_deref().unwrap_or(reply);
        cx.reply_or_bad(reply.len() + 32, |cx, out| self.write(cx.engine, cx.backend(), reply, out))
    }
}

impl Engine {
    /// Whether SCAN has cursors of the gateway's. Where one server has all keys, for ever, those are as good
    /// that the server gives.
    pub(crate) fn walks_by_own_cursors(&self, client: ClientId) -> bool {
        let topology = &self.backends[self.backend_of(client)].topology;
        !self.is_single(client) || topology.may_change_primaries()
    }

    pub(super) fn scan(&mut self, client: ClientId, bytes: &[u8], args: &[Span]) -> Plan {
        let backend = self.backend_of(client);
        let (pool, walk) = (&self.backends[backend], self.redis_backends[backend].walk);
        let topology = &pool.topology;
        let beginning = |shard| Cursor::new(shard, topology.reign(shard), 0);
        let cursor = match walk.read(args[1].of(bytes)) {
            Ok(Some(cursor)) => Some(cursor),
            Ok(None) => topology.heads().next().map(|head| beginning(topology.shard_of(head))),
            Err(bad) => return self.reply_error(client, bad.text()),
        };
        let Some(cursor) = cursor else {
            return self.fail(client, Failure::NoServer);
        };
        let (shard, reign) = (cursor.shard, topology.reign(cursor.shard));
        let inner = if cursor.is_of(reign) { cursor.inner } else { 0 };
        let server = topology.head(shard);
        if !topology.is_on_ring(server) {
            let named = match &pool.servers[server].label {
                Some(_) => format!(", '{}',", pool.config.servers[server.index()].name),
                None => String::new(),
            };
            let text = format!(
                "ERR the server that this SCAN was at{named} has been ejected; start again with cursor 0"
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
        let prefix = self.clients[client].session.key_prefix().cloned();
        self.begin_flow(request, Box::new(Page { walk, shard, reign, prefix }), None, page);
        Plan::Done
    }

    /// The beginning of the next shard on the ring, if there is one.
    fn page_behind(&self, backend: BackendId, page: &Page) -> Option<Cursor> {
        let topology = &self.backends[backend].topology;
        if self.redis_backends[backend].walk.has_same_shards(page.walk) {
            let next = topology.shard_of(topology.heads_behind(page.shard).next()?);
            return Some(Cursor::new(next, topology.reign(next), 0));
        }
        // By a list that has changed nobody will go on: the next cursor is refused.
        let next = page.shard.number() + 1;
        (next < page.walk.shards()).then(|| Cursor::new(ShardId::new(next), 0, 0))
    }
}
