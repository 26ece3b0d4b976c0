//! Counts events, to check that a sweep covers what it should.

use std::iter::Sum;
use std::ops::AddAssign;

use crate::coverage::Coverage;

/// The events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: u64,
    pub replies: u64,
    /// Replies that were errors of the gateway, caused by a fault.
    pub errors: u64,
    pub executions: u64,
    /// Quiet batches that were answered, and those of them that faults affected.
    pub batches: u64,
    pub torn_batches: u64,
    /// Commands with keys of several clients.
    pub shared: u64,
    /// Executions of requests that gateways forward while they arrive.
    pub uploads: u64,
    /// Executions of requests whose connection the gateway had given up.
    pub late: u64,
    /// Connections that the gateway closed with replies pending, because of a fault.
    pub cuts: u64,
    pub ring_changes: u64,
    /// Clients that moved between gateways, and the bytes that moved with them.
    pub moves: u64,
    pub moved_bytes: u64,
    /// Committed epochs.
    pub epochs: u64,
    /// Orders that another server of a group takes its writes.
    pub promotions: u64,
    /// Reads that a server answered with something older than the last write.
    pub stale: u64,
    /// Reads that two servers have executed, since the first took long.
    pub hedged: u64,
    /// What happened to the cluster, maps that were wrong, and commands that a node sent to another one.
    pub reshardings: u64,
    pub wrong_maps: u64,
    pub redirects: u64,
    /// Requests whose clients got an error as nodes have refused them.
    pub refusals: u64,
    /// Requests that a node has sent elsewhere while it ran a later one.
    pub overtaken: u64,
    /// Keys whose values in the end were those of their clients' replies.
    pub kept_keys: u64,
    pub faults: u64,
    /// What they have hit.
    pub coverage: Coverage,
    pub clients: u64,
    /// Executions by the servers of another pool than the client's, where a route leads.
    pub led: u64,
    /// Executions by the servers of a pool that has copies.
    pub copies: u64,
    /// Requests that were not the user's to make, and were refused for that.
    pub denials: u64,
    /// Executed transactions, and blocking calls that were answered later.
    pub transactions: u64,
    pub waits: u64,
    /// Blocking calls that the gateway ended in order to send them again.
    pub withdrawals: u64,
    /// Transactions that were aborted without a fault.
    pub aborts: u64,
    /// Replies that were not as they should have been; those of them that did not match; and those
    /// whose consequences were not checked.
    pub surprises: u64,
    pub misfits: u64,
    pub unjudged: u64,
    /// Longest time from a request's last byte sent to the last byte of its reply.
    pub slowest_us: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.replies += other.replies;
        self.errors += other.errors;
        self.executions += other.executions;
        self.batches += other.batches;
        self.torn_batches += other.torn_batches;
        self.shared += other.shared;
        self.uploads += other.uploads;
        self.late += other.late;
        self.cuts += other.cuts;
        self.moves += other.moves;
        self.moved_bytes += other.moved_bytes;
        self.ring_changes += other.ring_changes;
        self.epochs += other.epochs;
        self.promotions += other.promotions;
        self.stale += other.stale;
        self.hedged += other.hedged;
        self.reshardings += other.reshardings;
        self.wrong_maps += other.wrong_maps;
        self.redirects += other.redirects;
        self.refusals += other.refusals;
        self.overtaken += other.overtaken;
        self.kept_keys += other.kept_keys;
        self.faults += other.faults;
        self.coverage += other.coverage;
        self.clients += other.clients;
        self.led += other.led;
        self.copies += other.copies;
        self.denials += other.denials;
        self.transactions += other.transactions;
        self.waits += other.waits;
        self.withdrawals += other.withdrawals;
        self.aborts += other.aborts;
        self.surprises += other.surprises;
        self.misfits += other.misfits;
        self.unjudged += other.unjudged;
        self.slowest_us = self.slowest_us.max(other.slowest_us);
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut total, each| {
            total += each;
            total
        })
    }
}
