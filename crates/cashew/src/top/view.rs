//! What is drawn, as lines: the same for a terminal and for scripts.

use std::env;

use chrono::{DateTime, Local};
use serde_json::Value;

use super::app::App;
use super::line::Line;
use super::state::{History, Now, Pool, Section, Server, State, Worker};
use crate::layout::{
    Cell, Column, Tone, bars, bytes, count, lines, micros, number, span, table, text, wide,
};

const KEYS: &str = "jk, arrows: select  Enter: servers  Esc: back  ?: help  q: quit  s: by";

const HELP: &str = "\
Up Down j k        select a row
PageUp PageDown    several rows
Home End           the first, the last
Enter, Right       the servers of the pool
Esc, Left          back to the pools
s                  sort by requests, errors, p99, state, or as the file has it
?                  this help
q, Ctrl-C          quit

REQ/S, ERR/S       of the last two seconds
P50 P99 P99.9      latencies of the last ten seconds
STATE              well, trial, suspect, out, untried: see docs/operations.md
Bars               a column for five seconds, the newest on the right

Any key goes back.";

const MARGIN: &str = "  ";
/// The margin of what is selected.
const MARK: &str = "> ";

/// Rows of a section that leave room for others.
const SECTION_ROWS: usize = 6;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Palette {
    pub(super) has_colours: bool,
    /// Characters that look like bars.
    pub(super) has_blocks: bool,
}

impl Palette {
    pub(super) fn of_environment() -> Self {
        let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
        Self::of(variable("NO_COLOR").is_some(), variable("TERM"), locale)
    }

    fn of(refuses_colours: bool, term: Option<String>, locale: Option<String>) -> Self {
        let term = term.unwrap_or_default();
        let is_plain = term.is_empty()
            || term.starts_with("vt")
            || term.ends_with("-m")
            || term.ends_with("-mono");
        let locale = locale.unwrap_or_default().to_lowercase();
        let is_unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self { has_colours: !refuses_colours && !is_plain, has_blocks: is_unicode }
    }

    /// Numbers of ECMA-48's "select graphic rendition"; empty for plain text.
    pub(super) fn style(self, tone: Tone) -> &'static str {
        match (tone, self.has_colours) {
            (Tone::Plain, _) | (Tone::Good | Tone::Doubtful, false) => "",
            (Tone::Head, _) | (Tone::Bad, false) => "1",
            (Tone::Good, true) => "32",
            (Tone::Doubtful, true) => "33",
            (Tone::Bad, true) => "1;31",
        }
    }
}

/// A part of the screen.
struct Block {
    /// The first one is a head that stays where the rest is scrolled.
    lines: Vec<Vec<Cell>>,
    /// Its rows stand behind a margin, in which the selected one has a mark.
    is_table: bool,
    selected: Option<usize>,
}

impl Block {
    fn text(lines: Vec<Vec<Cell>>) -> Self {
        Self { lines, is_table: false, selected: None }
    }

    fn table(lines: Vec<Vec<Cell>>) -> Self {
        Self { lines, is_table: true, selected: None }
    }

    /// At most that many lines, with the selected one among them.
    fn window(&self, height: usize) -> impl Iterator<Item = (usize, &Vec<Cell>)> {
        let rows = height.saturating_sub(1);
        let from = match self.selected {
            Some(at) if at >= rows => at + 1 - rows,
            _ => 0,
        };
        let head = self.lines.iter().take(height.min(1));
        let rest = self.lines.iter().skip(1 + from).take(rows);
        head.map(|line| (usize::MAX, line)).chain((from..).zip(rest))
    }
}

/// The rows of a screen of that size, with their colours.
pub(super) fn draw(app: &App, width: u16, height: u16) -> Vec<String> {
    let width = usize::from(width);
    let lines = screen(app, width, usize::from(height));
    lines.iter().map(|line| line.drawn(app.palette, width)).collect()
}

/// Exactly as many lines as there is room for.
fn screen(app: &App, width: usize, height: usize) -> Vec<Line> {
    let mut lines = head(app);
    let room = height.saturating_sub(lines.len() + 1);
    if app.shows_help {
        lines.extend(HELP.lines().take(room).map(Line::from));
    } else if app.state.is_some() {
        lines.extend(body(app, width, room));
    }
    lines.resize(height.saturating_sub(1), Line::default());
    let mut footer = Line::from(&*format!("{KEYS} {}", app.sort.name()));
    footer.is_reversed = true;
    lines.push(footer);
    lines.truncate(height);
    lines
}

