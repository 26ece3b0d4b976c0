//! What those say who know where servers are is read or not: DNS, cluster nodes and Sentinels.

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    cashew_discovery::read_foreign(kind, bytes);
}
