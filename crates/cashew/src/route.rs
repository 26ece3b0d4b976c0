//! `cashew route`: where a key lives, by the configuration file and what the running instance says.

mod comparison;
mod operations;
mod pools;
mod tree;

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use cashew_api::status::Status;
use cashew_api::{RouteList, RouteQuestion};
use cashew_config::snapshot::{
    Listen, Pool, Promoted, Protocol, Reads, ServerGroup, Snapshot, Topology, TopologyState,
};
use cashew_placement::{Distribution, Ring};
use serde::Serialize;

use self::pools::Pools;

use crate::arguments::RouteArguments;
use crate::operate::table;
use crate::output::print_line;

/// How long sources of servers have to answer.
const FIND_TIMEOUT: Duration = Duration::from_secs(3);

/// Where one key of one pool lives.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Route {
    pool: String,
    key: String,
    /// Whether the running instance has said who the primaries are. Otherwise it is what the file says.
    by_instance: bool,
    /// Why it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_by_instance: Option<String>,
    /// The group, or the server where each is a group of one. `None`: it is left to chance, or no
    /// server is left.
    group: Option<String>,
    /// Name and address.
    writes: Option<Place>,
    /// `all` if all servers of the group get the writes, and the one that is named answers them.
    #[serde(skip_serializing_if = "Option::is_none")]
    writes_by: Option<String>,
    reads: Option<Place>,
    /// The pool's `reads`, if it chooses among the servers of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    reads_by: Option<String>,
    /// Who answers the reads of some commands instead, as in the pool's `reads_by_class`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reads_by_class: Vec<ClassReads>,
    /// Which server it is, is left to chance.
    random: bool,
    /// What decides.
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Place {
    server: String,
    /// `unknown` where Sentinels name it and nobody has asked them.
    address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ClassReads {
    /// A command, or a category with `@`.
    class: String,
    reads_by: String,
}

/// Where a key goes that clients of one port ask for.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum Answer {
    /// A pool's.
    Pool(Route),
    /// A route's.
    Route(tree::RouteWay),
}

