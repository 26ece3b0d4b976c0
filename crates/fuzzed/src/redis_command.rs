//! Whatever a request says, the command table has an answer: keys among its arguments, or one error.

use cashew_protocol::Span;
use cashew_protocol::redis::{
    CustomCommands, Lookup, Rule, command_reply, definitions, find, unknown_command_error,
    unknown_subcommand_error, wrong_arity_error,
};
use cashew_protocol::resp::{Parsed, ReplyScanner, RequestParser, Scan, Version, encode};

pub fn look_up(data: &[u8]) {
    requests(data);
    words(data);
    told(data);
}

/// What a server tells of a command of its own.
pub fn told(data: &[u8]) {
    let custom = CustomCommands::new(&definitions("x", data), &CustomCommands::default());
    let buf = b"x1";
    for len in 1..8 {
        let args: Vec<Span> = (0..len).map(|at| Span::new(usize::from(at > 0), 1)).collect();
        if let Lookup::Found(command) = custom.find(buf, &args) {
            let _ = command.keys(buf, &args, &mut Vec::new());
            assert!(command.single_key().is_none_or(|at| at < args.len()));
        }
    }
}

/// The requests of a stream, as a client sends them.
pub fn requests(data: &[u8]) {
    let mut parser = RequestParser::default();
    let mut rest = data;
    while let Parsed::Complete { len } = parser.parse(rest, usize::MAX) {
        let text = parser.inline_encoded().unwrap_or(&rest[..len]);
        call(text, parser.args());
        parser.reset();
        rest = &rest[len..];
    }
}

/// A call whose arguments are what lies between NULs: any bytes, without headers to get right.
pub fn words(data: &[u8]) {
    let mut args = Vec::new();
    let mut start = 0;
    for word in data.split(|&byte| byte == 0) {
        args.push(Span::new(start, word.len()));
        start += word.len() + 1;
    }
    call(data, &args);
}

fn call(buf: &[u8], args: &[Span]) {
    let mut out = Vec::new();
    match find(buf, args) {
        Lookup::Found(command) => {
            assert!(command.takes(args.len()));
            assert_ne!(command.rule, Rule::Unsupported, "{}", command.name);
            let mut keys = Vec::new();
            match command.keys(buf, args, &mut keys) {
                Ok(()) => {
                    assert!(keys.iter().all(|key| args[1..].contains(key)), "{}", command.name);
                    if let Some(at) = command.single_key() {
                        assert_eq!(keys, [args[at]]);
                    }
                    if let Rule::Split(_) = command.rule {
                        assert!((args.len() - 1).is_multiple_of(keys.len()));
                    }
                }
                Err(text) => {
                    encode::write_error(&mut out, text.as_bytes());
                    assert_error(&out);
                }
            }
        }
        Lookup::UnknownCommand => unknown_command_error(&mut out, buf, args),
        Lookup::UnknownSubcommand(container) => {
            unknown_subcommand_error(&mut out, container, buf, args);
        }
        Lookup::WrongArity(command) => wrong_arity_error(&mut out, command),
    }
    if !out.is_empty() {
        assert_error(&out);
    }
    if args.first().is_some_and(|name| name.of(buf).eq_ignore_ascii_case(b"command")) {
        for version in [Version::Resp2, Version::Resp3] {
            out.clear();
            command_reply(buf, args, (&CustomCommands::default(), None), version, &mut out);
            assert_eq!(ReplyScanner::default().scan(&out), Scan::Complete(out.len()));
        }
    }
}

fn assert_error(out: &[u8]) {
    assert!(out.starts_with(b"-"));
    assert_eq!(ReplyScanner::default().scan(out), Scan::Complete(out.len()));
}
