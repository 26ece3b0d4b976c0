//! `cashew migrate keys`: single keys go to another pool, some at a time.

use std::fs;
use std::io::{self, Read};

use cashew_supervisor::Command;

use crate::arguments::MigrateArguments;
use crate::operate::ask;

/// Keys of one step, and bytes of their names: clients wait for each step.
const STEP_KEYS: usize = 100;
const STEP_SIZE: usize = 16 << 10;

pub(crate) fn move_keys(arguments: &MigrateArguments) -> Result<(), String> {
    let file = arguments.route.as_deref().ok_or("name a file with a key on each line, or -")?;
    let (Some(from), Some(to)) = (&arguments.from, &arguments.to) else {
        return Err("say --from POOL and --to POOL".to_owned());
    };
    let (from, to) = if arguments.back { (to, from) } else { (from, to) };
    let text = match file {
        "-" => {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        }
        path => fs::read_to_string(path),
    };
    let text = text.map_err(|error| format!("{file}: {error}"))?;
    let all = keys(&text);
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
        ask(&arguments.instance, &command, |_| {}).map_err(|why| {
            format!("{why}\n{done} of {} keys are in pool {to}; say it again to go on", all.len())
        })?;
        done += count;
        crate::migrate::say(&format!("{done} of {} keys are in pool {to}", all.len()))?;
    }
    match all.is_empty() {
        true => Err(format!("{file}: there are no keys in it")),
        false => Ok(()),
    }
}

fn keys(text: &str) -> Vec<String> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut seen = std::collections::BTreeSet::new();
    lines.filter(|line| seen.insert(*line)).map(str::to_owned).collect()
}

fn steps(keys: &[String]) -> Vec<Vec<String>> {
    let mut steps: Vec<Vec<String>> = Vec::new();
    let mut size = 0;
    for key in keys {
        size += key.len();
        match steps.last_mut().filter(|step| step.len() < STEP_KEYS && size <= STEP_SIZE) {
            Some(step) => step.push(key.clone()),
            None => {
                size = key.len();
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
        assert_eq!(keys("# hot\na b\n\n  c \nc\n"), ["a b", "c"]);
        let all: Vec<String> = (0..250).map(|number| format!("key:{number}")).collect();
        let sizes: Vec<usize> = steps(&all).iter().map(Vec::len).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let long: Vec<String> = (0..5).map(|number| number.to_string().repeat(10_000)).collect();
        assert_eq!(steps(&long).len(), 5);
        assert_eq!(steps(&all).concat(), all);
    }
}
