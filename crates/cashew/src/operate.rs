//! Commands for a running instance: `reload`, `upgrade`, `failover`, `drain`, `status` and `log-level`.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_admin::{HotListing, SlowListing};
use cashew_config::snapshot::SLOTS as ALL_SLOTS;
use cashew_process::log::in_one_line;
use cashew_supervisor::{
    Answer, AskError, CacheStatus, ClusterStatus, Command, DrainStatus, ExternalAuthStatus,
    HotWaitStatus, Outcome, PoolStatus, Status, TracingStatus,
};
use chrono::{DateTime, Local};

use crate::arguments::{InstanceArguments, ServerDrainArguments};
use crate::output::print_line;
use crate::{api, hot, layout, slowlog, stats_port};

const SLOTS: u32 = ALL_SLOTS as u32;

/// How long to retry while the instance becomes another executable.
const CUT_RETRY: Duration = Duration::from_secs(5);
const CUT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn reload(instance: &InstanceArguments, dry_run: bool) -> ExitCode {
    finish(ask(instance, &Command::Reload { dry_run }, |_| {}))
}

pub(crate) fn upgrade(instance: &InstanceArguments, binary: Option<PathBuf>) -> ExitCode {
    // The instance has another working directory.
    let binary = binary.map(std::path::absolute).transpose();
    let binary = binary.map_err(|error| format!("--binary: {error}"));
    finish(binary.and_then(|binary| ask(instance, &Command::Upgrade { binary }, |_| {})))
}

pub(crate) fn fail_over(
    instance: &InstanceArguments,
    pool: String,
    (first, second): (String, Option<String>),
    force: bool,
) -> ExitCode {
    let (group, server) = match second {
        Some(server) => (Some(first), server),
        None => (None, first),
    };
    finish(ask(instance, &Command::Failover { pool, group, server, force }, |_| {}))
}

pub(crate) fn status(instance: &InstanceArguments, json: bool) -> ExitCode {
    finish(ask(instance, &Command::Status, |answer| match answer {
        Answer::Status(status) if json => {
            let text = serde_json::to_string_pretty(&status).expect("a status is plain JSON");
            print(&text);
        }
        Answer::Status(status) => {
            print(&describe(&status));
            let statistics = status.statistics.filter(|_| instance.api.is_none());
            stats_port::find_token(Some(instance));
            let summary = statistics.map(summary).unwrap_or_default();
            if !summary.is_empty() {
                print(&format!("\n{}", summary.join("\n")));
            }
        }
        _ => {}
    }))
}

