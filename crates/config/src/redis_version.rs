//! Which Redis clients are told that this is: `redis_version`.

use std::fmt;

use schemars::{Schema, json_schema};

use crate::diagnostic::Complaint;
use crate::value::{Value, all_digits};

/// Three numbers of up to three digits, and dots.
#[derive(Clone, Debug)]
pub(crate) struct RedisVersion(pub(crate) String);

impl Value for RedisVersion {
    fn parse(text: &str) -> Result<Self, Complaint> {
        let parts: Vec<&str> = text.split('.').collect();
        let is_number = |part: &&str| all_digits(part) && part.len() <= 3;
        match parts.len() == 3 && parts.iter().all(is_number) {
            true => Ok(Self(text.to_owned())),
            false => {
                let complaint = Complaint::new(format!("\"{text}\" is not a version of Redis"));
                Err(complaint.hint(Self::expected()))
            }
        }
    }

    fn schema() -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9]{1,3}[.][0-9]{1,3}[.][0-9]{1,3}$" })
    }

    fn describe() -> String {
        "a version like `7.4.2`".to_owned()
    }
}

impl fmt::Display for RedisVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_three_numbers() {
        for good in ["7.0.15", "8.2.0", "255.255.255"] {
            assert!(RedisVersion::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "7", "7.4", "7.4.x", "7.4.2-rc1", "7..2", "7.4.2000", "a.b.c"] {
            assert!(RedisVersion::parse(bad).is_err(), "{bad}");
        }
    }
}
