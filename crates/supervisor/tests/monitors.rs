//! MONITOR over all workers, as far as the master relays it. Children are real processes, but only
//! the master is the real program.

mod fake;

use fake::{Config, Instance, fake_processes, kill, wait_until};
use rustix::process::Signal;

fake_processes!();

/// The workers' answers, in the order of their process ids.
fn all(instance: &Instance, pids: &[u32], question: &str) -> Vec<String> {
    let mut answers: Vec<(u32, String)> = instance
        .collect(pids.len(), question)
        .into_iter()
        .map(|answer| {
            let (pid, rest) = answer.split_once(' ').unwrap();
            (pid.parse().unwrap(), rest.to_owned())
        })
        .collect();
    answers.sort();
    assert!(answers.iter().zip(pids).all(|((pid, _), other)| pid == other), "{answers:?}");
    let rest = answers.into_iter().map(|(_, rest)| rest.split_once(':').unwrap().1.to_owned());
    rest.collect()
}

fn workers(instance: &Instance, count: usize) -> Vec<u32> {
    let mut pids = instance.workers(count);
    pids.sort_unstable();
    pids
}

#[test]
fn lines_go_only_to_workers_with_monitors() {
    let instance = Instance::new("monitors");
    let config = Config { workers: 3, ..instance.config() };
    let instance = instance.start_with(&config);
    let pids = workers(&instance, 3);
    let watched = |expected: [&str; 3]| {
        wait_until(|| all(&instance, &pids, "pid watched") == expected);
    };
    watched(["", "", ""]);
    instance.tell(pids[0], "monitor alpha");
    watched(["", "alpha", "alpha"]);
    instance.tell(pids[1], "overhear alpha one");
    wait_until(|| all(&instance, &pids, "pid heard") == ["alpha!alpha:1:one,", "", ""]);

    instance.tell(pids[1], "monitor alpha");
    watched(["alpha", "alpha", "alpha"]);
    instance.tell(pids[2], "overhear alpha two");
    instance.tell(pids[0], "overhear alpha three");
    wait_until(|| {
        let [first, second, third] = all(&instance, &pids, "pid heard").try_into().unwrap();
        let both = ["alpha!alpha:1:two,alpha:1:three,", "alpha!alpha:1:three,alpha:1:two,"];
        first == "alpha!alpha:1:one,alpha:1:two," && both.contains(&&*second) && third.is_empty()
    });

    instance.tell(pids[0], "unmonitor alpha");
    watched(["alpha", "", "alpha"]);
    instance.tell(pids[1], "unmonitor alpha");
    watched(["", "", ""]);
}

#[test]
fn a_worker_that_reports_needlessly_is_told_to_stop() {
    let instance = Instance::new("monitors-unwanted").start();
    let pids = workers(&instance, 2);
    instance.tell(pids[0], "monitor alpha");
    wait_until(|| all(&instance, &pids, "pid watched") == ["", "alpha"]);
    // It is wrong about this worker, as after an upgrade.
    instance.tell(pids[1], "monitor beta");
    wait_until(|| all(&instance, &pids, "pid watched") == ["beta", "alpha"]);
    instance.tell(pids[1], "unmonitor beta");
    wait_until(|| all(&instance, &pids, "pid watched") == ["", "alpha"]);
    instance.tell(pids[0], "overhear alpha self");
    instance.tell(pids[1], "overhear alpha other");
    wait_until(|| all(&instance, &pids, "pid heard") == ["alpha!alpha:1:other,", "beta!"]);
}

#[test]
fn successors_of_dead_workers_report() {
    let instance = Instance::new("monitors-deaths").start();
    let pids = workers(&instance, 2);
    instance.tell(pids[0], "monitor alpha");
    wait_until(|| all(&instance, &pids, "pid watched") == ["", "alpha"]);
    let watched_by = |pid: u32| {
        let answers = instance.collect(2, "pid watched").into_iter();
        let mut words =
            answers.map(|it| it.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())));
        words
            .find_map(|it| it.filter(|(other, _)| *other == pid.to_string()))
            .map(|(_, pools)| pools)
    };
    // The successor of a reporting worker reports too.
    kill(pids[1], Signal::KILL);
    let mut next = 0;
    wait_until(|| {
        let others = instance.workers(2).into_iter().find(|pid| !pids.contains(pid));
        next = others.unwrap_or(0);
        next != 0
    });
    wait_until(|| watched_by(next).as_deref() == Some("pools:alpha"));
    instance.tell(next, "overhear alpha one");
    let heard = || instance.collect(2, "pid heard");
    wait_until(|| heard().contains(&format!("{} lines:alpha!alpha:1:one,", pids[0])));
    // When the worker with the monitor dies, nobody needs to report any more.
    kill(pids[0], Signal::KILL);
    wait_until(|| watched_by(next).as_deref() == Some("pools:"));
    wait_until(|| instance.workers(2).iter().all(|pid| !pids.contains(pid)));
    wait_until(|| instance.collect(2, "pid watched").iter().all(|it| it.ends_with(" pools:")));
}

#[test]
fn added_workers_report_what_is_monitored() {
    let instance = Instance::new("monitors-resize").start();
    let pids = workers(&instance, 2);
    instance.tell(pids[0], "monitor alpha");
    instance.reload(&Config { workers: 3, ..instance.config() });
    let all_watch = || {
        let answers = instance.collect(3, "pid watched");
        answers.iter().filter(|answer| answer.ends_with(" pools:alpha")).count() == 2
    };
    wait_until(all_watch);
}
