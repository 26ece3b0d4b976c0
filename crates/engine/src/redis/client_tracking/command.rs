//! CLIENT TRACKING, CACHING, TRACKINGINFO and GETREDIR.

use cashew_protocol::Span;
use cashew_protocol::resp::encode;

use crate::base::id::ClientId;
use crate::downstream::listener::Choice;
use crate::downstream::receive::Plan;
use crate::downstream::tracking_mode::{Scope, TrackingMode};
use crate::engine::Engine;
use crate::upstream::session_params::WireProtocol;

const SYNTAX: &str = "ERR syntax error";
const NO_CACHING: &str = "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
                          OPTOUT mode enabled";
const NOT_RESP3: &str = "ERR CLIENT TRACKING needs RESP3 at this gateway (HELLO 3): in RESP2 it would tell another \
                         connection, which may be at another process";
const NO_REDIRECT: &str = "ERR CLIENT TRACKING with REDIRECT is not supported by this gateway: the other connection \
                           may be at another process. Without it, in RESP3, the connection itself is told";
const ROUTED: &str = "ERR CLIENT TRACKING is not supported at a route of this gateway, whose keys are at several pools";
const OTHER_SCOPE: &str = "ERR You can't switch BCAST mode on/off before disabling tracking for this client, and then \
                           re-enabling it with a different mode.";
const OTHER_OPT: &str = "ERR You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then \
                         re-enabling it with a different mode.";

/// Prefixes of one client, and bytes of all of them.
const PREFIXES_MAX: usize = 128;
const PREFIXES_SIZE_MAX: usize = 16 * 1024;

/// What follows ON or OFF.
#[derive(Default)]
struct Options {
    redirects: bool,
    broadcasts: bool,
    opts_in: bool,
    opts_out: bool,
    no_loop: bool,
    prefixes: Vec<Box<[u8]>>,
}

impl Options {
    fn parse(bytes: &[u8], args: &[Span]) -> Option<Self> {
        let mut options = Self::default();
        let mut words = args.iter().map(|arg| arg.of(bytes));
        while let Some(word) = words.next() {
            let is = |text: &str| word.eq_ignore_ascii_case(text.as_bytes());
            if is("redirect") {
                words.next()?;
                options.redirects = true;
            } else if is("prefix") {
                options.prefixes.push(words.next()?.into());
            } else if is("bcast") {
                options.broadcasts = true;
            } else if is("optin") {
                options.opts_in = true;
            } else if is("optout") {
                options.opts_out = true;
            } else if is("noloop") {
                options.no_loop = true;
            } else {
                return None;
            }
        }
        Some(options)
    }

    /// What the client wants from here on, which wanted `before` so far.
    fn mode(mut self, before: Option<&TrackingMode>) -> Result<TrackingMode, String> {
        if !self.broadcasts && !self.prefixes.is_empty() {
            return Err("ERR PREFIX option requires BCAST mode to be enabled".to_owned());
        }
        let broadcast = before.is_some_and(|it| matches!(it.scope, Scope::Prefixes(_)));
        if before.is_some() && broadcast != self.broadcasts {
            return Err(OTHER_SCOPE.to_owned());
        }
        if self.broadcasts && (self.opts_in || self.opts_out) {
            return Err("ERR OPTIN and OPTOUT are not compatible with BCAST".to_owned());
        }
        if self.opts_in && self.opts_out {
            return Err("ERR You can't specify both OPTIN mode and OPTOUT mode".to_owned());
        }
        let scope = before.map(|it| &it.scope);
        let is_other = self.opts_in && scope == Some(&Scope::OptOut)
            || self.opts_out && scope == Some(&Scope::OptIn);
        if is_other {
            return Err(OTHER_OPT.to_owned());
        }
        let scope = match (self.broadcasts, self.opts_in, self.opts_out) {
            (true, ..) => {
                let known = before.map_or(&[][..], |it| it.prefixes());
                check_prefixes(known, &self.prefixes)?;
                if self.prefixes.is_empty() {
                    self.prefixes.push(Box::default());
                }
                let mut all = known.to_vec();
                all.extend(self.prefixes.into_iter().filter(|prefix| !known.contains(prefix)));
                all.sort_unstable();
                let size: usize = all.iter().map(|prefix| prefix.len()).sum();
                if all.len() > PREFIXES_MAX || size > PREFIXES_SIZE_MAX {
                    return Err("ERR too many prefixes for one client at this gateway".to_owned());
                }
                Scope::Prefixes(all)
            }
            (false, true, _) => Scope::OptIn,
            (false, false, true) => Scope::OptOut,
            (false, false, false) => Scope::Read,
        };
        Ok(TrackingMode { scope, no_loop: self.no_loop, is_excepted: false })
    }
}

