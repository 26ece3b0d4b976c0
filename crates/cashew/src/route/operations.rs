//! What commands do with their keys, as far as routes are concerned.

use cashew_config::snapshot::{Operation, Pool, Protocol, Reach};
use cashew_engine::{memcached_reach, redis_reach};
use cashew_protocol::redis::{Access, COMMANDS, Command};

/// Redis's commands after which a key is gone.
const DELETING: [&str; 3] = ["del", "unlink", "getdel"];

const MEMCACHED: [(&str, Operation); 20] = [
    ("get", Operation::Read),
    ("gets", Operation::Read),
    ("mg", Operation::Read),
    ("me", Operation::Read),
    ("delete", Operation::Delete),
    ("md", Operation::Delete),
    ("gat", Operation::Write),
    ("gats", Operation::Write),
    ("set", Operation::Write),
    ("add", Operation::Write),
    ("replace", Operation::Write),
    ("append", Operation::Write),
    ("prepend", Operation::Write),
    ("cas", Operation::Write),
    ("incr", Operation::Write),
    ("decr", Operation::Write),
    ("touch", Operation::Write),
    ("ms", Operation::Write),
    ("ma", Operation::Write),
    ("mn", Operation::Write),
];

/// What a command does, and whom it reaches where several are asked; all that there is, without one.
pub(super) fn of(command: Option<&str>, pool: &Pool) -> Result<Vec<(Operation, Reach)>, String> {
    let Some(command) = command else {
        return Ok(Operation::ALL.map(|operation| (operation, Reach::All)).to_vec());
    };
    let name = command.to_ascii_lowercase().split_whitespace().collect::<Vec<_>>().join("|");
    let operation = match pool.protocol {
        Protocol::Redis => of_redis(&name, pool),
        Protocol::Memcached | Protocol::Tcp => {
            MEMCACHED.iter().find(|(it, _)| *it == name).map(|(_, it)| *it)
        }
    };
    match operation {
        Some(operation) => {
            let reach = match pool.protocol {
                _ if operation == Operation::Read => Reach::All,
                Protocol::Redis => redis_reach(&name),
                Protocol::Memcached | Protocol::Tcp => memcached_reach(&name),
            };
            Ok(vec![(operation, reach)])
        }
        None => Err(format!("--command {command}: pool '{}' has no such command", pool.name)),
    }
}

fn of_redis(name: &str, pool: &Pool) -> Option<Operation> {
    if let Some(custom) = pool.commands.iter().find(|custom| custom.name == name) {
        let reads = custom.flags.iter().any(|flag| flag == "readonly");
        return Some(if reads { Operation::Read } else { Operation::Write });
    }
    let Command { name, access, .. } = COMMANDS.iter().find(|command| command.name == name)?;
    Some(match access {
        _ if DELETING.contains(name) => Operation::Delete,
        Access::Read | Access::Walk => Operation::Read,
        Access::Write | Access::None => Operation::Write,
    })
}
