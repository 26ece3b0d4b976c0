//! Tables and numbers as text for a given width.

use std::io::{self, IsTerminal};

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthStr;

/// How a cell is to be seen. Where there is no colour its words have to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Head,
    Good,
    Doubtful,
    Bad,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: clean(&text.into()), tone }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::new(text, Tone::Plain)
    }
}

/// Names come from files and keys from clients: they must not steer the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) is_number: bool,
}

pub(crate) fn text(name: &str) -> Column {
    Column { name: clean(name), is_number: false }
}

pub(crate) fn number(name: &str) -> Column {
    Column { name: clean(name), is_number: true }
}

/// A text column keeps at least so much where there is not room for all.
const WIDTH_MIN: usize = 6;

/// The head and the rows, each cell as wide as its column. Where that is too wide, the widest columns of text
/// get less, and what is still too much is cut off on the right.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<Cell>>, width: usize) -> Vec<Vec<Cell>> {
    let head = columns.iter().map(|column| Cell { text: column.name.clone(), tone: Tone::Head });
    let mut all = vec![head.collect::<Vec<_>>()];
    all.extend(rows);
    let mut widths = vec![0; columns.len()];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = wide(&cell.text).max(*width);
        }
    }
    let gaps = columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let texts =
            (0..columns.len()).filter(|&at| !columns[at].is_number && widths[at] > WIDTH_MIN);
        let Some(widest) = texts.max_by_key(|&at| widths[at]) else { break };
        widths[widest] -= 1;
    }
    for row in &mut all {
        let last = row.len().saturating_sub(1);
        for (at, cell) in row.iter_mut().enumerate() {
            let room = widths.get(at).copied().unwrap_or(0);
            cell.text = fit(&cell.text, room, columns[at].is_number);
            if at < last {
                cell.text.push(' ');
            }
        }
    }
    all
}

/// As lines without colours.
pub(crate) fn lines(rows: &[Vec<Cell>]) -> Vec<String> {
    let line = |cells: &Vec<Cell>| {
        let text: String = cells.iter().map(|cell| cell.text.as_str()).collect();
        text.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Columns of the reader: of the terminal unless `COLUMNS` says otherwise. Files have room for all.
pub(crate) fn room() -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let of_terminal = || match io::stdout().is_terminal() {
        true => terminal_size().map_or(80, |(columns, _)| columns.into()),
        false => usize::MAX,
    };
    columns.unwrap_or_else(of_terminal).max(40)
}

/// Columns and rows of the terminal at standard output, if there is one that tells.
pub(crate) fn terminal_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// The columns that the text takes.
pub(crate) fn wide(text: &str) -> usize {
    text.width()
}

/// Cut off or filled up to the width.
fn fit(text: &str, width: usize, to_the_right: bool) -> String {
    let mut shown = cut(text, width);
    let fill = " ".repeat(width.saturating_sub(wide(&shown)));
    match to_the_right {
        true => shown.insert_str(0, &fill),
        false => shown += &fill,
    }
    shown
}

/// What is cut off is told by a `~`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if wide(text) <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for char in text.chars() {
        let next = wide(char.encode_utf8(&mut [0; 4]));
        if wide(&shown) + next + 1 > width {
            break;
        }
        shown.push(char);
    }
    if width > 0 {
        shown.push('~');
    }
    shown
}

pub(crate) fn count(number: Option<u64>) -> String {
    let Some(number) = number else { return "-".to_owned() };
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{:.1}k", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", number as f64 / 1e6),
        _ => format!("{:.1}G", number as f64 / 1e9),
    }
}

pub(crate) fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number}B"),
        1024..1_048_576 => format!("{:.1}KiB", number as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1}MiB", number as f64 / 1_048_576.0),
        _ => format!("{:.1}GiB", number as f64 / 1_073_741_824.0),
    }
}

pub(crate) fn micros(us: Option<u64>) -> String {
    let Some(us) = us else { return "-".to_owned() };
    match us {
        0..1000 => format!("{us}us"),
        1000..10_000 => format!("{:.2}ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{:.0}ms", us as f64 / 1e3),
        _ => format!("{:.1}s", us as f64 / 1e6),
    }
}

pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}min", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The newest values as a row of bars, of which the highest is the largest. Nothing where there was nothing.
pub(crate) fn bars(values: &[Option<u64>], width: usize, has_blocks: bool) -> String {
    let levels: &[char] = match has_blocks {
        true => &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        false => &['_', '.', '-', '=', '+', '*', '#', '@'],
    };
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().flatten().copied().max().unwrap_or(0).max(1);
    let bar = |value: &Option<u64>| match value {
        Some(value) => levels[((value * (levels.len() as u64 - 1)).div_ceil(most)) as usize],
        None => ' ',
    };
    let fill = std::iter::repeat_n(' ', width - shown.len());
    fill.chain(shown.iter().map(bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(rows: &[Vec<Cell>]) -> Vec<String> {
        rows.iter().map(|row| row.iter().map(|cell| cell.text.as_str()).collect()).collect()
    }

    #[test]
    fn tables_fit() {
        let columns = [text("SERVER"), number("REQ/S"), text("STATE")];
        let rows = || vec![vec!["one".into(), "12".into(), "out: Connection refused".into()]];
        let wide = table(&columns, rows(), 80);
        assert_eq!(shown(&wide)[0], format!("{:<6} REQ/S {:<23}", "SERVER", "STATE"));
        assert_eq!(shown(&wide)[1], "one       12 out: Connection refused");
        let narrow = shown(&table(&columns, rows(), 25));
        assert_eq!(narrow[1], "one       12 out: Connec~");
        assert!(narrow.iter().all(|line| line.len() == 25));
    }

    #[test]
    fn text_steers_no_terminal() {
        assert_eq!(Cell::from("a\x1b[2Jb\n").text, "a?[2Jb?");
    }

    #[test]
    fn numbers_are_short() {
        let counts = [0, 9999, 10_000, 1_234_567, 5_000_000_000].map(|n| count(Some(n)));
        assert_eq!(counts, ["0", "9999", "10.0k", "1.2M", "5.0G"]);
        assert_eq!(
            [999, 1500, 25_000, 2_000_000].map(|us| micros(Some(us))),
            ["999us", "1.50ms", "25ms", "2.0s"]
        );
        assert_eq!([5, 2048, 3 << 20].map(bytes), ["5B", "2.0KiB", "3.0MiB"]);
        assert_eq!([119, 120, 7200, 172_800].map(span), ["119s", "2min", "2h", "2d"]);
        assert_eq!((count(None), micros(None)), ("-".to_owned(), "-".to_owned()));
    }

    #[test]
    fn bars_are_of_the_newest_values() {
        let values = [Some(100), None, Some(0), Some(4), Some(8)];
        assert_eq!(bars(&values, 4, true), " ▁▅█");
        assert_eq!(bars(&values[2..], 5, false), "  _+@");
        assert_eq!(bars(&[], 3, true), "   ");
        assert_eq!(bars(&[Some(0)], 1, false), "_");
    }
}
