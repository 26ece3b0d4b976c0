//! Routes: which pool a key is led to, as the model understands it by itself.

use cashew_config::snapshot::{PrefixArm, Route};

use crate::random::Random;

/// The pools that routes lead to, by their places in the universe.
const LEAVES: [u32; 2] = [1, 2];
/// What keys begin with, sorted: some are the start of others.
const PREFIXES: [&str; 8] = ["", "c1", "c2:", "c3", "c4", "c5:1", "s:", "s:1"];
const KEYS: [&str; 4] = ["c1:1", "c2:2", "c3:1", "s:0"];

fn pool(random: &mut Random) -> Route {
    Route::Pool(format!("p{}", random.pick(&LEAVES)))
}

/// A tree, in which each key has one pool whatever is done with it.
pub(crate) fn tree(random: &mut Random) -> Route {
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
        Route::Outstanding { to, .. } => leaf(to, key),
        other => unreachable!("no scenario has {other:?}"),
    }
}
