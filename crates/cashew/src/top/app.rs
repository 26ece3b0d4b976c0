//! What is selected and in which order, and what keys do about it.

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::time::Instant;

use super::feed::{News, Wanted};
use super::keys::Key;
use super::state::{History, Now, Pool, Server, State};
use super::view::Palette;

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    File,
    Requests,
    Errors,
    Latency,
    State,
}

impl Sort {
    const ALL: [Self; 5] = [Self::File, Self::Requests, Self::Errors, Self::Latency, Self::State];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "the file",
            Self::Requests => "requests",
            Self::Errors => "errors",
            Self::Latency => "p99",
            Self::State => "state",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The largest first.
    fn key(self, now: &Now, down: usize) -> Reverse<u64> {
        Reverse(match self {
            Self::File => 0,
            Self::Requests => now.requests_per_s.unwrap_or(0),
            Self::Errors => now.errors_per_s.unwrap_or(0),
            Self::Latency => now.p99_us.unwrap_or(0),
            Self::State => down as u64,
        })
    }
}

pub(super) struct App {
    pub(super) palette: Palette,
    pub(super) state: Option<State>,
    pub(super) history: Option<(Wanted, History)>,
    /// Since when the port does not answer, and why.
    pub(super) failed: Option<(Instant, String)>,
    /// The pool whose servers are shown.
    pub(super) inside: Option<String>,
    pub(super) sort: Sort,
    pub(super) shows_help: bool,
    pool: Option<String>,
    server: Option<String>,
}

impl App {
    pub(super) fn new(palette: Palette) -> Self {
        Self {
            palette,
            state: None,
            history: None,
            failed: None,
            inside: None,
            sort: Sort::File,
            shows_help: false,
            pool: None,
            server: None,
        }
    }

    pub(super) fn take(&mut self, news: News) {
        match news {
            Ok((state, history)) => {
                // A reload may have removed it.
                self.inside =
                    self.inside.take().filter(|it| state.pools.iter().any(|pool| &pool.name == it));
                self.state = Some(state);
                self.history = history;
                self.failed = None;
            }
            Err(why) => {
                let since = self.failed.take().map_or_else(Instant::now, |(since, _)| since);
                self.failed = Some((since, why));
            }
        }
    }

    /// In the order shown.
    pub(super) fn pools(&self) -> Vec<&Pool> {
        let mut pools: Vec<&Pool> = self.state.iter().flat_map(|state| &state.pools).collect();
        let down = |pool: &Pool| pool.servers.iter().filter(|server| server.is_down()).count();
        pools.sort_by_key(|pool| self.sort.key(&pool.now, down(pool)));
        pools
    }

    pub(super) fn pool_inside(&self) -> Option<&Pool> {
        let inside = self.inside.as_ref()?;
        self.state.as_ref()?.pools.iter().find(|pool| &pool.name == inside)
    }

    /// Those of the pool whose servers are shown, in the order shown.
    pub(super) fn servers(&self) -> Vec<&Server> {
        let mut servers: Vec<&Server> =
            self.pool_inside().iter().flat_map(|pool| &pool.servers).collect();
        servers.sort_by_key(|server| self.sort.key(&server.now, usize::from(server.is_down())));
        servers
    }

    fn names(&self) -> Vec<&str> {
        match self.inside {
            None => self.pools().into_iter().map(|pool| &*pool.name).collect(),
            Some(_) => self.servers().into_iter().map(|server| &*server.name).collect(),
        }
    }

    /// The selected row. The selection goes with its name wherever that is sorted to.
    pub(super) fn selected(&self) -> usize {
        let name = if self.inside.is_none() { &self.pool } else { &self.server };
        let names = self.names();
        name.as_ref().and_then(|name| names.iter().position(|it| it == name)).unwrap_or(0)
    }

    fn select(&mut self, at: usize) {
        let names = self.names();
        let name = names.get(at.min(names.len().saturating_sub(1))).map(|name| (*name).to_owned());
        match self.inside {
            None => self.pool = name,
            Some(_) => self.server = name,
        }
    }

    /// Whose history is shown.
    pub(super) fn wanted(&self) -> Wanted {
        let names = self.names();
        let name = names.get(self.selected()).map(|name| (*name).to_owned());
        match &self.inside {
            None => name.map(|pool| (pool, None)),
            Some(pool) => Some((pool.clone(), name)),
        }
    }

