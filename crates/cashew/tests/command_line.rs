//! The executable as an operator sees it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[path = "../../../tests/rust/addresses.rs"]
mod addresses;

use addresses::free_address;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn questions_are_answered_on_standard_error() {
    let asked = [("-V", "\n"), ("-h", "\nUsage: cashew [OPTIONS]\n"), ("-D", "\npool stats:\n")];
    for (option, expected) in asked {
        let output = cashew(&[option]);
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.is_empty());
        let text = stderr(&output);
        assert!(text.starts_with("This is cashew-") && text.contains(expected), "{text}");
    }
}

#[test]
fn output_that_nobody_reads_is_no_failure() {
    let place = Place::new("untold");
    place.configure(1);
    let status = |arguments: &[&str]| {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_cashew"));
        command.args(arguments).stderr(full).status().unwrap().code()
    };
    assert_eq!(status(&["-V"]), Some(0));
    assert_eq!(status(&["-h"]), Some(0));
    assert_eq!(status(&["-Z"]), Some(1));
    assert_eq!(status(&["-t", "-c", &place.file("cashew.yml")]), Some(0));
    for arguments in [&["-t"][..], &["status"], &["-d"]] {
        assert_eq!(status(&[arguments, &["-c", "/nonexistent"]].concat()), Some(1));
    }
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let place = Place::new("full");
    place.configure(1);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut running = Running(place.command().args(["-v", "11"]).stderr(full).spawn().unwrap());
    wait_until(|| Path::new(&place.file("pid")).exists());
    assert!(place.statistics().contains("\"alpha\""));
    kill(running.0.id(), Signal::TERM);
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
}

#[test]
fn misuse_shows_the_usage_and_exits_with_1() {
    for arguments in [&["-Z"][..], &["-c"], &["-s", "0"], &["-m", "511"], &["-v", "x"], &["extra"]]
    {
        let output = cashew(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("Usage: cashew [OPTIONS]"), "{arguments:?}");
    }
}

