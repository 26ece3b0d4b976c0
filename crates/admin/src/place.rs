//! A connection's place among those of the stats port: what it does, until when it may, and what it
//! holds. Whoever needs the place tells the connection here.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How long a client may send nothing, or too little to recognise HTTP, before it gets plain JSON.
/// This delays clients that connect to a nutcracker and only read.
const DETECT_TIMEOUT: Duration = Duration::from_millis(100);
/// From the connection, or from the first byte of a further request, to the end of the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// For the master to do what is asked for, and a moment more.
const WAITING_TIMEOUT: Duration = Duration::from_secs(cashew_api::WAIT_MAX + 10);
/// For the client to read the whole response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// For a client that keeps its connection to send another request.
const REST_TIMEOUT: Duration = Duration::from_secs(10);
/// For the client to close after the response. Closing first, with unread input, would reset the
/// connection and might cost the client the end of the response.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is not known yet what the client speaks.
    Detecting,
    Reading,
    /// The master is waited for.
    Waiting,
    Responding,
    /// The response is sent, and the client may ask again.
    Resting,
    /// The response and the end of our side are sent; further input is dropped.
    Lingering,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    Stays,
    /// It is to answer what it has, and end.
    Parts,
    /// It is to end.
    Closes,
}

pub(crate) struct Place {
    opened: Instant,
    phase: Cell<Phase>,
    deadline: Cell<Instant>,
    /// When it last read or wrote anything.
    moved: Cell<Instant>,
    /// Bytes of the response that it holds.
    output: Cell<usize>,
    stay: Cell<Stay>,
    waker: RefCell<Option<Waker>>,
}

/// The time is up, or another needs the place.
pub(crate) struct Over;

impl Place {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            opened: now,
            phase: Cell::new(Phase::Detecting),
            deadline: Cell::new(now + DETECT_TIMEOUT),
            moved: Cell::new(now),
            output: Cell::new(0),
            stay: Cell::new(Stay::Stays),
            waker: RefCell::new(None),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        let now = Instant::now();
        let deadline = match (phase, self.phase.replace(phase)) {
            (Phase::Detecting, _) => now + DETECT_TIMEOUT,
            (Phase::Reading, Phase::Detecting) => self.opened + REQUEST_TIMEOUT,
            (Phase::Reading, _) => now + REQUEST_TIMEOUT,
            (Phase::Waiting, _) => now + WAITING_TIMEOUT,
            (Phase::Responding, _) => now + RESPONSE_TIMEOUT,
            (Phase::Resting, _) => now + REST_TIMEOUT,
            (Phase::Lingering, _) => now + LINGER_TIMEOUT,
        };
        self.deadline.set(deadline);
    }

    pub(crate) fn moves(&self) {
        self.moved.set(Instant::now());
    }

    pub(crate) fn output(&self) -> usize {
        self.output.get()
    }

    pub(crate) fn set_output(&self, size: usize) {
        self.output.set(size);
    }

    /// The connection with the smallest claim is closed first: one that is complete, then the one
    /// idle for longest.
    pub(crate) fn claim(&self) -> (bool, Instant) {
        (!matches!(self.phase(), Phase::Resting | Phase::Lingering), self.moved.get())
    }

    pub(crate) fn is_parting(&self) -> bool {
        self.stay.get() != Stay::Stays
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.stay.get() == Stay::Closes
    }

    /// Last chance: answers what has been received so far.
    pub(crate) fn part(&self) {
        if self.stay.get() == Stay::Stays {
            self.leave(Stay::Parts);
        }
    }

    pub(crate) fn close(&self) {
        self.output.set(0);
        self.leave(Stay::Closes);
    }

    fn leave(&self, stay: Stay) {
        self.stay.set(stay);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Polls until there is an outcome, the phase's time is up, or another needs the place. An
    /// outcome that is there counts in any case.
    pub(crate) async fn attend<T>(
        &self,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<T, Over> {
        let mut timer: Pin<Box<Sleep>> = Box::pin(sleep_until(self.deadline.get()));
        poll_fn(|cx| {
            if self.is_closing() {
                return Poll::Ready(Err(Over));
            }
            if let Poll::Ready(outcome) = poll(cx) {
                return Poll::Ready(Ok(outcome));
            }
            if self.is_parting() {
                return Poll::Ready(Err(Over));
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            // The poll may have begun another phase.
            if timer.deadline() != self.deadline.get() {
                timer.as_mut().reset(self.deadline.get());
            }
            timer.as_mut().poll(cx).map(|()| Err(Over))
        })
        .await
    }
}
