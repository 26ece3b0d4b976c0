//! Requests: from bytes to verb, keys and length.
//!
//! A parser handles one request at a time, in a buffer that only grows, and keeps its position. It
//! never copies. Refusals have the errors, and swallow the bytes, of memcached 1.6.18. Where that
//! server depends on how the bytes happened to arrive, the parser depends on the bytes alone.
//!
//! Versions of memcached parse lines differently: what may precede the verb, which numbers are
//! valid, where `noreply` may stand, which flags a meta command has. So the grammar here is what
//! all of them parse alike. A request in another form [is odd](RequestParser::is_odd) and has to be
//! [rewritten](RequestParser::write_anew).

use memchr::{memchr, memchr2};

use super::answer::Answer;
use super::forms;
use super::meta::read_key;
use super::number::{signed32, unsigned, unsigned32};
use super::refusal::*;
use super::words::{WORDS_MAX, Words, is_tidy, next_word, words};
use super::{Expect, KEY_SIZE_MAX, Meta, Verb};
use crate::Span;

/// Longest command line, including its end, except for `get` and `gets`. memcached closes the
/// connection when it has more than this without a line end.
pub const COMMAND_SIZE_MAX: usize = 2048;
/// Longest line of `get` and `gets`, which memcached does not limit: over 16,000 of the longest
/// keys.
pub const MULTIGET_SIZE_MAX: usize = 4 << 20;
/// Largest data block that can be announced, whatever the server's own limit is.
pub const VALUE_SIZE_LIMIT: u64 = i32::MAX as u64 - 2;

/// Leading spaces after which memcached no longer takes a long line for a multiget.
const MULTIGET_INDENT_MAX: usize = 100;
/// Room for keys that stays allocated between requests.
const KEYS_KEPT: usize = 1024;
const LINE_END_SIZE: u64 = 2;
const NOREPLY: &[u8] = b"noreply";

/// What the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole request: its length from the start of the buffer, data block and line end included.
    Complete { len: usize },
    /// More bytes are needed; `need` is the least length that the request can have, and more than
    /// the buffer holds.
    Partial { need: usize },
    /// Not a request that can be served: answer `reply` (unless `noreply`), drop `len` bytes of the
    /// buffer, then `swallow` further bytes that have not arrived. The connection stays open unless
    /// `close`.
    Reject { len: usize, swallow: u64, reply: &'static [u8], noreply: bool, close: bool },
}

/// Parses one request at a time; reset it between two.
#[derive(Clone, Debug)]
pub struct RequestParser {
    value_size_max: u64,
    /// So many bytes of the buffer have no line end.
    scanned: usize,
    /// The first NUL of the line. It ends the line for memcached, which uses C strings.
    nul: Option<usize>,
    /// Length of the whole request; 0 until its line has been read.
    len: usize,
    verb: Verb,
    keys: Vec<Span>,
    noreply: Option<Span>,
    meta: Meta,
    line: Span,
    data: Option<Span>,
    is_odd: bool,
    /// The number of words that servers use, if others follow them.
    meant: usize,
    /// `ms` has the flag `E`.
    is_given: bool,
}

impl RequestParser {
    /// Data blocks of more than `value_size_max` bytes are refused, and lines of `get`.
    pub fn new(value_size_max: u64) -> Self {
        Self {
            value_size_max: value_size_max.min(VALUE_SIZE_LIMIT),
            scanned: 0,
            nul: None,
            len: 0,
            verb: Verb::Get,
            keys: Vec::new(),
            noreply: None,
            meta: Meta::default(),
            line: Span::default(),
            data: None,
            is_odd: false,
            meant: 0,
            is_given: false,
        }
    }

    /// From the next request on, data blocks of more than `value_size_max` bytes are refused, and
    /// so are lines of `get`.
    pub fn set_value_size_max(&mut self, value_size_max: u64) {
        self.value_size_max = value_size_max.min(VALUE_SIZE_LIMIT);
    }

    /// `buf` starts at the first byte of the request on every call and only grows between calls.
    #[inline]
    pub fn parse(&mut self, buf: &[u8]) -> Parsed {
        if self.len == 0 {
            let end = match self.find_line(buf) {
                Ok(Some(end)) => end,
                Ok(None) => return Parsed::Partial { need: buf.len() + 1 },
                Err(refusal) => return refusal.at(buf.len(), buf),
            };
            match self.read_line(buf, end) {
                Ok(data) => self.len = end + 1 + data,
                Err(refusal) => return refusal.at(end + 1, buf),
            }
        }
        if buf.len() < self.len {
            return Parsed::Partial { need: self.len };
        }
        if self.data.is_some_and(|data| buf[data.end()..self.len] != *b"\r\n") {
            let refusal = Refusal { noreply: self.noreply.is_some(), ..Refusal::new(BAD_CHUNK) };
            return refusal.at(self.len, buf);
        }
        Parsed::Complete { len: self.len }
    }

    /// Bytes allocated for keys.
    pub fn allocated(&self) -> usize {
        self.keys.capacity() * size_of::<Span>()
    }

    /// Call this before the next request.
    #[inline]
    pub fn reset(&mut self) {
        self.scanned = 0;
        self.nul = None;
        self.len = 0;
        self.keys.clear();
        if self.keys.capacity() > KEYS_KEPT {
            self.keys.shrink_to(KEYS_KEPT);
        }
        self.noreply = None;
        self.meta = Meta::default();
        self.line = Span::default();
        self.data = None;
        self.is_odd = false;
        self.is_given = false;
    }

    #[inline]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// All keys: at least one for a command with keys. The key of a meta command may be in base64.
    ///
    /// For a request refused because its value is too large, the key is available as well: for
    /// `set` and `ms`, memcached itself would also delete the stored item.
    #[inline]
    pub fn keys(&self) -> &[Span] {
        &self.keys
    }

    /// The word `noreply` and the spaces before it, so that a forwarder can cut it out.
    #[inline]
    pub fn noreply(&self) -> Option<Span> {
        self.noreply
    }

