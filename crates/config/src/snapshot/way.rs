//! The way of one key through a route, for people: which nodes are asked, in what role, and why.

use super::route::{FailoverOn, KeepRules, Route, share_of};
use crate::value::SizeText;

/// What a request does with a key, as far as a route is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Delete,
}

impl Operation {
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Delete];
}

/// What a command lets nodes do that ask several children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All are asked. Regions get it as it is.
    All,
    /// All are asked, and it leaves the same behind. Regions but the primary forget the key.
    Alike,
    /// It must run once: the first child runs it. Copies and other regions forget the key.
    Once,
    /// The first child alone hears of it.
    First,
}

impl Reach {
    fn is_of_first(self) -> bool {
        matches!(self, Self::Once | Self::First)
    }
}

/// When a child is asked, and what becomes of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is asked.
    Asked,
    /// It is asked as well, and its answer has a say.
    AskedToo,
    /// It is asked as well, and nobody waits for its answer.
    Aside,
    /// It is told to forget the key instead.
    Forgets,
    /// It is asked if the one before has failed.
    AfterFailure,
    /// It is asked if the one before does not have the key.
    AfterMiss,
    /// It is asked if the one before has failed or does not have the key.
    AfterEither,
}

impl Role {
    /// Whether it is asked whatever others answer.
    pub fn is_asked(self) -> bool {
        matches!(self, Self::Asked | Self::AskedToo | Self::Aside)
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Asked => "",
            Self::AskedToo => "as well",
            Self::Aside => "as well, without waiting for it",
            Self::Forgets => "told to forget the key",
            Self::AfterFailure => "if that fails",
            Self::AfterMiss => "after a miss",
            Self::AfterEither => "after a miss, or if that fails",
        }
    }
}

/// A node that has to do with a key, and those below it that have.
#[derive(Clone, Debug)]
pub struct Visit<'r> {
    pub route: &'r Route,
    pub role: Role,
    /// What the key is called here.
    pub key: Vec<u8>,
    /// Why these children; empty where it says nothing of the key.
    pub why: String,
    pub children: Vec<Self>,
}

impl<'r> Visit<'r> {
    /// The pool, of a leaf.
    pub fn pool(&self) -> Option<&'r str> {
        match self.route {
            Route::Pool(pool) => Some(pool),
            _ => None,
        }
    }

    /// The leaves, in the order of the tree.
    pub fn leaves(&self) -> Vec<&Self> {
        match self.pool() {
            Some(_) => vec![self],
            None => self.children.iter().flat_map(Self::leaves).collect(),
        }
    }

    /// The leaves that are asked while no child fails or has a miss, with the key there. None if the key is
    /// refused.
    pub fn asked(&self) -> Vec<(&'r str, &[u8])> {
        match self.pool() {
            Some(pool) => vec![(pool, &self.key)],
            None => {
                let asked = self.children.iter().filter(|child| child.role.is_asked());
                asked.flat_map(Self::asked).collect()
            }
        }
    }
}

impl KeepRules {
    fn title(&self) -> String {
        let Self { bytes, ttl_ms, negative_ms, value_max, keys, hot_only } = self;
        let negative = match negative_ms {
            0 => String::new(),
            ms => format!(", negative {}", span_text(*ms)),
        };
        let keys = match &keys[..] {
            [] => String::new(),
            [one] => format!(", keys \"{}\"", one.escape_debug()),
            [one, ..] => format!(", keys \"{}\" and {} more", one.escape_debug(), keys.len() - 1),
        };
        format!(
            "cache{}, {} in all, ttl {}{negative}, value_max {}{keys}",
            if *hot_only { " of hot keys" } else { "" },
            SizeText(*bytes),
            span_text(*ttl_ms),
            SizeText(*value_max)
        )
    }
}