#[test]
fn commands_have_options_of_their_own() {
    for arguments in [
        &["reload", "now"][..],
        &["reload", "-d"],
        &["status", "--dry-run"],
        &["upgrade", "--binary"],
        &["-c", "f", "reload"],
        &["relaod"],
    ] {
        let output = cashew(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains("Usage: cashew"), "{arguments:?}");
    }
    for command in ["reload", "upgrade", "status"] {
        let output = cashew(&[command, "-h"]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        let usage = format!("Usage: cashew {command} [OPTIONS]");
        assert!(stderr(&output).contains(&usage), "{command}");
    }
}

#[test]
fn commands_need_an_instance() {
    let place = Place::new("nobody");
    place.configure(1);
    let file = place.file("cashew.yml");
    for command in ["reload", "upgrade", "status"] {
        let output = cashew(&[command, "-c", &file]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        let text = stderr(&output);
        let expected = format!("cashew: no instance of configuration file '{file}' answers\n");
        assert!(text.starts_with(&expected), "{text}");
        assert!(text.contains("No such file or directory"), "{text}");
        let output = cashew(&[command, "--control", &place.file("nothing")]);
        assert!(stderr(&output).starts_with("cashew: no instance answers\n"));
    }
}

#[test]
fn an_instance_shows_its_status_and_what_would_change() {
    for workers in [0, 2] {
        let place = Place::new(&format!("operators-{workers}"));
        place.configure(workers);
        let file = place.file("cashew.yml");
        let master = Running(place.command().stderr(Stdio::null()).spawn().unwrap());
        wait_until(|| Path::new(&place.file("pid")).exists());
        let pid = master.0.id();

        let told = stdout(&cashew(&["status", "-c", &file]));
        assert!(told.contains(" serving for "), "{told}");
        assert!(told.contains(&format!(": process {pid}, epoch 1, {file}\n")), "{told}");
        assert!(told.contains(&format!("\nalpha  {}  0 of 1 up ", place.address)), "{told}");
        let told = stdout(&cashew(&["status", "--json", "-c", &file]));
        assert!(told.contains(&format!("\n  \"pid\": {pid},\n")), "{told}");
        assert_eq!(told.matches("\"slot\"").count(), workers.max(1) as usize, "{told}");

        let dry_run = || cashew(&["reload", "--dry-run", "-c", &file]);
        assert_eq!(stdout(&dry_run()), "nothing changes\n");
        let text = fs::read_to_string(&file).unwrap();
        let servers = "- 127.0.0.1:1:1\n      - 127.0.0.1:2:1";
        fs::write(&file, text.replace("- 127.0.0.1:1:1", servers)).unwrap();
        let output = dry_run();
        assert_eq!(output.status.code(), Some(0));
        let told = stdout(&output);
        let added = "pool 'alpha': server '127.0.0.1:2' added, at 127.0.0.1:2 with weight 1\n";
        assert!(told.starts_with(added) && told.contains("% of the keys go to"), "{told}");
        // It is found by the file's path even if the file is invalid.
        fs::write(&file, "alpha: nonsense\n").unwrap();
        for arguments in [&["reload", "--dry-run", "-c", &file][..], &["reload", "-c", &file]] {
            let output = cashew(arguments);
            assert_eq!(output.status.code(), Some(1));
            assert!(stderr(&output).contains("cashew.yml:1:8: "), "{}", stderr(&output));
        }
        let told = stdout(&cashew(&["status", "-c", &file]));
        assert!(told.contains("epoch 1, ") && told.contains("\nlast reload: "), "{told}");
        assert!(told.contains(", failed: "), "{told}");
    }
}

#[test]
fn an_instance_is_reloaded() {
    let place = Place::new("reload");
    place.configure(1);
    let file = place.file("cashew.yml");
    let mut master = Running(place.command().stderr(Stdio::null()).spawn().unwrap());
    wait_until(|| Path::new(&place.file("pid")).exists());
    let mut client = TcpStream::connect(place.address).unwrap();
    let (text, control) = (fs::read_to_string(&file).unwrap(), place.file("control"));
    let more = format!("worker_processes: 2\n  control_socket: {control}");
    fs::write(&file, text.replace("worker_processes: 1", &more)).unwrap();
    let told = stdout(&cashew(&["reload", "-c", &file]));
    let change = format!("\ncontrol_socket: none -> {control}\n");
    assert!(told.starts_with("worker_processes: 1 -> 2\n") && told.contains(&change), "{told}");
    assert!(told.ends_with("\nepoch 2 serves\n"), "{told}");
    // It answers at the new path.
    let told = stdout(&cashew(&["status", "--control", &control]));
    assert!(told.contains(", epoch 2, ") && told.contains(", done\n"), "{told}");
    assert_eq!(stdout(&cashew(&["reload", "-c", &file])), "nothing changes\nepoch 2 serves\n");
    client.write_all(b"nonsense\r\n").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    assert!(Path::new(&place.file("pid")).exists(), "it is kept");
    kill(master.0.id(), Signal::TERM);
    assert_eq!(master.0.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&place.file("pid")).exists() && !Path::new(&control).exists());
}

#[test]
fn systemd_is_notified() {
    let place = Place::new("notify");
    place.configure(1);
    let systemd = UnixDatagram::bind(place.file("notify")).unwrap();
    systemd.set_read_timeout(Some(PATIENCE)).unwrap();
    let receive = || {
        let mut buffer = [0; 4096];
        let count = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    let mut command = place.command();
    command.env("NOTIFY_SOCKET", place.file("notify")).env("WATCHDOG_USEC", "400000");
    let mut master = Running(command.stderr(Stdio::null()).spawn().unwrap());
    let until = |expected: &str| loop {
        let text = receive();
        if text.starts_with(expected) {
            return text;
        }
        assert_eq!(text, "WATCHDOG=1\n");
    };
    let ready = until("READY=1\n");
    assert!(ready.contains("\nSTATUS=serving: epoch 1, workers: 1\n"), "{ready}");
    assert_eq!([receive(), receive()], ["WATCHDOG=1\n"; 2]);
    let worker = place.child(master.0.id(), "worker");
    let environment = fs::read_to_string(format!("/proc/{worker}/environ")).unwrap();
    assert!(!environment.contains("NOTIFY_SOCKET") && !environment.contains("WATCHDOG"));

    // Whatever the outcome, the reload is over for systemd.
    fs::write(place.file("cashew.yml"), "nonsense\n").unwrap();
    kill(master.0.id(), Signal::HUP);
    assert!(until("RELOADING=1\n").contains("\nMONOTONIC_USEC="));
    assert!(until("READY=1\n").contains("; the last reload failed: "));
    kill(master.0.id(), Signal::TERM);
    until("STOPPING=1\n");
    assert_eq!(master.0.wait().unwrap().code(), Some(0));
}

#[test]
fn sockets_that_are_open_already_are_used() {
    let place = Place::new("activation");
    place.configure(2);
    let given = TcpListener::bind(place.address).unwrap();
    rustix::io::fcntl_setfd(&given, rustix::io::FdFlags::empty()).unwrap();
    let command = || {
        let mut command = place.command();
        command.env("LISTEN_FDS", "1").env("LISTEN_FDS_FIRST_FD", given.as_raw_fd().to_string());
        command
    };
    let mut early = TcpStream::connect(place.address).unwrap();
    let mut master = Running(command().stderr(Stdio::null()).spawn().unwrap());
    wait_until(|| Path::new(&place.file("pid")).exists());
    early.set_read_timeout(Some(PATIENCE)).unwrap();
    early.write_all(b"nonsense\r\n").unwrap();
    let mut reply = [0; 7];
    early.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"ERROR\r\n");
    kill(master.0.id(), Signal::TERM);
    assert_eq!(master.0.wait().unwrap().code(), Some(0));

    let text = fs::read_to_string(place.file("cashew.yml")).unwrap();
    let elsewhere = text.replace(&place.address.to_string(), &free_address().to_string());
    fs::write(place.file("cashew.yml"), elsewhere).unwrap();
    let output = command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let refused = format!("socket activation: cannot listen on {}: ", place.address);
    assert!(stderr(&output).contains(&refused), "{}", stderr(&output));
}

#[test]
fn a_configuration_is_tested() {
    let place = Place::new("test-conf");
    let file = place.file("cashew.yml");
    let test = || cashew(&["-t", "-c", &file]);

    place.configure(1);
    let output = test();
    assert_eq!(output.status.code(), Some(0));
    let valid = format!("cashew: configuration file '{file}' syntax is ok\n");
    let told = stderr(&output);
    let bound = told.strip_prefix(&valid).unwrap_or_else(|| panic!("{told}"));
    assert!(bound.starts_with("memory of a worker is at most "), "{told}");
    assert!(!bound.contains("io_uring"), "{told}");

    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("global:\n", "global:\n  io_engine: uring\n")).unwrap();
    let told = stderr(&test());
    assert!(told.contains("\n    9.5 MiB  io_uring: "), "{told}");

    fs::write(&file, "alpha:\n  listen: nowhere\n").unwrap();
    let output = test();
    assert_eq!(output.status.code(), Some(1));
    let invalid = format!("cashew: configuration file '{file}' syntax is invalid\n");
    assert!(stderr(&output).ends_with(&invalid), "{}", stderr(&output));
    assert!(stderr(&output).contains(":2:"), "the place is told: {}", stderr(&output));

    fs::remove_file(&file).unwrap();
    assert!(stderr(&test()).ends_with(&invalid));
}

