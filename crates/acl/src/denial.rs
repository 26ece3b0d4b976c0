//! A request to decide about, and why it is denied.

use cashew_protocol::Span;
use cashew_protocol::redis::{Command, Rule, SessionRule, Subscription};

use crate::commands::shown_name;
use crate::keys::Touch;

/// A request: its command, and the arguments with the command's name.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub command: &'static Command,
    pub buf: &'a [u8],
    pub args: &'a [Span],
}

/// The second and third have the index of the argument that is the key or the channel.
///
/// The order is Redis's: of the reasons of several selectors the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    Command,
    Key(usize),
    Channel(usize),
}

/// A channel of a request.
pub(crate) struct Channel<'a> {
    pub(crate) at: usize,
    pub(crate) name: &'a [u8],
    pub(crate) is_pattern: bool,
}

impl<'a> Call<'a> {
    pub(crate) fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let buf = self.buf;
        self.args.iter().skip(1).map(move |arg| arg.of(buf))
    }

    /// The only key of commands that have exactly one at a fixed place, as [`Call::keys`] has it.
    pub(crate) fn only_key(&self) -> Option<(usize, Touch)> {
        let Self { command, buf, args } = *self;
        let at = command.single_key().filter(|&at| at < args.len())?;
        (!command.has_no_true_keys()).then(|| (at, Touch::of(command.uses_in(buf, args, 0))))
    }

    /// The keys as indexes of arguments, with what is done to them. The error is for requests whose
    /// keys cannot be found, though the gateway might not refuse them for that.
    pub(crate) fn keys(&self) -> Result<Vec<(usize, Touch)>, Denial> {
        let Self { command, buf, args } = *self;
        if command.has_no_true_keys() {
            return Ok(Vec::new());
        }
        let mut keys = Vec::new();
        if command.keys(buf, args, &mut keys).is_err() {
            // Redis looks at keys only after it has found them, and has an error of its own here.
            let is_refused = matches!(
                command.rule,
                Rule::Forward | Rule::Split(_) | Rule::Block | Rule::Session(SessionRule::Watch)
            );
            return if is_refused { Ok(Vec::new()) } else { Err(Denial::Command) };
        }
        // Arguments stand in their order, and there may be many thousands.
        let at =
            |key: &Span| args.binary_search_by_key(&key.start, |arg| arg.start).unwrap_or_default();
        let touch = |position| Touch::of(command.uses_in(buf, args, position));
        Ok(keys.iter().enumerate().map(|(position, key)| (at(key), touch(position))).collect())
    }

    /// Channels that it publishes to or wants to hear. Leaving one is always allowed.
    pub(crate) fn channels(&self) -> impl Iterator<Item = Channel<'a>> + use<'a> {
        let Self { command, buf, args } = *self;
        let (count, is_pattern) = match command.rule {
            Rule::Publish => (1, false),
            Rule::Subscribe(Subscription::Subscribe | Subscription::Ssubscribe) => {
                (args.len(), false)
            }
            Rule::Subscribe(Subscription::Psubscribe) => (args.len(), true),
            _ => (0, false),
        };
        let args = args.iter().enumerate().skip(1).take(count);
        args.map(move |(at, arg)| Channel { at, name: arg.of(buf), is_pattern })
    }
}

impl Denial {
    /// As Redis answers the request.
    pub fn reply(self, call: &Call<'_>) -> String {
        match self {
            Self::Command => format!(
                "NOPERM this user has no permissions to run the '{}' command",
                shown_name(call.command)
            ),
            Self::Key(_) => {
                "NOPERM this user has no permissions to access one of the keys used as \
                             arguments"
                    .to_owned()
            }
            Self::Channel(_) => {
                "NOPERM this user has no permissions to access one of the channels \
                                 used as arguments"
                    .to_owned()
            }
        }
    }

    /// As ACL DRYRUN says it, of any bytes.
    pub fn explain(self, call: &Call<'_>) -> Vec<u8> {
        let (verb, object, kind) = match self {
            Self::Command => ("run", shown_name(call.command).as_bytes(), "command"),
            Self::Key(at) => ("access", call.args[at].of(call.buf), "key"),
            Self::Channel(at) => ("access", call.args[at].of(call.buf), "channel"),
        };
        let mut text = format!("This user has no permissions to {verb} the '").into_bytes();
        text.extend_from_slice(object);
        text.extend_from_slice(format!("' {kind}").as_bytes());
        text
    }

    /// As ACL LOG names it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Key(_) => "key",
            Self::Channel(_) => "channel",
        }
    }
}
