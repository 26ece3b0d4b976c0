//! Rings: from a hash to the index of a live server.

use serde::{Deserialize, Serialize};

/// How keys are spread over servers, named as in the configuration's `distribution:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    Ketama,
    Modula,
    Random,
}