    pub(super) fn press(&mut self, key: Key, height: u16) -> ControlFlow<()> {
        let at = self.selected();
        let page = usize::from(height / 2).max(1);
        match key {
            Key::Held('c' | 'd') => return ControlFlow::Break(()),
            Key::Char('q') => return ControlFlow::Break(()),
            _ if self.shows_help => self.shows_help = false,
            Key::Char('?' | 'h') => self.shows_help = true,
            Key::Down | Key::Char('j') => self.select(at + 1),
            Key::Up | Key::Char('k') => self.select(at.saturating_sub(1)),
            Key::PageDown => self.select(at + page),
            Key::PageUp => self.select(at.saturating_sub(page)),
            Key::Home => self.select(0),
            Key::End => self.select(usize::MAX),
            Key::Enter | Key::Right => self.enter(),
            Key::Escape | Key::Backspace | Key::Left => self.inside = None,
            Key::Char('s') => {
                // What is selected stays so, in another row.
                self.select(at);
                self.sort = self.sort.next();
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn enter(&mut self) {
        if self.inside.is_none()
            && let Some((pool, None)) = self.wanted()
        {
            self.pool = Some(pool.clone());
            self.inside = Some(pool);
            self.server = None;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::top) fn state() -> State {
        serde_json::from_value(serde_json::json!({
            "version": "1.2.3", "host": "gw1", "at": 1_700_000_000, "uptime_s": 100, "epoch": 3,
            "reloads": {"last_at": 1_699_999_990, "last_result": "failed", "last_failure": "no"},
            "pools": [
                {"name": "alpha", "listen": "127.0.0.1:1", "protocol": "redis", "clients": 4,
                 "requests_per_s": 5, "errors_per_s": 0, "p50_us": 90, "p99_us": 700, "servers": [
                    {"name": "one", "address": "10.0.0.1:6379", "role": "primary", "up": 1,
                     "state": "well", "requests_per_s": 5, "since": 1_699_999_000},
                    {"name": "two", "address": "10.0.0.2:6379", "role": "replica", "up": 0,
                     "state": "out", "cause": "Connection refused", "requests_per_s": 7,
                     "last_error": "Connection refused", "last_error_at": 1_699_999_999}]},
                {"name": "beta", "listen": "127.0.0.1:2", "protocol": "memcached",
                 "requests_per_s": 50, "p99_us": 100, "servers": []}],
            "workers": [{"slot": 0, "pid": 77, "busy_permille": 255, "heartbeat_age_ms": 12,
                         "buffered_bytes": 2048, "clients": 4}],
            "sections": [{"name": "slow", "columns": [{"name": "took", "unit": "us"},
                          {"name": "command", "unit": "text"}], "rows": [[5000, "GET x\u{1b}[2J"]]}],
        }))
        .unwrap()
    }

    pub(in crate::top) fn app() -> App {
        let mut app = App::new(Palette { has_colours: false, has_blocks: false });
        app.take(Ok((state(), None)));
        app
    }

    fn press(app: &mut App, code: Key) -> ControlFlow<()> {
        app.press(code, 24)
    }

    #[test]
    fn keys_select_enter_and_leave() {
        let mut app = app();
        assert_eq!(app.wanted(), Some(("alpha".into(), None)));
        for code in [Key::Char('j'), Key::Down, Key::Down] {
            assert!(press(&mut app, code).is_continue());
        }
        assert_eq!((app.selected(), app.wanted()), (1, Some(("beta".into(), None))));
        let _ = press(&mut app, Key::Char('k'));
        let _ = press(&mut app, Key::Enter);
        assert_eq!(app.wanted(), Some(("alpha".into(), Some("one".into()))));
        let _ = press(&mut app, Key::End);
        assert_eq!(app.wanted(), Some(("alpha".into(), Some("two".into()))));
        let _ = press(&mut app, Key::Escape);
        assert_eq!(app.wanted(), Some(("alpha".into(), None)));
        assert!(press(&mut app, Key::Char('q')).is_break());
        assert!(press(&mut app, Key::Char('c')).is_continue());
        assert!(press(&mut app, Key::Held('c')).is_break());
    }

    #[test]
    fn the_selection_keeps_its_name_in_another_order() {
        let mut app = app();
        assert_eq!(app.selected(), 0);
        let _ = press(&mut app, Key::Char('s'));
        assert_eq!(app.sort, Sort::Requests);
        assert_eq!((app.pools()[0].name.as_str(), app.selected()), ("beta", 1));
        for _ in 0..4 {
            let _ = press(&mut app, Key::Char('s'));
        }
        assert_eq!(app.sort, Sort::File);
    }

    #[test]
    fn what_is_gone_is_left() {
        let mut app = app();
        let _ = press(&mut app, Key::Enter);
        assert!(app.pool_inside().is_some());
        let mut state = state();
        state.pools.remove(0);
        app.take(Ok((state, None)));
        assert_eq!((app.inside.clone(), app.wanted()), (None, Some(("beta".into(), None))));
        app.take(Err("it is gone".into()));
        assert!(app.failed.is_some() && app.state.is_some());
    }
}
