//! Lists of keys that lead keys to other pools, and are changed while the instance runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Listen, Pool, Route, Snapshot, UserRoute};

/// What has to change so that keys lead to another pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysLed {
    /// The file that lists them.
    pub file: PathBuf,
    /// Its text from then on.
    pub text: String,
    /// Those that led elsewhere before.
    pub keys: Vec<String>,
}

impl Snapshot {
    /// Has keys of a pool's or a route's clients lead to the pool `to` that lead to the pool `from`, by its list of keys,
    /// which is read anew. Those that lead to `to` already are left out. Nothing is changed if there is an error.
    pub fn lead_keys(
        &mut self,
        listener: &str,
        keys: &[String],
        (from, to): (&str, &str),
    ) -> Result<KeysLed, String> {
        check_ways(&self.pools, listener, (from, to))?;
        let is_asked = |pool: &Pool| pool.name == listener && pool.route.is_some();
        let at = self.pools.iter().position(is_asked).expect("it was found");
        let route = self.pools[at].route.as_mut().expect("it is a route");
        let read = |path: &Path| {
            crate::routes::read_keys_file(path)
                .map_err(|error| format!("{}: {error}", path.display()))
        };
        route.lead(keys, (from, to), read).map_err(|why| format!("route {listener}: {why}"))
    }

    /// The routes whose first node lists keys in a file.
    pub fn key_routes(&self) -> Vec<&str> {
        let lists = |pool: &&Pool| pool.route.as_ref().is_some_and(Route::lists_keys);
        self.pools.iter().filter(lists).map(|pool| &*pool.name).collect()
    }

    /// The route by whose list of keys hot keys of the pool `from` can go to the pool `to`.
    pub fn route_of_hot(&self, way: (&str, &str)) -> Result<&str, String> {
        route_of_hot(&self.pools, way)
    }

    /// The route whose list of keys has all others in this pool, if there is one.
    pub fn list_of(&self, pool: &str) -> Option<&str> {
        list_of(&self.pools, pool).ok()
    }

    /// The pool that a route's list of keys leads a key to. `None` if that is no pool, or the route has no list.
    pub fn led_to(&self, route: &str, key: &str) -> Option<&str> {
        let pool = self.pools.iter().find(|pool| pool.name == route)?;
        let (exact, otherwise) = pool.route.as_ref()?.key_list()?;
        let listed = exact.binary_search_by(|(it, _)| it.as_bytes().cmp(key.as_bytes()));
        match listed.map_or(otherwise, |at| &exact[at].1) {
            Route::Pool(name) => Some(name),
            _ => None,
        }
    }
}

/// See [`Snapshot::route_of_hot`].
pub(crate) fn route_of_hot<'p>(
    pools: &'p [Pool],
    (from, to): (&str, &str),
) -> Result<&'p str, String> {
    let route = list_of(pools, from)?;
    if from == to {
        return Err(format!("they are in pool {to}"));
    }
    check_ways(pools, route, (from, to))?;
    match pools.iter().any(|pool| pool.name == to && !pool.hot_keys) {
        true => Err(format!("nobody knows when keys of pool {to} are cool: \"hot_keys\" is off")),
        false => Ok(route),
    }
}

/// See [`Snapshot::list_of`].
fn list_of<'p>(pools: &'p [Pool], from: &str) -> Result<&'p str, String> {
    let lists = |pool: &&Pool| {
        let list = pool.route.as_ref().and_then(Route::key_list);
        list.is_some_and(|(_, otherwise)| *otherwise == Route::Pool(from.to_owned()))
    };
    let found: Vec<&str> = pools.iter().filter(lists).map(|pool| &*pool.name).collect();
    match found[..] {
        [route] => Ok(route),
        [] => Err(format!("no route lists keys in a file and has all others in pool {from}")),
        _ => Err(format!("the routes {} all list its keys", found.join(", "))),
    }
}

