//! Why a connection that was to be secured is not.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Why a connection failed, as far as TLS is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What came was no TLS.
    NotTls,
    /// No version, or no cipher suite, that both sides allow.
    NothingInCommon,
    /// The peer's certificate.
    Expired,
    NotValidYet,
    /// No authority that is trusted has signed it.
    Untrusted,
    /// It is for another name.
    WrongName,
    /// It has another defect.
    Invalid,
    /// A client showed none, and one is required.
    NoCertificate,
    /// The peer does not want our certificate, or wants one that it was not shown.
    Refused,
    /// The handshake took too long.
    TimedOut,
    /// The connection ended within the handshake.
    Closed,
    /// The connection has moved, and would need new keys to go on.
    Worn,
    /// What came does not fit, or the peer gave up for another reason.
    Broken,
}

impl Failure {
    /// What a log says of a client.
    pub fn of_client(self) -> &'static str {
        match self {
            Self::NotTls => "what it sent is no TLS",
            Self::NothingInCommon => "it offers no version and ciphers that are allowed here",
            Self::Expired => "its certificate has expired",
            Self::NotValidYet => "its certificate is not valid yet",
            Self::Untrusted => "its certificate is signed by no authority of client_ca",
            Self::WrongName => "its certificate is for another name",
            Self::Invalid => "its certificate is not valid",
            Self::NoCertificate => "it showed no certificate",
            Self::Refused => "it does not trust the certificate here",
            Self::TimedOut => "its handshake took longer than handshake_timeout",
            Self::Closed => "it left within its handshake",
            Self::Worn => "it has moved, and cannot go on without new keys",
            Self::Broken => "what it sent is not right in TLS",
        }
    }

    /// What a log says of a server, behind its name.
    pub fn of_server(self) -> &'static str {
        match self {
            Self::NotTls => "does not speak TLS",
            Self::NothingInCommon => "speaks no version and ciphers of TLS that are allowed",
            Self::Expired => "has a certificate that has expired",
            Self::NotValidYet => "has a certificate that is not valid yet",
            Self::Untrusted => "has a certificate that is not signed by a trusted authority",
            Self::WrongName => "has a certificate for another name",
            Self::Invalid => "has an invalid certificate",
            Self::NoCertificate | Self::Refused => {
                "refuses the gateway's certificate, or wants one"
            }
            Self::TimedOut => "does not answer the TLS handshake",
            Self::Closed | Self::Worn | Self::Broken => "fails in the TLS handshake",
        }
    }

    /// Of an error; `is_first` if nothing that the peer sent has made sense before, and `first` is what came.
    pub(crate) fn of(error: &Error, is_first: bool, first: Option<u8>) -> Self {
        match error {
            Error::InvalidMessage(_) if is_first && !first.is_some_and(is_record) => Self::NotTls,
            Error::InvalidCertificate(error) => Self::of_certificate(error),
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::PeerIncompatible(why) => Self::of_incompatible(why),
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            _ => Self::Broken,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotValidYet
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Untrusted,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::WrongName
            }
            _ => Self::Invalid,
        }
    }

    fn of_incompatible(why: &PeerIncompatible) -> Self {
        match why {
            PeerIncompatible::NoCipherSuitesInCommon
            | PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::NoSignatureSchemesInCommon
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            // Those who lack them speak what came before TLS 1.2, or no ciphers that are spoken here.
            | PeerIncompatible::SignatureAlgorithmsExtensionRequired
            | PeerIncompatible::NamedGroupsExtensionRequired
            | PeerIncompatible::UncompressedEcPointsRequired
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic => Self::NothingInCommon,
            _ => Self::Broken,
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
                Self::NothingInCommon
            }
            AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired => Self::Refused,
            _ => Self::Broken,
        }
    }
}

/// Whether a TLS record may begin with it.
fn is_record(first: u8) -> bool {
    // change_cipher_spec, alert, handshake, application_data.
    (20..=23).contains(&first)
}
