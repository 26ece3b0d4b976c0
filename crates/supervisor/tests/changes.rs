//! An instance that changes while it serves: other configurations, more and fewer workers, moving
//! sessions. Children are real processes, but only the master is the real program.

mod fake;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use fake::{
    Config, Guest, Instance, PATIENCE, fake_processes, free_address, is_alive, kill, wait_refused,
    wait_until,
};
use rustix::process::Signal;

fake_processes!();

#[test]
fn all_workers_and_the_admin_apply_another_configuration() {
    let instance = Instance::new("reload-admin").start();
    let mut guests: Vec<Guest> = (0..8).map(|_| instance.stay()).collect();
    let before: Vec<u32> = guests.iter_mut().map(Guest::pid).collect();
    let config = Config { servers: vec!["a", "b", "c"], ..instance.config() };
    instance.reload(&config);
    assert_eq!(instance.places(2), ["epoch 2, 0 of 2", "epoch 2, 1 of 2"]);
    assert_eq!(instance.live(2), ["111"]);
    let after: Vec<u32> = guests.iter_mut().map(Guest::pid).collect();
    assert_eq!(after, before);
    wait_until(|| fs::read_to_string(instance.path("admin-epoch")).is_ok_and(|it| it == "2"));

    instance.reload(&config);
    assert!(instance.log().contains("the configuration has not changed"));
    assert_eq!(instance.places(2), ["epoch 2, 0 of 2", "epoch 2, 1 of 2"]);
}

#[test]
fn the_admin_shows_new_counters_when_all_workers_use_them() {
    let instance = Instance::new("unhurried-admin").start();
    Config { servers: vec!["a", "b", "c"], ..instance.config() }.write(&instance.directory);
    instance.signal(Signal::HUP);
    wait_until(|| instance.path("committing").exists());
    // The admin process has handled its earlier messages when it handles this one.
    instance.signal(Signal::TTIN);
    let read = |name| fs::read_to_string(instance.path(name)).unwrap_or_default();
    wait_until(|| read("admin-level") == "6");
    assert_eq!(read("admin-epoch"), "", "a worker still counts by the epoch before");
    fs::write(instance.path("confirm"), "").unwrap();
    wait_until(|| read("admin-epoch") == "2");
    wait_until(|| instance.log().contains("epoch 2 is in effect"));
}

#[test]
fn ejected_servers_stay_ejected_for_new_workers() {
    let instance = Instance::new("carry-rings").start();
    assert_eq!(instance.ask("down 1"), "ok");
    wait_until(|| instance.live(2) == ["10"]);
    instance.reload(&Config { servers: vec!["a", "b", "c"], ..instance.config() });
    assert_eq!(instance.live(2), ["101"]);
    kill_and_wait(&instance);
    assert_eq!(instance.live(2), ["101"]);
    assert_eq!(instance.places(2), ["epoch 2, 0 of 2", "epoch 2, 1 of 2"]);
    assert_eq!(instance.ask("up 1"), "ok");
    wait_until(|| instance.live(2) == ["111"]);
}

#[test]
fn a_failed_reload_changes_nothing() {
    let instance = Instance::new("abort");
    let config = Config { pools: Vec::new(), ..instance.config() };
    let instance = instance.start_with(&config);
    let unchanged = ["epoch 1, 0 of 2", "epoch 1, 1 of 2"];
    let other = free_address();
    let fails = |config: &Config, why: &str| {
        instance.reload(config);
        assert!(instance.log().contains(why), "{why}");
        assert_eq!(instance.places(2), unchanged);
    };

    fs::write(instance.path("cashew.yml"), "pools: 7").unwrap();
    instance.signal(Signal::HUP);
    wait_until(|| instance.log().contains("the configuration stays as it is"));

    let with = |name| Config { pools: vec![(name, other.to_string())], ..config.clone() };
    fails(&with("refused"), "worker 1 refuses it: it is too hard");
    // What was bound is closed again.
    wait_refused(other);

    fails(&with("deadly"), "worker 1 died meanwhile");
    wait_refused(other);

    let theirs = TcpListener::bind(other).unwrap();
    fails(&with("second"), "pool 'second': cannot listen on");
    drop(theirs);
    wait_refused(other);

    fails(&Config { workers: 0, ..config.clone() }, "worker_processes cannot change from 2 to 0");

    instance.reload(&with("second"));
    assert_eq!(instance.places(2), ["epoch 4, 0 of 2", "epoch 4, 1 of 2"]);
    TcpStream::connect(other).unwrap();
}

#[test]
fn addresses_come_go_and_move() {
    let mut instance = Instance::new("addresses").start();
    let mut guest = instance.stay();
    let before = instance.address;
    let path = instance.path("socket");
    assert!(path.exists());
    instance.address = free_address();
    // The address of one pool becomes that of another, which keeps the client by its pool's name.
    let pools = vec![("third", before.to_string())];
    instance.reload(&Config { pools, ..instance.config() });
    assert!(!path.exists(), "nobody is to find it");
    assert_eq!(instance.places(2).len(), 2);
    guest.pid();
    TcpStream::connect(before).unwrap();
    instance.reload(&Config { pools: Vec::new(), ..instance.config() });
    wait_refused(before);
    guest.pid();
    assert_eq!(instance.places(2).len(), 2);
}

