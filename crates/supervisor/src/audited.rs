//! Operators' commands in the audit log: who asked for what, and how it ended.

use std::os::fd::BorrowedFd;

use cashew_metrics::{AuditTrail, DeedOutcome, NewDeed};
use cashew_process::log::EventRecord;

use crate::command::{Command, HotAction, Reply};
use crate::status::Status;

/// The reason of what was done without changing anything.
const UNCHANGED: &str = "nothing changed";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// Where from.
    pub(crate) place: String,
    pub(crate) user: String,
}

impl Principal {
    /// Whoever sent a signal to the master. The kernel would tell who, but not through what reads signals here.
    pub(crate) fn signal(name: &str) -> Self {
        Self { place: format!("signal {name}"), user: String::new() }
    }
}

/// A reply that records its outcome.
struct Audited {
    reply: Box<dyn Reply>,
    outcome: Unrecorded,
}

/// An outcome that is to be recorded. If there is none, what was asked for has been withdrawn.
struct Unrecorded {
    audit: AuditTrail,
    asker: Principal,
    deed: String,
    is_recorded: bool,
}

impl Unrecorded {
    fn record(&mut self, outcome: DeedOutcome, why: &str) {
        self.is_recorded = true;
        record(&self.audit, &self.asker, &self.deed, (outcome, why));
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        if !self.is_recorded {
            self.record(DeedOutcome::Failed, "withdrawn");
        }
    }
}

/// Records that somebody asks for something that changes the instance, and how it will end.
pub(crate) fn audited(
    audit: AuditTrail,
    asker: Principal,
    command: &Command,
    reply: Box<dyn Reply>,
) -> Box<dyn Reply> {
    let Some(deed) = deed_of(command) else { return reply };
    record(&audit, &asker, &deed, (DeedOutcome::Asked, ""));
    // An upgrade ends in another program, which says how.
    match command {
        Command::Upgrade { .. } => reply,
        _ => {
            let outcome = Unrecorded { audit, asker, deed, is_recorded: false };
            Box::new(Audited { reply, outcome })
        }
    }
}

/// Records what somebody asks for by a signal, and which does not end while it could be recorded.
pub(crate) fn signalled(audit: &AuditTrail, name: &str, deed: &str) {
    record(audit, &Principal::signal(name), deed, (DeedOutcome::Asked, ""));
}

/// Records how an upgrade has ended.
pub(crate) fn upgraded(audit: &AuditTrail, failure: Option<&str>) {
    let outcome = match failure {
        None => (DeedOutcome::Done, ""),
        Some(why) => (DeedOutcome::Failed, why),
    };
    let asker = Principal { place: String::new(), user: String::new() };
    record(audit, &asker, "upgrade", outcome);
}

fn record(audit: &AuditTrail, asker: &Principal, deed: &str, outcome: (DeedOutcome, &str)) {
    audit.record(&NewDeed {
        outcome: outcome.0,
        client: &asker.place,
        user: asker.user.as_bytes(),
        command: deed,
        reason: outcome.1,
        ..NewDeed::default()
    });
}

/// `None` if it changes nothing.
fn deed_of(command: &Command) -> Option<String> {
    Some(match command {
        Command::Reload { dry_run: true } | Command::Status | Command::Events { .. } => {
            return None;
        }
        Command::Reload { dry_run: false } => "reload".to_owned(),
        Command::Upgrade { binary: None } => "upgrade".to_owned(),
        Command::Upgrade { binary: Some(binary) } => format!("upgrade {}", binary.display()),
        Command::Failover { pool, server, force, .. } => {
            let force = if *force { " by force" } else { "" };
            format!("failover {pool} to {server}{force}")
        }
        Command::Migrate { action, route, .. } => {
            let route = route.as_ref().map_or_else(String::new, |route| format!(" {route}"));
            format!("migrate {}{route}", action.name())
        }
        Command::MoveKeys { from, to, keys, .. } => {
            format!("migrate keys: {} from {from} to {to}", keys.len())
        }
        Command::HotKey { pool, key, action, to, copies } => {
            let action = match action {
                HotAction::Split => "split",
                HotAction::Cache => "cache",
                HotAction::Move => "move",
                HotAction::Undo => "undo",
            };
            let pool = pool.as_ref().map_or_else(String::new, |pool| format!(" of pool {pool}"));
            let to = to.as_ref().map_or_else(String::new, |to| format!(" to pool {to}"));
            let copies = copies.map_or_else(String::new, |it| format!(" over {it} servers"));
            format!("hot key {action} \"{}\"{pool}{to}{copies}", key.escape_ascii())
        }
        Command::Drain { seconds: None } => "drain".to_owned(),
        Command::Drain { seconds: Some(seconds) } => format!("drain {seconds} s"),
        Command::Undrain => "undrain".to_owned(),
        Command::DrainServer { pool, server, .. } => format!("drain server {server} of {pool}"),
        Command::UndrainServer { pool, server, .. } => format!("undrain server {server} of {pool}"),
        Command::Weight { pool, server, percent } => {
            format!("weight of server {server} of {pool}: {percent} %")
        }
        Command::LogLevel { level } => format!("log level {level}"),
    })
}

impl Reply for Audited {
    fn line(&mut self, text: &str) {
        self.reply.line(text);
    }

    fn status(&mut self, status: Status) {
        self.reply.status(status);
    }

    fn events(&mut self, events: Vec<EventRecord>) {
        self.reply.events(events);
    }

    fn done(mut self: Box<Self>) {
        self.outcome.record(DeedOutcome::Done, "");
        self.reply.done();
    }

    fn unchanged(mut self: Box<Self>) {
        self.outcome.record(DeedOutcome::Done, UNCHANGED);
        self.reply.unchanged();
    }

    fn failed(mut self: Box<Self>, why: &str) {
        self.outcome.record(DeedOutcome::Failed, why);
        self.reply.failed(why);
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.reply.socket()
    }

    fn is_awaited(&self) -> bool {
        self.reply.is_awaited()
    }
}

#[cfg(test)]
mod tests {
    use cashew_metrics::Shared;

    use super::*;
    use crate::command::Nobody;

    #[test]
    fn what_changes_something_is_recorded_with_its_outcome() {
        let audit = Shared::in_memory().audit();
        let ask = |command: Command| {
            let asker = Principal { place: "pid 7".into(), user: "uid 0".into() };
            audited(audit.clone(), asker, &command, Box::new(Nobody))
        };
        ask(Command::Status).done();
        ask(Command::Reload { dry_run: true }).done();
        assert!(audit.take(usize::MAX).is_empty());
        ask(Command::Reload { dry_run: false }).done();
        let failover =
            Command::Failover { pool: "p".into(), group: None, server: "s".into(), force: false };
        ask(failover.clone()).failed("no");
        // Who asked has left.
        drop(ask(failover));
        ask(Command::Upgrade { binary: None }).done();
        upgraded(&audit, None);
        let told: Vec<String> = audit
            .take(usize::MAX)
            .iter()
            .map(|deed| {
                let user = String::from_utf8_lossy(&deed.user).into_owned();
                format!("{user} {} {} {}", deed.outcome.name(), deed.command, deed.reason)
            })
            .collect();
        let expected = [
            "uid 0 asked reload ",
            "uid 0 done reload ",
            "uid 0 asked failover p to s ",
            "uid 0 failed failover p to s no",
            "uid 0 asked failover p to s ",
            "uid 0 failed failover p to s withdrawn",
            "uid 0 asked upgrade ",
            " done upgrade ",
        ];
        assert_eq!(told, expected);
    }
}