#[test]
fn suspicious_options_are_warned_of_and_loops_are_refused() {
    let place = Place::new("suspicious");
    let file = place.file("cashew.yml");
    let [listen, other] = [free_address(), free_address()];
    let pool = |options: &str| format!("alpha:\n  listen: {listen}\n{options}");
    let cases = [
        (
            "  servers: [\"127.0.0.1:1:1 a\", \"localhost:1:1 b\"]\n".to_owned(),
            0,
            ":3:32: \"b\" is",
        ),
        ("  auto_eject_hosts: true\n  servers: [\"127.0.0.1:1:1\"]\n".to_owned(), 0, ":3:21: "),
        (format!("  servers: [\"{listen}:1\"]\n"), 1, ":3:13: this server is the pool's own"),
        (
            format!(
                "  servers: [\"{other}:1\"]\nbeta:\n  listen: {other}\n  servers: [\"a:1:1\"]\n"
            ),
            0,
            ":3:13: this server is the listener of pool \"beta\"",
        ),
        ("\tservers: [\"127.0.0.1:1:1\"]\n".to_owned(), 1, ":3:1: not valid YAML: a tab"),
    ];
    for (options, status, words) in cases {
        fs::write(&file, pool(&options)).unwrap();
        let output = cashew(&["-t", "-c", &file]);
        assert_eq!(output.status.code(), Some(status), "{options}{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("{file}{words}")), "{}", stderr(&output));
    }
}

#[test]
fn a_failed_start_is_reported_and_exits_with_1() {
    let place = Place::new("failed-start");
    place.configure(1);
    let _theirs = TcpListener::bind(place.address).unwrap();
    let log = place.file("log");
    for more in [&[][..], &["-o", &log], &["-d"], &["-d", "-o", &log]] {
        let output = place.command().args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        let text = stderr(&output);
        assert!(text.contains("another process already listens there"), "{more:?}: {text}");
    }
    assert_eq!(fs::read_to_string(log).unwrap().matches("ERROR").count(), 2);
    assert!(!Path::new(&place.file("pid")).exists());
}

#[test]
fn an_invalid_address_fails_the_start() {
    let place = Place::new("no-address");
    place.configure(1);
    let output = place.command().args(["-a", "no address"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("'no address'"));
}

#[test]
fn an_instance_serves_statistics_until_it_is_stopped() {
    for workers in [0, 2] {
        let place = Place::new(&format!("instance-{workers}"));
        place.configure(workers);
        let mut command = place.command();
        let mut master = Running(command.stderr(Stdio::null()).spawn().unwrap());
        wait_until(|| Path::new(&place.file("pid")).exists());
        assert!(place.statistics().contains("\"alpha\""));
        TcpStream::connect(place.address).unwrap();
        kill(master.0.id(), Signal::TERM);
        assert_eq!(master.0.wait().unwrap().code(), Some(0));
        wait_until(|| TcpStream::connect(place.address).is_err());
        assert!(!Path::new(&place.file("pid")).exists());
    }
}

#[test]
fn the_admin_is_replaced() {
    let place = Place::new("admin");
    place.configure(1);
    let log = place.file("log");
    let master = Running(place.command().args(["-o", &log]).spawn().unwrap());
    wait_until(|| Path::new(&place.file("pid")).exists());
    let admin = place.child(master.0.id(), "admin");
    kill(admin, Signal::KILL);
    assert!(place.statistics().contains("\"alpha\""));
    assert_ne!(place.child(master.0.id(), "admin"), admin);
}

#[test]
fn a_daemon_outlives_who_started_it() {
    let place = Place::new("daemon");
    place.configure(2);
    let log = place.file("log");
    let output = place.command().args(["-d", "-o", &log]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    // It serves as soon as the command returns.
    assert!(place.statistics().contains("\"alpha\""));
    let pid: u32 = fs::read_to_string(place.file("pid")).unwrap().trim().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!(fields[3], pid.to_string(), "it has a session of its own");
    assert!(stat.contains("(cashew)"));
    kill(pid, Signal::TERM);
    wait_until(|| has_ended(pid));
    assert!(fs::read_to_string(log).unwrap().ends_with("stopped\n"));
}

fn cashew(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cashew")).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Its new parent may take time to reap it.
fn has_ended(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "it does not come to pass");
        sleep(Duration::from_millis(5));
    }
}

/// A directory and addresses for one test.
struct Place {
    directory: PathBuf,
    address: SocketAddr,
    statistics: SocketAddr,
}

impl Place {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("cashew-{}-{name}", std::process::id()));
        // Another process with the same id may have left it behind.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        Self { directory, address: free_address(), statistics: free_address() }
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    fn configure(&self, workers: u32) {
        let text = format!(
            "global:
  worker_processes: {workers}
  worker_shutdown_timeout: 1
pools:
  alpha:
    listen: {}
    servers:
      - 127.0.0.1:1:1
",
            self.address
        );
        fs::write(self.file("cashew.yml"), text).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cashew"));
        command.args(["-c", &self.file("cashew.yml"), "-p", &self.file("pid")]);
        command.args(["-a", "127.0.0.1", "-s", &self.statistics.port().to_string()]);
        command
    }

    fn statistics(&self) -> String {
        let mut stream = TcpStream::connect(self.statistics).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn child(&self, master: u32, role: &str) -> u32 {
        let children =
            fs::read_to_string(format!("/proc/{master}/task/{master}/children")).unwrap();
        let mut children = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
        let is_role = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split('\0').nth(1) == Some(role))
        };
        children.find(is_role).expect("the master has such a child")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Its children notice.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_rehearsal_without_a_state_says_why_not() {
    let output = cashew(&["rehearse"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with(r#"{"ready":false,"#) && said.contains("there is no handover"));
}
