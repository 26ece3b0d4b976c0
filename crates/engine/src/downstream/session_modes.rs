//! What few clients have: a transaction, a blocked request, a request that is being taken apart,
//! subscriptions, MONITOR, a place in line for a lane. A client at rest has none of it and pays a
//! pointer.

use std::ops::Deref;

use crate::base::time::Time;
use crate::downstream::external_auth::Question;
use crate::downstream::tracking_mode::TrackingMode;
use crate::memcached::{Many, Stripping};
use crate::redis::blocking::{Blocking, Ending};
use crate::redis::cluster::SentBack;
use crate::redis::monitor::Monitor;
use crate::redis::pubsub::Subscriber;
use crate::redis::transaction::Transaction;
use crate::upstream::exclusive::Turn;

/// Reads as [`Rare`] with nothing in it while there is none.
#[derive(Default)]
pub(crate) struct Modes(Option<Box<Rare>>);

pub(crate) struct Rare {
    /// What it has of a transaction, from WATCH or MULTI on.
    pub(crate) transaction: Option<Box<Transaction>>,
    /// The request that its server lets wait.
    pub(crate) blocking: Option<Box<Blocking>>,
    /// How far the request at the front of what it has sent has been dispatched, if that one is
    /// taken apart: see [`Many`].
    pub(crate) many: Option<Box<Many>>,
    /// There while it is subscribed to anything, or wants to be.
    pub(crate) subscriber: Option<Box<Subscriber>>,
    /// There while it is told what others ask.
    pub(crate) monitor: Option<Monitor>,
    /// Where it stands that wants a lane to itself.
    pub(crate) turn: Turn,
    /// Since when it waits for a server that cannot be reached, to have such a lane there.
    pub(crate) absent_since: Option<Time>,
    /// Monitors have been told of the request at the front, which is to be asked anew.
    pub(crate) is_observed: bool,
    /// The call at the front, which may wait, is over before it is asked.
    pub(crate) ending: Option<Ending>,
    /// Where the call at the front goes, which a node of a cluster has sent back.
    pub(crate) sent_back: Option<SentBack>,
    /// It may ask nothing before: see [`crate::downstream::password_guessing`].
    pub(crate) slowed_until: Option<Time>,
    /// It waits until its user may ask more.
    pub(crate) awaits_quota: bool,
    /// It waits to be told who it is, or has been.
    pub(crate) question: Option<Box<Question>>,
    /// Set by CLIENT TRACKING: it is told of what has changed. It moves with the client.
    pub(crate) tracking: Option<Box<TrackingMode>>,
    /// There while keys of memcached have its user's prefix.
    pub(crate) stripping: Option<Box<Stripping>>,
    /// Pushes that wait for the end of a reply that the client has half of.
    pub(crate) announcements: Vec<u8>,
}

static NONE: Rare = Rare::new();

impl Rare {
    const fn new() -> Self {
        Self {
            transaction: None,
            blocking: None,
            many: None,
            subscriber: None,
            monitor: None,
            turn: Turn::No,
            absent_since: None,
            is_observed: false,
            ending: None,
            sent_back: None,
            slowed_until: None,
            awaits_quota: false,
            question: None,
            tracking: None,
            stripping: None,
            announcements: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.transaction.is_none()
            && self.blocking.is_none()
            && self.many.is_none()
            && self.subscriber.is_none()
            && self.monitor.is_none()
            && self.turn == Turn::No
            && self.absent_since.is_none()
            && !self.is_observed
            && self.ending.is_none()
            && self.sent_back.is_none()
            && self.slowed_until.is_none()
            && !self.awaits_quota
            && self.question.is_none()
            && self.tracking.is_none()
            && self.stripping.is_none()
            && self.announcements.is_empty()
    }
}

impl Deref for Modes {
    type Target = Rare;

