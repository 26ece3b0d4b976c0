//! A port of the gateway: one pool, or several behind a route, as its configuration has them.

use std::fmt::Write;

/// Writes of a tree's pools, which have these letters: `@m` stands for the name of the pool `m` of this port.
const MARK: char = '@';

pub(crate) struct Port<'a> {
    pub(crate) name: &'a str,
    pub(crate) listen: &'a str,
    pub(crate) options: &'a [&'a str],
    /// The nodes of a route. Without them the port is a pool.
    pub(crate) tree: Option<&'a str>,
    /// The addresses of the servers of each pool.
    pub(crate) servers: &'a [Vec<String>],
}

/// The letters of the pools of a tree, in their order.
fn letters(tree: &str) -> Vec<char> {
    let mut letters: Vec<char> =
        tree.split(MARK).skip(1).filter_map(|rest| rest.chars().next()).collect();
    letters.sort_unstable();
    letters.dedup();
    letters
}

/// How many pools there are behind a port.
pub(crate) fn pools(tree: Option<&str>) -> usize {
    tree.map_or(1, |tree| letters(tree).len())
}

impl Port<'_> {
    fn pool(&self, name: &str, options: &[&str], servers: &[String], text: &mut String) {
        let written = writeln!(text, "  {name}:\n    distribution: modula");
        written.expect("a string takes all");
        for option in options {
            text.push_str(&format!("    {option}\n"));
        }
        text.push_str("    servers:\n");
        for (number, server) in servers.iter().enumerate() {
            text.push_str(&format!("     - {server}:1 s{number}\n"));
        }
    }
}

/// `pools:` and `routes:` of these ports.
pub(crate) fn yaml(ports: &[Port<'_>]) -> String {
    let (mut pools, mut routes) = (String::from("pools:\n"), String::from("routes:\n"));
    for port in ports {
        let listen = format!("listen: {}", port.listen);
        let Some(tree) = port.tree else {
            let options = [&[listen.as_str()], port.options].concat();
            port.pool(port.name, &options, &port.servers[0], &mut pools);
            continue;
        };
        let prefix = format!("{}-", port.name);
        let of_pools: Vec<&str> =
            port.options.iter().copied().filter(|option| option.starts_with("redis:")).collect();
        for (letter, servers) in letters(tree).iter().zip(port.servers) {
            port.pool(&format!("{prefix}{letter}"), &of_pools, servers, &mut pools);
        }
        let options = [&[listen.as_str()], port.options].concat().join("\n    ");
        let tree = tree.replace(MARK, &prefix);
        routes.push_str(&format!("  {}:\n    {options}\n    route: {tree}\n", port.name));
    }
    if routes.ends_with("routes:\n") { pools } else { pools + &routes }
}

/// Trees that change keys, so that they may be longer than servers take, or empty.
pub(crate) mod trees {
    pub(crate) const REWRITE: &str = "{prefix: {'': {rewrite: 'app:', to: '@m'}}}";
    pub(crate) const STRIP: &str =
        "{prefix: {'blog:': {strip: true, to: '@m'}, 'k': {rewrite: 'kk', to: '@m'}, '': '@m'}}";
    pub(crate) const SPLIT: &str = "{key_split: {to: '@m', copies: 4}}";
    pub(crate) const INITIAL: &str =
        "{all_initial: ['@m', {prefix: {'': {rewrite: 'copy:', to: '@n'}}}]}";
    pub(crate) const SHADOW: &str =
        "{shadow: {to: '@m', shadow: {prefix: {'': {rewrite: 'dark:', to: '@n'}}}, share: 100%}}";
    pub(crate) const FAILOVER: &str =
        "{failover: [{prefix: {'': {rewrite: 'app:', to: '@m'}}}, '@n'], ttl: 60s}";
}
