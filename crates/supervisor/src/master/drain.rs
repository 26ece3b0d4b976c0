//! The instance drains: it says that it is not ready, tells clients that want to know, goes on for a while,
//! then stops.

use std::mem;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Maintenance, Refuge};
use cashew_control::ToChild;
use cashew_metrics::EventKind;
use tracing::info;

use super::{Master, Phase};
use crate::child::Role;
use crate::command::Reply;
use crate::status::DrainStatus;

/// How long `cashew drain` goes on where `drain_delay` is 0.
const DELAY: Duration = Duration::from_secs(10);

const STOPPING: &str = "the instance is stopping";

pub(super) struct Drain {
    /// As clients have been told.
    seq: u64,
    to: Option<Refuge>,
    /// When the instance stops.
    until: Instant,
    /// By a signal. The next one ends the instance at once.
    is_signalled: bool,
    /// Operators who wait for the stop.
    waiting: Vec<Box<dyn Reply>>,
}

impl Drain {
    pub(super) fn ends_at(&self) -> Instant {
        self.until
    }

    fn event(&self, now: Instant) -> Maintenance {
        let left = self.until.saturating_duration_since(now);
        // A client that is told of no time would come back at once.
        let seconds = (left.as_millis().div_ceil(1000) as u64).max(1);
        Maintenance::Moving { seq: self.seq, seconds, to: self.to.clone() }
    }

    pub(super) fn status(&self, now: Instant) -> DrainStatus {
        DrainStatus {
            seconds_left: self.until.saturating_duration_since(now).as_millis().div_ceil(1000)
                as u64,
            to: self.to.as_ref().map(ToString::to_string),
        }
    }
}

impl Master {
    /// SIGTERM.
    pub(super) fn stop_by_signal(&mut self, now: Instant) {
        if mem::take(&mut self.stops_unsignalled) {
            // A service manager's first word, after `cashew drain`: what is in flight has its time all the same.
            info!("SIGTERM: stopping already");
            return;
        }
        let delay = Duration::from_millis(self.current.snapshot.global.drain_delay_ms);
        match &mut self.drain {
            _ if self.phase == Phase::Stopping => self.stop_now(now, "SIGTERM"),
            Some(drain) if drain.is_signalled => self.stop_now(now, "SIGTERM"),
            None if self.phase == Phase::Serving && !delay.is_zero() => {
                self.begin_drain(delay, "SIGTERM", now);
                self.notify.draining(delay + self.stop_max());
                self.drain.as_mut().expect("it has begun").is_signalled = true;
            }
            Some(drain) => {
                drain.is_signalled = true;
                self.stop(now);
            }
            None => self.stop(now),
        }
    }

    /// `cashew drain`. One that is under way goes on, until when this one says.
    pub(super) fn drain_for(
        &mut self,
        seconds: Option<u64>,
        mut reply: Box<dyn Reply>,
        now: Instant,
    ) {
        if self.phase != Phase::Serving {
            let why = if self.phase == Phase::Stopping { STOPPING } else { "it is starting" };
            return reply.failed(why);
        }
        let configured = Duration::from_millis(self.current.snapshot.global.drain_delay_ms);
        let configured = if configured.is_zero() { DELAY } else { configured };
        let delay = seconds.map(Duration::from_secs);
        match &mut self.drain {
            None => self.begin_drain(delay.unwrap_or(configured), "an operator", now),
            Some(drain) => {
                if let Some(delay) = delay {
                    drain.until = now + delay;
                }
                reply.line("the instance drains already");
            }
        }
        let drain = self.drain.as_mut().expect("it is under way");
        let DrainStatus { seconds_left, to } = drain.status(now);
        let to = to.unwrap_or_else(|| "their own address".to_owned());
        reply.line(&format!("stops in {seconds_left} s; clients are told to connect to {to}"));
        drain.waiting.push(reply);
    }

    fn begin_drain(&mut self, delay: Duration, who: &str, now: Instant) {
        let to = self.current.snapshot.global.drain_to.clone();
        let shown = to.as_ref().map_or_else(String::new, |to| format!(", clients go to {to}"));
        info!(
            kind = EventKind::InstanceDrains.name(),
            "{who}: draining: not ready any more, stops in {delay:?}{shown}"
        );
        self.cancel_upgrade("the instance drains", now);
        self.shared.drains();
        let (seq, until) = (self.maintenance.next_seq(), now + delay);
        let drain = Drain { seq, to, until, is_signalled: false, waiting: Vec::new() };
        let event = drain.event(now);
        self.drain = Some(drain);
        self.tell_clients(None, event, now);
    }

    /// Takes a drain back. Clients that have left come back when they want to.
    pub(super) fn undrain(&mut self, mut reply: Box<dyn Reply>, now: Instant) {
        let is_signalled = self.drain.as_ref().is_some_and(|drain| drain.is_signalled);
        if is_signalled && self.notify.is_heard() && self.phase == Phase::Serving {
            return reply.failed(
                "the service manager stops the instance, and would kill it in the end: start it again when it has \
                 stopped",
            );
        }
        let Some(drain) = self.drain.take_if(|_| self.phase != Phase::Stopping) else {
            if self.phase == Phase::Stopping {
                return reply.failed(STOPPING);
            }
            reply.line("the instance does not drain");
            return reply.unchanged();
        };
        info!(kind = EventKind::InstanceStays.name(), "the instance stays, and is ready again");
        self.shared.stays();
        self.tell_clients(None, Maintenance::Staying, now);
        drain.waiting.into_iter().for_each(|waiting| waiting.failed("the drain is taken back"));
        reply.done();
    }

    /// Stops the instance that has drained.
    pub(super) fn end_drain(&mut self, now: Instant) {
        if self.phase == Phase::Serving && self.drain.as_ref().is_some_and(|it| it.until <= now) {
            self.stop(now);
        }
    }

    /// Operators who wait for the stop learn of it.
    pub(super) fn drain_is_over(&mut self) {
        if let Some(drain) = self.drain.take() {
            self.stops_unsignalled = !drain.is_signalled;
            for mut waiting in drain.waiting {
                waiting.line("no more clients are accepted; the instance stops");
                waiting.done();
            }
        }
    }

    /// Tells a worker that has just started.
    pub(super) fn notify_of_drain(&mut self, slot: u32, now: Instant) {
        if let Some(drain) = &self.drain {
            let message = ToChild::Maintenance { pool: None, event: drain.event(now) };
            self.post(Role::Worker { slot }, message, Vec::new(), now);
        }
    }
}
