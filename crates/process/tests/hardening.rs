//! A hardened process gives up what it says, and goes on with what it needs. It is this program again, as a hardened
//! process cannot run tests any more.

use std::io::ErrorKind;
use std::process::Command;

const MARK: &str = "CASHEW_TEST_HARDENED";

fn main() {
    if std::env::var_os(MARK).is_some() {
        return hardened();
    }
    let this = std::env::current_exe().unwrap();
    let done = Command::new(this).env(MARK, "1").output().unwrap();
    print!("{}", String::from_utf8_lossy(&done.stdout));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.stdout, b"hardened\n");
}

fn status(name: &str) -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {status}")).trim().to_owned()
}

fn run_another() -> Result<(), ErrorKind> {
    Command::new("true").status().map(drop).map_err(|error| error.kind())
}

fn hardened() {
    run_another().expect("it can run others before");
    let (begin, told) = std::sync::mpsc::channel();
    let before = std::thread::spawn(move || {
        told.recv().unwrap();
        run_another()
    });
    cashew_process::harden().unwrap();
    cashew_process::drop_privileges(None, None).unwrap();
    begin.send(()).unwrap();
    assert_eq!((status("NoNewPrivs").as_str(), status("Seccomp").as_str()), ("1", "2"));
    for refused in [run_another(), before.join().unwrap()] {
        assert_eq!(refused, Err(ErrorKind::PermissionDenied));
    }
    if rustix::process::geteuid().is_root() {
        let (none, dac_override) = ("0000000000000000", "0000000000000002");
        assert_eq!((status("CapBnd").as_str(), status("CapEff").as_str()), (none, dac_override));
        assert_eq!((status("CapInh").as_str(), status("CapPrm").as_str()), (none, dac_override));
    }
    let uid = rustix::process::Uid::from_raw(65534);
    assert_eq!(rustix::thread::set_thread_uid(uid), Err(rustix::io::Errno::PERM));
    // What it lives by.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    std::thread::spawn(|| {}).join().unwrap();
    let path = std::env::temp_dir().join(format!("cashew-hardened-{}", std::process::id()));
    std::fs::write(&path, "x").unwrap();
    std::fs::remove_file(path).unwrap();
    println!("hardened");
}
