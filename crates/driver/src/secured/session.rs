//! What a secured connection has beside its socket.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use cashew_tls::{Facts, Failure, Parted, Stream};

use crate::socket::SLICES_MAX;
use crate::{Handler, Token};

/// The most plaintext of one record.
const RECORD_MAX: usize = 16 * 1024;
/// More is encrypted while less than this waits to be written: so three or four records wait at most.
const OUTPUT_MIN: usize = 48 * 1024;
/// Beyond this an output buffer is not kept while it is empty.
const KEPT_MAX: usize = 4 * 1024;

pub(super) struct Session {
    pub(super) generation: u32,
    stream: Stream,
    /// Received and not decrypted: part of a record, or what waits for its turn.
    pub(super) input: Vec<u8>,
    /// Encrypted; the first `written` bytes of it are written.
    output: Vec<u8>,
    written: usize,
    /// The last byte that was encrypted does not count as sent until all is written. So whoever has nothing left to
    /// send may close the connection.
    holds_byte: bool,
    is_open: bool,
    /// The connection below stands.
    pub(super) is_connected: bool,
    /// How long its handshake may take then.
    timeout: Duration,
    /// When the handshake must be over.
    pub(super) deadline: Option<Instant>,
    /// Listed as waiting for its turn.
    pub(super) is_waiting: bool,
    pub(super) is_paused: bool,
    /// The peer sends nothing more.
    pub(super) is_ended: bool,
    /// The end is listed to be reported, or was reported.
    pub(super) is_end_listed: bool,
    /// The end is to be reported when the connection is no longer paused.
    pub(super) is_end_held_back: bool,
    /// About to be closed.
    pub(super) is_failed: bool,
    pub(super) is_given_up: bool,
}

/// What a detached connection needs to go on elsewhere, beside its socket.
#[derive(Debug)]
pub struct Luggage {
    pub parted: Parted,
    /// Received and not decrypted.
    pub input: Vec<u8>,
    /// Encrypted and not written.
    pub output: Vec<u8>,
    /// The first byte that the handler has not sent is the last one in the output.
    pub holds_byte: bool,
}

/// What reading has led to.
pub(super) enum Turn {
    On,
    /// The handshake is over.
    Opened(Facts),
    Failed(Failure),
}

impl Session {
    /// Of a client.
    pub(super) fn accepted(generation: u32, stream: Stream, deadline: Instant) -> Self {
        let session = Self::connecting(generation, stream, Duration::ZERO);
        Self { is_connected: true, deadline: Some(deadline), ..session }
    }

    /// Of a connection to a server that is being made.
    pub(super) fn connecting(generation: u32, stream: Stream, timeout: Duration) -> Self {
        Self {
            generation,
            stream,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            holds_byte: false,
            is_open: false,
            is_connected: false,
            timeout,
            deadline: None,
            is_waiting: false,
            is_paused: false,
            is_ended: false,
            is_end_listed: false,
            is_end_held_back: false,
            is_failed: false,
            is_given_up: false,
        }
    }

    /// Of a connection that comes from elsewhere. `None` if it cannot go on.
    pub(super) fn adopted(generation: u32, luggage: Luggage) -> Option<Self> {
        let Luggage { parted, input, output, holds_byte } = luggage;
        let stream = Stream::resume(parted)?;
        let is_ended = stream.is_ended();
        let session = Self::connecting(generation, stream, Duration::ZERO);
        let (is_open, is_connected) = (true, true);
        let is_end_listed = is_ended;
        Some(Self {
            input,
            output,
            holds_byte,
            is_open,
            is_connected,
            is_ended,
            is_end_listed,
            ..session
        })
    }

    /// `None` if it has to end instead.
    pub(super) fn part(mut self) -> Option<Luggage> {
        if self.is_failed {
            return None;
        }
        self.forget_written();
        let Self { stream, input, output, holds_byte, .. } = self;
        Some(Luggage { parted: stream.part()?, input, output, holds_byte })
    }

    /// The connection below stands: the handshake waits for its turn. Returns when it must be over.
    pub(super) fn connected(&mut self, now: Instant) -> Instant {
        (self.is_connected, self.is_waiting) = (true, true);
        *self.deadline.insert(now + self.timeout)
    }

    /// The names of the client's certificate that may be its user's.
    pub(super) fn user_names(&self) -> Vec<String> {
        self.stream.user_names()
    }

