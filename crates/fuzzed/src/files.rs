//! What files and lines from outside say is read or refused: users of an ACL file, servers of a list, the state of a
//! move, records of the spool; and the header of a proxy, however it is cut.

use cashew_acl::{User, Users, split_rules};
use cashew_config::{MoveState, parse_server, server_at};
use cashew_protocol::proxy;

pub fn read(data: &[u8]) {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match (kind % 5, std::str::from_utf8(bytes)) {
        (0, _) => header(bytes),
        (1, _) => cashew_spool::read_records(bytes),
        (2, Ok(text)) => users(text),
        (3, Ok(text)) => servers(text),
        (4, Ok(text)) => _ = MoveState::parse(text),
        _ => {}
    }
}

/// More bytes never change what was said of fewer.
fn header(bytes: &[u8]) {
    let mut ended = None;
    for len in 0..=bytes.len().min(proxy::HEADER_SIZE_MAX + 1) {
        let found = proxy::parse(&bytes[..len]);
        match ended {
            None if found == Ok(None) => {}
            None => ended = Some(found),
            Some(earlier) => assert_eq!(found, earlier),
        }
        if let Ok(Some((_, used))) = found {
            assert!(0 < used && used <= len);
        }
        // Every cut of what is long would take too long.
        if ended.is_some() && len > 300 {
            return;
        }
    }
}

/// A user is what its line says: it comes out again, and is the same.
fn users(text: &str) {
    _ = split_rules(text);
    for line in text.lines() {
        let Ok(user) = User::parse(line) else { continue };
        let again = User::parse(&format!("user {} {}", user.name(), rules_of(&user)));
        let again = again.unwrap_or_else(|fault| panic!("{}: {fault}", user.line()));
        assert_eq!(again.line(), user.line());
    }
    if let Ok(users) = text.lines().map(User::parse).collect::<Result<Vec<_>, _>>() {
        let users = Users::new(users);
        _ = users.open_default();
    }
}

/// The rules of a user's line, as a file has them.
fn rules_of(user: &User) -> String {
    let line = user.line();
    let start = format!("user {} ", user.name());
    line.strip_prefix(&start).unwrap_or(&line).to_owned()
}

fn servers(text: &str) {
    for line in text.lines() {
        if let Ok(server) = parse_server(line, "n") {
            assert!(!server.name.is_empty() && server.weight > 0);
        }
        _ = server_at(line, None, Some(1), None);
    }
}
