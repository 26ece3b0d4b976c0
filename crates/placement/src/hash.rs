//! The twelve key hashes of twemproxy.

use serde::{Deserialize, Serialize};

/// A key hash, named as in the configuration's `hash:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hash {
    OneAtATime,
    Md5,
    Crc16,
    Crc32,
    Crc32a,
    #[serde(rename = "fnv1_64")]
    Fnv1_64,
    #[serde(rename = "fnv1a_64")]
    Fnv1a64,
    #[serde(rename = "fnv1_32")]
    Fnv1_32,
    #[serde(rename = "fnv1a_32")]
    Fnv1a32,
    Hsieh,
    Murmur,
    Jenkins,
}
