//! `cashew migrate keys`: single keys go to another pool, some at a time.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};

use cashew_api::key::{NOT_A_KEY, unescaped};
use cashew_supervisor::Command;

use crate::arguments::MigrateArguments;
use crate::operate::ask;

/// Keys of one step: clients wait for each step.
const STEP_KEYS: usize = 100;
/// Bytes of their names as JSON. A command with them fits in a body that the control API reads.
const STEP_SIZE: usize = 12 << 10;

pub(crate) fn move_keys(arguments: &MigrateArguments) -> Result<(), String> {
    let file = arguments.route.as_deref().ok_or("name a file with a key on each line, or -")?;
    let (Some(from), Some(to)) = (&arguments.from, &arguments.to) else {
        return Err("say --from POOL and --to POOL".to_owned());
    };
    let (from, to) = if arguments.back { (to, from) } else { (from, to) };
    let text = match file {
        "-" => {
            let mut text = Vec::new();
            io::stdin().read_to_end(&mut text).map(|_| text)
        }
        path => fs::read(path),
    };
    let text = text.map_err(|error| format!("{file}: {error}"))?;
    let all = keys(&text).map_err(|why| format!("{file}:{why}"))?;
    let mut done = 0;
    for keys in steps(&all) {
        let count = keys.len();
        let command = Command::MoveKeys {
            route: arguments.listener.clone(),
            from: from.clone(),
            to: to.clone(),
            keys,
            overwrite: arguments.overwrite,
        };
        ask(&arguments.instance, &command, |_| {}).map_err(|why| match done {
            0 => why,
            _ => format!(
                "{why}\n{done} of {} keys are in pool {to}; say it again to go on",
                all.len()
            ),
        })?;
        done += count;
        crate::migrate::say(&format!("{done} of {} keys are in pool {to}", all.len()))?;
    }
    match all.is_empty() {
        true => Err(format!("{file}: there are no keys in it")),
        false => Ok(()),
    }
}

/// The keys of a file, each once, whose lines have them with escapes, as `cashew hot` shows them. An error begins with
/// the number of its line.
fn keys(text: &[u8]) -> Result<Vec<String>, String> {
    let (mut keys, mut seen) = (Vec::new(), BTreeSet::new());
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let key = unescaped(line).ok_or_else(|| {
            format!("{number}: {NOT_A_KEY}: a backslash that is part of the key is \\\\")
        })?;
        let key = String::from_utf8(key).map_err(|error| {
            let shown = error.as_bytes().escape_ascii();
            format!("{number}: key \"{shown}\" is not UTF-8: a list of keys cannot name it")
        })?;
        if seen.insert(key.clone()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn steps(keys: &[String]) -> Vec<Vec<String>> {
    let mut steps: Vec<Vec<String>> = Vec::new();
    let mut size = 0;
    for key in keys {
        let own = serde_json::to_string(key).map_or(key.len(), |json| json.len() + 1);
        size += own;
        match steps.last_mut().filter(|step| step.len() < STEP_KEYS && size <= STEP_SIZE) {
            Some(step) => step.push(key.clone()),
            None => {
                size = own;
                steps.push(vec![key.clone()]);
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_key_and_each_step_has_few() {
        assert_eq!(keys(b"# hot\na b\n\n  c \r\nc\n").unwrap(), ["a b", "c"]);
        let all: Vec<String> = (0..250).map(|number| format!("key:{number}")).collect();
        let sizes: Vec<usize> = steps(&all).iter().map(Vec::len).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let long: Vec<String> = (0..5).map(|number| number.to_string().repeat(10_000)).collect();
        assert_eq!(steps(&long).len(), 5);
        assert_eq!(steps(&all).concat(), all);
    }

    #[test]
    fn each_step_fits_in_a_command() {
        // The longest keys of memcached, and names that are longer as JSON.
        for key in ["k".repeat(246), "\u{1}\"".repeat(120)] {
            let all: Vec<String> = (0..300).map(|number| format!("{key}{number:04}")).collect();
            let steps = steps(&all);
            assert_eq!(steps.concat(), all);
            for keys in steps {
                let size = serde_json::to_vec(&keys).unwrap().len();
                assert!(size <= STEP_SIZE + 2, "{size}");
            }
        }
        const { assert!(STEP_SIZE + 4096 <= cashew_supervisor::COMMAND_SIZE_MAX) };
    }

    #[test]
    fn keys_are_named_as_hot_keys_are_shown() {
        assert_eq!(keys(br"a\\b \x41\xc3\xa4 \'it\'").unwrap(), ["a\\b A\u{e4} 'it'"]);
        let shown = "key:\u{e4}\u{7f}\\".as_bytes().escape_ascii().to_string();
        assert_eq!(keys(shown.as_bytes()).unwrap(), ["key:\u{e4}\u{7f}\\"]);
        let why = keys(b"a\nC:\\Users\n").unwrap_err();
        assert!(
            why.starts_with("2: the key ends within an escape, or has an unknown one"),
            "{why}"
        );
        for text in [&b"b\\xff\\x00k"[..], b"b\xff\\x00k"] {
            let why = keys(text).unwrap_err();
            let words = r#"1: key "b\xff\x00k" is not UTF-8: a list of keys cannot name it"#;
            assert_eq!(why, words);
        }
    }
}
