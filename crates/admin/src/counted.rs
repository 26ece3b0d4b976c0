//! What is counted of pools by class of commands and by prefix: in the JSON, for Prometheus, and as a
//! table of `/state.json`. Only what has been asked for is told of.

use cashew_config::snapshot::{OTHER_USERS, Pool};
use cashew_metrics::{CommandCounter, Histogram, PoolId, UserCounter};
use cashew_protocol::CommandClass;

use crate::json::Object;
use crate::section::{Cell, Column, Section, Unit};
use crate::source::{Numbers, Source};

/// What the numbers are of.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Class(CommandClass),
    /// By its place in the configuration.
    Prefix(usize),
}

impl Part {
    pub(crate) fn counter(
        self,
        numbers: Numbers<'_>,
        pool: PoolId,
        counter: CommandCounter,
    ) -> u64 {
        match self {
            Self::Class(class) => numbers.class_counter(pool, class, counter),
            Self::Prefix(prefix) => numbers.prefix_counter(pool, prefix, counter),
        }
    }

    pub(crate) fn latency(self, numbers: Numbers<'_>, pool: PoolId) -> Histogram {
        match self {
            Self::Class(class) => numbers.class_latency(pool, class),
            Self::Prefix(prefix) => numbers.prefix_latency(pool, prefix),
        }
    }

    fn is_used(self, numbers: Numbers<'_>, pool: PoolId) -> bool {
        self.counter(numbers, pool, CommandCounter::Requests) > 0
    }
}

/// Classes of commands that clients of the pool have used, by name.
pub(crate) fn classes(source: &Source, pool: usize) -> Vec<(&'static str, Part)> {
    if !source.layout().has_commands(pool) {
        return Vec::new();
    }
    let (numbers, id) = (source.total(), source.layout().pool(pool));
    let classes = CommandClass::ALL.map(|class| (class.name(), Part::Class(class)));
    classes.into_iter().filter(|(_, part)| part.is_used(numbers, id)).collect()
}

/// All prefixes of the pool: it is said of each that nobody uses it, too.
pub(crate) fn prefixes(source: &Source, pool: usize) -> Vec<(&str, Part)> {
    let prefixes = source.snapshot().pools[pool].prefixes.iter().enumerate();
    prefixes.map(|(at, prefix)| (prefix.as_str(), Part::Prefix(at))).collect()
}

/// An object for each part, under its name.
pub(crate) fn object<'a>(
    numbers: Numbers<'_>,
    pool: PoolId,
    parts: Vec<(&'a str, Part)>,
) -> Object<'a> {
    let mut object = Object::default();
    for (name, part) in parts {
        let mut counters = Object::default();
        for &counter in CommandCounter::ALL {
            counters.insert(counter.stat().name, part.counter(numbers, pool, counter));
        }
        let latency = part.latency(numbers, pool);
        counters.insert("latency_us", latency.sum_us());
        for (name, quantile) in [("p50_us", 0.5), ("p99_us", 0.99)] {
            counters.insert(name, latency.quantile(quantile).unwrap_or(0));
        }
        object.insert(name, counters);
    }
    object
}

/// Users of the pool by name, and all others that there are.
pub(crate) fn users(source: &Source, pool: usize) -> Vec<(&str, usize)> {
    let numbers = source.total();
    let id = source.layout().pool(pool);
    let rows = source.snapshot().pools[pool].user_rows().into_iter().zip(0..);
    let is_used = |row| numbers.user_counter(id, row, UserCounter::BytesReceived) > 0;
    rows.filter(|&(name, row)| name != OTHER_USERS || is_used(row)).collect()
}

/// An object for each user, under its name.
pub(crate) fn user_object<'a>(
    numbers: Numbers<'_>,
    pool: PoolId,
    users: Vec<(&'a str, usize)>,
    config: &Pool,
) -> Object<'a> {
    let mut object = Object::default();
    for (name, row) in users {
        let mut counters = Object::default();
        if let Some(route) = config.route_of_user(name) {
            counters.insert("route", Some(route.name.clone()));
        }
        for &counter in UserCounter::ALL {
            counters.insert(counter.stat().name, numbers.user_counter(pool, row, counter));
        }
        object.insert(name, counters);
    }
    object
}

