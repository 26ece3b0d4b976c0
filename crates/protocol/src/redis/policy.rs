//! Which commands the clients of a pool may use.
//!
//! The rules become one bit for each command of the table when a pool is configured, so that a
//! request needs one lookup.

use std::sync::OnceLock;

use std::cmp::Reverse;

use super::lookup::{by_name, plain_commands, subcommands};
use super::{COMMANDS, CUSTOM_ID, Clearance, Command, CustomCommands, Renames, Rule};

pub(super) const WORDS: usize = COMMANDS.len().div_ceil(u64::BITS as usize);

const ALL: &str = "@all";

/// The configured policy. Entries are a name, `container|subcommand`, or a category with `@`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub base: Clearance,
    /// In lower case.
    pub allow: Vec<String>,
    pub deny: Vec<String>,
}

/// An error of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyFault {
    UnknownCommand,
    UnknownCategory,
    /// Of this container.
    UnknownSubcommand(&'static str),
    /// Servers know its subcommands, the table does not.
    NotTold(&'static str),
    /// The gateway refuses it for all clients, with this error.
    Unserved(&'static str),
    /// Clients may always call it.
    Undeniable,
}

impl Rules {
    pub fn of(base: Clearance) -> Self {
        Self { base, allow: Vec::new(), deny: Vec::new() }
    }

    /// Of the entries that match a command the most specific one decides: a subcommand before a
    /// command, a command before a category, a category before `@all`; of equal ones `deny`.
    pub fn permit(&self, command: &Command) -> bool {
        if command.has_flag("no_auth") {
            // As in Redis: without these a client could not log in.
            return true;
        }
        let categories = command.categories();
        let best =
            |list: &[String]| list.iter().filter_map(|e| weight(e, command, &categories)).max();
        match (best(&self.allow), best(&self.deny)) {
            (None, None) => command.clearance <= self.base,
            (allow, deny) => allow > deny,
        }
    }

    /// The error of an entry of either list, for a pool that also has these commands.
    pub fn fault(entry: &str, allows: bool, custom: &CustomCommands) -> Option<PolicyFault> {
        if entry.starts_with('@') {
            let known = entry == ALL || categories().any(|category| category == entry);
            return (!known).then_some(PolicyFault::UnknownCategory);
        }
        let (name, sub) = match entry.split_once('|') {
            Some((name, sub)) => (name, Some(sub)),
            None => (entry, None),
        };
        let Some((at, command)) = by_name(name.as_bytes()) else {
            let is_known = custom.all().any(|command| command.name == entry);
            return (!is_known).then_some(PolicyFault::UnknownCommand);
        };
        let members: Vec<&'static Command> = match sub {
            None => subcommands(at).chain([command]).collect(),
            Some(_) => subcommands(at).filter(|command| command.name == entry).collect(),
        };
        if members.is_empty() {
            return Some(match command.facts.is_open {
                true => PolicyFault::NotTold(command.name),
                false => PolicyFault::UnknownSubcommand(command.name),
            });
        }
        if !allows && members.iter().all(|member| member.has_flag("no_auth")) {
            return Some(PolicyFault::Undeniable);
        }
        let refusal = |member: &&'static Command| match member.rule {
            Rule::Refuse(text) => Some(text),
            _ => None,
        };
        let mut served = members.iter().filter(|member| member.rule != Rule::Unsupported);
        if allows && served.clone().all(|member| refusal(member).is_some()) {
            return served.find_map(refusal).map(PolicyFault::Unserved);
        }
        None
    }

    /// All valid entries, for suggestions.
    pub fn entries() -> impl Iterator<Item = &'static str> {
        COMMANDS.iter().map(|command| command.name).chain(categories()).chain([ALL])
    }
}

fn categories() -> impl Iterator<Item = &'static str> {
    let mut all: Vec<&str> = COMMANDS.iter().flat_map(Command::categories).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter()
}

/// How specific the entry is for the command; `None` if it does not match.
fn weight(entry: &str, command: &Command, categories: &[&str]) -> Option<u8> {
    let container = command.name.split_once('|').map(|(container, _)| container);
    match entry {
        ALL => Some(0),
        _ if entry.starts_with('@') => categories.contains(&entry).then_some(1),
        _ if Some(entry) == container => Some(2),
        _ => (entry == command.name).then_some(3),
    }
}

/// Of entries as those of [`Rules`], the place of the one that is about a command: of those that match
/// it the most specific one, of equal ones the first.
pub fn most_specific<'e>(
    entries: impl Iterator<Item = &'e str>,
    command: &Command,
) -> Option<usize> {
    let categories = command.categories();
    let weights = entries.map(|entry| weight(entry, command, &categories)).enumerate();
    let matching = weights.filter_map(|(at, weight)| Some((weight?, Reverse(at))));
    matching.max().map(|(_, Reverse(at))| at)
}

