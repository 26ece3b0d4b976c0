//! One command to every server of the ring, and the replies of all made one.

use std::sync::Arc;

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Fan};
use cashew_protocol::resp::{self, Version};

use super::{Way, asks_for_all, info, limit_of, merge, tolerates, write_info};
use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, ClientId, RequestId, ServerId};
use crate::downstream::key_prefix::KeyPrefix;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::redis::pubsub::publish;
use crate::redis::script_replay::Remembered;
use crate::redis::scripts::Sha;
use crate::redis::tenant;
use crate::request::{Due, Role};

/// A command that all servers get at once.
#[derive(Debug)]
struct Broadcast(Rule);

/// How the replies become one. An error of any server is the answer, unless others do.
#[derive(Debug)]
enum Rule {
    /// As the command says.
    Fan(Fan),
    /// What each server says, under its name.
    Named(Named),
    /// The newest entries of several logs.
    Newest(Newest),
    /// The sum for each channel, to which so much is to be added.
    Numsub(Box<[i32]>),
    /// SCRIPT EXISTS, and which of the scripts are remembered here.
    Scripts(Box<Remembered>),
    /// KEYS of a user whose keys begin so.
    Keys(Arc<KeyPrefix>),
    /// What all say alike, to SCRIPT LOAD of a script that is new.
    Load(Sha),
}

/// A merge that tells servers by their names.
#[derive(Debug)]
struct Named {
    fan: Fan,
    version: Version,
    /// With what the gateway says of itself behind it.
    tells_own: bool,
    /// To a client that is to see a cluster.
    poses: bool,
    /// In the order of the attempts.
    names: Vec<Box<str>>,
}

/// A merge of the newest entries of several logs.
#[derive(Debug)]
struct Newest {
    /// So many at most.
    limit: usize,
    /// Whose, in the order of the attempts, and of how many servers.
    places: Vec<ServerId>,
    servers: u32,
}

impl Rule {
    fn is_error(&self) -> fn(&[u8]) -> bool {
        match self {
            Self::Fan(fan) if tolerates(*fan) => |_| false,
            Self::Named(_) => |_| false,
            _ => resp::is_error,
        }
    }

    fn due(&self) -> Due {
        match self {
            Self::Fan(Fan::Sum | Fan::Least | Fan::Most) => Due::Integer,
            _ => Due::Anything,
        }
    }
}

impl Broadcast {
    /// Makes the replies one; `None` if they make no sense together.
    fn merge(&self, cx: &mut FlowContext<'_>, out: &mut Vec<u8>) -> Option<()> {
        let is_error = self.0.is_error();
        let error = cx.replies().find(|reply| is_error(reply));
        if error.map(|error| out.extend_from_slice(error)).is_some() {
            if let Rule::Load(sha) = &self.0 {
                let pool = cx.backend();
                cx.engine.load_refused(pool, sha, out);
            }
            return Some(());
        }
        match &self.0 {
            Rule::Fan(fan) => merge::merge(*fan, cx.replies(), out),
            Rule::Load(_) => merge::merge(Fan::Same, cx.replies(), out),
            Rule::Keys(prefix) => {
                let mut all = Vec::new();
                merge::merge(Fan::Concat, cx.replies(), &mut all)?;
                out.extend_from_slice(
                    prefix.reply(tenant::Named::All, &all).as_deref().unwrap_or(&all),
                );
                Some(())
            }
            Rule::Named(named) => cx.engine.merge_named(cx.backend(), cx.replies(), named, out),
            Rule::Newest(Newest { limit, places, servers }) => {
                merge::newest(cx.replies(), places, *servers, *limit, out)
            }
            Rule::Numsub(corrections) => {
                let mut sums = Vec::new();
                merge::merge(Fan::SumPairs, cx.replies(), &mut sums)
                    .and_then(|()| publish::correct_each(&sums, corrections, out))
            }
            Rule::Scripts(asked) => {
                let known: Vec<_> = cx.replies().map(merge::integers).collect();
                let pool = cx.backend();
                cx.engine.note_existing(pool, asked, &known);
                merge::scripts(cx.replies(), asked.are_there(), out)
            }
        }
    }
}

impl Flow for Broadcast {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, _reply: &[u8]) -> Step {
        if cx.pending() > 0 {
            return Step::Wait;
        }
        // Few merged replies are longer than what they are made of, but for a number's digits.
        let room = cx.replies().map(<[u8]>::len).sum::<usize>() + 32;
        cx.reply_or_bad(room, |cx, out| self.merge(cx, out))
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        _: NamedFailure,
    ) -> Step {
        self.on_reply(cx, attempt, b"")
    }

    fn size(&self) -> usize {
        match &self.0 {
            Rule::Named(named) => {
                let names = named.names.iter().map(|name| name.len() + size_of_val(name));
                size_of::<Self>() + names.sum::<usize>()
            }
            Rule::Newest(newest) => {
                size_of::<Self>() + newest.places.capacity() * size_of::<ServerId>()
            }
            _ => 0,
        }
    }
}

