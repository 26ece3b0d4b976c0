//! memcached's text protocol, including meta commands.

use super::{ODD, mutated_bytes, mutated_words, number};
use crate::case::Request;
use crate::random::Random;

/// Keys of hostile clients. The last ones are base64 of bytes that are not text, and of line ends.
const KEYS: &[&str] = &[
    "k1",
    "k2",
    "k3",
    "k4",
    "n1",
    "n2",
    "noreply",
    "q",
    "0",
    "AAAA",
    "aGVsbG8=",
    "DQo=",
    "a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo=",
    "AGEK",
    "/wD/",
];

/// Words used in lines.
const VOCABULARY: &[&str] = &[
    "noreply",
    "noreply",
    "noreply",
    "q",
    "k",
    "v",
    "b",
    "0",
    "1",
    "-1",
    "all",
    "on",
    "off",
    "detail",
    "dump",
    "reset",
    "automove",
    "reassign",
    "enable",
    "disable",
    "crawl",
    "metadump",
    "mgdump",
    "tocrawl",
    "sleep",
    "tune",
    "mode",
    "flat",
    "segmented",
    "temp_ttl",
    "hash",
    "items",
    "slabs",
    "sizes",
    "sizes_enable",
    "sizes_disable",
    "settings",
    "conns",
    "cachedump",
    "extstore",
    "proxy",
    "k1",
    "k2",
    "get",
    "set",
    "mn",
    "HTTP/1.1",
    "watch",
    "free_memchunks",
    "item_size",
    "item_age",
    "low_ttl",
    "recache_percent",
    "compact_under",
    "drop_under",
    "max_frag",
    "max_sleep",
    "2",
];

/// Lines that were once parsed differently than servers do, and similar ones.
const CORPUS: &[&str] = &[
    "slabs automove noreply",
    "slabs automove 0 noreply noreply",
    "lru noreply noreply",
    "extstore noreply noreply",
    "cache_memlimit noreply noreply",
    "refresh_certs noreply noreply",
    "stats sizes_enable",
    "stats sizes_disable",
    "lru_crawler enable noreply",
    "lru_crawler crawl all noreply",
    "verbosity noreply noreply",
    "flush_all noreply noreply",
    "slabs reassign 1 2 noreply",
    "slabs reassign noreply noreply noreply",
    "lru tune 10 25 0.1 2.0 noreply",
    "lru mode flat noreply",
    "lru temp_ttl 60 noreply",
    "cache_memlimit 64 noreply",
    "cache_memlimit noreply",
    "stats noreply",
    "stats reset noreply",
    "stats detail on",
    "stats detail off",
    "stats detail dump",
    "stats sizes",
    "stats cachedump 1 10",
    "stats cachedump 1 0 noreply",
    "stats conns",
    "stats slabs",
    "stats items",
    "stats settings",
    "ma AGEK b N0",
    "mg AGEK b N0",
    "me AGEK b",
    "mg AGEK b k",
    "mg a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo= b N0",
    "ma a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo= b N0",
    "mg a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo= b k v",
    "me a2V5DQpWQUxVRSB3MCAwIDYNCmZvcmdlZA0KRU5EDQo= b",
    "touch k1 0 noreply noreply",
    "incr n1 1 noreply noreply",
    "delete k1 0 noreply noreply",
    "delete k1 noreply noreply",
    "get",
    "gat 0",
    "gats 0 ",
    "version noreply",
    "quit noreply",
    "mn noreply",
    "misbehave",
    "pid",
    "bget k1",
    "lru_crawler metadump all",
    "lru_crawler mgdump all",
    "lru_crawler metadump hash noreply",
    "refresh_certs",
    "refresh_certs noreply",
    "watch fetchers noreply",
    "shutdown noreply",
    "extstore free_memchunks 0 10 noreply",
    "extstore recache_percent 1 noreply",
];

const META_FLAGS: &[&str] = &[
    "b",
    "c",
    "f",
    "h",
    "k",
    "l",
    "s",
    "t",
    "v",
    "q",
    "x",
    "I",
    "O1",
    "Oabc",
    "N0",
    "N30",
    "R30",
    "T0",
    "T30",
    "T-1",
    "E5",
    "E0",
    "C1",
    "C0",
    "F7",
    "M",
    "MS",
    "MA",
    "MP",
    "ME",
    "MR",
    "MI",
    "MD",
    "Mx",
    "D1",
    "D5",
    "J0",
    "J10",
    "S5",
    "P",
    "L",
    "O",
    "N",
    "T",
    "R",
    "C",
    "D",
    "J",
    "F",
    "!",
    "vv",
    "k1",
    "O12345678901234567890123456789012345",
];

fn key(random: &mut Random) -> String {
    (random.pick(KEYS)).to_owned()
}

fn value(random: &mut Random) -> Vec<u8> {
    match random.below(10) {
        0 => Vec::new(),
        1 => b"END\r\n".to_vec(),
        2 => b"VALUE w0 0 6\r\nforged\r\nEND\r\n".to_vec(),
        3 => random.bytes(300),
        4 if random.percent(10) => random.bytes(300_000),
        5 if random.percent(4) => random.bytes(1_100_000),
        6 => b"12".to_vec(),
        _ => b"value".to_vec(),
    }
}

fn numeral(random: &mut Random) -> String {
    String::from_utf8_lossy(&number(random)).into_owned()
}

