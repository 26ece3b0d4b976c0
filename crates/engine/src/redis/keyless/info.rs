//! INFO of several servers as one: sums where a sum makes sense.
//!
//! What differs from server to server and can be neither added nor compared, as a port, is left out:
//! a wrong number would be believed.

use std::collections::HashMap;
use std::fmt::Write;

/// Fields that are added up, besides those whose names begin with one of [`SUMMED_PREFIXES`].
const SUMMED: &[&str] = &[
    "blocked_clients",
    "clients_in_timeout_table",
    "cluster_connections",
    "connected_clients",
    "connected_slaves",
    "keyspace_hits",
    "keyspace_misses",
    "lazyfree_pending_objects",
    "lazyfreed_objects",
    "maxclients",
    "maxmemory",
    "number_of_cached_scripts",
    "number_of_functions",
    "number_of_libraries",
    "pubsub_channels",
    "pubsub_clients",
    "pubsub_patterns",
    "pubsubshard_channels",
    "rdb_changes_since_last_save",
    "rejected_connections",
    "slave_expires_tracked_keys",
    "tracking_clients",
    "unexpected_error_replies",
    "watching_clients",
];
const SUMMED_PREFIXES: &[&str] = &[
    "acl_access_denied_",
    "active_defrag_",
    "allocator_",
    "client_output_buffer_",
    "client_query_buffer_",
    "dump_payload_",
    "evicted_",
    "expired_",
    "instantaneous_",
    "io_threaded_",
    "mem_",
    "reply_buffer_",
    "sync_",
    "total_",
    "tracking_total_",
    "used_cpu_",
    "used_memory",
];
/// The largest is true of the whole.
const GREATEST: &[&str] = &[
    "async_loading",
    "aof_rewrite_scheduled",
    "client_recent_max_input_buffer",
    "client_recent_max_output_buffer",
    "latest_fork_usec",
    "loading",
    "lru_clock",
    "server_time_usec",
    "total_system_memory",
];
/// The least is.
const LEAST: &[&str] =
    &["rdb_last_save_time", "redis_version", "uptime_in_days", "uptime_in_seconds"];
/// Digits beyond these tell nothing of a double, and the formatter panics at 65,536 of them.
const DECIMALS_MAX: usize = 17;
/// Of what is a share of something, no sum makes sense.
const SHARES: &[&str] = &["_ratio", "_perc", "_human", "_rate"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Sum,
    Greatest,
    Least,
    /// Whatever is not "ok".
    Worst,
    Same,
}

fn rule(key: &str) -> Rule {
    if LEAST.contains(&key) {
        Rule::Least
    } else if GREATEST.contains(&key) || key.ends_with("_in_progress") {
        Rule::Greatest
    } else if key.ends_with("_status") {
        Rule::Worst
    } else if SHARES.iter().any(|suffix| key.ends_with(suffix)) {
        Rule::Same
    } else if SUMMED.contains(&key) || SUMMED_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
    {
        Rule::Sum
    } else {
        Rule::Same
    }
}

/// A section with the values of each field, by server as far as they have it.
struct Section<'t> {
    name: &'t str,
    fields: Vec<(&'t str, Vec<&'t str>)>,
    index: HashMap<&'t str, usize>,
}

/// Whether a field tells where a server listens, or where it replicates from or to.
fn tells_address(key: &str) -> bool {
    let is_numbered = |name: &str| {
        let number = key.strip_prefix(name);
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
    };
    matches!(key, "master_host" | "master_port" | "tcp_port" | "executable" | "config_file")
        || is_numbered("slave")
        || is_numbered("listener")
}

/// One INFO made of those of several servers. `process_id` is that of whom clients talk to. Where the
/// topology is `hidden`, without the servers' addresses.
pub(crate) fn merge<'t>(
    texts: impl Iterator<Item = &'t str>,
    process_id: u32,
    hidden: bool,
) -> String {
    let mut sections: Vec<Section<'t>> = Vec::new();
    let mut servers = 0;
    for text in texts {
        servers += 1;
        let mut current = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# ") {
                current = Some(section(&mut sections, name));
            } else if let (Some(at), Some((key, value))) = (current, line.split_once(':'))
                && !(hidden && tells_address(key))
            {
                add(&mut sections[at], key, value);
            }
        }
    }
    let mut out = String::new();
    for section in &sections {
        if !out.is_empty() {
            out.push_str("\r\n");
        }
        let _ = write!(out, "# {}\r\n", section.name);
        for (key, value) in merge_section(section, servers, process_id) {
            let _ = write!(out, "{key}:{value}\r\n");
        }
    }
    out
}