/// Prefixes of one client may not have keys in common.
fn check_prefixes(known: &[Box<[u8]>], more: &[Box<[u8]>]) -> Result<(), String> {
    let overlap = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
    let complain = |prefix: &[u8], what: &str, other: &[u8]| {
        let [prefix, other] = [prefix, other].map(|it| String::from_utf8_lossy(it).into_owned());
        Err(format!(
            "ERR Prefix '{prefix}' overlaps with {what} prefix '{other}'. Prefixes for a single client must not overlap."
        ))
    };
    for (at, prefix) in more.iter().enumerate() {
        if let Some(other) = known.iter().find(|other| overlap(prefix, other)) {
            return complain(prefix, "an existing", other);
        }
        if let Some(other) = more[at + 1..].iter().find(|other| overlap(prefix, other)) {
            return complain(prefix, "another provided", other);
        }
    }
    Ok(())
}

impl Engine {
    /// CLIENT TRACKING ON or OFF, with what follows.
    pub(crate) fn client_tracking(
        &mut self,
        client: ClientId,
        on: Option<bool>,
        bytes: &[u8],
        args: &[Span],
    ) -> Plan {
        let (Some(on), Some(options)) = (on, Options::parse(bytes, args)) else {
            return self.reply_error(client, SYNTAX);
        };
        if !on {
            self.clients[client].modes.end_tracking();
            self.update_off_fast_path(client);
            return self.say(client, b"+OK\r\n");
        }
        if options.redirects {
            return self.reply_error(client, NO_REDIRECT);
        }
        let session = &self.clients[client].session;
        let mode = match options.mode(self.clients[client].modes.tracking.as_deref()) {
            Ok(mode) => mode,
            Err(text) => return self.reply_error(client, &text),
        };
        if session.wire_protocol != WireProtocol::Resp3 {
            return self.reply_error(client, NOT_RESP3);
        }
        if self.destination_of(client).choice == Choice::Backends {
            return self.reply_error(client, ROUTED);
        }
        let backend = self.backend_of(client);
        // Until the first of them is answered it has none.
        let is_new = self.clients[client].modes.tracking.is_none();
        self.want_tracking(backend);
        if is_new && self.awaits_tracking(backend) {
            let conn = self.client_conn(client);
            self.tracking.waiting.push(conn);
            return Plan::Wait;
        }
        if let Some(text) = self.tracking_refused(backend) {
            return self.reply_error(client, &text);
        }
        self.clients[client].modes.enter().tracking = Some(Box::new(mode));
        self.begin_tracking(client);
        self.say(client, b"+OK\r\n")
    }

    /// CLIENT CACHING YES or NO.
    pub(crate) fn client_caching(&mut self, client: ClientId, word: &[u8]) -> Plan {
        let Some(mode) = self.clients[client].modes.tracking() else {
            return self.reply_error(client, NO_CACHING);
        };
        let (is_yes, is_no) = (word.eq_ignore_ascii_case(b"yes"), word.eq_ignore_ascii_case(b"no"));
        let text = match mode.scope {
            Scope::OptIn if is_yes => "",
            Scope::OptOut if is_no => "",
            _ if is_yes => {
                "ERR CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode."
            }
            _ if is_no => {
                "ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode."
            }
            _ => SYNTAX,
        };
        if !text.is_empty() {
            return self.reply_error(client, text);
        }
        mode.is_excepted = true;
        self.say(client, b"+OK\r\n")
    }

    /// CLIENT GETREDIR: 0 where the client itself is told, -1 where nobody is.
    pub(crate) fn client_getredir(&mut self, client: ClientId) -> Plan {
        let is_on = self.clients[client].modes.tracking.is_some();
        self.reply_with(client, |out| encode::write_integer(out, if is_on { 0 } else { -1 }))
    }

    pub(crate) fn client_trackinginfo(&mut self, client: ClientId) -> Plan {
        let resp = self.resp_of(client);
        let mode = self.clients[client].modes.tracking.as_deref();
        let flags = mode.map_or_else(|| vec!["off"], TrackingMode::flags);
        // As Redis, which has none for one that stands for all.
        let prefixes = mode.map_or(&[][..], TrackingMode::prefixes).to_vec();
        let redirect = if mode.is_some() { 0 } else { -1 };
        self.reply_with(client, |out| {
            encode::write_map_header(out, resp, 3);
            encode::write_bulk(out, b"flags");
            encode::write_set_header(out, resp, flags.len());
            flags.iter().for_each(|flag| encode::write_bulk(out, flag.as_bytes()));
            encode::write_bulk(out, b"redirect");
            encode::write_integer(out, redirect);
            encode::write_bulk(out, b"prefixes");
            encode::write_array_header(out, prefixes.len());
            prefixes.iter().for_each(|prefix| encode::write_bulk(out, prefix));
        })
    }
}