impl Engine {
    /// Sends the same bytes to every server of the ring. `loaded` is the script that they bring, if
    /// that is new.
    pub(super) fn broadcast(
        &mut self,
        client: ClientId,
        (command, fan, loaded): (&Command, Fan, Option<Sha>),
        text: &[u8],
        args: &[Span],
        way: Way,
    ) -> Plan {
        let backend = self.backend_of(client);
        let live = self.heads(backend);
        let mut lanes = Vec::with_capacity(live.len());
        for &server in &live {
            match self.lane_by(client, server, way) {
                Ok(Some(lane)) => lanes.push(Ok(lane)),
                Ok(None) => return Plan::Wait,
                Err(why) if tolerates(fan) => {
                    lanes.push(Err(self.backends[backend].named(server, why)));
                }
                Err(why) => return self.fail_for(client, server, why),
            }
        }
        if lanes.is_empty() {
            return self.fail(client, Failure::NoServer);
        }
        let rule = match (fan, loaded) {
            (_, Some(sha)) => Rule::Load(sha),
            (Fan::PerServer, _) => self.named(client, fan, &live, false),
            (Fan::Info, _) => self.named(client, fan, &live, asks_for_all(text, args)),
            (Fan::Newest, _) => {
                let servers = self.backends[backend].servers.len() as u32;
                Rule::Newest(Newest { limit: limit_of(text, args), places: live, servers })
            }
            (Fan::Scripts, _) => {
                let shas = args.get(2..).unwrap_or_default().iter().map(|arg| arg.of(text));
                Rule::Scripts(self.remembered(backend, shas, &live))
            }
            (Fan::SumPairs, _) => match self.audience_corrections(backend, command, text, args) {
                Some(corrections) => Rule::Numsub(corrections),
                None => Rule::Fan(fan),
            },
            (Fan::Concat, _) => match self.clients[client].session.key_prefix() {
                Some(prefix) => Rule::Keys(Arc::clone(prefix)),
                None => Rule::Fan(fan),
            },
            _ => Rule::Fan(fan),
        };
        let due = rule.due();
        let request = self.new_request(client);
        let (mut attempts, mut pending) = (RequestId::NONE, 0);
        for lane in lanes.into_iter().rev() {
            let (attempt, slot) = self.requests.add(backend, ClientId::NONE, self.now);
            slot.role = Role::Fragment { parent: request, next: attempts };
            slot.due = due;
            attempts = attempt;
            match lane {
                Ok(lane) => {
                    pending += 1;
                    self.send(lane, attempt, Payload::Bytes(text));
                    if command.is_sealed() {
                        self.seal(lane);
                    }
                }
                Err(failure) => self.fail_attempt(attempt, &failure),
            }
        }
        self.go_on_with(request, Box::new(Broadcast(rule)), (attempts, pending));
        Plan::Done
    }

    fn named(&self, client: ClientId, fan: Fan, servers: &[ServerId], tells_own: bool) -> Rule {
        let backend = &self.backends[self.backend_of(client)];
        let client = &self.clients[client];
        let names = servers.iter().map(|&server| backend.shown_name(server).into());
        let version = client.session.wire_protocol.resp();
        let poses = self.listeners[client.listener].config.pose.is_some();
        Rule::Named(Named { fan, version, tells_own, poses, names: names.collect() })
    }

    /// PerServer and INFO.
    fn merge_named<'r>(
        &self,
        backend: BackendId,
        mut replies: impl Iterator<Item = &'r [u8]> + Clone,
        named: &Named,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        if named.fan == Fan::PerServer {
            merge::per_server(named.version, &named.names, replies, out);
            return Some(());
        }
        let texts = replies.clone().filter_map(merge::text);
        let texts = texts.filter_map(|text| std::str::from_utf8(text).ok());
        if texts.clone().next().is_none() {
            out.extend_from_slice(replies.find(|reply| resp::is_error(reply))?);
            return Some(());
        }
        let mut info = info::merge(
            texts,
            self.identity.process_id,
            self.backends[backend].config.hide_topology,
        );
        if named.poses {
            info = info::of_cluster(&info);
        }
        if named.tells_own {
            info.push_str("\r\n");
            info.push_str(&self.own_info(backend));
        }
        write_info(out, named.version, &info);
        Some(())
    }
}
