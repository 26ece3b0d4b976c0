//! Who may ask the statistics for what: by tokens, each of a role.

use std::net::SocketAddr;

use base64::Engine;
use cashew_config::snapshot::Global;
use hyper::header::{self, HeaderMap};

/// What somebody has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Nobody,
    /// A token that is none of those that there are.
    Impostor,
    Read,
    /// May read, too.
    Operate,
}

/// A browser shows a token by itself, also where another site has it ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Bearer,
    Basic,
}

impl Role {
    pub(crate) fn of(headers: &HeaderMap, global: &Global) -> Self {
        let Some((scheme, shown)) = shown(headers) else { return Self::Nobody };
        // Both are looked at, so that the time tells nothing.
        let is = |token: &Option<String>| {
            token.as_ref().is_some_and(|token| is_same(&shown, token.as_bytes()))
        };
        let (reads, operates) = (is(&global.stats_token), is(&global.operate_token));
        match (reads, operates) {
            (_, true) if scheme == Scheme::Bearer => Self::Operate,
            (true, _) | (_, true) => Self::Read,
            _ => Self::Impostor,
        }
    }
}

/// Whether operators may come from there.
pub(crate) fn may_operate_from(peer: Option<SocketAddr>, global: &Global) -> bool {
    let Some(peer) = peer.map(|peer| peer.ip().to_canonical()) else { return false };
    match global.operate_from.is_empty() {
        true => peer.is_loopback(),
        false => global.operate_from.iter().any(|source| source.contains(Some(peer))),
    }
}

fn shown(headers: &HeaderMap) -> Option<(Scheme, Vec<u8>)> {
    let mut values = headers.get_all(header::AUTHORIZATION).into_iter();
    let first = values.next()?;
    if values.next().is_some() {
        // Others on the way may go by the last one.
        return Some((Scheme::Basic, Vec::new()));
    }
    let (scheme, text) = first.to_str().ok()?.split_once(' ')?;
    let text = text.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((Scheme::Bearer, text.as_bytes().to_vec()));
    }
    // Of a browser, which asks its user for a name as well.
    let decoded = || {
        let both = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        let colon = both.iter().position(|&byte| byte == b':')?;
        Some(both[colon + 1..].to_vec())
    };
    let password = scheme.eq_ignore_ascii_case("basic").then(decoded).flatten();
    // What is in no form is wrong as well.
    Some((Scheme::Basic, password.unwrap_or_default()))
}

/// Takes equally long wherever they differ.
fn is_same(shown: &[u8], token: &[u8]) -> bool {
    let differs = shown.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b));
    std::hint::black_box(differs) == 0 && shown.len() == token.len()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;
    use crate::testing::snapshot;

    #[test]
    fn tokens_have_roles() {
        let global = snapshot(&[("alpha", &["one"])]).global;
        let global = Global {
            stats_token: Some("s3cret".into()),
            operate_token: Some("oper4te".into()),
            ..global
        };
        let role = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            }
            Role::of(&headers, &global)
        };
        let basic = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let basic = |text: &str| format!("Basic {}", basic(text));
        for (value, expected) in [
            ("Bearer s3cret", Role::Read),
            ("bearer  s3cret", Role::Read),
            ("Bearer oper4te", Role::Operate),
            (&basic("ann:s3cret"), Role::Read),
            (&basic(":s3cret"), Role::Read),
            (&basic("ann:oper4te"), Role::Read),
            ("Bearer s3cre", Role::Impostor),
            ("Bearer s3crets", Role::Impostor),
            ("Bearer ", Role::Impostor),
            ("Basic s3cret", Role::Impostor),
            (&basic("s3cret"), Role::Impostor),
            (&basic("s3cret:"), Role::Impostor),
            ("Digest s3cret", Role::Impostor),
            ("s3cret", Role::Nobody),
            ("Bearer", Role::Nobody),
        ] {
            assert_eq!(role(Some(value)), expected, "{value}");
        }
        assert_eq!(role(None), Role::Nobody);
        // Two are none, whichever is right.
        let both = |values: [&'static str; 2]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            Role::of(&headers, &global)
        };
        assert_eq!(both(["Bearer oper4te", "Bearer s3cret"]), Role::Impostor);
        assert_eq!(both(["Bearer x", "Bearer oper4te"]), Role::Impostor);
        assert_eq!(both(["x", "Bearer oper4te"]), Role::Impostor);
    }

    #[test]
    fn operators_come_from_this_machine_unless_told_otherwise() {
        let mut global = snapshot(&[("alpha", &["one"])]).global;
        let may =
            |global: &Global, peer: &str| may_operate_from(Some(peer.parse().unwrap()), global);
        assert!(may(&global, "127.0.0.9:1") && may(&global, "[::1]:1"));
        assert!(may(&global, "[::ffff:127.0.0.1]:1"));
        assert!(!may(&global, "10.0.0.1:1") && !may_operate_from(None, &global));
        let source = cashew_config::snapshot::Source::around("10.0.0.0".parse().unwrap(), 8);
        global.operate_from = vec![source];
        assert!(may(&global, "10.0.0.1:1") && !may(&global, "127.0.0.1:1"));
    }
}