/// What is slow and what is hot. An instance whose stats port does not answer, or of an older version, has a status
/// all the same.
fn summary(statistics: SocketAddr) -> Vec<String> {
    let address = stats_port::reachable(statistics).to_string();
    let slow: Option<SlowListing> = stats_port::get(&address, "/slow.json?limit=1").ok();
    let hot = slow.as_ref().and_then(|_| stats_port::get(&address, "/hot.json?limit=1").ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let slow = slow.and_then(|slow| slowlog::summary(&slow, now.as_micros() as u64));
    let hot = hot.map(|hot: HotListing| hot::summary(&hot));
    slow.into_iter().chain(hot.unwrap_or_default()).collect()
}

pub(crate) fn drain(instance: &InstanceArguments, seconds: Option<u64>) -> ExitCode {
    finish(ask(instance, &Command::Drain { seconds }, |_| {}))
}

pub(crate) fn undrain(instance: &InstanceArguments) -> ExitCode {
    finish(ask(instance, &Command::Undrain, |_| {}))
}

pub(crate) fn drain_server(arguments: ServerDrainArguments) -> ExitCode {
    let ServerDrainArguments { instance, pool, server, steps, every } = arguments;
    finish(ask(&instance, &Command::DrainServer { pool, server, steps, every }, |_| {}))
}

pub(crate) fn undrain_server(arguments: ServerDrainArguments) -> ExitCode {
    let ServerDrainArguments { instance, pool, server, steps, every } = arguments;
    finish(ask(&instance, &Command::UndrainServer { pool, server, steps, every }, |_| {}))
}

pub(crate) fn weight(
    instance: &InstanceArguments,
    pool: String,
    server: String,
    percent: u16,
) -> ExitCode {
    finish(ask(instance, &Command::Weight { pool, server, percent }, |_| {}))
}

pub(crate) fn log_level(instance: &InstanceArguments, level: u8) -> ExitCode {
    finish(ask(instance, &Command::LogLevel { level }, |_| {}))
}

/// Why there is no status.
pub(crate) struct NoStatus {
    /// In one line.
    why: String,
    /// There may be an instance that was not asked, or has not answered.
    pub(crate) may_run: bool,
}

impl fmt::Display for NoStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// The status of the instance.
pub(crate) fn status_if_running(instance: &InstanceArguments) -> Result<Status, NoStatus> {
    if let Some(url) = &instance.api {
        return api::status(url, instance.token_file.as_deref())
            .map_err(|why| NoStatus { why, may_run: true });
    }
    let (mut status, mut why, mut may_run) = (None, Vec::new(), false);
    for path in sockets(instance).map_err(|why| NoStatus { why, may_run: false })? {
        let mut failed = None;
        let mut keep = |answer| match answer {
            Answer::Status(answer) => status = Some(*answer),
            Answer::Failed(why) => failed = Some(why),
            Answer::Say(_) | Answer::Events(_) | Answer::Done(_) => {}
        };
        let asked = ask_until_answered(&path, &Command::Status, CUT_RETRY, &mut keep);
        if let Some(status) = status {
            return Ok(status);
        }
        may_run |= !matches!(&asked, Err(AskError::NotThere(error)) if is_nobody(error));
        let error = asked.err().map(|error| error.to_string()).or(failed);
        let error = error.unwrap_or_else(|| "no status came".to_owned());
        why.push(format!("{}: {error}", path.display()));
    }
    Err(NoStatus { why: why.join("; "), may_run })
}

/// Whether nobody listens at a socket, or has one there.
fn is_nobody(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

pub(crate) fn finish(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_line(format_args!("cashew: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// The reader may be gone, as with `head`.
fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints what the instance says, and shows other answers. An error is the reason why the command failed.
pub(crate) fn ask(
    instance: &InstanceArguments,
    command: &Command,
    mut show: impl FnMut(Answer),
) -> Result<(), String> {
    let mut result = Ok(());
    let mut on_answer = |answer| match answer {
        Answer::Say(text) => print(&text),
        Answer::Status(_) | Answer::Events(_) => show(answer),
        Answer::Done(_) => {}
        Answer::Failed(why) => result = Err(why),
    };
    if let Some(url) = &instance.api {
        api::ask(url, instance.token_file.as_deref(), command, &mut on_answer)?;
        return result;
    }
    let mut tried = Vec::new();
    for path in sockets(instance)? {
        match ask_until_answered(&path, command, CUT_RETRY, &mut on_answer) {
            Ok(()) => return result,
            Err(AskError::NotThere(error)) => {
                tried.push(format!("\n    {}: {error}", path.display()));
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    let (mut of, mut hint) = (String::new(), String::new());
    if instance.control.is_none() {
        of = format!(" of configuration file '{}'", instance.conf_file.display());
        if let Err(errors) = cashew_config::load(&instance.conf_file) {
            hint = format!(
                "\n{errors}\nthe file is invalid, so a control_socket in it is not known: name it with --control"
            );
        }
    }
    Err(format!("no instance{of} answers{}{hint}", tried.concat()))
}

/// Sends the command again if the connection ends before the first line of the answer: an upgrade
/// replaced the master. An upgrade command is not repeated, since it might run twice.
fn ask_until_answered(
    path: &Path,
    command: &Command,
    patience: Duration,
    on_answer: &mut impl FnMut(Answer),
) -> Result<(), AskError> {
    let may_repeat = !matches!(command, Command::Upgrade { .. });
    let (until, mut is_cut) = (Instant::now() + patience, false);
    loop {
        let mut is_answered = false;
        let result = cashew_supervisor::ask(path, command, |answer| {
            is_answered = true;
            on_answer(answer);
        });
        let Err(error) = result else { return Ok(()) };
        // The previous program may be on its way back.
        let is_away = is_cut && matches!(error, AskError::NotThere(_));
        is_cut |= error.is_cut();
        if is_answered || !may_repeat || !(error.is_cut() || is_away) || Instant::now() >= until {
            return Err(error);
        }
        thread::sleep(CUT_PAUSE);
    }
}

/// Where the instance's control socket may be.
fn sockets(instance: &InstanceArguments) -> Result<Vec<PathBuf>, String> {
    if let Some(path) = &instance.control {
        return Ok(vec![path.clone()]);
    }
    let conf_file = &instance.conf_file;
    let defaults = cashew_supervisor::default_paths(conf_file)
        .map_err(|error| format!("configuration file '{}': {error}", conf_file.display()))?;
    // The file may be broken, and the operator may be about to ask for just that. If it loads, it
    // may not be in effect yet.
    Ok(configured_socket(conf_file).into_iter().chain(defaults).collect())
}

fn configured_socket(conf_file: &Path) -> Option<PathBuf> {
    cashew_config::load(conf_file).ok()?.snapshot.global.control_socket
}

/// What becomes of single requests, where that is on.
fn describe_exports(status: &Status) -> String {
    let last = |error: &Option<String>, at: Option<u64>| match error {
        Some(why) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let ago = duration(now.saturating_sub(at.unwrap_or_default()));
            format!("; last error {ago} ago: {}", in_one_line(why))
        }
        None => String::new(),
    };
    let mut text = String::new();
    if let Some(tracing) = &status.tracing {
        let TracingStatus { endpoint, spans, spans_dropped, errors, .. } = tracing;
        text += &format!("tracing: {endpoint}, {spans} spans sent, {spans_dropped} dropped");
        if *errors > 0 {
            text += &format!(", {errors} failed exports");
        }
        text += &format!("{}\n", last(&tracing.last_error, tracing.last_error_at));
    }
    if status.tokens_refused > 0 {
        text += &format!("wrong tokens shown to the statistics: {}\n", status.tokens_refused);
    }
    if let Some(log) = &status.access_log {
        text += &format!("access log: {}, {} lines written", log.file.display(), log.lines);
        if log.lines_lost > 0 {
            text += &format!(", {} could not be", log.lines_lost);
        }
        text += &format!("{}\n", last(&log.last_error, log.last_error_at));
    }
    if let Some(log) = &status.audit_log {
        text += &format!("audit log: {}, {} lines written", log.file.display(), log.lines);
        if log.lines_lost > 0 {
            text += &format!(", {} lost", log.lines_lost);
        }
        text += &format!("{}\n", last(&log.last_error, log.last_error_at));
    }
    text
}

/// A status for people.
fn describe(status: &Status) -> String {
    let uptime = duration(status.uptime_s);
    let mut text = format!(
        "cashew-{} {} for {uptime}: process {}, epoch {}, {}\n",
        status.version,
        status.state,
        status.pid,
        status.epoch,
        status.configuration.display()
    );
    if let Some(address) = status.statistics {
        text += &format!("statistics: {address}\n");
    }
    if let Some(level) = status.log_level {
        let file = status.log_file.as_ref();
        let file = file.map_or_else(|| "standard error".into(), |file| file.display().to_string());
        text += &format!("log: {file}, level {level}");
        if status.log_lines_lost > 0 {
            text += &format!("; {} lines could not be written", status.log_lines_lost);
        }
        text += "\n";
    }
    if let Some(DrainStatus { seconds_left, to }) = &status.drain {
        let to =
            to.as_ref().map_or_else(String::new, |to| format!("; clients are told to go to {to}"));
        text += &format!("draining: stops in {seconds_left} s{to}\n");
    }
    text += &describe_exports(status);
    for (what, outcome) in [("reload", &status.last_reload), ("upgrade", &status.last_upgrade)] {
        if let Some(outcome) = outcome {
            text += &format!("last {what}: {}\n", describe_outcome(outcome));
        }
    }
    let process = |pid: Option<u32>| pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let mut rows =
        vec![row(["WORKER", "RANK", "PROCESS", "STATE", "UP", "CLIENTS", "BUSY", "RESTARTS"])];
    rows.extend(status.workers.iter().map(|worker| {
        vec![
            worker.slot.to_string(),
            worker.rank.to_string(),
            process(worker.pid),
            worker.state.clone(),
            duration(worker.uptime_s),
            worker.sessions.to_string(),
            format!("{}%", (worker.busy_permille + 5) / 10),
            worker.restarts.to_string(),
        ]
    }));
    for (name, child) in [("admin", &status.admin), ("discovery", &status.discovery)] {
        if let Some(child) = child {
            let restarts = child.restarts.to_string();
            let process = process(child.pid);
            rows.push(row([name, "", &process, &child.state, "", "", "", &restarts]));
        }
    }
    text += &format!("\n{}", table(&rows));
    let mut rows = vec![row(["POOL", "LISTENS ON", "SERVERS", "RING", "DIGEST"])];
    rows.extend(status.pools.iter().map(|pool| {
        vec![
            pool.name.clone(),
            pool.listen.clone(),
            describe_servers(pool),
            pool.ring_version.to_string(),
            pool.digest.clone(),
        ]
    }));
    text += &format!("\n{}", table(&rows));
    text += &describe_server_states(&status.pools);
    text += &describe_shards(&status.pools);
    text += &describe_groups(&status.pools);
    text += &describe_clusters(&status.pools);
    text += &describe_sources(&status.pools, unix_seconds());
    text += &describe_maintenance(&status.pools, unix_seconds());
    text += &describe_members(&status.pools);
    if !status.moves.is_empty() {
        let moves: Vec<String> = status.moves.iter().map(crate::migrate::describe).collect();
        text += &format!("\n{}\n", moves.join("\n"));
    }
    text += &describe_users(&status.pools);
    text += &describe_certificates(&status.pools);
    let notes: String = status.pools.iter().map(describe_permissions).collect();
    if !notes.is_empty() {
        text += &format!("\n{notes}");
    }
    text.trim_end().to_owned()
}

/// How many servers are well, how many of those that are to serve are on the ring if not all are, and who
/// takes the writes.
fn describe_servers(pool: &PoolStatus) -> String {
    let PoolStatus { servers, live, primary, server_states, .. } = pool;
    if !pool.leads_to.is_empty() {
        return format!("those of {}", pool.leads_to.join(", "));
    }
    let mut text = match server_states.as_slice() {
        // Of a version that does not say.
        [] => format!("{live} of {servers}"),
        states => {
            let up = states.iter().filter(|server| server.is_up).count();
            format!("{up} of {servers} up")
        }
    };
    if !server_states.is_empty() && live < servers {
        text += &format!(", {live} on the ring");
    }
    if let Some(since) = pool.open_since {
        text += &format!(", fails open since {}", time(since));
    }
    if !primary.is_empty() {
        text += &format!(", primary {primary}");
    }
    text
}

/// A row for each server.
fn describe_server_states(pools: &[PoolStatus]) -> String {
    let mut servers = pools.iter().flat_map(|pool| &pool.server_states);
    let has_roles = servers.any(|server| !server.role.is_empty());
    let mut head = row(["POOL", "SERVER", "ADDRESS", "STATE", "SINCE", "LAST ERROR"]);
    if has_roles {
        head.insert(3, "ROLE".to_owned());
    }
    let mut rows = vec![head];
    for pool in pools {
        rows.extend(pool.server_states.iter().map(|server| {
            let state = match server.cause.as_str() {
                "" => server.state.clone(),
                cause => format!("{}: {cause}", server.state),
            };
            let state = match server.writes_missed {
                0 => state,
                1 => format!("{state}; missed 1 write"),
                missed => format!("{state}; missed {missed} writes"),
            };
            let state = match server.drained_permille {
                0 => state,
                1000 => format!("{state}; drained"),
                part => format!("{state}; drained by {} %", f64::from(part) / 10.0),
            };
            let state = match server.to_forget {
                0 => state,
                1 => format!("{state}; 1 key to forget"),
                keys => format!("{state}; {keys} keys to forget"),
            };
            let at = server.last_error_at.map(time);
            let error = server.last_error.as_ref().zip(at);
            let mut row = vec![
                pool.name.clone(),
                server.name.clone(),
                server.address.clone(),
                state,
                server.since.map_or_else(|| "-".to_owned(), time),
                error.map_or_else(|| "-".to_owned(), |(why, at)| format!("{at}: {why}")),
            ];
            if has_roles {
                row.insert(3, server.role.clone());
            }
            row
        }));
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", table(&rows))
}

/// Which pools speak TLS, and until when their certificates are valid; nothing where there are none.
fn describe_certificates(pools: &[PoolStatus]) -> String {
    let mut rows = vec![row(["POOL", "TLS AT", "CERTIFICATE", "FOR", "EXPIRES"])];
    for pool in pools {
        rows.extend(pool.certificates.iter().map(|it| {
            let names = it.names.join(", ");
            let at = time(it.expires_at);
            vec![pool.name.clone(), pool.tls_at.clone(), it.file.clone(), names, at]
        }));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// The groups of a primary and replicas that the file names; nothing where there are none.
fn describe_shards(pools: &[PoolStatus]) -> String {
    let mut rows = vec![row(["POOL", "GROUP", "PRIMARY", "REPLICAS"])];
    for pool in pools {
        rows.extend(pool.shards.iter().map(|shard| {
            let replicas = shard.replicas.join(", ");
            vec![pool.name.clone(), shard.name.clone(), shard.primary.clone(), replicas]
        }));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// The groups whose primaries Sentinels name, and these Sentinels; nothing where there are none.
fn describe_groups(pools: &[PoolStatus]) -> String {
    let mut groups =
        vec![row(["POOL", "GROUP", "SENTINEL NAME", "PRIMARY", "EPOCH", "STATE", "LAST SWITCH"])];
    let mut sentinels = vec![row(["POOL", "SENTINEL", "STATE"])];
    for pool in pools {
        groups.extend(pool.groups.iter().map(|group| {
            let last = group.last_switch.as_ref();
            vec![
                pool.name.clone(),
                group.server.clone(),
                group.master.clone(),
                group.primary.clone().unwrap_or_else(|| "unknown".to_owned()),
                group.config_epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
                group.state.clone(),
                last.map_or_else(|| "-".to_owned(), |it| format!("{}: {}", time(it.at), it.why)),
            ]
        }));
        sentinels.extend(pool.sentinels.iter().map(|sentinel| {
            let state = is_answering(sentinel.is_answering, sentinel.failure.as_deref());
            vec![pool.name.clone(), sentinel.address.clone(), state]
        }));
    }
    if groups.len() == 1 {
        return String::new();
    }
    format!("\n{}\n{}", table(&groups), table(&sentinels))
}

/// The maps of clusters, their shards and seeds; nothing where there are none.
fn describe_clusters(pools: &[PoolStatus]) -> String {
    let clusters: Vec<(&str, &ClusterStatus)> =
        pools.iter().filter_map(|pool| Some((&*pool.name, pool.cluster.as_ref()?))).collect();
    if clusters.is_empty() {
        return String::new();
    }
    let mut maps =
        vec![row(["POOL", "CLUSTER NODES", "SLOTS", "EPOCH", "MAP CHANGES", "LAST CHANGE"])];
    let mut shards = vec![row(["POOL", "PRIMARY", "SLOTS", "REPLICAS"])];
    let mut seeds = vec![row(["POOL", "SEED", "STATE"])];
    for &(pool, cluster) in &clusters {
        let nodes: usize = cluster.shards.iter().map(|shard| 1 + shard.replicas.len()).sum();
        let is_known = nodes > 0;
        maps.push(vec![
            pool.to_owned(),
            if is_known { nodes.to_string() } else { "unknown".to_owned() },
            match cluster.slots_covered {
                _ if !is_known => "-".to_owned(),
                SLOTS => "all".to_owned(),
                some => format!("{some} of {SLOTS}"),
            },
            if is_known { cluster.epoch.to_string() } else { "-".to_owned() },
            cluster.changes.to_string(),
            match cluster.last_change_at {
                Some(at) => format!("{}: {}", time(at), cluster.last_change),
                None => "-".to_owned(),
            },
        ]);
        shards.extend(cluster.shards.iter().map(|shard| {
            let replicas = match shard.replicas.is_empty() {
                true => "-".to_owned(),
                false => shard.replicas.join(", "),
            };
            vec![pool.to_owned(), shard.primary.clone(), shard.slots.to_string(), replicas]
        }));
        seeds.extend(cluster.seeds.iter().map(|seed| {
            let state = is_answering(seed.is_answering, seed.failure.as_deref());
            vec![pool.to_owned(), seed.address.clone(), state]
        }));
    }
    let shards = if shards.len() > 1 { format!("\n{}", table(&shards)) } else { String::new() };
    format!("\n{}{shards}\n{}", table(&maps), table(&seeds))
}

/// Who names the servers of pools, and what is held back; nothing where the file names all.
fn describe_sources(pools: &[PoolStatus], now: u64) -> String {
    let mut rows = vec![row([
        "POOL",
        "SERVERS FROM",
        "STATE",
        "LAST ANSWER",
        "SERVERS",
        "CHANGES",
        "LAST CHANGE",
    ])];
    let mut held = String::new();
    for pool in pools {
        let Some(source) = &pool.source else { continue };
        let answered = source.answered_at.map(|at| format!("{} s ago", now.saturating_sub(at)));
        let change = pool.source_change.as_ref();
        rows.push(vec![
            pool.name.clone(),
            source.source.clone(),
            is_answering(source.is_answering, source.failure.as_deref()),
            answered.unwrap_or_else(|| "-".to_owned()),
            pool.servers.to_string(),
            pool.source_changes.to_string(),
            change.map_or_else(|| "-".to_owned(), |it| format!("{}: {}", time(it.at), it.what)),
        ]);
        if let Some(it) = &source.held {
            let more = it.servers.saturating_sub(it.names.len() as u64);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            held += &format!(
                "pool {}: held back: {}{more}, {} of {} servers, named no more since {} s, by {} answers; they stay \
                 until three answers over 30 s have said so\n",
                pool.name,
                it.names.join(", "),
                it.servers,
                it.of,
                now.saturating_sub(it.since),
                it.answers,
            );
        }
    }
    match rows.len() {
        1 => String::new(),
        _ => format!("\n{}{held}", table(&rows)),
    }
}

/// Servers that are asked to tell of their maintenance; nothing where there are none.
fn describe_maintenance(pools: &[PoolStatus], now: u64) -> String {
    let mut rows =
        vec![row(["POOL", "MAINTENANCE OF", "AT", "MOVED FROM", "STATE", "TOLD", "LAST"])];
    for it in pools.iter().flat_map(|pool| &pool.server_maintenance) {
        let last = match (&it.last, it.last_at) {
            (Some(what), Some(at)) => format!("{} s ago: {what}", now.saturating_sub(at)),
            _ => "-".to_owned(),
        };
        let relaxed = if it.is_relaxed { ", may take longer" } else { "" };
        rows.push(vec![
            it.pool.clone(),
            it.server.clone(),
            it.address.clone(),
            it.moved_from.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{}{relaxed}", it.state),
            it.notices.to_string(),
            last,
        ]);
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// Of a Sentinel or a seed.
fn is_answering(is_answering: Option<bool>, failure: Option<&str>) -> String {
    match (is_answering, failure) {
        (Some(true), _) => "answers".to_owned(),
        (Some(false), Some(why)) => why.to_owned(),
        (Some(false), None) => "does not answer".to_owned(),
        (None, _) => "not asked yet".to_owned(),
    }
}

/// The servers of pools that have replicas; nothing where there are none.
fn describe_members(pools: &[PoolStatus]) -> String {
    let mut rows = vec![row(["POOL", "SERVER", "ROLE", "READS", "LAG", "LINK"])];
    for pool in pools {
        rows.extend(pool.members.iter().map(|member| {
            let link = match (member.is_link_up, member.link_down_s) {
                (Some(true), _) => "up".to_owned(),
                (Some(false), Some(secs)) => format!("down for {}", duration(secs)),
                (Some(false), None) => "never up".to_owned(),
                (None, _) => "-".to_owned(),
            };
            vec![
                pool.name.clone(),
                member.server.clone(),
                member.role.clone(),
                member.fitness.clone(),
                member.lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string()),
                link,
            ]
        }));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// Users who have limits; nothing where there are none.
fn describe_users(pools: &[PoolStatus]) -> String {
    let header =
        ["POOL", "USER", "REQUESTS", "BYTES", "REFUSED", "DELAYED", "CONNECTIONS", "IN FLIGHT"];
    let mut rows = vec![row(header)];
    for pool in pools {
        rows.extend(pool.users.iter().map(|user| {
            let numbers = [
                user.requests,
                user.bytes,
                user.refused,
                user.delayed,
                user.connections,
                user.in_flight,
            ];
            let names = [pool.name.clone(), user.name.clone()];
            names.into_iter().chain(numbers.map(|number| number.to_string())).collect()
        }));
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}

/// What a pool looks like, its command policy and pause, and what is done about slow servers; nothing if all is as
/// usual.
fn describe_permissions(pool: &PoolStatus) -> String {
    let PoolStatus { name, command_policy, commands_refused, auth_failures, .. } = pool;
    let mut text = String::new();
    if !pool.pose.is_empty() {
        text += &format!("pool {name}: pose: {}\n", pool.pose);
    }
    if !matches!(command_policy.as_str(), "" | "application") {
        text += &format!("pool {name}: command_policy: {command_policy}\n");
    }
    if *commands_refused > 0 {
        text += &format!("pool {name}: requests refused by command_policy: {commands_refused}\n");
    }
    if *auth_failures > 0 {
        text += &format!("pool {name}: attempts with a wrong password: {auth_failures}\n");
    }
    if let Some(auth) = &pool.external_auth {
        let ExternalAuthStatus { source, asked, refused, outages, cached, lost_at } = auth;
        let state = match lost_at {
            0 => "answers".to_owned(),
            workers => format!("DOES NOT ANSWER (workers: {workers})"),
        };
        text += &format!(
            "pool {name}: external authoriser {source}: {state}; logins asked about: {asked}, refused: {refused}, \
             not answered: {outages}, by an earlier answer: {cached}\n"
        );
    }
    if pool.redirects_passed_on > 0 {
        text += &format!(
            "pool {name}: MOVED, ASK and CLUSTERDOWN passed on to clients: {}; its servers are nodes of a cluster, which \
             \"cluster: {{seeds: [host:port]}}\" in the place of \"servers\" follows\n",
            pool.redirects_passed_on
        );
    }
    if pool.requests_retried + pool.retries_denied > 0 {
        let PoolStatus { requests_retried: again, retries_denied: denied, .. } = pool;
        text += &format!(
            "pool {name}: requests sent again: {again}, reads not sent again for want of budget: {denied}\n"
        );
    }
    if pool.reads_coalesced > 0 {
        text += &format!(
            "pool {name}: reads that got the reply to an equal one: {}\n",
            pool.reads_coalesced
        );
    }
    text += &describe_kept(pool);
    if pool.hedges_sent + pool.hedges_denied > 0 {
        let PoolStatus { hedges_sent: sent, hedges_won: won, hedges_denied: denied, .. } = pool;
        text += &format!(
            "pool {name}: reads sent to a second server: {sent}, answered by it first: {won}, \
             not sent for want of budget: {denied}\n"
        );
    }
    if pool.paused_ms > 0 {
        let whom = if pool.paused_writes_only { "clients that write" } else { "all clients" };
        text += &format!(
            "pool {name}: CLIENT PAUSE holds {whom} back for {} ms more\n",
            pool.paused_ms
        );
    }
    text
}

fn describe_outcome(outcome: &Outcome) -> String {
    let at = time(outcome.at);
    match &outcome.failed {
        None => format!("{at}, done"),
        Some(why) => format!("{at}, failed: {why}"),
    }
}

/// Of seconds since 1970.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What nodes `cache` keep.
fn describe_kept(pool: &PoolStatus) -> String {
    let (name, mut text) = (&pool.name, String::new());
    if let Some(CacheStatus { hits, misses, bytes, replies, bytes_max, refused_servers }) =
        pool.cache
    {
        let reads = hits + misses;
        let rate = match reads {
            0 => "no reads yet".to_owned(),
            _ => format!("{:.1}% hits of {reads} reads", hits as f64 / reads as f64 * 100.0),
        };
        let (bytes, bytes_max) = (layout::bytes(bytes), layout::bytes(bytes_max));
        text += &format!("pool {name}: cache: {rate}, {replies} replies, {bytes} of {bytes_max}\n");
        let refused = match refused_servers {
            0 => String::new(),
            1 => "a server refuses what it takes to keep its replies".to_owned(),
            _ => format!("{refused_servers} servers refuse what it takes to keep their replies"),
        };
        if !refused.is_empty() {
            text +=
                &format!("pool {name}: cache: {refused}: see cashew events --kind cache_refused\n");
        }
    }
    for hot in &pool.hot_keys {
        let share = hot.share_ppm.map_or_else(
            || "too few requests to tell its share".to_owned(),
            |ppm| format!("{:.1}% of the requests", f64::from(ppm) / 10_000.0),
        );
        let done = match hot.action.as_str() {
            "move" => "is elsewhere".to_owned(),
            "split" => format!("is split over {} servers", hot.copies),
            _ => "is kept".to_owned(),
        };
        text += &format!("pool {name}: hot key {} {done} by {}: {share}\n", hot.key, hot.cause);
    }
    for HotWaitStatus { key, to, left_s, why } in &pool.hot_waits {
        let off = match (key.is_empty(), to.is_empty()) {
            (false, _) => format!("hot key {key} is not tried again"),
            (true, false) => format!("no hot key goes from here to pool {to}"),
            (true, true) => "no hot key goes to this pool or comes from it".to_owned(),
        };
        text += &format!("pool {name}: {off} for {} more: {why}\n", duration(*left_s));
    }
    text
}

fn time(at: u64) -> String {
    let at = i64::try_from(at).ok().and_then(|at| DateTime::from_timestamp(at, 0));
    at.map_or_else(String::new, |at| {
        at.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string()
    })
}

/// The two largest units.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        (_, _, _) => format!("{days}d {}h", hours % 24),
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Aligns the columns.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::{UnixListener, UnixStream};

    use cashew_supervisor::{
        AdminStatus, CertificateStatus, ClusterStatus, GroupStatus, HeldStatus, HotKeyStatus,
        MaintenanceStatus, MemberStatus, SeedStatus, SentinelStatus, ServerStatus,
        ShardSlotsStatus, SourceChange, SourceStatus, SwitchStatus, WorkerStatus,
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// The outcome of a command to a listener that treats connections in turn like this, and then
    /// stops.
    fn ask_one_who(
        name: &str,
        command: &Command,
        patience: Duration,
        treats: &[fn(UnixStream)],
    ) -> (Result<(), AskError>, Vec<Answer>) {
        let path = std::env::temp_dir().join(format!("cashew-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut answers = Vec::new();
        let result = thread::scope(|scope| {
            scope
                .spawn(move || treats.iter().for_each(|treat| treat(listener.accept().unwrap().0)));
            ask_until_answered(&path, command, patience, &mut |answer| answers.push(answer))
        });
        fs::remove_file(&path).unwrap();
        (result, answers)
    }

    fn answer(mut stream: UnixStream, text: &str) {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert_eq!(line, "{\"command\":\"status\"}\n");
        stream.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_command_is_repeated_while_the_program_changes() {
        let treats: [fn(UnixStream); 4] = [
            drop,
            |stream| answer(stream, ""),
            |stream| answer(stream, "{\"sa"),
            |stream| answer(stream, "{\"say\":\"hm\"}\n{\"done\":true}\n"),
        ];
        let (result, answers) = ask_one_who("again", &Command::Status, PATIENCE, &treats);
        result.unwrap();
        assert_eq!(answers, [Answer::Say("hm".to_owned()), Answer::Done(true)]);
    }

    #[test]
    fn a_command_is_not_repeated_after_an_answer_or_without_an_instance() {
        let begun: fn(UnixStream) = |stream| answer(stream, "{\"say\":\"hm\"}\n");
        let (result, answers) = ask_one_who("begun", &Command::Status, PATIENCE, &[begun]);
        assert!(matches!(result, Err(AskError::Ended)), "{result:?}");
        assert_eq!(answers, [Answer::Say("hm".to_owned())]);
        // It was there just now, and is waited for.
        let patience = Duration::from_secs(2);
        let (result, _) = ask_one_who("gone", &Command::Status, patience, &[drop]);
        assert!(matches!(result, Err(AskError::NotThere(_))), "{result:?}");
    }

    #[test]
    fn an_upgrade_command_is_sent_once() {
        let command = Command::Upgrade { binary: None };
        let (result, answers) = ask_one_who("upgrade", &command, PATIENCE, &[drop]);
        assert!(result.unwrap_err().is_cut() && answers.is_empty());
    }

    #[test]
    fn a_status_is_tables() {
        let worker = |slot: u32, pid, state: &str| WorkerStatus {
            slot,
            rank: slot,
            pid,
            state: state.to_owned(),
            uptime_s: 61,
            sessions: 1200,
            busy_permille: 333,
            restarts: 2,
        };
        let status = Status {
            version: "0.2.0".to_owned(),
            pid: 70,
            state: "serving".to_owned(),
            configuration: "/etc/cashew.yml".into(),
            uptime_s: 93_784,
            epoch: 3,
            workers: vec![worker(0, Some(71), "serving"), worker(1, None, "restarting")],
            admin: Some(AdminStatus { pid: Some(72), state: "serving".to_owned(), restarts: 0 }),
            discovery: None,
            pools: vec![PoolStatus {
                shards: Vec::new(),
                name: "alpha".to_owned(),
                listen: "127.0.0.1:22121".to_owned(),
                leads_to: Vec::new(),
                servers: 3,
                primary: String::new(),
                live: 2,
                open_since: None,
                ring_version: 7,
                digest: "0123456789abcdef".to_owned(),
                pose: "cluster, advertise 10.0.0.7:6379, 10.0.0.8:6379".to_owned(),
                command_policy: "cache".to_owned(),
                commands_refused: 3,
                auth_failures: 2,
                external_auth: Some(ExternalAuthStatus {
                    source: "/etc/logins".to_owned(),
                    asked: 8,
                    refused: 4,
                    outages: 3,
                    cached: 1,
                    lost_at: 1,
                }),
                users: Vec::new(),
                hedges_sent: 9,
                hedges_won: 7,
                hedges_denied: 1,
                reads_coalesced: 6,
                cache: Some(CacheStatus {
                    hits: 90,
                    misses: 30,
                    bytes: 3 << 20,
                    replies: 12,
                    bytes_max: 64 << 20,
                    refused_servers: 1,
                }),
                hot_keys: vec![HotKeyStatus {
                    key: "\"user:1\"".into(),
                    action: "cache".into(),
                    copies: 0,
                    cause: "rule".into(),
                    since: 0,
                    share_ppm: Some(123_456),
                }],
                hot_waits: [("\"user:2\"", ""), ("", "hot"), ("", "")]
                    .map(|(key, to)| HotWaitStatus {
                        key: key.into(),
                        to: to.into(),
                        left_s: 95,
                        why: "it does not answer".into(),
                    })
                    .into(),
                requests_retried: 4,
                retries_denied: 2,
                redirects_passed_on: 5,
                paused_ms: 1500,
                paused_writes_only: true,
                server_states: Vec::new(),
                groups: Vec::new(),
                sentinels: Vec::new(),
                cluster: None,
                source: None,
                server_maintenance: Vec::new(),
                source_changes: 0,
                source_change: None,
                members: Vec::new(),
                tls_at: String::new(),
                certificates: Vec::new(),
            }],
            moves: Vec::new(),
            tokens_refused: 0,
            statistics: Some("127.0.0.1:22222".parse().unwrap()),
            log_file: Some("/var/log/cashew.log".into()),
            log_level: Some(5),
            log_lines_lost: 0,
            tracing: None,
            access_log: None,
            audit_log: None,
            drain: None,
            last_reload: None,
            last_upgrade: None,
        };
        assert_eq!(
            describe(&status),
            "cashew-0.2.0 serving for 1d 2h: process 70, epoch 3, /etc/cashew.yml
statistics: 127.0.0.1:22222
log: /var/log/cashew.log, level 5

WORKER  RANK  PROCESS  STATE       UP     CLIENTS  BUSY  RESTARTS
0       0     71       serving     1m 1s  1200     33%   2
1       1     -        restarting  1m 1s  1200     33%   2
admin         72       serving                           0

POOL   LISTENS ON       SERVERS  RING  DIGEST
alpha  127.0.0.1:22121  2 of 3   7     0123456789abcdef

pool alpha: pose: cluster, advertise 10.0.0.7:6379, 10.0.0.8:6379
pool alpha: command_policy: cache
pool alpha: requests refused by command_policy: 3
pool alpha: attempts with a wrong password: 2
pool alpha: external authoriser /etc/logins: DOES NOT ANSWER (workers: 1); logins asked about: 8, refused: 4, not answered: 3, by an earlier answer: 1
pool alpha: MOVED, ASK and CLUSTERDOWN passed on to clients: 5; its servers are nodes of a cluster, which \
\"cluster: {seeds: [host:port]}\" in the place of \"servers\" follows
pool alpha: requests sent again: 4, reads not sent again for want of budget: 2
pool alpha: reads that got the reply to an equal one: 6
pool alpha: cache: 75.0% hits of 120 reads, 12 replies, 3.0MiB of 64.0MiB
pool alpha: cache: a server refuses what it takes to keep its replies: see cashew events --kind cache_refused
pool alpha: hot key \"user:1\" is kept by rule: 12.3% of the requests
pool alpha: hot key \"user:2\" is not tried again for 1m 35s more: it does not answer
pool alpha: no hot key goes from here to pool hot for 1m 35s more: it does not answer
pool alpha: no hot key goes to this pool or comes from it for 1m 35s more: it does not answer
pool alpha: reads sent to a second server: 9, answered by it first: 7, not sent for want of budget: 1
pool alpha: CLIENT PAUSE holds clients that write back for 1500 ms more"
        );
        let mut known = status.clone();
        let server = |name: &str, state: &str, cause: &str, error: Option<&str>| ServerStatus {
            name: name.to_owned(),
            address: "10.0.0.1:6379".to_owned(),
            state: state.to_owned(),
            is_up: state == "well",
            since: (state != "untried").then_some(0),
            cause: cause.to_owned(),
            last_error: error.map(str::to_owned),
            last_error_at: error.map(|_| 0),
            role: String::new(),
            writes_missed: 0,
            to_forget: 0,
            drained_permille: 0,
        };
        known.pools[0].server_states = vec![
            server("a", "well", "", Some("Connection timed out")),
            server("b", "out", "Connection refused", Some("Connection refused")),
            server("c", "untried", "", None),
        ];
        let at = time(0);
        let gap = " ".repeat(at.len() - "SINCE".len() + 2);
        let never = " ".repeat(at.len() + 1);
        let tables = format!(
            "
POOL   LISTENS ON       SERVERS                   RING  DIGEST
alpha  127.0.0.1:22121  1 of 3 up, 2 on the ring  7     0123456789abcdef

POOL   SERVER  ADDRESS        STATE                    SINCE{gap}LAST ERROR
alpha  a       10.0.0.1:6379  well                     {at}  {at}: Connection timed out
alpha  b       10.0.0.1:6379  out: Connection refused  {at}  {at}: Connection refused
alpha  c       10.0.0.1:6379  untried                  -{never}-
"
        );
        let text = describe(&known);
        assert!(text.contains(&tables), "{text}");
        known.pools[0].tls_at = "0.0.0.0:6380".to_owned();
        known.pools[0].certificates = vec![CertificateStatus {
            file: "/etc/cert.pem".to_owned(),
            names: vec!["a.test".to_owned(), "10.0.0.1".to_owned()],
            expires_at: 0,
        }];
        let table = format!(
            "
POOL   TLS AT        CERTIFICATE    FOR               EXPIRES
alpha  0.0.0.0:6380  /etc/cert.pem  a.test, 10.0.0.1  {at}
"
        );
        assert!(describe(&known).contains(&table), "{}", describe(&known));
        known.pools[0].open_since = Some(0);
        let text = describe(&known);
        assert!(text.contains(&format!("2 on the ring, fails open since {at}  7 ")), "{text}");
        known.pools[0].primary = "a".to_owned();
        known.pools[0].server_states[0].role = "primary".to_owned();
        known.pools[0].server_states[0].writes_missed = 7;
        let text = describe(&known);
        let row = "\nalpha  a       10.0.0.1:6379  primary  well; missed 7 writes ";
        assert!(text.contains(row), "{text}");
        known.pools[0].server_states[0].writes_missed = 0;
        for (part, words) in [
            (250, "well; drained by 25 % "),
            (667, "well; drained by 66.7 % "),
            (1000, "well; drained "),
        ] {
            known.pools[0].server_states[0].drained_permille = part;
            let text = describe(&known);
            assert!(text.contains(&format!("10.0.0.1:6379  primary  {words}")), "{text}");
        }
        known.pools[0].server_states[0].drained_permille = 0;
        known.pools[0].server_states[0].to_forget = 12;
        let row = "\nalpha  a       10.0.0.1:6379  primary  well; 12 keys to forget ";
        assert!(describe(&known).contains(row));
        let lost = Status { log_lines_lost: 7, ..status.clone() };
        let line = "\nlog: /var/log/cashew.log, level 5; 7 lines could not be written\n";
        assert!(describe(&lost).contains(line));
        let reloaded = |failed: Option<&str>| Status {
            drain: None,
            last_reload: Some(Outcome { at: 0, failed: failed.map(str::to_owned) }),
            ..status.clone()
        };
        assert!(describe(&reloaded(None)).contains("\nlast reload: 19"));
        let mut watched = status.clone();
        watched.discovery =
            Some(AdminStatus { pid: Some(73), state: "serving".to_owned(), restarts: 1 });
        let switch = SwitchStatus { why: "they say so".to_owned(), ..SwitchStatus::default() };
        let group = |server: &str, primary: Option<&str>| GroupStatus {
            server: server.to_owned(),
            master: "mymaster".to_owned(),
            primary: primary.map(str::to_owned),
            config_epoch: primary.map(|_| 4),
            state: "stable".to_owned(),
            last_switch: primary.map(|_| switch.clone()),
        };
        watched.pools[0].groups = vec![group("s1", Some("10.0.0.1:6379")), group("s2", None)];
        let sentinel = |address: &str, is_answering, failure: Option<&str>| SentinelStatus {
            address: address.to_owned(),
            is_answering,
            failure: failure.map(str::to_owned),
        };
        watched.pools[0].sentinels = vec![
            sentinel("10.0.0.7:26379", Some(true), None),
            sentinel("10.0.0.8:26379", Some(false), Some("refuses connections")),
            sentinel("10.0.0.9:26379", None, None),
        ];
        let text = describe(&watched);
        assert!(text.contains("\ndiscovery        73       serving"), "{text}");
        let at = time(0);
        let tables = format!(
            "
POOL   GROUP  SENTINEL NAME  PRIMARY        EPOCH  STATE   LAST SWITCH
alpha  s1     mymaster       10.0.0.1:6379  4      stable  {at}: they say so
alpha  s2     mymaster       unknown        -      stable  -

POOL   SENTINEL        STATE
alpha  10.0.0.7:26379  answers
alpha  10.0.0.8:26379  refuses connections
alpha  10.0.0.9:26379  not asked yet
"
        );
        assert!(text.contains(&tables), "{text}");
        let member = |server: &str, role: &str, fitness: &str, lag, is_link_up, link_down_s| {
            let (server, role, fitness) = (server.to_owned(), role.to_owned(), fitness.to_owned());
            MemberStatus { server, role, fitness, lag, is_link_up, link_down_s }
        };
        watched.pools[0].members = vec![
            member("p", "primary", "fit", None, None, None),
            member("r1", "replica", "fit", Some(0), Some(true), None),
            member("r2", "replica", "link down", Some(4096), Some(false), Some(90)),
            member("r3", "replica", "never synced", None, Some(false), None),
        ];
        watched.pools[0].cluster = Some(ClusterStatus {
            seeds: vec![SeedStatus { address: "h:1".to_owned(), ..SeedStatus::default() }],
            ..ClusterStatus::default()
        });
        let text = describe(&watched);
        let cluster = "
POOL   CLUSTER NODES  SLOTS  EPOCH  MAP CHANGES  LAST CHANGE
alpha  unknown        -      -      0            -

POOL   SEED  STATE
alpha  h:1   not asked yet
";
        assert!(text.contains(cluster), "{text}");
        let shard = |primary: &str, replicas: &[&str], slots| ShardSlotsStatus {
            primary: primary.to_owned(),
            replicas: replicas.iter().map(|&it| it.to_owned()).collect(),
            slots,
        };
        let is_there = |is_answering: bool, failure: Option<&str>| SeedStatus {
            address: "h:1".to_owned(),
            is_answering: Some(is_answering),
            failure: failure.map(str::to_owned),
        };
        watched.pools[0].cluster = Some(ClusterStatus {
            epoch: 7,
            changes: 3,
            slots_covered: 16_384,
            shards: vec![shard("h:1", &["h:3", "h:4"], 16_384), shard("h:2", &[], 0)],
            seeds: vec![is_there(true, None), is_there(false, Some("refuses connections"))],
            last_change_at: Some(0),
            last_change: "h:2 joined".to_owned(),
        });
        let text = describe(&watched);
        let cluster = format!(
            "
POOL   CLUSTER NODES  SLOTS  EPOCH  MAP CHANGES  LAST CHANGE
alpha  4              all    7      3            {at}: h:2 joined

POOL   PRIMARY  SLOTS  REPLICAS
alpha  h:1      16384  h:3, h:4
alpha  h:2      0      -

POOL   SEED  STATE
alpha  h:1   answers
alpha  h:1   refuses connections
"
        );
        assert!(text.contains(&cluster), "{text}");
        let members = "
POOL   SERVER  ROLE     READS         LAG   LINK
alpha  p       primary  fit           -     -
alpha  r1      replica  fit           0     up
alpha  r2      replica  link down     4096  down for 1m 30s
alpha  r3      replica  never synced  -     never up
";
        assert!(text.contains(members), "{text}");
        watched.pools[0].source = Some(SourceStatus {
            source: "file /s".to_owned(),
            is_answering: Some(false),
            failure: Some("cannot be read".to_owned()),
            answered_at: Some(60),
            held: Some(HeldStatus {
                names: vec!["s1".to_owned(), "s2".to_owned()],
                servers: 3,
                of: 4,
                since: 80,
                answers: 2,
            }),
            ..SourceStatus::default()
        });
        watched.pools[0].source_change = Some(SourceChange { at: 0, what: "s1 joined".to_owned() });
        watched.pools[0].servers = 4;
        let sources = format!(
            "
POOL   SERVERS FROM  STATE           LAST ANSWER  SERVERS  CHANGES  LAST CHANGE
alpha  file /s       cannot be read  40 s ago     4        0        {at}: s1 joined
pool alpha: held back: s1, s2 and 1 more, 3 of 4 servers, named no more since 20 s, by 2 answers; they stay until \
three answers over 30 s have said so
"
        );
        assert_eq!(describe_sources(&watched.pools, 100), sources);
        watched.pools[0].source = None;
        watched.pools[0].server_maintenance = vec![
            MaintenanceStatus {
                pool: "alpha".to_owned(),
                server: "s1".to_owned(),
                address: "h:9".to_owned(),
                moved_from: Some("h:1".to_owned()),
                state: "tells".to_owned(),
                is_relaxed: true,
                notices: 2,
                last: Some("MOVING 7".to_owned()),
                last_at: Some(96),
            },
            MaintenanceStatus {
                pool: "alpha".to_owned(),
                server: "s2".to_owned(),
                address: "h:2".to_owned(),
                state: "asked".to_owned(),
                ..MaintenanceStatus::default()
            },
        ];
        let maintenance = "
POOL   MAINTENANCE OF  AT   MOVED FROM  STATE                   TOLD  LAST
alpha  s1              h:9  h:1         tells, may take longer  2     4 s ago: MOVING 7
alpha  s2              h:2  -           asked                   0     -
";
        assert_eq!(describe_maintenance(&watched.pools, 100), maintenance);
        watched.pools[0].server_maintenance.clear();
        assert_eq!(describe_maintenance(&watched.pools, 100), "");
        assert_eq!(describe_sources(&watched.pools, 100), "");
        assert!(describe(&reloaded(Some("it would not"))).contains(", failed: it would not\n"));
    }
}
