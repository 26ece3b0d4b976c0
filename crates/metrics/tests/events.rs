//! The kinds of events, the documentation and the code agree.

use std::fs;
use std::path::{Path, PathBuf};

use cashew_metrics::EventKind;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_documentation_has_the_kinds_in_order() {
    let text = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let section = text.split("\n### Events\n").nth(1).expect("there is a section");
    let section = section.split("\n## ").next().unwrap().split("\n### ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    let row = |kind: &EventKind| format!("| `{}` | {} |", kind.name(), kind.meaning());
    let expected: Vec<String> = EventKind::ALL.iter().map(row).collect();
    assert_eq!(rows, expected, "\n{}", expected.join("\n"));
}

#[test]
fn each_kind_is_recorded_somewhere() {
    let mut sources = String::new();
    for name in fs::read_dir(root().join("crates")).unwrap() {
        let directory = name.unwrap().path();
        if !directory.ends_with("metrics") {
            read(&directory.join("src"), &mut sources);
        }
    }
    for kind in EventKind::ALL {
        let name = format!("EventKind::{kind:?}");
        let is_whole = |(at, _): (usize, &str)| {
            !sources[at + name.len()..].starts_with(|letter: char| letter.is_alphanumeric())
        };
        assert!(sources.match_indices(&name).any(is_whole), "nobody tells of {name}");
    }
}

fn read(directory: &Path, sources: &mut String) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, sources);
        } else if path.extension().is_some_and(|it| it == "rs") {
            *sources += &fs::read_to_string(path).unwrap();
        }
    }
}
