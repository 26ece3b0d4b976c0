//! What children of a node are asked, and what they answer.

use std::fmt::Debug;

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;

use crate::base::failure::{Failure, NamedFailure};
use crate::base::id::{BackendId, LaneId, RequestId};
use crate::base::outcome::Execution;
use crate::base::time::Time;
use crate::downstream::client::Selected;
use crate::engine::Engine;
pub(crate) use crate::request::Asked;
use crate::topology::route_tree::Operation;
use crate::upstream::misfit::Unknown;
use crate::upstream::session_params::WireProtocol;

/// Whether a request may be repeated that may have run already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeats {
    /// It reads.
    Freely,
    /// It leaves the same state when it runs twice, though its reply may be another.
    Alike,
    /// It must run once.
    Never,
}

/// What a node needs to know of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) operation: Operation,
    pub(crate) repeats: Repeats,
    /// The key's: see [`cashew_config::snapshot::share_of`].
    pub(crate) share: u32,
    /// A number that is another each time.
    pub(crate) random: u32,
    /// The gateway can answer it without asking anybody, as if nothing had been there.
    pub(crate) has_word: bool,
    /// It stores a whole value, whatever was there.
    pub(crate) overwrites: bool,
    /// What is answered like a miss may have changed something all the same.
    pub(crate) misses_change: bool,
    /// The key is removed in its place.
    pub(crate) removes: bool,
    /// It follows what another region has done.
    pub(crate) is_copy: bool,
}

/// What kind of answer a child has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Found, stored or done.
    Hit,
    /// Not there, or not stored for that.
    Miss,
    /// The server's error about itself: it did not run the request.
    Refused,
    /// Another error of the server's.
    Error,
    /// No answer.
    Failed(Execution),
    /// The gateway's own word.
    Said,
}

impl Kind {
    /// As the reference orders them: the higher, the worse.
    pub(crate) fn severity(self) -> u8 {
        match self {
            Self::Hit => 1,
            Self::Miss => 4,
            Self::Refused | Self::Failed(_) | Self::Said => 5,
            Self::Error => 9,
        }
    }

    /// Whether there is an answer of the data's.
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Self::Hit | Self::Miss)
    }
}

/// The answer of a child.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    /// Of its bytes: equal answers have equal ones.
    pub(crate) digest: u64,
    pub(crate) text: Text,
}

impl Answer {
    /// Whether its server has more to do than it may.
    pub(crate) fn is_too_much(&self) -> bool {
        matches!(&self.text, Text::Failure(named) if named.why == Failure::QueueFull)
    }
}

/// Where the words of an answer are.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    /// With an attempt.
    Reply(RequestId),
    Failure(NamedFailure),
    Word(Word),
}

/// What the gateway says by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// More than a node lets through.
    Overloaded,
    /// Children disagree: so many hits, misses and others.
    NoMajority(u8, u8, u8),
    /// Nobody waited for an answer.
    Unknown,
    /// The tree has no child for the key.
    NoRoute,
    /// As the tree has it, the key is empty, or longer than servers take.
    UnfitKey,
    /// Of memcached: its server has been seen not to know `ms`. It would read the data as commands.
    UnknownSet,
    /// The same of `ms` with the flag `E`.
    UnknownFlag,
}

/// What a node does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Waits for children that were asked.
    Wait,
    /// Asks these children, in this order.
    Ask(Vec<(usize, Change)>),
    /// This child's answer is the node's.
    Answer(usize),
    Say(Word),
    /// Asks these children, and has nobody wait for them.
    SayAndAsk(Word, Vec<(usize, Change)>),
    /// This child's answer is the node's, and what it has is added to another child.
    AnswerAndFill(usize, usize),
    /// This child's answer is the node's, and these children get the same now, whom nobody waits for.
    AnswerAndCopy(usize, Vec<(usize, Change)>),
    /// This child's server is to forget the key when it is back.
    Keep(usize),
}

impl Verdict {
    pub(crate) fn ask(children: impl IntoIterator<Item = usize>) -> Self {
        Self::Ask(children.into_iter().map(|child| (child, Change::None)).collect())
    }
}

