//! The terminal while it is drawn on.

use std::io::{self, Stdout, stdout};
use std::panic;

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

pub(super) type Screen = Terminal<CrosstermBackend<Stdout>>;

/// The terminal is as before once it is dropped.
pub(super) struct Drawing(pub(super) Screen);

impl Drawing {
    pub(super) fn start() -> io::Result<Self> {
        // A panic is to be read. In a release nothing is dropped after it.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let started = start();
        if started.is_err() {
            restore();
        }
        started.map(Self)
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        restore();
    }
}

fn start() -> io::Result<Screen> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)?;
    Terminal::new(CrosstermBackend::new(stdout()))
}

/// As far as it can be: the terminal may be gone.
pub(super) fn restore() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}
