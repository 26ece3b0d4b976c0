//! The query of an address, as forms write it.

/// Names and their values. What has no `=` has an empty value.
pub(crate) fn pairs(query: &str) -> impl Iterator<Item = (&str, String)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name, decoded(value))
    })
}

/// A number of rows. An error says what is wrong with it.
pub(crate) fn limit(value: &str, most: usize) -> Result<usize, String> {
    let limit = value.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| format!("limit is a number from 1 to {most}"))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = (byte == b'%')
            .then(|| after.get(..2))
            .flatten()
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match escaped {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => bytes.push(if byte == b'+' { b' ' } else { byte }),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_queries_are_decoded() {
        for (text, value) in [("a%2Fb+c", "a/b c"), ("%", "%"), ("%zz%41", "%zzA"), ("%c3%a4", "ä")]
        {
            assert_eq!(decoded(text), value);
        }
        let found: Vec<_> = pairs("a=1&&b&c=%20=").collect();
        assert_eq!(found, [("a", "1".to_owned()), ("b", String::new()), ("c", " =".to_owned())]);
    }

    #[test]
    fn limits_have_limits() {
        assert_eq!((limit("1", 9), limit("9", 9)), (Ok(1), Ok(9)));
        for value in ["0", "10", "-1", "x", ""] {
            assert_eq!(limit(value, 9).unwrap_err(), "limit is a number from 1 to 9", "{value}");
        }
    }
}
