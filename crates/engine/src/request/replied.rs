//! What the reply that a client is given says of its request.

use cashew_protocol::{CommandClass, Outcome, OutcomeReader, ReplyForm};

use crate::request::Request;

/// A reply, as far as it is in its client's output.
#[derive(Clone, Copy, Default)]
pub(crate) struct Replied {
    reader: OutcomeReader,
    bytes: u64,
}

impl Replied {
    /// More of the reply to a request, which perhaps `gets` values, goes to the output.
    pub(crate) fn read(&mut self, form: ReplyForm, gets: bool, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.reader.read(form, gets, bytes);
    }
}

impl Request {
    /// Its reply goes to the client's output from here on.
    pub(crate) fn begin_streaming(&mut self) {
        if !self.streaming {
            self.streaming = true;
            self.replied = Replied::default();
        }
    }

    /// Bytes of its reply, or all of it, go to the client's output.
    pub(crate) fn reply_goes(&mut self, form: ReplyForm, bytes: &[u8]) {
        self.begin_streaming();
        self.replied.read(form, self.counting.class == CommandClass::Get, bytes);
    }

    /// What its reply says, of which the rest is at hand, and how long it is.
    #[inline]
    pub(crate) fn replied(&self, form: ReplyForm) -> (Outcome, u64) {
        let gets = self.counting.class == CommandClass::Get;
        let rest = if self.silent { &[][..] } else { &self.reply };
        if !self.streaming
            && let Some(outcome) = Outcome::of(form, gets, self.counting.keys, rest)
        {
            return (outcome, rest.len() as u64);
        }
        self.replied_in_pieces(form, gets, rest)
    }

    #[inline(never)]
    fn replied_in_pieces(&self, form: ReplyForm, gets: bool, rest: &[u8]) -> (Outcome, u64) {
        let mut replied = if self.streaming { self.replied } else { Replied::default() };
        replied.read(form, gets, rest);
        (replied.reader.finish(self.counting.keys), replied.bytes)
    }
}
