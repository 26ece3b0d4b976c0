//! The options of nodes. Their doc comments are in the schema.

use schemars::{Schema, json_schema};

use super::Branch;
use crate::diagnostic::{At, Complaint, Pos, Report, nearest};
use crate::replica_reads::Span;
use crate::section::{OptionInfo, Section, section};
use crate::snapshot::FailoverOn;
use crate::tree::{Kind, Node};
use crate::value::{FilePath, Number, Size, Switch, Text, Value, all_digits, list_of, named};

/// Most children of a node that has a list of them.
pub(super) const CHILDREN_MAX: usize = 64;

/// How long what is stored elsewhere may live: 30 days, more is a date to memcached.
pub(super) type Ttl = Span<1000, 2_592_000_000>;

/// How long a reply may be kept.
pub(super) type KeptFor = Span<10, 86_400_000>;
/// The same of one that says that there is no such key.
pub(super) type NegativeFor = Span<0, 86_400_000>;

section! {
    /// A prefix that is not sent as it is.
    ArmSection {
        /// Where the keys go.
        to: Branch = required,
        /// Whether servers see the keys without the prefix.
        strip: Switch = "false",
        /// What servers see in the prefix' place.
        rewrite: Text = none,
    }
}

section! {
    /// By the whole key.
    KeysSection {
        /// Keys, and where each goes.
        exact: Table = none,
        /// A file with a line for each key: the key, a space, and the name of a pool or a node. It is read when
        /// the configuration is loaded.
        file: FilePath = none,
    }
}

section! {
    /// By what the command does.
    OperationSection {
        /// Where reads go.
        read: Branch = none,
        /// Where writes go.
        write: Branch = none,
        /// Where deletions go; where writes do unless it is set.
        delete: Branch = none,
    }
}

section! {
    /// The next child is asked if one has failed.
    FailoverSection {
        /// The children in their order.
        failover: Branches = required,
        /// After what the next child is asked.
        on: OnList = none,
        /// How long what is stored in another child than the first lives at most.
        ttl: Ttl = none,
    }
}

section! {
    /// Every child is asked, and the first good answer is the client's.
    FastestSection {
        /// The children.
        all_fastest: Branches = required,
        /// Whether a miss is an answer like others (`first`), or only if no child has a hit (`last`).
        miss: Miss = "first",
    }
}

section! {
    /// Reads that miss in one pool are asked of another, and what that has is added to the first.
    WarmUpSection {
        /// The pool that everything goes to.
        cold: Branch = required,
        /// The pool that is asked after a miss.
        warm: Branch = required,
        /// How long what is added lives; as long as in `warm` unless it is set.
        ttl: Ttl = none,
    }
}

section! {
    /// A share of the keys is asked of another child as well.
    ShadowSection {
        /// Whose answers clients get.
        to: Branch = required,
        /// Who is asked as well.
        shadow: Branch = required,
        /// Of how many of the keys.
        share: KeyShare = "100%",
        /// Whether answers are compared, and those that differ counted.
        compare: Switch = "false",
        /// Requests to `shadow` that may be on their way from one worker; beyond that none is made.
        outstanding: Number<1, 1048576> = "100",
    }
}

section! {
    /// Keys move from one child to another.
    MigrateSection {
        /// Where keys are.
        from: Branch = required,
        /// Where they will be.
        to: Branch = required,
        /// How many of the keys `to` has by now. Needed unless `directory` is set.
        share: KeyShare = none,
        /// Whether both get what is written.
        dual_write: Switch = "false",
        /// Whether the other one is asked after a miss.
        read_other: Switch = "false",
        /// The gateway copies one pool to the other, and keeps here how far it is. `cashew migrate` has commands
        /// for it. Belongs to one instance.
        directory: FilePath = none,
        /// Keys that are copied in a second at most; 0 is as many as possible. Only with `directory`.
        rate: Number<0, 10000000> = "0",
        /// Bytes of values that are copied in a second at most, beside `rate`. Only with `directory`.
        bandwidth: Size<65536, 1099511627776> = none,
    }
}

