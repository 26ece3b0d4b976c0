//! `/state.json` and `/history.json` as they are read. Two versions of cashew may meet here: unknown fields
//! are ignored, missing fields are empty.

use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) version: String,
    pub(super) host: String,
    pub(super) at: u64,
    pub(super) uptime_s: u64,
    pub(super) epoch: u64,
    pub(super) reloads: Reloads,
    pub(super) pools: Vec<Pool>,
    pub(super) workers: Vec<Worker>,
    pub(super) sections: Vec<Section>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reloads {
    pub(super) last_at: Option<u64>,
    pub(super) last_result: Option<String>,
    pub(super) last_failure: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pool {
    pub(super) name: String,
    pub(super) listen: String,
    pub(super) protocol: String,
    pub(super) leads_to: Vec<String>,
    pub(super) clients: u64,
    pub(super) open: u64,
    #[serde(flatten)]
    pub(super) now: Now,
    pub(super) servers: Vec<Server>,
}

/// Rates and latencies of the last seconds.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Now {
    pub(super) requests_per_s: Option<u64>,
    pub(super) errors_per_s: Option<u64>,
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
    pub(super) p999_us: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) role: String,
    pub(super) up: u64,
    pub(super) state: String,
    pub(super) cause: Option<String>,
    pub(super) since: Option<u64>,
    pub(super) last_error: Option<String>,
    pub(super) last_error_at: Option<u64>,
    pub(super) ejected: u64,
    pub(super) connections: u64,
    pub(super) queue: u64,
    #[serde(flatten)]
    pub(super) now: Now,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Worker {
    pub(super) slot: u64,
    pub(super) pid: u64,
    pub(super) heartbeat_age_ms: Option<u64>,
    pub(super) buffered_bytes: u64,
    pub(super) busy_permille: u64,
    pub(super) sessions_in: u64,
    pub(super) sessions_out: u64,
    pub(super) clients: u64,
}

/// A table that is shown as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Value>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) unit: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct History {
    pub(super) requests: Vec<u64>,
    pub(super) span_ms: Vec<u64>,
    pub(super) p50_us: Vec<Option<u64>>,
    pub(super) p99_us: Vec<Option<u64>>,
}

impl Server {
    pub(super) fn is_down(&self) -> bool {
        self.up == 0 && self.state != "untried"
    }

    /// In words.
    pub(super) fn condition(&self) -> String {
        let mut text = self.state.clone();
        if let Some(cause) = &self.cause {
            text += &format!(": {cause}");
        }
        // The cause of one that is out may say so already.
        if self.ejected > 0 && self.cause.as_deref() != Some("Ejected from the ring") {
            text += ", ejected";
        }
        text
    }
}