    /// Properties of a meta command; defaults for any other.
    #[inline]
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// The command line without its line end, or the part that memcached sees: up to the first NUL.
    #[inline]
    pub fn line(&self) -> Span {
        self.line
    }

    /// The data block without its line end, for a command that stores.
    #[inline]
    pub fn data(&self) -> Option<Span> {
        self.data
    }

    /// Whether a server might parse the line differently than here, so that it must not be sent
    /// unchanged.
    #[inline]
    pub fn is_odd(&self) -> bool {
        self.is_odd
    }

    /// Writes a whole request in the form that every server parses alike: single spaces between
    /// words, no ignored words, and the usual line end. `bytes` is the original request.
    #[cold]
    pub fn write_anew(&self, bytes: &[u8], out: &mut Vec<u8>) {
        self.write_words(bytes, out, |key, out| out.extend_from_slice(key));
    }

    /// The same with keys as `write_key` writes them.
    pub(super) fn write_words(
        &self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        write_key: impl Fn(&[u8], &mut Vec<u8>),
    ) {
        let line = self.line.of(bytes);
        let mut words = words(line).take(self.meant);
        match self.verb {
            Verb::Get => out.extend_from_slice(b"get"),
            _ => out.extend_from_slice(words.clone().next().unwrap_or_default()),
        }
        words.next();
        let mut keys = self.keys.iter().map(|key| key.of(bytes)).peekable();
        let mut is_named_noreply = false;
        for word in words {
            out.push(b' ');
            let start = out.len();
            match keys.next_if(|key| std::ptr::eq(key.as_ptr(), word.as_ptr())) {
                Some(key) => {
                    write_key(key, out);
                    is_named_noreply = &out[start..] == NOREPLY;
                }
                None => out.extend_from_slice(word),
            }
        }
        if self.verb == Verb::Delete && is_named_noreply {
            out.extend_from_slice(b" 0");
        }
        if let Some(noreply) = self.noreply {
            out.push(b' ');
            out.extend_from_slice(noreply.of(bytes).trim_ascii_start());
        }
        out.extend_from_slice(b"\r\n");
        if let Some(data) = self.data {
            out.extend_from_slice(&bytes[data.start as usize..]);
        }
    }

    /// The server's reply, unless `noreply` or the flag `q` is left in.
    #[inline]
    pub fn expect(&self) -> Expect {
        match self.verb {
            Verb::Get | Verb::Gets | Verb::Gat | Verb::Gats => Expect::Values,
            Verb::MetaGet => Expect::Meta,
            Verb::MetaArithmetic => Expect::MetaNumber,
            Verb::Stats => Expect::Stats,
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend | Verb::Cas => {
                Expect::Answer(Answer::Store)
            }
            Verb::Delete => Expect::Answer(Answer::Delete),
            Verb::Incr | Verb::Decr => Expect::Answer(Answer::Number),
            Verb::Touch => Expect::Answer(Answer::Touch),
            Verb::FlushAll => Expect::Answer(Answer::Done),
            Verb::Version => Expect::Answer(Answer::Version),
            Verb::MetaSet if self.is_given => Expect::Answer(Answer::MetaSetGiven),
            Verb::MetaSet => Expect::Answer(Answer::MetaSet),
            Verb::MetaDelete => Expect::Answer(Answer::MetaDelete),
            Verb::MetaDebug => Expect::Answer(Answer::MetaDebug),
            Verb::Verbosity | Verb::Tune => Expect::Told,
            // They are not sent.
            Verb::Quit | Verb::Refused | Verb::MetaNoop => Expect::Line,
        }
    }

    /// The position of the line feed, if it has come.
    #[inline]
    fn find_line(&mut self, buf: &[u8]) -> Result<Option<usize>, Refusal> {
        let multiget_size_max = self.multiget_size_max();
        let window = &buf[..buf.len().min(multiget_size_max)];
        let end = self.find_line_feed(window);
        let size = end.map_or(window.len(), |end| end + 1);
        if size > COMMAND_SIZE_MAX || (end.is_none() && size == COMMAND_SIZE_MAX) {
            // Depends only on bytes that have come in any case, so the result is always the same.
            let size_max = if opens_multiget(buf) { multiget_size_max } else { COMMAND_SIZE_MAX };
            if size > size_max || (end.is_none() && size == size_max) {
                return Err(Refusal::closing(LINE_TOO_LONG));
            }
        }
        Ok(end)
    }

    /// A line may not be larger than a value, though memcached may accept more.
    #[inline]
    fn multiget_size_max(&self) -> usize {
        (self.value_size_max as usize).clamp(COMMAND_SIZE_MAX, MULTIGET_SIZE_MAX)
    }

    #[inline]
    fn find_line_feed(&mut self, window: &[u8]) -> Option<usize> {
        if self.nul.is_none() {
            let found = memchr2(b'\n', 0, &window[self.scanned..]);
            let Some(at) = found.map(|at| self.scanned + at) else {
                self.scanned = window.len();
                return None;
            };
            self.scanned = at;
            if window[at] == b'\n' {
                return Some(at);
            }
            self.nul = Some(at);
        }
        let found = memchr(b'\n', &window[self.scanned..]);
        let end = found.map(|at| self.scanned + at);
        self.scanned = end.unwrap_or(window.len());
        end
    }

    /// Parses the line whose line feed is at `end`; returns the size of what follows it.
    #[inline]
    fn read_line(&mut self, buf: &[u8], end: usize) -> Result<usize, Refusal> {
        let returned = end > 1 && buf[end - 1] == b'\r';
        let line_end = end - usize::from(returned);
        let line = &buf[..line_end];
        self.line = Span::new(0, line_end);
        self.meant = usize::MAX;

        let verb = next_word(line, 0).ok_or(Refusal::new(ERROR))?;
        match Verb::from_word(verb.of(line)) {
            Some(verb) => self.verb = verb,
            None => return Err(refuse_unknown(line)),
        }
        if self.nul.is_some() {
            // For some versions the line ends there, for others it continues.
            return Err(Refusal::new(BAD_FORMAT));
        }
        let data = self.read_words(line, verb, end + 1)?;
        self.is_odd |= !returned || !is_tidy(line);
        Ok(data)
    }