section! {
    /// Keys have several copies, each under a name of its own.
    KeySplitSection {
        /// The pool that has them.
        to: Branch = required,
        /// How many.
        copies: Number<2, 1000> = required,
    }
}

section! {
    /// Beyond so many requests per second there is an error.
    LimitSection {
        /// Where the others go.
        to: Branch = required,
        /// Requests per second, of each worker.
        rate: Number<1, 10000000> = required,
        /// Requests that may come at once after a pause; as many as in a second unless it is set.
        burst: Number<1, 100000000> = none,
    }
}

section! {
    /// Beyond so many requests on their way there is an error.
    OutstandingSection {
        /// Where the others go.
        to: Branch = required,
        /// Requests on their way, of each worker.
        max: Number<1, 1048576> = required,
    }
}

section! {
    /// The gateway keeps replies to reads of hot keys.
    CacheSection {
        /// Where all other requests go.
        to: Branch = required,
        /// Memory for replies and their keys, of all workers together, at least 64kb; each has an equal share.
        bytes: Size<65536, 1099511627776> = "64mb",
        /// The longest life of a reply, from when its server was asked: what others write is seen after it at the
        /// latest. Of Redis 10s and of memcached 1s unless it is set.
        ttl: KeptFor = none,
        /// The same of a reply that says that there is no such key; 0 keeps none of those.
        negative: NegativeFor = "0",
        /// The longest reply that is kept, at most a 16th of `bytes`. 64kb, or that 16th if it is less, unless it is set.
        value_max: Size<64, 1048576> = none,
        /// What keys begin with that may be kept. All that come here unless it is set; below a prefix those with it.
        keys: KeyStarts = none,
        /// Whether only those are kept that are hot: by the [`hot_keys`](configuration.md) of their pool, or since
        /// [`cashew hot --do cache`](how-to.md#a-key-is-hot) said so.
        hot_only: Switch = "false",
    }
}

section! {
    /// Writes go to one region, and from there to the others.
    RegionsSection {
        /// The regions by their names, and where the keys of each are.
        to: Regions = required,
        /// The region of this gateway.
        here: Text = required,
        /// The region that writes go to first: this one's unless it is set.
        primary: Text = none,
        /// Which region answers reads: this one's unless it is set.
        reads: Text = none,
        /// Writes that may be on their way to the other regions from one worker; what is beyond that they are
        /// told to forget.
        outstanding: Number<1, 1048576> = "10000",
    }
}

/// Whether a section is about a node.
pub(crate) fn is_of_node(section: &str) -> bool {
    [
        ArmSection::NAME,
        KeysSection::NAME,
        OperationSection::NAME,
        FailoverSection::NAME,
        FastestSection::NAME,
        WarmUpSection::NAME,
        ShadowSection::NAME,
        MigrateSection::NAME,
        KeySplitSection::NAME,
        LimitSection::NAME,
        OutstandingSection::NAME,
        CacheSection::NAME,
        RegionsSection::NAME,
    ]
    .contains(&section)
}

/// Children in their order.
#[derive(Debug)]
pub(super) struct Branches(pub(super) Vec<Node>);

impl Value for Branches {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("children are a list").hint("for example [a, b]"))
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "array", "minItems": 2, "maxItems": CHILDREN_MAX, "items": Branch::schema(),
        })
    }

    fn describe() -> String {
        "a list of pools and nodes".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let complaint = match &node.kind {
            Kind::List(items) if (2..=CHILDREN_MAX).contains(&items.len()) => {
                return Some(Self(items.clone()));
            }
            Kind::List(items) => match items.len() {
                0 => {
                    Complaint::new(format!("\"{key}\" has no children")).hint("for example [a, b]")
                }
                1 => Complaint::new(format!("\"{key}\" has only one child"))
                    .hint("with one there is nothing to choose: name it in this node's place"),
                many => Complaint::new(format!("{many} children are too many for \"{key}\""))
                    .hint(format!("at most {CHILDREN_MAX}")),
            },
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => {
                Complaint::new(format!("\"{key}\" takes a list")).hint("for example [a, b]")
            }
        };
        report.error(node.pos, complaint);
        None
    }
}

