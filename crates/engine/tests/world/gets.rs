//! Memcached's text protocol, for tests of gets that leave together.

use std::collections::HashMap;

use cashew_engine::ConnId;

use super::World;

/// What several clients ask in the same turn of the loop.
pub(crate) fn together(world: &mut World, requests: &[(ConnId, &str)]) {
    for (client, request) in requests {
        world.engine.handle_received(*client, request.as_bytes(), world.now);
    }
    world.tick();
}

pub(crate) fn value(key: &str, data: &str) -> String {
    format!("VALUE {key} 0 {}\r\n{data}\r\n", data.len())
}

/// What a server answers.
pub(crate) fn serve(requests: &str, stored: &mut HashMap<String, String>) -> String {
    let mut reply = String::new();
    let mut lines = requests.lines();
    while let Some(line) = lines.next() {
        let mut words = line.split(' ');
        if words.next() == Some("set") {
            let key = words.next().expect("it has a key");
            stored.insert(key.into(), lines.next().expect("it has a value").into());
            reply += "STORED\r\n";
        } else {
            let found = words.filter_map(|key| Some(value(key, stored.get(key)?)));
            reply.extend(found);
            reply += "END\r\n";
        }
    }
    reply
}

/// Numbers that a seed tells, below the one given each.
pub(crate) fn random_of(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    }
}