fn head(app: &App) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(state) = &app.state {
        lines.push(styled(&about(state), ""));
        lines.extend(reload(state).map(|line| styled(&line, "")));
    }
    if let Some((since, why)) = &app.failed {
        let text = format!("no answer for {}: {why}", span(since.elapsed().as_secs()));
        lines.push(styled(&[Cell::new(text, Tone::Bad)], ""));
    } else if app.state.is_none() {
        lines.push(Line::from("waiting for the statistics"));
    }
    lines
}

fn about(state: &State) -> Vec<Cell> {
    let title = format!("cashew {} on {}", state.version, state.host);
    let text =
        format!(", up {}, epoch {}, {}", span(state.uptime_s), state.epoch, time(state.at * 1000));
    vec![Cell::new(title, Tone::Head), text.into()]
}

/// The last reload, where it failed.
fn reload(state: &State) -> Option<Vec<Cell>> {
    let reloads = &state.reloads;
    let at = reloads.last_at.filter(|_| reloads.last_result.as_deref() == Some("failed"))?;
    let why = reloads.last_failure.clone().unwrap_or_default();
    let ago = span(state.at.saturating_sub(at));
    Some(vec![Cell::new(format!("the last reload failed {ago} ago: {why}"), Tone::Bad)])
}

fn body(app: &App, width: usize, room: usize) -> Vec<Line> {
    let Some(state) = &app.state else { return Vec::new() };
    let inner = width.saturating_sub(MARGIN.len());
    let mut main = match app.pool_inside() {
        None => Block::table(pools(&app.pools(), inner)),
        Some(_) => Block::table(servers(&app.servers(), state.at, inner)),
    };
    main.selected = (main.lines.len() > 1).then(|| app.selected());
    let mut blocks = vec![];
    match app.pool_inside() {
        Some(pool) => {
            if let Some(server) = app.servers().get(app.selected()) {
                blocks.push(Block::text(detail(server, state.at)));
            }
            blocks.push(Block::text(graph(app, inner)));
            blocks.push(Block::text(vec![pool_line(pool)]));
        }
        None => {
            let troubles = troubles(state, inner);
            if troubles.len() > 1 {
                blocks.push(Block::table(troubles));
            }
            blocks.push(Block::text(graph(app, inner)));
            blocks.push(Block::table(workers(&state.workers, inner)));
            blocks.extend(
                state.sections.iter().map(|it| Block::table(section(it, inner, SECTION_ROWS))),
            );
        }
    }
    let wanted: usize = blocks.iter().map(|block| 1 + block.lines.len()).sum();
    let first = main.lines.len().min(room.saturating_sub(wanted).max(room / 2).max(3));
    let mut lines = Vec::new();
    for (at, line) in main.window(first) {
        let mark = if Some(at) == main.selected { MARK } else { MARGIN };
        lines.push(styled(line, mark));
    }
    for block in blocks {
        let left = room.saturating_sub(lines.len() + 1);
        if left < 2.min(block.lines.len()) || left == 0 {
            break;
        }
        lines.push(Line::default());
        let margin = if block.is_table { MARGIN } else { "" };
        let shown = block.window(left).map(|(_, line)| styled(line, margin));
        lines.extend(shown);
    }
    lines
}

/// Behind a margin. The line with the mark is reversed, too.
fn styled(cells: &[Cell], margin: &str) -> Line {
    let mut line = Line::from(margin);
    for cell in cells {
        line.push(cell.text.clone(), cell.tone);
    }
    line.is_reversed = margin == MARK;
    line
}

/// One frame with everything in it, for scripts.
pub(super) fn whole(state: &State, width: u16) -> Vec<String> {
    let width = usize::from(width);
    let mut parts = vec![[Some(about(state)), reload(state)].into_iter().flatten().collect()];
    parts.push(pools(&state.pools.iter().collect::<Vec<_>>(), width));
    for pool in state.pools.iter().filter(|pool| !pool.servers.is_empty()) {
        let mut part = vec![pool_line(pool)];
        part.extend(servers(&pool.servers.iter().collect::<Vec<_>>(), state.at, width));
        parts.push(part);
    }
    parts.push(workers(&state.workers, width));
    parts.extend(state.sections.iter().map(|it| section(it, width, usize::MAX)));
    let parts: Vec<String> = parts.iter().map(|part| lines(part).join("\n")).collect();
    parts.join("\n\n").lines().map(str::to_owned).collect()
}

