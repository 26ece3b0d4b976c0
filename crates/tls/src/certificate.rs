//! Certificates and keys as files have them.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::options::ClientUser;

/// Why files cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    #[error("has no certificate in PEM form")]
    NoCertificate,
    #[error("has a certificate that cannot be read")]
    BadCertificate,
    #[error("has no private key in PEM form, or only one with a passphrase")]
    NoKey,
    #[error("has a private key of a kind that is not known")]
    BadKey,
    #[error("is not the key of the certificate")]
    Mismatch,
}

/// What is known of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// DNS names and addresses, in lower case.
    pub names: Vec<String>,
    /// Seconds since 1970.
    pub begins_at: u64,
    pub expires_at: u64,
}

impl Certificate {
    /// The first certificate of a file.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn of_pem(pem: &str) -> Result<Self, Unusable> {
        let chain = certificates(pem)?;
        let der = chain.first().ok_or(Unusable::NoCertificate)?;
        let entity = webpki::EndEntityCert::try_from(der).map_err(|_| Unusable::BadCertificate)?;
        let mut names: Vec<String> = entity.valid_dns_names().map(str::to_lowercase).collect();
        names.extend(addresses(der).iter().map(IpAddr::to_string));
        let (begins_at, expires_at) = validity(der).ok_or(Unusable::BadCertificate)?;
        Ok(Self { names, begins_at, expires_at })
    }
}

pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let found = found.map_err(|_| Unusable::BadCertificate)?;
    if found.is_empty() {
        return Err(Unusable::NoCertificate);
    }
    Ok(found)
}

/// The authorities of a file. Those that cannot be used are passed over, as bundles of distributions may have some.
pub(crate) fn roots(pem: &str) -> Result<Arc<RootCertStore>, Unusable> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(certificates(pem)?);
    if added == 0 {
        return Err(Unusable::BadCertificate);
    }
    Ok(Arc::new(store))
}

/// A certificate with its key.
pub(crate) fn certified(
    chain: &str,
    key: &str,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Unusable> {
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| Unusable::NoKey)?;
    let key = provider.key_provider.load_private_key(key).map_err(|_| Unusable::BadKey)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(rustls::Error::InconsistentKeys(_)) => Err(Unusable::Mismatch),
        Err(_) => Err(Unusable::BadCertificate),
    }
}

/// One element of DER: its tag, its content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |len, &byte| len << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// The fields of a TBSCertificate behind its version (RFC 5280, 4.1).
fn fields(der: &[u8]) -> Option<&[u8]> {
    let (_, certificate, _) = element(der)?;
    let (_, tbs, _) = element(certificate)?;
    match element(tbs)? {
        (0xa0, _, rest) => Some(rest),
        _ => Some(tbs),
    }
}

/// From when until when it is valid, in seconds since 1970.
fn validity(der: &[u8]) -> Option<(u64, u64)> {
    let (_, _serial, rest) = element(fields(der)?)?;
    let (_, _signature, rest) = element(rest)?;
    let (_, _issuer, rest) = element(rest)?;
    let (_, validity, _) = element(rest)?;
    let (tag, begin, rest) = element(validity)?;
    let (end_tag, end, _) = element(rest)?;
    Some((time(tag, begin)?, time(end_tag, end)?))
}

/// UTCTime or GeneralizedTime, which certificates have in UTC with seconds (RFC 5280, 4.1.2.5).
fn time(tag: u8, text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |at: usize, len: usize| text.get(at..at + len)?.parse::<i64>().ok();
    let (year, rest) = match (tag, text.len()) {
        (0x17, 12) => {
            (number(0, 2).map(|year| if year < 50 { 2000 + year } else { 1900 + year })?, 2)
        }
        (0x18, 14) => (number(0, 4)?, 4),
        _ => return None,
    };
    let (month, day) = (number(rest, 2)?, number(rest + 2, 2)?);
    let seconds = number(rest + 4, 2)? * 3600 + number(rest + 6, 2)? * 60 + number(rest + 8, 2)?;
    // Days of the Gregorian calendar, counted from March, so that the leap day is the last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day;
    let since_1970 = (days - 719_469) * 86_400 + seconds;
    u64::try_from(since_1970).ok().or(Some(0))
}

