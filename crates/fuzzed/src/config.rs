//! Any text is judged: refused with places that exist, or accepted as a snapshot that survives being
//! handed over.

use std::net::SocketAddr;

use cashew_config::{Context, from_json, parse, to_json};

pub fn judge(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let resolve = |_: &str, port| Ok(SocketAddr::from(([127, 0, 0, 1], port)));
    match parse(
        "f",
        text,
        &Context {
            processors: 2,
            memory: Some(1 << 30),
            resolve: &resolve,
            is_directory: &|path| path.as_os_str().len() % 2 == 0,
            is_root: text.len() % 2 == 0,
            has_account: &|_, name| name.len() % 2 == 0,
            account_names: &|_| vec!["nobody".to_owned()],
            is_local: &|address| address.is_loopback(),
            read_secret: &|_| Err(std::io::ErrorKind::NotFound.into()),
            read_env: &|_| None,
            read_pem: &|_| Err(std::io::ErrorKind::NotFound.into()),
            now: 1 << 30,
            read_keys: &|path| match path.as_os_str().len() % 2 {
                0 => Ok("a b\n# c\nd e f\n".to_owned()),
                _ => Err(std::io::ErrorKind::NotFound.into()),
            },
        },
    ) {
        Ok(loaded) => {
            assert!(
                loaded
                    .snapshot
                    .pools
                    .iter()
                    .all(|pool| pool.route.is_some() == pool.servers.is_empty())
            );
            let handed_over = from_json(&to_json(&loaded.snapshot)).expect("what was written");
            assert_eq!(handed_over, loaded.snapshot);
        }
        Err(errors) => {
            let lines = text.split(['\n', '\r']).count();
            assert!(!errors.0.is_empty() && !errors.to_string().is_empty());
            // Line 0 stands for the file as a whole.
            assert!(errors.0.iter().all(|error| error.line <= lines));
        }
    }
}