impl Route {
    /// The way of a key that clients call so.
    pub fn visit(&self, key: &[u8], operation: Operation, reach: Reach) -> Visit<'_> {
        self.visit_as(Role::Asked, key, key, (operation, reach))
    }

    fn visit_as<'r>(
        &'r self,
        role: Role,
        asked: &[u8],
        key: &[u8],
        (operation, reach): (Operation, Reach),
    ) -> Visit<'r> {
        use Role::{AfterEither, AfterFailure, AfterMiss, Aside, Asked, AskedToo, Forgets};

        let is_read = operation == Operation::Read;
        let child =
            |role: Role, route: &'r Self| route.visit_as(role, asked, key, (operation, reach));
        let one = |route: &'r Self| vec![child(Asked, route)];
        let others = |to: &'r [Self], role: Role| -> Vec<Visit<'r>> {
            let role_of = |at| if at == 0 { Asked } else { role };
            (0..).zip(to).map(|(at, route)| child(role_of(at), route)).collect()
        };
        // Of those that are asked together.
        let together = |to: &'r [Self], role: Role| match reach.is_of_first() {
            true => one(&to[0]),
            false => others(to, role),
        };
        let quoted = |text: &str| format!("\"{}\"", text.escape_debug());
        let (why, children) = match self {
            Self::Pool(_) => (String::new(), Vec::new()),
            Self::Prefix(arms) => {
                let fits = arms.iter().filter(|arm| key.starts_with(arm.prefix.as_bytes()));
                match fits.max_by_key(|arm| arm.prefix.len()) {
                    None => ("no prefix is the key's: it is refused".to_owned(), Vec::new()),
                    Some(arm) => {
                        let rest = &key[arm.prefix.len()..];
                        let (key, what) = match &arm.rewrite {
                            None => (key.to_vec(), String::new()),
                            Some(new) if new.is_empty() => (rest.to_vec(), ", stripped".to_owned()),
                            Some(new) => (
                                [new.as_bytes(), rest].concat(),
                                format!(", rewritten to {}", quoted(new)),
                            ),
                        };
                        let why = match arm.prefix.is_empty() {
                            true => format!("no other prefix is the key's{what}"),
                            false => format!("prefix {}{what}", quoted(&arm.prefix)),
                        };
                        (why, vec![arm.to.visit_as(Asked, asked, &key, (operation, reach))])
                    }
                }
            }
            Self::Keys { exact, otherwise, .. } => {
                match exact.binary_search_by(|(it, _)| it.as_bytes().cmp(key)) {
                    Ok(at) => ("the key is listed".to_owned(), one(&exact[at].1)),
                    Err(_) => ("the key is not listed".to_owned(), one(otherwise)),
                }
            }
            Self::Operation { read, write, delete } => match operation {
                Operation::Read => ("it reads".to_owned(), one(read)),
                // Where both are alike, nothing is to be told of the difference.
                Operation::Delete if delete == write => ("it writes".to_owned(), one(delete)),
                Operation::Write => ("it writes".to_owned(), one(write)),
                Operation::Delete => ("it deletes".to_owned(), one(delete)),
            },
            Self::AllSync(to) => ("the worst answer counts".to_owned(), together(to, AskedToo)),
            Self::AllAsync(to) if is_read => ("reads go to the first".to_owned(), one(&to[0])),
            Self::AllAsync(to) if reach.is_of_first() => {
                ("the first one's answer counts".to_owned(), one(&to[0]))
            }
            Self::AllAsync(to) => {
                let all = to.iter().map(|route| child(Aside, route)).collect();
                ("the client is answered at once".to_owned(), all)
            }
            Self::AllMajority(to) => {
                (format!("what {} of {} say", to.len() / 2 + 1, to.len()), together(to, AskedToo))
            }
            Self::AllFastest { to, .. } => {
                ("the first good answer counts".to_owned(), together(to, AskedToo))
            }
            Self::AllInitial(to) => {
                ("the first one's answer counts".to_owned(), together(to, Aside))
            }
            Self::Failover { to, .. } => (String::new(), others(to, AfterFailure)),
            Self::MissFailover(to) if is_read => (String::new(), others(to, AfterEither)),
            Self::MissFailover(to) => ("it does not read".to_owned(), one(&to[0])),
            Self::WarmUp { cold, warm, .. } if is_read => {
                (String::new(), vec![child(Asked, cold), child(AfterMiss, warm)])
            }
            Self::WarmUp { cold, .. } => ("it does not read".to_owned(), one(cold)),
            Self::Shadow { to, shadow, share, .. } => {
                let (is_in, number) = (share_of(asked) < *share, share_text(share_of(asked)));
                let mut children = one(to);
                if is_in && reach != Reach::First {
                    children.push(child(Aside, shadow));
                }
                (format!("the key's number is {number}, {}", below(is_in, *share)), children)
            }
            Self::Migrate { from, to, share, dual_write, read_other, .. } => {
                let (is_in, number) = (share_of(asked) < *share, share_text(share_of(asked)));
                let (current, other) = if is_in { (to, from) } else { (from, to) };
                let mut children = one(current);
                match is_read {
                    true if *read_other => children.push(child(AfterMiss, other)),
                    false if *dual_write && reach != Reach::First => {
                        let role = if reach == Reach::Once { Forgets } else { AskedToo };
                        children.push(child(role, other));
                    }
                    _ => {}
                }
                (format!("the key's number is {number}, {}", below(is_in, *share)), children)
            }
            Self::KeySplit { to, copies } => match is_read {
                true => (format!("one of {copies} copies, at random"), one(to)),
                false => {
                    let copy = |number: u32| {
                        let name = [key, format!("::{number}").as_bytes()].concat();
                        let role = if reach == Reach::Once { Forgets } else { AskedToo };
                        to.visit_as(role, asked, &name, (operation, reach))
                    };
                    let copies = if reach == Reach::First { &1 } else { copies };
                    let shown = (1..(*copies).min(COPIES_SHOWN_MAX)).map(copy);
                    let why = format!("all {copies} copies");
                    (why, one(to).into_iter().chain(shown).collect())
                }
            },
            Self::Limit { to, .. } | Self::Outstanding { to, .. } => (String::new(), one(to)),
            Self::Cache { to, keep } => {
                let is_kept = keep.keys.is_empty()
                    || keep.keys.iter().any(|prefix| key.starts_with(prefix.as_bytes()));
                let why = match (is_read, is_kept) {
                    (true, true) => "hot keys are answered from here",
                    (true, false) => "the key is none that is kept",
                    (false, _) => "what is kept of the key is dropped",
                };
                (why.to_owned(), one(to))
            }
            Self::Regions { to, reads, .. } if is_read => {
                let (name, route) = &to[*reads as usize];
                (format!("reads go to region {name}"), one(route))
            }
            Self::Regions { to, primary, .. } => {
                let (name, first) = &to[*primary as usize];
                let mut children = one(first);
                let others = (0..).zip(to).filter(|(at, _)| at != primary);
                let role = if reach == Reach::All { Aside } else { Forgets };
                if reach != Reach::First {
                    children.extend(others.map(|(_, (_, route))| child(role, route)));
                }
                (format!("region {name}, and then the others"), children)
            }
        };
        Visit { route: self, role, key: key.to_vec(), why, children }
    }

    /// The kind of node and its options, without its children.
    pub fn title(&self) -> String {
        let for_ttl = |ttl_ms: &Option<u64>| {
            ttl_ms.map_or_else(String::new, |ttl_ms| format!(", ttl {}", span_text(ttl_ms)))
        };
        match self {
            Self::Pool(pool) => format!("pool {pool}"),
            Self::Prefix(_) => "prefix".to_owned(),
            Self::Keys { exact, .. } => format!("keys, {} listed", exact.len()),
            Self::Operation { .. } => "operation".to_owned(),
            Self::AllSync(_) => "all_sync".to_owned(),
            Self::AllAsync(_) => "all_async".to_owned(),
            Self::AllMajority(_) => "all_majority".to_owned(),
            Self::AllFastest { miss_last: false, .. } => "all_fastest".to_owned(),
            Self::AllFastest { miss_last: true, .. } => "all_fastest, miss last".to_owned(),
            Self::AllInitial(_) => "all_initial".to_owned(),
            Self::Failover { on, ttl_ms, .. } => {
                format!("failover{}{}", on_text(*on), for_ttl(ttl_ms))
            }
            Self::MissFailover(_) => "miss_failover".to_owned(),
            Self::WarmUp { ttl_ms, .. } => format!("warm_up{}", for_ttl(ttl_ms)),
            Self::Shadow { share, compare, outstanding_max, .. } => {
                let compare = if *compare { ", compare" } else { "" };
                let share = share_text(*share);
                format!("shadow, share {share}{compare}, outstanding {outstanding_max}")
            }
            Self::Migrate { share, follow: Some(follow), .. } => {
                let by = if *share > 0 { "to" } else { "from" };
                let option = |name, value: u64| match value {
                    0 => String::new(),
                    value => format!(", {name} {value}"),
                };
                let rate = option("rate", follow.keys_per_second);
                let bandwidth = option("bandwidth", follow.bytes_per_second);
                let directory = follow.directory.display();
                format!("migrate, served by \"{by}\", directory {directory}{rate}{bandwidth}")
            }
            Self::Migrate { share, dual_write, read_other, .. } => {
                let dual_write = if *dual_write { ", dual_write" } else { "" };
                let read_other = if *read_other { ", read_other" } else { "" };
                format!("migrate, share {}{dual_write}{read_other}", share_text(*share))
            }
            Self::KeySplit { copies, .. } => format!("key_split, {copies} copies"),
            Self::Limit { per_second, burst, .. } => {
                format!("limit, rate {per_second}, burst {burst}")
            }
            Self::Outstanding { max, .. } => format!("outstanding, max {max}"),
            Self::Cache { keep, .. } => keep.title(),
            Self::Regions { to, primary, reads, outstanding_max } => {
                let name = |at: &u32| &to[*at as usize].0;
                format!(
                    "regions, primary {}, reads {}, outstanding {outstanding_max}",
                    name(primary),
                    name(reads)
                )
            }
        }
    }

    /// What is said of a child beside its title, by its place among the [children](Route::children).
    pub fn label(&self, child: usize) -> String {
        let named = |names: &[&str]| format!("{}: ", names[child]);
        match self {
            Self::Prefix(arms) => {
                let arm = &arms[child];
                let rewrite = match &arm.rewrite {
                    None => String::new(),
                    Some(new) if new.is_empty() => ", stripped".to_owned(),
                    Some(new) => format!(", rewritten to \"{}\"", new.escape_debug()),
                };
                format!("\"{}\"{rewrite}: ", arm.prefix.escape_debug())
            }
            Self::Keys { exact, .. } => match exact.get(child) {
                Some((key, _)) => format!("\"{}\": ", key.escape_debug()),
                None => "else: ".to_owned(),
            },
            Self::Operation { .. } => named(&["read", "write", "delete"]),
            Self::WarmUp { .. } => named(&["cold", "warm"]),
            Self::Shadow { .. } => named(&["to", "shadow"]),
            Self::Migrate { .. } => named(&["from", "to"]),
            Self::Regions { to, .. } => format!("{}: ", to[child].0),
            _ => String::new(),
        }
    }

    /// In one line, as in a file.
    pub fn brief(&self) -> String {
        if let Self::Pool(pool) = self {
            return pool.clone();
        }
        let children: Vec<String> = (0..)
            .zip(self.children())
            .take(BRIEF_MAX)
            .map(|(at, child)| format!("{}{}", self.label(at), child.brief()))
            .collect();
        let more = if self.children().len() > BRIEF_MAX { ", …" } else { "" };
        format!("{} [{}{more}]", self.title(), children.join(", "))
    }

    /// A line for each node, those below another one further to the right. Of many keys and prefixes the
    /// first few are named.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.add_lines("", 0, &mut lines);
        lines
    }

    fn add_lines(&self, label: &str, depth: usize, lines: &mut Vec<String>) {
        let indent = "  ".repeat(depth);
        lines.push(format!("{indent}{label}{}", self.title()));
        let children = self.children();
        let (shown, last) = match self {
            Self::Keys { exact, .. } => (exact.len().min(KEYS_SHOWN_MAX), 1),
            _ => (children.len().min(CHILDREN_SHOWN_MAX), 0),
        };
        for (at, child) in children.iter().enumerate().take(shown) {
            child.add_lines(&self.label(at), depth + 1, lines);
        }
        let more = children.len() - shown - last;
        if more > 0 {
            let mut pools: Vec<&str> = Vec::new();
            for child in &children[shown..shown + more] {
                for pool in child.pools() {
                    if !pools.contains(&pool) {
                        pools.push(pool);
                    }
                }
            }
            lines.push(format!("{indent}  {more} more, to {}", pools.join(", ")));
        }
        if last > 0 {
            children[children.len() - 1].add_lines("else: ", depth + 1, lines);
        }
    }
}

