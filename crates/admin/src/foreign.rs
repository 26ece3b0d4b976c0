//! For tests of what comes from outside: reads bytes as what is asked of the stats port and of the control API.

use cashew_api::Command;

use crate::{api, http, operate, query};

/// Reads bytes as a request's path, query or body. What an operator's command is made of is a command to the master.
#[doc(hidden)]
pub fn read_request(kind: u8, bytes: &[u8]) {
    _ = http::speech(bytes);
    let text = String::from_utf8_lossy(bytes);
    let (path, rest) = text.split_once('?').unwrap_or((&text, ""));
    match kind % 4 {
        0 => {
            if let Ok((_, command)) = operate::command(path, rest) {
                let read: Result<Command, _> = serde_json::from_value(command);
                assert!(read.is_ok(), "{path}?{rest}: {read:?}");
            }
        }
        1 => api::read_foreign(path, rest, rest.as_bytes()),
        2 => api::read_foreign(path, "", rest.as_bytes()),
        _ => {
            // Bytes that are written as forms write them are read as they were.
            let written: String = bytes.iter().map(|byte| format!("%{byte:02x}")).collect();
            let read: Vec<_> = query::pairs(&format!("a={written}&b")).map(|it| it.1).collect();
            assert_eq!(read, [text.clone().into_owned(), String::new()]);
            for (name, value) in query::pairs(&text) {
                assert!(!name.contains('&'));
                _ = query::limit(&value, 10);
            }
        }
    }
}
