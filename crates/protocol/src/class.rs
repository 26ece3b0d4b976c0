//! What commands are alike in, for counting.

/// A kind of commands that are counted together, of all protocols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CommandClass {
    /// Gets values by their keys: the only one that counts hits and misses.
    Get,
    /// Stores values.
    Store,
    Delete,
    /// Counts up or down.
    Counter,
    /// What else concerns strings, bitmaps among them.
    String,
    /// Concerns keys, whatever they hold.
    Key,
    Hash,
    List,
    Set,
    SortedSet,
    Stream,
    Script,
    PubSub,
    Transaction,
    /// Waits at the server for as long as it likes.
    Blocking,
    #[default]
    Other,
}

impl CommandClass {
    pub const COUNT: usize = 16;

    pub const ALL: [Self; Self::COUNT] = [
        Self::Get,
        Self::Store,
        Self::Delete,
        Self::Counter,
        Self::String,
        Self::Key,
        Self::Hash,
        Self::List,
        Self::Set,
        Self::SortedSet,
        Self::Stream,
        Self::Script,
        Self::PubSub,
        Self::Transaction,
        Self::Blocking,
        Self::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Store => "store",
            Self::Delete => "delete",
            Self::Counter => "counter",
            Self::String => "string",
            Self::Key => "key",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Stream => "stream",
            Self::Script => "script",
            Self::PubSub => "pubsub",
            Self::Transaction => "transaction",
            Self::Blocking => "blocking",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_number_and_a_name_of_its_own() {
        let mut names: Vec<&str> = CommandClass::ALL.map(CommandClass::name).into();
        assert!(CommandClass::ALL.iter().enumerate().all(|(at, &class)| at == class as usize));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CommandClass::COUNT);
    }
}
