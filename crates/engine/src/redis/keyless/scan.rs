//! SCAN over several servers, one after the other: the cursor says which one is next.
//!
//! Slots of a cluster may move to a node during the walk that it has been at: then all nodes are walked again when it
//! is at its end. What tells of it is in `moving_slots`.
//!
//! If a shard's primary changes during the walk the shard is walked anew, at the new one: keys come twice
//! then, and none is left out.

use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::resp::{self, encode};

use super::cursor::{self, Cursor, Walk};
use super::merge;
use super::moving_slots::{Known, Next, Question, Survey};
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, RequestId, ServerId, ShardId};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::flow::{Attempts, Flow, FlowContext, Step, Target, Text};
use crate::redis::tenant::Named;
use crate::upstream::backend::Backend;

/// Where a page of a SCAN comes from.
#[derive(Debug)]
struct Page {
    walk: Walk,
    shard: ShardId,
    /// The shard's when the page was asked for.
    reign: u32,
    /// That of the keys of the client's user.
    prefix: Option<Arc<KeyPrefix>>,
    /// Of a cluster: the tag of what its slots were like when the walk began.
    map: Option<u16>,
    /// The last page, which waits for what the nodes tell.
    kept: Vec<u8>,
    survey: Option<Survey>,
}

impl Page {
    /// Whether nothing is left but to see whether slots have moved, or are on their way.
    fn is_at_end(&self, engine: &Engine, backend: BackendId, reply: &[u8]) -> bool {
        let inner = merge::Aggregate::of(reply).and_then(|mut parts| merge::text(parts.next()?));
        inner == Some(b"0")
            && self.map.is_some_and(|begun| {
                engine.node_behind(backend, Some(self.shard), begun).is_none()
                    && (Walk::is_moving(begun)
                        || engine.redis_backends[backend].walk.map() == Some(begun))
            })
    }

    /// Of a cluster: where the walk goes on behind a node that is done; `None` at the end. `now` is the tag of what
    /// the slots are like.
    fn behind_node(
        &self,
        engine: &Engine,
        backend: BackendId,
        (begun, now): (u16, Option<u16>),
    ) -> Option<Cursor> {
        let topology = &engine.backends[backend].topology;
        let at = |server, reign| Cursor { shard: topology.shard_of(server), reign, inner: 0 };
        if let Some(next) = engine.node_behind(backend, Some(self.shard), begun) {
            return Some(at(next, begun));
        }
        let now = now.or(engine.redis_backends[backend].walk.map()).unwrap_or(begun);
        let first = engine.node_behind(backend, None, now).filter(|_| now != begun);
        first.map(|first| at(first, now))
    }

    /// The server's page, with a cursor that the client may come back with.
    fn write(
        &self,
        engine: &Engine,
        backend: BackendId,
        (reply, now): (&[u8], Option<u16>),
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let mut reply = merge::Aggregate::of(reply)?;
        let inner = cursor::number(merge::text(reply.next()?)?)?;
        let next = match (self.map, inner) {
            (Some(begun), 0) => self.behind_node(engine, backend, (begun, now)),
            (Some(begun), inner) => Some(Cursor { shard: self.shard, reign: begun, inner }),
            // What waited for a server may have been answered by the next one.
            (None, inner) if !self.is_current(engine, backend) => {
                Some(Cursor::new(self.shard, self.reign, inner.max(1)))
            }
            (None, 0) => engine.page_behind(backend, self),
            (None, inner) => Some(Cursor::new(self.shard, self.reign, inner)),
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
        let backend = cx.backend();
        if let Some(survey) = &mut self.survey {
            let next = survey.on_reply(&cx.engine.known(backend), reply);
            return self.go_on(cx, next);
        }
        if resp::is_error(reply) {
            return Step::Answer;
        }
        if self.is_at_end(cx.engine, backend, reply) {
            self.kept = cx.engine.written(reply.len(), |out| out.extend_from_slice(reply));
            cx.engine.doubt_map(backend);
            let begun = Survey::begin(&cx.engine.known(backend));
            let next = begun.map(|(survey, next)| {
                self.survey = Some(survey);
                next
            });
            return self.go_on(cx, next);
        }
        self.answer(cx, (reply, None))
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        why: NamedFailure,
    ) -> Step {
        match self.survey {
            // The page is here. What a node that cannot be reached would tell is not known.
            Some(_) => self.on_reply(cx, attempt, b"-ERR\r\n"),
            None => Step::Fail(why),
        }
    }

    fn on_timeout(&mut self, cx: &mut FlowContext<'_>) -> Step {
        let Some(survey) = &mut self.survey else { return Step::Wait };
        let next = survey.on_timeout(&cx.engine.known(cx.backend()));
        self.go_on(cx, next)
    }

    fn size(&self) -> usize {
        size_of::<Self>()
    }

    fn recycle(self: Box<Self>, engine: &mut Engine) {
        engine.bufs.give(self.kept);
    }
}

impl Page {
    /// The last page is here.
    fn go_on(&mut self, cx: &mut FlowContext<'_>, next: Option<Next>) -> Step {
        let now = match next {
            Some(Next::Ask(node, question)) => {
                let text = cx.engine.written(64, |out| question.write(out));
                return Step::Send(Attempts::one(Target::Server(node), Text::Owned(text)));
            }
            Some(Next::Wait(until)) => {
                cx.engine.doubt_map(cx.backend());
                cx.engine.wake_flow(cx.request, until);
                return Step::Wait;
            }
            Some(Next::Done(tag)) => Some(tag),
            None => None,
        };
        let kept = std::mem::take(&mut self.kept);
        let step = self.answer(cx, (&kept, now));
        self.kept = kept;
        step
    }

