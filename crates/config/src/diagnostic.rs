//! Errors and warnings of a configuration file, with their places and hints.

use std::fmt;

/// A place in the file; lines and columns count characters from 1. [`Pos::NONE`] stands for a
/// value that is not in the file, a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl Pos {
    pub(crate) const NONE: Self = Self { line: 0, column: 0 };
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    pub(crate) fn right_by(self, characters: usize) -> Self {
        Self { column: self.column + characters, ..self }
    }
}

/// A value and where it was written.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) pos: Pos,
}

/// One finding. Displayed as `FILE:LINE:COLUMN: message`, the source line, a caret below the
/// column, and a hint if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub file: String,
    /// From 1; 0 if the finding is about the file as a whole (for example, it cannot be read).
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    pub message: String,
    pub hint: Option<String>,
    /// The text of the line, without the value of a password.
    pub source: Option<String>,
}

impl Diagnostic {
    /// A finding about the file as a whole.
    pub(crate) fn of_file(file: &str, message: String) -> Self {
        Self { file: file.to_owned(), line: 0, column: 0, message, hint: None, source: None }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.file, self.message)?;
        } else {
            write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        }
        if let Some(source) = &self.source {
            // Tabs stay tabs, so that the caret lands under its column whatever their width.
            let margin: String = source
                .chars()
                .take(self.column.saturating_sub(1))
                .map(|c| if c == '\t' { c } else { ' ' })
                .collect();
            write!(f, "\n    {source}\n    {margin}^")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n    hint: {hint}")?;
        }
        Ok(())
    }
}

/// Why a configuration was refused: all findings, in the order of the file. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Errors(pub Vec<Diagnostic>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{diagnostic}")?;
        }
        Ok(())
    }
}

/// Why a value was refused; the caller adds the place.
#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Characters from the start of the value to the offending part.
    pub(crate) offset: usize,
}

impl Complaint {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, offset: 0 }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn offset(self, offset: usize) -> Self {
        Self { offset, ..self }
    }
}

/// The most errors, and the most warnings, that are reported of one file; the rest is only counted.
const ERRORS_MAX: usize = 100;

/// Collects findings while a file is read.
pub(crate) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    errors: Vec<Diagnostic>,
    /// Errors beyond [`ERRORS_MAX`].
    errors_more: usize,
    warnings: Vec<Diagnostic>,
    warnings_more: usize,
    notes: Vec<Diagnostic>,
}

/// What is left of a report without errors.
#[derive(Debug)]
pub(crate) struct Remarks {
    pub(crate) warnings: Vec<Diagnostic>,
    pub(crate) notes: Vec<Diagnostic>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        Self {
            file,
            text,
            errors: Vec::new(),
            errors_more: 0,
            warnings: Vec::new(),
            warnings_more: 0,
            notes: Vec::new(),
        }
    }

    pub(crate) fn error(&mut self, pos: Pos, complaint: Complaint) {
        if self.errors.len() == ERRORS_MAX {
            self.errors_more += 1;
            return;
        }
        let diagnostic = self.diagnostic(pos, complaint);
        self.errors.push(diagnostic);
    }

    pub(crate) fn warning(&mut self, pos: Pos, complaint: Complaint) {
        if self.warnings.len() == ERRORS_MAX {
            self.warnings_more += 1;
            return;
        }
        let diagnostic = self.diagnostic(pos, complaint);
        self.warnings.push(diagnostic);
    }

    /// Of what is worth knowing, though it may be meant. It is no warning: instances start without it.
    pub(crate) fn note(&mut self, pos: Pos, complaint: Complaint) {
        if self.notes.len() < ERRORS_MAX {
            let diagnostic = self.diagnostic(pos, complaint);
            self.notes.push(diagnostic);
        }
    }

    /// Whether something was said of this place already.
    pub(crate) fn has_error_at(&self, pos: Pos) -> bool {
        self.errors.iter().any(|error| (error.line, error.column) == (pos.line, pos.column))
    }

    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The warnings and notes, or all errors if there was one.
    pub(crate) fn finish(mut self) -> Result<Remarks, Errors> {
        let in_file_order = |d: &Diagnostic| (d.line, d.column);
        self.errors.sort_by_key(in_file_order);
        // The content of an anchor is read once for every alias.
        self.errors.dedup();
        if self.errors_more > 0 {
            let message = format!("{} more errors are not shown", self.errors_more);
            self.errors.push(Diagnostic::of_file(self.file, message));
        }
        self.warnings.sort_by_key(in_file_order);
        self.warnings.dedup();
        if self.warnings_more > 0 {
            let message = format!("{} more warnings are not shown", self.warnings_more);
            self.warnings.push(Diagnostic::of_file(self.file, message));
        }
        self.notes.sort_by_key(in_file_order);
        self.notes.dedup();
        match self.errors.is_empty() {
            true => Ok(Remarks { warnings: self.warnings, notes: self.notes }),
            false => Err(Errors(self.errors)),
        }
    }

    fn diagnostic(&self, pos: Pos, complaint: Complaint) -> Diagnostic {
        Diagnostic {
            file: self.file.to_owned(),
            line: pos.line,
            column: pos.column,
            message: complaint.message,
            hint: complaint.hint,
            source: self.source_line(pos.line),
        }
    }

    /// Whether the line is below one that begins a section with passwords.
    fn is_in_section_of_passwords(&self, line: usize) -> bool {
        let lines: Vec<&str> = self.text.lines().collect();
        let Some((last, before)) = lines.get(..line).and_then(<[&str]>::split_last) else {
            return false;
        };
        let mut deepest = indent(last);
        let mut enclosing = before.iter().enumerate().rev().filter(|(_, it)| {
            let is_outside = !it.trim().is_empty() && indent(it) < deepest;
            deepest = if is_outside { indent(it) } else { deepest };
            is_outside
        });
        enclosing.any(|(at, it)| {
            let inside = lines[at + 1..]
                .iter()
                .take_while(|line| line.trim().is_empty() || indent(line) > indent(it));
            let key = key_of(it).unwrap_or_default();
            // A pool may have such a name.
            it.trim_end().ends_with(':')
                && PASSWORD_SECTIONS.into_iter().any(|name| nearest(key, [name]).is_some())
                && !inside.filter_map(|line| key_of(line)).any(|key| OF_POOLS.contains(&key))
        })
    }

    /// Whether YAML takes what stands there for a comment, though no space follows its sign.
    pub(crate) fn has_hidden_comment(&self, pos: Pos) -> bool {
        let line = self.text.lines().nth(pos.line.saturating_sub(1));
        let value = line.and_then(|line| line.get(pos.column.saturating_sub(1)..));
        value.is_some_and(|value| {
            !value.starts_with(['"', '\'', '[', '{', '|', '>'])
                && value
                    .match_indices(" #")
                    .any(|(at, _)| value[at + 2..].starts_with(|next: char| !next.is_whitespace()))
        })
    }

    /// The text of a line, without the value of a password.
    pub(crate) fn source_line(&self, line: usize) -> Option<String> {
        let text = self.text.lines().nth(line.checked_sub(1)?)?.trim_end();
        let start =
            password(text).or_else(|| password_of_url(text)).or_else(|| password_of_rule(text));
        let within = || self.is_in_section_of_passwords(line).then(|| password_in_section(text));
        Some(match start.or_else(|| within().flatten()) {
            Some(start) => format!("{} ***", &text[..start]),
            None => text.to_owned(),
        })
    }
}

