//! Clients from the master's view: moving sessions and client counts.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use cashew_control::{Session, ToChild};
use cashew_metrics::{EventKind, PoolGauge, Segments};
use tracing::{info, warn};

use super::{Master, Phase};
use crate::child::Role;
use crate::limits::{OpenFiles, open_files};
use crate::member::{Member, Running};
use crate::quotas::Figures;
use crate::sessions::{Parcel, Target};

impl Master {
    /// Workers that hand sessions over have to wait when too many are on their way already.
    pub(super) fn may_read(&self, member: &Member) -> bool {
        let Some(running) = &member.running else { return true };
        let hands_over = running.hands_over && running.channel().is_some();
        // Others may be waiting for its confirmations.
        if !hands_over || running.has_unconfirmed() || self.phase == Phase::Stopping {
            return true;
        }
        let sent = self.running().map(Running::sent).sum();
        !self.sessions.is_full(sent)
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.members.values().filter_map(|member| member.running.as_ref())
    }

    pub(super) fn take_session(
        &mut self,
        from: u32,
        session: Session,
        descriptors: Vec<OwnedFd>,
        now: Instant,
    ) {
        if let Some(running) = &mut self.member(Role::Worker { slot: from }).running {
            running.hands_over = true;
        }
        if self.phase == Phase::Stopping {
            return;
        }
        if self.sessions.is_unmeasured(now) {
            let sent = self.running().map(Running::session_descriptors).sum();
            self.sessions.handle_files(OpenFiles::limit(), open_files(), sent, now);
        }
        let descriptors = descriptors.into_iter().map(Rc::new).collect();
        self.sessions.push(Parcel { from, session, descriptors }, now);
    }

    pub(super) fn forward_sessions(&mut self, now: Instant) {
        if self.sessions.is_empty() {
            return;
        }
        if self.sessions.is_uncounted(now) {
            let clients = self.serving().map(|(slot, _)| (slot, self.clients_of(slot))).collect();
            self.sessions.handle_counts(clients, now);
        }
        loop {
            let target = |(slot, member): (u32, &Member)| {
                let mail = member.running.as_ref()?.mail()?;
                Some(Target { slot, mail })
            };
            let targets: Vec<Target> = self.serving().filter_map(target).collect();
            // A serving worker's shed sessions go to the target of the balance.
            let wanted = |from| {
                let serves = targets.iter().any(|target| target.slot == from);
                self.balance.target(from).filter(|_| serves)
            };
            let Some((slot, parcel)) = self.sessions.next(&targets, wanted) else { return };
            let Parcel { session, descriptors, .. } = parcel;
            self.post(Role::Worker { slot }, ToChild::Adopt { session }, descriptors, now);
        }
    }

    pub(super) fn rebalance(&mut self, now: Instant) {
        let Some(percent) = self.current.snapshot.global.rebalance_threshold else { return };
        if self.epochs.is_changing() || self.upgrade.is_in_the_way() {
            return;
        }
        let load = |(slot, _)| (slot, self.current.segments.header(slot).busy);
        let loads: Vec<_> = self.serving().map(load).collect();
        if let Some(next) = self.balance.handle_loads(&loads, percent * 10, now) {
            info!(
                kind = EventKind::LoadMoved.name(),
                worker = next.from,
                "worker {} sheds {}‰ of its load to worker {}",
                next.from,
                next.share,
                next.to
            );
            let message = ToChild::Shed { permille: next.share };
            self.post(Role::Worker { slot: next.from }, message, Vec::new(), now);
        }
    }

    /// Corrects the client counts according to the workers' own numbers.
    pub(super) fn repair_quotas(&mut self, now: Instant) {
        // The client counts of workers with other metrics cannot be read here.
        let counts = |member: &Member| member.running.as_ref().is_none_or(|it| it.counts);
        let is_unknown = !self.members.values().all(counts);
        if self.epochs.is_changing() || self.sessions.is_moving(now) || is_unknown {
            self.quotas.forget_figures();
            return;
        }
        let segments = &self.current.segments;
        let figures: BTreeMap<u32, Figures> = self
            .pools()
            .map(|(pool, quota)| {
                let pool = segments.layout().pool(pool);
                let connected = segments.sum_pool_gauge(pool, PoolGauge::ClientConnections);
                (quota, Figures { taken: self.shared.taken(quota), connected })
            })
            .collect();
        for (quota, by) in self.quotas.handle_figures(figures) {
            warn!("the number of clients of quota {quota} is corrected by {by}");
            self.shared.adjust(quota, by);
        }
    }

    /// Removes a dead worker's gauges from the totals, and frees its slot for the next one.
    pub(super) fn release_slot(&mut self, slot: u32) {
        let segments = Rc::clone(&self.epoch_of(slot).segments);
        let pools = self.epoch_of(slot).snapshot.pools.iter();
        let quotas: Vec<Option<u32>> = pools.map(|pool| self.quotas.number(&pool.name)).collect();
        for (pool, quota) in quotas.into_iter().enumerate() {
            let clients = clients_in(&segments, slot, pool);
            if let Some(quota) = quota.filter(|_| clients > 0) {
                self.shared.adjust(quota, -i64::try_from(clients).unwrap_or(i64::MAX));
            }
        }
        self.quotas.forget_figures();
        segments.clear_gauges(slot);
        if let (Some(previous), true) = (&self.previous, self.epochs.is_behind(slot)) {
            self.current.carry(previous, slot);
        }
    }

    pub(super) fn clients_of(&self, slot: u32) -> u64 {
        let pools = 0..self.current.snapshot.pools.len();
        pools.map(|pool| clients_in(&self.current.segments, slot, pool)).sum()
    }

    /// The pools by index, with their quota numbers.
    fn pools(&self) -> impl Iterator<Item = (usize, u32)> {
        let pools = self.current.snapshot.pools.iter().enumerate();
        pools.filter_map(|(index, pool)| Some((index, self.quotas.number(&pool.name)?)))
    }
}

fn clients_in(segments: &Segments, slot: u32, pool: usize) -> u64 {
    segments.pool_gauge(slot, segments.layout().pool(pool), PoolGauge::ClientConnections)
}
