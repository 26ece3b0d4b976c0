//! What the configuration file says by itself.

use cashew_config::Diagnostic;
use cashew_config::snapshot::{Pool, Protocol};

use super::Facts;
use super::finding::{Finding, Severity};

/// What reading the file has brought up, as `cashew -t` says it.
pub(super) fn configuration(facts: &Facts) -> Vec<Finding> {
    facts.remarks.iter().map(|(severity, remark)| of_remark(*severity, remark)).collect()
}

/// Without the line's text, which stands in the file.
pub(super) fn of_remark(severity: Severity, remark: &Diagnostic) -> Finding {
    let Diagnostic { file, line, column, message, hint, .. } = remark;
    let place = match line {
        0 => file.clone(),
        _ => format!("{file}:{line}:{column}"),
    };
    Finding::new(severity, place, message.clone()).advice(hint.clone().unwrap_or_default())
}

/// Without a timeout a server that hangs holds requests for ever.
pub(super) fn timeout(facts: &Facts) -> Vec<Finding> {
    // Where bytes are passed through nobody knows of requests: there is no such option.
    let has_none = |pool: &&Pool| {
        pool.timeout_ms.is_none()
            && pool.route.is_none()
            && !pool.auto_eject_hosts
            && pool.protocol != Protocol::Tcp
    };
    let pools = facts.snapshot.pools.iter().filter(has_none);
    let finding = |pool: &Pool| {
        Finding::note(format!("pool '{}'", pool.name), "has no timeout")
            .why("a request to a server that hangs waits as long as its connection exists")
            .advice("set one, for example timeout: 400, in milliseconds")
    };
    pools.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{checked, facts, found};
    use super::*;

    #[test]
    fn remarks_of_the_file_have_their_lines() {
        let twice = "   - 127.0.0.1:1:1 s0\n   - 127.0.0.1:1:1 s1\n";
        let facts = facts("redis: true\n  timeout: 400", twice);
        let [finding] = &checked(configuration, &facts)[..] else { panic!() };
        assert_eq!((finding.severity, &*finding.place), (Severity::Warning, "test.yml:7:6"));
        assert!(finding.what.contains("\"s1\" is the same server as \"s0\""), "{finding}");
    }

    #[test]
    fn shares_far_from_weights_are_found() {
        // ketama has no point left for so small a weight.
        let servers = "   - 127.0.0.1:1:1 s0\n   - 127.0.0.1:2:1000 s1\n";
        let uneven = facts("redis: true\n  distribution: ketama", servers);
        let text = found(configuration, &uneven);
        assert!(text.contains("\"s0\" gets 0.0% of the keys, 100% less"), "{text}");
        let even = facts("redis: true\n  distribution: modula", servers);
        assert_eq!(found(configuration, &even), "");
    }

    #[test]
    fn waits_longer_than_the_timeout_are_noted() {
        let server = "   - 127.0.0.1:1:1\n";
        let long = facts("redis: true\n  timeout: 400\n  failover_wait: 5000", server);
        let [finding] = &checked(configuration, &long)[..] else { panic!() };
        assert!(finding.severity == Severity::Note && finding.what.contains("5000 ms"));
        let short = facts("redis: true\n  timeout: 400\n  failover_wait: 300", server);
        assert_eq!(found(configuration, &short), "");
    }

    #[test]
    fn a_pool_without_a_timeout_is_noted() {
        let server = "   - 127.0.0.1:1:1\n";
        assert!(found(timeout, &facts("redis: true", server)).contains("has no timeout"));
        assert_eq!(found(timeout, &facts("redis: true\n  timeout: 400", server)), "");
        // There the option is refused.
        assert_eq!(found(timeout, &facts("protocol: tcp", server)), "");
    }
}
