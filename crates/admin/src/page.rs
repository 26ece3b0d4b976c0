//! The page for browsers: one document, which asks for `/state.json` and `/history.json` itself.

use std::hash::{BuildHasher, RandomState};

const DOCUMENT: &str = include_str!("page.html");
/// Where the document has the nonce.
const PLACE: &str = "NONCE";

pub(crate) struct Page {
    pub(crate) text: Vec<u8>,
    /// Its Content-Security-Policy: what is in the document runs, and nothing that gets into it.
    pub(crate) policy: String,
}

pub(crate) fn page() -> Page {
    let nonce = nonce();
    let policy = format!(
        "default-src 'none'; connect-src 'self'; img-src data:; script-src 'nonce-{nonce}'; \
         style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    Page { text: DOCUMENT.replace(PLACE, &nonce).into_bytes(), policy }
}

/// Another each time. The standard library's hash maps have their keys from the system's random numbers.
fn nonce() -> String {
    let random = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", random(), random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_all_it_needs_and_no_more() {
        let (page, other) = (page(), super::page());
        assert_ne!(page.policy, other.policy);
        let text = String::from_utf8(page.text).unwrap();
        assert_eq!(DOCUMENT.matches(PLACE).count(), 2);
        assert!(!text.contains(PLACE) && text.starts_with("<!doctype html>"));
        // Markup is made of elements alone, so that no name of a server is taken for it.
        for never in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "http:",
            "https:",
        ] {
            assert!(!text.replace("http://www.w3.org/2000/svg", "").contains(never), "{never}");
        }
        assert!(text.len() < 40_000, "{} bytes", text.len());
    }
}
