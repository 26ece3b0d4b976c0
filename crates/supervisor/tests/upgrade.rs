//! Masters that become another version of their program. The other version is this executable
//! again, which fails in some scenarios.

mod fake;

use std::fs;
use std::io;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use cashew_supervisor::Verdict;
use fake::{Instance, PATIENCE, fake_processes, is_alive, kill, wait_until};
use rustix::process::Signal;

fake_processes!();

#[test]
#[ignore = "not a test but a program that is tried by others"]
fn bad_process() {
    if fake::scenario().is_some() {
        eprintln!("the file is bad");
        std::process::exit(1);
    }
}

#[test]
#[ignore = "not a test but a program that is tried by others"]
fn rehearsal_process() {
    let Some((scenario, _)) = fake::scenario() else { return };
    let answer = match cashew_supervisor::rehearse(io::stdin()) {
        Ok(_) if scenario == "unrehearsed" => {
            Verdict { why: Some("the state cannot be read".into()), ..Verdict::default() }
        }
        Ok(rehearsal) => {
            assert_eq!(rehearsal.epoch.snapshot.pools.len(), 2);
            Verdict { ready: true, notes: rehearsal.notes, ..Verdict::default() }
        }
        Err(why) => Verdict { why: Some(why), ..Verdict::default() },
    };
    // The name of the test is already on the line.
    println!("\n{}", serde_json::to_string(&answer).unwrap());
    std::process::exit(0);
}

#[test]
fn the_program_is_replaced_and_the_process_stays() {
    let mut instance = Instance::new("upgrade-admin").start();
    for round in 1..=3 {
        let before = instance.workers(2);
        let admin = instance.admin();
        instance.signal(Signal::USR2);
        // Meanwhile all requests are answered.
        wait_until(|| !before.contains(&instance.pid()) && !before.iter().any(|it| is_alive(*it)));
        assert!(instance.workers(2).iter().all(|pid| !before.contains(pid)));
        wait_until(|| instance.log().matches("the upgrade is done").count() == round);
        wait_until(|| instance.admin() != admin);
    }
    assert_eq!(fs::read_to_string(instance.path("pid")).unwrap(), format!("{}\n", instance.id()));
    assert!(instance.path("socket").exists());
    // It is as complete a master as the first one.
    let before = instance.workers(2);
    kill(before[0], Signal::KILL);
    wait_until(|| instance.workers(2).iter().any(|pid| !before.contains(pid)));
    instance.signal(Signal::TTIN);
    wait_until(|| instance.log().matches("level is 6 here").count() == 2);
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("pid").exists());
    assert!(!instance.path("socket").exists());
    let errors = instance.log().matches("ERROR").count();
    assert_eq!(errors, 1, "the one that was killed: {}", instance.log());
}

#[test]
fn a_ring_survives_the_exchange_of_the_program() {
    let instance = Instance::new("upgrade-ring").start();
    assert_eq!(instance.ask("down 1"), "ok");
    wait_until(|| instance.live(2) == ["10"]);
    let before = instance.workers(2);
    instance.signal(Signal::USR2);
    wait_until(|| !before.iter().any(|it| is_alive(*it)));
    assert_eq!(instance.live(2), ["10"]);
    assert_eq!(instance.ask("up 1"), "ok");
    wait_until(|| instance.live(2) == ["11"]);
}

#[test]
fn a_program_whose_workers_fail_gives_everything_back() {
    for (scenario, why) in [
        ("upgrade-failing", "it failed: no luck today"),
        ("upgrade-dying", "it exited with status 3"),
    ] {
        let mut instance = Instance::new(scenario).start();
        let before = instance.workers(2);
        for round in 1..=2 {
            instance.signal(Signal::USR2);
            wait_until(|| {
                instance.pid();
                instance.log().matches("the upgrade has failed, nothing is changed").count()
                    == round
            });
            assert!(instance.log().contains(why), "{why}");
        }
        let mut after = instance.workers(2);
        after.sort_unstable();
        assert!(before.iter().all(|pid| after.contains(pid)), "{before:?} {after:?}");
        assert_eq!(children_of(instance.id()), after, "nobody else is left");
        instance.signal(Signal::TTIN);
        wait_until(|| instance.log().matches("level is 6 here").count() == 2);
        assert!(instance.path("socket").exists() && instance.path("pid").exists());
        assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
        assert!(!instance.path("socket").exists());
    }
}

#[test]
fn a_program_that_fails_its_trial_changes_nothing() {
    for (scenario, why) in [
        (
            "untested",
            "the test of the configuration exited with status 1: running 1 test; the file is bad",
        ),
        ("unrehearsed", "the state cannot be read"),
    ] {
        let mut instance = Instance::new(scenario).start();
        let before = instance.workers(2);
        instance.signal(Signal::USR2);
        wait_until(|| instance.log().contains("the upgrade has failed, nothing is changed"));
        assert!(instance.log().contains(why), "{}", instance.log());
        assert!(!instance.log().contains("becoming"));
        assert!(instance.workers(2).iter().all(|pid| before.contains(pid)));
        assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    }
}

