//! CAS uniques as clients see them.

use cashew_config::snapshot::{CasUniques, Pool, Server};
use cashew_protocol::memcached::Tag;

use crate::random::Random;

/// The largest unique that clients guess.
const GUESS_MAX: u64 = 20;

/// The tag of a server of the pool.
pub(crate) fn tag(config: &Pool, server: &Server) -> Tag {
    match config.memcached.cas_uniques {
        CasUniques::Tagged => Tag::of(server.endpoint.to_string().as_bytes()),
        CasUniques::Plain => Tag::default(),
        CasUniques::Auto => unreachable!("pools here say what they want"),
    }
}

/// Uniques that a client may guess: those of all servers that its pool has or had.
pub(crate) struct Uniques(Vec<Tag>);

impl Uniques {
    pub(crate) fn new(config: &Pool) -> Self {
        Self(config.servers.iter().map(|server| tag(config, server)).collect())
    }

    pub(crate) fn guess(&self, random: &mut Random) -> u64 {
        let tag = self.0[random.below(self.0.len() as u64) as usize];
        tag.apply(random.range(1, GUESS_MAX))
    }
}