    #[inline]
    fn deref(&self) -> &Rare {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl Modes {
    pub(crate) fn are_none(&self) -> bool {
        self.0.is_none()
    }

    /// To be filled in.
    pub(crate) fn enter(&mut self) -> &mut Rare {
        self.0.get_or_insert_with(|| Box::new(Rare::new()))
    }

    pub(crate) fn transaction(&mut self) -> Option<&mut Transaction> {
        self.0.as_mut()?.transaction.as_deref_mut()
    }

    pub(crate) fn blocking(&mut self) -> Option<&mut Blocking> {
        self.0.as_mut()?.blocking.as_deref_mut()
    }

    pub(crate) fn many(&mut self) -> Option<&mut Many> {
        self.0.as_mut()?.many.as_deref_mut()
    }

    pub(crate) fn subscriber(&mut self) -> Option<&mut Subscriber> {
        self.0.as_mut()?.subscriber.as_deref_mut()
    }

    pub(crate) fn end_transaction(&mut self) -> Option<Box<Transaction>> {
        self.leave(|rare| rare.transaction.take())
    }

    pub(crate) fn end_blocking(&mut self) -> Option<Box<Blocking>> {
        self.leave(|rare| rare.blocking.take())
    }

    pub(crate) fn take_sent_back(&mut self) -> Option<SentBack> {
        self.leave(|rare| rare.sent_back.take())
    }

    pub(crate) fn stripping(&mut self) -> Option<&mut Stripping> {
        self.0.as_mut()?.stripping.as_deref_mut()
    }

    pub(crate) fn end_stripping(&mut self) {
        self.leave(|rare| rare.stripping.take());
    }

    pub(crate) fn end_many(&mut self) {
        self.leave(|rare| rare.many.take());
    }

    pub(crate) fn end_subscriber(&mut self) -> Option<Box<Subscriber>> {
        self.leave(|rare| rare.subscriber.take())
    }

    pub(crate) fn monitor(&mut self) -> Option<&mut Monitor> {
        self.0.as_mut()?.monitor.as_mut()
    }

    pub(crate) fn end_monitor(&mut self) -> Option<Monitor> {
        self.leave(|rare| rare.monitor.take())
    }

    pub(crate) fn end_absence(&mut self) {
        self.leave(|rare| rare.absent_since.take());
    }

    pub(crate) fn end_turn(&mut self) -> Turn {
        self.leave(|rare| Some(std::mem::replace(&mut rare.turn, Turn::No))).unwrap_or(Turn::No)
    }

    /// Whether the request that is dispatched has been told to monitors before; forgets it.
    pub(crate) fn end_observed(&mut self) -> bool {
        self.leave(|rare| Some(std::mem::take(&mut rare.is_observed))).unwrap_or_default()
    }

    pub(crate) fn end_slow_down(&mut self) {
        self.leave(|rare| rare.slowed_until.take());
    }

    pub(crate) fn question(&mut self) -> Option<&mut Question> {
        self.0.as_mut()?.question.as_deref_mut()
    }

    pub(crate) fn end_question(&mut self) -> Option<Box<Question>> {
        self.leave(|rare| rare.question.take())
    }

    pub(crate) fn end_quota_wait(&mut self) {
        self.leave(|rare| Some(std::mem::take(&mut rare.awaits_quota)));
    }

    pub(crate) fn tracking(&mut self) -> Option<&mut TrackingMode> {
        self.0.as_mut()?.tracking.as_deref_mut()
    }

    pub(crate) fn end_tracking(&mut self) -> Option<Box<TrackingMode>> {
        self.leave(|rare| rare.tracking.take())
    }

    #[inline]
    pub(crate) fn has_announcements(&self) -> bool {
        !self.announcements.is_empty()
    }

    /// Nothing if none wait.
    pub(crate) fn take_announcements(&mut self) -> Vec<u8> {
        self.leave(|rare| Some(std::mem::take(&mut rare.announcements))).unwrap_or_default()
    }

    pub(crate) fn take_ending(&mut self) -> Option<Ending> {
        self.leave(|rare| rare.ending.take())
    }

    /// Takes something out, and the memory back when nothing is left.
    fn leave<T>(&mut self, take: impl FnOnce(&mut Rare) -> Option<T>) -> Option<T> {
        let rare = self.0.as_mut()?;
        let taken = take(rare);
        if rare.is_empty() {
            self.0 = None;
        }
        taken
    }
}
