//! What Sentinels and servers answer, read. Whatever else comes is nothing.

use cashew_config::snapshot::Address;
use cashew_protocol::resp::{Reply, reply};

use crate::group::{Event, Report, SERVERS_MAX};
use crate::replication::{Link, MemberReport};

/// Longest name of a host.
const HOST_SIZE_MAX: usize = 253;
/// As long as Redis makes them.
const REPLID_SIZE_MAX: usize = 40;

/// Events of Sentinel that are listened to. Who knows others may say others.
pub(crate) const EVENTS: [&str; 9] = [
    "+switch-master",
    "+selected-slave",
    "+promoted-slave",
    "+sdown",
    "+odown",
    "+try-failover",
    "+failover-state-reconf-slaves",
    "+failover-end",
    "-failover-abort-no-good-slave",
];

/// Of `SENTINEL GET-MASTER-ADDR-BY-NAME`.
pub(crate) fn primary(bytes: &[u8]) -> Option<Address> {
    let Reply::Array(mut elements) = reply(bytes)? else { return None };
    let (host, port) = (text(elements.next()?)?, text(elements.next()?)?);
    elements.is_empty().then(|| address(host, port)).flatten()
}

/// So much is told of an error.
const REFUSAL_MAX: usize = 256;

/// Of any: why it is none.
pub(crate) fn refusal(bytes: &[u8]) -> Option<String> {
    match reply(bytes)? {
        Reply::Error(error) => {
            let start = &error[..error.len().min(REFUSAL_MAX)];
            Some(format!("refuses: {}", String::from_utf8_lossy(start)))
        }
        _ => None,
    }
}

/// Of `SENTINEL MASTER`.
pub(crate) fn config_epoch(bytes: &[u8]) -> Option<u64> {
    field(bytes, "config-epoch")?.parse().ok()
}

/// Of `SENTINEL REPLICAS`: where they are, and whether it takes them to be down. Not of those that are too
/// many.
pub(crate) fn replicas(bytes: &[u8]) -> Vec<(Address, bool)> {
    let Some(Reply::Array(elements)) = reply(bytes) else { return Vec::new() };
    let is_down = |flags: &str| flags.split(',').any(|flag| matches!(flag, "s_down" | "o_down"));
    let replica = |bytes: &[u8]| {
        let address = address(field(bytes, "ip")?, field(bytes, "port")?)?;
        Some((address, field(bytes, "flags").is_some_and(is_down)))
    };
    elements.filter_map(replica).take(SERVERS_MAX).collect()
}

/// Of fields and values by turns.
fn field<'a>(bytes: &'a [u8], name: &str) -> Option<&'a str> {
    let (Reply::Array(mut elements) | Reply::Map(mut elements)) = reply(bytes)? else {
        return None;
    };
    loop {
        let (key, value) = (elements.next()?, elements.next()?);
        if text(key) == Some(name) {
            return text(value);
        }
    }
}

/// What a Sentinel has published, of the group that it calls `master`.
pub(crate) fn event(bytes: &[u8], master: &str) -> Option<Event> {
    let Reply::Array(mut elements) = reply(bytes)? else { return None };
    if text(elements.next()?)? != "message" {
        return None;
    }
    let (channel, payload) = (text(elements.next()?)?, text(elements.next()?)?);
    let mut words = payload.split(' ');
    if channel == "+switch-master" {
        let [name, _, _, host, port] = take(&mut words)?;
        return (name == master).then(|| address(host, port)).flatten().map(Event::Nominated);
    }
    let [kind, name, host, port] = take(&mut words)?;
    let of = match words.next() {
        Some("@") => words.next()?,
        Some(_) | None => name,
    };
    if of != master {
        return None;
    }
    match channel {
        "+selected-slave" | "+promoted-slave" if kind == "slave" => {
            address(host, port).map(Event::Nominated)
        }
        _ if EVENTS.contains(&channel) => {
            let address = address(host, port)?;
            Some(Event::Trouble(format!("{channel} of the {kind} {address}")))
        }
        _ => None,
    }
}

fn take<'a, const N: usize>(words: &mut impl Iterator<Item = &'a str>) -> Option<[&'a str; N]> {
    let words: Vec<&str> = words.take(N).collect();
    words.try_into().ok()
}

