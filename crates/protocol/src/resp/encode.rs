//! Encoders. Each appends one whole element, or the header of one, to the caller's buffer. Those that
//! take a [`Version`] write what Redis writes to a client of that version: RESP2 has fewer types.

use super::Version;

/// Longest text of an `i64`, sign included.
const INTEGER_TEXT_MAX: usize = 20;

pub fn write_integer(out: &mut Vec<u8>, value: i64) {
    out.push(b':');
    decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

pub fn write_bulk(out: &mut Vec<u8>, value: &[u8]) {
    length(out, b'$', value.len());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// RESP2's null: what GET answers for a missing key.
pub fn write_nil(out: &mut Vec<u8>) {
    out.extend_from_slice(b"$-1\r\n");
}

/// RESP2's null array.
pub fn write_nil_array(out: &mut Vec<u8>) {
    out.extend_from_slice(b"*-1\r\n");
}

pub fn write_null(out: &mut Vec<u8>, version: Version) {
    match version {
        Version::Resp2 => write_nil(out),
        Version::Resp3 => out.extend_from_slice(b"_\r\n"),
    }
}

/// Null instead of an array.
pub fn write_null_array(out: &mut Vec<u8>, version: Version) {
    match version {
        Version::Resp2 => write_nil_array(out),
        Version::Resp3 => out.extend_from_slice(b"_\r\n"),
    }
}

pub fn write_array_header(out: &mut Vec<u8>, len: usize) {
    length(out, b'*', len);
}

/// Of a map with so many pairs, whose keys and values alternate.
pub fn write_map_header(out: &mut Vec<u8>, version: Version, pairs: usize) {
    match version {
        Version::Resp2 => length(out, b'*', 2 * pairs),
        Version::Resp3 => length(out, b'%', pairs),
    }
}

pub fn write_set_header(out: &mut Vec<u8>, version: Version, len: usize) {
    match version {
        Version::Resp2 => length(out, b'*', len),
        Version::Resp3 => length(out, b'~', len),
    }
}

/// Of a push message.
pub fn write_push_header(out: &mut Vec<u8>, version: Version, len: usize) {
    match version {
        Version::Resp2 => length(out, b'*', len),
        Version::Resp3 => length(out, b'>', len),
    }
}

pub fn write_bool(out: &mut Vec<u8>, version: Version, value: bool) {
    match version {
        Version::Resp2 => write_integer(out, value.into()),
        Version::Resp3 => out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
    }
}

/// Redis writes the shortest text that parses as the same number.
pub fn write_double(out: &mut Vec<u8>, version: Version, value: f64) {
    let text = match value {
        _ if value.is_nan() => "nan".to_owned(),
        f64::INFINITY => "inf".to_owned(),
        f64::NEG_INFINITY => "-inf".to_owned(),
        _ => value.to_string(),
    };
    match version {
        Version::Resp2 => write_bulk(out, text.as_bytes()),
        Version::Resp3 => simple(out, b',', text.as_bytes()),
    }
}

/// An integer that may have more than 64 bits, in decimal.
pub fn write_big_number(out: &mut Vec<u8>, version: Version, digits: &[u8]) {
    match version {
        Version::Resp2 => write_bulk(out, digits),
        Version::Resp3 => simple(out, b'(', digits),
    }
}

/// Text to be shown unchanged; `format` is `txt` or `mkd`.
pub fn write_verbatim(out: &mut Vec<u8>, version: Version, format: [u8; 3], text: &[u8]) {
    write_verbatim_of(out, version, format, &[text]);
}

/// Like [`write_verbatim`], for a text in pieces.
pub fn write_verbatim_of(out: &mut Vec<u8>, version: Version, format: [u8; 3], pieces: &[&[u8]]) {
    let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    out.reserve(len + 32);
    match version {
        Version::Resp2 => length(out, b'$', len),
        Version::Resp3 => {
            length(out, b'=', len + 4);
            out.extend_from_slice(&format);
            out.push(b':');
        }
    }
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.extend_from_slice(b"\r\n");
}

pub fn write_status(out: &mut Vec<u8>, text: &[u8]) {
    simple(out, b'+', text);
}

/// `text` starts with the error code, as in "ERR syntax error". Carriage returns and newlines
/// become spaces, as in Redis: part of the text may be what a client sent.
pub fn write_error(out: &mut Vec<u8>, text: &[u8]) {
    simple(out, b'-', text);
}

pub fn write_command(out: &mut Vec<u8>, args: &[&[u8]]) {
    write_array_header(out, args.len());
    for arg in args {
        write_bulk(out, arg);
    }
}

fn simple(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    write_sanitised(out, text);
    out.extend_from_slice(b"\r\n");
}

/// Text without line breaks, so that it cannot end the line that it becomes part of.
pub(crate) fn write_sanitised(out: &mut Vec<u8>, text: &[u8]) {
    out.extend(text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
}

#[inline]
fn length(out: &mut Vec<u8>, kind: u8, len: usize) {
    match len {
        0..=9 => out.extend_from_slice(&[kind, b'0' + len as u8, b'\r', b'\n']),
        _ => long_length(out, kind, len),
    }
}

fn long_length(out: &mut Vec<u8>, kind: u8, len: usize) {
    out.push(kind);
    decimal(out, i64::try_from(len).expect("no slice is longer than isize::MAX"));
    out.extend_from_slice(b"\r\n");
}

fn decimal(out: &mut Vec<u8>, value: i64) {
    let mut text = [0; INTEGER_TEXT_MAX];
    let mut at = INTEGER_TEXT_MAX;
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        at -= 1;
        text[at] = b'-';
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn elements_are_encoded_as_redis_does() {
        for value in [0, 7, -7, 10, 1234567890, i64::MAX, i64::MIN] {
            assert_eq!(written(|out| write_integer(out, value)), format!(":{value}\r\n"));
        }
        assert_eq!(written(|out| write_bulk(out, b"")), "$0\r\n\r\n");
        assert_eq!(written(|out| write_bulk(out, b"0123456789")), "$10\r\n0123456789\r\n");
        assert_eq!(written(write_nil), "$-1\r\n");
        assert_eq!(written(write_nil_array), "*-1\r\n");
        assert_eq!(written(|out| write_array_header(out, 100)), "*100\r\n");
        assert_eq!(written(|out| write_status(out, b"OK")), "+OK\r\n");
        assert_eq!(
            written(|out| write_command(out, &[b"GET", b"a"])),
            "*2\r\n$3\r\nGET\r\n$1\r\na\r\n"
        );
    }

    #[test]
    fn each_version_has_its_own_types() {
        use Version::{Resp2, Resp3};
        type Write = fn(&mut Vec<u8>, Version);
        let expected: [(Write, &str, &str); 14] = [
            (write_null, "$-1\r\n", "_\r\n"),
            (write_null_array, "*-1\r\n", "_\r\n"),
            (|out, version| write_map_header(out, version, 3), "*6\r\n", "%3\r\n"),
            (|out, version| write_set_header(out, version, 3), "*3\r\n", "~3\r\n"),
            (|out, version| write_push_header(out, version, 3), "*3\r\n", ">3\r\n"),
            (|out, version| write_bool(out, version, true), ":1\r\n", "#t\r\n"),
            (|out, version| write_bool(out, version, false), ":0\r\n", "#f\r\n"),
            (|out, version| write_double(out, version, 3.25), "$4\r\n3.25\r\n", ",3.25\r\n"),
            (|out, version| write_double(out, version, -10.0), "$3\r\n-10\r\n", ",-10\r\n"),
            (|out, version| write_double(out, version, f64::INFINITY), "$3\r\ninf\r\n", ",inf\r\n"),
            (
                |out, version| write_double(out, version, f64::NEG_INFINITY),
                "$4\r\n-inf\r\n",
                ",-inf\r\n",
            ),
            (|out, version| write_double(out, version, f64::NAN), "$3\r\nnan\r\n", ",nan\r\n"),
            (|out, version| write_big_number(out, version, b"-12"), "$3\r\n-12\r\n", "(-12\r\n"),
            (
                |out, version| write_verbatim(out, version, *b"txt", b"a\nb"),
                "$3\r\na\nb\r\n",
                "=7\r\ntxt:a\nb\r\n",
            ),
        ];
        for (write, resp2, resp3) in expected {
            assert_eq!(written(|out| write(out, Resp2)), resp2);
            assert_eq!(written(|out| write(out, Resp3)), resp3);
        }
    }

    #[test]
    fn a_peer_cannot_end_an_error_line() {
        assert_eq!(written(|out| write_error(out, b"ERR 'a\r\n+OK\r\n'")), "-ERR 'a  +OK  '\r\n");
    }
}
