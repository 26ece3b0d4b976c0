//! What a client's own keys hold by the replies that it got, in its order. Nobody else writes them, so each reply must
//! be that of all before it, executed once and in order, wherever they have been executed.

use std::collections::BTreeMap;

use crate::request::{Access, Answer, Part, Request};

/// The values of one client's keys; of those that are unknown, none.
#[derive(Default)]
pub(crate) struct History {
    values: BTreeMap<Vec<u8>, Value>,
    /// Commands of a transaction that is not executed yet.
    queued: Vec<(Vec<u8>, Part)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Known(Option<Vec<u8>>),
    /// Something failed that may have been executed, or may be yet.
    Unknown,
}

/// How a request of a client ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With its correct reply, which is known to be of its place in the order if `is_ordered`.
    Answered {
        is_ordered: bool,
    },
    /// It surely was not executed, nor will be.
    Refused,
    Failed,
}

impl History {
    /// Returns the correct reply, where that is known and another one.
    pub(crate) fn ended(
        &mut self,
        request: &Request,
        reply: &[u8],
        ending: Ending,
    ) -> Option<Vec<u8>> {
        if let Answer::Session { .. } = request.answer {
            self.ended_in_transaction(request, ending);
            return None;
        }
        let is_write = request.access == Access::Write;
        match ending {
            Ending::Refused => None,
            Ending::Failed => {
                if is_write {
                    request.parts.iter().for_each(|part| self.forget(&part.key));
                }
                None
            }
            Ending::Answered { is_ordered } => {
                let shares: Vec<Option<Vec<u8>>> = request
                    .parts
                    .iter()
                    .map(|part| self.execute(&request.tag, part, request))
                    .collect();
                let shares: Vec<Vec<u8>> = shares.into_iter().collect::<Option<_>>()?;
                let due = combined(request, &shares)?;
                (is_ordered && due != reply).then_some(due)
            }
        }
    }

    fn ended_in_transaction(&mut self, request: &Request, ending: Ending) {
        for part in &request.parts {
            self.queued.push((request.tag.clone(), part.clone()));
        }
        match name_of(&request.bytes) {
            b"MULTI" | b"DISCARD" => self.queued.clear(),
            b"EXEC" => {
                for (tag, part) in std::mem::take(&mut self.queued) {
                    match ending {
                        Ending::Answered { .. } => drop(self.execute(&tag, &part, request)),
                        Ending::Failed => self.forget(&part.key),
                        Ending::Refused => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// The client has left, or its reply is not waited for.
    pub(crate) fn unanswered(&mut self, request: &Request) {
        if request.access == Access::Write {
            request.parts.iter().for_each(|part| self.forget(&part.key));
        }
        for (_, part) in std::mem::take(&mut self.queued) {
            self.forget(&part.key);
        }
    }

    pub(crate) fn forget(&mut self, key: &[u8]) {
        self.values.insert(key.to_vec(), Value::Unknown);
    }

    /// The share of one key in the reply; `None` if it is unknown.
    fn execute(&mut self, tag: &[u8], part: &Part, request: &Request) -> Option<Vec<u8>> {
        if part.shared {
            return part.outcome.as_ref().map(|outcome| outcome.reply.clone());
        }
        let entry = self.values.entry(part.key.clone()).or_insert(Value::Known(None));
        let Value::Known(value) = entry else { return None };
        let nil: &[u8] = if request.params.resp3 { b"_\r\n" } else { b"$-1\r\n" };
        let count = |is: bool| format!(":{}\r\n", u8::from(is)).into_bytes();
        Some(match &tag.to_ascii_uppercase()[..] {
            b"GET" | b"MGET" => match value {
                Some(text) => [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat(),
                None => nil.to_vec(),
            },
            b"SET" | b"MSET" => {
                *value = Some(part.payload.clone().unwrap_or_default());
                b"+OK\r\n".to_vec()
            }
            b"INCRBY" => {
                let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i64>().ok();
                let old = value.as_ref().map_or(Some(0), |text| number(text));
                let by = part.payload.as_deref().and_then(number).unwrap_or(0);
                match old {
                    Some(old) => {
                        let new = old.wrapping_add(by).to_string();
                        *value = Some(new.clone().into_bytes());
                        format!(":{new}\r\n").into_bytes()
                    }
                    None => b"-ERR value is not an integer or out of range\r\n".to_vec(),
                }
            }
            b"STRLEN" => format!(":{}\r\n", value.as_ref().map_or(0, Vec::len)).into_bytes(),
            b"DEL" | b"UNLINK" => count(value.take().is_some()),
            b"EXISTS" | b"TOUCH" => count(value.is_some()),
            _ => return None,
        })
    }

    /// The keys whose values are known.
    pub(crate) fn known(&self) -> impl Iterator<Item = (Vec<u8>, Option<Vec<u8>>)> {
        self.values.iter().filter_map(|(key, value)| match value {
            Value::Known(value) => Some((key.clone(), value.clone())),
            Value::Unknown => None,
        })
    }
}

fn combined(request: &Request, shares: &[Vec<u8>]) -> Option<Vec<u8>> {
    match request.answer {
        Answer::Gather => {
            Some([format!("*{}\r\n", shares.len()).as_bytes(), &shares.concat()].concat())
        }
        Answer::Sum => {
            let ones = shares.iter().filter(|share| *share == b":1\r\n").count();
            Some(format!(":{ones}\r\n").into_bytes())
        }
        Answer::Forward | Answer::Same => shares.first().cloned(),
        _ => None,
    }
}

/// The name of a command without arguments.
pub(crate) fn name_of(bytes: &[u8]) -> &[u8] {
    bytes
        .strip_prefix(b"*1\r\n")
        .and_then(|rest| rest.split(|&byte| byte == b'\n').nth(1))
        .map_or(b"", |line| line.strip_suffix(b"\r").unwrap_or(line))
}
