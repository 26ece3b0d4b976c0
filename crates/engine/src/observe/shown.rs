//! What clients are shown of slow requests and of hot keys.

use std::fmt::Write;

use cashew_metrics::{HotKeys, SeenRequest, Times};

/// Where the time of a request went, and at which server, in a few words.
pub(crate) fn times(request: &SeenRequest, hides_servers: bool) -> String {
    let Times { gateway_us, queue_us, server_us, order_us, client_us } = request.times;
    let mut text = format!(
        "gateway={gateway_us} queue={queue_us} server={server_us} order={order_us} client={client_us}"
    );
    if !hides_servers && !request.server.is_empty() {
        let _ = write!(text, " at={}", request.server);
    }
    if request.is_part {
        text.push_str(" part=yes");
    }
    if !request.failure.is_empty() {
        let _ = write!(text, " failure=\"{}\"", request.failure);
    }
    if !request.user.is_empty() {
        let _ = write!(text, " user={}", request.user);
    }
    text
}

/// A share in percent, with a digit behind the point; of sizes, which have no sum, nothing.
pub(crate) fn share(weight: u64, hot: &HotKeys) -> String {
    if hot.total == 0 {
        return String::new();
    }
    let permille = u128::from(weight) * 1000 / u128::from(hot.total);
    format!("{}.{}%", permille / 10, permille % 10)
}

/// The bytes as text in one line: what is not printable is escaped, and spaces are.
pub(crate) fn word(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace(' ', "\\x20")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_one_line() {
        assert_eq!(word(b"a b\r\n\xff"), "a\\x20b\\r\\n\\xff");
        let hot = HotKeys { keys: Vec::new(), total: 1000 };
        assert_eq!(
            (share(128, &hot).as_str(), share(5, &HotKeys::default()).as_str()),
            ("12.8%", "")
        );
        let request = SeenRequest { server: "s1".into(), ..SeenRequest::default() };
        assert!(times(&request, false).ends_with("client=0 at=s1"));
        assert!(times(&request, true).ends_with("client=0"));
    }
}