#[test]
fn workers_come_and_go_unnoticed_by_clients() {
    let instance = Instance::new("resize");
    let same = instance.config();
    let config = |workers| Config { workers, ..same.clone() };
    let instance = instance.start_with(&config(4));
    let mut guests: Vec<Guest> = (0..40).map(|_| instance.stay()).collect();
    let (stop, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        let _stop = Stop(&stop);
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    instance.pid();
                    asked.fetch_add(1, Relaxed);
                }
            });
        }
        // A worker that has not ended by the next change may be taken back.
        for (workers, retired) in [(1, 3), (3, 3), (2, 4), (4, 4), (1, 7), (2, 7)] {
            instance.reload(&config(workers));
            let places = (0..workers).map(|rank| format!("{rank} of {workers}"));
            let places: Vec<String> = places.collect();
            wait_until(|| {
                let found = instance.places(workers as usize);
                found.iter().zip(&places).all(|(found, place)| found.ends_with(place))
            });
            let served: Vec<u32> = guests.iter_mut().map(Guest::pid).collect();
            instance.gather(&mut guests, workers as usize);
            assert_eq!(served.len(), 40);
            wait_until(|| instance.log().matches("has stopped").count() == retired);
        }
    });
    assert!(asked.load(Relaxed) > 20);
    assert_eq!(instance.ask("taken"), "40");
    assert!(!instance.log().contains("ERROR"));
}

#[test]
fn hundreds_of_sessions_move_at_once() {
    let instance = Instance::new("crowd").start();
    let mut guests: Vec<Guest> = (0..400).map(|_| instance.stay()).collect();
    for workers in [1, 2, 1] {
        instance.reload(&Config { workers, ..instance.config() });
        instance.gather(&mut guests, workers as usize);
    }
    assert_eq!(instance.ask("taken"), "400");
    assert!(!instance.log().contains("ERROR"));
}

#[test]
fn sessions_sent_to_a_dying_worker_go_to_the_next() {
    let instance = Instance::new("cruel").start();
    let mut guests: Vec<Guest> = (0..60).map(|_| instance.stay()).collect();
    let pids: Vec<u32> = guests.iter_mut().map(Guest::pid).collect();
    let log = instance.log();
    let is_second = |pid| log.contains(&format!("worker 1 is started: process {pid}\n"));
    instance.reload(&Config { workers: 1, ..instance.config() });
    // The first one dies of the first session that it gets.
    wait_until(|| instance.log().contains("exited with status 5"));
    let mut moved = guests.iter_mut().zip(&pids).filter(|&(_, &pid)| is_second(pid));
    assert!(moved.all(|(guest, pid)| guest.pid() != *pid));
    let kept = pids.iter().filter(|&&pid| is_second(pid)).count();
    assert!(kept > 0);
    wait_until(|| instance.ask("taken") == kept.to_string());
}

#[test]
fn fifty_reloads_in_two_seconds() {
    let instance = Instance::new("flood").start();
    let configs = [vec!["a"], vec!["a", "b", "c"]];
    let configs = configs.map(|servers| Config { servers, ..instance.config() });
    let stop = AtomicBool::new(false);
    let epochs = || instance.log().matches("is in effect").count();
    scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                instance.pid();
            }
        });
        let mut guest = instance.stay();
        let begin = Instant::now();
        let mut reload = |round: usize| {
            configs[round % 2].write(&instance.directory);
            instance.signal(Signal::HUP);
            guest.pid();
            let due = Duration::from_millis(40) * (round as u32 + 1);
            sleep(due.saturating_sub(begin.elapsed()));
        };
        (0..50).for_each(&mut reload);
        // On a busy machine more of them are merged.
        for pair in (25..).take_while(|_| epochs() <= 3) {
            assert!(begin.elapsed() < PATIENCE, "only {} epochs", epochs());
            (2 * pair..2 * pair + 2).for_each(&mut reload);
        }
        wait_until(|| instance.live(2) == ["111"]);
    });
    eprintln!("{} epochs", epochs());
    assert!(!instance.log().contains("ERROR"));
}

#[test]
fn workers_that_die_all_the_time_stop_no_reload() {
    let instance = Instance::new("dying-reloads").start();
    let configs = [vec!["a"], vec!["a", "b", "c"]];
    let configs = configs.map(|servers| Config { servers, ..instance.config() });
    for round in 0..12 {
        configs[round % 2].write(&instance.directory);
        instance.signal(Signal::HUP);
        kill(instance.pid(), Signal::KILL);
    }
    instance.reload(&Config { servers: vec!["a", "b", "c", "d"], ..instance.config() });
    wait_until(|| {
        instance.signal(Signal::HUP);
        instance.live(2) == ["1111"]
    });
}

