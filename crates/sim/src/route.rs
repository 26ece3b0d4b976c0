//! Routes: which pool a key is led to, as the model understands it by itself.

use cashew_config::snapshot::{PrefixArm, Route, share_of};

use crate::random::Random;

/// The pools that routes lead to, by their places in the universe.
const LEAVES: [u32; 2] = [1, 2];
/// The pool that has nothing but copies, and what its own clients write.
pub(crate) const COPIES: u32 = 3;
/// What keys begin with, sorted: some are the start of others.
const PREFIXES: [&str; 8] = ["", "c1", "c2:", "c3", "c4", "c5:1", "s:", "s:1"];
const KEYS: [&str; 4] = ["c1:1", "c2:2", "c3:1", "s:0"];

/// Who else is asked what the pool of a key is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    Nobody,
    /// Another pool, of whose answers clients hear nothing.
    Beside,
    /// The same, and clients are answered at once what they write.
    Unawaited,
    /// Another pool is told what has been written, or to forget it.
    Told,
    /// Keys have copies in their own pool, under other names.
    Split,
}

impl Copies {
    pub(crate) fn of(route: &Route) -> Self {
        match route {
            Route::AllAsync(_) => Self::Unawaited,
            Route::AllInitial(_) | Route::Shadow { .. } => Self::Beside,
            Route::Regions { .. } => Self::Told,
            Route::KeySplit { .. } => Self::Split,
            other => {
                let mut kinds = other.children().into_iter().map(Self::of);
                kinds.find(|kind| *kind != Self::Nobody).unwrap_or(Self::Nobody)
            }
        }
    }
}

/// The pool of some keys, and who has copies of them.
fn end(copies: Copies, random: &mut Random) -> Route {
    let to = Route::Pool(format!("p{}", random.pick(&LEAVES)));
    let copy = Route::Pool(format!("p{COPIES}"));
    match copies {
        Copies::Nobody => to,
        Copies::Unawaited => Route::AllAsync(vec![to, copy]),
        Copies::Split => Route::KeySplit { to: Box::new(to), copies: random.pick(&[2, 3]) },
        Copies::Told => Route::Regions {
            to: vec![("here".to_owned(), to), ("there".to_owned(), copy)],
            primary: 0,
            reads: 0,
            outstanding_max: random.pick(&[1, 10, 1_000]),
        },
        Copies::Beside => match random.below(4) {
            0 => to,
            1 => Route::AllInitial(vec![to, copy]),
            _ => Route::Shadow {
                to: Box::new(to),
                shadow: Box::new(copy),
                share: random.pick(&[5_000, 10_000]),
                compare: random.percent(50),
                outstanding_max: random.pick(&[1, 10, 1_000]),
            },
        },
    }
}

/// A tree, in which each key has one pool whatever is done with it.
pub(crate) fn tree(copies: Copies, random: &mut Random) -> Route {
    let pool = |random: &mut Random| end(copies, random);
    let mut arms = Vec::new();
    for prefix in PREFIXES {
        if prefix.is_empty() || random.percent(70) {
            arms.push(PrefixArm { prefix: prefix.to_owned(), rewrite: None, to: pool(random) });
        }
    }
    let by_prefix = Route::Prefix(arms);
    match random.below(4) {
        0 => by_prefix,
        1 => Route::Outstanding { to: Box::new(by_prefix), max: 1_000_000 },
        2 => {
            let exact = KEYS.map(|key| (key.to_owned(), pool(random))).into();
            Route::Keys { exact, otherwise: Box::new(by_prefix), file: None }
        }
        _ => {
            let [read, write, delete] = [(); 3].map(|()| Box::new(by_prefix.clone()));
            Route::Operation { read, write, delete }
        }
    }
}

/// The pool that a key is led to.
pub(crate) fn leaf(route: &Route, key: &[u8]) -> u32 {
    match route {
        Route::Pool(name) => name[1..].parse().expect("pools have numbers"),
        Route::Prefix(arms) => {
            let fit = arms.iter().filter(|arm| key.starts_with(arm.prefix.as_bytes()));
            let longest = fit.max_by_key(|arm| arm.prefix.len());
            leaf(&longest.expect("the empty one is there").to, key)
        }
        Route::Keys { exact, otherwise, .. } => {
            let listed = exact.iter().find(|(it, _)| it.as_bytes() == key);
            leaf(listed.map_or(otherwise, |(_, to)| to), key)
        }
        Route::Operation { read, .. } => leaf(read, key),
        Route::Outstanding { to, .. } | Route::Shadow { to, .. } | Route::KeySplit { to, .. } => {
            leaf(to, key)
        }
        Route::AllInitial(to) | Route::AllAsync(to) => leaf(&to[0], key),
        Route::Regions { to, primary, .. } => leaf(&to[*primary as usize].1, key),
        other => unreachable!("no scenario has {other:?}"),
    }
}

/// The key of which this is the name of a copy, if it is one.
pub(crate) fn split_key(name: &[u8]) -> Option<&[u8]> {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name[..name.len() - digits].strip_suffix(b"::").filter(|_| digits > 0)
}

/// Whether another pool is asked what the pool of a key is asked.
pub(crate) fn is_copied(route: &Route, key: &[u8]) -> bool {
    match route {
        Route::Pool(_) | Route::KeySplit { .. } => false,
        Route::Prefix(arms) => {
            let fit = arms.iter().filter(|arm| key.starts_with(arm.prefix.as_bytes()));
            let longest = fit.max_by_key(|arm| arm.prefix.len());
            is_copied(&longest.expect("the empty one is there").to, key)
        }
        Route::Keys { exact, otherwise, .. } => {
            let listed = exact.iter().find(|(it, _)| it.as_bytes() == key);
            is_copied(listed.map_or(otherwise, |(_, to)| to), key)
        }
        Route::Operation { read, .. } => is_copied(read, key),
        Route::Outstanding { to, .. } => is_copied(to, key),
        Route::Shadow { share, .. } => share_of(key) < *share,
        Route::AllInitial(_) | Route::AllAsync(_) | Route::Regions { .. } => true,
        other => unreachable!("no scenario has {other:?}"),
    }
}