/// What stands beside each key.
#[derive(Debug)]
pub(super) struct Table(pub(super) Vec<(At<String>, Node)>);

impl Value for Table {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("option \"exact\" takes a section of keys")
            .hint("for example {banner: hot}"))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "object", "additionalProperties": Branch::schema() })
    }

    fn describe() -> String {
        "a section of keys".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        match &node.kind {
            Kind::Section(entries) => Some(Self(entries.clone())),
            Kind::Empty | Kind::Scalar { .. } | Kind::List(_) => {
                Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok()
            }
        }
    }
}

/// Most starts of keys of a node.
const KEY_STARTS_MAX: usize = 64;

/// What keys begin with.
#[derive(Debug)]
pub(super) struct KeyStarts(pub(super) Vec<String>);

impl Value for KeyStarts {
    fn parse(text: &str) -> Result<Self, Complaint> {
        match text {
            "" => Err(Complaint::new("all keys begin with nothing")
                .hint("without \"keys\" all may be kept")),
            text if text.contains(['*', '?', '[']) => {
                Err(Complaint::new(format!("\"{text}\" is no start of a key"))
                    .hint("expected what keys begin with, such as 'user:', without wildcards"))
            }
            text => Ok(Self(vec![text.to_owned()])),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "type": "string", "minLength": 1 },
            {
                "type": "array", "minItems": 1, "maxItems": KEY_STARTS_MAX,
                "items": { "type": "string", "minLength": 1 },
            },
        ] })
    }

    fn describe() -> String {
        "a list of starts of keys".to_owned()
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) if (1..=KEY_STARTS_MAX).contains(&items.len()) => items.as_slice(),
            Kind::List(items) => {
                let message = format!("option \"{key}\" has {} starts of keys", items.len());
                let complaint = Complaint::new(message);
                report.error(node.pos, complaint.hint(format!("expected 1 to {KEY_STARTS_MAX}")));
                return None;
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => std::slice::from_ref(node),
        };
        let mut starts = Vec::new();
        let mut is_good = true;
        for item in items {
            let Some(word) = Text::read(key, item, report) else {
                is_good = false;
                continue;
            };
            match Self::parse(&word.0) {
                Ok(Self(start)) => starts.extend(start),
                Err(complaint) => {
                    report.error(item.pos, complaint);
                    is_good = false;
                }
            }
        }
        starts.sort();
        starts.dedup();
        is_good.then_some(Self(starts))
    }
}

/// Regions by their names.
#[derive(Debug)]
pub(super) struct Regions(pub(super) Vec<(At<String>, Node)>);

impl Value for Regions {
    fn parse(_: &str) -> Result<Self, Complaint> {
        Err(Complaint::new("\"to\" takes a section of regions")
            .hint("for example {eu: pool_eu, us: pool_us}"))
    }

    fn schema() -> Schema {
        json_schema!({ "type": "object", "minProperties": 2, "additionalProperties": Branch::schema() })
    }

    fn describe() -> String {
        "a section of regions".to_owned()
    }

    fn read(_: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        match &node.kind {
            Kind::Section(entries) if (2..=REGIONS_MAX).contains(&entries.len()) => {
                Some(Self(entries.clone()))
            }
            Kind::Section(entries) => {
                let message = format!("there are {} regions", entries.len());
                let complaint =
                    Complaint::new(message).hint(format!("expected 2 to {REGIONS_MAX}"));
                report.error(node.pos, complaint);
                None
            }
            Kind::Empty | Kind::Scalar { .. } | Kind::List(_) => {
                Self::parse("").map_err(|complaint| report.error(node.pos, complaint)).ok()
            }
        }
    }
}

/// Most regions of a node.
const REGIONS_MAX: usize = 16;

const FAILURES: [&str; 3] = ["refused", "timeout", "error"];