/// A line without its end, and its data.
fn line(random: &mut Random) -> (String, Option<Vec<u8>>) {
    let noreply = random.pick(&[
        "",
        "",
        "",
        " noreply",
        " noreply noreply",
        " NOREPLY",
        " noreply ",
        "  noreply",
    ]);
    let (key, number) = (key(random), numeral(random));
    match random.below(22) {
        0 | 1 => {
            let count = random.pick(&[1, 2, 3, 12, 40]);
            let keys: Vec<_> = (0..count).map(|_| random.pick(KEYS)).collect();
            let verb = random.pick(&["get", "gets", "bget", "gat 0", "gats 10", "gat x", "gat"]);
            (format!("{verb} {}", keys.join(" ")), None)
        }
        2..=4 => {
            let verb = random.pick(&["set", "add", "replace", "append", "prepend", "cas"]);
            let value = value(random);
            let unique =
                if verb == "cas" { format!(" {}", numeral(random)) } else { String::new() };
            let flags = if random.percent(80) { "0".to_owned() } else { numeral(random) };
            let exptime = if random.percent(80) { "0".to_owned() } else { numeral(random) };
            let len = match random.percent(90) {
                true => value.len().to_string(),
                false => numeral(random),
            };
            (format!("{verb} {key} {flags} {exptime} {len}{unique}{noreply}"), Some(value))
        }
        5 => (format!("{} {key} {number}{noreply}", random.pick(&["incr", "decr", "touch"])), None),
        6 => (format!("delete {key}{}{noreply}", random.pick(&["", "", " 0", " 1"])), None),
        7 => {
            let verb = random.pick(&[
                "flush_all",
                "verbosity",
                "version",
                "mn",
                "quit",
                "flush_all 0",
                "verbosity 1",
            ]);
            (format!("{verb}{}{noreply}", random.pick(&["", "", " 0", " x"])), None)
        }
        8..=11 => meta(&key, random),
        12 | 13 => {
            let of = random.pick(&[
                "",
                " items",
                " slabs",
                " settings",
                " sizes",
                " conns",
                " reset",
                " detail on",
                " detail off",
                " detail dump",
                " detail",
                " cachedump 1 5",
                " cachedump 1",
                " sizes_enable",
                " sizes_disable",
                " extstore",
                " proxy",
                " nonsense",
                " threads",
            ]);
            (format!("stats{of}{noreply}"), None)
        }
        14 | 15 => {
            let verb = random.pick(&[
                "slabs",
                "lru",
                "lru_crawler",
                "cache_memlimit",
                "extstore",
                "refresh_certs",
                "watch",
            ]);
            let words: Vec<_> = (0..random.below(5)).map(|_| random.pick(VOCABULARY)).collect();
            (format!("{verb} {}{noreply}", words.join(" ")), None)
        }
        16 | 17 => {
            let verb = random.pick(&[
                "slabs reassign 1 2",
                "slabs automove 0",
                "slabs automove 1",
                "lru mode flat",
                "lru mode segmented",
                "lru tune 10 25 0.1 2.0",
                "lru temp_ttl 61",
                "lru_crawler enable",
                "lru_crawler disable",
                "lru_crawler sleep 100",
                "lru_crawler tocrawl 10",
                "lru_crawler crawl 1",
                "lru_crawler crawl all",
                "cache_memlimit 128",
                "extstore recache_percent 10",
                "refresh_certs",
                "slabs",
                "lru",
                "extstore",
            ]);
            (format!("{verb}{noreply}"), None)
        }
        _ => ((random.pick(CORPUS)).to_owned(), None),
    }
}

fn meta(key: &str, random: &mut Random) -> (String, Option<Vec<u8>>) {
    let count = random.pick(&[0, 1, 2, 2, 3, 4, 6, 20]);
    let mut flags = String::new();
    for _ in 0..count {
        flags.push(' ');
        flags.push_str(random.pick(META_FLAGS));
    }
    if random.percent(30) {
        flags.push_str(
            random.pick(&[" q", " b", " b k", " b N0", " q k", " b k v", " q v", " b q"]),
        );
    }
    match random.below(9) {
        0..=2 => (format!("mg {key}{flags}"), None),
        3 | 4 => {
            let value = value(random);
            let len = match random.percent(90) {
                true => value.len().to_string(),
                false => numeral(random),
            };
            (format!("ms {key} {len}{flags}"), Some(value))
        }
        5 => (format!("md {key}{flags}"), None),
        6 => (format!("ma {key}{flags}"), None),
        7 => (format!("me {key}{flags}"), None),
        _ => (format!("mn{flags}"), None),
    }
}

pub fn request(random: &mut Random) -> Request {
    let (mut line, data) = line(random);
    if random.percent(30) {
        let words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let words = mutated_words(words, VOCABULARY, random);
        let space: &[u8] = random.pick(&[b" " as &[u8], b" ", b" ", b"  ", b"\t"]);
        return finished(words.join(space), data, random);
    }
    if random.percent(5) {
        line.insert(0, ' ');
    }
    finished(line.into_bytes(), data, random)
}

fn finished(mut bytes: Vec<u8>, data: Option<Vec<u8>>, random: &mut Random) -> Request {
    let end: &[u8] = random.pick(&[
        b"\r\n" as &[u8],
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\n",
        b"\r\r\n",
        b" \r\n",
        b"\0\r\n",
    ]);
    bytes.extend_from_slice(end);
    if let Some(data) = data {
        bytes.extend_from_slice(&data);
        bytes.extend_from_slice(if random.percent(95) {
            b"\r\n"
        } else {
            ODD[random.below(ODD.len())]
        });
    }
    if random.percent(12) {
        bytes = mutated_bytes(bytes, random);
    }
    Request::Raw(bytes)
}