    /// Parses what follows the verb.
    #[inline]
    fn read_words(&mut self, line: &[u8], verb: Span, data_start: usize) -> Result<usize, Refusal> {
        match self.verb {
            Verb::Get => {
                self.is_odd = verb.of(line) != b"get";
                self.read_keys(line, verb.end())?;
            }
            Verb::Gets => self.read_keys(line, verb.end())?,
            Verb::Gat | Verb::Gats => self.read_get_and_touch(line, verb.end())?,
            Verb::Set | Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend => {
                return self.read_storage(&Words::new(line, 5..=6)?, data_start);
            }
            Verb::Cas => return self.read_storage(&Words::new(line, 6..=7)?, data_start),
            Verb::Delete => self.read_delete(&Words::new(line, 2..=4)?)?,
            Verb::Incr | Verb::Decr => {
                self.read_key_and_number(&Words::new(line, 3..=4)?, BAD_DELTA, |word| {
                    unsigned(word).is_some()
                })?;
            }
            Verb::Touch => {
                self.read_key_and_number(&Words::new(line, 3..=4)?, BAD_EXPTIME, |word| {
                    signed32(word).is_some()
                })?;
            }
            Verb::FlushAll => self.read_flush_all(&Words::new(line, 1..=3)?)?,
            Verb::Verbosity => self.read_verbosity(&Words::new(line, 2..=3)?)?,
            Verb::MetaGet | Verb::MetaDelete | Verb::MetaArithmetic | Verb::MetaDebug => {
                self.read_meta(line, verb.end())?;
            }
            Verb::MetaSet => return self.read_meta_set(line, verb.end(), data_start),
            Verb::Tune => self.read_tune(line, &Words::new(line, 1..=WORDS_MAX - 1)?)?,
            Verb::Stats => self.read_stats(line)?,
            Verb::Refused => return Err(refuse(line)),
            Verb::Version | Verb::Quit | Verb::MetaNoop => self.mean(1, line),
        }
        Ok(0)
    }

    /// Records how many words servers use.
    #[inline]
    fn mean(&mut self, count: usize, line: &[u8]) {
        self.meant = count;
        self.is_odd |= words(line).nth(count).is_some();
    }

    #[inline]
    fn read_keys(&mut self, line: &[u8], start: usize) -> Result<(), Refusal> {
        let mut at = start;
        while let Some(key) = next_word(line, at) {
            if key.len as usize > KEY_SIZE_MAX {
                return Err(Refusal::new(BAD_FORMAT));
            }
            self.keys.push(key);
            at = key.end();
        }
        if self.keys.is_empty() { Err(Refusal::new(ERROR)) } else { Ok(()) }
    }

    fn read_get_and_touch(&mut self, line: &[u8], start: usize) -> Result<(), Refusal> {
        let exptime = next_word(line, start).ok_or(Refusal::new(ERROR))?;
        if signed32(exptime.of(line)).is_none() {
            return Err(Refusal::new(BAD_EXPTIME));
        }
        // Without keys memcached finds nothing; it is no error.
        if next_word(line, exptime.end()).is_none() {
            return Err(Refusal::new(END));
        }
        self.read_keys(line, exptime.end())
    }

    /// Returns the size of the data block with its line end; it starts at `data_start`.
    #[inline]
    fn read_storage(&mut self, words: &Words<'_>, data_start: usize) -> Result<usize, Refusal> {
        self.noreply = words.noreply();
        let refusal = |reply| Refusal { noreply: self.noreply.is_some(), ..Refusal::new(reply) };
        let key = words.key().ok_or(refusal(BAD_FORMAT))?;
        let valid = unsigned32(words.get(2)).is_some()
            && signed32(words.get(3)).is_some()
            && (self.verb != Verb::Cas || unsigned(words.get(5)).is_some());
        let meant = if self.verb == Verb::Cas { 6 } else { 5 };
        self.meant = meant;
        self.is_odd |= words.count > meant + usize::from(self.noreply.is_some());
        let size = unsigned32(words.get(4)).map(u64::from);
        let size = size.filter(|&size| size <= VALUE_SIZE_LIMIT).ok_or(refusal(BAD_FORMAT))?;
        if !valid {
            // Some versions accept larger numbers, and all of them then read the data.
            let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
            let is_large = is_number(words.get(2))
                && is_number(words.get(3))
                && (self.verb != Verb::Cas || unsigned(words.get(5)).is_some());
            let swallow = if is_large { size + LINE_END_SIZE } else { 0 };
            return Err(Refusal { swallow, ..refusal(BAD_FORMAT) });
        }
        self.keys.push(key);
        if size > self.value_size_max {
            return Err(Refusal { swallow: size + LINE_END_SIZE, ..refusal(TOO_LARGE) });
        }
        self.data = Some(Span::new(data_start, size as usize));
        Ok((size + LINE_END_SIZE) as usize)
    }

    fn read_meta(&mut self, line: &[u8], start: usize) -> Result<(), Refusal> {
        let key = read_key(line, self.verb, start)?;
        self.meta = Meta::read(line, self.verb, key, key.end()).map_err(Refusal::new)?;
        self.keys.push(key);
        Ok(())
    }

    /// Like [`Self::read_storage`]. The data block follows even if the flags are invalid.
    fn read_meta_set(
        &mut self,
        line: &[u8],
        start: usize,
        data_start: usize,
    ) -> Result<usize, Refusal> {
        let key = read_key(line, self.verb, start)?;
        let word = next_word(line, key.end()).ok_or(Refusal::new(BAD_FORMAT))?;
        let size = unsigned32(word.of(line))
            .map(u64::from)
            .filter(|&size| size <= VALUE_SIZE_LIMIT)
            .ok_or(Refusal::new(BAD_FORMAT))?;
        let swallowing = |reply| Refusal { swallow: size + LINE_END_SIZE, ..Refusal::new(reply) };
        self.meta = Meta::read(line, self.verb, key, word.end()).map_err(swallowing)?;
        self.is_given = words(line).skip(3).any(|flag| flag[0] == b'E');
        self.keys.push(key);
        if size > self.value_size_max {
            return Err(swallowing(TOO_LARGE));
        }
        self.data = Some(Span::new(data_start, size as usize));
        Ok((size + LINE_END_SIZE) as usize)
    }

