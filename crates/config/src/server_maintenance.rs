//! Whether servers are asked to tell of their maintenance: `server_maintenance`.

use schemars::{Schema, json_schema};

use crate::diagnostic::{Complaint, Report};
use crate::file::PoolSection;
use crate::snapshot::{Endpoint, MovingEndpoint, Pool, Protocol, ServerMaintenance};
use crate::value::{Value, list_of, named};

/// As [`MovingEndpoint`] is serialized, but for what `true` is.
const ENDPOINTS: [&str; 7] =
    ["true", "false", "none", "internal-ip", "internal-fqdn", "external-ip", "external-fqdn"];

#[derive(Clone, Debug)]
pub(crate) struct MaintenanceText(pub(crate) Option<ServerMaintenance>);

impl Value for MaintenanceText {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let endpoint = match text {
            "false" => return Ok(Self(None)),
            "true" => MovingEndpoint::Auto,
            "auto" => return Err(Complaint::new("\"auto\" is \"true\" here")),
            _ => named(text, "form of an address", &ENDPOINTS)?,
        };
        Ok(Self(Some(ServerMaintenance { endpoint, ..ServerMaintenance::default() })))
    }

    fn schema() -> Schema {
        let names = &ENDPOINTS[2..];
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "enum": names }] })
    }

    fn describe() -> String {
        list_of(&ENDPOINTS)
    }
}

/// Where somebody else says where servers are, that is who is followed.
pub(crate) fn check(pool: &Pool, section: &PoolSection, report: &mut Report<'_>) {
    if section.server_maintenance.value.0.is_none() {
        return;
    }
    let is_unix = |it: &crate::snapshot::Server| matches!(it.endpoint, Endpoint::Unix(_));
    let hint = if pool.protocol == Protocol::Memcached {
        "memcached does not tell of it"
    } else if pool.is_cluster() {
        "the map of the cluster says where its nodes are, and it is followed"
    } else if pool.sentinel.is_some() {
        "Sentinels say where the primaries are, and they are followed"
    } else if pool.servers_from.is_some() {
        "the source says where servers are, and it is followed"
    } else if pool.servers.iter().any(is_unix) {
        "a server at a Unix socket goes nowhere"
    } else {
        return;
    };
    let complaint = Complaint::new("\"server_maintenance\" is not for this pool").hint(hint);
    report.error(section.server_maintenance.pos, complaint);
}
