//! What operators ask the master for, by signals and by its control socket.

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Put the configuration file into effect; `dry_run` only tells what that would change.
    Reload { dry_run: bool },
}

/// Who asked, and hears of it: any number of lines, then how it ended.
pub(crate) trait Reply {
    fn say(&mut self, text: &str);
    fn done(self: Box<Self>);
    fn failed(self: Box<Self>, why: &str);
}

/// For a signal, whose sender has the log to look at.
pub(crate) struct Nobody;

impl Reply for Nobody {
    fn say(&mut self, _: &str) {}
    fn done(self: Box<Self>) {}
    fn failed(self: Box<Self>, _: &str) {}
}