/// The same where clients are to see a cluster.
pub(crate) fn of_cluster(info: &str) -> String {
    info.replace("\r\nredis_mode:standalone\r\n", "\r\nredis_mode:cluster\r\n")
        .replace("\r\ncluster_enabled:0\r\n", "\r\ncluster_enabled:1\r\n")
}

fn section<'t>(sections: &mut Vec<Section<'t>>, name: &'t str) -> usize {
    if let Some(at) = sections.iter().position(|section| section.name == name) {
        return at;
    }
    sections.push(Section { name, fields: Vec::new(), index: HashMap::new() });
    sections.len() - 1
}

fn add<'t>(section: &mut Section<'t>, key: &'t str, value: &'t str) {
    let at = *section.index.entry(key).or_insert_with(|| {
        section.fields.push((key, Vec::new()));
        section.fields.len() - 1
    });
    section.fields[at].1.push(value);
}

fn merge_section<'t>(
    section: &Section<'t>,
    servers: usize,
    process_id: u32,
) -> Vec<(&'t str, String)> {
    let fields = section.fields.iter().filter_map(|(key, values)| {
        let merged = match section.name {
            "Keyspace" => Some(merge_keyspace(values)),
            "Commandstats" => Some(merge_command(values)),
            "Errorstats" => Some(merge_pairs(values, add_numbers)),
            "Latencystats" => Some(merge_pairs(values, greatest_number)),
            "Server" if *key == "process_id" => Some(process_id.to_string()),
            _ => merge_field(key, values, servers),
        };
        merged.map(|merged| (*key, merged))
    });
    let mut fields: Vec<(&str, String)> = fields.collect();
    derive(section, &mut fields, servers);
    fields
}

fn merge_field(key: &str, values: &[&str], servers: usize) -> Option<String> {
    match rule(key) {
        Rule::Sum => add_numbers(values),
        Rule::Greatest => greatest_number(values),
        Rule::Least => values.iter().min_by_key(|value| version(value)).map(|v| (*v).to_owned()),
        Rule::Worst => {
            values.iter().find(|value| **value != "ok").or(values.first()).map(|v| (*v).to_owned())
        }
        Rule::Same => None,
    }
    .or_else(|| {
        let first = values.first()?;
        let is_same = values.len() == servers && values.iter().all(|value| value == first);
        is_same.then(|| (*first).to_owned())
    })
}

/// Fields that follow from others which have been added up, in the place that they have.
fn derive<'t>(section: &Section<'t>, fields: &mut Vec<(&'t str, String)>, servers: usize) {
    if servers < 2 {
        return;
    }
    let number = |fields: &[(&str, String)], key: &str| {
        fields.iter().find(|(other, _)| *other == key)?.1.parse::<f64>().ok()
    };
    let mut all = Vec::with_capacity(section.fields.len());
    for &(key, _) in &section.fields {
        let derived = if let Some(base) = key.strip_suffix("_human") {
            number(fields, base).map(human)
        } else if key == "mem_fragmentation_ratio" {
            let (rss, used) = (number(fields, "used_memory_rss"), number(fields, "used_memory"));
            rss.zip(used).map(|(rss, used)| format!("{:.2}", rss / used.max(1.0)))
        } else {
            None
        };
        let kept = || fields.iter().find(|(other, _)| *other == key).map(|(_, v)| v.clone());
        all.extend(derived.or_else(kept).map(|value| (key, value)));
    }
    *fields = all;
}

/// As Redis's bytesToHuman.
fn human(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024.0 {
        return format!("{bytes:.0}B");
    }
    let mut value = bytes / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", UNITS[unit])
}

/// With as many decimals as any of them has, as far as they tell anything; `None` unless all are
/// numbers.
fn add_numbers(values: &[&str]) -> Option<String> {
    let integers: Option<i128> =
        values.iter().map(|value| value.parse::<i64>().ok().map(i128::from)).sum();
    if let Some(sum) = integers {
        return Some(sum.to_string());
    }
    let sum: f64 = values.iter().map(|value| value.parse::<f64>().ok()).sum::<Option<f64>>()?;
    Some(format!("{sum:.*}", decimals(values)))
}

