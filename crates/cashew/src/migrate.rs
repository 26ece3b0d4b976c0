//! `cashew migrate`: what operators do about moves of pools, and how these go.

use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use cashew_migration::MoveStatus;
use cashew_supervisor::{Command, MoveAction};

use crate::arguments::{MigrateAction, MigrateArguments};
use crate::operate::{self, ask, finish};

const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long it may take until it is told that a comparison has begun.
const BEGIN_MAX: Duration = Duration::from_secs(5);
/// Characters of a bar.
const BAR_SIZE: u64 = 30;

pub(crate) fn migrate(arguments: &MigrateArguments) -> ExitCode {
    let action = match arguments.action {
        MigrateAction::Status => return finish(status(arguments)),
        MigrateAction::Start => MoveAction::Start,
        MigrateAction::Pause => MoveAction::Pause,
        MigrateAction::Resume => MoveAction::Resume,
        MigrateAction::Verify => return finish(verify(arguments)),
        MigrateAction::CutOver => MoveAction::CutOver,
        MigrateAction::RollBack => MoveAction::RollBack,
        MigrateAction::Keys => return finish(crate::migrate_keys::move_keys(arguments)),
    };
    finish(order(arguments, action))
}

fn order(arguments: &MigrateArguments, action: MoveAction) -> Result<(), String> {
    let (route, overwrite) = (arguments.route.clone(), arguments.overwrite);
    let ignore_misplaced = arguments.ignore_misplaced;
    let evicting_target = arguments.evicting_target;
    let command = Command::Migrate { action, route, overwrite, ignore_misplaced, evicting_target };
    ask(&arguments.instance, &command, |_| {})
}

/// Those that are asked for.
fn moves(arguments: &MigrateArguments) -> Result<Vec<MoveStatus>, String> {
    let status = operate::status_if_running(&arguments.instance).map_err(|why| why.to_string())?;
    let mut moves = status.moves;
    if let Some(route) = &arguments.route {
        moves.retain(|it| it.route == *route);
    }
    match moves.is_empty() {
        true => {
            Err("no route moves a pool: give its `migrate` node a `directory`, and reload".into())
        }
        false => Ok(moves),
    }
}

fn status(arguments: &MigrateArguments) -> Result<(), String> {
    loop {
        let moves = moves(arguments)?;
        if arguments.json {
            let text = serde_json::to_string(&moves).expect("a status is plain JSON");
            say(&text)?;
        } else {
            moves.iter().try_for_each(|it| say(&describe(it)))?;
        }
        let is_busy =
            |it: &MoveStatus| matches!(&*it.state, "connecting" | "copying" | "comparing");
        if !arguments.watch || !moves.iter().any(is_busy) {
            return Ok(());
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Compares, and waits for what comes of it.
fn verify(arguments: &MigrateArguments) -> Result<(), String> {
    let before = moves(arguments)?;
    order(arguments, MoveAction::Verify)?;
    let began = Instant::now();
    let mut has_begun = false;
    loop {
        let moves = moves(arguments)?;
        let is_comparing = moves.iter().any(|it| it.state == "comparing");
        has_begun |= is_comparing;
        if !is_comparing && (has_begun || began.elapsed() >= BEGIN_MAX) {
            moves.iter().try_for_each(|it| say(&describe(it)))?;
            return judge(&before, &moves);
        }
        thread::sleep(LOOK_INTERVAL / 10);
    }
}

/// What has come of a comparison of all these moves.
fn judge(before: &[MoveStatus], after: &[MoveStatus]) -> Result<(), String> {
    let mut found = 0;
    for it in after {
        let was = before.iter().find(|was| was.directory == it.directory);
        // Whoever begins anew counts anew, and what was found before is not known any more.
        let was = was.filter(|was| was.counted_since == it.counted_since && it.state == "in step");
        let was = was.ok_or("the comparison was interrupted: say it again when all is in step")?;
        found += it.mismatches.saturating_sub(was.mismatches);
    }
    match found {
        0 => Ok(()),
        1 => Err("1 key differed, and was copied again; `cashew events` tells which".into()),
        _ => Err(format!(
            "{found} keys differed, and were copied again; `cashew events` tells which"
        )),
    }
}

/// The reader may be gone, as with `head`.
pub(crate) fn say(text: &str) -> Result<(), String> {
    writeln!(io::stdout(), "{text}").map_err(|error| error.to_string())
}

/// One move in one line, and what is wrong with it in more.
pub(crate) fn describe(it: &MoveStatus) -> String {
    let serves = if it.is_cut_over { ", cut over" } else { "" };
    let mut text = format!("{}: {} -> {}{serves}: {}", it.route, it.from, it.to, it.state);
    if it.state == "copying" || it.state == "paused" {
        let done = (it.keys_walked * BAR_SIZE).checked_div(it.keys).unwrap_or(0).min(BAR_SIZE);
        let percent = (it.keys_walked * 100).checked_div(it.keys).unwrap_or(0).min(100);
        let bar: String = (0..BAR_SIZE).map(|at| if at < done { '#' } else { '.' }).collect();
        text += &format!(" [{bar}] {percent}% of {} keys", it.keys);
        if let Some(eta_s) = it.eta_s {
            text += &format!(", {eta_s} s left");
        }
    }
    text += &format!(
        ", {} keys/s, {} behind, lag {} ms, {} copied, {} removed",
        it.keys_per_second, it.keys_behind, it.lag_ms, it.keys_copied, it.keys_removed
    );
    text += &format!(", {} compared, {} mismatches", it.keys_compared, it.mismatches);
    if it.keys_refused > 0 {
        text +=
            &format!("\n  {} keys cannot be copied: `cashew events` tells which", it.keys_refused);
    }
    if it.keys_misplaced > 0 {
        text += &format!(
            "\n  {} keys are not where their names place them, and are not copied",
            it.keys_misplaced
        );
    }
    if let Some(why) = &it.last_error {
        text += &format!("\n  {} errors, the last one: {why}", it.errors);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_that_the_copier_began_anew_in_is_no_result() {
        let status = |mismatches, counted_since| MoveStatus {
            directory: "/run/move".into(),
            state: "in step".into(),
            mismatches,
            counted_since,
            ..MoveStatus::default()
        };
        assert_eq!(judge(&[status(3, 1)], &[status(3, 1)]), Ok(()));
        assert!(
            judge(&[status(3, 1)], &[status(5, 1)]).unwrap_err().starts_with("2 keys differed")
        );
        // It counts from 0, or is at the same number again.
        for mismatches in [0, 3] {
            let why = judge(&[status(3, 1)], &[status(mismatches, 2)]).unwrap_err();
            assert!(why.starts_with("the comparison was interrupted"), "{why}");
        }
        let copying = MoveStatus { state: "copying".into(), ..status(3, 1) };
        assert!(judge(&[status(3, 1)], &[copying]).is_err());
    }

    #[test]
    fn a_move_is_one_line() {
        let status = MoveStatus {
            route: "main".into(),
            from: "old".into(),
            to: "new".into(),
            state: "copying".into(),
            keys: 200,
            keys_walked: 50,
            eta_s: Some(3),
            keys_per_second: 50,
            ..MoveStatus::default()
        };
        let line = "main: old -> new: copying [#######.......................] 25% of 200 keys, 3 s left, 50 keys/s, \
                    0 behind, lag 0 ms, 0 copied, 0 removed, 0 compared, 0 mismatches";
        assert_eq!(describe(&status), line);
        let nothing = MoveStatus { keys: 0, keys_walked: 0, ..status };
        assert!(describe(&nothing).contains("0% of 0 keys"));
    }
}