#[test]
fn a_worker_that_never_gets_ready_stops_no_reload() {
    let instance = Instance::new("unready").start();
    let [a, b] = instance.workers(2)[..] else { panic!("two workers") };
    let is_second = |pid| instance.log().contains(&format!("worker 1 is started: process {pid}\n"));
    kill(if is_second(a) { a } else { b }, Signal::KILL);
    wait_until(|| instance.log().matches("worker 1 is started").count() == 2);
    Config { servers: vec!["a", "b", "c"], ..instance.config() }.write(&instance.directory);
    instance.signal(Signal::HUP);
    wait_until(|| instance.live(1) == ["111"]);
    let log = instance.log();
    assert!(log.contains("is aborted: it is not ready, and delays a reload"), "{log}");
}

#[test]
fn process_options_are_applied_by_new_processes() {
    let instance = Instance::new("renewal").start();
    let mut guests: Vec<Guest> = (0..10).map(|_| instance.stay()).collect();
    let before = instance.workers(2);
    let global = "  io_engine: epoll\n".into();
    instance.reload(&Config { global, ..instance.config() });
    wait_until(|| before.iter().all(|&pid| !is_alive(pid)));
    let after = instance.workers(2);
    assert!(guests.iter_mut().all(|guest| after.contains(&guest.pid())));
    assert_eq!(instance.places(2), ["epoch 2, 0 of 2", "epoch 2, 1 of 2"]);
    assert!(!instance.log().contains("ERROR"));
}

#[test]
fn counters_are_carried_to_another_layout() {
    let instance = Instance::new("numbers").start();
    let config = |workers, servers| Config { workers, servers, ..instance.config() };
    let count = || instance.ask("requests").parse::<u64>().unwrap();
    let before = count();
    assert!(before >= 1);
    instance.reload(&config(2, vec!["a", "x", "y"]));
    let carried = count();
    assert!(carried > before, "{carried}");
    // Counters of a worker that is gone stay too.
    instance.reload(&config(1, vec!["a", "x", "y"]));
    wait_until(|| instance.log().contains("has stopped"));
    let carried = count();
    instance.reload(&config(1, vec!["a"]));
    assert_eq!(count(), carried + 1);
}

#[test]
fn clients_of_dead_workers_are_uncounted() {
    let instance = Instance::new("quotas").start();
    let mut guests: Vec<Guest> = (0..12).map(|_| instance.stay()).collect();
    assert_eq!(instance.ask("taken"), "12");
    let killed = guests[0].pid();
    let lost = guests.iter_mut().filter_map(|it| (it.pid() == killed).then_some(())).count();
    kill(killed, Signal::KILL);
    wait_until(|| instance.ask("taken") == (12 - lost).to_string());
}

#[test]
fn the_busiest_worker_sheds_to_the_other() {
    let instance = Instance::new("rebalance").start();
    let mut guests: Vec<Guest> = (0..20).map(|_| instance.stay()).collect();
    let busy = guests[0].pid();
    let had = guests.iter_mut().filter_map(|it| (it.pid() == busy).then_some(())).count();
    wait_until(|| instance.ask(&format!("busy {busy} 900")) == "ok");
    wait_until(|| instance.log().contains("of its load to worker"));
    wait_until(|| {
        guests.iter_mut().filter_map(|it| (it.pid() == busy).then_some(())).count() < had
    });
    assert_eq!(instance.ask("taken"), "20");
}

#[test]
fn an_admin_that_refuses_is_restarted_and_stops_nothing() {
    let instance = Instance::new("refusing-admin").start();
    let admin = instance.admin();
    instance.reload(&Config { servers: vec!["a"], ..instance.config() });
    assert_eq!(instance.places(2), ["epoch 2, 0 of 2", "epoch 2, 1 of 2"]);
    wait_until(|| instance.admin() != admin);
    assert!(instance.log().contains("is restarted: no room for it"));
}

#[test]
fn an_instance_stops_in_the_middle_of_a_reload() {
    let mut instance = Instance::new("stop-reload").start();
    let pools = vec![("endless", "endless".to_owned())];
    Config { pools, ..instance.config() }.write(&instance.directory);
    instance.signal(Signal::HUP);
    wait_until(|| instance.path("endless").exists());
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("endless").exists());
}

#[test]
fn one_process_reloads_too() {
    let instance = Instance::new("threads-reload").start();
    let mut guest = instance.stay();
    let config = Config { workers: 0, servers: vec!["a", "b", "c"], ..instance.config() };
    instance.reload(&config);
    assert_eq!(instance.live(1), ["111"]);
    guest.pid();
    instance.reload(&Config { workers: 2, ..config.clone() });
    assert!(instance.log().contains("worker_processes cannot change from 0 to 2"));
    let global = "  io_engine: epoll\n".into();
    instance.reload(&Config { global, ..config });
    wait_until(|| instance.log().contains("worker 0 (a thread) has stopped"));
    guest.pid();
    assert_eq!(instance.places(1), ["epoch 3, 0 of 1"]);
}

/// Set when dropped, also by a failed test: a scope waits for its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Kills a worker and waits for the next.
fn kill_and_wait(instance: &Instance) {
    let before = instance.workers(2);
    kill(before[0], Signal::KILL);
    wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
}
