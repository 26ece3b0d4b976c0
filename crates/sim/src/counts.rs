//! How much happened, to see that a sweep covers what it should.

use std::iter::Sum;
use std::ops::AddAssign;

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub requests: u64,
    pub replies: u64,
    /// Replies that were errors of the gateway's, blamed on a fault.
    pub errors: u64,
    pub executions: u64,
    /// Quiet batches that were answered, and those of them that faults took something from.
    pub batches: u64,
    pub torn_batches: u64,
    /// Commands with keys of several clients.
    pub shared: u64,
    /// Executions of requests that gateways pass on while they arrive.
    pub uploads: u64,
    /// Executions of requests whose connection the gateway had given up.
    pub late: u64,
    /// Connections that the gateway closed before all was answered, blamed on a fault.
    pub cuts: u64,
    pub ring_changes: u64,
    /// Clients handed over from gateway to gateway, and bytes that they took along.
    pub moves: u64,
    pub moved_bytes: u64,
    /// Epochs that were committed.
    pub epochs: u64,
    pub faults: u64,
    pub clients: u64,
    /// Transactions that a server executed, and calls that it let wait and then answered.
    pub transactions: u64,
    pub waits: u64,
    /// Waits that the gateway ended, to ask anew.
    pub withdrawals: u64,
    /// Transactions that came to nothing without anybody's fault.
    pub aborts: u64,
    /// Replies that were other than they should have been, and of these those that did not fit; and
    /// those of which nobody judged what became.
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
        self.faults += other.faults;
        self.clients += other.clients;
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
