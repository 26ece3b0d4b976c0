//! Where the primaries of groups are: asks Sentinels, and the servers themselves, and says when one
//! has moved. [`Group`] decides, without any I/O; [`Watch`] keeps the connections. And how
//! far replicas have come: [`Replication`] decides, [`Members`] keeps the connections. And which nodes and slots
//! clusters have.
//! And what servers tell of their maintenance: [`ServerMaintenances`].
//! And which servers files, DNS, etcd, Consul and Kubernetes name for pools: [`Finder`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used))]

mod answer;
mod ask;
mod cluster;
mod direct;
mod foreign;
mod group;
mod link;
mod maintenance;
mod members;
mod notices;
mod replica_views;
mod replication;
mod role;
mod sources;
mod watch;

pub use cashew_tls::Security;

pub use ask::ask_once;
pub use direct::Direct;
pub use foreign::{read_foreign, read_source};
pub use group::{Event, Group, Output, Report, State, View};
pub use maintenance::{MaintenanceStatus, Relocated, ServerMaintenances};
pub use members::Members;
pub use replication::{MemberReport, Replication};
pub use role::{Role, role_of};
pub use sources::{Finder, FoundServers, HeldStatus, SourceStatus, find_once, list_once};
pub use watch::{News, Watch};