    fn answer(&self, cx: &mut FlowContext<'_>, (reply, now): (&[u8], Option<u16>)) -> Step {
        let stripped = self.prefix.as_ref().and_then(|prefix| prefix.reply(Named::Page, reply));
        let reply = stripped.as_deref().unwrap_or(reply);
        cx.reply_or_bad(reply.len() + 32, |cx, out| {
            self.write(cx.engine, cx.backend(), (reply, now), out)
        })
    }
}

impl Question {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Slots => encode::write_command(out, &[b"CLUSTER", b"NODES"]),
            Self::Keys(slot) => {
                let slot = slot.to_string();
                let words: [&[u8]; 3] = [b"CLUSTER", b"COUNTKEYSINSLOT", slot.as_bytes()];
                encode::write_command(out, &words);
            }
        }
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
        if let Some(map) = walk.map() {
            return self.scan_cluster(client, (walk, map), bytes, args);
        }
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
        self.ask_for_page(client, server, (walk, shard, reign, None), inner, (bytes, args))
    }

    fn known(&self, backend: BackendId) -> Known<'_> {
        let state = &self.backends[backend];
        Known {
            topology: &state.topology,
            cluster: state.config.cluster.as_ref(),
            walk: self.redis_backends[backend].walk,
            now: self.now,
        }
    }

    /// The first node of a cluster that a walk which began so is to be at, or the one behind a shard.
    fn node_behind(
        &self,
        backend: BackendId,
        shard: Option<ShardId>,
        begun: u16,
    ) -> Option<ServerId> {
        let Backend { topology, servers, .. } = &self.backends[backend];
        // A slot may be on its way to a node that owns none yet.
        let is_walked = |server: ServerId| {
            topology.is_head(server) || (Walk::is_moving(begun) && servers[server].is_up())
        };
        let is_behind = |server: ServerId| shard.is_none_or(|it| topology.shard_of(server) > it);
        topology.primaries().find(|&server| is_behind(server) && is_walked(server))
    }

    /// The same of a cluster. Whatever the map was that a cursor is of, there is somewhere to go on.
    fn scan_cluster(
        &mut self,
        client: ClientId,
        (walk, map): (Walk, u16),
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let backend = self.backend_of(client);
        let topology = &self.backends[backend].topology;
        let cursor = match walk.read(args[1].of(bytes)) {
            Ok(cursor) => cursor,
            Err(bad) => return self.reply_error(client, bad.text()),
        };
        let from = cursor.and_then(|Cursor { shard, reign, inner }| {
            // The shard's own node, or the next one if that has gone, or has no slots any more.
            let before = shard.number().checked_sub(1).map(ShardId::new);
            let server = self.node_behind(backend, before, reign)?;
            let inner = if topology.shard_of(server) == shard { inner } else { 0 };
            Some((server, reign, inner))
        });
        let from = from.or_else(|| Some((self.node_behind(backend, None, map)?, map, 0)));
        let Some((server, begun, inner)) = from else {
            return self.fail(client, Failure::NoServer);
        };
        let shard = topology.shard_of(server);
        self.ask_for_page(client, server, (walk, shard, 0, Some(begun)), inner, (bytes, args))
    }

    /// Asks a server for a page of its own.
    fn ask_for_page(
        &mut self,
        client: ClientId,
        server: ServerId,
        (walk, shard, reign, map): (Walk, ShardId, u32, Option<u16>),
        inner: u64,
        (bytes, args): (&[u8], &[Span]),
    ) -> Plan {
        let lane = match self.lane_for(client, server, bytes.len()) {
            Ok(lane) => lane,
            Err(failure) => return self.fail_for(client, server, failure),
        };
        let text = self.bufs.written(bytes.len() + 32, |out| {
            encode::write_array_header(out, args.len());
            encode::write_bulk(out, args[0].of(bytes));
            encode::write_bulk(out, inner.to_string().as_bytes());
            args[2..].iter().for_each(|arg| encode::write_bulk(out, arg.of(bytes)));
        });
        let request = self.new_request(client);
        let sent = Step::Send(Attempts::one(Target::Lane(lane), Text::Owned(text)));
        let prefix = self.clients[client].session.key_prefix().cloned();
        let page = Page { walk, shard, reign, prefix, map, kept: Vec::new(), survey: None };
        self.begin_flow(request, Box::new(page), None, sent);
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