/// What options with passwords are called, also if they are misspelt.
const PASSWORD_MARKS: [&str; 8] =
    ["auth", "redis_a", "pass", "Auth", "headers", "-key", "token", "users"];

/// Sections whose values, at any depth, are passwords.
const PASSWORD_SECTIONS: [&str; 2] = ["server_auth", "users"];
/// What is in no such section, and in most pools.
const OF_POOLS: [&str; 4] = ["listen", "redis", "route", "distribution"];

/// What stands before the colon.
fn key_of(line: &str) -> Option<&str> {
    let (key, _) = line.split_once(':')?;
    Some(key.trim().trim_matches(['"', '\'']))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Where the value begins in a line of a section with passwords; `None` where it is a place.
fn password_in_section(line: &str) -> Option<usize> {
    let key = line.trim_start();
    match key.split_once(':') {
        Some(("file" | "env" | "servers", _)) => None,
        Some((key, _)) => Some(indent(line) + key.len() + 1),
        None => Some(indent(line)),
    }
}

/// Where the value of an option that may be a password begins: diagnostics end up in logs. A
/// misspelt `redis_auth` holds a password too.
fn password(line: &str) -> Option<usize> {
    PASSWORD_MARKS.into_iter().flat_map(|mark| line.match_indices(mark)).find_map(|(at, _)| {
        let is_key = |c: char| c.is_alphanumeric() || "_-\"'".contains(c);
        let behind = line[at..].trim_start_matches(is_key).trim_start();
        let value = behind.strip_prefix(':')?;
        (!value.is_empty()).then_some(line.len() - value.len())
    })
}

/// Where a password begins that a user's rule adds or removes, or its hash.
fn password_of_rule(line: &str) -> Option<usize> {
    let is_sign = |(at, sign): &(usize, char)| {
        let before = line[..*at].chars().next_back();
        let (word, _) =
            line[at + 1..].split_at(line[at + 1..].find(' ').unwrap_or(line.len() - at - 1));
        let is_start = before.is_none_or(|before| " \t\"'[,(".contains(before));
        // A comment, or YAML's sign for a text of several lines, is none.
        let is_hash =
            word.len() >= 64 && word.bytes().take(64).all(|byte| byte.is_ascii_hexdigit());
        is_start && (is_hash || matches!(sign, '>' | '<') && !matches!(word, "" | "-" | "+"))
    };
    let signs = line.char_indices().filter(|(_, sign)| matches!(sign, '>' | '<' | '#' | '!'));
    signs.filter(is_sign).map(|(at, _)| at + 1).min()
}

/// Where the credentials of a URL begin.
fn password_of_url(line: &str) -> Option<usize> {
    let start = line.find("://")? + "://".len();
    let authority = line[start..].split([' ', '"', '\'', '/']).next()?;
    authority.contains('@').then_some(start)
}

/// The candidate that is most similar to `word`.
pub(crate) fn nearest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let farthest = (word.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, _)| *distance <= farthest)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
