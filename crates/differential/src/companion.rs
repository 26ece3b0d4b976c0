//! Clients beside the hostile one whose replies are known.

use cashew_engine::ConnId;

use crate::generate::Protocol;
use crate::generate::binary::packet;

pub(crate) struct Companion {
    pub(crate) conn: Option<ConnId>,
    /// Stores what is requested later.
    pub(crate) store: Vec<u8>,
    pub(crate) questions: Vec<Question>,
}

pub(crate) struct Question {
    pub(crate) ask: Vec<u8>,
    pub(crate) hit: Vec<u8>,
    /// Valid after another client has flushed everything.
    pub(crate) misses: Vec<Vec<u8>>,
}

fn question(ask: &str, hit: &str, misses: &[&str]) -> Question {
    let misses = misses.iter().map(|miss| miss.as_bytes().to_vec()).collect();
    Question { ask: ask.into(), hit: hit.into(), misses }
}

impl Companion {
    /// A reply without what only the server knows: the unique of a binary one.
    pub(crate) fn comparable(protocol: Protocol, mut said: Vec<u8>) -> Vec<u8> {
        if protocol == Protocol::Binary
            && let Some(unique) = said.get_mut(16..24)
        {
            unique.fill(0);
        }
        said
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn.expect("it was accepted")
    }

    pub(crate) fn of(protocol: Protocol) -> Vec<Self> {
        match protocol {
            Protocol::Redis => {
                vec![Self::redis(b"", "$-1\r\n"), Self::redis(b"HELLO 3\r\n", "_\r\n")]
            }
            Protocol::Text => vec![Self::text()],
            Protocol::Binary => vec![Self::binary()],
        }
    }

    fn redis(hello: &[u8], null: &str) -> Self {
        let store = [hello, b"SET w0 watched0\r\nSET w1 watched1\r\n"].concat();
        let (w0, w1) = ("$8\r\nwatched0\r\n", "$8\r\nwatched1\r\n");
        let questions = vec![
            question("*2\r\n$3\r\nGET\r\n$2\r\nw0\r\n", w0, &[null]),
            question("*2\r\n$3\r\nGET\r\n$2\r\nw1\r\n", w1, &[null]),
            question(
                "MGET w0 w1\r\n",
                &format!("*2\r\n{w0}{w1}"),
                &[
                    &format!("*2\r\n{null}{null}"),
                    &format!("*2\r\n{w0}{null}"),
                    &format!("*2\r\n{null}{w1}"),
                ],
            ),
        ];
        Self { conn: None, store, questions }
    }

    fn text() -> Self {
        let store = b"set w0 0 0 8\r\nwatched0\r\nset w1 7 0 8\r\nwatched1\r\n".to_vec();
        let (w0, w1) = ("VALUE w0 0 8\r\nwatched0\r\n", "VALUE w1 7 8\r\nwatched1\r\n");
        let questions = vec![
            question("get w0\r\n", &format!("{w0}END\r\n"), &["END\r\n"]),
            question("get w1\r\n", &format!("{w1}END\r\n"), &["END\r\n"]),
            question(
                "get w0 w1\r\n",
                &format!("{w0}{w1}END\r\n"),
                &["END\r\n", &format!("{w0}END\r\n"), &format!("{w1}END\r\n")],
            ),
            question("mg w0 v k\r\n", "VA 8 kw0\r\nwatched0\r\n", &["EN\r\n", "EN kw0\r\n"]),
            question("mg w1 f k\r\n", "HD f7 kw1\r\n", &["EN\r\n", "EN kw1\r\n"]),
        ];
        Self { conn: None, store, questions }
    }

    fn binary() -> Self {
        let store = packet(0x01, &[0; 8], b"w0", b"watched0", 1, 0);
        let touch = packet(0x1c, &[0; 4], b"w0", b"", 0x7761_7463, 0);
        let reply = |status: u8, extras: &[u8], text: &[u8]| {
            let mut reply = packet(0x1c, extras, b"", text, 0x7761_7463, 0);
            reply[0] = 0x81;
            reply[7] = status;
            reply
        };
        let exists = Question {
            ask: touch,
            hit: reply(0, &[0; 4], b""),
            misses: vec![reply(1, b"", b""), reply(1, b"", b"Not found")],
        };
        let noop = |byte| {
            let mut packet = packet(0x0a, b"", b"", b"", 0x1234_5678, 0);
            packet[0] = byte;
            packet
        };
        let noop = Question { ask: noop(0x80), hit: noop(0x81), misses: Vec::new() };
        Self { conn: None, store, questions: vec![exists, noop] }
    }
}