/// The decision for every command.
#[derive(Clone, Debug)]
pub struct Policy {
    refused: [u64; WORDS],
    /// Some of them may be plain: see [`super::find_plain`].
    refuses_plain: bool,
    /// Names of commands that are not in the table.
    refused_custom: Vec<&'static str>,
    /// Other names of commands, if any has one.
    renames: Option<Box<Renames>>,
}

impl Policy {
    pub fn new(rules: &Rules, custom: &CustomCommands) -> Self {
        // Most of many pools go by a base alone, and each would ask for every command.
        static PLAIN: [OnceLock<Policy>; 3] = [const { OnceLock::new() }; 3];
        match rules.allow.is_empty() && rules.deny.is_empty() && custom.is_empty() {
            true => PLAIN[rules.base as usize].get_or_init(|| Self::decide(rules, custom)).clone(),
            false => Self::decide(rules, custom),
        }
    }

    fn decide(rules: &Rules, custom: &CustomCommands) -> Self {
        let mut refused = [0; WORDS];
        // Commands refused for all clients have a better error.
        let is_refused =
            |command: &&Command| !matches!(command.rule, Rule::Refuse(_)) && !rules.permit(command);
        for command in COMMANDS.iter().filter(is_refused) {
            let id = usize::from(command.id);
            refused[id / 64] |= 1 << (id % 64);
        }
        let refused_custom = custom.all().filter(is_refused).map(|command| command.name).collect();
        let mut policy = Self { refused, refuses_plain: false, refused_custom, renames: None };
        policy.refuses_plain = plain_commands().any(|command| policy.refuses(command));
        policy
    }

    /// The same, but for commands of the table that are to be refused as well.
    #[must_use]
    pub fn without(&self, is_refused: impl Fn(&Command) -> bool) -> Self {
        let mut policy = self.clone();
        for command in COMMANDS.iter().filter(|command| is_refused(command)) {
            let id = usize::from(command.id);
            policy.refused[id / 64] |= 1 << (id % 64);
        }
        policy.refuses_plain |= plain_commands().any(|command| policy.refuses(command));
        policy
    }

    /// The same where commands have other names.
    #[must_use]
    pub fn with_renames(mut self, pairs: &[(String, String)]) -> Self {
        if !pairs.is_empty() {
            let renames = Renames::new(pairs);
            self.refuses_plain |= renames.hides_plain();
            self.renames = Some(Box::new(renames));
        }
        self
    }

    #[inline]
    pub fn renames(&self) -> Option<&Renames> {
        self.renames.as_deref()
    }

    /// Whether clients may not call the command.
    #[inline]
    pub fn refuses(&self, command: &Command) -> bool {
        match command.id {
            CUSTOM_ID => self.refused_custom.contains(&command.name),
            id => self.refuses_id(id),
        }
    }

    /// The same by a command's place in the table.
    #[inline]
    fn refuses_id(&self, id: u16) -> bool {
        let id = usize::from(id);
        self.refused.get(id / 64).is_some_and(|word| word & (1 << (id % 64)) != 0)
    }

    /// Whether a command that is called by its own name is not for the fast path.
    #[inline]
    pub fn guards_id(&self, id: u16) -> bool {
        self.refuses_id(id) || self.renames.as_ref().is_some_and(|renames| renames.hides_id(id))
    }

    /// Whether the fast path has to check.
    #[inline]
    pub fn refuses_plain(&self) -> bool {
        self.refuses_plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{Definition, KeyPlaces};

    fn rules(base: Clearance, allow: &[&str], deny: &[&str]) -> Rules {
        let owned = |list: &[&str]| list.iter().map(|entry| (*entry).to_owned()).collect();
        Rules { base, allow: owned(allow), deny: owned(deny) }
    }

    fn command(name: &str) -> &'static Command {
        COMMANDS.iter().find(|command| command.name == name).unwrap()
    }

    fn permits(rules: &Rules, name: &str) -> bool {
        let policy = Policy::new(rules, &CustomCommands::default());
        !policy.refuses(command(name))
    }

    #[test]
    fn ids_are_places() {
        for (at, command) in COMMANDS.iter().enumerate() {
            assert_eq!(usize::from(command.id), at);
        }
    }

    #[test]
    fn each_base_allows_what_those_below_do() {
        let [cache, application, admin] =
            [Clearance::Cache, Clearance::Application, Clearance::Admin].map(Rules::of);
        for (name, expected) in [
            ("get", [true; 3]),
            ("flushall", [false, true, true]),
            ("script|flush", [false, true, true]),
            ("config|get", [true; 3]),
            ("config|set", [false, false, true]),
            ("debug", [false, false, true]),
            ("debug|object", [false, false, true]),
            ("quit", [true; 3]),
        ] {
            let is = [&cache, &application, &admin].map(|rules| permits(rules, name));
            assert_eq!(is, expected, "{name}");
        }
        // Refused by the gateway itself, in its own words.
        assert!(permits(&cache, "shutdown"));
    }

