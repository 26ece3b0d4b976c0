//! The files that the master begins with, and what another program has told it, are refused, or the gateway can serve with
//! what they say.

use std::sync::LazyLock;

use cashew_config::{Context, Snapshot};

use crate::sources::serve;

const CONFIG: &str = "
a: {listen: 127.0.0.1:1, redis: true, servers_from: {file: /nowhere}}
b: {listen: 127.0.0.1:2, redis: true, servers: ['127.0.0.1:7001:1 s1', '127.0.0.1:7002:1 s2'], server_maintenance: true}
c: {listen: 127.0.0.1:3, redis: true, sentinels: ['h:1'], servers: [{name: s1, sentinel: one}, {name: s2, sentinel: two}]}
";

static SNAPSHOT: LazyLock<Snapshot> =
    LazyLock::new(|| match cashew_config::parse("states.yml", CONFIG, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(errors) => panic!("{errors}"),
    });

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let mut snapshot = SNAPSHOT.clone();
    cashew_supervisor::read_state(kind, bytes, &mut snapshot);
    if snapshot != *SNAPSHOT {
        serve(&snapshot);
    }
}
