//! RESP, the protocol of Redis: requests from clients, replies from servers, and encoders for both.
//!
//! Protocol facts are those of redis-server 7.0 (`processInlineBuffer` and
//! `processMultibulkBuffer` in its networking.c) and of <https://redis.io/docs/reference/protocol-spec/>.

mod decimal;
pub mod encode;
mod inline;
mod plain;
mod reply;
mod request;
mod tail;
mod value;

pub use decimal::integer;
pub use inline::quoted_words;
pub(crate) use plain::name_word;
pub use plain::{
    PlainHead, PlainRequest, plain_head, plain_reply, plain_reply_of, plain_reply_or_array,
};
pub use reply::{ReplyScanner, Scan};
pub use request::{ARGS_MAX, BULK_BYTES_MAX, LINE_BYTES_MAX, Parsed, ProtocolError, RequestParser};
pub use tail::{Tail, TailScan};
pub use value::{Elements, Reply, is_error, reply};

/// The protocol version, as in HELLO: RESP3 is RESP2 with more types of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Version {
    #[default]
    Resp2,
    Resp3,
}

impl Version {
    pub fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}
