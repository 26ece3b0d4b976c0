//! For tests of what comes from outside: reads bytes as the answers that they might be.

use cashew_config::snapshot::Server;

use crate::answer;
use crate::cluster::view::View;
use crate::sources::dns_message::Kind;
use crate::sources::{self, dns_message};

/// Reads bytes as an answer of that kind. Whatever they are, it is read or not, and nothing panics.
#[doc(hidden)]
pub fn read_foreign(kind: u8, bytes: &[u8]) {
    let asked = answer::address("10.0.0.1", "6379");
    match kind % 6 {
        kind @ 0..=2 => {
            let kind = [Kind::A, Kind::Aaaa, Kind::Srv][usize::from(kind)];
            // The header and the question are right mostly, or nothing would be read.
            let mut answer = dns_message::question(7, "a.example", kind);
            answer.truncate(answer.len() - 11);
            answer[2] |= 0x80;
            answer[6..12].fill(0);
            if let Some((&count, records)) = bytes.split_first() {
                answer[7] = count % 8;
                answer.extend_from_slice(records);
            }
            for bytes in [&answer[..], bytes] {
                _ = dns_message::reply(bytes, 7, "a.example", kind);
            }
        }
        3 => {
            // Three answers, with an empty line between them.
            let mut parts = bytes.splitn(3, |&byte| byte == 0);
            let mut part = || parts.next().unwrap_or_default();
            if let Some(asked) = &asked {
                _ = View::read(part(), part(), part(), asked);
            }
        }
        _ => {
            _ = answer::primary(bytes);
            _ = answer::refusal(bytes);
            _ = answer::config_epoch(bytes);
            _ = answer::replicas(bytes);
            _ = answer::event(bytes, "master");
            _ = answer::report(bytes);
            _ = answer::member(bytes);
            _ = answer::is_loading(bytes);
        }
    }
}

/// Reads bytes as what a source says, first all of it and then what changes: the servers that it names then. `None` if
/// it is not understood.
#[doc(hidden)]
pub fn read_source(kind: u8, bytes: &[u8]) -> Option<Vec<Server>> {
    let said = match kind % 4 {
        0 => sources::read_consul(bytes),
        1 => sources::read_etcd(bytes),
        2 => sources::read_kubernetes(bytes),
        _ => sources::read_list(bytes),
    };
    said.ok()
}
