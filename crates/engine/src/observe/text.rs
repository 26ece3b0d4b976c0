//! What a request on the wire asks for, to be shown. It was parsed before, or made here, so whatever looks odd is
//! cut off bytes, and nothing to complain about.

use cashew_config::snapshot::Protocol;
use cashew_metrics::{ARGUMENT_SIZE_MAX, ARGUMENTS_MAX};
use cashew_protocol::memcached::binary::{HEADER_SIZE, Opcode};
use cashew_protocol::redis::{self, Lookup};
use cashew_protocol::{Span, resp};

/// So many bytes of a request are enough to tell what it asks for.
pub(crate) const TEXT_MAX: usize = 16 * 1024;

/// The first byte of a request of the binary protocol.
const BINARY: u8 = 0x80;

/// What is shown of an argument that is a secret, as in Redis' slow log.
const REDACTED: &[u8] = b"(redacted)";
/// Commands whose arguments may be secrets, and how many words in front of them are none.
const SECRETIVE: [(&[u8], usize); 5] =
    [(b"auth", 1), (b"hello", 2), (b"config", 2), (b"acl", 3), (b"migrate", 4)];

/// The words of a request, as spans of its bytes.
#[derive(Default)]
pub(crate) struct Words {
    spans: Vec<Span>,
    /// How many there are, those not in `spans` included.
    count: usize,
}

impl Words {
    /// Looks at the words of another request.
    pub(crate) fn read(&mut self, protocol: Protocol, bytes: &[u8]) {
        self.spans.clear();
        self.count = 0;
        match protocol {
            Protocol::Redis => self.read_resp(bytes),
            Protocol::Memcached if bytes.first() == Some(&BINARY) => self.read_binary(bytes),
            _ => self.read_text(bytes),
        }
    }

    fn read_resp(&mut self, bytes: &[u8]) {
        let Some((count, mut at)) = length(bytes, 0, b'*') else { return };
        self.count = count;
        for _ in 0..count {
            let Some((len, start)) = length(bytes, at, b'$') else { break };
            if start >= bytes.len() {
                break;
            }
            let end = (start + len).min(bytes.len());
            self.spans.push(Span::new(start, end - start));
            at = start + len + 2;
        }
    }

    /// The words of the first line.
    fn read_text(&mut self, bytes: &[u8]) {
        let end = bytes.iter().position(|&byte| matches!(byte, b'\r' | b'\n'));
        let line = &bytes[..end.unwrap_or(bytes.len())];
        let mut at = 0;
        for word in line.split(|&byte| byte == b' ') {
            if !word.is_empty() {
                self.spans.push(Span::new(at, word.len()));
            }
            at += word.len() + 1;
        }
        self.count = self.spans.len();
    }

    /// The first byte stands for the command; behind it is the key, if there is one.
    fn read_binary(&mut self, bytes: &[u8]) {
        self.spans.push(Span::new(0, 1));
        if let Some(&[_, _, high, low, extras]) = bytes.first_chunk() {
            let start = HEADER_SIZE + usize::from(extras);
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len > 0 && start + len <= bytes.len() {
                self.spans.push(Span::new(start, len));
            }
        }
        self.count = self.spans.len();
    }

    /// The keys among them.
    pub(crate) fn keys(&self, protocol: Protocol, bytes: &[u8], keys: &mut Vec<Span>) {
        keys.clear();
        match protocol {
            Protocol::Redis => {
                match redis::find(bytes, &self.spans) {
                    Lookup::Found(command) => {
                        // Keys that are cut off are not there.
                        let _ = command.keys(bytes, &self.spans, keys);
                    }
                    // Of a module: by far the most have their key first.
                    Lookup::UnknownCommand => keys.extend(self.spans.get(1)),
                    Lookup::UnknownSubcommand(_) | Lookup::WrongArity(_) => {}
                }
            }
            Protocol::Memcached if bytes.first() == Some(&BINARY) => keys.extend(self.spans.get(1)),
            _ => {
                let verb = self.spans.first().map_or(&[][..], |word| word.of(bytes));
                match verb {
                    b"get" | b"gets" => keys.extend(self.spans.get(1..).unwrap_or_default()),
                    b"gat" | b"gats" => keys.extend(self.spans.get(2..).unwrap_or_default()),
                    b"stats" | b"version" | b"flush_all" | b"mn" | b"verbosity" => {}
                    _ => keys.extend(self.spans.get(1)),
                }
            }
        }
    }

    /// As Redis' slow log shows them: the command, and its arguments cut.
    pub(crate) fn arguments(&self, protocol: Protocol, bytes: &[u8]) -> Vec<Vec<u8>> {
        let first = self.spans.first().map_or(&[][..], |word| word.of(bytes)).to_ascii_lowercase();
        let secretive = SECRETIVE.iter().find(|(name, _)| *name == first);
        let plain = match (protocol, secretive) {
            (Protocol::Redis, Some((_, plain))) => *plain,
            _ => usize::MAX,
        };
        let is_cut = self.count > ARGUMENTS_MAX;
        let shown = if is_cut { ARGUMENTS_MAX - 1 } else { self.count };
        let is_binary = protocol == Protocol::Memcached && bytes.first() == Some(&BINARY);
        let argument = |(at, word): (usize, &Span)| match word.of(bytes) {
            _ if at >= plain => REDACTED.to_vec(),
            _ if at == 0 && is_binary => opcode_name(bytes.get(1)).to_vec(),
            word => cut(word),
        };
        let mut arguments: Vec<Vec<u8>> =
            self.spans.iter().take(shown).enumerate().map(argument).collect();
        let left = self.count - arguments.len();
        if left > 0 {
            arguments.push(format!("... ({left} more arguments)").into_bytes());
        }
        arguments
    }
}