/// Of `INFO replication`.
pub(crate) fn report(bytes: &[u8]) -> Report {
    read_report(bytes).unwrap_or(Report::Other)
}

fn read_report(bytes: &[u8]) -> Option<Report> {
    let info = text(bytes)?;
    let find = |name: &str| find(info, name);
    let replid = |name: &str| replid(find(name)?);
    match find("role")? {
        "master" => {
            Some(Report::Primary { replid: replid("master_replid")?, former: replid_of(info) })
        }
        "slave" => Some(Report::Replica {
            replid: replid("master_replid")?,
            offset: find("slave_repl_offset")?.parse().ok()?,
        }),
        _ => None,
    }
}

/// Of `INFO replication`: how far a server has come. `None` where that is not told.
pub(crate) fn member(bytes: &[u8]) -> Option<MemberReport> {
    let info = text(bytes)?;
    let number = |name: &str| find(info, name)?.parse::<u64>().ok();
    let is_replica = match find(info, "role")? {
        "master" => false,
        "slave" => true,
        _ => return None,
    };
    let link = match find(info, "master_link_status") {
        Some("up") => Link::Up,
        // It is -1 before the first.
        _ => number("master_link_down_since_seconds").map_or(Link::Never, Link::Down),
    };
    Some(MemberReport {
        is_replica,
        replid: replid(find(info, "master_replid")?)?,
        offset: number(if is_replica { "slave_repl_offset" } else { "master_repl_offset" })?,
        former: replid_of(info).filter(|_| !is_replica),
        link,
        is_syncing: find(info, "master_sync_in_progress") == Some("1"),
        is_loading: false,
    })
}

/// The history that a primary followed before, and until where.
fn replid_of(info: &str) -> Option<(String, u64)> {
    // It is -1 where there is none.
    let end = find(info, "second_repl_offset")?.parse().ok()?;
    Some((replid(find(info, "master_replid2")?)?, end))
}

/// Of `INFO persistence`. Who does not tell does not load.
pub(crate) fn is_loading(bytes: &[u8]) -> bool {
    let flag = |info: &str, name: &str| find(info, name) == Some("1");
    text(bytes).is_some_and(|info| flag(info, "loading") || flag(info, "async_loading"))
}

fn find<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn replid(id: &str) -> Option<String> {
    let is_id = !id.is_empty() && id.len() <= REPLID_SIZE_MAX;
    (is_id && id.bytes().all(|byte| byte.is_ascii_alphanumeric())).then(|| id.to_owned())
}

