//! What can be asked for by HTTP. The one list of it: requests are dispatched by it, it is described from it, and
//! the command line finds its commands in it.

use serde_json::{Map, Value};

use crate::command::Command;
use crate::parameters;

/// What all paths begin with.
pub const BASE: &str = "/api/v1";

/// How long an answer waits for the end of what was asked for, in seconds, by the parameter `wait`.
pub const WAIT_DEFAULT: u64 = 10;
pub const WAIT_MAX: u64 = 60;

#[derive(Debug)]
pub struct Operation {
    /// `GET` changes nothing. `POST` has something done, `PUT` sets something.
    pub method: &'static str,
    /// Below [`BASE`]. `{id}` stands for a number.
    pub path: &'static str,
    /// As on the command line.
    pub id: &'static str,
    pub summary: &'static str,
    pub description: &'static str,
    pub does: Does,
    /// What to do if it fails.
    pub remedy: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// The master answers the command of that name.
    Ask(&'static str),
    /// The master carries the command of that name out.
    Act(&'static str),
    /// Lists the actions that are remembered.
    Actions,
    /// Shows one of them.
    Action,
    /// Describes the API.
    Describe,
    /// Shows where a key goes.
    Route,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Read,
    Operate,
}

/// Why a request is no command, in words.
#[derive(Debug, PartialEq, Eq)]
pub struct Misfit(pub String);

/// All operations.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        method: "GET",
        path: "/openapi.json",
        id: "openapi",
        summary: "This description",
        description: "",
        does: Does::Describe,
        remedy: "",
    },
    Operation {
        method: "GET",
        path: "/status",
        id: "status",
        summary: "How the instance is",
        description: "What `cashew status --json` prints.",
        does: Does::Ask("status"),
        remedy: "Try again; /healthz says whether workers serve",
    },
    Operation {
        method: "GET",
        path: "/events",
        id: "events",
        summary: "What has changed lately: servers, primaries, configurations, processes",
        description: "What `cashew events --json` prints.",
        does: Does::Ask("events"),
        remedy: "docs/operations.md lists the kinds of events",
    },
    Operation {
        method: "GET",
        path: "/route",
        id: "route",
        summary: "Where a key goes: the way through a route, and the server that has it",
        description: "What `cashew route --json` prints, by the configuration in effect and by how servers are. Nobody is \
                      asked for the key. `notes` has what else is to be known.",
        does: Does::Route,
        remedy: "GET /api/v1/status names the pools and servers",
    },
    Operation {
        method: "POST",
        path: "/reload",
        id: "reload",
        summary: "Load the configuration file again and put it into effect",
        description: "Nothing changes if the file has not changed, and the action says so. A file that is wrong \
                      changes nothing either. With `dry_run` nothing changes in any case.",
        does: Does::Act("reload"),
        remedy: "The former configuration is in effect: correct the file, and reload again",
    },
    Operation {
        method: "POST",
        path: "/failover",
        id: "failover",
        summary: "Have another server of a group take the writes, which has the data already",
        description: "If the server takes them already nothing changes. The server must say that it is a master.",
        does: Does::Act("failover"),
        remedy: "GET /api/v1/status names the pools, groups and servers; `force` skips the question for the role",
    },
    Operation {
        method: "POST",
        path: "/migrate",
        id: "migrate",
        summary: "Copy one pool to another while clients go on, and have the other one serve",
        description: "The moves are in `moves` of GET /api/v1/status. What is begun, paused or cut over already stays so, and \
                      nothing changes.",
        does: Does::Act("migrate"),
        remedy: "GET /api/v1/status has the state of the moves; docs/how-to.md has the steps",
    },
    Operation {
        method: "POST",
        path: "/move-keys",
        id: "move-keys",
        summary: "Have single keys go to another pool, by the list of keys of a route",
        description: "Keys that are there already stay as they are.",
        does: Does::Act("move_keys"),
        remedy: "Keys are where they were; docs/how-to.md says what a route needs for it",
    },
    Operation {
        method: "POST",
        path: "/hot-key",
        id: "hot-key",
        summary: "Keep replies to reads of a hot key in the gateway, split its reads over copies, or have it go to another \
                  pool, or do so no more",
        description: "What is done by a rule or by this is in `hot_keys` of GET /api/v1/status. If that is done already, or \
                      with `undo` nothing is, nothing changes.",
        does: Does::Act("hot_key"),
        remedy: "docs/how-to.md says what a route needs for it",
    },
    Operation {
        method: "POST",
        path: "/drain",
        id: "drain",
        summary: "Stop the instance when load balancers and clients have had time to notice",
        description: "The action ends when the instance accepts no more clients. While it drains, another one \
                      without `seconds` changes nothing; with `seconds` it sets when the instance stops.",
        does: Does::Act("drain"),
        remedy: "GET /api/v1/status says in `state` and `drain` what the instance does",
    },
    Operation {
        method: "POST",
        path: "/undrain",
        id: "undrain",
        summary: "Take a drain back: the instance is ready again, and stays",
        description: "Nothing changes if it does not drain.",
        does: Does::Act("undrain"),
        remedy: "GET /api/v1/status says in `state` and `drain` what the instance does",
    },
    Operation {
        method: "POST",
        path: "/drain-server",
        id: "drain-server",
        summary: "Take the keys of a server away in steps, until it has none",
        description: "Data does not move: caches miss keys that go to another server until they are written again. A \
                      server that has none gets no requests, reads or subscriptions, and stays so over reloads. If it \
                      is drained already nothing changes.",
        does: Does::Act("drain_server"),
        remedy: "GET /api/v1/status names the pools and servers, and has `drained_permille` of each",
    },
    Operation {
        method: "POST",
        path: "/undrain-server",
        id: "undrain-server",
        summary: "Give a server that is drained its keys again, in steps",
        description: "What it has from before is served again, unless it has expired. If the server has all its keys \
                      nothing changes.",
        does: Does::Act("undrain_server"),
        remedy: "GET /api/v1/status names the pools and servers, and has `drained_permille` of each",
    },
    Operation {
        method: "PUT",
        path: "/weight",
        id: "weight",
        summary: "Have a server have a share of its keys, at once",
        description: "A part of a drain, or all of it, by hand. What is under way for the server ends.",
        does: Does::Act("weight"),
        remedy: "GET /api/v1/status names the pools and servers, and has `drained_permille` of each",
    },
    Operation {
        method: "PUT",
        path: "/log-level",
        id: "log-level",
        summary: "Log more or less from now on, in all processes",
        description: "A reload keeps it, unless the file has another `log_level` than before.",
        does: Does::Act("log_level"),
        remedy: "The level is a number from 0 to 11",
    },
    Operation {
        method: "GET",
        path: "/actions",
        id: "actions",
        summary: "What was asked for by HTTP lately, and what has become of it",
        description: "",
        does: Does::Actions,
        remedy: "",
    },
    Operation {
        method: "GET",
        path: "/actions/{id}",
        id: "action",
        summary: "What has become of one action",
        description: "",
        does: Does::Action,
        remedy: "GET /api/v1/actions lists those that are remembered; the audit log has all",
    },
];

