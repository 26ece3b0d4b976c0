//! TLS towards clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

use crate::certificate::{certified, roots};
use crate::options::{ClientAuth, ClientUser, Identity, ListenerTls};
use crate::provider::{provider, versions};
use crate::tickets::{TicketSecret, Ticketer};

/// What clients of a listener are accepted with.
#[derive(Clone, Debug)]
pub struct Acceptor {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) client_user: ClientUser,
    pub handshake_timeout: Duration,
}

impl Acceptor {
    /// Without a secret sessions are not resumed.
    ///
    /// # Errors
    /// If a file cannot be used: its name and why.
    pub fn new(options: &ListenerTls, secret: Option<&TicketSecret>) -> Result<Self, String> {
        let provider = provider(options.ciphers);
        let identities = Identities::new(&options.identities, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions(options.min_version))
            .map_err(|error| error.to_string())?;
        let builder = match (&options.client_ca, options.client_auth) {
            (Some(ca), ClientAuth::Optional | ClientAuth::Required) => {
                let roots = roots(ca).map_err(|why| format!("client_ca {why}"))?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let verifier = match options.client_auth {
                    ClientAuth::Required => verifier,
                    _ => verifier.allow_unauthenticated(),
                };
                let verifier = verifier.build().map_err(|error| format!("client_ca: {error}"))?;
                builder.with_client_cert_verifier(verifier)
            }
            (None, ClientAuth::Optional | ClientAuth::Required) => {
                return Err("client_auth needs client_ca".to_owned());
            }
            (_, ClientAuth::None) => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(identities));
        config.enable_secret_extraction = options.hand_over;
        match secret {
            Some(secret) => {
                let secret = secret.clone().brought_forward();
                let ca = options.client_ca.as_deref().unwrap_or_default();
                let asked = format!("{} {ca}", options.client_auth.name());
                config.ticketer = Arc::new(Ticketer::new(secret, &asked));
            }
            None => config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {}),
        }
        let handshake_timeout = Duration::from_millis(options.handshake_timeout_ms);
        Ok(Self { config: Arc::new(config), client_user: options.client_user, handshake_timeout })
    }
}

/// Certificates by the names that clients ask for.
#[derive(Debug)]
struct Identities {
    all: Vec<Arc<CertifiedKey>>,
    /// Those that are for a name, in the configured order. A wildcard begins with `*.`.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
}

impl Identities {
    fn new(identities: &[Identity], provider: &CryptoProvider) -> Result<Self, String> {
        let mut found = Self { all: Vec::new(), by_name: HashMap::new() };
        for identity in identities {
            let Identity { chain, key, names, .. } = identity;
            let certified = certified(chain, key, provider);
            let certified = Arc::new(certified.map_err(|why| identity.complain(&why))?);
            for name in names {
                found.by_name.entry(name.clone()).or_default().push(Arc::clone(&certified));
            }
            found.all.push(certified);
        }
        Ok(found)
    }

    /// Those for the name, or all where none is.
    fn named(&self, name: Option<&str>) -> &[Arc<CertifiedKey>] {
        let Some(name) = name.map(str::to_lowercase) else { return &self.all };
        let wildcard = || {
            let (_, parent) = name.split_once('.')?;
            self.by_name.get(&format!("*.{parent}"))
        };
        self.by_name.get(&name).or_else(wildcard).unwrap_or(&self.all)
    }
}

impl ResolvesServerCert for Identities {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let candidates = self.named(hello.server_name());
        // Of several for the same name, one whose kind of key the client knows.
        let fits =
            |it: &&Arc<CertifiedKey>| it.key.choose_scheme(hello.signature_schemes()).is_some();
        candidates.iter().find(fits).or(candidates.first()).cloned()
    }
}