    /// Versions before 1.6.20 look for `noreply` in some of these only, later ones in all.
    fn read_tune(&mut self, line: &[u8], words: &Words<'_>) -> Result<(), Refusal> {
        let is_dump = words.count > 1 && matches!(words.get(1), b"metadump" | b"mgdump");
        if words.get(0) == b"lru_crawler" && is_dump {
            return Err(Refusal::new(NO_METADUMP));
        }
        let is_quiet = words.get(0) != b"lru_crawler" && words.count > 1;
        let noreply = words.noreply().filter(|_| is_quiet);
        let count = words.count - usize::from(noreply.is_some());
        let mut list = [&b""[..]; WORDS_MAX];
        (0..count).for_each(|at| list[at] = words.get(at));
        forms::admin(&list[..count])
            .map_err(|reply| Refusal { noreply: noreply.is_some(), ..Refusal::new(reply) })?;
        self.noreply = noreply;
        self.meant = count;
        debug_assert!(count < forms::WORDS_MAX && !line.is_empty());
        Ok(())
    }

    fn read_stats(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let list: Vec<&[u8]> = words(line).take(forms::WORDS_MAX).collect();
        let count = forms::stats(&list).map_err(Refusal::new)?;
        self.mean(count, line);
        Ok(())
    }

    /// A zero, formerly a delay, is still accepted.
    fn read_delete(&mut self, words: &Words<'_>) -> Result<(), Refusal> {
        let noreply = words.noreply().filter(|_| words.count > 2);
        let zero = words.count > 2 && words.get(2) == b"0";
        let valid = match words.count {
            2 => true,
            3 => zero || noreply.is_some(),
            _ => zero && noreply.is_some(),
        };
        self.noreply = noreply;
        if !valid {
            return Err(Refusal { noreply: noreply.is_some(), ..Refusal::new(DELETE_USAGE) });
        }
        self.push_key(words)?;
        self.meant = 2;
        // Later versions treat a key of this name as the word, unless something follows it.
        self.is_odd |= zero != (words.get(1) == NOREPLY);
        Ok(())
    }

