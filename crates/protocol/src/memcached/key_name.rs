//! How a line names a key. The binary protocol makes keys of any bytes, and not all of them have a name in text.

use super::{KEY_SIZE_MAX, encode_key};

/// Whether a line may have the key as it is.
pub fn is_plain_key(key: &[u8]) -> bool {
    (1..=KEY_SIZE_MAX).contains(&key.len()) && key.iter().all(|&byte| byte > b' ' && byte != 0x7f)
}

/// Whether a line can name the key: in base64, too, it has to be as short as any key.
pub fn can_name_key(key: &[u8]) -> bool {
    is_plain_key(key) || (!key.is_empty() && key.len().div_ceil(3) * 4 <= KEY_SIZE_MAX)
}

/// Writes a request that deletes a key, and is answered. The key [can be named](can_name_key).
pub fn write_delete(key: &[u8], out: &mut Vec<u8>) {
    if !is_plain_key(key) {
        out.extend_from_slice(b"md ");
        encode_key(key, out);
        return out.extend_from_slice(b" b\r\n");
    }
    // Later versions than 1.6.18 take the bare word for an order to be silent.
    let end: &[u8] = if key == b"noreply" { b" 0\r\n" } else { b"\r\n" };
    out.extend_from_slice(&[b"delete ", key, end].concat());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_deleted_by_the_names_that_servers_know() {
        for (key, line) in [
            (&b"a"[..], &b"delete a\r\n"[..]),
            (b"noreply", b"delete noreply 0\r\n"),
            (b"\xc3\xa4", b"delete \xc3\xa4\r\n"),
            (b"a b", b"md YSBi b\r\n"),
            (b"\0", b"md AA== b\r\n"),
            (b"\x7f", b"md fw== b\r\n"),
            (b"a\n", b"md YQo= b\r\n"),
        ] {
            let mut out = Vec::new();
            write_delete(key, &mut out);
            assert_eq!(out, line, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn names_are_as_short_as_keys_may_be() {
        for (key, is_nameable) in [
            (vec![], false),
            (vec![b' '; 186], true),
            (vec![b' '; 187], false),
            (vec![b'a'; 250], true),
            (vec![b'a'; 251], false),
            (vec![0xff; 250], true),
        ] {
            assert_eq!(can_name_key(&key), is_nameable, "{}", key.len());
        }
    }
}
