//! The order of the engine's floors: a folder imports only from folders below it.
//!
//! What is not so yet stands in `floors.txt`, which may only shrink: an import upward that is not
//! there fails, and so does a line there that is no longer needed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up. Two floors in one line do not import each other.
const FLOORS: [&[&str]; 9] = [
    &["base"],
    &["request", "observe"],
    &["topology"],
    &["upstream"],
    &["exchange"],
    &["downstream"],
    &["route"],
    &["redis", "memcached", "tcp"],
    &["engine"],
];

/// Files outside of `redis/` and `memcached/` that have methods of the engine; may only shrink.
const ENGINE_FILES_MAX: usize = 32;

#[test]
fn no_floor_imports_from_one_above() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found: BTreeSet<String> =
        sources(&root.join("src")).iter().flat_map(|(name, text)| upward(name, text)).collect();
    let text = fs::read_to_string(root.join("tests/floors.txt")).unwrap();
    let known: BTreeSet<String> =
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "imports from a floor above: {new:#?}");
    let gone: Vec<_> = known.difference(&found).collect();
    assert!(gone.is_empty(), "no longer needed, take them out of floors.txt: {gone:#?}");
}

#[test]
fn every_folder_is_a_floor() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            assert!(level(&name).is_some(), "{name} has no place in the order of the floors");
        } else {
            assert_eq!(name, "lib.rs", "a file belongs into a folder");
        }
    }
}

#[test]
fn the_engine_has_methods_in_few_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files: Vec<String> = sources(&root)
        .into_iter()
        .filter(|(name, text)| {
            !name.starts_with("redis/")
                && !name.starts_with("memcached/")
                && text.lines().any(|line| line.starts_with("impl Engine"))
        })
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        files.len(),
        ENGINE_FILES_MAX,
        "write the new number here if it is less: {files:#?}"
    );
}

#[test]
fn every_test_file_is_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (modules, targets) = (read("tests/engine.rs"), read("Cargo.toml"));
    for entry in fs::read_dir(root.join("tests")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let is_run = modules.contains(&format!("mod {name};"))
            || targets.contains(&format!("name = \"{name}\""));
        assert!(path.extension().is_none_or(|it| it != "rs") || is_run, "nothing runs {name}.rs");
    }
}

fn level(floor: &str) -> Option<usize> {
    FLOORS.iter().position(|names| names.contains(&floor))
}

/// `file -> floor` for every floor above its own that a file names.
fn upward(name: &str, text: &str) -> Vec<String> {
    let Some((own, _)) = name.split_once('/') else { return Vec::new() };
    let own_level = level(own).unwrap();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let mut found = BTreeSet::new();
    for line in code {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            let end =
                rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(rest.len());
            let floor = &rest[..end];
            if let Some(other) = level(floor)
                && floor != own
                && other >= own_level
            {
                found.insert(format!("{name} -> {floor}"));
            }
        }
    }
    found.into_iter().collect()
}

/// All source files: path below `root` and text.
fn sources(root: &Path) -> Vec<(String, String)> {
    let mut pending: Vec<PathBuf> = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let text = fs::read_to_string(&path).unwrap();
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}
