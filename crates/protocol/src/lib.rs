#![forbid(unsafe_code)]
pub mod memcached;
mod span;

pub use span::Span;
