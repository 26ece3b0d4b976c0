//! SELECT in a transaction.
//!
//! The server queues and executes it as any command there, so that what follows in the transaction
//! has the other database. EXEC's reply says of each whether it has been done; by the last one that
//! has, the client goes on. The lane gets the database back that it is known to have, behind EXEC.

use cashew_protocol::resp::{self, encode};

use crate::client::Selected;
use crate::clients::Plan;
use crate::dispatch::Payload;
use crate::engine::Engine;
use crate::fan::Aggregate;
use crate::request::{Own, Role};
use crate::session::NO_VARIANT;
use crate::slab::NONE;

/// Of one transaction.
const SELECTIONS_MAX: usize = 1024;
/// A database that no server has.
const NOWHERE: i64 = -1;

/// The SELECTs that a transaction has queued.
#[derive(Debug, Default)]
pub(crate) struct Selections(Vec<Selection>);

#[derive(Clone, Copy, Debug)]
struct Selection {
    /// Which one of EXEC's replies is its own.
    place: u32,
    database: Selected,
}

impl Selections {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes allocated.
    pub(crate) fn size(&self) -> usize {
        self.0.capacity() * size_of::<Selection>()
    }

    /// What is queued behind them is for this database, if they are done.
    pub(crate) fn last(&self) -> Option<Selected> {
        Some(self.0.last()?.database)
    }

    /// What the connection has after this reply to EXEC, if that has changed it.
    fn done(&self, reply: &[u8]) -> Option<Selected> {
        let mut left = self.0.iter().peekable();
        let mut database = None;
        for (element, place) in Aggregate::of(reply)?.zip(0..) {
            if let Some(selection) = left.next_if(|selection| selection.place == place)
                && !resp::is_error(element)
            {
                database = Some(selection.database);
            }
        }
        database
    }
}

impl Engine {
    /// SELECT in MULTI.
    pub(crate) fn queue_select(&mut self, client: u32, index: &[u8], bytes: &[u8]) -> Plan {
        let pool = self.clients[client].pool;
        let state = &self.pools[pool as usize];
        let named = state.database_named(index).ok().map(Selected::from);
        let mut variant = state.variant_of(&self.clients[client].session);
        if let Some(database) = named {
            variant.database = state.database_of(database);
        }
        let mut text = self.bufs.take();
        match (named, resp::integer(index)) {
            (Some(_), _) => write_select(variant.database.into(), &mut text),
            // The server is to refuse it in Redis's words, whatever databases it has.
            (None, Some(number)) if i32::try_from(number).is_ok() => {
                write_select(NOWHERE, &mut text);
            }
            (None, _) => text.extend_from_slice(bytes),
        }
        let plan = match self.clients[client].modes.transaction().map(|it| it.selections.0.len()) {
            Some(SELECTIONS_MAX) => {
                self.refuse_queued(client, "ERR too many SELECTs in one transaction")
            }
            // Its lanes are there when the client is to go on with it.
            _ if self.variant(pool, variant).is_none() => self.refuse_queued(client, NO_VARIANT),
            _ => self.queue_text(client, &text, named),
        };
        self.bufs.give(text);
        plan
    }

    fn queue_text(&mut self, client: u32, text: &[u8], named: Option<Selected>) -> Plan {
        let queued = |engine: &Self| {
            let transaction = engine.clients[client].modes.transaction.as_ref();
            transaction.and_then(|transaction| transaction.queued()).unwrap_or_default()
        };
        let place = queued(self);
        let mut plan = self.queue_anywhere(client, text);
        if let Plan::Forward { lane, request } = plan {
            self.send(lane, request, Payload::Bytes(text));
            plan = Plan::Done;
        }
        if let Some(database) = named
            && queued(self) > place
            && let Some(transaction) = self.clients[client].modes.transaction()
        {
            let before = transaction.size();
            transaction.selections.0.push(Selection { place, database });
            self.bufs.charge(transaction.size() - before);
        }
        plan
    }

    /// Sends EXEC for a transaction with SELECTs, the last request of its lease.
    pub(crate) fn send_selecting(
        &mut self,
        client: u32,
        lane: u32,
        exec: &[u8],
        selections: Selections,
    ) -> Plan {
        let request = self.new_request(client);
        self.requests[request].role = Role::Selecting(Box::new(selections));
        self.send(lane, request, Payload::Bytes(exec));
        let state = &self.lanes[lane as usize];
        let variant = self.pools[state.pool as usize].variants[usize::from(state.variant)];
        let mut text = Vec::new();
        write_select(variant.database.into(), &mut text);
        self.ask_with(lane, Own::Demand { lane }, &text);
        self.release(lane);
        Plan::Done
    }

    /// The reply to EXEC of a transaction with SELECTs is here.
    pub(crate) fn follow_selections(&mut self, index: u32, reply: &[u8]) {
        let request = &mut self.requests[index];
        let client = request.client;
        let Role::Selecting(selections) = std::mem::replace(&mut request.role, Role::Single) else {
            unreachable!("it is of a transaction with SELECTs");
        };
        self.bufs.discharge(selections.size());
        if client == NONE {
            return;
        }
        let Some(database) = selections.done(reply) else { return };
        debug_assert_eq!(self.clients[client].head, index, "it is owed nothing else");
        self.clients[client].session.database = database;
        if !self.follow_session(client) {
            // It cannot go on where it is told to be: all variants have been taken meanwhile.
            self.finish(client);
        }
    }
}

fn write_select(database: i64, out: &mut Vec<u8>) {
    encode::write_command(out, &[b"SELECT", database.to_string().as_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reply: &str) -> Option<u32> {
        let at = |place, database| Selection { place, database: Some(database).into() };
        let selections = Selections(vec![at(0, 5), at(2, 7), at(3, 9)]);
        selections.done(reply.as_bytes()).map(|database| database.number().expect("a number"))
    }

    #[test]
    fn the_last_one_done_counts() {
        assert_eq!(after("*5\r\n+OK\r\n$1\r\nx\r\n+OK\r\n+OK\r\n+OK\r\n"), Some(9));
        assert_eq!(after("*5\r\n+OK\r\n*2\r\n:1\r\n:2\r\n+OK\r\n-ERR x\r\n+OK\r\n"), Some(7));
        assert_eq!(after("*4\r\n+OK\r\n+OK\r\n-ERR x\r\n-ERR x\r\n"), Some(5));
        assert_eq!(after("*4\r\n-ERR x\r\n+OK\r\n-ERR x\r\n-ERR x\r\n"), None);
    }

    #[test]
    fn what_was_not_executed_has_changed_nothing() {
        for reply in ["*-1\r\n", "_\r\n", "-EXECABORT x\r\n", "*0\r\n", "+OK\r\n", ""] {
            assert_eq!(after(reply), None);
        }
    }
}