/// Children that are named in one line.
const BRIEF_MAX: usize = 8;

/// Copies of a key that are visited.
const COPIES_SHOWN_MAX: u32 = 8;

/// Children, and keys, that have lines of their own.
const CHILDREN_SHOWN_MAX: usize = 64;
const KEYS_SHOWN_MAX: usize = 8;

fn below(is_in: bool, share: u32) -> String {
    format!("{} the share of {}", if is_in { "in" } else { "not in" }, share_text(share))
}

/// Of 10,000, in percent.
pub fn share_text(share: u32) -> String {
    match (share / 100, share % 100) {
        (whole, 0) => format!("{whole}%"),
        (whole, part) if part % 10 == 0 => format!("{whole}.{}%", part / 10),
        (whole, part) => format!("{whole}.{part:02}%"),
    }
}

fn span_text(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let fits = units.into_iter().find(|(factor, _)| ms > 0 && ms.is_multiple_of(*factor));
    fits.map_or_else(|| format!("{ms}ms"), |(factor, unit)| format!("{}{unit}", ms / factor))
}

fn on_text(on: FailoverOn) -> String {
    if on == FailoverOn::default() {
        return String::new();
    }
    let all = [(on.refused, "refused"), (on.timeout, "timeout"), (on.error, "error")];
    let given: Vec<&str> = all.into_iter().filter(|(is_on, _)| *is_on).map(|(_, it)| it).collect();
    format!(", on {}", given.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::super::route::PrefixArm;
    use super::*;

    fn pool(name: &str) -> Route {
        Route::Pool(name.to_owned())
    }

    fn two() -> Vec<Route> {
        vec![pool("a"), pool("b")]
    }

    fn asked(route: &Route, key: &str, operation: Operation) -> Vec<String> {
        let visit = route.visit(key.as_bytes(), operation, Reach::All);
        let shown = |(pool, key): (&str, &[u8])| format!("{pool} {}", String::from_utf8_lossy(key));
        visit.asked().into_iter().map(shown).collect()
    }

    #[test]
    fn the_longest_prefix_decides_and_changes_the_key() {
        let arm = |prefix: &str, rewrite: Option<&str>, to| PrefixArm {
            prefix: prefix.to_owned(),
            rewrite: rewrite.map(str::to_owned),
            to,
        };
        // Nodes below see what the key has become.
        let inner =
            Route::Prefix(vec![arm("x:", None, pool("x")), arm("y:", Some("z:"), pool("y"))]);
        let route = Route::Prefix(vec![
            arm("a", None, pool("a")),
            arm("ab", Some("c"), pool("b")),
            arm("n:", Some(""), inner),
        ]);
        for (key, expected) in [
            ("a1", vec!["a a1"]),
            ("ab1", vec!["b c1"]),
            ("n:x:1", vec!["x x:1"]),
            ("n:y:1", vec!["y z:1"]),
            ("n:1", vec![]),
            ("b", vec![]),
        ] {
            assert_eq!(asked(&route, key, Operation::Read), expected, "{key}");
        }
    }

    #[test]
    fn who_is_asked_depends_on_what_is_done() {
        use Operation::{Delete, Read, Write};
        let (a, b) = (|| Box::new(pool("a")), || Box::new(pool("b")));
        let migrate = |share, dual_write| Route::Migrate {
            from: a(),
            to: b(),
            share,
            dual_write,
            read_other: true,
            follow: None,
        };
        let shadow = |share| Route::Shadow {
            to: a(),
            shadow: b(),
            share,
            compare: false,
            outstanding_max: 1,
        };
        let number = share_of(b"k");
        let table: Vec<(Route, Operation, &[&str])> = vec![
            (Route::AllSync(two()), Read, &["a k", "b k"]),
            (Route::AllAsync(two()), Read, &["a k"]),
            (Route::AllAsync(two()), Delete, &["a k", "b k"]),
            (Route::MissFailover(two()), Write, &["a k"]),
            (Route::MissFailover(two()), Read, &["a k"]),
            (Route::WarmUp { cold: a(), warm: b(), ttl_ms: None }, Read, &["a k"]),
            (Route::Operation { read: a(), write: b(), delete: b() }, Read, &["a k"]),
            (Route::Operation { read: a(), write: b(), delete: b() }, Delete, &["b k"]),
            (migrate(number, false), Write, &["a k"]),
            (migrate(number + 1, false), Write, &["b k"]),
            (migrate(number + 1, true), Write, &["b k", "a k"]),
            (migrate(number + 1, true), Read, &["b k"]),
            (shadow(number), Write, &["a k"]),
            (shadow(number + 1), Write, &["a k", "b k"]),
            (Route::KeySplit { to: a(), copies: 3 }, Write, &["a k", "a k::1", "a k::2"]),
            (Route::KeySplit { to: a(), copies: 3 }, Read, &["a k"]),
        ];
        for (route, operation, expected) in table {
            assert_eq!(asked(&route, "k", operation), expected, "{} {operation:?}", route.title());
        }
        let failover = Route::Failover { to: two(), on: FailoverOn::default(), ttl_ms: None };
        let visit = failover.visit(b"k", Read, Reach::All);
        let roles: Vec<_> = visit.leaves().iter().map(|leaf| leaf.role).collect();
        assert_eq!(roles, [Role::Asked, Role::AfterFailure]);
    }

    #[test]
    fn a_tree_has_a_line_for_each_node() {
        let exact = (0..20).map(|number| (format!("k{number:02}"), pool("hot"))).collect();
        let on = FailoverOn { error: false, ..FailoverOn::default() };
        let failover = Route::Failover { to: two(), on, ttl_ms: Some(90_000) };
        let keys = Route::Keys { exact, otherwise: failover.into(), file: None };
        let migrate = Route::Migrate {
            from: pool("a").into(),
            to: pool("b").into(),
            share: 1250,
            dual_write: true,
            read_other: false,
            follow: None,
        };
        let arm = |prefix: &str, rewrite: Option<&str>, to| PrefixArm {
            prefix: prefix.to_owned(),
            rewrite: rewrite.map(str::to_owned),
            to,
        };
        let route = Route::Prefix(vec![arm("", None, keys), arm("m:", Some(""), migrate)]);
        let listed: String =
            (0..8).map(|number| format!("    \"k{number:02}\": pool hot\n")).collect();
        let expected = format!(
            "prefix
  \"\": keys, 20 listed
{listed}    12 more, to hot
    else: failover, on refused and timeout, ttl 90s
      pool a
      pool b
  \"m:\", stripped: migrate, share 12.5%, dual_write
    from: pool a
    to: pool b"
        );
        assert_eq!(route.lines().join("\n"), expected);
        assert_eq!(
            Route::AllSync(two()).brief() + &share_text(1) + &share_text(10_000),
            "all_sync [a, b]0.01%100%"
        );
    }
}