    #[test]
    fn the_most_specific_entry_decides_and_deny_between_equals() {
        use Clearance::{Admin, Application};
        let keys = rules(Admin, &["keys"], &["@dangerous"]);
        assert!(permits(&keys, "keys") && !permits(&keys, "sort") && permits(&keys, "get"));
        let config = rules(Application, &["config"], &["config|rewrite"]);
        assert!(permits(&config, "config|set") && !permits(&config, "config|rewrite"));
        let sub = rules(Application, &["config|set"], &["config"]);
        assert!(permits(&sub, "config|set") && !permits(&sub, "config|get"));
        let reads = rules(Admin, &["@read"], &["@all"]);
        assert!(permits(&reads, "get") && !permits(&reads, "set") && permits(&reads, "auth"));
        let both = rules(Admin, &["get", "@read"], &["get", "@read"]);
        assert!(!permits(&both, "get") && !permits(&both, "strlen"));
    }

    #[test]
    fn of_entries_that_are_equal_the_first_is_about_a_command() {
        let entries = ["@all", "@slow", "@string", "object", "get", "object|freq"];
        let of = |name: &str| most_specific(entries.into_iter(), command(name));
        for (name, expected) in [
            ("get", 4),
            ("getrange", 1),
            ("strlen", 2),
            ("hget", 0),
            ("object|freq", 5),
            ("object|encoding", 3),
        ] {
            assert_eq!(of(name), Some(expected), "{name}");
        }
        assert_eq!(most_specific(["get", "@hash"].into_iter(), command("strlen")), None);
    }

    #[test]
    fn the_fast_path_looks_only_where_it_has_to() {
        let policy = |rules: &Rules| Policy::new(rules, &CustomCommands::default());
        for base in [Clearance::Cache, Clearance::Admin] {
            assert!(!policy(&rules(base, &[], &["keys"])).refuses_plain());
        }
        assert!(policy(&rules(Clearance::Admin, &[], &["get"])).refuses_plain());
        assert!(policy(&rules(Clearance::Admin, &[], &["@string"])).refuses_plain());
    }

    #[test]
    fn what_is_renamed_stays_so_where_more_is_refused() {
        let policy = Policy::new(&Rules::of(Clearance::Admin), &CustomCommands::default());
        let renamed = policy.with_renames(&[("get".to_owned(), "fetch".to_owned())]);
        for name in ["monitor", "get"] {
            let without = renamed.without(|command| command.name == name);
            assert!(without.refuses_plain(), "{name}");
            assert!(without.guards_id(command("get").id));
            assert_eq!(without.refuses(command("get")), name == "get");
        }
    }

    #[test]
    fn faults_of_entries_are_told() {
        let custom = CustomCommands::default();
        let fault = |entry: &str, allows| Rules::fault(entry, allows, &custom);
        for (entry, expected) in [
            ("config|set", None),
            ("debug", None),
            ("@dangerous", None),
            ("@all", None),
            ("client", None),
            ("confg|set", Some(PolicyFault::UnknownCommand)),
            ("config|sett", Some(PolicyFault::UnknownSubcommand("config"))),
            ("get|set", Some(PolicyFault::UnknownSubcommand("get"))),
            ("debug|sleep", Some(PolicyFault::NotTold("debug"))),
            ("@dangeros", Some(PolicyFault::UnknownCategory)),
            ("json.get", Some(PolicyFault::UnknownCommand)),
        ] {
            assert_eq!(fault(entry, true), expected, "{entry}");
            assert_eq!(fault(entry, false), expected, "{entry}");
        }
        assert!(matches!(fault("shutdown", true), Some(PolicyFault::Unserved(_))));
        assert!(matches!(fault("psync", true), Some(PolicyFault::Unserved(_))));
        assert_eq!(fault("shutdown", false), None);
        assert_eq!(fault("auth", false), Some(PolicyFault::Undeniable));
        assert_eq!(fault("auth", true), None);
    }

    #[test]
    fn commands_of_modules_obey_names_and_the_categories_of_their_flags() {
        let define = |name: &str, flags: &[&str]| Definition {
            name: name.into(),
            arity: -2,
            keys: KeyPlaces::None,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let definitions = [
            define("Json.Get", &["readonly"]),
            define("json.set", &["write"]),
            define("ft.config", &["readonly", "admin"]),
        ];
        let custom = CustomCommands::new(&definitions, &CustomCommands::default());
        let refused = |rules: &Rules| Policy::new(rules, &custom).refused_custom;
        assert_eq!(refused(&Rules::of(Clearance::Application)), ["ft.config"]);
        assert_eq!(refused(&Rules::of(Clearance::Admin)), [""; 0]);
        let rules = rules(Clearance::Application, &["ft.config"], &["@write"]);
        assert_eq!(refused(&rules), ["json.set"]);
        assert_eq!(Rules::fault("json.get", true, &custom), None);
        let policy = Policy::new(&rules, &custom);
        assert!(custom.all().any(|command| policy.refuses(command)));
    }
}
