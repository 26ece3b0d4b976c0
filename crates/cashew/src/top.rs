//! `cashew top`: what the running instance does, in a terminal.

mod app;
mod feed;
mod keys;
mod line;
mod state;
mod terminal;
mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::app::App;
use self::feed::Feed;
use self::terminal::Screen;
use self::view::Palette;
use crate::arguments::InstanceArguments;
use crate::output::print_line;
use crate::stats_port::address;

/// How often keys and news are looked for.
const TICK: Duration = Duration::from_millis(100);
/// Columns of a frame for scripts, unless `COLUMNS` says otherwise.
const ONCE_WIDTH: u16 = 120;

pub(crate) fn top(instance: &InstanceArguments, url: Option<&str>, once: bool) -> ExitCode {
    let done = address(instance, url).and_then(|address| match once {
        true => print_once(&address),
        false => watch(address),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_line(format_args!("cashew: {why}"));
            ExitCode::FAILURE
        }
    }
}

fn print_once(address: &str) -> Result<(), String> {
    let state = feed::state(address)?;
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let lines = view::whole(&state, columns.unwrap_or(ONCE_WIDTH).max(40));
    let mut text = lines.join("\n");
    text.push('\n');
    // The reader may be gone, as with `head`.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn watch(address: String) -> Result<(), String> {
    let term = std::env::var("TERM").unwrap_or_default();
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || term == "dumb" {
        return Err("this is no terminal to draw on; --once prints a frame".to_owned());
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|error| format!("signals cannot be taken: {error}"))?;
    }
    end_at_last(Arc::clone(&ended));
    let failed = |error: io::Error| format!("the terminal: {error}");
    let mut screen = Screen::start().map_err(failed)?;
    let feed = Feed::start(address);
    let mut app = App::new(Palette::of_environment());
    run(&mut app, &feed, &mut screen, &ended).map_err(failed)
}

/// Ends the process if it has not ended within a second after a signal: writing to a terminal that has stopped takes
/// for ever.
fn end_at_last(ended: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        while !ended.load(Relaxed) {
            std::thread::sleep(TICK);
        }
        std::thread::sleep(Duration::from_secs(1));
        terminal::restore();
        std::process::exit(1);
    });
}

fn run(app: &mut App, feed: &Feed, screen: &mut Screen, ended: &AtomicBool) -> io::Result<()> {
    let mut is_stale = true;
    while !ended.load(Relaxed) {
        for news in feed.news() {
            app.take(news);
            is_stale = true;
        }
        if screen.is_resized() || is_stale {
            let (width, height) = screen.size();
            screen.draw(view::draw(app, width, height))?;
            is_stale = false;
        }
        for key in screen.keys(TICK)? {
            if app.press(key, screen.size().1).is_break() {
                return Ok(());
            }
            is_stale = true;
        }
        if is_stale {
            feed.want(app.wanted());
        }
    }
    Ok(())
}
