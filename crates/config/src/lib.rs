//! The configuration: a YAML file in either of twemproxy's dialects, validated once and resolved
//! into an immutable, numbered [`Snapshot`] that every process of an instance works from.
#![forbid(unsafe_code)]

pub mod snapshot;

pub use snapshot::Snapshot;
