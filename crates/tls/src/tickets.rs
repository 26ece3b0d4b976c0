//! Session tickets: what a client brings along to resume its session, at whichever worker.
//!
//! All workers derive the keys from one secret, so nothing need be exchanged between them. The secret is replaced by
//! its own digest every [`TICKET_PERIOD`], so whoever learns it cannot open tickets that are older than that.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::rand;
use rustls::server::ProducesTickets;
use serde::{Deserialize, Serialize};

/// How long tickets are made with one key. They are taken for as long again.
pub const TICKET_PERIOD: Duration = Duration::from_secs(6 * 3600);

const SECRET_LEN: usize = 32;
const SALT_LEN: usize = 16;
const TAG_LEN: usize = 16;
/// Periods that a secret is brought forward by at most: ten years.
const PERIODS_MAX: u64 = 4 * 3652;

/// What the keys of tickets are derived from, in a period of time.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketSecret {
    /// Counted from 1970.
    period: u64,
    secret: [u8; SECRET_LEN],
}

impl Debug for TicketSecret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "the secret of period {}", self.period)
    }
}

impl TicketSecret {
    /// A new one; `None` if the system gives no random bytes.
    pub fn random() -> Option<Self> {
        let mut secret = [0; SECRET_LEN];
        rand::fill(&mut secret).ok()?;
        // So that tickets of the period before are known by their secret, too.
        Some(Self { period: now().saturating_sub(1), secret })
    }

    /// That of the period before the present one, which is the oldest that is needed.
    #[must_use]
    pub fn brought_forward(mut self) -> Self {
        self.advance(now().saturating_sub(1));
        self
    }

    fn advance(&mut self, period: u64) {
        if period.saturating_sub(self.period) > PERIODS_MAX {
            self.period = period - PERIODS_MAX;
        }
        while self.period < period {
            self.secret = derive(&self.secret, &[], b"next period");
            self.period += 1;
        }
    }

    fn next(&self) -> Self {
        let mut next = self.clone();
        next.advance(self.period + 1);
        next
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / TICKET_PERIOD.as_secs()
}

/// HKDF-SHA-256 (RFC 5869).
fn derive<const N: usize>(secret: &[u8], salt: &[u8], info: &[u8]) -> [u8; N] {
    struct Len(usize);
    impl KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut out = [0; N];
    let info = [info];
    let key = Salt::new(HKDF_SHA256, salt).extract(secret);
    key.expand(&info, Len(N))
        .and_then(|expanded| expanded.fill(&mut out))
        .expect("so few bytes can be derived");
    out
}

/// Makes and opens tickets. A ticket is a salt, and what is sealed by a key of its own derived with it.
///
/// Whoever resumes a session shows no certificate again. So a ticket is good only where the same is asked of clients as
/// where it was given: that is sealed with it as additional data.
pub(crate) struct Ticketer {
    secret: Mutex<TicketSecret>,
    /// A digest of what is asked of clients.
    asked: Vec<u8>,
}

impl Ticketer {
    /// `asked` tells what is asked of clients from anything else that may be.
    pub(crate) fn new(secret: TicketSecret, asked: &str) -> Self {
        let asked = digest(&SHA256, asked.as_bytes()).as_ref().to_vec();
        Self { secret: Mutex::new(secret), asked }
    }

    /// The secrets of the present period and the one before.
    fn secrets(&self, period: u64) -> (TicketSecret, TicketSecret) {
        let mut oldest = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        oldest.advance(period.saturating_sub(1));
        (oldest.next(), oldest.clone())
    }

    fn seal(&self, plain: &[u8], period: u64) -> Option<Vec<u8>> {
        let (present, _) = self.secrets(period);
        let mut salt = [0; SALT_LEN];
        rand::fill(&mut salt).ok()?;
        let (key, nonce) = key_of(&present, &salt)?;
        let mut sealed = plain.to_vec();
        key.seal_in_place_append_tag(nonce, Aad::from(&self.asked), &mut sealed).ok()?;
        Some([&salt[..], &sealed].concat())
    }

    fn open(&self, ticket: &[u8], period: u64) -> Option<Vec<u8>> {
        let (salt, sealed) = ticket.split_at_checked(SALT_LEN)?;
        if sealed.len() < TAG_LEN {
            return None;
        }
        let (present, before) = self.secrets(period);
        [present, before].iter().find_map(|secret| {
            let (key, nonce) = key_of(secret, salt)?;
            let mut plain = sealed.to_vec();
            let len = key.open_in_place(nonce, Aad::from(&self.asked), &mut plain).ok()?.len();
            plain.truncate(len);
            Some(plain)
        })
    }
}

fn key_of(secret: &TicketSecret, salt: &[u8]) -> Option<(LessSafeKey, Nonce)> {
    let bytes: [u8; 32 + NONCE_LEN] = derive(&secret.secret, salt, b"ticket");
    let (key, nonce) = bytes.split_at(32);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
    Some((key, Nonce::try_assume_unique_for_key(nonce).ok()?))
}

impl Debug for Ticketer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Ticketer")
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        TICKET_PERIOD.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.open(ticket, now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_secret_opens_a_ticket_for_two_periods() {
        let secret = TicketSecret::random().unwrap();
        let period = now();
        let of = |asked| Ticketer::new(secret.clone(), asked);
        let (one, other) = (of("none"), of("none"));
        let ticket = one.seal(b"a session", period).unwrap();
        assert_eq!(other.open(&ticket, period).as_deref(), Some(&b"a session"[..]));
        assert_eq!(other.open(&ticket, period + 1).as_deref(), Some(&b"a session"[..]));
        assert_eq!(other.open(&ticket, period + 2), None);
        // Not where something else is asked of clients.
        assert_eq!(of("required").open(&ticket, period), None);
        // What has advanced has forgotten.
        assert_eq!(other.open(&ticket, period), None);
        // One that joins later gets the secret as the master has it by then.
        let mut later = secret;
        later.advance(period);
        assert_eq!(
            Ticketer::new(later, "none").open(&ticket, period + 1).as_deref(),
            Some(&b"a session"[..])
        );
    }

    #[test]
    fn a_forged_ticket_is_not_opened() {
        let ticketer = Ticketer::new(TicketSecret::random().unwrap(), "none");
        let ticket = ticketer.encrypt(b"a session").unwrap();
        for at in 0..ticket.len() {
            let mut forged = ticket.clone();
            forged[at] ^= 1;
            assert_eq!(ticketer.decrypt(&forged), None);
            assert_eq!(ticketer.decrypt(&ticket[..at]), None);
        }
        let other = Ticketer::new(TicketSecret::random().unwrap(), "none");
        assert_eq!(other.decrypt(&ticket), None);
        assert_ne!(ticketer.encrypt(b"a session").unwrap(), ticket);
    }

    #[test]
    fn a_secret_survives_its_form_and_is_not_shown() {
        let secret = TicketSecret::random().unwrap();
        let json = serde_json::to_string(&secret).unwrap();
        assert_eq!(serde_json::from_str::<TicketSecret>(&json).unwrap(), secret);
        assert!(format!("{secret:?}").starts_with("the secret of period "));
        assert_eq!(secret.clone().brought_forward(), secret);
    }
}
