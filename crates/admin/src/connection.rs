//! One connection to the stats port, from its first byte to its close. Never blocks. Each phase has
//! a time limit.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use crate::http::{self, Speech};
use crate::source::Source;
use crate::stats;

/// How long a client may send nothing, or too little to recognise HTTP, before it gets plain JSON.
/// This delays clients that connect to a nutcracker and only read.
const DETECT_TIMEOUT: Duration = Duration::from_millis(100);
/// From the connection to the end of an HTTP request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// For the client to read the whole response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// For the client to close after the response. Closing first, with unread input, would reset the
/// connection and might cost the client the end of the response.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);

/// Most reads of ignored input before other connections are served.
const READS_MAX: usize = 8;

pub(crate) struct Connection {
    stream: TcpStream,
    phase: Phase,
    opened: Instant,
    deadline: Instant,
    /// When it last read or wrote anything.
    moved: Instant,
}

enum Phase {
    /// At most [`http::REQUEST_SIZE_MAX`] bytes.
    Reading {
        input: Vec<u8>,
    },
    Writing {
        output: Vec<u8>,
        written: usize,
    },
    /// The response and the end of our side are sent; further input is dropped.
    Lingering,
    Closed,
}

impl Connection {
    /// `stream` is non-blocking.
    pub(crate) fn new(stream: TcpStream, now: Instant) -> Self {
        let phase = Phase::Reading { input: Vec::new() };
        Self { stream, phase, opened: now, deadline: now + DETECT_TIMEOUT, moved: now }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    pub(crate) fn wants_write(&self) -> bool {
        matches!(self.phase, Phase::Writing { .. })
    }

    /// Bytes of the response that it holds.
    pub(crate) fn output_size(&self) -> usize {
        match &self.phase {
            Phase::Writing { output, .. } => output.capacity(),
            Phase::Reading { .. } | Phase::Lingering | Phase::Closed => 0,
        }
    }

    /// The connection with the smallest claim is closed first: one that is complete, then the one
    /// idle for longest.
    pub(crate) fn claim(&self) -> (bool, Instant) {
        (!matches!(self.phase, Phase::Lingering | Phase::Closed), self.moved)
    }

    pub(crate) fn close(&mut self) {
        self.phase = Phase::Closed;
    }

    /// The stream is readable, writable or has failed.
    pub(crate) fn handle_ready(&mut self, source: &Source, now: Instant) {
        match &self.phase {
            Phase::Reading { .. } => self.read(source, now),
            Phase::Writing { .. } => self.write(now),
            Phase::Lingering => self.drain(),
            Phase::Closed => {}
        }
    }

    /// The deadline has passed.
    pub(crate) fn handle_timeout(&mut self, source: &Source, now: Instant) {
        match &self.phase {
            Phase::Reading { input } => match http::speech(input) {
                Speech::Http => self.respond(http::request_timeout(), now),
                Speech::Undecided | Speech::Other => self.respond_raw(source, now),
            },
            Phase::Writing { .. } | Phase::Lingering | Phase::Closed => self.phase = Phase::Closed,
        }
    }

    /// Last chance: answers what has been received so far.
    pub(crate) fn part(&mut self, source: &Source, now: Instant) {
        self.handle_ready(source, now);
        if matches!(self.phase, Phase::Reading { .. }) {
            self.handle_timeout(source, now);
        }
    }

    fn read(&mut self, source: &Source, now: Instant) {
        let Phase::Reading { input } = &mut self.phase else { return };
        let mut chunk = [0; http::REQUEST_SIZE_MAX];
        let room = http::REQUEST_SIZE_MAX - input.len();
        let ended = match self.stream.read(&mut chunk[..room]) {
            Ok(0) => true,
            Ok(size) => {
                self.moved = now;
                input.extend_from_slice(&chunk[..size]);
                false
            }
            Err(error) if is_transient(error.kind()) => return,
            Err(_) => {
                self.phase = Phase::Closed;
                return;
            }
        };
        match http::speech(input) {
            Speech::Undecided if !ended => {}
            Speech::Undecided | Speech::Other => self.respond_raw(source, now),
            Speech::Http => {
                self.deadline = self.opened + REQUEST_TIMEOUT;
                match http::answer(input, source) {
                    Some(response) => self.respond(response, now),
                    None if ended => self.respond(http::bad_request(), now),
                    None => {}
                }
            }
        }
    }

    fn respond_raw(&mut self, source: &Source, now: Instant) {
        self.respond(stats::unasked(source), now);
    }

    fn respond(&mut self, output: Vec<u8>, now: Instant) {
        self.phase = Phase::Writing { output, written: 0 };
        self.deadline = now + RESPONSE_TIMEOUT;
        self.write(now);
    }

    fn write(&mut self, now: Instant) {
        let Phase::Writing { output, written } = &mut self.phase else { return };
        while *written < output.len() {
            match self.stream.write(&output[*written..]) {
                Ok(size) => {
                    self.moved = now;
                    *written += size;
                }
                Err(error) if is_transient(error.kind()) => return,
                Err(_) => {
                    self.phase = Phase::Closed;
                    return;
                }
            }
        }
        self.deadline = now + LINGER_TIMEOUT;
        self.phase = match self.stream.shutdown(Shutdown::Write) {
            Ok(()) => Phase::Lingering,
            Err(_) => Phase::Closed,
        };
    }

    fn drain(&mut self) {
        let mut chunk = [0; http::REQUEST_SIZE_MAX];
        for _ in 0..READS_MAX {
            match self.stream.read(&mut chunk) {
                Ok(size) if size > 0 => {}
                Err(error) if is_transient(error.kind()) => return,
                Ok(_) | Err(_) => {
                    self.phase = Phase::Closed;
                    return;
                }
            }
        }
    }
}

fn is_transient(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