/// How a child is asked otherwise than the client asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// What is stored lives no longer than so many milliseconds.
    Ttl(u64),
    /// About another copy of the key.
    Copy(u32),
    /// The key is removed instead.
    Delete,
    /// Another copy of the key is removed.
    DeleteCopy(u32),
}

/// What decides which lanes a client takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    pub(crate) wire_protocol: WireProtocol,
    pub(crate) database: Selected,
    pub(crate) lane_choice: u16,
}

/// What a cold backend is to get of a warm one.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) warm: Side,
    pub(crate) cold: Side,
    /// How long it lives there, in milliseconds, if not as long as where it is.
    pub(crate) ttl_ms: Option<u64>,
}

/// Where a key is, and under which name.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) backend: BackendId,
    pub(crate) key: Vec<u8>,
}

/// One key's request, in a form that is always answered.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) text: Vec<u8>,
    /// As servers are to know it, and where it is in the text, perhaps in base64.
    pub(crate) key: Vec<u8>,
    pub(crate) key_at: Span,
    pub(crate) expect: Expect,
    pub(crate) asked: Asked,
    /// It asks for a unique of memcached's, or names one.
    pub(crate) asks_unique: bool,
    pub(crate) names_unique: bool,
    /// Of memcached: not all answers are for the client.
    pub(crate) is_quiet: bool,
    pub(crate) is_base64: bool,
    /// Of a packet: as the client has it, which may be a quiet one.
    pub(crate) opcode: u8,
}

/// How a protocol says things.
pub(crate) trait Dialect: Debug + Sync {
    /// The same about another key.
    fn about(&self, question: &Question, key: &[u8]) -> Vec<u8>;

    /// Whether servers take a request about a key, by its length as it is sent. Others must not be sent: memcached
    /// refuses the line, and reads the data behind it as commands.
    fn takes(&self, question: &Question, key: &[u8]) -> bool;

    /// What is said of a request because its server has been seen not to know it.
    fn refusal(&self, _expect: Expect, _unknown: &Unknown, _now: Time) -> Option<Word> {
        None
    }

    /// Whether the server may not know a request, and read its data as commands: it is sent on a connection that nobody
    /// else has meanwhile.
    fn is_risky(&self, _expect: Expect) -> bool {
        false
    }

    /// A request that removes a key.
    fn removal(&self, question: &Question, key: &[u8]) -> (Vec<u8>, Expect, Asked);

    /// Has what a request stores live no longer than that. Returns what has to be said behind it.
    fn limit_life(
        &self,
        question: &Question,
        text: &mut Vec<u8>,
        key: &[u8],
        ttl_ms: u64,
    ) -> Option<Vec<u8>>;

    fn kind(&self, question: &Question, reply: &[u8]) -> Kind;

    fn write_word(&self, question: &Question, word: Word, out: &mut Vec<u8>);

    /// Whether [`Word::Unknown`] is an answer to it.
    fn has_word(&self, question: &Question) -> bool;

    /// Of a reply: equal ones have equal ones, whichever server gave them.
    fn digest(&self, question: &Question, reply: &[u8]) -> u64;

    /// The reply about the client's key, if it names the key that was `asked` about instead.
    fn restored(&self, question: &Question, asked: &[u8], reply: &[u8]) -> Option<Vec<u8>>;

    /// The replies to several keys, in their order, as one. `question` is that of the first.
    fn join(&self, question: &Question, replies: &[Vec<u8>]) -> Vec<u8>;

    /// Writes what is said of a request that no server has answered.
    fn write_failure(
        &self,
        question: &Question,
        failure: &NamedFailure,
        misses: bool,
        out: &mut Vec<u8>,
    );

    /// A request that names a unique, as the lane's server knows that.
    fn untag(&self, engine: &Engine, lane: LaneId, text: &[u8]) -> Option<Vec<u8>>;

    /// Whether the client does not want to see the answer, which it gets under the name that it asked by.
    fn is_unwanted(&self, question: &Question, reply: &mut [u8]) -> bool;

    /// Begins to copy a key. Returns whether it has begun.
    fn fill(&self, engine: &mut Engine, seat: Seat, fill: Fill) -> bool;
}

/// FNV-1a of an answer's bytes.
pub(crate) fn digest(reply: &[u8]) -> u64 {
    reply.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
