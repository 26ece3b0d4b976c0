//! What a request on its way to a server does to what is kept of its key, in memcached's words.

use cashew_protocol::memcached::{BINARY_REQUEST, binary};

/// What it does to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyWritten<'b> {
    Nothing,
    Key(&'b [u8]),
    /// Any, as far as one can tell.
    Any,
}

/// What a request does, of which these are the first bytes.
pub(crate) fn key_written(bytes: &[u8]) -> KeyWritten<'_> {
    match bytes.first() {
        Some(&BINARY_REQUEST) => of_packet(bytes),
        _ => of_line(bytes),
    }
}

fn of_line(bytes: &[u8]) -> KeyWritten<'_> {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (verb, key) = (words.next().unwrap_or_default(), words.next());
    let has_flag = |flags: &[u8]| {
        words.clone().any(|word| word.first().is_some_and(|flag| flags.contains(flag)))
    };
    match verb {
        b"get" | b"gets" | b"mn" | b"me" | b"version" | b"verbosity" | b"stats" => {
            KeyWritten::Nothing
        }
        // What makes, or refreshes, an item.
        b"mg" if !has_flag(b"NTRE") => KeyWritten::Nothing,
        // The key is in base64.
        b"mg" | b"ms" | b"md" | b"ma" if has_flag(b"b") => KeyWritten::Any,
        // Several keys.
        b"gat" | b"gats" => KeyWritten::Any,
        b"flush_all" => KeyWritten::Any,
        _ => key.map_or(KeyWritten::Any, KeyWritten::Key),
    }
}

fn of_packet(bytes: &[u8]) -> KeyWritten<'_> {
    use binary::Opcode;
    let Some(header) = bytes.first_chunk::<24>() else { return KeyWritten::Any };
    let Some((opcode, _)) = Opcode::from_byte(header[1]) else { return KeyWritten::Any };
    let key_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let start = header.len() + usize::from(header[4]);
    let key = bytes.get(start..start + key_len);
    match opcode {
        Opcode::Get | Opcode::GetK | Opcode::Noop | Opcode::Version | Opcode::Stat => {
            KeyWritten::Nothing
        }
        Opcode::Flush => KeyWritten::Any,
        _ => key.filter(|key| !key.is_empty()).map_or(KeyWritten::Any, KeyWritten::Key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_the_key_that_they_write() {
        for (line, written) in [
            (&b"get a b\r\n"[..], KeyWritten::Nothing),
            (b"mg a v f\r\n", KeyWritten::Nothing),
            (b"mg a v T30\r\n", KeyWritten::Key(b"a")),
            (b"mg YQ== b T30\r\n", KeyWritten::Any),
            (b"set a 0 0 1\r\nx\r\n", KeyWritten::Key(b"a")),
            (b"ms a S1\r\nx\r\n", KeyWritten::Key(b"a")),
            (b"delete a noreply\r\n", KeyWritten::Key(b"a")),
            (b"incr a 1\r\n", KeyWritten::Key(b"a")),
            (b"gat 10 a\r\n", KeyWritten::Any),
            (b"flush_all\r\n", KeyWritten::Any),
        ] {
            assert_eq!(key_written(line), written, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn packets_name_the_key_that_they_write() {
        let packet = |opcode: u8, extras: usize, key: &[u8]| {
            let mut packet = vec![0; 24 + extras];
            packet[..2].copy_from_slice(&[BINARY_REQUEST, opcode]);
            packet[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
            packet[4] = extras as u8;
            packet.extend_from_slice(key);
            packet
        };
        assert_eq!(key_written(&packet(0x00, 0, b"a")), KeyWritten::Nothing);
        assert_eq!(key_written(&packet(0x01, 8, b"a")), KeyWritten::Key(b"a"));
        assert_eq!(key_written(&packet(0x04, 0, b"a")), KeyWritten::Key(b"a"));
        assert_eq!(key_written(&packet(0x08, 0, b"")), KeyWritten::Any);
        assert_eq!(key_written(&packet(0x01, 8, b"a")[..30]), KeyWritten::Any);
    }
}