/// Whether a route's list of keys may lead keys from one pool to the other.
fn check_ways(pools: &[Pool], listener: &str, (from, to): (&str, &str)) -> Result<(), String> {
    let find = |name: &str| {
        let pool = pools.iter().find(|pool| pool.name == name);
        pool.ok_or_else(|| format!("there is no pool {name}"))
    };
    let moves = || pools.iter().filter_map(|pool| pool.route.as_ref()).flat_map(Route::moves);
    for name in [from, to] {
        let pool = find(name)?;
        if pool.route.is_some() {
            return Err(format!("{name} is a route: no route leads to another one"));
        }
        if let Some(why) = pool.is_uncertain() {
            return Err(format!(
                "pool {name} with {why}: which server has a key has to be known, and to stay"
            ));
        }
        if moves().any(|it| it.from == name || it.to == name) {
            return Err(format!("pool {name} is one of a move"));
        }
    }
    if !pools.iter().any(|pool| pool.name == listener && pool.route.is_some()) {
        return Err(format!("there is no route {listener}"));
    }
    for name in [from, to] {
        if let Some(way) = other_way(pools, listener, name) {
            return Err(format!(
                "{way} leads to pool {name}, too: its clients would look for the keys where they are not"
            ));
        }
    }
    let databases = |pool: &Pool| (pool.protocol, pool.redis_db, pool.databases.max(1));
    if databases(find(from)?) != databases(find(to)?) {
        return Err(format!("pools {from} and {to} differ in their protocol or their databases"));
    }
    Ok(())
}

/// By what else clients come to a pool than by this listener's route for all: what they ask for goes by no list that
/// changes with that one.
fn other_way(pools: &[Pool], listener: &str, name: &str) -> Option<String> {
    let leads = |route: &Route| route.pools().contains(&name);
    pools.iter().find_map(|pool| {
        let is_open = pool.listen != Listen::Nowhere || pool.tls_listen.is_some();
        let by_users = |it: &UserRoute| leads(&it.route);
        match () {
            () if pool.name == name && is_open => Some("its own \"listen\"".to_owned()),
            () if pool.name != listener && pool.route.as_ref().is_some_and(leads) => {
                Some(format!("route {}", pool.name))
            }
            () if pool.user_routes.iter().any(by_users) => {
                Some(format!("the route of a user of {}", pool.name))
            }
            () => None,
        }
    })
}

impl Pool {
    /// What of it has keys be elsewhere at times.
    fn is_uncertain(&self) -> Option<&'static str> {
        match () {
            () if self.auto_eject_hosts => Some("auto_eject_hosts"),
            () if self.distribution == cashew_placement::Distribution::Random => {
                Some("distribution: random")
            }
            () if self.spool.is_some() => Some("spool"),
            () => None,
        }
    }
}

impl Route {
    fn lists_keys(&self) -> bool {
        self.key_list().is_some()
    }

    /// The keys that are listed in its file, and where all others are.
    fn key_list(&self) -> Option<(&[(String, Self)], &Self)> {
        match self {
            Self::Limit { to, .. } | Self::Outstanding { to, .. } => to.key_list(),
            Self::Keys { exact, otherwise, file: Some(_) } => Some((exact, otherwise)),
            _ => None,
        }
    }

    /// As [`Snapshot::lead_keys`]. `read` reads the list as it is now.
    ///
    /// The `keys` node with a `file` has to be the first one, so that servers know the keys by the same names.
    fn lead(
        &mut self,
        keys: &[String],
        (from, to): (&str, &str),
        read: impl FnOnce(&Path) -> Result<String, String>,
    ) -> Result<KeysLed, String> {
        let node = match self {
            Self::Limit { to: child, .. } | Self::Outstanding { to: child, .. } => {
                return child.lead(keys, (from, to), read);
            }
            node => node,
        };
        let Self::Keys { exact, otherwise, file: Some(file) } = node else {
            return Err("its first node is no `keys` node with a `file`".to_owned());
        };
        let text = read(file)?;
        let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
        for line in crate::routes::lines(&text) {
            let line = line.map_err(|number| {
                format!("{}:{number}: this is no key with a target", file.display())
            })?;
            listed.insert(line.key, line.target);
        }
        let (mut next, mut led) = (exact.clone(), Vec::new());
        for key in keys {
            check(key)?;
            let at = next.binary_search_by(|(it, _)| it.as_bytes().cmp(key.as_bytes()));
            let place = at.map_or(&**otherwise, |at| &next[at].1).clone();
            match (at.is_ok(), listed.get(&**key)) {
                (true, None) => {
                    return Err(format!("key \"{key}\" is not listed in {}", file.display()));
                }
                (false, Some(_)) => {
                    return Err(format!("{} was changed: reload it first", file.display()));
                }
                (true, Some(target)) if place != Self::Pool((*target).to_owned()) => {
                    return Err(format!(
                        "key \"{key}\" leads to {target}, which is no pool, or the file was changed"
                    ));
                }
                _ => {}
            }
            if place == Self::Pool(to.to_owned()) {
                continue;
            }
            if place != Self::Pool(from.to_owned()) {
                return Err(format!("key \"{key}\" does not lead to pool {from}"));
            }
            let needs_no_line = **otherwise == Self::Pool(to.to_owned());
            match (at, needs_no_line) {
                (Ok(at), true) => drop(next.remove(at)),
                (Ok(at), false) => next[at].1 = Self::Pool(to.to_owned()),
                (Err(_), true) => {}
                (Err(at), false) => next.insert(at, (key.clone(), Self::Pool(to.to_owned()))),
            }
            led.push(key.clone());
        }
        let target = (**otherwise != Self::Pool(to.to_owned())).then_some(to);
        let text = relist(&text, &led, target);
        *exact = next;
        Ok(KeysLed { file: file.clone(), text, keys: led })
    }
}

