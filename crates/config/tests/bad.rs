//! Files that must be refused, with the expected errors: tests/bad.txt has both. Likewise files
//! with warnings, in tests/suspicious.txt.
//!
//! `CASHEW_BLESS=1 cargo test -p cashew-config --test bad` rewrites the expected output; check the
//! difference.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use cashew_config::{Context, Errors, Loaded, SecretFile, parse};

const CASE: &str = "######## ";

fn judge(text: &str, is_root: bool) -> Result<Loaded, Errors> {
    let resolve = |host: &str, port| match host {
        "localhost" => Ok(SocketAddr::from(([127, 0, 0, 1], port))),
        _ => host
            .parse()
            .map(|ip| SocketAddr::new(ip, port))
            .map_err(|_| std::io::Error::other("no such name")),
    };
    let is_directory = |path: &Path| path == Path::new("/") || path == Path::new("/var");
    let read_secret = |path: &Path| match path.to_str() {
        Some("/run/secret") => Ok(SecretFile { text: "hidden words\n".into(), is_public: false }),
        Some("/run/empty") => Ok(SecretFile { text: "\n".into(), is_public: false }),
        Some("/run/users.acl") => {
            let text =
                "user ann on >secret +@nope\n\nann on\nuser bob on\nuser bob off\nuser cid (+get\n";
            Ok(SecretFile { text: text.into(), is_public: false })
        }
        Some("/run/off.acl") => {
            Ok(SecretFile { text: "user ann >secret +@all\n".into(), is_public: true })
        }
        _ => Err(std::io::ErrorKind::PermissionDenied.into()),
    };
    let pem = |text: &str, is_public| Ok(SecretFile { text: text.to_owned(), is_public });
    let read_pem = |path: &Path| match path.to_str() {
        Some("/run/one.crt") => pem(include_str!("tls/one.crt"), true),
        Some("/run/one.key") => pem(include_str!("tls/one.key"), false),
        Some("/run/other.crt") => pem(include_str!("tls/other.crt"), true),
        Some("/run/other.key") => pem(include_str!("tls/other.key"), true),
        Some("/run/empty") => pem("\n", false),
        _ => Err(std::io::ErrorKind::PermissionDenied.into()),
    };
    let read_keys = |path: &Path| match path.to_str() {
        Some("/run/keys") => Ok("# hot\nbanner hot\n\nlone\ntop hut\nbanner hot\n".to_owned()),
        Some("/run/more") => Ok("banner hot\ntop b\ntop b\n".to_owned()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    };
    parse(
        "f",
        text,
        &Context {
            processors: 1,
            memory: Some(2 << 30),
            resolve: &resolve,
            is_directory: &is_directory,
            is_root,
            has_account: &|_, name| name == "nobody",
            account_names: &|_| vec!["nobody".to_owned()],
            is_local: &|ip| ip == IpAddr::from([10, 0, 0, 9]),
            read_secret: &read_secret,
            read_env: &|name| (name == "EMPTY").then(String::new),
            read_pem: &read_pem,
            now: 1_795_840_000,
            read_keys: &read_keys,
        },
    )
}

fn refuse(text: &str) -> Option<Errors> {
    judge(text, true).err()
}

fn check(file: &str, verdict: &str, judge: impl Fn(&str, &str) -> String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
    let written = std::fs::read_to_string(&path).unwrap();
    let mut judged = String::new();
    for case in written.split(CASE).skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let text = rest.split(verdict).next().unwrap();
        judged += &format!("{CASE}{title}\n{text}{verdict}{}\n", judge(title, text));
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
fn bad_files_are_refused_with_every_reason() {
    check("bad.txt", "-------- refused:\n", |title, text| {
        refuse(text).unwrap_or_else(|| panic!("{title}: accepted")).to_string()
    });
}

/// Messages that are their own remedy: of two one goes, of a list of words one is right, what cannot be read is named
/// with the reason, a rule of an ACL is refused in Redis's words.
const SELF_EVIDENT: &[&str] = &[
    " twice",
    "did you mean",
    "is not \"true\" or \"false\"",
    "cannot be read: ",
    "cannot be resolved: ",
    "there is no directory ",
    " is a directory",
    " already listens there",
    "is an empty list",
    "two commands would have this name",
    "unknown option ",
    "rule ",
    "selector definition",
    "Duplicate user found",
    "user keyword",
    "usernames can't contain",
    " lacks \"",
    " go together",
    " either ",
    " cannot be denied",
    " cannot be renamed",
    " is not the key of the certificate",
    "has no certificate in PEM form",
    "two \"else\" beside it",
    ": a name is one word ",
    "the arity",
    "the last key is in front of the first",
    "Redis itself has ",
    " has no users",
    " does not hold what is wanted: expected ",
    " is empty",
    ": no server is named ",
    " is no name of a server",
    " has an empty name",
    " has a control character",
    "a command of this name already",
    "nothing to strip of the prefix",
];

/// A message without what is particular of a file: quoted words, numbers and paths.
fn kind(message: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for word in message.split(' ') {
        quoted ^= word.matches('"').count() % 2 == 1;
        let particular = quoted || word.contains(['"', '/']) || word.contains(char::is_numeric);
        kind += if particular { " X" } else { " " };
        kind += if particular { "" } else { word };
    }
    kind
}

/// What whoever reads a message needs: where it is, what is wrong, and what to do.
#[test]
fn messages_name_line_cause_and_remedy() {
    let written = include_str!("bad.txt");
    let (mut with_hint, mut bare) = (BTreeSet::new(), BTreeSet::new());
    for case in written.split(CASE).skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let text = rest.split("-------- refused:\n").next().unwrap();
        for found in refuse(text).unwrap_or_else(|| panic!("{title}: accepted")).0 {
            assert!(found.line > 0 && found.column > 0, "{title}: {found}");
            assert!(
                !found.message.is_empty() && found.hint.as_deref() != Some(""),
                "{title}: {found}"
            );
            if found.hint.is_some() {
                with_hint.insert(kind(&found.message));
            } else if !SELF_EVIDENT.iter().any(|words| found.message.contains(words)) {
                bare.insert(kind(&found.message));
            }
        }
    }
    assert!(with_hint.len() >= 52, "only {} kinds: {with_hint:#?}", with_hint.len());
    assert!(bare.is_empty(), "nothing says what to do about {bare:#?}");
}

#[test]
fn suspicious_files_are_warned_of() {
    check("suspicious.txt", "-------- warned:\n", |title, text| {
        let loaded = judge(text, false).unwrap_or_else(|errors| panic!("{title}: {errors}"));
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        warnings.join("\n")
    });
}

#[test]
fn no_more_warnings_are_shown_than_anyone_reads() {
    let servers: String = (0..300).map(|i| format!("    - a:1:1 s{i}\n")).collect();
    let text = format!("p:\n  listen: /p\n  servers:\n{servers}");
    let warnings = judge(&text, false).unwrap().warnings;
    assert_eq!(warnings.len(), 101);
    assert_eq!(warnings[100].to_string(), "f: 199 more warnings are not shown");
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let errors = cashew_config::load("/nonexistent/cashew.yml".as_ref()).unwrap_err();
    let words = "/nonexistent/cashew.yml: cannot be read: No such file or directory (os error 2)";
    assert_eq!(errors.to_string(), words);
    let errors = cashew_config::load("/dev/zero".as_ref()).unwrap_err();
    let words = "/dev/zero: cannot be read: it is a device, not a regular file";
    assert_eq!(errors.to_string(), words);
    let errors = cashew_config::load("/".as_ref()).unwrap_err();
    assert_eq!(errors.to_string(), "/: cannot be read: it is a directory, not a regular file");
    let huge = std::env::temp_dir().join(format!("cashew-huge-{}", std::process::id()));
    std::fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let why = cashew_config::load(&huge).unwrap_err().to_string();
    std::fs::remove_file(&huge).unwrap();
    assert!(why.ends_with(": cannot be read: it is larger than 16777216 bytes"), "{why}");
}

#[test]
fn no_more_errors_are_shown_than_anyone_reads() {
    let servers = "    - nothing\n".repeat(300);
    let errors = refuse(&format!("p:\n  listen: /p\n  servers:\n{servers}")).unwrap().0;
    assert_eq!(errors.len(), 101);
    assert_eq!(errors[100].to_string(), "f: 200 more errors are not shown");
}

#[test]
fn servers_and_pools_have_a_largest_number() {
    let pool = |name: &str, servers: usize| {
        let lines: String = (0..servers).map(|i| format!("    - h{i}:1:1\n")).collect();
        format!("{name}:\n  listen: /{name}\n  servers:\n{lines}")
    };
    assert_eq!(refuse(&pool("p", 65_536)), None);
    let errors = refuse(&pool("p", 65_537)).unwrap();
    assert_eq!(errors.0[0].message, "65537 servers are too many for one pool");

    let pools = |count: usize| (0..count).map(|i| pool(&format!("p{i}"), 1)).collect::<String>();
    assert_eq!(refuse(&pools(4096)), None);
    assert_eq!(refuse(&pools(4097)).unwrap().0[0].message, "4097 pools are too many");
}
