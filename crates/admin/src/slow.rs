//! Slow requests, and where their time went: `/slow.json`, and a table of `/state.json`.

use cashew_metrics::{SLOW_MAX, SeenRequest};
use chrono::{DateTime, Local};
use serde::{Deserialize, Serialize};

use crate::printable;
use crate::query;
use crate::section::{Cell, Column, Section, Unit};
use crate::source::Source;

/// Requests that are listed unless the query has a `limit`.
const LIMIT: usize = 100;

/// Letters of a command in the table: more would leave no room for the other columns.
const COMMAND_MAX: usize = 100;

/// The newest slow requests, for the page and `cashew top`.
pub(crate) struct SlowTable;

impl Section for SlowTable {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn columns(&self) -> &'static [Column] {
        // What is most telling comes first: a narrow terminal cuts off the rest.
        const COLUMNS: [Column; 13] = [
            Column { name: "time", unit: Unit::Time },
            Column { name: "total", unit: Unit::Microseconds },
            Column { name: "longest", unit: Unit::Text },
            Column { name: "pool", unit: Unit::Text },
            Column { name: "server", unit: Unit::Text },
            Column { name: "client", unit: Unit::Text },
            Column { name: "command", unit: Unit::Text },
            Column { name: "in gateway", unit: Unit::Microseconds },
            Column { name: "in queue", unit: Unit::Microseconds },
            Column { name: "at server", unit: Unit::Microseconds },
            Column { name: "for order", unit: Unit::Microseconds },
            Column { name: "at client", unit: Unit::Microseconds },
            Column { name: "failure", unit: Unit::Text },
        ];
        &COLUMNS
    }

    fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
        let text = |text: String| match text.as_str() {
            "" => Cell::Nothing,
            _ => Cell::Text(text),
        };
        let row = |request: SeenRequest| {
            let times = request.times;
            let mut client = request.client.clone();
            if !request.client_name.is_empty() {
                client += &format!(" ({})", printable::escaped(&request.client_name));
            }
            if !request.user.is_empty() {
                client += &format!(" user={}", printable::escaped(request.user.as_bytes()));
            }
            let mut cells = vec![
                Cell::Number(request.at_us / 1000),
                Cell::Number(times.total_us()),
                text(times.longest().to_owned()),
                text(request.pool),
                text(request.server),
                text(client.trim_start().to_owned()),
                text(start_of(printable::command(&request.arguments))),
            ];
            let parts = [
                times.gateway_us,
                times.queue_us,
                times.server_us,
                times.order_us,
                times.client_us,
            ];
            cells.extend(parts.map(Cell::Number));
            cells.push(text(request.failure));
            cells
        };
        source.slow_requests().since(0).into_iter().rev().take(LIMIT).map(row).collect()
    }
}

/// It is ASCII.
fn start_of(mut command: String) -> String {
    if command.len() > COMMAND_MAX {
        command.truncate(COMMAND_MAX);
        command.push('…');
    }
    command
}

/// What `/slow.json` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowListing {
    /// How many were ever recorded.
    pub recorded: u64,
    /// How many of them are kept.
    pub kept: u64,
    /// How many were not recorded, since there were too many.
    pub left_out: u64,
    /// The number of the newest of all, to ask for later ones with.
    pub newest: u64,
    /// The newest first.
    pub requests: Vec<SlowRecord>,
}

/// A slow request as operators and tools get it. What comes from clients is escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowRecord {
    /// Later ones have higher numbers.
    pub number: u64,
    /// When it ended, as RFC 3339 has it, with milliseconds and the zone of this machine.
    pub time: String,
    /// The same in microseconds since 1970.
    pub at_us: u64,
    pub pool: String,
    pub server: String,
    pub client: String,
    pub client_id: u64,
    pub client_name: String,
    pub user: String,
    pub worker: u32,
    pub command: String,
    pub arguments: Vec<String>,
    pub request_bytes: u64,
    pub reply_bytes: u64,
    pub total_us: u64,
    /// The name of the part that took longest.
    pub longest: String,
    pub parts: Parts,
    /// Why its server did not answer it. Empty if it did.
    pub failure: String,
}

/// Where the time of a request went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parts {
    pub gateway_us: u64,
    pub queue_us: u64,
    pub server_us: u64,
    pub order_us: u64,
    pub client_us: u64,
}

impl From<SeenRequest> for SlowRecord {
    fn from(request: SeenRequest) -> Self {
        let times = request.times;
        Self {
            number: request.number,
            time: rfc3339(request.at_us),
            at_us: request.at_us,
            pool: request.pool,
            server: request.server,
            client: request.client,
            client_id: request.client_id,
            client_name: printable::escaped(&request.client_name),
            user: printable::escaped(request.user.as_bytes()),
            worker: request.worker,
            command: printable::command(&request.arguments),
            arguments: request.arguments.iter().map(|it| printable::escaped(it)).collect(),
            request_bytes: request.request_bytes,
            reply_bytes: request.reply_bytes,
            total_us: times.total_us(),
            longest: times.longest().to_owned(),
            parts: Parts {
                gateway_us: times.gateway_us,
                queue_us: times.queue_us,
                server_us: times.server_us,
                order_us: times.order_us,
                client_us: times.client_us,
            },
            failure: request.failure,
        }
    }
}

