//! The table's entry of a command.

#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    /// Its place in [`super::COMMANDS`], or [`CUSTOM_ID`].
    pub id: u16,
    /// Lower case; a subcommand is "container|subcommand", as in Redis.
    pub name: &'static str,
    /// Arguments including the name, and the subcommand's name; negative: at least that many.
    pub arity: i16,
    pub access: Access,
    pub keys: Keys,
    pub rule: Rule,
    pub group: Group,
    /// How many of the following entries are its subcommands.
    pub subcommands: u8,
    pub clearance: Clearance,
    pub facts: Facts,
}

/// The id of all commands that are not in the table.
pub const CUSTOM_ID: u16 = u16::MAX;

/// The lowest `command_policy` that allows a command. Commands that the gateway refuses for all
/// clients need none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clearance {
    Cache,
    /// Empties databases, or data that servers keep for all clients.
    Application,
    /// Administers servers, other clients or the gateway.
    Admin,
}

/// Values that only COMMAND and the documentation show. Words are separated by spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Redis's flags besides the ones that follow from `access` and `keys`.
    pub flags: &'static str,
    /// The use of the keys, in the terms of COMMAND's key specifications; different ones for
    /// different keys are separated by ", ".
    pub uses: &'static str,
    /// ACL categories besides those that follow from the flags; `None`: that of the group.
    pub categories: Option<&'static str>,
    pub tips: &'static str,
    /// The first version of Redis, or else of Valkey, with it; empty for Redis 7.0 and earlier, and
    /// "Cashew" for what only the gateway has.
    pub since: &'static str,
    /// COMMAND does not know its subcommands; unknown ones follow its own rule.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// May go to a replica.
    Read,
    Write,
    /// Redis does not define it: scripts, which may write, and commands without keys.
    None,
    /// Reads by a cursor that only the server knows that gave it.
    Walk,
}

impl Access {
    /// Whether it changes nothing, and is known not to.
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Walk)
    }
}

/// Where the keys are among the arguments. Indexes count the command's name as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    None,
    /// As in COMMAND: a negative `last` counts from the end.
    Range {
        first: u16,
        last: i16,
        step: u16,
    },
    /// Pairs of key and value up to the end, and the error for a key without a value.
    Pairs {
        uneven: &'static str,
    },
    /// A number of keys at `at`, the keys from `first` on, each followed by `step - 1` values, at
    /// least `trailing` arguments after them, and a destination key at `destination` unless that is
    /// 0.
    Numkeys {
        at: u16,
        first: u16,
        step: u16,
        destination: u16,
        trailing: u16,
        faults: &'static NumkeysFaults,
    },
    /// SORT and SORT_RO: a key, optionally STORE with another; and patterns of further ones: see
    /// [`Command::patterns`].
    Sort {
        stores: bool,
    },
    /// GEORADIUS and GEORADIUSBYMEMBER: a key, optionally STORE or STOREDIST with another.
    Georadius,
    /// XREAD and XREADGROUP: STREAMS, the keys, and as many ids.
    Streams,
    /// MIGRATE: one key, or those after KEYS if that one is empty.
    Migrate,
}

/// Redis's errors for an invalid number of keys, which differ between commands.
#[derive(Debug, PartialEq, Eq)]
pub struct NumkeysFaults {
    pub malformed: &'static str,
    pub negative: &'static str,
    /// `None` if a command may have no keys.
    pub zero: Option<&'static str>,
    pub too_many: &'static str,
}

/// How the gateway serves a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Unchanged to the server of its keys, which must be on one. Only scripts may have no keys;
    /// they go to any server.
    Forward,
    /// Keys may be on several servers, each of which gets the command with its own keys.
    Split(Merge),
    /// To several servers or to any, whatever its arguments.
    Fan(Fan),
    /// Answered by the gateway.
    Local(Local),
    /// To the server of its keys, which may block it: it has an exclusive connection if
    /// [`Command::blocks`].
    Block,
    /// Affects the connection's next commands.
    Session(SessionRule),
    Subscribe(Subscription),
    /// PUBLISH and SPUBLISH: to the server that has the channel.
    Publish,
    /// Unchanged to the only server, or refused with this error if there are several.
    Single(&'static str),
    /// Known, and refused with this error, whose first word is its code.
    Refuse(&'static str),
    /// In the table for its subcommands only: [`super::find`] never finds it.
    Unsupported,
}

/// Which servers get a command without a key, and how the replies are combined. An error of any
/// server is the reply, unless stated otherwise here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Add the integers.
    Sum,
    /// All replies are the same.
    Same,
    /// One array with the elements of all, in the order of the servers.
    Concat,
    /// Entries of a log: the newest of all, as many as one server would return.
    Newest,
    /// Samples that begin with their time, sorted by it.
    Timeline,
    /// Events with their latest time: one entry for each.
    Events,
    /// The cursor contains the next server: SCAN.
    Scan,
    /// RANDOMKEY: one server after the other, from a random one on, until one has a key.
    RandomKey,
    /// The smallest of the integers.
    Least,
    /// The largest of the integers.
    Most,
    /// Arrays of equal length: the smallest integer at each place.
    LeastEach,
    /// SCRIPT EXISTS: 1 for a script that every server has, or would get when it is called.
    Scripts,
    /// Arrays of names and integers: the sum for each name.
    SumPairs,
    /// The first reply that is no error, or else the first error.
    AnyOk,
    /// FUNCTION STATS: of a server that runs something, or else of the first.
    Running,
    /// INFO: combined sections.
    Info,
    /// Each server's reply, by server name.
    PerServer,
    /// One healthy server: all would give the same reply.
    AnyServer,
}