fn pools(pools: &[&Pool], width: usize) -> Vec<Vec<Cell>> {
    let columns = [
        text("POOL"),
        number("REQ/S"),
        number("ERR/S"),
        number("P50"),
        number("P99"),
        number("P99.9"),
        number("CLIENTS"),
        text("SERVERS"),
    ];
    let row = |pool: &&Pool| {
        let mut row = vec![pool.name.as_str().into()];
        row.extend(rates(&pool.now));
        row.push(micros(pool.now.p999_us).into());
        row.push(count(Some(pool.clients)).into());
        row.push(up(pool));
        row
    };
    table(&columns, pools.iter().map(row).collect(), width)
}

fn rates(now: &Now) -> [Cell; 4] {
    let tone = if now.errors_per_s.unwrap_or(0) > 0 { Tone::Bad } else { Tone::Plain };
    [
        count(now.requests_per_s).into(),
        Cell::new(count(now.errors_per_s), tone),
        micros(now.p50_us).into(),
        micros(now.p99_us).into(),
    ]
}

fn up(pool: &Pool) -> Cell {
    if !pool.leads_to.is_empty() {
        return format!("those of {}", pool.leads_to.join(", ")).into();
    }
    let (all, up) = (pool.servers.len(), pool.servers.iter().filter(|it| it.up > 0).count());
    let down = pool.servers.iter().filter(|server| server.is_down()).count();
    let mut text = format!("{up} of {all} up");
    if up + down < all {
        text += &format!(", {} untried", all - up - down);
    }
    if down > 0 {
        text += &format!(", {down} DOWN");
    }
    if pool.open > 0 {
        text += ", fails open";
    }
    let tone = if down > 0 || pool.open > 0 { Tone::Bad } else { Tone::Good };
    Cell::new(text, tone)
}

fn servers(servers: &[&Server], at: u64, width: usize) -> Vec<Vec<Cell>> {
    let has_roles = servers.iter().any(|server| !server.role.is_empty());
    let mut columns = vec![text("SERVER")];
    columns.extend(has_roles.then(|| text("ROLE")));
    columns.extend(["STATE", "FOR"].map(text));
    columns.extend(["REQ/S", "ERR/S", "P50", "P99", "QUEUE", "CONNS"].map(number));
    columns.push(text("ADDRESS"));
    let row = |server: &&Server| {
        let since = server.since.map_or_else(|| "-".to_owned(), |it| span(at.saturating_sub(it)));
        let mut row = vec![server.name.as_str().into()];
        row.extend(has_roles.then(|| server.role.as_str().into()));
        row.extend([Cell::new(server.condition(), tone(server)), since.into()]);
        row.extend(rates(&server.now));
        row.push(count(Some(server.queue)).into());
        row.push(count(Some(server.connections)).into());
        row.push(server.address.as_str().into());
        row
    };
    table(&columns, servers.iter().map(row).collect(), width)
}

