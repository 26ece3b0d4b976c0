//! What the table says about a command.

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
    /// How many of the entries behind this one in the table are its subcommands.
    pub subcommands: u8,
    pub clearance: Clearance,
    pub facts: Facts,
}

/// The id of all commands that are not in the table.
pub const CUSTOM_ID: u16 = u16::MAX;

/// The least `command_policy` by which clients may call a command. What the gateway refuses to
/// everybody needs none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clearance {
    Cache,
    /// Empties databases, or what servers keep for all clients.
    Application,
    /// Administers servers, other clients or the gateway.
    Admin,
}

/// What only COMMAND and the documentation tell. Words are separated by spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Redis's flags besides the ones that follow from `access` and `keys`.
    pub flags: &'static str,
    /// What is done with the keys, in the words of COMMAND's key specifications; different ones for
    /// different keys are separated by ", ".
    pub uses: &'static str,
    /// ACL categories besides those that follow from the flags; `None`: that of the group.
    pub categories: Option<&'static str>,
    pub tips: &'static str,
    /// The Redis, or else the Valkey, that had it first; empty if it was there in Redis 7.0.
    pub since: &'static str,
    /// COMMAND does not know its subcommands, and there are others, which go by its own rule.
    pub is_open: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// May go to a replica.
    Read,
    Write,
    /// Redis does not say: scripts, which may write, and what touches no keys.
    None,
}

/// Where the keys are among the arguments. Indexes count the command's name as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    None,
    /// As COMMAND has it: a negative `last` counts from the end.
    Range {
        first: u16,
        last: i16,
        step: u16,
    },
    /// Pairs of key and value up to the end, and the error for a key without a value.
    Pairs {
        uneven: &'static str,
    },
    /// A number of keys at `at`, the keys from `first` on, each with `step - 1` values behind it,
    /// at least `trailing` arguments after them, and a destination key at `destination` unless
    /// that is 0.
    Numkeys {
        at: u16,
        first: u16,
        step: u16,
        destination: u16,
        trailing: u16,
        faults: &'static NumkeysFaults,
    },
    /// SORT and SORT_RO: a key, and perhaps STORE with another; and patterns of further ones: see
    /// [`Command::patterns`].
    Sort {
        stores: bool,
    },
    /// GEORADIUS and GEORADIUSBYMEMBER: a key, and perhaps STORE or STOREDIST with another.
    Georadius,
    /// XREAD and XREADGROUP: STREAMS, the keys, and as many ids.
    Streams,
    /// MIGRATE: one, or those behind KEYS when that one is empty.
    Migrate,
}

/// What Redis answers to a number of keys that cannot be, which differs from command to command.
#[derive(Debug, PartialEq, Eq)]
pub struct NumkeysFaults {
    pub malformed: &'static str,
    pub negative: &'static str,
    /// `None` where a command may do without keys.
    pub zero: Option<&'static str>,
    pub too_many: &'static str,
}

/// How the gateway serves a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Untouched to the server that has its keys, which must be one. Without keys, which only
    /// scripts may be, to any.
    Forward,
    /// Keys may live on several servers, each of which gets the command with its own.
    Split(Merge),
    /// To several servers or to any, whatever its arguments.
    Fan(Fan),
    /// Answered by the gateway.
    Local(Local),
    /// To the server that has its keys, which may let it wait: it has a connection to itself, if
    /// [`Command::blocks`].
    Block,
    /// Changes what the connection's next commands mean.
    Session(SessionRule),
    Subscribe(Subscription),
    /// PUBLISH and SPUBLISH: to the server that has the channel.
    Publish,
    /// Untouched to the only server, or refused with this error where there are several.
    Single(&'static str),
    /// Known, and refused with this error, whose first word is its code.
    Refuse(&'static str),
    /// In the table for its subcommands only: [`super::find`] never finds it.
    Unsupported,
}

/// Who gets a command that has no key, and how the replies become one. An error of any server is
/// the answer, unless it says otherwise here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Add the integers.
    Sum,
    /// All say the same.
    Same,
    /// One array with the elements of all, those of the first server first.
    Concat,
    /// Entries of a log: the newest of all, as many as one server would tell.
    Newest,
    /// Samples that begin with their time, in its order.
    Timeline,
    /// Events with when they last happened: one entry for each.
    Events,
    /// The cursor says which server is next: SCAN.
    Scan,
    /// RANDOMKEY: one server after the other, from a random one on, until one has a key.
    RandomKey,
    /// The least of the integers.
    Least,
    /// The greatest of the integers.
    Most,
    /// Arrays of equal length: the least of the integers at each place.
    LeastEach,
    /// SCRIPT EXISTS: 1 for what every server has, or would be given when it is called.
    Scripts,
    /// Arrays of names and integers: the sum for each name.
    SumPairs,
    /// The first reply that is no error, or else the first error.
    AnyOk,
    /// FUNCTION STATS: of a server that runs something, or else of the first.
    Running,
    /// INFO: sections put together.
    Info,
    /// What each server says, under its name.
    PerServer,
    /// One server that is well: all would say the same.
    AnyServer,
}

/// Commands that change what the connection's next commands mean.
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

/// How the replies to the parts of a split command become one.
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
    /// The command's name says which subcommand.
    Client,
    Hello,
    /// ROLE: a master without replicas.
    Role,
    /// ACL WHOAMI.
    User,
}

/// What kind of data a command is about, in COMMAND DOCS's words.
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

    /// Whether `server:NAME` behind its arguments sends it to that server alone. None of these
    /// commands could mean anything else by that.
    pub fn is_addressable(&self) -> bool {
        self.group == Group::Server && matches!(self.rule, Rule::Fan(_))
    }

    /// Whether it has one of Redis's flags besides those that follow from the other facts.
    pub fn has_flag(&self, flag: &str) -> bool {
        self.facts.flags.split_whitespace().any(|of_it| of_it == flag)
    }

    /// Whether a server may repeat in an error, line ends and all, what a client has sent or what a
    /// script has made. That scripts and libraries do is known of Redis up to 8.2, of Valkey up to 9.0
    /// and in part of later ones; what a module of the servers does nobody knows.
    #[inline]
    pub const fn is_sealed(&self) -> bool {
        matches!(self.group, Group::Scripting) || self.id == CUSTOM_ID
    }

    /// Whether it may name another database than the one its client has.
    #[inline]
    pub const fn names_database(&self) -> bool {
        matches!(self.name.as_bytes(), b"copy" | b"move" | b"swapdb")
    }

    /// First key, last key and step as COMMAND shows them; zeros when they cannot say it.
    pub fn key_range(&self) -> (u16, i16, u16) {
        match self.keys {
            Keys::Range { first, last, step } => (first, last, step),
            Keys::Pairs { .. } => (1, -1, 2),
            Keys::Numkeys { destination: 1, .. } | Keys::Sort { .. } | Keys::Georadius => (1, 1, 1),
            Keys::Migrate => (3, 3, 1),
            Keys::None | Keys::Numkeys { .. } | Keys::Streams => (0, 0, 0),
        }
    }

    /// Whether only a look at the arguments tells where the keys are.
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