#[test]
fn a_stop_during_a_take_over_stops_all_processes() {
    let mut instance = Instance::new("upgrade-slow").start();
    let before = instance.workers(2);
    instance.signal(Signal::USR2);
    wait_until(|| children_of(instance.id()).len() == 4);
    let all = children_of(instance.id());
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(before.iter().chain(&all).all(|pid| !is_alive(*pid)));
    assert!(!instance.path("socket").exists());
}

#[test]
fn clients_keep_their_connections() {
    let instance = Instance::new("upgrade-guests").start();
    let mut guests: Vec<_> = (0..8).map(|_| instance.stay()).collect();
    for _ in 0..3 {
        let before = instance.workers(2);
        assert_eq!(ask(&instance, r#"{"command":"upgrade"}"#).last().unwrap(), DONE);
        wait_until(|| !before.iter().any(|pid| is_alive(*pid)));
        for guest in &mut guests {
            assert!(!before.contains(&guest.pid()));
        }
    }
}

#[test]
fn a_worker_that_retires_serves_its_clients_while_another_program_takes_over() {
    for is_to_fail in [false, true] {
        let instance = Instance::new("upgrade-lingering-long").start();
        let mut guest = instance.stay();
        let first = guest.pid();
        assert_eq!(ask(&instance, r#"{"command":"upgrade"}"#).last().unwrap(), DONE);
        assert_eq!(guest.pid(), first, "it is not at rest");
        wait_until(|| children_of(instance.id()).len() == 3);
        let mut second = Vec::new();
        wait_until(|| {
            second = instance.workers(2);
            // It may accept connections until it has received the order to retire.
            !second.contains(&first)
        });

        fs::write(instance.path("wait"), "").unwrap();
        instance.signal(Signal::USR2);
        wait_until(|| children_of(instance.id()).len() == 5);
        fs::write(instance.path("rest"), "").unwrap();
        // More than one tick of its worker, which would hand it over now.
        sleep(Duration::from_millis(300));
        assert_eq!(guest.pid(), first, "nobody else takes it yet");
        assert_eq!(instance.log().matches("the upgrade ").count(), 1, "{}", instance.log());

        if is_to_fail {
            fs::write(instance.path("fail"), "").unwrap();
            wait_until(|| instance.log().contains("the upgrade has failed, nothing is changed"));
            instance.gather(std::slice::from_mut(&mut guest), 2);
            assert!(second.contains(&guest.pid()));
        } else {
            fs::remove_file(instance.path("wait")).unwrap();
            wait_until(|| instance.log().matches("the upgrade is done").count() == 2);
            wait_until(|| !second.iter().any(|&pid| is_alive(pid)));
            instance.gather(std::slice::from_mut(&mut guest), 2);
            assert!(!second.contains(&guest.pid()));
        }
        wait_until(|| !is_alive(first));
    }
}

#[test]
fn a_command_is_answered_by_either_program() {
    let mut instance = Instance::new("upgrade-asked").start();
    let answers = ask(&instance, r#"{"command":"upgrade"}"#);
    assert!(answers[0].contains("this is cashew test"), "{answers:?}");
    assert_eq!(answers.last().unwrap(), DONE);
    let why = ask(&instance, r#"{"command":"upgrade","binary":"/bin/false"}"#);
    assert!(why[0].contains("/bin/false: the test of the configuration exited"), "{why:?}");
    let why = ask(&instance, r#"{"command":"upgrade","binary":"/nowhere"}"#);
    assert!(why[0].contains("cannot open /nowhere"), "{why:?}");
    let status = ask(&instance, r#"{"command":"status"}"#);
    assert!(status[0].contains("cannot open /nowhere"), "{status:?}");
    assert_eq!(instance.stop(Signal::TERM).code(), Some(0));
    assert!(!instance.path("control").exists());

    let instance = Instance::new("upgrade-failing").start();
    let why = ask(&instance, r#"{"command":"upgrade"}"#);
    assert!(why.last().unwrap().contains("it failed: no luck today"), "{why:?}");
}

const DONE: &str = r#"{"done":true}"#;

/// Sends a command over the operators' socket.
fn ask(instance: &Instance, command: &str) -> Vec<String> {
    let mut stream = UnixStream::connect(instance.path("control")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(stream, "{command}").unwrap();
    BufReader::new(stream).lines().map(Result::unwrap).collect()
}

/// In order.
fn children_of(pid: u32) -> Vec<u32> {
    let parent = format!(" {pid} ");
    let is_child = |child: &u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // After the name: the state, then the parent.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest[1..].starts_with(&parent))
    };
    let processes = fs::read_dir("/proc").unwrap();
    let pids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let mut children: Vec<u32> = pids.filter(is_child).filter(|&pid| is_alive(pid)).collect();
    children.sort_unstable();
    children
}
