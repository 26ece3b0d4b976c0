//! Which servers of a pool are live, as text: their number, a colon, then one hex digit for every
//! four servers, the first of them in the lowest bit. The largest pool takes 16 KiB; a JSON array
//! of booleans would exceed a datagram.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(super) fn serialize<S: Serializer>(live: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
    let digits = live.chunks(4).map(|four| {
        let bits = four.iter().rev().fold(0, |bits, &live| bits << 1 | u32::from(live));
        char::from_digit(bits, 16).expect("four bits are one hex digit")
    });
    serializer.collect_str(&format_args!("{}:{}", live.len(), digits.collect::<String>()))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<bool>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::custom("not a set of live servers"))
}

fn parse(text: &str) -> Option<Vec<bool>> {
    let (count, digits) = text.split_once(':')?;
    let count: usize = count.parse().ok()?;
    if digits.len() != count.div_ceil(4) {
        return None;
    }
    let mut live = Vec::with_capacity(count);
    for digit in digits.chars() {
        let bits = digit.to_digit(16)?;
        live.extend((0..4).map(|bit| bits & (1 << bit) != 0));
    }
    live.truncate(count);
    Some(live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_set_survives() {
        for count in [0, 1, 3, 4, 5, 8, 65_536] {
            let live: Vec<bool> = (0..count).map(|i| i % 3 == 0 || i % 7 == 2).collect();
            let mut out = Vec::new();
            serialize(&live, &mut serde_json::Serializer::new(&mut out)).unwrap();
            assert!(out.len() <= count / 4 + 16);
            let back = deserialize(&mut serde_json::Deserializer::from_slice(&out)).unwrap();
            assert_eq!(live, back);
        }
    }

    #[test]
    fn garbage_is_refused() {
        for text in ["", ":", "4", "4:", "4:g", "4:ff", "5:f", "-1:", "99999999999999999999:f"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