    /// Whether its handshake is not over.
    pub(super) fn is_opening(&self) -> bool {
        !self.is_open
    }

    /// Lists it to be closed.
    pub(super) fn fail(&mut self, conn: Token, why: Failure, failed: &mut Vec<(Token, Failure)>) {
        if !std::mem::replace(&mut self.is_failed, true) {
            failed.push((conn, why));
        }
    }

    /// Decrypts `bytes`, which follow what is in `input`, into `plain`.
    pub(super) fn read(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>) -> Turn {
        self.forget_written();
        let Self { stream, input, output, .. } = self;
        let result = match input.is_empty() {
            true => stream.process(bytes, plain, output).inspect(|progress| {
                input.extend_from_slice(&bytes[progress.consumed..]);
            }),
            false => {
                input.extend_from_slice(bytes);
                stream.process(input, plain, output).inspect(|progress| {
                    input.drain(..progress.consumed);
                })
            }
        };
        if input.is_empty() {
            *input = Vec::new();
        }
        match result {
            Err(failure) => return Turn::Failed(failure),
            Ok(progress) => self.is_ended |= progress.is_ended,
        }
        match self.stream.facts() {
            Some(facts) if !self.is_open && !self.stream.is_handshaking() => {
                self.is_open = true;
                Turn::Opened(facts)
            }
            _ => Turn::On,
        }
    }

    /// Whether more is to be encrypted, if there is any.
    pub(super) fn has_room(&self) -> bool {
        self.is_open && !self.is_failed && self.output.len() - self.written < OUTPUT_MIN
    }

    /// Encrypts one record of what the handler has. Returns how much counts as sent by that; `None` if there was nothing.
    pub(super) fn encrypt(
        &mut self,
        conn: Token,
        handler: &impl Handler,
        gathered: &mut Vec<u8>,
    ) -> Result<Option<u64>, Failure> {
        let held = usize::from(self.holds_byte);
        let (piece, is_more) = handler.front(conn);
        let plain = match piece.get(held..) {
            Some(rest) if !is_more || rest.len() >= RECORD_MAX => {
                &rest[..rest.len().min(RECORD_MAX)]
            }
            _ => {
                gather(conn, held, handler, gathered);
                gathered
            }
        };
        if plain.is_empty() {
            return Ok(None);
        }
        self.forget_written();
        self.stream.encrypt(plain, &mut self.input, &mut self.output)?;
        self.holds_byte = true;
        Ok(Some((held + plain.len() - 1) as u64))
    }

    /// The written part of the output, which is moved away before more is appended.
    fn forget_written(&mut self) {
        self.output.drain(..std::mem::take(&mut self.written));
    }

    pub(super) fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    pub(super) fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Whether the handler, which has this, has what is not encrypted yet.
    pub(super) fn is_more_of(&self, (piece, is_more): (&[u8], bool)) -> bool {
        self.is_open && (is_more || piece.len() > usize::from(self.holds_byte))
    }

    /// The kernel has taken so much of the output. Returns how much of the plaintext counts as sent by that.
    pub(super) fn written(&mut self, bytes: u64) -> u64 {
        self.written += bytes as usize;
        if self.has_output() {
            return 0;
        }
        self.written = 0;
        match self.output.capacity() > KEPT_MAX {
            true => self.output = Vec::new(),
            false => self.output.clear(),
        }
        u64::from(std::mem::take(&mut self.holds_byte))
    }

    /// Whether its end, which is due, is to be reported now.
    pub(super) fn may_end(&mut self) -> bool {
        self.is_end_held_back = self.is_paused;
        !(self.is_paused || self.is_failed)
    }

    /// What the peer is told last.
    pub(super) fn close(&mut self) -> &[u8] {
        // What was given up is not to arrive, nor what would follow it.
        if self.is_given_up {
            return &[];
        }
        if self.is_open && !self.is_failed {
            self.stream.close(&mut self.input, &mut self.output);
        }
        self.output()
    }
}

/// The start of the handler's output, without its first bytes: one record's worth.
fn gather(conn: Token, skip: usize, handler: &impl Handler, gathered: &mut Vec<u8>) {
    gathered.clear();
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let count = handler.output(conn, &mut slices);
    let mut skip = skip;
    for slice in &slices[..count] {
        let rest = &slice[skip.min(slice.len())..];
        skip -= slice.len() - rest.len();
        gathered.extend_from_slice(&rest[..rest.len().min(RECORD_MAX - gathered.len())]);
    }
}