/// Commands that affect the connection's next commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRule {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Reset,
    Monitor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription {
    Subscribe,
    Unsubscribe,
    Psubscribe,
    Punsubscribe,
    Ssubscribe,
    Sunsubscribe,
}

/// How the replies to the parts of a split command are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// One array in the order of the keys.
    Gather,
    Sum,
    AllOk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    Ping,
    Echo,
    Quit,
    Auth,
    Select,
    /// COMMAND and its subcommands: [`super::command_reply`].
    Command,
    /// The command's name contains the subcommand.
    Client,
    Hello,
    /// ROLE: a master without replicas.
    Role,
    /// ACL WHOAMI.
    User,
    /// What ACL tells of users, and ACL CAT.
    Acl,
    /// ROUTE EXPLAIN: where a key goes.
    Route,
    /// SLOWLOG: what was slow here. The servers' own are reached by name.
    SlowLog,
    /// HOTKEYS TOP: which keys are hot here.
    HotKeys,
    /// READONLY and READWRITE: whether replicas answer the client's reads.
    Reads,
    /// ASKING, and what CLUSTER tells: of a pool that looks like a cluster.
    Cluster,
}

/// The kind of data that a command is about, in the terms of COMMAND DOCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Array,
    Bitmap,
    Cluster,
    Connection,
    Generic,
    Geo,
    Hash,
    Hyperloglog,
    List,
    /// Of a module: a part of Redis, or configured.
    Module,
    Pubsub,
    Scripting,
    Server,
    Set,
    SortedSet,
    Stream,
    String,
    Transactions,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Bitmap => "bitmap",
            Self::Cluster => "cluster",
            Self::Connection => "connection",
            Self::Generic => "generic",
            Self::Geo => "geo",
            Self::Hash => "hash",
            Self::Hyperloglog => "hyperloglog",
            Self::List => "list",
            Self::Module => "module",
            Self::Pubsub => "pubsub",
            Self::Scripting => "scripting",
            Self::Server => "server",
            Self::Set => "set",
            Self::SortedSet => "sorted-set",
            Self::Stream => "stream",
            Self::String => "string",
            Self::Transactions => "transactions",
        }
    }
}

impl Command {
    /// Index in the arguments of the only key, when there is exactly one and at a fixed place.
    #[inline]
    pub fn single_key(&self) -> Option<usize> {
        match self.keys {
            Keys::Range { first, last, .. } if i32::from(first) == i32::from(last) => {
                Some(usize::from(first))
            }
            _ => None,
        }
    }

    /// Whether a request with this many arguments has as many as the command takes.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { args >= arity } else { args == arity }
    }

    /// Whether a last argument `server:NAME` sends it to that server alone. For these commands it
    /// has no other meaning.
    pub fn is_addressable(&self) -> bool {
        self.group == Group::Server
            && matches!(self.rule, Rule::Fan(_) | Rule::Local(Local::SlowLog))
    }

    /// Whether any server may answer it that has a copy of its keys.
    pub fn may_be_read_from_replicas(&self) -> bool {
        let is_by_keys = matches!(self.rule, Rule::Forward | Rule::Split(_) | Rule::Block);
        self.access == Access::Read && is_by_keys
    }

    /// Whether it has one of Redis's flags besides those that follow from the other fields.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.facts.flags.split_whitespace().any(|of_it| of_it == flag)
    }

    /// Whether a server may repeat in an error, including line ends, what a client has sent or a
    /// script has made. For scripts and libraries this is known of Redis up to 8.2, of Valkey up to
    /// 9.0 and partly of later ones; for modules it is unknown.
    #[inline]
    pub const fn is_sealed(&self) -> bool {
        matches!(self.group, Group::Scripting) || self.id == CUSTOM_ID
    }

    /// Whether the same data may be answered differently, more than by the order of what is in it: by the time, or by
    /// chance.
    pub const fn varies(&self) -> bool {
        const TIP: &[u8] = b"nondeterministic_output";
        let tips = self.facts.tips.as_bytes();
        let mut at = 0;
        while at + TIP.len() <= tips.len() {
            let mut len = 0;
            while len < TIP.len() && tips[at + len] == TIP[len] {
                len += 1;
            }
            let end = at + len;
            if len == TIP.len() && (end == tips.len() || tips[end] == b' ') {
                return true;
            }
            at += 1;
        }
        false
    }

    /// Whether it may refer to another database than its client's.
    #[inline]
    pub const fn names_database(&self) -> bool {
        matches!(self.name.as_bytes(), b"copy" | b"move" | b"swapdb")
    }

    /// First key, last key and step as COMMAND shows them; zeros if they cannot express it.
    pub fn key_range(&self) -> (u16, i16, u16) {
        match self.keys {
            Keys::Range { first, last, step } => (first, last, step),
            Keys::Pairs { .. } => (1, -1, 2),
            Keys::Numkeys { destination: 1, .. } | Keys::Sort { .. } | Keys::Georadius => (1, 1, 1),
            Keys::Migrate => (3, 3, 1),
            Keys::None | Keys::Numkeys { .. } | Keys::Streams => (0, 0, 0),
        }
    }

    /// Whether the keys' positions depend on the arguments.
    pub fn has_movable_keys(&self) -> bool {
        match self.keys {
            Keys::None | Keys::Range { .. } | Keys::Pairs { .. } => false,
            Keys::Numkeys { .. }
            | Keys::Sort { .. }
            | Keys::Georadius
            | Keys::Streams
            | Keys::Migrate => true,
        }
    }
}
