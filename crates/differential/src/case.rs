//! The input of one hostile client, in a form that can be reduced and written down.

use std::fmt::Write;

/// One request, or bytes meant to look like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Sent as an array of bulk strings.
    Words(Vec<Vec<u8>>),
    /// Sent as it is.
    Raw(Vec<u8>),
}

impl Request {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.clone(),
            Self::Words(words) => {
                let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
                for word in words {
                    bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                    bytes.extend_from_slice(word);
                    bytes.extend_from_slice(b"\r\n");
                }
                bytes
            }
        }
    }

    /// The words that a report uses as its name: without arguments, which differ too much.
    pub fn name(&self) -> String {
        let words: Vec<&[u8]> = match self {
            Self::Words(words) => words.iter().map(Vec::as_slice).collect(),
            Self::Raw(bytes) if bytes.first() == Some(&0x80) => {
                return format!("binary {:#04x}", bytes.get(1).copied().unwrap_or_default());
            }
            Self::Raw(bytes) => bytes.split(|byte| b" \r\n".contains(byte)).collect(),
        };
        let mut words = words.into_iter().filter(|word| !word.is_empty()).peekable();
        // These are followed by a key.
        const KEYED: [&[u8]; 14] = [
            b"get", b"gets", b"set", b"add", b"replace", b"append", b"prepend", b"cas", b"mg",
            b"ms", b"md", b"ma", b"me", b"GET",
        ];
        let count = if words.peek().is_some_and(|word| KEYED.contains(word)) { 1 } else { 2 };
        let shown = words.take(count);
        let shown: Vec<String> =
            shown.map(|word| quoted(&word[..word.len().min(20)]).to_lowercase()).collect();
        shown.join(" ")
    }
}

/// The input of one client, sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub requests: Vec<Request>,
    /// It begins with HELLO 3.
    pub resp3: bool,
    /// Other clients send requests in the same tick, on the same connections.
    pub accompanied: bool,
    /// Seed for where its bytes, and the servers', are cut.
    pub cuts: u64,
}

impl Case {
    pub fn bytes(&self) -> Vec<u8> {
        self.requests.iter().flat_map(Request::bytes).collect()
    }

    /// In the format of [`read_cases`].
    pub fn written(&self) -> String {
        let mut text = String::from("case");
        for (flag, is_on) in [(" resp3", self.resp3), (" accompanied", self.accompanied)] {
            text.push_str(if is_on { flag } else { "" });
        }
        writeln!(text, " cuts={}", self.cuts).expect("a string takes all");
        for request in &self.requests {
            match request {
                Request::Raw(bytes) => writeln!(text, "raw \"{}\"", quoted(bytes)),
                Request::Words(words) => {
                    let words: Vec<String> =
                        words.iter().map(|word| format!("\"{}\"", quoted(word))).collect();
                    writeln!(text, "words {}", words.join(" "))
                }
            }
            .expect("a string takes all");
        }
        text
    }
}

pub fn quoted(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Bytes for a report: only the start and the end of long ones.
pub fn excerpt(bytes: &[u8]) -> String {
    const SHOWN: usize = 400;
    if bytes.len() <= 2 * SHOWN {
        return quoted(bytes);
    }
    let (head, tail) = (&bytes[..SHOWN], &bytes[bytes.len() - SHOWN..]);
    format!("{} …{} bytes… {}", quoted(head), bytes.len() - 2 * SHOWN, quoted(tail))
}

/// Cases written by [`Case::written`]; other lines are ignored.
pub fn read_cases(text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "case" => {
                let has = |flag: &str| rest.split(' ').any(|word| word == flag);
                let cuts = rest.split(' ').find_map(|word| word.strip_prefix("cuts="));
                let cuts = cuts.and_then(|cuts| cuts.parse().ok()).ok_or("a case without cuts")?;
                cases.push(Case {
                    requests: Vec::new(),
                    resp3: has("resp3"),
                    accompanied: has("accompanied"),
                    cuts,
                });
            }
            "raw" | "words" => {
                let case = cases.last_mut().ok_or("a request without a case")?;
                let mut words = unquoted(rest)?;
                case.requests.push(match first {
                    "raw" => Request::Raw(words.pop().ok_or("an empty line")?),
                    _ => Request::Words(words),
                });
            }
            _ => {}
        }
    }
    Ok(cases)
}

/// The strings in quotes of a line.
fn unquoted(line: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut words = Vec::new();
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'"' {
            continue;
        }
        let mut word = Vec::new();
        loop {
            match bytes.next().ok_or("a quote is open")? {
                b'"' => break,
                b'\\' => match bytes.next().ok_or("nothing is escaped")? {
                    b'n' => word.push(b'\n'),
                    b'r' => word.push(b'\r'),
                    b't' => word.push(b'\t'),
                    b'x' => {
                        let digits = [bytes.next(), bytes.next()];
                        let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                        let (Some(high), Some(low)) = (digit(digits[0]), digit(digits[1])) else {
                            return Err("\\x without digits".to_owned());
                        };
                        word.push((high * 16 + low) as u8);
                    }
                    other => word.push(other),
                },
                other => word.push(other),
            }
        }
        words.push(word);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let all: Vec<u8> = (0..=255).collect();
        let cases = vec![
            Case {
                requests: vec![
                    Request::Words(vec![b"GET".to_vec(), all.clone(), Vec::new()]),
                    Request::Raw(all),
                ],
                resp3: true,
                accompanied: false,
                cuts: u64::MAX,
            },
            Case { requests: Vec::new(), resp3: false, accompanied: true, cuts: 0 },
        ];
        let text: String = cases.iter().map(Case::written).collect();
        assert_eq!(read_cases(&format!("# a comment\n{text}")).unwrap(), cases);
    }
}