fn rfc3339(at_us: u64) -> String {
    let at = i64::try_from(at_us).ok().and_then(DateTime::from_timestamp_micros);
    let at = at.unwrap_or_default().with_timezone(&Local);
    at.format("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()
}

/// The slow requests that the query asks for, as JSON in one line. An error says what is wrong with the query.
pub(crate) fn json(source: &Source, query: &str) -> Result<Vec<u8>, String> {
    let (mut since, mut limit, mut pool) = (0, LIMIT, None);
    for (name, value) in query::pairs(query) {
        match name {
            "since" => {
                let number = value.parse();
                since = number.map_err(|_| "since is a number of a slow request".to_owned())?;
            }
            "limit" => limit = query::limit(&value, SLOW_MAX)?,
            "pool" => pool = Some(value),
            // Others may add something to keep caches away.
            _ => {}
        }
    }
    let ring = source.slow_requests();
    // Before the requests, so that none is skipped by who asks for later ones.
    let newest = ring.count();
    let mut requests = ring.since(since);
    if let Some(pool) = pool {
        requests.retain(|request| request.pool == pool);
        // One that is gone may still have requests here.
        if requests.is_empty() && !source.has_pool(&pool) {
            return Err(format!("there is no pool '{pool}'"));
        }
    }
    let listing = SlowListing {
        recorded: newest,
        kept: ring.len() as u64,
        left_out: ring.left_out(),
        newest,
        requests: requests.into_iter().rev().take(limit).map(SlowRecord::from).collect(),
    };
    let mut line = serde_json::to_vec(&listing).expect("a listing is plain JSON");
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use cashew_metrics::{NewRequest, Times};

    use super::*;
    use crate::testing::busy_source;

    /// Of each of these pools and commands one.
    fn source_with(requests: &[(&str, &[&[u8]])]) -> Source {
        let source = busy_source();
        for (pool, words) in requests {
            let arguments: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
            source.slow_requests().record(&NewRequest {
                pool,
                server: "one",
                client: "10.0.0.1:5",
                client_id: 7,
                client_name: b"app\x1b",
                user: "",
                worker: 2,
                arguments: &arguments,
                request_bytes: 30,
                reply_bytes: 5,
                times: Times {
                    gateway_us: 1,
                    queue_us: 2,
                    server_us: 30,
                    order_us: 4,
                    client_us: 5,
                },
                key_hash: 9,
                failure: "",
                is_part: false,
                is_slow: true,
            });
        }
        source
    }

    fn listed(source: &Source, query: &str) -> SlowListing {
        serde_json::from_slice(&json(source, query).unwrap()).unwrap()
    }

    #[test]
    fn a_query_chooses_slow_requests() {
        let source = source_with(&[
            ("alpha", &[b"GET", b"1"]),
            ("beta", &[b"get", b"2"]),
            ("gone", &[b"GET", b"3"]),
            ("alpha", &[b"GET", b"4"]),
        ]);
        source.slow_requests().leave_out(3);
        let commands = |query: &str| -> Vec<String> {
            listed(&source, query).requests.into_iter().map(|it| it.command).collect()
        };
        assert_eq!(commands(""), ["GET 4", "GET 3", "get 2", "GET 1"]);
        assert_eq!(commands("pool=alpha&x"), ["GET 4", "GET 1"]);
        assert_eq!(commands("pool=gone"), ["GET 3"]);
        assert_eq!(commands("since=2&limit=1"), ["GET 4"]);
        assert_eq!(commands("pool=b%65ta&since=2"), [] as [&str; 0]);
        let listing = listed(&source, "limit=1");
        let counts = (listing.recorded, listing.kept, listing.left_out, listing.newest);
        assert_eq!(counts, (4, 4, 3, 4));
        for (query, why) in [
            ("since=x", "since is a number of a slow request"),
            ("limit=0", "limit is a number from 1 to 512"),
            ("limit=513", "limit is a number from 1 to 512"),
            ("pool=none", "there is no pool 'none'"),
        ] {
            assert_eq!(json(&source, query).unwrap_err(), why);
        }
        ["alpha", "beta", "gone"].into_iter().for_each(|pool| source.slow_requests().reset(pool));
        assert_eq!((listed(&source, "").kept, commands("").len()), (0, 0));
    }

    #[test]
    fn what_clients_sent_is_escaped() {
        let source = source_with(&[("alpha", &[b"SET", b"<b>\x1b[2J", b"\xff"])]);
        let record = listed(&source, "").requests.remove(0);
        assert_eq!(record.command, r#"SET "<b>\x1b[2J" "\xff""#);
        assert_eq!(record.arguments, ["SET", r"<b>\x1b[2J", r"\xff"]);
        assert_eq!(record.client_name, r"app\x1b");
        assert_eq!((record.total_us, record.longest.as_str()), (42, "server"));
        let at = DateTime::parse_from_rfc3339(&record.time).unwrap();
        assert_eq!(at.timestamp_millis() as u64, record.at_us / 1000);
        let rows = SlowTable.rows(&source);
        assert!(rows[0].len() == SlowTable.columns().len() && rows.len() == 1);
        assert_eq!(rows[0][5], Cell::Text(r"10.0.0.1:5 (app\x1b)".to_owned()));
        let parts: Vec<_> = [1, 2, 30, 4, 5].map(Cell::Number).to_vec();
        assert_eq!(rows[0][7..12], parts);
        assert_eq!(start_of("x".repeat(101)), "x".repeat(100) + "…");
        assert_eq!(start_of("x".repeat(100)), "x".repeat(100));
        assert_eq!((&rows[0][1], &rows[0][12]), (&Cell::Number(42), &Cell::Nothing));
    }
}
