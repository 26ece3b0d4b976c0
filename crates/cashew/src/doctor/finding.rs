//! What the doctor has found, and how it says so.

use std::fmt;
use std::fmt::Write as _;

use serde::Serialize;

/// Worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// Worth knowing; nothing has to be done.
    Note,
    /// Something will be wrong, or is for some.
    Warning,
    /// Requests fail.
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// One thing that is wrong, or will be. No field has a secret in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// The name of the check; set by who runs it.
    pub(super) check: &'static str,
    pub(super) severity: Severity,
    /// A pool, a server, a line of the file, this machine.
    pub(super) place: String,
    /// What is.
    pub(super) what: String,
    /// Why it matters. Empty where that is plain.
    pub(super) why: String,
    /// What to do.
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn error(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, place, what)
    }

    pub(super) fn warning(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, place, what)
    }

    pub(super) fn note(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Note, place, what)
    }

    pub(super) fn new(
        severity: Severity,
        place: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        let (place, what) = (place.into(), what.into());
        Self { check: "", severity, place, what, why: String::new(), advice: String::new() }
    }

    pub(super) fn why(self, why: impl Into<String>) -> Self {
        Self { why: why.into(), ..self }
    }

    pub(super) fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

/// In one line.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!("{}: {}: {}", self.severity.name(), self.place, self.what);
        if !self.why.is_empty() {
            let _ = write!(line, "; {}", self.why);
        }
        if !self.advice.is_empty() {
            let _ = write!(line, "; {}", self.advice);
        }
        let _ = write!(line, " [{}]", self.check);
        // Servers say what they like.
        f.write_str(&cashew_process::log::in_one_line(&line))
    }
}

/// What was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct LookedAt {
    pub(super) configuration: String,
    pub(super) pools: usize,
    /// Servers that were asked.
    pub(super) servers: usize,
    /// The process id of the running instance.
    pub(super) instance: Option<u32>,
    /// The names of the checks that were run.
    pub(super) checks: Vec<&'static str>,
    /// What could not be looked at, and why.
    pub(super) not_looked_at: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// Worst first.
    pub(super) findings: Vec<Finding>,
    pub(super) looked_at: LookedAt,
    /// Something was asked for that could not be looked at.
    #[serde(skip)]
    pub(super) is_blind: bool,
}

impl Report {
    pub(super) fn sort(&mut self) {
        self.findings.sort_by(|a, b| b.severity.cmp(&a.severity).then(a.place.cmp(&b.place)));
        self.findings.dedup();
    }

    /// 0 is nothing or notes only, 1 warnings, 2 errors, 3 that it could not look.
    pub(super) fn status(&self) -> u8 {
        if self.is_blind {
            return 3;
        }
        match self.findings.iter().map(|finding| finding.severity).max() {
            None | Some(Severity::Note) => 0,
            Some(Severity::Warning) => 1,
            Some(Severity::Error) => 2,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let _ = writeln!(text, "{finding}");
        }
        let LookedAt { configuration, pools, servers, instance, checks, not_looked_at } =
            &self.looked_at;
        for what in not_looked_at {
            let _ = writeln!(text, "not looked at: {}", cashew_process::log::in_one_line(what));
        }
        let found = match self.findings.len() {
            0 => "no finding".to_owned(),
            count => count_of(count, "finding"),
        };
        let instance =
            instance.map_or_else(String::new, |pid| format!(", the running instance (pid {pid})"));
        let _ = write!(
            text,
            "{found}; looked at {configuration}: {}, {}, this machine{instance}; {}",
            count_of(*pools, "pool"),
            count_of(*servers, "server"),
            count_of(checks.len(), "check")
        );
        text
    }
}

fn count_of(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_is_the_status() {
        let mut report = Report::default();
        assert_eq!(report.status(), 0);
        assert!(report.text().starts_with("no finding; looked at "), "{}", report.text());
        report.findings.push(Finding::note("b", "x"));
        report.sort();
        assert_eq!(report.status(), 0);
        report.findings.push(Finding::warning("a", "y").why("z").advice("do"));
        report.sort();
        assert_eq!((report.status(), &*report.findings[0].place), (1, "a"));
        report.findings.push(Finding::error("c", "two\nlines"));
        report.sort();
        assert_eq!(report.status(), 2);
        let text = report.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("error: c: two"), "{text}");
        assert_eq!(lines[1], "warning: a: y; z; do []");
        assert!(lines[3].starts_with("3 findings; "), "{text}");
        report.is_blind = true;
        assert_eq!(report.status(), 3);
    }
}
