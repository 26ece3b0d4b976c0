//! Files that must be refused, and in which words: tests/bad.txt holds both.
//!
//! `CASHEW_BLESS=1 cargo test -p cashew-config bad` writes the words anew; read the difference.

use std::net::SocketAddr;
use std::path::PathBuf;

use cashew_config::{Context, Errors, parse};

const CASE: &str = "######## ";
const VERDICT: &str = "-------- refused:\n";

fn refuse(text: &str) -> Option<Errors> {
    let resolve = |host: &str, port| match host {
        "localhost" => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        _ => host
            .parse()
            .map(|ip| SocketAddr::new(ip, port))
            .map_err(|_| std::io::Error::other("no such name")),
    };
    parse("f", text, &Context { processors: 1, resolve: &resolve }).err()
}

#[test]
fn bad_files_are_refused_with_every_reason() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bad.txt");
    let written = std::fs::read_to_string(&path).unwrap();
    let mut judged = String::new();
    for case in written.split(CASE).skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let text = rest.split(VERDICT).next().unwrap();
        let errors = refuse(text).unwrap_or_else(|| panic!("{title}: accepted"));
        judged += &format!("{CASE}{title}\n{text}{VERDICT}{errors}\n");
    }
    if std::env::var_os("CASHEW_BLESS").is_some() {
        std::fs::write(&path, &judged).unwrap();
        return;
    }
    for (judged, written) in judged.split(CASE).zip(written.split(CASE)) {
        assert_eq!(judged, written, "judged, written\n{judged}\n{written}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let errors = cashew_config::load("/nonexistent/cashew.yml".as_ref()).unwrap_err();
    let words = "/nonexistent/cashew.yml: cannot be read: No such file or directory (os error 2)";
    assert_eq!(errors.to_string(), words);
    let errors = cashew_config::load("/dev/zero".as_ref()).unwrap_err();
    let words = "/dev/zero: cannot be read: it is larger than 16777216 bytes";
    assert_eq!(errors.to_string(), words);
}