/// Each pool's users, for the page and `cashew top`.
pub(crate) struct UserTable;

impl Section for UserTable {
    fn name(&self) -> &'static str {
        "users"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 8] = [
            Column { name: "pool", unit: Unit::Text },
            Column { name: "user", unit: Unit::Text },
            Column { name: "requests", unit: Unit::Count },
            Column { name: "errors", unit: Unit::Count },
            Column { name: "in", unit: Unit::Bytes },
            Column { name: "out", unit: Unit::Bytes },
            Column { name: "slowest", unit: Unit::Microseconds },
            Column { name: "route", unit: Unit::Text },
        ];
        &COLUMNS
    }

    fn is_there(&self, source: &Source) -> bool {
        source.snapshot().pools.iter().any(|pool| !pool.users.is_empty())
    }

    fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
        let numbers = source.total();
        let mut rows = Vec::new();
        for (pool, config) in source.snapshot().pools.iter().enumerate() {
            source.beat();
            let id = source.layout().pool(pool);
            for (name, row) in users(source, pool) {
                let mut cells = vec![Cell::Text(config.name.clone()), Cell::Text(name.to_owned())];
                let counters = UserCounter::ALL.iter();
                cells.extend(counters.map(|&it| Cell::Number(numbers.user_counter(id, row, it))));
                let route = config.route_of_user(name);
                cells.push(route.map_or(Cell::Nothing, |route| Cell::Text(route.name.clone())));
                rows.push(cells);
            }
        }
        rows
    }
}

/// Each pool's classes and prefixes, for the page and `cashew top`.
pub(crate) struct CommandTable;

impl Section for CommandTable {
    fn name(&self) -> &'static str {
        "commands"
    }

    fn columns(&self) -> &'static [Column] {
        const COLUMNS: [Column; 11] = [
            Column { name: "pool", unit: Unit::Text },
            Column { name: "class", unit: Unit::Text },
            Column { name: "prefix", unit: Unit::Text },
            Column { name: "requests", unit: Unit::Count },
            Column { name: "errors", unit: Unit::Count },
            Column { name: "hits", unit: Unit::Count },
            Column { name: "misses", unit: Unit::Count },
            Column { name: "in", unit: Unit::Bytes },
            Column { name: "out", unit: Unit::Bytes },
            Column { name: "p50", unit: Unit::Microseconds },
            Column { name: "p99", unit: Unit::Microseconds },
        ];
        &COLUMNS
    }

    fn is_there(&self, source: &Source) -> bool {
        source.snapshot().pools.iter().any(|pool| pool.command_stats)
    }

    /// Prefixes first: somebody has asked for them.
    fn rows(&self, source: &Source) -> Vec<Vec<Cell>> {
        let numbers = source.total();
        let mut rows = Vec::new();
        for (pool, config) in source.snapshot().pools.iter().enumerate() {
            source.beat();
            let id = source.layout().pool(pool);
            for (name, part) in prefixes(source, pool).into_iter().chain(classes(source, pool)) {
                let name = Cell::Text(name.to_owned());
                let (class, prefix) = match part {
                    Part::Class(_) => (name, Cell::Nothing),
                    Part::Prefix(_) => (Cell::Nothing, name),
                };
                let mut cells = vec![Cell::Text(config.name.clone()), class, prefix];
                let counters = CommandCounter::ALL.iter();
                cells.extend(counters.map(|&it| Cell::Number(part.counter(numbers, id, it))));
                let latency = part.latency(numbers, id);
                cells.extend([0.5, 0.99].map(|quantile| {
                    latency.quantile(quantile).map_or(Cell::Nothing, Cell::Number)
                }));
                rows.push(cells);
            }
        }
        rows
    }
}