fn tone(server: &Server) -> Tone {
    match server.state.as_str() {
        "well" => Tone::Good,
        "trial" | "suspect" => Tone::Doubtful,
        "out" => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// The selected server in full.
fn detail(server: &Server, at: u64) -> Vec<Vec<Cell>> {
    let condition = Cell::new(server.condition(), tone(server));
    let mut lines = vec![vec![
        Cell::new(format!("{} at {}: ", server.name, server.address), Tone::Head),
        condition,
    ]];
    if let (Some(error), Some(then)) = (&server.last_error, server.last_error_at) {
        let text = format!("last error {} ago: {error}", span(at.saturating_sub(then)));
        lines.push(vec![text.into()]);
    }
    lines
}

fn pool_line(pool: &Pool) -> Vec<Cell> {
    let text = format!(" ({}) at {}, {} clients, ", pool.protocol, pool.listen, pool.clients);
    let cells = [Cell::new(format!("pool {}", pool.name), Tone::Head), text.into(), up(pool)];
    // It is no row of a table.
    vec![cells[0].clone(), Cell::from(format!("{}{}", cells[1].text, cells[2].text))]
}

/// Servers that are not well, of all pools.
fn troubles(state: &State, width: usize) -> Vec<Vec<Cell>> {
    let columns = [text("NOT WELL"), text("ROLE"), text("STATE"), text("FOR"), text("ADDRESS")];
    let all = state.pools.iter().flat_map(|pool| pool.servers.iter().map(move |it| (pool, it)));
    let rows = all.filter(|(_, server)| server.is_down()).map(|(pool, server)| {
        let since =
            server.since.map_or_else(|| "-".to_owned(), |it| span(state.at.saturating_sub(it)));
        vec![
            format!("{}/{}", pool.name, server.name).into(),
            server.role.as_str().into(),
            Cell::new(server.condition(), tone(server)),
            since.into(),
            server.address.as_str().into(),
        ]
    });
    table(&columns, rows.collect(), width)
}

fn workers(workers: &[Worker], width: usize) -> Vec<Vec<Cell>> {
    let columns = ["WORKER", "PROCESS", "BUSY", "CLIENTS", "BUFFERED", "HEARTBEAT", "CAME", "WENT"]
        .map(number);
    let row = |worker: &Worker| {
        let (beat, tone) = match worker.heartbeat_age_ms {
            Some(age) if age > 1000 => (format!("{age}ms OLD"), Tone::Bad),
            Some(age) => (format!("{age}ms"), Tone::Plain),
            None => ("none yet".to_owned(), Tone::Doubtful),
        };
        vec![
            worker.slot.to_string().into(),
            worker.pid.to_string().into(),
            format!("{}%", (worker.busy_permille + 5) / 10).into(),
            count(Some(worker.clients)).into(),
            bytes(worker.buffered_bytes).into(),
            Cell::new(beat, tone),
            count(Some(worker.sessions_in)).into(),
            count(Some(worker.sessions_out)).into(),
        ]
    };
    table(&columns, workers.iter().map(row).collect(), width)
}

/// Latencies and requests of what is selected, a bar for five seconds.
fn graph(app: &App, width: usize) -> Vec<Vec<Cell>> {
    let Some((Some((pool, server)), history)) = &app.history else {
        return vec![vec![Cell::new("no history yet", Tone::Head)]];
    };
    let name = server.as_ref().map_or_else(|| pool.clone(), |server| format!("{pool}/{server}"));
    let rate =
        |(requests, span): (&u64, &u64)| Some((requests * 1000).checked_div(*span).unwrap_or(0));
    let History { requests, span_ms, p50_us, p99_us } = history;
    let rates: Vec<_> = requests.iter().zip(span_ms).map(rate).collect();
    let row = |label: &str, values: &[Option<u64>], show: fn(Option<u64>) -> String| {
        let most = show(values.iter().flatten().copied().max());
        let last = show(values.last().copied().flatten());
        let label = format!("{label:<5} {last:>8}, max {most:>8} ");
        let room = width.saturating_sub(label.len());
        vec![Cell::from(label), Cell::from(bars(values, room, app.palette.has_blocks))]
    };
    vec![
        vec![Cell::new(format!("{name}, the last minutes"), Tone::Head)],
        row("p50", p50_us, micros),
        row("p99", p99_us, micros),
        row("req/s", &rates, count),
    ]
}

fn section(section: &Section, width: usize, rows_max: usize) -> Vec<Vec<Cell>> {
    let is_number = |unit: &str| matches!(unit, "us" | "count" | "bytes");
    let column = |(at, column): (usize, &super::state::Column)| -> Column {
        let name = column.name.to_uppercase();
        let name = if at == 0 { format!("{}: {name}", section.name.to_uppercase()) } else { name };
        if is_number(&column.unit) { number(&name) } else { text(&name) }
    };
    let columns: Vec<Column> = section.columns.iter().enumerate().map(column).collect();
    let columns = &columns[..fitting(&columns, width)];
    let cell = |(column, value): (&super::state::Column, &Value)| -> Cell {
        match (column.unit.as_str(), value) {
            (_, Value::Null) => "-".into(),
            ("us", value) => micros(value.as_u64()).into(),
            ("count", value) => count(value.as_u64()).into(),
            ("bytes", value) => bytes(value.as_u64().unwrap_or(0)).into(),
            ("time", value) => time(value.as_u64().unwrap_or(0)).into(),
            (_, Value::String(text)) => text.as_str().into(),
            (_, value) => value.to_string().into(),
        }
    };
    let rows = section.rows.iter().take(rows_max);
    let rows = rows.map(|row| {
        let cells = section.columns.iter().zip(row).map(cell);
        cells.take(columns.len()).collect()
    });
    table(columns, rows.collect(), width)
}

/// How many columns leave each other room enough: more of them would only cut off what comes first.
fn fitting(columns: &[Column], width: usize) -> usize {
    const ROOM: usize = 10;
    const NUMBER: usize = 7;
    let mut used = 0;
    let fits = |column: &&Column| {
        used += if column.is_number { wide(&column.name).max(NUMBER) } else { ROOM } + 1;
        used <= width + 1
    };
    columns.iter().take_while(fits).count().max(1)
}

/// The time of day here.
fn time(unix_ms: u64) -> String {
    let time = DateTime::from_timestamp_millis(unix_ms as i64).unwrap_or_default();
    time.with_timezone(&Local).format("%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::app::tests::{app, state};
    use crate::top::keys::Key;

    fn drawn(app: &App, width: u16, height: u16) -> String {
        let rows = draw(app, width, height);
        assert_eq!(rows.len(), usize::from(height));
        let lines = screen(app, width.into(), height.into());
        let lines: Vec<_> = lines.iter().map(|line| line.text(width.into())).collect();
        lines.join("\n")
    }

    #[test]
    fn the_overview_has_pools_troubles_workers_and_sections() {
        let text = drawn(&app(), 80, 24);
        for part in [
            "cashew 1.2.3 on gw1, up 100s",
            "reload failed 10s ago: no",
            "> alpha",
            "1 of 2 up, 1 DOWN",
            "alpha/two",
            "out: Connection refused",
            "26%",
            "2.0KiB",
            "SLOW: TOOK",
            "GET x?[2J",
            "q: quit",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(text.lines().all(|line| wide(line) == 80));
    }

    #[test]
    fn of_a_wide_section_what_comes_first_is_shown() {
        let columns: Vec<Column> = ["SLOW: TIME", "SERVER", "CLIENT", "COMMAND"].map(text).to_vec();
        assert_eq!([60, 43, 42, 9].map(|width| fitting(&columns, width)), [4, 4, 3, 1]);
        let columns = [number("A"), number("B"), number("QUEUE TIME")];
        assert_eq!([26, 25].map(|width| fitting(&columns, width)), [3, 2]);
    }

    #[test]
    fn a_pool_has_its_servers_with_role_and_state() {
        let mut app = app();
        let _ = app.press(Key::Enter, 24);
        let _ = app.press(Key::Down, 24);
        let text = drawn(&app, 80, 24);
        for part in [
            "primary",
            "replica",
            "> two",
            "well",
            "two at 10.0.0.2:6379: out: Connection refused",
            "last error 1s ago",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let _ = app.press(Key::Char('?'), 24);
        assert!(drawn(&app, 80, 24).contains("Any key goes back."));
    }

    #[test]
    fn any_size_is_drawn_on() {
        let mut app = app();
        for inside in [false, true] {
            if inside {
                let _ = app.press(Key::Enter, 24);
            }
            for (width, height) in [(1, 1), (3, 2), (10, 4), (40, 10), (200, 60)] {
                drawn(&app, width, height);
            }
        }
        let mut fresh = App::new(app.palette);
        assert!(drawn(&fresh, 80, 5).contains("waiting"));
        fresh.take(Err("refused".into()));
        assert!(drawn(&fresh, 80, 5).contains("no answer for 0s: refused"));
    }

    #[test]
    fn the_selected_row_is_always_seen() {
        let mut state = state();
        let server = state.pools[0].servers[0].clone();
        state.pools[0].servers =
            (0..100).map(|at| Server { name: format!("s{at}"), ..server.clone() }).collect();
        let mut app = app();
        app.take(Ok((state, None)));
        let _ = app.press(Key::Enter, 24);
        for _ in 0..70 {
            let _ = app.press(Key::Char('j'), 24);
        }
        let text = drawn(&app, 80, 24);
        assert!(text.contains("> s70 ") && text.contains("SERVER"), "{text}");
    }

    #[test]
    fn a_frame_for_scripts_has_everything() {
        let text = whole(&state(), 120).join("\n");
        for part in [
            "alpha",
            "beta",
            "primary",
            "out: Connection refused",
            "10.0.0.2:6379",
            "GET x?[2J",
            "77",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn colours_are_left_out_where_there_are_none() {
        let of = |refuses, term: &str, locale: &str| {
            Palette::of(refuses, Some(term.to_owned()), Some(locale.to_owned()))
        };
        assert_eq!(
            of(false, "xterm-256color", "C.UTF-8"),
            Palette { has_colours: true, has_blocks: true }
        );
        for (refuses, term) in
            [(true, "xterm"), (false, "vt100"), (false, "xterm-mono"), (false, "")]
        {
            let palette = of(refuses, term, "C");
            assert_eq!(palette, Palette { has_colours: false, has_blocks: false });
            assert_eq!(
                [Tone::Good, Tone::Doubtful, Tone::Bad].map(|it| palette.style(it)),
                ["", "", "1"]
            );
        }
    }
}
