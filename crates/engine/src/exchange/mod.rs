//! One request from question to answer: sent, replied to, merged.

pub(crate) mod deliver;
pub(crate) mod dispatch;
pub(crate) mod flow;
pub(crate) mod gather;
