//! CLIENT, as far as it concerns the connection that says it. For the rest see [`crate::redis::worker_query`].

use cashew_protocol::Span;
use cashew_protocol::redis::{self as table, Command};
use cashew_protocol::resp::encode;

use crate::base::id::ClientId;
use crate::downstream::client::{Client, Skip};
use crate::downstream::receive::Plan;
use crate::downstream::session::{NAME_MAX, check_name, is_attribute};
use crate::engine::Engine;

const SYNTAX: &str = "ERR syntax error";

impl Engine {
    pub(crate) fn client_command(
        &mut self,
        client: ClientId,
        command: &Command,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let arg = |at: usize| args.get(at).map_or(b"".as_slice(), |span| span.of(bytes));
        let resp = self.resp_of(client);
        match command.name {
            "client|id" => {
                let id = self.clients[client].session.id;
                self.reply_with(client, |out| encode::write_integer(out, id as i64))
            }
            "client|getname" => {
                let name = self.clients[client].session.name().map(<[u8]>::to_vec);
                self.reply_with(client, |out| match name {
                    Some(name) => encode::write_bulk(out, &name),
                    None => encode::write_null(out, resp),
                })
            }
            "client|setname" => match check_name(arg(2)) {
                Ok(()) => {
                    self.set_name(client, arg(2));
                    self.say(client, b"+OK\r\n")
                }
                Err(text) => self.reply_error(client, text),
            },
            "client|setinfo" => self.client_setinfo(client, arg(2), arg(3)),
            "client|info" | "client|list" | "client|kill" | "client|pause" | "client|unpause"
            | "client|unblock" => self.inquire(client, command, bytes, args),
            "client|maint_notifications" => self.client_maint_notifications(client, bytes, args),
            "client|reads" => self.client_reads(client, arg(2)),
            "client|reply" => self.client_reply(client, arg(2)),
            "client|no-evict" => match on_or_off(arg(2)) {
                Some(on) => {
                    self.clients[client].session.wishes.set_no_evict(on);
                    self.say(client, b"+OK\r\n")
                }
                None => self.reply_error(client, SYNTAX),
            },
            "client|no-touch" => match on_or_off(arg(2)) {
                Some(true) => self.reply_error(
                    client,
                    "ERR CLIENT NO-TOUCH ON is not supported by this gateway: clients share \
                     connections to servers, which would not touch keys for the others either",
                ),
                Some(false) => self.say(client, b"+OK\r\n"),
                None => self.reply_error(client, SYNTAX),
            },
            // It says what the client understands, none of which the gateway would say.
            "client|capa" => self.say(client, b"+OK\r\n"),
            "client|tracking" => self.client_tracking(
                client,
                on_or_off(arg(2)),
                bytes,
                args.get(3..).unwrap_or_default(),
            ),
            "client|caching" => self.client_caching(client, arg(2)),
            "client|getredir" => self.client_getredir(client),
            "client|trackinginfo" => self.client_trackinginfo(client),
            _ => self.reply_with(client, |out| table::unknown_command_error(out, bytes, args)),
        }
    }

    fn client_setinfo(&mut self, client: ClientId, option: &[u8], value: &[u8]) -> Plan {
        let name = if option.eq_ignore_ascii_case(b"lib-name") {
            "lib-name"
        } else if option.eq_ignore_ascii_case(b"lib-ver") {
            "lib-ver"
        } else {
            let option = String::from_utf8_lossy(option);
            return self.reply_error(client, &format!("ERR Unrecognized option '{option}'"));
        };
        if !is_attribute(value) {
            let text = format!("ERR {name} cannot contain spaces, newlines or special characters.");
            return self.reply_error(client, &text);
        }
        if value.len() > NAME_MAX {
            return self.reply_error(client, &format!("ERR {name} is too long."));
        }
        self.change_profile(client, |profile| match name {
            "lib-name" => profile.library = value.to_vec(),
            _ => profile.library_version = value.to_vec(),
        });
        self.say(client, b"+OK\r\n")
    }

    /// CLIENT REPLY ON|OFF|SKIP. Only ON is answered.
    fn client_reply(&mut self, client: ClientId, mode: &[u8]) -> Plan {
        let Client { noreply, skip, .. } = &mut self.clients[client];
        let is_off = *noreply && *skip == Skip::No;
        if mode.eq_ignore_ascii_case(b"on") {
            (*noreply, *skip) = (false, Skip::No);
            self.update_off_fast_path(client);
            return self.say(client, b"+OK\r\n");
        }
        if mode.eq_ignore_ascii_case(b"off") {
            (*noreply, *skip) = (true, Skip::No);
        } else if mode.eq_ignore_ascii_case(b"skip") {
            if !is_off {
                *skip = Skip::AfterThis;
            }
        } else {
            return self.reply_error(client, SYNTAX);
        }
        self.update_off_fast_path(client);
        Plan::Done
    }

    /// A request of a client that skips a reply has been dispatched.
    #[cold]
    pub(crate) fn advance_skip(&mut self, client: ClientId) {
        let Client { noreply, skip, .. } = &mut self.clients[client];
        (*noreply, *skip) = match *skip {
            Skip::AfterThis => (true, Skip::This),
            Skip::This | Skip::No => (false, Skip::No),
        };
        self.update_off_fast_path(client);
    }
}

fn on_or_off(word: &[u8]) -> Option<bool> {
    let is = |text: &str| word.eq_ignore_ascii_case(text.as_bytes());
    is("on").then_some(true).or(is("off").then_some(false))
}