/// The names of a client's certificate that may be its user's.
pub(crate) fn names_for(der: &CertificateDer<'_>, user: ClientUser) -> Vec<String> {
    // RFC 5280, 4.2.1.6: GeneralName.
    const RFC822_NAME: u8 = 0x81;
    const DNS_NAME: u8 = 0x82;
    const URI: u8 = 0x86;
    match user {
        ClientUser::Off => Vec::new(),
        ClientUser::Cn => common_name(der).into_iter().collect(),
        ClientUser::SanDns => texts_of(der, DNS_NAME),
        ClientUser::SanUri => texts_of(der, URI),
        ClientUser::SanEmail => texts_of(der, RFC822_NAME),
    }
}

/// The alternative names of this kind that are plain text.
fn texts_of(der: &[u8], kind: u8) -> Vec<String> {
    let mut found = Vec::new();
    let mut names = alternative_names(der).unwrap_or_default();
    while let Some((tag, content, rest)) = element(names) {
        if tag == kind {
            found.extend(text(content));
        }
        names = rest;
    }
    found
}

/// No user has a name with control characters, such as a zero byte that other readers would take for the end.
fn text(content: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(content).ok()?;
    (!text.is_empty() && !text.contains(char::is_control)).then(|| text.to_owned())
}

/// The subject's common name; the last if there are several, which is the most specific.
fn common_name(der: &[u8]) -> Option<String> {
    const COMMON_NAME: &[u8] = &[0x55, 4, 3];
    const UTF8_STRING: u8 = 0x0c;
    const PRINTABLE_STRING: u8 = 0x13;
    const IA5_STRING: u8 = 0x16;
    let (_, _serial, rest) = element(fields(der)?)?;
    let (_, _signature, rest) = element(rest)?;
    let (_, _issuer, rest) = element(rest)?;
    let (_, _validity, rest) = element(rest)?;
    let (_, mut subject, _) = element(rest)?;
    let mut found = None;
    while let Some((_, mut relative, behind)) = element(subject) {
        while let Some((_, attribute, behind)) = element(relative) {
            let (_, id, value) = element(attribute)?;
            if id == COMMON_NAME {
                found = match element(value)? {
                    (UTF8_STRING | PRINTABLE_STRING | IA5_STRING, name, _) => text(name),
                    _ => None,
                };
            }
            relative = behind;
        }
        subject = behind;
    }
    found
}

/// The addresses among the alternative names.
fn addresses(der: &[u8]) -> Vec<IpAddr> {
    alternative_names(der).map(addresses_of).unwrap_or_default()
}

/// The content of the extension subjectAltName (RFC 5280, 4.2.1.6).
fn alternative_names(der: &[u8]) -> Option<&[u8]> {
    const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    let mut rest = fields(der)?;
    let extensions = loop {
        let (tag, content, behind) = element(rest)?;
        if tag == 0xa3 {
            break content;
        }
        rest = behind;
    };
    let (_, mut list, _) = element(extensions)?;
    loop {
        let (_, extension, behind) = element(list)?;
        let (_, id, mut value) = element(extension)?;
        if id == SUBJECT_ALT_NAME {
            // Whether it is critical may stand before it.
            if let Some((0x01, _, behind)) = element(value) {
                value = behind;
            }
            let (_, octets, _) = element(value)?;
            return element(octets).map(|(_, names, _)| names);
        }
        list = behind;
    }
}

fn addresses_of(mut names: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    while let Some((tag, content, rest)) = element(names) {
        if tag == 0x87 {
            let of_four = <[u8; 4]>::try_from(content).map(IpAddr::from);
            let of_sixteen = <[u8; 16]>::try_from(content).map(IpAddr::from);
            found.extend(of_four.or(of_sixteen));
        }
        names = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(time(0x17, b"700101000000Z"), Some(0));
        assert_eq!(time(0x17, b"000229120000Z"), Some(951_825_600));
        assert_eq!(time(0x17, b"491231235959Z"), Some(2_524_607_999));
        assert_eq!(time(0x18, b"21000301000000Z"), Some(4_107_542_400));
        assert_eq!(time(0x18, b"20261128020000Z"), Some(1_795_831_200));
        for bad in [&b""[..], b"Z", b"7001010000Z", b"700101000000", b"70010100000xZ"] {
            assert_eq!(time(0x17, bad), None);
        }
    }

    #[test]
    fn nothing_that_is_cut_short_is_read() {
        for bad in [&[][..], &[0x30], &[0x30, 5, 1], &[0x30, 0x80], &[0x30, 0x85, 1, 1, 1, 1, 1]] {
            assert_eq!(element(bad), None);
            assert_eq!(validity(bad), None);
        }
        assert_eq!(Certificate::of_pem("nothing"), Err(Unusable::NoCertificate));
    }
}