/// A string of a reply, by its bytes.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    match reply(bytes)? {
        Reply::Bulk(text) | Reply::Status(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

pub(crate) fn address(host: &str, port: &str) -> Option<Address> {
    let is_host = (1..=HOST_SIZE_MAX).contains(&host.len())
        && host.bytes().all(|byte| byte.is_ascii_graphic());
    let port = port.parse().ok().filter(|port| *port > 0)?;
    is_host.then(|| Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn bulks(texts: &[&str]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        cashew_protocol::resp::encode::write_command(&mut bytes, &texts);
        bytes
    }

    #[test]
    fn addresses_are_read_and_nothing_else() {
        assert_eq!(primary(&bulks(&["10.0.0.1", "6379"])), Some(at("10.0.0.1", 6379)));
        assert_eq!(primary(&bulks(&["::1", "1"])), Some(at("::1", 1)));
        let long = "h".repeat(254);
        for (host, port) in [
            ("", "1"),
            ("a b", "1"),
            ("a", "0"),
            ("a", "65536"),
            ("a", "x"),
            (&*long, "1"),
            ("a\n", "1"),
        ] {
            assert_eq!(primary(&bulks(&[host, port])), None, "{host:?} {port}");
        }
        assert_eq!(primary(&bulks(&["a", "1", "2"])), None);
        for bytes in ["*-1\r\n", "-ERR no\r\n", "$1\r\na\r\n", "", "*2\r\n$1\r\na\r\n"] {
            assert_eq!(primary(bytes.as_bytes()), None);
        }
    }

    #[test]
    fn fields_are_found_among_others() {
        let master = bulks(&["name", "m", "ip", "config-epoch", "config-epoch", "7", "odd"]);
        assert_eq!(config_epoch(&master), Some(7));
        assert_eq!(config_epoch(&bulks(&["name", "m"])), None);
        let one = bulks(&["name", "x", "ip", "h", "port", "1"]);
        let bad = bulks(&["name", "x", "ip", "h"]);
        let many: Vec<u8> = [b"*40\r\n".to_vec(), bad, one.repeat(39)].concat();
        assert_eq!(replicas(&many), vec![(at("h", 1), false); SERVERS_MAX]);
    }

    #[test]
    fn events_count_of_the_own_group_only() {
        let event = |channel: &str, payload: &str| {
            super::event(&bulks(&["message", channel, payload]), "mine")
        };
        let nominated = Some(Event::Nominated(at("b", 2)));
        assert_eq!(event("+switch-master", "mine a 1 b 2"), nominated);
        assert_eq!(event("+switch-master", "other a 1 b 2"), None);
        assert_eq!(event("+selected-slave", "slave b:2 b 2 @ mine a 1"), nominated);
        assert_eq!(event("+promoted-slave", "slave b:2 b 2 @ mine a 1"), nominated);
        assert_eq!(event("+promoted-slave", "slave b:2 b 2 @ other a 1"), None);
        // Of a group that is named like a server of another one.
        assert_eq!(event("+selected-slave", "slave mine b 2 @ other a 1"), None);
        let trouble = Some(Event::Trouble("+odown of the master a:1".to_owned()));
        assert_eq!(event("+odown", "master mine a 1 #quorum 2/2"), trouble);
        assert_eq!(event("+odown", "master other a 1 #quorum 2/2"), None);
        for (channel, payload) in
            [("+switch-master", "mine a 1 b"), ("+sdown", "master"), ("+reboot", "master mine a 1")]
        {
            assert_eq!(event(channel, payload), None);
        }
        assert_eq!(super::event(&bulks(&["subscribe", "+sdown", "master mine a 1"]), "mine"), None);
    }

    #[test]
    fn servers_say_what_they_are() {
        let info = |text: &str| report(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
        let id = "a".repeat(40);
        let primary = format!(
            "# Replication\r\nrole:master\r\nmaster_replid:{id}\r\nmaster_replid2:{id}\r\n\
             master_repl_offset:9\r\nsecond_repl_offset:5\r\n"
        );
        let former = Some((id.clone(), 5));
        assert_eq!(info(&primary), Report::Primary { replid: id.clone(), former });
        let first = primary.replace("second_repl_offset:5", "second_repl_offset:-1");
        assert_eq!(info(&first), Report::Primary { replid: id.clone(), former: None });
        let replica = format!(
            "role:slave\r\nmaster_link_status:up\r\nslave_repl_offset:8\r\nmaster_replid:{id}\r\n"
        );
        let expected = Report::Replica { replid: id, offset: 8 };
        assert_eq!(info(&replica), expected);
        let member = |text: &str| {
            let bytes = format!("${}\r\n{text}\r\n", text.len());
            let is_loading = is_loading(bytes.as_bytes());
            super::member(bytes.as_bytes()).map(|it| MemberReport { is_loading, ..it })
        };
        let told = member(&primary).unwrap();
        assert_eq!((told.is_replica, told.offset, told.link), (false, 9, Link::Never));
        let told = member(&replica).unwrap();
        assert_eq!((told.is_replica, told.offset, told.link), (true, 8, Link::Up));
        let down = |secs: &str| {
            let since = format!("down\r\nmaster_link_down_since_seconds:{secs}");
            member(&replica.replace("link_status:up", &format!("link_status:{since}")))
        };
        assert_eq!(down("7").unwrap().link, Link::Down(7));
        assert_eq!(down("-1").unwrap().link, Link::Never);
        let busy = format!("{replica}master_sync_in_progress:1\r\nloading:1\r\n");
        let told = member(&busy).unwrap();
        assert!(told.is_syncing && told.is_loading);
        assert_eq!(member("role:master\r\n"), None);
        assert_eq!(super::member(b"-NOPERM no\r\n"), None);
        assert!(!is_loading(b"-NOPERM loading:1\r\n"));
        assert_eq!(info("role:master\r\n"), Report::Other);
        assert_eq!(report(b"-NOPERM no\r\n"), Report::Other);
        assert_eq!(report(b"-LOADING\r\n"), Report::Other);
    }
}
