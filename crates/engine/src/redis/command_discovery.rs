//! Commands that are not in the table: those of the configuration, and those that a server is asked
//! about when a client says them first.

use cashew_protocol::memcached::Expect;
use cashew_protocol::redis::{Access, CUSTOM_MAX, CUSTOM_NAME_MAX, Lookup, definitions};
use cashew_protocol::resp::encode;
use cashew_protocol::{Span, redis};

use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{ClientId, ListenerId, RequestId};
use crate::downstream::listener::Listener;
use crate::downstream::receive::Plan;
use crate::engine::Engine;
use crate::exchange::dispatch::Payload;
use crate::exchange::flow::{Flow, FlowContext, Step};
use crate::request::{Due, Role};

/// What a server is asked about the command of this name.
#[derive(Debug)]
struct Discovery(Box<str>);

impl Flow for Discovery {
    fn on_reply(&mut self, cx: &mut FlowContext<'_>, _attempt: RequestId, reply: &[u8]) -> Step {
        for listener in cx.engine.listeners_before(cx.backend()).collect::<Vec<ListenerId>>() {
            cx.engine.listeners[listener].learn(&self.0, reply);
        }
        // Nothing for the client, which has not asked for it.
        Step::Reply(Vec::new())
    }

    fn on_failure(
        &mut self,
        cx: &mut FlowContext<'_>,
        attempt: RequestId,
        _: NamedFailure,
    ) -> Step {
        self.on_reply(cx, attempt, b"")
    }
}

impl Engine {
    /// What a request calls that is not in the table, or what to do first to know.
    #[cold]
    pub(crate) fn look_further(
        &mut self,
        client: ClientId,
        bytes: &[u8],
        args: &[Span],
    ) -> Result<Lookup, Plan> {
        let owner = &mut self.clients[client];
        let listener = &self.listeners[owner.listener];
        let asked = std::mem::take(&mut owner.looked_up);
        let lookup = listener.commands.find(bytes, args);
        let Ok(name) = std::str::from_utf8(args[0].of(bytes)) else { return Ok(lookup) };
        let is_worth_asking = matches!(lookup, Lookup::UnknownCommand)
            && listener.config.commands_from_servers
            && listener.learnt.len() < CUSTOM_MAX
            && owner.session.authenticated
            && asked != listener.commands_version
            && name.len() <= CUSTOM_NAME_MAX;
        if !is_worth_asking {
            return Ok(lookup);
        }
        owner.looked_up = listener.commands_version;
        Err(self.ask_about(client, name))
    }

    /// Asks a server about a command on behalf of a client, whose request waits meanwhile: the
    /// question has its place among the client's requests, but no reply.
    fn ask_about(&mut self, client: ClientId, name: &str) -> Plan {
        let mut question = Vec::new();
        encode::write_command(&mut question, &[b"COMMAND", b"INFO", name.as_bytes()]);
        let backend = self.backend_of(client);
        let lane = match self.any_server(client, Access::None) {
            Some(server) => self.lane_for(client, server, question.len()),
            None => Err(Failure::NoServer),
        };
        let lane = match lane {
            Ok(lane) => lane,
            Err(failure) => return self.fail(client, failure),
        };
        let parent = self.new_request(client);
        let (fragment, _) = self.requests.add(backend, ClientId::NONE, self.now);
        self.requests[fragment].role = Role::Fragment { parent, next: RequestId::NONE };
        self.requests[fragment].expect = Expect::Line;
        self.requests[fragment].due = Due::Anything;
        self.attach(parent, Box::new(Discovery(name.into())), None, (fragment, 1));
        self.send(lane, fragment, Payload::Bytes(&question));
        Plan::Wait
    }
}

impl Listener {
    /// Takes in what a server told.
    pub(crate) fn learn(&mut self, name: &str, reply: &[u8]) {
        for definition in definitions(name, reply) {
            let is_known =
                self.learnt.iter().any(|known| known.name.eq_ignore_ascii_case(&definition.name));
            if !is_known && self.learnt.len() < CUSTOM_MAX {
                self.learnt.push(definition);
            }
        }
        self.define_commands();
    }

    /// Makes the commands anew of what is configured and what is learnt.
    pub(crate) fn define_commands(&mut self) {
        let configured = self.config.commands.iter().map(|command| command.definition());
        let all: Vec<redis::Definition> = configured.chain(self.learnt.iter().cloned()).collect();
        self.commands = redis::CustomCommands::new(&all, &self.commands);
        self.decide_policy();
    }
}