fn cut(word: &[u8]) -> Vec<u8> {
    let more = word.len().saturating_sub(ARGUMENT_SIZE_MAX);
    if more == 0 {
        return word.to_vec();
    }
    let mut cut = word[..ARGUMENT_SIZE_MAX].to_vec();
    cut.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
    cut
}

/// The number in the line at `at`, which begins with `kind`, and what is behind the line.
fn length(bytes: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?.strip_prefix(&[kind])?;
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    let number = resp::integer(&rest[..end])?;
    Some((usize::try_from(number).ok()?, at + 1 + end + 2))
}

fn opcode_name(opcode: Option<&u8>) -> &'static [u8] {
    let Some((opcode, _)) = opcode.and_then(|&byte| Opcode::from_byte(byte)) else {
        return b"unknown";
    };
    match opcode {
        Opcode::Get | Opcode::GetK => b"get",
        Opcode::Set => b"set",
        Opcode::Add => b"add",
        Opcode::Replace => b"replace",
        Opcode::Delete => b"delete",
        Opcode::Increment => b"incr",
        Opcode::Decrement => b"decr",
        Opcode::Quit => b"quit",
        Opcode::Flush => b"flush_all",
        Opcode::Noop => b"noop",
        Opcode::Version => b"version",
        Opcode::Append => b"append",
        Opcode::Prepend => b"prepend",
        Opcode::Stat => b"stats",
        Opcode::Verbosity => b"verbosity",
        Opcode::Touch => b"touch",
        Opcode::Gat | Opcode::GatK => b"gat",
        Opcode::SaslList | Opcode::SaslAuth | Opcode::SaslStep => b"sasl",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(protocol: Protocol, bytes: &[u8]) -> (Vec<String>, Vec<String>) {
        let mut words = Words::default();
        words.read(protocol, bytes);
        let mut keys = Vec::new();
        words.keys(protocol, bytes, &mut keys);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let arguments = words.arguments(protocol, bytes);
        (
            arguments.iter().map(|it| text(it)).collect(),
            keys.iter().map(|it| text(it.of(bytes))).collect(),
        )
    }

    fn redis(words: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        told(Protocol::Redis, &bytes)
    }

    #[test]
    fn commands_and_keys_of_redis_are_told() {
        assert_eq!(
            redis(&["SET", "k", "v"]),
            (vec!["SET".into(), "k".into(), "v".into()], vec!["k".into()])
        );
        assert_eq!(redis(&["mget", "a", "b"]).1, ["a", "b"]);
        assert_eq!(redis(&["eval", "return 1", "2", "a", "b", "c"]).1, ["a", "b"]);
        assert_eq!(redis(&["ping"]), (vec!["ping".into()], vec![]));
    }

    #[test]
    fn long_requests_are_cut_as_in_redis() {
        let value = "v".repeat(200);
        let (arguments, _) = redis(&["SET", "k", &value]);
        assert_eq!(arguments[2], format!("{}... (72 more bytes)", "v".repeat(128)));
        let words: Vec<String> = (0..100).map(|at| at.to_string()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (arguments, _) = redis(&words);
        assert_eq!((arguments.len(), arguments[31].as_str()), (32, "... (69 more arguments)"));
    }

    #[test]
    fn secrets_are_not_shown() {
        for words in [
            &["AUTH", "user", "hunter2"][..],
            &["config", "set", "requirepass", "hunter2"],
            &["ACL", "setuser", "joe", ">hunter2"],
            &["hello", "3", "auth", "joe", "hunter2"],
        ] {
            let (arguments, _) = redis(words);
            assert!(!arguments.iter().any(|it| it.contains("hunter2")), "{arguments:?}");
            assert!(arguments.contains(&"(redacted)".to_owned()));
        }
    }

    #[test]
    fn commands_and_keys_of_memcached_are_told() {
        let text = |bytes: &[u8]| told(Protocol::Memcached, bytes);
        assert_eq!(
            text(b"get a b\r\n"),
            (vec!["get".into(), "a".into(), "b".into()], vec!["a".into(), "b".into()])
        );
        assert_eq!(text(b"set k 0 0 3\r\nabc\r\n").1, ["k"]);
        assert_eq!(text(b"gat 10 k\r\n").1, ["k"]);
        assert_eq!(text(b"mg k v\r\n").1, ["k"]);
        let mut packet = vec![0x80, 0x01, 0, 3, 8, 0, 0, 0, 0, 0, 0, 14];
        packet.resize(24 + 8, 0);
        packet.extend_from_slice(b"keyval");
        assert_eq!(text(&packet), (vec!["set".into(), "key".into()], vec!["key".into()]));
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$3\r\nval\r\n";
        for len in 0..whole.len() {
            let bytes = &whole[..len];
            told(Protocol::Redis, bytes);
        }
        told(Protocol::Redis, b"*3\r\n$18446744073709551615\r\nx");
        told(Protocol::Memcached, &[0x80, 1, 255, 255, 255]);
        told(Protocol::Memcached, &[0x80]);
    }
}