    fn read_key_and_number(
        &mut self,
        words: &Words<'_>,
        bad_number: &'static [u8],
        is_number: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Refusal> {
        self.noreply = words.noreply();
        self.push_key(words)?;
        self.meant = 3;
        self.is_odd |= words.count > 3 + usize::from(self.noreply.is_some());
        if !is_number(words.get(2)) {
            return Err(Refusal { noreply: self.noreply.is_some(), ..Refusal::new(bad_number) });
        }
        Ok(())
    }

    fn push_key(&mut self, words: &Words<'_>) -> Result<(), Refusal> {
        let noreply = self.noreply.is_some();
        let key = words.key().ok_or(Refusal { noreply, ..Refusal::new(BAD_FORMAT) })?;
        self.keys.push(key);
        Ok(())
    }

    fn read_flush_all(&mut self, words: &Words<'_>) -> Result<(), Refusal> {
        self.noreply = words.noreply();
        let bare = 1 + usize::from(self.noreply.is_some());
        if words.count != bare && signed32(words.get(1)).is_none() {
            return Err(Refusal { noreply: self.noreply.is_some(), ..Refusal::new(BAD_EXPTIME) });
        }
        self.meant = if words.count == bare { 1 } else { 2 };
        self.is_odd |= words.count > self.meant + usize::from(self.noreply.is_some());
        Ok(())
    }

    fn read_verbosity(&mut self, words: &Words<'_>) -> Result<(), Refusal> {
        self.noreply = words.noreply();
        if unsigned32(words.get(1)).is_none() {
            return Err(Refusal { noreply: self.noreply.is_some(), ..Refusal::new(BAD_FORMAT) });
        }
        self.meant = 2;
        self.is_odd |= words.count > 2 + usize::from(self.noreply.is_some());
        Ok(())
    }
}

impl Default for RequestParser {
    /// Takes values of any size.
    fn default() -> Self {
        Self::new(VALUE_SIZE_LIMIT)
    }
}

/// Whether memcached keeps reading this without a line end.
fn opens_multiget(buf: &[u8]) -> bool {
    let start = buf.iter().position(|&byte| byte != b' ').unwrap_or(buf.len());
    let verb = &buf[start..];
    start <= MULTIGET_INDENT_MAX && (verb.starts_with(b"get ") || verb.starts_with(b"gets "))
}

#[cold]
fn refuse_unknown(line: &[u8]) -> Refusal {
    // A browser used to attack must not be able to send more requests.
    match words(line).last() {
        Some(last) if last.starts_with(b"HTTP/") => Refusal::closing(b""),
        _ => Refusal::new(ERROR),
    }
}

/// The error for a client without permission.
#[cold]
fn refuse(line: &[u8]) -> Refusal {
    let is_watch = words(line).next() == Some(b"watch");
    let noreply = is_watch && words(line).last() == Some(b"noreply");
    Refusal { noreply, ..Refusal::new(if is_watch { NO_WATCH } else { NO_SHUTDOWN }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_good_requests() {
        for (input, verb, keys, noreply) in [
            ("get a\r\n", Verb::Get, &["a"][..], None),
            ("get a\n", Verb::Get, &["a"], None),
            ("  get   a  bc \r\n", Verb::Get, &["a", "bc"], None),
            ("get a\rb\t\x01\r\n", Verb::Get, &["a\rb\t\x01"], None),
            ("get a\r\r\n", Verb::Get, &["a\r"], None),
            ("gets noreply\r\n", Verb::Gets, &["noreply"], None),
            ("gat -1 a b\r\n", Verb::Gat, &["a", "b"], None),
            ("gats 0 a\r\n", Verb::Gats, &["a"], None),
            ("set a 0 0 5\r\nhe\r\no\r\n", Verb::Set, &["a"], None),
            ("set a 0 0 5\nhello\r\n", Verb::Set, &["a"], None),
            ("set a 0 0 0\r\n\r\n", Verb::Set, &["a"], None),
            ("set a 1 -1 1 noreply\r\nx\r\n", Verb::Set, &["a"], Some(" noreply")),
            ("set a 1 2 1   noreply \r\nx\r\n", Verb::Set, &["a"], Some("   noreply")),
            ("set a 1 2 1 surplus\r\nx\r\n", Verb::Set, &["a"], None),
            ("set a 4294967295 -2147483648 1\r\nx\r\n", Verb::Set, &["a"], None),
            ("set a 007 2 1\r\nx\r\n", Verb::Set, &["a"], None),
            ("add a 0 0 1\r\nx\r\n", Verb::Add, &["a"], None),
            ("replace a 0 0 1\r\nx\r\n", Verb::Replace, &["a"], None),
            ("append a 0 0 1\r\nx\r\n", Verb::Append, &["a"], None),
            ("prepend a 0 0 1\r\nx\r\n", Verb::Prepend, &["a"], None),
            ("cas a 0 0 1 18446744073709551615\r\nx\r\n", Verb::Cas, &["a"], None),
            ("cas a 0 0 1 7 noreply\r\nx\r\n", Verb::Cas, &["a"], Some(" noreply")),
            ("delete a\r\n", Verb::Delete, &["a"], None),
            ("delete a 0\r\n", Verb::Delete, &["a"], None),
            ("delete noreply\r\n", Verb::Delete, &["noreply"], None),
            ("delete a noreply\r\n", Verb::Delete, &["a"], Some(" noreply")),
            ("delete a 0 noreply\r\n", Verb::Delete, &["a"], Some(" noreply")),
            ("incr a 1\r\n", Verb::Incr, &["a"], None),
            ("decr a 1 noreply\r\n", Verb::Decr, &["a"], Some(" noreply")),
            ("touch a -5 noreply\r\n", Verb::Touch, &["a"], Some(" noreply")),
            ("flush_all\r\n", Verb::FlushAll, &[], None),
            ("flush_all 10\r\n", Verb::FlushAll, &[], None),
            ("flush_all noreply\r\n", Verb::FlushAll, &[], Some(" noreply")),
            ("flush_all 10 noreply\r\n", Verb::FlushAll, &[], Some(" noreply")),
            ("verbosity 1\r\n", Verb::Verbosity, &[], None),
            ("verbosity 1 noreply\r\n", Verb::Verbosity, &[], Some(" noreply")),
            ("version\r\n", Verb::Version, &[], None),
            ("version x y z\r\n", Verb::Version, &[], None),
            ("quit\r\n", Verb::Quit, &[], None),
            ("bget a\r\n", Verb::Get, &["a"], None),
            ("stats\r\n", Verb::Stats, &[], None),
            ("stats settings noreply\r\n", Verb::Stats, &[], None),
            ("cache_memlimit 64 noreply\r\n", Verb::Tune, &[], Some(" noreply")),
            ("slabs automove 1 noreply\r\n", Verb::Tune, &[], Some(" noreply")),
            ("slabs reassign 1 2 noreply\r\n", Verb::Tune, &[], Some(" noreply")),
            ("lru tune 1 2 3 4 noreply\r\n", Verb::Tune, &[], Some(" noreply")),
            ("lru_crawler enable\r\n", Verb::Tune, &[], None),
            ("mg a\r\n", Verb::MetaGet, &["a"], None),
            ("mg a q v O1\r\n", Verb::MetaGet, &["a"], None),
            ("ms a 5 q\r\nhello\r\n", Verb::MetaSet, &["a"], None),
            ("ms a 0\r\n\r\n", Verb::MetaSet, &["a"], None),
            ("md a q\r\n", Verb::MetaDelete, &["a"], None),
            ("ma a N0 J5\r\n", Verb::MetaArithmetic, &["a"], None),
            ("mn\r\n", Verb::MetaNoop, &[], None),
            ("mn x\r\n", Verb::MetaNoop, &[], None),
            ("me a\r\n", Verb::MetaDebug, &["a"], None),
        ] {
            let pipelined = [input.as_bytes(), b"get next\r\n"].concat();
            for buf in [input.as_bytes(), &pipelined] {
                let mut parser = RequestParser::default();
                assert_eq!(parser.parse(buf), Parsed::Complete { len: input.len() }, "{input:?}");
                assert_eq!(parser.verb(), verb, "{input:?}");
                let found: Vec<_> = parser.keys().iter().map(|key| text(*key, buf)).collect();
                assert_eq!(found, keys, "{input:?}");
                assert_eq!(parser.noreply().map(|span| text(span, buf)), noreply, "{input:?}");
            }
        }
    }

    #[test]
    fn refuses_in_the_words_of_memcached() {
        let long = "k".repeat(251);
        for (input, reply, noreply) in [
            ("\r\n", ERROR, false),
            ("\n", ERROR, false),
            ("g\r\n", ERROR, false),
            ("GET a\r\n", ERROR, false),
            ("getx a\r\n", ERROR, false),
            ("mg\r\n", ERROR, false),
            ("mx a\r\n", ERROR, false),
            ("me\r\n", BAD_FORMAT, false),
            (&format!("mg {long}\r\n"), BAD_FORMAT, false),
            (&format!("ms {long} 1\r\n"), BAD_FORMAT, false),
            (&format!("me {long}\r\n"), BAD_FORMAT, false),
            (&format!("mg a{}\r\n", " v".repeat(18)), TOO_MANY_FLAGS_OF_GET, false),
            (&format!("ms a 1{}\r\n", " k".repeat(17)), TOO_MANY_FLAGS, false),
            ("ms a\r\n", BAD_FORMAT, false),
            ("ms a x\r\n", BAD_FORMAT, false),
            ("ms a -1\r\n", BAD_FORMAT, false),
            ("ms a 2147483646\r\n", BAD_FORMAT, false),
            ("watch\r\n", NO_WATCH, false),
            ("watch fetchers noreply\r\n", NO_WATCH, true),
            ("shutdown graceful\r\n", NO_SHUTDOWN, false),
            ("lru_crawler metadump all\r\n", NO_METADUMP, false),
            ("slabs automove noreply\r\n", ERROR, true),
            ("slabs automove 0 noreply noreply\r\n", ERROR, true),
            ("lru noreply noreply\r\n", ERROR, true),
            ("extstore noreply noreply\r\n", ERROR, true),
            ("cache_memlimit noreply noreply\r\n", ERROR, true),
            ("refresh_certs noreply noreply\r\n", ERROR, true),
            ("lru_crawler enable noreply\r\n", ERROR, false),
            ("lru tune 1 2 3 4 5 noreply\r\n", ERROR, false),
            ("lru tune 1 2 3 4 5 6 noreply\r\n", ERROR, false),
            ("stats noreply\r\n", ERROR, false),
            ("stats reset\0 x\r\n", BAD_FORMAT, false),
            ("get a\0b c\r\n", BAD_FORMAT, false),
            ("\0get a\r\n", ERROR, false),
            ("get\r\n", ERROR, false),
            ("get \r\n", ERROR, false),
            ("get \0a\r\n", BAD_FORMAT, false),
            ("gat\r\n", ERROR, false),
            ("gat 10\r\n", END, false),
            ("gat x a\r\n", BAD_EXPTIME, false),
            (&format!("get a {long} b\r\n"), BAD_FORMAT, false),
            (&format!("gat 1 {long}\r\n"), BAD_FORMAT, false),
            (&format!("set {long} 0 0 1\r\n"), BAD_FORMAT, false),
            (&format!("delete {long} noreply\r\n"), BAD_FORMAT, true),
            (&format!("incr {long} x\r\n"), BAD_FORMAT, false),
            ("set a 0 0\r\n", ERROR, false),
            ("set a 0 0 1 x noreply\r\n", ERROR, false),
            ("set a 0 0 noreply\r\n", BAD_FORMAT, true),
            ("set a x 0 1\r\n", BAD_FORMAT, false),
            ("set a +1 0 1\r\n", BAD_FORMAT, false),
            ("set a 0 0 +1\r\n", BAD_FORMAT, false),
            ("set a 0 0 00000000001\r\n", BAD_FORMAT, false),
            ("set a 0 0 1\t\r\n", BAD_FORMAT, false),
            ("set a \t1 0 1\r\n", BAD_FORMAT, false),
            ("touch a 2147483648\r\n", BAD_EXPTIME, false),
            ("gat 2147483648 a\r\n", BAD_EXPTIME, false),
            ("flush_all 2147483648\r\n", BAD_EXPTIME, false),
            ("incr a -1\r\n", BAD_DELTA, false),
            ("mg a !\r\n", BAD_FLAG, false),
            ("mg a z\r\n", BAD_FLAG, false),
            ("mg a S5\r\n", BAD_FLAG, false),
            ("mg a v v\r\n", DUPLICATE_FLAG, false),
            ("mg a q q\r\n", DUPLICATE_FLAG, false),
            ("mg a N\r\n", BAD_TOKEN, false),
            ("mg a N99999999999\r\n", BAD_TOKEN, false),
            ("mg a \u{e9}\r\n", DUPLICATE_FLAG, false),
            ("mg a O\t\r\n", BAD_FLAG, false),
            (&format!("mg a O{}\r\n", "x".repeat(32)), LONG_OPAQUE, false),
            ("mg a=b b\r\n", BAD_KEY, false),
            ("mg Zh== b\r\n", BAD_KEY, false),
            ("md a C-1\r\n", BAD_OR_DUPLICATE_FLAG, false),
            ("ma a D+1\r\n", BAD_OR_DUPLICATE_FLAG, false),
            ("ma a MII\r\n", BAD_OR_DUPLICATE_FLAG, false),
            ("me a k b\r\n", BAD_FORMAT, false),
            ("me a q\r\n", BAD_FORMAT, false),
            ("me a b\r\n", BAD_FORMAT, false),
            ("set a -1 0 1\r\n", BAD_FORMAT, false),
            ("set a 0 x 1 noreply\r\n", BAD_FORMAT, true),
            ("set a 0 0 x\r\n", BAD_FORMAT, false),
            ("set a 0 0 -1\r\n", BAD_FORMAT, false),
            ("set a 0 0 2147483646\r\n", BAD_FORMAT, false),
            ("set a 0 0 99999999999999999999\r\n", BAD_FORMAT, false),
            ("cas a 0 0 1\r\n", ERROR, false),
            ("cas a 0 0 1 noreply\r\n", BAD_FORMAT, true),
            ("cas a 0 0 1 -1\r\n", BAD_FORMAT, false),
            ("delete\r\n", ERROR, false),
            ("delete a 1\r\n", DELETE_USAGE, false),
            ("delete a 1 noreply\r\n", DELETE_USAGE, true),
            ("delete a 0 x\r\n", DELETE_USAGE, false),
            ("incr a\r\n", ERROR, false),
            ("incr a x\r\n", BAD_DELTA, false),
            ("incr a noreply\r\n", BAD_DELTA, true),
            ("touch a x\r\n", BAD_EXPTIME, false),
            ("flush_all x\r\n", BAD_EXPTIME, false),
            ("flush_all noreply noreply\r\n", BAD_EXPTIME, true),
            ("flush_all 0 0 0\r\n", ERROR, false),
            ("verbosity\r\n", ERROR, false),
            ("verbosity -1\r\n", BAD_FORMAT, false),
            ("verbosity noreply\r\n", BAD_FORMAT, true),
        ] {
            let len = input.len();
            let expected = Parsed::Reject { len, swallow: 0, reply, noreply, close: false };
            assert_eq!(RequestParser::default().parse(input.as_bytes()), expected, "{input:?}");
            let pipelined = format!("{input}get next\r\n");
            assert_eq!(RequestParser::default().parse(pipelined.as_bytes()), expected);
        }
    }

    #[test]
    fn takes_keys_of_the_longest_size() {
        let input = format!("get {}\r\n", "k".repeat(KEY_SIZE_MAX));
        let parsed = RequestParser::default().parse(input.as_bytes());
        assert_eq!(parsed, Parsed::Complete { len: input.len() });
    }

    #[test]
    fn says_how_much_is_missing() {
        let mut parser = RequestParser::default();
        let input = b"set a 0 0 5\r\nhello\r\n";
        for len in 0..input.len() {
            let need = if len < 13 { len + 1 } else { input.len() };
            assert_eq!(parser.parse(&input[..len]), Parsed::Partial { need });
        }
        assert_eq!(parser.parse(input), Parsed::Complete { len: input.len() });
        assert_eq!(parser.data().map(|data| text(data, input)), Some("hello"));
        assert_eq!(text(parser.line(), input), "set a 0 0 5");
    }

    #[test]
    fn drops_a_bad_data_chunk_by_its_announced_size() {
        for (input, noreply) in [
            ("set a 0 0 3\r\nhello\r\n", false),
            ("set a 0 0 5\r\nhello\n\n", false),
            ("set a 0 0 5 noreply\r\nhello\rx", true),
        ] {
            let len = input.find('\n').unwrap() + if input.contains(" 3\r") { 6 } else { 8 };
            let expected =
                Parsed::Reject { len, swallow: 0, reply: BAD_CHUNK, noreply, close: false };
            assert_eq!(RequestParser::default().parse(input.as_bytes()), expected, "{input:?}");
        }
    }

    #[test]
    fn swallows_what_is_too_large() {
        let line = "set a 0 0 11 noreply\r\n";
        let request = format!("{line}hello world\r\nget b\r\n");
        for arrived in [0, 4, 12, 13, 20] {
            let buf = &request.as_bytes()[..line.len() + arrived];
            let dropped = arrived.min(13);
            let expected = Parsed::Reject {
                len: line.len() + dropped,
                swallow: 13 - dropped as u64,
                reply: TOO_LARGE,
                noreply: true,
                close: false,
            };
            let mut parser = RequestParser::new(10);
            assert_eq!(parser.parse(buf), expected);
            assert_eq!((parser.verb(), text(parser.keys()[0], buf)), (Verb::Set, "a"));
        }
        let len = line.len() + 13;
        let parsed = RequestParser::new(11).parse(request.as_bytes());
        assert_eq!(parsed, Parsed::Complete { len });
    }

    #[test]
    fn swallows_the_data_of_numbers_that_only_some_versions_take() {
        for line in ["set a 4294967296 0 1", "set a 0 2147483648 1", "cas a 0 2147483648 1 7"] {
            let input = format!("{line}\r\nx\r\nget a\r\n");
            let len = line.len() + 5;
            let reply = BAD_FORMAT;
            let expected = Parsed::Reject { len, swallow: 0, reply, noreply: false, close: false };
            assert_eq!(RequestParser::default().parse(input.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn swallows_what_is_too_large_for_a_meta_set() {
        let swallow =
            Parsed::Reject { len: 17, swallow: 5, reply: TOO_LARGE, noreply: false, close: false };
        let mut parser = RequestParser::new(4);
        assert_eq!(parser.parse(b"ms Zm9v 5 b q\r\nhe"), swallow);
        assert_eq!((parser.verb(), parser.meta().is_base64), (Verb::MetaSet, true));
        assert!(parser.data().is_none());
    }

    #[test]
    fn finds_the_flags_that_matter() {
        for (line, is_base64, quiet) in [
            ("mg a", false, None),
            ("mg Zm9v b", true, None),
            ("mg a k  q  v", false, Some("  q")),
            ("mg a q", false, Some(" q")),
            ("mg cXFx b", true, None),
            ("ms Zm9v 1 q b", true, Some(" q")),
            ("md a Oq q", false, Some(" q")),
            ("ma a N0 q", false, Some(" q")),
            ("me Zm9v b", true, None),
            ("me a", false, None),
        ] {
            let data = if line.starts_with("ms") { "x\r\n" } else { "" };
            let input = format!("{line}\r\n{data}");
            let mut parser = RequestParser::default();
            let parsed = parser.parse(input.as_bytes());
            assert_eq!(parsed, Parsed::Complete { len: input.len() }, "{line}");
            assert_eq!(parser.meta().is_base64, is_base64, "{line}");
            let found = parser.meta().quiet.map(|quiet| text(quiet, input.as_bytes()));
            assert_eq!(found, quiet, "{line}");
            parser.reset();
            assert_eq!(parser.meta(), Meta::default());
        }
    }

    #[test]
    fn a_meta_set_has_data_whatever_its_flags() {
        for (input, reply) in [
            ("ms a 2 !\r\nhi\r\n", BAD_FLAG),
            ("ms a 2 x\r\nhi\r\n", BAD_FLAG),
            ("ms a 2 S2\r\nhi\r\n", BAD_FLAG),
            ("ms a 2 c c\r\nhi\r\n", DUPLICATE_FLAG),
            ("ms a 2 F4294967296\r\nhi\r\n", BAD_FORMAT),
            ("ms a= 2 b\r\nhi\r\n", BAD_KEY),
            ("ms a 2 q\r\nhiya", BAD_CHUNK),
        ] {
            let len = input.len();
            let expected = Parsed::Reject { len, swallow: 0, reply, noreply: false, close: false };
            let pipelined = format!("{input}get next\r\n");
            assert_eq!(RequestParser::default().parse(pipelined.as_bytes()), expected, "{input:?}");
        }
    }

    #[test]
    fn writes_anew_what_is_odd() {
        for (input, anew) in [
            ("get a\r\n", None),
            ("get a\n", Some("get a\r\n")),
            ("  get   a  bc \r\n", Some("get a bc\r\n")),
            ("bget a\r\n", Some("get a\r\n")),
            ("get a\r\r\n", None),
            ("gat  5 a b\r\n", Some("gat 5 a b\r\n")),
            ("set a 1 2 1\r\nx\r\n", None),
            (" set a 1 2 1\r\nx\r\n", Some("set a 1 2 1\r\nx\r\n")),
            ("set a 1 2 1\nx\r\n", Some("set a 1 2 1\r\nx\r\n")),
            ("set a 1 2 1 surplus\r\nx\r\n", Some("set a 1 2 1\r\nx\r\n")),
            ("set a 1 2 1   noreply \r\nx\r\n", Some("set a 1 2 1 noreply\r\nx\r\n")),
            ("cas a 1 2 1 9 x\r\n \r\n", Some("cas a 1 2 1 9\r\n \r\n")),
            ("delete a\r\n", None),
            ("delete a 0\r\n", Some("delete a\r\n")),
            ("delete a noreply\r\n", None),
            ("delete a 0 noreply\r\n", Some("delete a noreply\r\n")),
            ("delete noreply\r\n", Some("delete noreply 0\r\n")),
            ("delete noreply 0\r\n", None),
            ("delete noreply noreply\r\n", Some("delete noreply 0 noreply\r\n")),
            ("incr a 1 x\r\n", Some("incr a 1\r\n")),
            ("touch a 1  noreply\r\n", Some("touch a 1 noreply\r\n")),
            ("flush_all 1 x\r\n", Some("flush_all 1\r\n")),
            ("flush_all noreply\r\n", None),
            ("verbosity 1 x\r\n", Some("verbosity 1\r\n")),
            ("version x y\r\n", Some("version\r\n")),
            ("quit now\r\n", Some("quit\r\n")),
            ("mn x\r\n", Some("mn\r\n")),
            ("mg  a v\r\n", Some("mg a v\r\n")),
            ("ms a  1 c\r\nx\r\n", Some("ms a 1 c\r\nx\r\n")),
            ("stats settings noreply\r\n", Some("stats settings\r\n")),
            ("stats  cachedump 1 2\r\n", Some("stats cachedump 1 2\r\n")),
            ("slabs  automove 1 noreply\r\n", Some("slabs automove 1 noreply\r\n")),
        ] {
            let mut parser = RequestParser::default();
            assert_eq!(parser.parse(input.as_bytes()), Parsed::Complete { len: input.len() });
            assert_eq!(parser.is_odd(), anew.is_some(), "{input:?}");
            let mut text = Vec::new();
            parser.write_anew(input.as_bytes(), &mut text);
            let expected = anew.unwrap_or(input);
            if input != "delete noreply 0\r\n" {
                assert_eq!(std::str::from_utf8(&text), Ok(expected), "{input:?}");
            }
            let mut again = RequestParser::default();
            assert_eq!(again.parse(&text), Parsed::Complete { len: text.len() }, "{input:?}");
            assert!(!again.is_odd(), "{input:?}");
            assert_eq!(again.verb(), parser.verb());
        }
    }

    #[test]
    fn closes_on_what_cannot_be_text() {
        let parser = RequestParser::default;
        let closing = |reply| move |parsed| matches!(parsed, Parsed::Reject { close: true, reply: r, .. } if r == reply);
        assert!(closing(b"")(parser().parse(b"GET / HTTP/1.1\r\n")));
        assert!(closing(b"")(parser().parse(b"HTTP/1.1\n")));
    }

    #[test]
    fn bounds_lines() {
        for (start, size_max) in [
            ("set a", COMMAND_SIZE_MAX),
            ("gat 1 a", COMMAND_SIZE_MAX),
            ("get a", MULTIGET_SIZE_MAX),
            ("  gets a", MULTIGET_SIZE_MAX),
        ] {
            let fits = format!("{start}{}\r\n", " ".repeat(size_max - start.len() - 2));
            let long = format!("{start}{}\r\n", " ".repeat(size_max - start.len() - 1));
            let refused = |parsed| matches!(parsed, Parsed::Reject { close: true, .. });
            assert!(!refused(RequestParser::default().parse(fits.as_bytes())), "{start}");
            assert!(refused(RequestParser::default().parse(long.as_bytes())), "{start}");
            let mut parser = RequestParser::default();
            let (head, rest) = (&fits.as_bytes()[..size_max - 1], long.as_bytes());
            assert_eq!(parser.parse(head), Parsed::Partial { need: size_max }, "{start}");
            assert!(refused(parser.parse(&rest[..size_max])), "{start}");
        }
        for (value_size_max, size_max) in [(3000, 3000), (100, COMMAND_SIZE_MAX)] {
            let line = |size: usize| format!("get a{}\r\n", " ".repeat(size - 7));
            let mut parser = RequestParser::new(value_size_max);
            assert_eq!(parser.parse(line(size_max).as_bytes()), Parsed::Complete { len: size_max });
            for len in [size_max, size_max + 1] {
                let mut parser = RequestParser::new(value_size_max);
                let parsed = parser.parse(&line(size_max + 1).as_bytes()[..len]);
                assert!(matches!(parsed, Parsed::Reject { close: true, .. }), "{len}");
            }
        }
        let indented = format!("{}get {}\r\n", " ".repeat(101), "a ".repeat(1024));
        let parsed = RequestParser::default().parse(indented.as_bytes());
        assert!(matches!(parsed, Parsed::Reject { reply: LINE_TOO_LONG, close: true, .. }));
    }

    #[test]
    fn takes_ten_thousand_long_keys_and_gives_the_room_back() {
        let key = "k".repeat(KEY_SIZE_MAX);
        let input = format!("get {}\r\n", vec![key; 10_000].join(" "));
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(input.as_bytes()), Parsed::Complete { len: input.len() });
        assert_eq!(parser.keys().len(), 10_000);
        parser.reset();
        assert!(parser.keys.capacity() <= KEYS_KEPT);
        assert_eq!(parser.parse(b"version\r\n"), Parsed::Complete { len: 9 });
        assert!(parser.keys().is_empty());
    }

    fn text(span: Span, buf: &[u8]) -> &str {
        std::str::from_utf8(span.of(buf)).unwrap()
    }
}