impl Operation {
    /// Those at a path below [`BASE`], and the number in it.
    pub fn at(path: &str) -> (Vec<&'static Self>, Option<u64>) {
        let (mut found, mut number) = (Vec::new(), None);
        for operation in OPERATIONS {
            match operation.path.strip_suffix("{id}") {
                None if operation.path == path => found.push(operation),
                None => {}
                Some(prefix) => {
                    let id = path.strip_prefix(prefix).and_then(|id| id.parse().ok());
                    if id.is_some() {
                        found.push(operation);
                        number = id;
                    }
                }
            }
        }
        (found, number)
    }

    pub fn role(&self) -> Role {
        match self.does {
            Does::Act(_) => Role::Operate,
            Does::Ask(_) | Does::Actions | Does::Action | Does::Describe | Does::Route => {
                Role::Read
            }
        }
    }

    /// The name of the command that it sends.
    pub fn command_name(&self) -> Option<&'static str> {
        match self.does {
            Does::Ask(name) | Does::Act(name) => Some(name),
            Does::Actions | Does::Action | Does::Describe | Does::Route => None,
        }
    }

    /// The command with these parameters. Only those that it has are allowed.
    pub fn command(&self, mut parameters: Map<String, Value>) -> Result<Command, Misfit> {
        let name = self.command_name().ok_or_else(|| Misfit("this is no command".to_owned()))?;
        if parameters.contains_key("command") {
            return Err(Misfit("there is no parameter command".to_owned()));
        }
        if let Some(why) = parameters::wrong(name, &parameters) {
            return Err(Misfit(why));
        }
        parameters.insert("command".to_owned(), name.into());
        let command = serde_json::from_value(Value::Object(parameters));
        let command: Command = command.map_err(|error| Misfit(error.to_string()))?;
        command.check().map_err(Misfit)?;
        Ok(command)
    }

    /// How a command is asked for by HTTP, with its parameters. `None`: it is for the control socket alone.
    pub fn of(command: &Command) -> Option<(&'static Self, Map<String, Value>)> {
        let Ok(Value::Object(mut parameters)) = serde_json::to_value(command) else { return None };
        let name = parameters.remove("command")?;
        // What is left out is as if it were not there.
        parameters.retain(|_, value| !value.is_null());
        let is_its = |it: &&Self| it.command_name().is_some_and(|its| name == its);
        Some((OPERATIONS.iter().find(is_its)?, parameters))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::command::HotAction;

    fn parameters(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// What another program is run by is for those who may run it.
    const AT_THE_SOCKET_ALONE: [&str; 1] = ["upgrade"];

    #[test]
    fn every_command_is_in_the_api_and_every_operation_is_a_command() {
        let schema = serde_json::to_value(schemars::schema_for!(Command)).unwrap();
        let variants = schema["oneOf"].as_array().unwrap();
        let name = |it: &Value| it["properties"]["command"]["const"].as_str().unwrap().to_owned();
        let mut commands: Vec<String> = variants.iter().map(name).collect();
        let mut offered: Vec<String> = AT_THE_SOCKET_ALONE.map(str::to_owned).to_vec();
        offered.extend(OPERATIONS.iter().filter_map(|it| it.command_name()).map(ToOwned::to_owned));
        commands.sort();
        offered.sort();
        assert_eq!(commands, offered);
    }

    #[test]
    fn names_and_paths_are_there_once_and_reading_is_by_get() {
        for (at, it) in OPERATIONS.iter().enumerate() {
            let others = || OPERATIONS.iter().skip(at + 1);
            assert!(others().all(|other| other.id != it.id), "{}", it.id);
            assert!(others().all(|other| (other.method, other.path) != (it.method, it.path)));
            assert_eq!(it.method == "GET", it.role() == Role::Read, "{}", it.id);
            assert!(it.command_name().is_none() || !it.remedy.is_empty(), "{}", it.id);
        }
    }

    #[test]
    fn paths_lead_to_operations() {
        let ids = |path| {
            let (found, number) = Operation::at(path);
            (found.iter().map(|it| it.id).collect::<Vec<_>>(), number)
        };
        assert_eq!(ids("/reload"), (vec!["reload"], None));
        assert_eq!(ids("/actions"), (vec!["actions"], None));
        assert_eq!(ids("/actions/17"), (vec!["action"], Some(17)));
        for path in ["", "/", "/reload/", "/actions/", "/actions/x", "/actions/-1", "/upgrade"] {
            assert_eq!(ids(path), (vec![], None), "{path}");
        }
    }

    #[test]
    fn commands_go_there_and_back() {
        let failover =
            Command::Failover { pool: "p".into(), group: None, server: "s".into(), force: true };
        for command in [
            Command::Status,
            Command::Events { since: 7, kind: Some("reload_done".into()) },
            Command::Reload { dry_run: true },
            failover,
            Command::HotKey {
                pool: None,
                key: b"a\"\\\xff\r".to_vec(),
                action: HotAction::Undo,
                to: None,
                copies: None,
            },
            Command::Drain { seconds: None },
            Command::Undrain,
            Command::LogLevel { level: 11 },
            Command::Weight { pool: "p".into(), server: "s".into(), percent: 40 },
        ] {
            let (operation, parameters) = Operation::of(&command).unwrap();
            assert_eq!(operation.command(parameters).unwrap(), command);
        }
        assert!(Operation::of(&Command::Upgrade { binary: None }).is_none());
    }

    #[test]
    fn what_is_no_parameter_is_refused() {
        let operation = |path| Operation::at(path).0[0];
        for (path, given, words) in [
            ("/reload", json!({"pool": "p"}), "pool"),
            ("/reload", json!({"dry_run": "perhaps"}), "dry_run is true or false"),
            ("/failover", json!({"pool": "p"}), "server"),
            ("/log-level", json!({"level": 12}), "a number from 0 to 11"),
            ("/log-level", json!({"level": -1}), "a number from 0 to 11"),
            ("/drain", json!({"seconds": 3601}), "3600"),
            ("/drain-server", json!({"pool": "p", "server": "s", "steps": 0}), "1 to 100"),
            ("/weight", json!({"pool": "p", "server": "s", "percent": 101}), "0 to 100"),
            ("/reload", json!({"command": "upgrade"}), "command"),
            ("/undrain", json!({"seconds": 1}), "no parameter seconds"),
            ("/hot-key", json!({"key": "a\\", "action": "cache"}), "within an escape"),
        ] {
            let Misfit(why) = operation(path).command(parameters(given)).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