fn greatest_number(values: &[&str]) -> Option<String> {
    let numbers: Vec<f64> = values.iter().map(|v| v.parse().ok()).collect::<Option<_>>()?;
    let greatest = numbers.iter().zip(values).max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some((*greatest.1).to_owned())
}

fn decimals(values: &[&str]) -> usize {
    let of = |value: &&str| value.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    values.iter().map(of).max().unwrap_or(0).min(DECIMALS_MAX)
}

/// To compare numbers and versions: the numbers between their dots.
fn version(value: &str) -> Vec<u64> {
    value.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

/// Values of the form `a=1,b=2`, merged place by place.
fn pairs<'v>(values: &[&'v str]) -> Vec<(&'v str, Vec<&'v str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    for (key, value) in values.iter().flat_map(|v| v.split(',')).filter_map(|p| p.split_once('=')) {
        match all.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => all.push((key, vec![value])),
        }
    }
    all
}

fn merge_pairs(values: &[&str], merge: impl Fn(&[&str]) -> Option<String>) -> String {
    join(pairs(values).into_iter().map(|(key, values)| {
        let first = values.first().copied().unwrap_or_default().to_owned();
        (key, merge(&values).unwrap_or(first))
    }))
}

fn join<'k>(pairs: impl Iterator<Item = (&'k str, String)>) -> String {
    pairs.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// A line of a database: an average time to live counts as often as keys have one.
fn merge_keyspace(values: &[&str]) -> String {
    let number = |value: &str, key: &str| -> f64 {
        let found = value.split(',').filter_map(|p| p.split_once('=')).find(|(k, _)| *k == key);
        found.and_then(|(_, v)| v.parse().ok()).unwrap_or(0.0)
    };
    let expires: f64 = values.iter().map(|value| number(value, "expires")).sum();
    let total: f64 =
        values.iter().map(|value| number(value, "expires") * number(value, "avg_ttl")).sum();
    join(pairs(values).into_iter().map(|(key, values)| match key {
        "avg_ttl" => (key, format!("{:.0}", total / expires.max(1.0))),
        _ => (key, add_numbers(&values).unwrap_or_default()),
    }))
}

fn merge_command(values: &[&str]) -> String {
    let all = pairs(values);
    let sum = |name: &str| -> f64 {
        let found = all.iter().find(|(key, _)| *key == name);
        found.map_or(0.0, |(_, values)| values.iter().filter_map(|v| v.parse::<f64>().ok()).sum())
    };
    let per_call = sum("usec") / sum("calls").max(1.0);
    join(all.iter().map(|(key, values)| match *key {
        "usec_per_call" => (*key, format!("{per_call:.2}")),
        _ => (*key, add_numbers(values).unwrap_or_default()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
        process_id:100\r\nuptime_in_seconds:500\r\n\r\n\
        # Clients\r\nconnected_clients:3\r\nclient_recent_max_input_buffer:20\r\n\r\n\
        # Memory\r\nused_memory:1000\r\nused_memory_human:1000B\r\nused_memory_rss:3000\r\n\
        mem_fragmentation_ratio:3.00\r\nmem_allocator:jemalloc-5.3.0\r\n\
        maxmemory_policy:noeviction\r\nused_memory_peak_perc:99.00%\r\n\r\n\
        # Persistence\r\nloading:0\r\nrdb_last_bgsave_status:ok\r\n\r\n\
        # Stats\r\ninstantaneous_input_kbps:0.10\r\nkeyspace_hits:5\r\n\r\n\
        # Commandstats\r\ncmdstat_get:calls=2,usec=10,usec_per_call=5.00,rejected_calls=0\r\n\r\n\
        # Errorstats\r\nerrorstat_ERR:count=1\r\n\r\n\
        # Keyspace\r\ndb0:keys=10,expires=1,avg_ttl=100\r\n";
    const TWO: &str = "# Server\r\nredis_version:7.0.9\r\nredis_mode:standalone\r\n\
        process_id:101\r\nuptime_in_seconds:60\r\n\r\n\
        # Clients\r\nconnected_clients:4\r\nclient_recent_max_input_buffer:30\r\n\r\n\
        # Memory\r\nused_memory:2000\r\nused_memory_human:1.95K\r\nused_memory_rss:3000\r\n\
        mem_fragmentation_ratio:1.50\r\nmem_allocator:jemalloc-5.3.0\r\n\
        maxmemory_policy:noeviction\r\nused_memory_peak_perc:98.00%\r\n\r\n\
        # Persistence\r\nloading:1\r\nrdb_last_bgsave_status:err\r\n\r\n\
        # Stats\r\ninstantaneous_input_kbps:1.5\r\nkeyspace_hits:7\r\n\r\n\
        # Commandstats\r\ncmdstat_get:calls=2,usec=30,usec_per_call=15.00,rejected_calls=1\r\n\
        cmdstat_set:calls=1,usec=1,usec_per_call=1.00,rejected_calls=0\r\n\r\n\
        # Errorstats\r\nerrorstat_ERR:count=2\r\n\r\n\
        # Keyspace\r\ndb0:keys=5,expires=3,avg_ttl=200\r\ndb1:keys=1,expires=0,avg_ttl=0\r\n";

    #[test]
    fn servers_are_one() {
        assert_eq!(
            merge([ONE, TWO].into_iter(), 7, false),
            "# Server\r\nredis_version:7.0.9\r\nredis_mode:standalone\r\n\
             process_id:7\r\nuptime_in_seconds:60\r\n\r\n\
             # Clients\r\nconnected_clients:7\r\nclient_recent_max_input_buffer:30\r\n\r\n\
             # Memory\r\nused_memory:3000\r\nused_memory_human:2.93K\r\nused_memory_rss:6000\r\n\
             mem_fragmentation_ratio:2.00\r\nmem_allocator:jemalloc-5.3.0\r\n\
             maxmemory_policy:noeviction\r\n\r\n\
             # Persistence\r\nloading:1\r\nrdb_last_bgsave_status:err\r\n\r\n\
             # Stats\r\ninstantaneous_input_kbps:1.60\r\nkeyspace_hits:12\r\n\r\n\
             # Commandstats\r\n\
             cmdstat_get:calls=4,usec=40,usec_per_call=10.00,rejected_calls=1\r\n\
             cmdstat_set:calls=1,usec=1,usec_per_call=1.00,rejected_calls=0\r\n\r\n\
             # Errorstats\r\nerrorstat_ERR:count=3\r\n\r\n\
             # Keyspace\r\ndb0:keys=15,expires=4,avg_ttl=175\r\ndb1:keys=1,expires=0,avg_ttl=0\r\n"
        );
    }

    #[test]
    fn what_one_server_says_stays_as_it_is() {
        assert_eq!(merge([TWO].into_iter(), 101, false).trim_end(), TWO.trim_end());
    }

    #[test]
    fn addresses_of_servers_may_be_left_out() {
        let text = "# Server\r\ntcp_port:6379\r\nlistener0:name=tcp,bind=10.0.0.1,port=6379\r\nlru_clock:1\r\n\r\n\
                    # Replication\r\nrole:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6379\r\n\
                    slave_repl_offset:7\r\nmaster_host:10.0.0.3\r\nmaster_port:6379\r\n";
        let told = merge([text].into_iter(), 101, true);
        assert!(["10.0", "6379"].iter().all(|it| !told.contains(it)), "{told}");
        assert!(told.contains("connected_slaves:1\r\nslave_repl_offset:7\r\n"), "{told}");
        assert!(merge([text].into_iter(), 101, false).contains("ip=10.0.0.2"));
    }

    #[test]
    fn a_cluster_is_what_it_seems() {
        let text = "# Server\r\nredis_mode:standalone\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n";
        let merged = merge([text].into_iter(), 101, false);
        assert_eq!(
            of_cluster(&merged),
            "# Server\r\nredis_mode:cluster\r\n\r\n# Cluster\r\ncluster_enabled:1\r\n"
        );
    }

    #[test]
    fn sizes_read_as_redis_writes_them() {
        assert_eq!(human(1023.0), "1023B");
        assert_eq!(human(1024.0), "1.00K");
        assert_eq!(human(1_572_864.0), "1.50M");
        assert_eq!(human(2.0 * 1024f64.powi(5)), "2.00P");
    }

    #[test]
    fn anything_is_survived() {
        for text in ["", "# ", "a:b", "# X\r\n:\r\n::\r\n=\r\n", "# Keyspace\r\ndb0:=,,=\r\n"] {
            merge([text, ONE, text].into_iter(), 7, false);
        }
        let text = format!("# CPU\r\nused_cpu_sys:0.{}\r\n", "1".repeat(70_000));
        let expected = "# CPU\r\nused_cpu_sys:0.22222222222222221\r\n";
        assert_eq!(merge([&*text, &*text].into_iter(), 7, false).trim_end(), expected.trim_end());
    }
}
