//! `cashew hot`: which keys are asked for most, or are the largest.

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use cashew_admin::{HotListing, HotRecord};
use cashew_api::key::{NOT_A_KEY, unescaped};
use cashew_supervisor::{Command, HotAction};

use crate::arguments::HotArguments;
use crate::layout::{Cell, bytes, count, lines, micros, number, room, table, text};
use crate::operate::{ask, finish};
use crate::stats_port::{address, encoded, get};

const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The cursor to the upper left, and nothing on the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// A summary names keys with a larger share, in percent.
const HOT_MIN: f64 = 5.0;

pub(crate) fn hot(arguments: &HotArguments) -> ExitCode {
    finish(match (&arguments.action, &arguments.key) {
        (None, None) => show(arguments),
        (None, Some(_)) if !arguments.undo => {
            Err("what is to be done about the key: --do cache, --do split, --do move, or --undo?"
                .to_owned())
        }
        (action, key) => act(arguments, action.as_deref(), key.as_deref().unwrap_or_default()),
    })
}

fn act(arguments: &HotArguments, action: Option<&str>, key: &OsStr) -> Result<(), String> {
    let key = unescaped(key.as_bytes()).ok_or(NOT_A_KEY)?;
    let action = match action {
        Some("move") => HotAction::Move,
        Some("split") => HotAction::Split,
        Some(_) => HotAction::Cache,
        None => HotAction::Undo,
    };
    if arguments.to.is_some() && action != HotAction::Move {
        return Err("only keys that move go --to a pool".to_owned());
    }
    if arguments.copies.is_some() && action != HotAction::Split {
        return Err("only keys that are split have --copies".to_owned());
    }
    let (pool, to, copies) = (arguments.pool.clone(), arguments.to.clone(), arguments.copies);
    let command = Command::HotKey { pool, key, action, to, copies };
    ask(&arguments.instance, &command, |_| {})
}

fn show(arguments: &HotArguments) -> Result<(), String> {
    let address = address(&arguments.instance, None)?;
    let mut path = format!("/hot.json?by={}&limit={}", arguments.by, arguments.number);
    for (name, value) in [("pool", &arguments.pool), ("server", &arguments.server)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", encoded(value));
        }
    }
    loop {
        let listing: HotListing = get(&address, &path)?;
        let shown = match arguments.json {
            true => listing.keys.iter().map(|key| json(&listing, key)).collect(),
            false => for_people(&listing, room()),
        };
        let clear = match arguments.watch && !arguments.json && io::stdout().is_terminal() {
            true => CLEAR,
            false => "",
        };
        let shown: String = shown.into_iter().map(|line| line + "\n").collect();
        let mut stdout = io::stdout();
        if write!(stdout, "{clear}{shown}").and_then(|()| stdout.flush()).is_err() {
            // The reader is gone, as with `head`.
            return Ok(());
        }
        if !arguments.watch {
            return Ok(());
        }
        thread::sleep(WATCH_INTERVAL);
    }
}

fn json(listing: &HotListing, key: &HotRecord) -> String {
    let key = HotRecord { by: listing.by.clone(), ..key.clone() };
    serde_json::to_string(&key).expect("a key is plain JSON")
}

fn for_people(listing: &HotListing, width: usize) -> Vec<String> {
    let is_size = listing.by == "size";
    let mut columns = vec![text("POOL"), text("SERVER")];
    columns.extend((!is_size).then(|| number("SHARE")));
    columns.push(number(&listing.by.to_uppercase()));
    let is_any_kept = listing.keys.iter().any(|key| !key.kept.is_empty());
    columns.extend(is_any_kept.then(|| text("KEPT BY")));
    columns.push(text("KEY"));
    let weight = |weight| match listing.unit.as_str() {
        "bytes" => bytes(weight),
        "us" => micros(Some(weight)),
        _ => count(Some(weight)),
    };
    let row = |key: &HotRecord| {
        let mut row: Vec<Cell> = vec![key.pool.as_str().into(), key.server.as_str().into()];
        row.extend((!is_size).then(|| Cell::from(percent(key.share_percent))));
        row.push(weight(key.weight).into());
        row.extend(is_any_kept.then(|| Cell::from(key.kept.as_str())));
        row.push(key.key.as_str().into());
        row
    };
    lines(&table(&columns, listing.keys.iter().map(row).collect(), width))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{share:.1}%"))
}

/// A line for each pool that has a hot key. The listing has one key of each pool.
pub(crate) fn summary(listing: &HotListing) -> Vec<String> {
    let is_hot = |key: &&HotRecord| key.share_percent.is_some_and(|share| share > HOT_MIN);
    let line = |key: &HotRecord| {
        let share = percent(key.share_percent);
        // Names come from a file.
        Cell::from(format!("pool {}: {share} of requests are for key {}", key.pool, key.key)).text
    };
    listing.keys.iter().filter(is_hot).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(by: &str, unit: &str) -> HotListing {
        let key = |key: &str, share, weight| HotRecord {
            pool: "alpha".into(),
            server: "one".into(),
            key: key.into(),
            share_percent: share,
            weight,
            ..HotRecord::default()
        };
        let keys = vec![key("user:1", Some(31.25), 123_456), key(&"k".repeat(90), Some(4.0), 2)];
        HotListing { by: by.into(), unit: unit.into(), keys }
    }

    #[test]
    fn keys_have_shares_within_80_columns() {
        let shown = for_people(&listing("requests", "requests"), 80);
        assert_eq!(shown[0], "POOL  SERVER SHARE REQUESTS KEY");
        assert_eq!(shown[1], "alpha one    31.2%   123.5k user:1");
        assert!(shown[2].ends_with('~') && shown.iter().all(|line| line.len() <= 80));
        let size = for_people(&listing("size", "bytes"), usize::MAX);
        assert_eq!(size[..2], ["POOL  SERVER     SIZE KEY", "alpha one    120.6KiB user:1"]);
        assert!(size[2].ends_with(&"k".repeat(90)));
        let time = for_people(&listing("time", "us"), 80);
        assert_eq!(time[1], "alpha one    31.2% 123ms user:1");
    }

    #[test]
    fn keys_that_are_kept_are_told() {
        let mut listing = listing("requests", "requests");
        listing.keys[0].kept = "rule".into();
        let shown = for_people(&listing, 80);
        assert_eq!(shown[0], "POOL  SERVER SHARE REQUESTS KEPT BY KEY");
        assert_eq!(shown[1], "alpha one    31.2%   123.5k rule    user:1");
    }

    #[test]
    fn keys_are_read_as_they_are_shown() {
        let bytes = b"a \\ \" \n\r\t\x07\x08 \x1b\xc3\xa4\0";
        let text = br#"a \\ \" \n\r\t\a\b \x1b\xc3\xa4\x00"#;
        assert_eq!(unescaped(text).as_deref(), Some(&bytes[..]));
        for bad in [&br"a\"[..], br"\q", br"\x0", br"\xzz"] {
            assert_eq!(unescaped(bad), None);
        }
    }

    #[test]
    fn a_summary_names_what_is_hot() {
        let lines = summary(&listing("requests", "requests"));
        assert_eq!(lines, ["pool alpha: 31.2% of requests are for key user:1"]);
    }
}
