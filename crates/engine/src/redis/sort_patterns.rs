//! Patterns of keys, which only the server that executes a command can complete: SORT's BY and GET.
//!
//! A server completes them to keys of its own. What lives elsewhere would be taken for missing, and
//! nobody would know that the answer is wrong; so such a command is sent only if every key that a
//! pattern can become is on the server that gets it.

use cashew_protocol::Span;
use cashew_protocol::redis::{Access, Command};

use crate::base::id::{ClientId, ServerId};
use crate::engine::Engine;
use crate::redis::cross_shard_copy::{remedy, shown};

impl Engine {
    /// The error for a command that would read keys of other servers than this one by patterns.
    pub(crate) fn stray_pattern(
        &mut self,
        client: ClientId,
        command: &Command,
        server: ServerId,
        bytes: &[u8],
        args: &[Span],
    ) -> Option<String> {
        if self.is_single(client) {
            return None;
        }
        let backend = self.backend_of(client);
        let tag = self.backends[backend].config.hash_tag;
        let stays = |engine: &mut Self, pattern: &[u8]| {
            // Only what stands before the asterisk is the same in every key: what takes its place may
            // have a tag itself.
            let fixed = pattern.split(|&byte| byte == b'*').next().unwrap_or(pattern);
            let is_fixed = tag.is_some_and(|tag| tag.part(fixed).len() < fixed.len());
            is_fixed && engine.route(backend, pattern, Access::Write) == Some(server)
        };
        let stray = command.patterns(bytes, args).find(|pattern| !stays(self, pattern))?;
        let (name, pattern, remedy) =
            (command.name.to_ascii_uppercase(), shown(stray), remedy(tag));
        Some(format!(
            "CROSSSLOT {name} would read keys like {pattern}, which may be on other servers: {remedy}"
        ))
    }
}
