//! Who answers the reads of one client: CLIENT READS, READONLY and READWRITE.
//!
//! What a client says holds for its connection, before what the pool says of commands and of all. It
//! goes along when the connection goes to another worker, and ends with RESET. What has to go to the
//! primary goes there all the same.

use cashew_config::snapshot::Reads;
use cashew_protocol::redis::{Command, NO_CLUSTER_TEXT};

use crate::base::id::ClientId;
use crate::downstream::listener::DestinationNumber;
use crate::downstream::receive::Plan;
use crate::engine::Engine;

const NO_REPLICAS: &str = "ERR CLIENT READS chooses among servers that have the same keys, and no \
                           server of this pool has replicas";
const NO_ZONE: &str = "ERR CLIENT READS zone needs the zone of this gateway, and its configuration \
                       has none for this pool";

impl Engine {
    /// CLIENT READS policy|default
    pub(crate) fn client_reads(&mut self, client: ClientId, name: &[u8]) -> Plan {
        let (listener, destination) = (self.listener_of(client), self.destination_of(client));
        let has_replicas = destination.has_replicas;
        // What is said of a pool is said of its own servers.
        let has_zone = match &destination.route {
            Some(_) if self.clients[client].destination == DestinationNumber::OWN => {
                listener.config.zone.is_some()
            }
            Some(route) => {
                let mut known = route.backends().iter().filter_map(|&it| self.backends.get(it));
                known.any(|backend| backend.config.zone.is_some())
            }
            None => self.backends[destination.backend].config.zone.is_some(),
        };
        let named = std::str::from_utf8(name).ok().and_then(Reads::named);
        let reads = match named {
            None if !name.eq_ignore_ascii_case(b"default") => {
                let names: Vec<&str> = Reads::ALL.iter().map(|(_, name)| *name).collect();
                let names = names.join(", ");
                let text = format!("ERR CLIENT READS takes one of {names}, or default");
                return self.reply_error(client, &text);
            }
            _ if !has_replicas => return self.reply_error(client, NO_REPLICAS),
            Some(Reads::Zone) if !has_zone => return self.reply_error(client, NO_ZONE),
            reads => reads,
        };
        self.set_reads(client, reads);
        self.say(client, b"+OK\r\n")
    }

    /// READONLY and READWRITE, by which clients of Redis Cluster say whether replicas may answer.
    pub(crate) fn readonly(&mut self, client: ClientId, command: &Command) -> Plan {
        if !self.destination_of(client).has_replicas && !self.poses(client) {
            return self.reply_error(client, NO_CLUSTER_TEXT);
        }
        let has_replicas = self.destination_of(client).has_replicas;
        let reads = (has_replicas && command.name == "readonly").then_some(Reads::PreferReplica);
        self.set_reads(client, reads);
        self.say(client, b"+OK\r\n")
    }

    pub(crate) fn set_reads(&mut self, client: ClientId, reads: Option<Reads>) {
        self.clients[client].reads = reads;
        if reads == Some(Reads::Nearest) {
            let backend = self.backend_of(client);
            self.backends[backend].heed_latency();
        }
    }
}