/// A route's list of keys, and what it is when keys have gone to another pool and come back.
#[doc(hidden)]
#[derive(Debug)]
pub struct LedForeign {
    /// By the text: keys and their pools.
    pub listed: [BTreeMap<String, String>; 3],
    /// As the route has them.
    pub led: [BTreeMap<String, String>; 3],
}

/// For tests of what comes from outside: has keys lead from the pool `a` to the pool `b` and back by a list with this
/// text. `None` if that is refused.
#[doc(hidden)]
pub fn lead_foreign(text: &str, keys: &[String]) -> Option<LedForeign> {
    let listed = |text: &str| {
        let mut listed = BTreeMap::new();
        for line in crate::routes::lines(text) {
            let line = line.ok()?;
            // A key that is there twice is refused when a list is loaded.
            if listed.insert(line.key.to_owned(), line.target.to_owned()).is_some() {
                return None;
            }
        }
        Some(listed)
    };
    let led = |route: &Route| {
        let (exact, _) = route.key_list().unwrap_or((&[], route));
        let pools = exact.iter().map(|(key, to)| (key.clone(), to.pools().concat()));
        pools.collect::<BTreeMap<String, String>>()
    };
    let before = listed(text)?;
    let exact = before.iter().map(|(key, to)| (key.clone(), Route::Pool(to.clone()))).collect();
    let otherwise = Box::new(Route::Pool("a".to_owned()));
    let mut route = Route::Keys { exact, otherwise, file: Some("/keys".into()) };
    let first = led(&route);
    let there = route.lead(keys, ("a", "b"), |_| Ok(text.to_owned())).ok()?;
    let second = led(&route);
    let moved = there.keys.clone();
    let back = route.lead(&moved, ("b", "a"), |_| Ok(there.text.clone())).ok()?;
    Some(LedForeign {
        listed: [before, listed(&there.text)?, listed(&back.text)?],
        led: [first, second, led(&route)],
    })
}

/// Whether a file can list a key.
pub fn is_listable(key: &str) -> bool {
    check(key).is_ok()
}

/// As [`is_listable`], in words.
fn check(key: &str) -> Result<(), String> {
    let is_well = !key.is_empty()
        && key.trim() == key
        && !key.starts_with('#')
        && !key.contains(['\n', '\r']);
    is_well.then_some(()).ok_or_else(|| format!("key {key:?} cannot be listed in a file"))
}