pub(crate) fn route(arguments: &RouteArguments) -> ExitCode {
    match answer(arguments) {
        Ok(text) => {
            // The reader may be gone, as with `head`.
            let _ = writeln!(io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(why) => {
            print_line(format_args!("cashew: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn answer(arguments: &RouteArguments) -> Result<String, String> {
    let snapshot = load(&arguments.instance.conf_file)?;
    let chosen = chosen(&snapshot, arguments.pool.as_deref())?;
    let pools = Pools::new(&snapshot, &chosen, arguments)?;
    let keys = keys(&arguments.keys)?;
    if let Some(other) = &arguments.compare {
        let other = load(other)?;
        return comparison::compare(&pools, &other, &chosen, &keys, arguments);
    }
    let answers = answers(&pools, &chosen, &keys, arguments.command.as_deref())?;
    Ok(match arguments.json {
        true => serde_json::to_string_pretty(&answers).expect("routes are plain JSON"),
        false => describe(&answers),
    })
}

fn answers(
    pools: &Pools,
    chosen: &[&str],
    keys: &[String],
    command: Option<&str>,
) -> Result<Vec<Answer>, String> {
    let mut answers = Vec::new();
    for name in chosen {
        let pool = pools.find(name).expect("the chosen pools are there");
        let operations = operations::of(command, pool)?;
        match &pool.route {
            None => answers.extend(keys.iter().map(|key| Answer::Pool(pools.of(name, key)))),
            Some(route) => {
                let ways = |key: &String| tree::ways(name, route, key, &operations, pools);
                answers.extend(keys.iter().flat_map(ways).map(Answer::Route));
            }
        }
    }
    Ok(answers)
}

/// Where a key goes, for who asks a running instance by HTTP.
pub(crate) fn tell(
    snapshot: &Snapshot,
    status: &Status,
    question: &RouteQuestion,
) -> Result<RouteList, String> {
    let RouteQuestion { key, pool, command, as_if } = question;
    let chosen = chosen(snapshot, pool.as_deref())?;
    let pools = Pools::of_instance(snapshot, &status.pools, &chosen, as_if.as_deref())?;
    let keys = std::slice::from_ref(key);
    let answers = answers(&pools, &chosen, keys, command.as_deref())?;
    let as_object = |answer: &Answer| match serde_json::to_value(answer) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => unreachable!("routes are plain JSON objects"),
    };
    Ok(RouteList { routes: answers.iter().map(as_object).collect(), notes: pools.notes })
}

fn load(file: &std::path::Path) -> Result<Snapshot, String> {
    let loaded = cashew_config::load(file).map_err(|errors| errors.to_string())?;
    let mut snapshot = loaded.snapshot;
    for (pool, why) in cashew_discovery::find_once(&mut snapshot, FIND_TIMEOUT) {
        print_line(format_args!("cashew: pool '{pool}': {why}"));
    }
    Ok(snapshot)
}

/// The pool or route of that name, or all that clients connect to.
fn chosen<'s>(snapshot: &'s Snapshot, name: Option<&str>) -> Result<Vec<&'s str>, String> {
    let names = || snapshot.pools.iter().map(|pool| &*pool.name);
    let has_keys = |pool: &&Pool| pool.protocol != Protocol::Tcp;
    match name {
        None => {
            let listens = snapshot.pools.iter().filter(|pool| pool.listen != Listen::Nowhere);
            Ok(listens.filter(has_keys).map(|pool| &*pool.name).collect())
        }
        Some(name) => match snapshot.pools.iter().find(|pool| pool.name == name) {
            Some(pool) if has_keys(&pool) => Ok(vec![&pool.name]),
            Some(_) => Err(format!(
                "pool \"{name}\" passes bytes through and knows no keys: its \"balance\" says where connections go"
            )),
            None => {
                let known: Vec<&str> = names().collect();
                Err(format!("there is no pool \"{name}\"; there are {}", known.join(", ")))
            }
        },
    }
}

/// `-` stands for the lines of standard input.
fn keys(words: &[String]) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for word in words {
        if word != "-" {
            keys.push(word.clone());
            continue;
        }
        for line in io::stdin().lock().lines() {
            keys.push(line.map_err(|error| format!("standard input: {error}"))?);
        }
    }
    Ok(keys)
}

/// The primaries that a running instance has made others than the file names.
fn take_primaries<'a>(
    pool: &Pool,
    state: &mut TopologyState,
    primary: &str,
    shards: impl Iterator<Item = (&'a str, &'a str)>,
) {
    let of_groups: Vec<(&str, &str)> = shards.collect();
    for (number, group) in pool.replicated() {
        let named = of_groups.iter().find(|(name, _)| *name == group.name);
        let named = named.map_or(primary, |(_, primary)| primary);
        let is_named = |&member: &u32| {
            let server = &pool.servers[member as usize];
            server.name == named || server.endpoint.to_string() == named
        };
        if let Some(server) = group.members().find(is_named)
            && server != group.primary
        {
            state.primaries.push(Promoted { shard: number, server });
        }
    }
}

/// The ring by which keys go.
fn ring_of(pool: &Pool, state: &TopologyState) -> Ring {
    // Where nothing is ejected, who is down keeps its keys.
    let on_ring = match pool.auto_eject_hosts {
        true => state.clone(),
        false => TopologyState { live: vec![true; pool.servers.len()], ..state.clone() },
    };
    pool.ring(&on_ring)
}

/// `state` has who is down, and who the primaries are.
fn of(pool: &Pool, state: &TopologyState, ring: &Ring, key: &str) -> Route {
    let is_random = pool.distribution == Distribution::Random;
    let named = || ring.select(ring.point(pool.hash, pool.hash_tag, key.as_bytes()));
    let shards = pool.shards();
    let shard = match pool.topology {
        _ if shards.len() == 1 => Some(0),
        Topology::Sharded | Topology::Groups(_) if is_random => None,
        _ => named(),
    };
    let mut route = Route {
        pool: pool.name.clone(),
        key: key.to_owned(),
        by_instance: false,
        not_by_instance: None,
        group: None,
        writes: None,
        writes_by: None,
        reads: None,
        reads_by: None,
        reads_by_class: Vec::new(),
        random: is_random && pool.servers.len() > 1,
        why: why(pool, key),
    };
    let Some(number) = shard else { return route };
    let shard: &ServerGroup = &shards[number as usize];
    let primary = state.primary_of(number, shard.primary);
    let is_up = |server: &u32| state.live[*server as usize];
    let writes_to_all = pool.writes_to_all() && !shard.replicas.is_empty();
    // The first that can be reached is as good as the primary.
    let others = shard.members().filter(|&server| server != primary);
    let leader = std::iter::once(primary).chain(others).find(|it| writes_to_all && is_up(it));
    let primary = leader.unwrap_or(primary);
    let policy = pool.reads.filter(|&it| it != Reads::Primary && !shard.replicas.is_empty());
    let reader = match pool.topology {
        _ if policy.is_some() => None,
        _ if pool.reads == Some(Reads::Primary) => Some(primary),
        Topology::MasterReplica { .. } if is_random => None,
        Topology::MasterReplica { .. } => {
            let others = shard.members().filter(|&server| server != primary);
            named().filter(is_up).or_else(|| others.into_iter().find(is_up)).or(Some(primary))
        }
        Topology::Sharded | Topology::Groups(_) => Some(primary),
    };
    let place = |server: u32| {
        let server = &pool.servers[server as usize];
        let address = match server.endpoint.is_unknown() {
            true => "unknown".to_owned(),
            false => server.endpoint.to_string(),
        };
        Place { server: server.name.clone(), address }
    };
    route.group = Some(shard.name.clone());
    route.writes = Some(place(primary));
    route.writes_by = writes_to_all.then(|| "all".to_owned());
    route.reads = reader.map(place);
    route.reads_by = policy.map(|reads| reads.to_string());
    if !shard.replicas.is_empty() {
        let class = |(class, reads): &(String, Reads)| ClassReads {
            class: class.clone(),
            reads_by: reads.to_string(),
        };
        route.reads_by_class = pool.reads_by_class.iter().map(class).collect();
    }
    if !is_up(&primary) {
        route.why += "; writes fail: it is down";
    }
    route
}

fn why(pool: &Pool, key: &str) -> String {
    let hashed = pool.hash_tag.map_or(key.as_bytes(), |tag| tag.part(key.as_bytes()));
    let hashed = String::from_utf8_lossy(hashed);
    match (&pool.topology, pool.distribution) {
        (_, Distribution::Random) if pool.servers.len() > 1 => "random".to_owned(),
        _ if pool.servers.len() == 1 => "the only server".to_owned(),
        (Topology::Groups(groups), _) if groups.len() == 1 => "the only group".to_owned(),
        (_, distribution) => {
            format!("{}, {} of \"{hashed}\"", distribution.name(), pool.hash.name())
        }
    }
}

/// A table of those of pools, and a tree for each of routes.
fn describe(answers: &[Answer]) -> String {
    let of_pools: Vec<&Route> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Pool(route) => Some(route),
            Answer::Route(_) => None,
        })
        .collect();
    let mut text = if of_pools.is_empty() { String::new() } else { describe_pools(&of_pools) };
    for answer in answers {
        if let Answer::Route(way) = answer {
            text += if text.is_empty() { "" } else { "\n" };
            text += &format!("{}\n", tree::describe(way).join("\n"));
        }
    }
    text
}

fn describe_pools(routes: &[&Route]) -> String {
    let head = ["POOL", "KEY", "GROUP", "WRITES GO TO", "READS GO TO", "WHY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let place = |place: &Option<Place>, route: &Route| match place {
        Some(Place { server, address }) if server.contains(&**address) => server.clone(),
        Some(Place { server, address }) => format!("{server} ({address})"),
        None if route.random => "any".to_owned(),
        None => "none is left".to_owned(),
    };
    let reads = |route: &Route| {
        let mut text = match &route.reads_by {
            Some(policy) => format!("{policy} of the group"),
            None => place(&route.reads, route),
        };
        for ClassReads { class, reads_by } in &route.reads_by_class {
            text += &format!("; {class}: {reads_by}");
        }
        text
    };
    rows.extend(routes.iter().map(|route| {
        vec![
            route.pool.clone(),
            route.key.clone(),
            route.group.clone().unwrap_or_else(|| "-".to_owned()),
            match &route.writes_by {
                Some(_) => format!("all of the group, {} answers", place(&route.writes, route)),
                None => place(&route.writes, route),
            },
            reads(route),
            route.why.clone(),
        ]
    }));
    table(&rows)
}
