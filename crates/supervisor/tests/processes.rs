//! What a master does about its children, with real processes.

mod fake;

use std::fs;
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fake::{Config, Instance, PATIENCE, fake_processes, is_alive, kill, wait_refused, wait_until};
use rustix::process::Signal;

fake_processes!();

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_killed_worker_is_replaced_within_a_second_and_no_connection_is_lost() {
    let harm = |instance: &Instance, killed| {
        kill(killed, Signal::KILL);
        wait_until(|| !is_alive(killed));
        // Some of these wait in the queue of the socket whose worker is dead.
        let answers: Vec<u32> = (0..40).map(|_| instance.pid()).collect();
        assert!(answers.iter().all(|pid| *pid != killed));
    };
    within(SECOND, "respawn", "was killed by signal 9; restart 1 in 0ns", harm);
}

#[test]
fn a_crash_loop_slows_down_and_harms_no_other_worker() {
    let mut instance = Instance::new("crash-loop").start();
    let [steady, mut victim] = instance.workers(2)[..] else { panic!() };
    for _ in 0..4 {
        kill(victim, Signal::KILL);
        wait_until(|| {
            instance
                .workers(2)
                .iter()
                .find(|&&pid| pid != steady && pid != victim)
                .copied()
                .inspect(|pid| victim = *pid)
                .is_some()
        });
    }
    assert!(instance.log().contains("restart 4 in 400ms"));
    assert!(instance.log().contains("crashes in a loop: 4 times in a row; 1 workers serve"));
    assert!(instance.workers(2).contains(&steady));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn sockets_of_a_worker_that_cannot_start_again_are_served_by_others() {
    let instance = Instance::new("relapsing").start();
    let [one, other] = instance.workers(2)[..] else { panic!() };
    let log = instance.log();
    let victim = log.lines().find_map(|line| line.split_once("worker 1 is started: process "));
    let victim: u32 = victim.unwrap().1.parse().unwrap();
    let steady = one + other - victim;
    kill(victim, Signal::KILL);
    let mut asked = 0;
    wait_until(|| {
        // Every other one goes to the socket whose worker is dead.
        let at = Instant::now();
        assert_eq!(instance.pid(), steady);
        assert!(at.elapsed() < PATIENCE / 4);
        asked += 1;
        instance.log().contains("restart 6 in 1s")
    });
    assert!(asked > 5, "{asked}");
    let log = instance.log();
    assert!(log.contains("failed: cannot become nobody; restart 3 in 200ms"), "{log}");
    assert!(log.contains("worker 1 crashes in a loop: 3 times in a row; 1 workers serve"));
    fs::remove_file(instance.path("second")).unwrap();
    assert!(instance.workers(2).contains(&steady));
}

#[test]
fn sigterm_stops_gracefully() {
    let mut instance = Instance::new("term").start();
    let workers = instance.workers(2);
    assert_eq!(fs::read_to_string(instance.path("pid")).unwrap(), format!("{}\n", instance.id()));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("pid").exists());
    wait_refused(instance.address);
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
    assert!(!instance.path("socket").exists());
}

