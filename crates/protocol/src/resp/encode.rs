//! Encoders. Each appends one whole element to the caller's buffer.

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

pub fn write_array_header(out: &mut Vec<u8>, len: usize) {
    length(out, b'*', len);
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

fn length(out: &mut Vec<u8>, kind: u8, len: usize) {
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
    fn a_peer_cannot_end_an_error_line() {
        assert_eq!(written(|out| write_error(out, b"ERR 'a\r\n+OK\r\n'")), "-ERR 'a  +OK  '\r\n");
    }
}
