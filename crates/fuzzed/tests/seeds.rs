//! Plays what fuzzers have found: `fuzz/seeds` has, for every target, inputs that reach much, and those that once
//! failed.

use std::fs;
use std::path::Path;

use cashew_fuzzed::TARGETS;

#[test]
fn what_fuzzers_have_found_holds() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, target) in TARGETS {
        let seeds = fs::read_dir(fuzz.join("seeds").join(name)).expect(name);
        let mut count = 0;
        for seed in seeds {
            let path = seed.expect(name).path();
            // A panic names the target and the file.
            println!("{}", path.display());
            target(&fs::read(&path).expect(name));
            count += 1;
        }
        assert!(count > 0, "{name} has no seeds: fuzz/run --merge {name}");
    }
}

#[test]
fn every_target_is_one_of_the_fuzzer_and_has_a_line_in_the_docs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files: Vec<String> = fs::read_dir(root.join("fuzz/fuzz_targets"))
        .expect("fuzz_targets")
        .map(|file| file.expect("a file").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    files.sort_unstable();
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(files, names);
    let docs = fs::read_to_string(root.join("docs/testing.md")).expect("docs/testing.md");
    for name in names {
        assert!(docs.contains(&format!("| `{name}` |")), "docs/testing.md does not tell of {name}");
    }
}
