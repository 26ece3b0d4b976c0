//! The cryptography: which cipher suites and versions are spoken.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{CipherSuite, SupportedProtocolVersion, version};

use crate::options::{Ciphers, Version};

pub(crate) fn provider(ciphers: Ciphers) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if ciphers == Ciphers::Strong {
        provider.cipher_suites.retain(|suite| has_long_key(suite.suite()));
    }
    Arc::new(provider)
}

fn has_long_key(suite: CipherSuite) -> bool {
    !matches!(
        suite,
        CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    )
}

/// The newest first.
static VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

pub(crate) fn versions(min: Version) -> &'static [&'static SupportedProtocolVersion] {
    match min {
        Version::Tls12 => &VERSIONS,
        Version::Tls13 => &VERSIONS[..1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_ciphers_have_keys_of_256_bits() {
        let names = |ciphers| -> Vec<String> {
            let provider = provider(ciphers);
            provider.cipher_suites.iter().map(|it| format!("{:?}", it.suite())).collect()
        };
        let strong = names(Ciphers::Strong);
        assert!(
            strong.iter().all(|it| it.contains("256_GCM") || it.contains("CHACHA20")),
            "{strong:?}"
        );
        assert_eq!((strong.len(), names(Ciphers::Default).len()), (6, 9));
    }
}
