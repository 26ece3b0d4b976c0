//! The terminal while it is drawn on: raw, on its second screen, without a cursor.

use std::io::{self, Write, stdin, stdout};
use std::panic;
use std::sync::Mutex;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use super::keys::{Key, Typed};
use crate::layout::terminal_size;

/// To the second screen, without a cursor, and without going on in the next row where a line is too long.
const START: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// How the terminal was before.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal is as before once it is dropped.
pub(super) struct Screen {
    typed: Typed,
    /// What it shows, by rows.
    shown: Vec<String>,
    size: (u16, u16),
}

impl Screen {
    pub(super) fn start() -> io::Result<Self> {
        // A panic is to be read. In a release nothing is dropped after it.
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let screen = Self { typed: Typed::default(), shown: Vec::new(), size: size() };
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(before);
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        write(START)?;
        Ok(screen)
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (u16, u16) {
        self.size
    }

    /// Whether the size is another than before: all has to be drawn anew.
    pub(super) fn is_resized(&mut self) -> bool {
        let before = std::mem::replace(&mut self.size, size());
        let is_resized = before != self.size;
        if is_resized {
            self.shown.clear();
        }
        is_resized
    }

    /// Writes the rows that are others than before. Each has sequences for its colours, and is as wide as the screen.
    pub(super) fn draw(&mut self, rows: Vec<String>) -> io::Result<()> {
        write(&changes(&self.shown, &rows))?;
        self.shown = rows;
        Ok(())
    }

    /// Waits for keys, at most for so long.
    pub(super) fn keys(&mut self, timeout: Duration) -> io::Result<Vec<Key>> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let stdin = stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            // What was begun does not go on.
            Ok(0) => return Ok(self.typed.keys(true)),
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            done => done?,
        };
        let mut bytes = [0; 256];
        match rustix::io::read(&stdin, &mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => {
                self.typed.add(&bytes[..len]);
                Ok(self.typed.keys(false))
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// As far as it can be: the terminal may be gone.
pub(super) fn restore() {
    let before = BEFORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    if let Some(before) = before {
        let _ = write(END);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &before);
    }
}

fn size() -> (u16, u16) {
    terminal_size().unwrap_or((80, 24))
}

fn write(text: &str) -> io::Result<()> {
    let mut output = stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

/// What makes `rows` of what is `shown`.
fn changes(shown: &[String], rows: &[String]) -> String {
    let mut text = String::new();
    if shown.len() != rows.len() {
        text += "\x1b[0m\x1b[2J";
    }
    for (at, row) in rows.iter().enumerate() {
        if shown.len() != rows.len() || shown[at] != *row {
            text += &format!("\x1b[{};1H{row}", at + 1);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&str]) -> Vec<String> {
        rows.iter().map(|row| (*row).to_owned()).collect()
    }

    #[test]
    fn only_what_has_changed_is_drawn() {
        let all = changes(&[], &rows(&["one", "two"]));
        assert_eq!(all, "\x1b[0m\x1b[2J\x1b[1;1Hone\x1b[2;1Htwo");
        assert_eq!(changes(&rows(&["one", "two"]), &rows(&["one", "2"])), "\x1b[2;1H2");
        assert_eq!(changes(&rows(&["one"]), &rows(&["one"])), "");
    }
}
