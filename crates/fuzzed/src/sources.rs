//! What etcd, Consul, Kubernetes and files say of servers is refused, or the gateway can serve with it.

use std::collections::HashSet;
use std::sync::LazyLock;

use cashew_config::{Context, Snapshot, from_json, to_json};
use cashew_engine::{Engine, Identity, Plan, Setup, Time};
use cashew_metrics::Writer;

static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(|| {
    let text = "a: {listen: 127.0.0.1:1, redis: true, servers_from: {file: /nowhere}}\n";
    match cashew_config::parse("sources.yml", text, &Context::of_system()) {
        Ok(loaded) => loaded.snapshot,
        Err(errors) => panic!("{errors}"),
    }
});

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let Some(servers) = cashew_discovery::read_source(kind, bytes) else { return };
    let mut snapshot = SNAPSHOT.clone();
    if !snapshot.pools[0].set_found(&servers) {
        return;
    }
    let names: HashSet<&str> = snapshot.pools[0].servers.iter().map(|it| &*it.name).collect();
    assert_eq!(names.len(), servers.len(), "names are those of one server each");
    serve(&snapshot);
}

/// Workers get it, and build their rings of it.
pub(crate) fn serve(snapshot: &Snapshot) {
    assert_eq!(from_json(&to_json(snapshot)).as_ref().ok(), Some(snapshot));
    let plan = Plan::whole(snapshot, 0, 1);
    _ = Engine::new(Setup {
        plan,
        metrics: Writer::in_memory(snapshot),
        seed: 1,
        slot: 0,
        identity: Identity { version: "0", process_id: 1 },
        now: Time::from_micros(1),
    });
}
