//! Certificates for tests, made by the command `openssl`.
#![allow(dead_code, reason = "each test uses its own part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An authority, and where it keeps its files; they go with it.
pub(crate) struct Authority {
    directory: PathBuf,
}

/// PEM of a certificate and of its key.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cashew-authority-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        let authority = Self { directory };
        authority.openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt \
             -days 3650 -subj /CN=authority{number}"
        ));
        authority
    }

    pub(crate) fn certificate(&self) -> String {
        fs::read_to_string(self.directory.join("ca.crt")).unwrap()
    }

    /// For names such as `DNS:a,IP:127.0.0.1`, valid from now on for so many days; less than none has expired.
    pub(crate) fn sign(&self, names: &str, days: i32) -> Pair {
        self.openssl(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr \
             -subj /CN=leaf",
        );
        let extensions = format!("subjectAltName={names}\nbasicConstraints=CA:FALSE\n");
        fs::write(self.directory.join("leaf.ext"), extensions).unwrap();
        self.openssl(&format!(
            "x509 -req -in leaf.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days {days} \
             -extfile leaf.ext -out leaf.crt"
        ));
        let read = |name: &str| fs::read_to_string(self.directory.join(name)).unwrap();
        Pair { certificate: read("leaf.crt"), key: read("leaf.key") }
    }

    fn openssl(&self, arguments: &str) {
        let done = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir::<&Path>(&self.directory)
            .output()
            .expect("openssl is installed");
        assert!(done.status.success(), "{arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
