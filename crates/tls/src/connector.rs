//! TLS towards servers.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

use crate::certificate::{certified, roots};
use crate::options::ServerTls;
use crate::provider::{provider, versions};

/// The name for a server that has none, at a Unix socket.
const LOCAL: &str = "localhost";

/// What servers of a pool are connected with.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(crate) config: Arc<ClientConfig>,
    /// Takes the place of the server's host.
    name: Option<ServerName<'static>>,
}

impl Connector {
    /// # Errors
    /// If a file or the name cannot be used: which and why.
    pub fn new(options: &ServerTls) -> Result<Self, String> {
        let provider = provider(options.ciphers);
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions(options.min_version))
            .map_err(|error| error.to_string())?;
        let builder = match options.verify {
            true => {
                let roots = roots(&options.ca).map_err(|why| format!("ca {why}"))?;
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                let verifier = verifier.build().map_err(|error| format!("ca: {error}"))?;
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
            false => {
                let verifier = Arc::new(Unverified(Arc::clone(&provider)));
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let mut config = match &options.identity {
            Some(identity) => {
                let certified = certified(&identity.chain, &identity.key, &provider)
                    .map_err(|why| identity.complain(&why))?;
                let only = rustls::sign::SingleCertAndKey::from(certified);
                builder.with_client_cert_resolver(Arc::new(only))
            }
            None => builder.with_no_client_auth(),
        };
        // A client's own connection to a server goes where the client goes.
        config.enable_secret_extraction = true;
        let name = options.server_name.clone();
        let name = name.map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| format!("\"{name}\" is no name of a server"))
        });
        Ok(Self { config: Arc::new(config), name: name.transpose()? })
    }

    /// The name that the certificate of a server at `host` must be for; `None` is a Unix socket.
    pub(crate) fn name_of(&self, host: Option<&str>) -> Option<ServerName<'static>> {
        if let Some(name) = &self.name {
            return Some(name.clone());
        }
        ServerName::try_from(host.unwrap_or(LOCAL).to_owned()).ok()
    }
}

/// Takes any certificate, for `verify: false`. That the server has its key is still checked.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
