//! Typing errors that YAML notices only further down: a tab as indentation, an open quote. A line
//! is blamed if the file parses differently without it.

use crate::diagnostic::{Complaint, Pos};
use crate::tree;

/// The cause of a YAML error, if it was a typing error.
pub(crate) fn find(text: &str, error: &serde_saphyr::Error) -> Option<(Pos, Complaint)> {
    tab(text, error).or_else(|| open_quote(text, error))
}

/// The most lines that are checked by parsing the file without them.
const SUSPECTS_MAX: usize = 8;

/// A tab in the indentation of a line, if that is the cause. The reported place may be far below
/// it, or in the text above, which continues there.
fn tab(text: &str, error: &serde_saphyr::Error) -> Option<(Pos, Complaint)> {
    let message = error.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let has_tab = |line: &str| {
        let (blanks, content) = line.split_at(indentation(line));
        !content.is_empty() && !content.starts_with('#') && blanks.contains('\t')
    };
    let is_cause = |number: &usize| {
        let (blanks, content) = lines[number - 1].split_at(indentation(lines[number - 1]));
        let line = format!("{}{content}", blanks.replace('\t', "        "));
        let mut lines = lines.clone();
        lines[number - 1] = &line;
        tree::read(&lines.join("\n"), false)
            .map_or_else(|left| left.to_string() != message, |_| true)
    };
    let place = tree::place_of(error);
    let may_be_below = message.contains("tab");
    let number = (1..=lines.len())
        .take_while(|number| may_be_below || *number <= place.line)
        .filter(|number| has_tab(lines[number - 1]))
        .take(SUSPECTS_MAX)
        .find(is_cause)?;
    let column = lines[number - 1].chars().position(|c| c == '\t').map_or(1, |at| at + 1);
    let complaint = Complaint::new("not valid YAML: a tab is no indentation");
    Some((Pos { line: number, column }, complaint.hint("indent with spaces")))
}

/// The first quote that is not closed on its line, if that is the cause: otherwise the text up to
/// the next quote, or to the end, belongs to it.
fn open_quote(text: &str, error: &serde_saphyr::Error) -> Option<(Pos, Complaint)> {
    let place = tree::place_of(error);
    let lines: Vec<&str> = text.lines().collect();
    let open = lines.iter().take(place.line).zip(1..);
    let (line, number, (column, quote)) =
        open.filter_map(|(&line, number)| Some((line, number, unclosed(line)?))).next()?;
    // Closed at the end of the line, or before the brackets there, parsing gets further.
    let is_cause =
        [line.trim_end(), line.trim_end().trim_end_matches([']', '}'])].iter().any(|value| {
            let rest = &line.trim_end()[value.len()..];
            let closed = format!("{value}{quote}{rest}");
            let mut lines = lines.clone();
            lines[number - 1] = &closed;
            match tree::read(&lines.join("\n"), false) {
                Ok(_) => true,
                Err(left) => tree::place_of(&left).line >= place.line.max(number + 1),
            }
        });
    let complaint = Complaint::new(format!("not valid YAML: {quote} has no other one on its line"))
        .hint("text in quotes ends with the one that it begins with");
    is_cause.then_some((Pos { line: number, column }, complaint))
}

/// The column of a quote that opens a value and is not closed, and which quote it is.
fn unclosed(line: &str) -> Option<(usize, char)> {
    let mut open: Option<(usize, char)> = None;
    // A quote opens a value only where one may begin.
    let mut is_start = true;
    let mut before = ' ';
    let mut chars = line.chars().zip(1..).peekable();
    while let Some((c, column)) = chars.next() {
        match open {
            Some((_, '"')) if c == '\\' => drop(chars.next()),
            Some((_, '\'')) if c == '\'' && chars.peek().is_some_and(|&(c, _)| c == '\'') => {
                chars.next();
            }
            Some((_, quote)) if c == quote => open = None,
            Some(_) => {}
            None if c == '#' && before == ' ' => return None,
            None if is_start && (c == '"' || c == '\'') => open = Some((column, c)),
            None => {
                is_start = matches!(c, '[' | '{' | ',')
                    || c == ' ' && (is_start || matches!(before, ':' | '-'));
            }
        }
        if open.is_some() {
            is_start = false;
        }
        before = c;
    }
    open
}