/// A list of keys in which these have another target, or none. All else is as it was.
fn relist(text: &str, keys: &[String], target: Option<&str>) -> String {
    let keys: BTreeSet<&str> = keys.iter().map(String::as_str).collect();
    let is_kept = |line: &&str| {
        let of_line = crate::routes::lines(line).next();
        !matches!(of_line, Some(Ok(line)) if keys.contains(line.key))
    };
    let mut out = String::new();
    for line in text.lines().filter(is_kept) {
        out += line;
        out.push('\n');
    }
    if let Some(target) = target {
        for key in keys {
            out += &format!("{key} {target}\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(words: &str) -> Vec<String> {
        words.split(' ').map(str::to_owned).collect()
    }

    fn pool(name: &str) -> Route {
        Route::Pool(name.to_owned())
    }

    fn route(listed: &[(&str, &str)]) -> Route {
        let exact = listed.iter().map(|(key, to)| ((*key).to_owned(), pool(to))).collect();
        Route::Keys { exact, otherwise: pool("a").into(), file: Some("/f".into()) }
    }

    #[test]
    fn keys_are_listed_and_taken_off_the_list_again() {
        let mut it = route(&[("k", "b")]);
        let read = |text: &'static str| move |_: &Path| Ok(text.to_owned());
        let led = it.lead(&keys("n k m"), ("a", "b"), read("# hot\nk b\n")).unwrap();
        assert_eq!((&led.text[..], led.keys), ("# hot\nk b\nm b\nn b\n", keys("n m")));
        assert_eq!(it, route(&[("k", "b"), ("m", "b"), ("n", "b")]));
        let led = it.lead(&keys("n k z"), ("b", "a"), read("# hot\nk b\nm b\nn b\n")).unwrap();
        assert_eq!((&led.text[..], led.keys), ("# hot\nm b\n", keys("n k")));
        assert_eq!(it, route(&[("m", "b")]));
        let mut limited = Route::Limit { to: it.into(), per_second: 1, burst: 1 };
        assert_eq!(limited.lead(&keys("m"), ("b", "c"), read("m b\n")).unwrap().text, "m c\n");
    }

    #[test]
    fn pools_that_clients_reach_by_another_way_keep_their_keys() {
        let directory = std::env::temp_dir().join(format!("cashew-lead-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("keys");
        std::fs::write(&file, "").unwrap();
        let lead = |pools: &str, routes: &str, users: &str| {
            let yaml = format!(
                "pools:\n  a: {{redis: true, servers: [127.0.0.1:1:1]}}\n  b: {{redis: true, servers: [127.0.0.1:2:1]{pools}}}\n\
                 routes:\n  main: {{listen: 127.0.0.1:3, redis: true, route: {{keys: {{file: {0}}}, else: a}}{users}}}\n{routes}",
                file.display()
            );
            let loaded = crate::parse("t.yml", &yaml, &crate::Context::of_system());
            let mut snapshot = loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot;
            let led = snapshot.lead_keys("main", &keys("k"), ("a", "b"));
            (led.map(|it| it.keys), snapshot.lead_keys("main", &[], ("b", "a")).is_ok())
        };
        assert_eq!(lead("", "", ""), (Ok(keys("k")), true));
        let refused = |pools: &str, routes: &str, users: &str| match lead(pools, routes, users) {
            (Err(why), false) => why,
            other => panic!("{other:?}"),
        };
        let why = refused(", listen: \"127.0.0.1:4\"", "", "");
        assert!(why.starts_with("its own \"listen\" leads to pool b, too"), "{why}");
        let other = format!(
            "  other: {{listen: 127.0.0.1:4, redis: true, route: {{keys: {{file: {}}}, else: a}}}}\n",
            file.display()
        );
        let why = refused("", &other, "");
        assert!(why.starts_with("route other leads to pool a, too"), "{why}");
        let users = ", users: {ann: {rules: \"on >x ~* +@all\", route: b}}";
        let why = refused("", "", users);
        assert!(why.starts_with("the route of a user of main leads to pool b, too"), "{why}");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_not_as_it_is_in_effect_is_refused() {
        let refused = |listed: &[(&str, &str)], key: &str, text: &'static str| {
            let (mut it, before) = (route(listed), route(listed));
            let why = it.lead(&[key.to_owned()], ("a", "b"), |_| Ok(text.to_owned())).unwrap_err();
            assert_eq!(it, before);
            why
        };
        assert!(refused(&[("k", "c")], "k", "k c\n").contains("does not lead to pool a"));
        assert!(refused(&[("k", "b")], "k", "").contains("is not listed in /f"));
        assert!(refused(&[], "k", "k b\n").contains("reload it first"));
        assert!(refused(&[("k", "b")], "k", "k c\n").contains("the file was changed"));
        assert!(refused(&[], "k", "alone\n").contains("/f:1"));
        for key in ["", " k", "#k", "a\nb"] {
            assert!(refused(&[], key, "").contains("cannot be listed"), "{key:?}");
        }
        let mut it = Route::Keys { exact: Vec::new(), otherwise: pool("a").into(), file: None };
        assert!(it.lead(&[], ("a", "b"), |_| Ok(String::new())).is_err());
    }
}