/// After what another child is asked.
#[derive(Debug)]
pub(super) struct OnList(pub(super) FailoverOn);

impl Value for OnList {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let mut on = FailoverOn { refused: false, timeout: false, error: false };
        match text {
            "refused" => on.refused = true,
            "timeout" => on.timeout = true,
            "error" => on.error = true,
            other => {
                let suggestion = nearest(other, FAILURES)
                    .map_or_else(String::new, |name| format!("; did you mean \"{name}\"?"));
                let message = format!("\"{other}\" is no kind of failure{suggestion}");
                return Err(Complaint::new(message)
                    .hint(format!("expected one or more of {}", FAILURES.join(", "))));
            }
        }
        Ok(Self(on))
    }

    fn schema() -> Schema {
        json_schema!({ "anyOf": [
            { "enum": FAILURES },
            { "type": "array", "minItems": 1, "uniqueItems": true, "items": { "enum": FAILURES } },
        ] })
    }

    fn describe() -> String {
        format!("a list of {}", list_of(&FAILURES))
    }

    fn read(key: &str, node: &Node, report: &mut Report<'_>) -> Option<Self> {
        let items = match &node.kind {
            Kind::List(items) if items.is_empty() => {
                let complaint = Complaint::new(format!("option \"{key}\" is an empty list"));
                report.error(node.pos, complaint.hint("without it all failures count"));
                return None;
            }
            Kind::List(items) => items.as_slice(),
            Kind::Empty | Kind::Scalar { .. } | Kind::Section(_) => std::slice::from_ref(node),
        };
        let mut all = FailoverOn { refused: false, timeout: false, error: false };
        let mut is_good = true;
        for item in items {
            let Some(word) = Text::read(key, item, report) else {
                is_good = false;
                continue;
            };
            match Self::parse(&word.0) {
                Ok(Self(on)) => {
                    all.refused |= on.refused;
                    all.timeout |= on.timeout;
                    all.error |= on.error;
                }
                Err(complaint) => {
                    report.error(item.pos, complaint);
                    is_good = false;
                }
            }
        }
        is_good.then_some(Self(all))
    }
}

const MISSES: [&str; 2] = ["first", "last"];

/// When a miss is an answer.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Miss {
    First,
    Last,
}

impl Value for Miss {
    fn parse(text: &str) -> Result<Self, Complaint> {
        named(text, "place of a miss", &MISSES)
    }

    fn schema() -> Schema {
        json_schema!({ "enum": MISSES })
    }

    fn describe() -> String {
        list_of(&MISSES)
    }
}

/// Of 10,000 keys, so many.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyShare(pub(super) u32);

impl Value for KeyShare {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let complaint = |message: String| Complaint::new(message).hint(Self::expected());
        let no_share = || complaint(format!("\"{text}\" is not a share"));
        let number = text.strip_suffix('%').ok_or_else(no_share)?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        if !all_digits(whole) || !all_digits(part) {
            return Err(no_share());
        }
        if part.len() > 2 {
            return Err(complaint(format!("{text} is finer than 0.01%")));
        }
        let hundredths = format!("{part:0<2}").parse::<u64>().unwrap_or(0);
        let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
        match whole.saturating_mul(100).saturating_add(hundredths) {
            share @ 0..=10_000 => Ok(Self(share as u32)),
            _ => Err(complaint(format!("{text} is more than all"))),
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,3}(\\.[0-9]{1,2})? ?%$" })
    }

    fn describe() -> String {
        "0% to 100%".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_counted_in_ten_thousandths() {
        let share = |text| KeyShare::parse(text).ok().map(|share| share.0);
        let shares = ["0%", "0.01%", "0.5%", "25%", "33.33 %", "100%", "100.00%"].map(share);
        assert_eq!(shares, [0, 1, 50, 2500, 3333, 10_000, 10_000].map(Some));
        for text in
            ["", "%", "25", "100.01%", "101%", "-1%", "0.001%", "1.%", ".5%", "half", "1e1%"]
        {
            assert_eq!(share(text), None, "{text}");
        }
    }
}