#[test]
fn sigterm_kills_a_worker_that_does_not_stop_in_time() {
    let mut instance = Instance::new("stubborn").start();
    let workers = instance.workers(2);
    let at = Instant::now();
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!((2..25).contains(&at.elapsed().as_secs()), "{:?}", at.elapsed());
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_second_sigterm_stops_at_once() {
    let mut instance = Instance::new("stubborn-long").start();
    instance.signal(Signal::TERM);
    wait_until(|| instance.log().contains("SIGTERM: stopping, for at most 300s"));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn an_admin_that_dies_while_workers_stop_is_not_replaced() {
    let instance = Instance::new("stubborn-admin");
    // Long enough to kill the admin process meanwhile.
    let config = Config { timeout: 5, ..instance.config() };
    let mut instance = instance.start_with(&config);
    let admin = instance.admin();
    instance.signal(Signal::TERM);
    wait_until(|| instance.log().contains("SIGTERM: stopping"));
    kill(admin, Signal::KILL);
    assert_eq!(instance.wait().code(), Some(0));
}

#[test]
fn the_admin_is_replaced_and_stops_last() {
    let mut instance = Instance::new("admin").start();
    let admin = instance.admin();
    kill(admin, Signal::KILL);
    wait_until(|| instance.log().contains("admin (process") && instance.admin() != admin);
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    let log = instance.log();
    let stopped: Vec<&str> = log.lines().filter(|line| line.ends_with("has stopped")).collect();
    assert!(stopped.len() == 3 && stopped[2].contains("admin"), "{stopped:?}");
}

#[test]
fn sigint_stops_at_once() {
    let mut instance = Instance::new("stubborn-int-long").start();
    let workers = instance.workers(2);
    assert_eq!(instance.stop(Signal::INT).code(), Some(0));
    assert!(workers.iter().all(|pid| !is_alive(*pid)));
    assert!(!instance.path("pid").exists());
}

#[test]
fn a_worker_that_fails_at_the_start_fails_the_start() {
    let mut instance = Instance::new("failing");
    assert_eq!(instance.run().code(), Some(1));
    assert!(instance.log().contains("worker 1 did not start: it failed: no luck today"));
    assert!(!instance.path("pid").exists());
    assert!(!instance.path("socket").exists());
}

#[test]
fn a_worker_that_dies_at_the_start_fails_the_start() {
    let mut instance = Instance::new("dying");
    assert_eq!(instance.run().code(), Some(1));
    assert!(instance.log().contains("worker 1 did not start: it exited with status 3"));
}

#[test]
fn a_port_in_use_fails_the_start() {
    let mut instance = Instance::new("port");
    let _theirs = TcpListener::bind(instance.address).unwrap();
    assert_eq!(instance.run().code(), Some(1));
    let expected = format!(
        "pool 'alpha': cannot listen on {}: another process already listens there",
        instance.address
    );
    assert!(instance.log().contains(&expected));
}

#[test]
fn two_instances_do_not_share_a_port() {
    let first = Instance::new("sharing").start();
    let mut second = Instance::new("shared");
    second.address = first.address;
    assert_eq!(second.run().code(), Some(1));
    assert!(second.log().contains("another process already listens there"));
    first.pid();
}

#[test]
fn all_workers_change_a_ring_together() {
    let instance = Instance::new("ring").start();
    assert_eq!(instance.ask("down 1"), "ok");
    wait_until(|| instance.live(2) == ["10"]);
    assert!(instance.log().contains("pool 'alpha': server 'b' is ejected: it refuses"));
    // The next worker learns of it before it serves.
    let before = instance.workers(2);
    kill(before[0], Signal::KILL);
    wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
    assert_eq!(instance.live(2), ["10"]);
    assert_eq!(instance.ask("up 1"), "ok");
    wait_until(|| instance.live(2) == ["11"]);
}

#[test]
fn all_processes_reopen_the_log_and_change_its_level() {
    let mut instance = Instance::new("log").start();
    fs::rename(instance.path("log"), instance.path("log.1")).unwrap();
    instance.signal(Signal::HUP);
    wait_until(|| instance.log().matches("log is reopened here").count() == 2);
    instance.signal(Signal::TTIN);
    wait_until(|| instance.log().matches("level is 6 here").count() == 2);
    instance.signal(Signal::TTOU);
    wait_until(|| instance.log().matches("level is 5 here").count() == 2);
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn workers_notice_the_death_of_the_master() {
    let mut instance = Instance::new("orphans").start();
    let workers = instance.workers(2);
    assert_eq!(instance.stop(Signal::KILL).code(), None);
    wait_until(|| workers.iter().all(|pid| !is_alive(*pid)));
}

#[test]
fn a_stopped_worker_is_replaced_within_a_second() {
    // One thread takes the signal; the others may serve on until it does.
    let stop = |_: &Instance, pid| {
        kill(pid, Signal::STOP);
        wait_until(|| is_stopped(pid));
    };
    within(SECOND, "stopped", "is killed: it is stopped", stop);
}

#[test]
fn a_worker_that_spins_is_replaced() {
    let log = "is aborted: it is busy and gets nowhere";
    // With a processor of its own it takes as long as the others; here it may not have one.
    within(5 * SECOND, "spinning", log, |instance, pid| instance.tell(pid, "spin"));
}

#[test]
fn a_worker_that_waits_for_ever_is_replaced_within_a_second() {
    let log = "is aborted: it sleeps and does not wake";
    within(SECOND, "deadlocked", log, |instance, pid| instance.tell(pid, "lock"));
}

#[test]
fn a_worker_that_aborts_is_replaced_within_a_second() {
    let log = "was killed by signal 6";
    within(SECOND, "aborting", log, |instance, pid| instance.tell(pid, "abort"));
}

#[test]
fn a_worker_that_panics_is_replaced_within_a_second() {
    let log = "exited with status 101";
    within(SECOND, "panicking", log, |instance, pid| instance.tell(pid, "panic"));
}

/// Harms a worker and measures the time until its successor serves. Repeats if it took too long:
/// the machine may be busy.
fn within(limit: Duration, scenario: &'static str, log: &str, harm: impl Fn(&Instance, u32)) {
    // These run one by one, so that they do not compete for processors.
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _turn = ONE_BY_ONE.lock();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < 2 * PATIENCE {
        let instance = Instance::new(scenario).start();
        let before = instance.workers(2);
        let at = Instant::now();
        harm(&instance, before[0]);
        wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
        assert!(!is_alive(before[0]));
        // A worker that ends slowly may be taken for hung before.
        let is_meant = instance.log().contains(log);
        times.push((at.elapsed(), is_meant));
        if is_meant && at.elapsed() < limit {
            println!("replaced in {times:?} who {log}");
            return;
        }
    }
    panic!("{times:?}");
}

#[test]
fn one_process_does_without_children() {
    let mut instance = Instance::new("threads").start();
    assert_eq!(instance.workers(1), [instance.id()]);
    assert_eq!(instance.ask("down 0"), "ok");
    wait_until(|| instance.live(1) == ["01"]);
    instance.signal(Signal::USR2);
    wait_until(|| instance.log().contains("the upgrade is refused: with worker_processes: 0"));
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("pid").exists());
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat"));
    tasks.flatten().all(|task| stat(task).is_ok_and(|stat| stat.contains(") T ")))
}

/// The answers that a worker got to a query: its own, the others', and what became of the rest.
fn query(instance: &Instance, how: &str) -> (u32, Vec<u32>, String) {
    let answer = instance.ask(&format!("all {how}"));
    let words: Vec<&str> = answer.split(' ').collect();
    let pids: Vec<u32> = words[..words.len() - 1].iter().map(|pid| pid.parse().unwrap()).collect();
    let mut others = pids[1..].to_vec();
    others.sort_unstable();
    (pids[0], others, words[words.len() - 1].to_owned())
}

/// The same for a worker other than `pid`.
fn query_of_another(instance: &Instance, how: &str, pid: u32) -> (u32, Vec<u32>, String) {
    let mut heard = None;
    wait_until(|| {
        // A worker that asks does not tell itself to misbehave.
        heard = Some(query(instance, &format!("{how} {pid}")));
        heard.as_ref().is_some_and(|(asker, ..)| *asker != pid)
    });
    heard.unwrap()
}

/// The first query that all answered in time; a worker may wait for a processor. Returns the asker
/// and who answered.
fn full(mut query: impl FnMut() -> (u32, Vec<u32>, String)) -> (u32, Vec<u32>) {
    let mut heard = None;
    wait_until(|| {
        let (asker, others, rest) = query();
        heard = (rest == "None").then_some((asker, others));
        heard.is_some()
    });
    heard.unwrap()
}

#[test]
fn all_other_workers_answer_a_worker_s_query() {
    let instance = Instance::new("worker_queries");
    let config = Config { workers: 3, ..instance.config() };
    let instance = instance.start_with(&config);
    let mut workers = instance.workers(3);
    workers.sort_unstable();
    let others = |asker: u32, missing: u32| -> Vec<u32> {
        workers.iter().copied().filter(|&pid| pid != asker && pid != missing).collect()
    };
    for _ in 0..10 {
        let (asker, heard) = full(|| query(&instance, "who"));
        assert_eq!(heard, others(asker, 0));
    }
    let (asker, heard) = full(|| query_of_another(&instance, "shrug", workers[0]));
    assert_eq!(heard, others(asker, workers[0]));
    // A hanging worker is not waited for any longer than that.
    wait_until(|| {
        let (asker, heard, rest) = query_of_another(&instance, "hang", workers[1]);
        assert_eq!(rest, "Missing");
        heard == others(asker, workers[1])
    });
    let (asker, heard) = full(|| query(&instance, "who"));
    assert_eq!(heard, others(asker, 0));
    // A dead worker has no clients, and its successor is asked.
    let (asker, heard, rest) = query_of_another(&instance, "die", workers[2]);
    assert_eq!((heard, &rest[..]), (others(asker, workers[2]), "None"));
    wait_until(|| {
        let (_, heard, rest) = query(&instance, "who");
        heard.len() == 2 && !heard.contains(&workers[2]) && rest == "None"
    });
}

#[test]
fn a_single_worker_queries_no_other() {
    let instance = Instance::new("query-alone");
    let config = Config { workers: 1, ..instance.config() };
    let instance = instance.start_with(&config);
    let (asker, heard, rest) = query(&instance, "who");
    assert_eq!((asker, heard, &rest[..]), (instance.pid(), vec![], "None"));
}
