//! A connection that goes on in another process: its keys as plain data, and a record layer made of them.
//!
//! rustls hands out the keys and sequence numbers of a connection, but cannot be made of them. What is left of TLS once
//! a handshake is over is little: records, alerts, and updates of keys. The latter need secrets that rustls does not
//! hand out, so a connection that has moved ends when its peer changes its keys, or ours have been used
//! [`RECORDS_MAX`] times.

use std::fmt::{self, Debug, Formatter};
use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce,
    UnboundKey,
};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use crate::failure::Failure;
use crate::options::Version;
use crate::stream::{Progress, RECORD_MAX};

/// How many records are written with one key: what RFC 8446, 5.5 allows for AES-GCM, rounded down.
const RECORDS_MAX: u64 = 1 << 24;
const HEADER_LEN: usize = 5;
const TAG_LEN: usize = 16;
/// The part of a nonce that TLS 1.2 writes before each record of AES-GCM (RFC 5288).
const EXPLICIT_LEN: usize = 8;
/// The most bytes of a record's payload (RFC 5246, 6.2.3; that of RFC 8446 is less).
const PAYLOAD_MAX: usize = RECORD_MAX + 2048;
/// Empty records in a row: each costs as much as one with a byte.
const EMPTY_MAX: u32 = 32;

/// Content types (RFC 8446, 5.1).
const ALERT: u8 = 21;
const DATA: u8 = 23;
/// A message of a server's that has finished its handshake (RFC 8446, 4.6.1).
const TICKET: u8 = 4;
/// Alerts: their level and description (RFC 8446, 6).
const CLOSE_NOTIFY: [u8; 2] = [1, 0];
const BAD_RECORD: [u8; 2] = [2, 20];

/// A connection as plain data. Whoever has it can read and write what its peer does.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    version: Version,
    cipher: Cipher,
    write: Keys,
    read: Keys,
    /// The peer has ended its side.
    is_ended: bool,
}

impl Debug for Parted {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "a connection of {:?} with {:?}", self.version, self.cipher)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

/// Of one direction.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Keys {
    sequence: u64,
    key: Vec<u8>,
    iv: [u8; NONCE_LEN],
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.key.zeroize();
        self.iv.zeroize();
    }
}

impl Parted {
    /// `None` of a cipher that is not known here.
    pub(crate) fn of(secrets: ExtractedSecrets, version: Version, is_ended: bool) -> Option<Self> {
        let ExtractedSecrets { tx, rx } = secrets;
        let (cipher, write) = keys_of(tx)?;
        let (same, read) = keys_of(rx)?;
        let is_known = cipher == same && write.sequence < RECORDS_MAX / 2;
        is_known.then_some(Self { version, cipher, write, read, is_ended })
    }
}

fn keys_of((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Option<(Cipher, Keys)> {
    let (cipher, key, iv) = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::Chacha20Poly1305, key, iv)
        }
        _ => return None,
    };
    let iv = iv.as_ref().try_into().ok()?;
    Some((cipher, Keys { sequence, key: key.as_ref().to_vec(), iv }))
}

/// The record layer of a connection that has come.
pub(crate) struct Records {
    parted: Parted,
    write: LessSafeKey,
    read: LessSafeKey,
    empty: u32,
    has_said_end: bool,
}

impl Records {
    /// `None` if the keys are of another length than the cipher's.
    pub(crate) fn new(parted: Parted) -> Option<Self> {
        let algorithm = parted.cipher.algorithm();
        let key = |keys: &Keys| UnboundKey::new(algorithm, &keys.key).ok().map(LessSafeKey::new);
        let (write, read) = (key(&parted.write)?, key(&parted.read)?);
        Some(Self { parted, write, read, empty: 0, has_said_end: false })
    }

    pub(crate) fn into_parted(self) -> Option<Parted> {
        (self.parted.write.sequence < RECORDS_MAX / 2).then_some(self.parted)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.parted.is_ended
    }

    pub(crate) fn version(&self) -> Version {
        self.parted.version
    }

    /// Whether its record begins with a part of the nonce.
    fn has_explicit_nonce(&self) -> bool {
        self.parted.version == Version::Tls12 && self.parted.cipher != Cipher::Chacha20Poly1305
    }

    /// As [`Stream::process`](crate::Stream::process).
    pub(crate) fn process(
        &mut self,
        input: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Progress, Failure> {
        let mut consumed = 0;
        while !self.parted.is_ended
            && let Some(len) = self.record_len(&input[consumed..], out)?
        {
            let record = &mut input[consumed..consumed + len];
            consumed += len;
            let read = self.decrypt(record);
            if let Err(failure) = read.and_then(|(kind, at)| self.take(kind, &record[at], plain)) {
                let alert = if failure == Failure::Worn { CLOSE_NOTIFY } else { BAD_RECORD };
                // Nobody is told if nothing more can be written.
                let _ = self.encrypt_record(ALERT, &alert, out);
                return Err(failure);
            }
        }
        // What follows the end means nothing.
        if self.parted.is_ended {
            consumed = input.len();
        }
        Ok(Progress { consumed, is_ended: self.parted.is_ended })
    }

    /// The length of the first record, if it is whole.
    fn record_len(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Option<usize>, Failure> {
        let Some(&[_, major, _, high, low]) = input.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if major != 3 || len > PAYLOAD_MAX {
            let _ = self.encrypt_record(ALERT, &BAD_RECORD, out);
            return Err(Failure::Broken);
        }
        Ok((input.len() >= HEADER_LEN + len).then_some(HEADER_LEN + len))
    }

    /// Decrypts a record where it is. Returns what it is, and where.
    fn decrypt(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), Failure> {
        let explicit = if self.has_explicit_nonce() { EXPLICIT_LEN } else { 0 };
        let (head, payload) = record.split_at_mut(HEADER_LEN);
        let len = payload.len().checked_sub(explicit + TAG_LEN).ok_or(Failure::Broken)?;
        let kind = head[0];
        let Keys { sequence, iv, .. } = &mut self.parted.read;
        let mut nonce = nonce_of(iv, *sequence);
        if explicit > 0 {
            nonce[NONCE_LEN - EXPLICIT_LEN..].copy_from_slice(&payload[..EXPLICIT_LEN]);
        }
        let aad = additional_data(self.parted.version, *sequence, kind, len, head);
        *sequence = sequence.checked_add(1).ok_or(Failure::Broken)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let sealed = &mut payload[explicit..];
        self.read.open_in_place(nonce, Aad::from(aad), sealed).map_err(|_| Failure::Broken)?;
        let start = HEADER_LEN + explicit;
        match self.parted.version {
            Version::Tls12 => Ok((kind, start..start + len)),
            // The real type follows the content, and zeros follow it.
            Version::Tls13 => {
                let at = sealed[..len].iter().rposition(|&it| it != 0).ok_or(Failure::Broken)?;
                Ok((sealed[at], start..start + at))
            }
        }
    }

    /// Acts on a record's content.
    fn take(&mut self, kind: u8, content: &[u8], plain: &mut Vec<u8>) -> Result<(), Failure> {
        if content.len() > RECORD_MAX {
            return Err(Failure::Broken);
        }
        self.empty = if content.is_empty() { self.empty + 1 } else { 0 };
        match (kind, content) {
            (_, []) if self.empty > EMPTY_MAX => Err(Failure::Broken),
            (DATA, _) => {
                plain.extend_from_slice(content);
                Ok(())
            }
            (ALERT, [_, 0]) => {
                self.parted.is_ended = true;
                Ok(())
            }
            // A ticket with which to begin another session: it is for whoever has made this one.
            (22, [TICKET, ..]) if self.parted.version == Version::Tls13 => Ok(()),
            // A key update, or in TLS 1.2 a renegotiation, is not possible here.
            (22, _) => Err(Failure::Worn),
            _ => Err(Failure::Broken),
        }
    }

    /// Encrypts `plain` behind what is in `out`.
    pub(crate) fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        plain.chunks(RECORD_MAX).try_for_each(|part| self.encrypt_record(DATA, part, out))
    }

    /// Says that nothing more follows.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.has_said_end, true) {
            let _ = self.encrypt_record(ALERT, &CLOSE_NOTIFY, out);
        }
    }

    fn encrypt_record(
        &mut self,
        kind: u8,
        content: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let is_explicit = self.has_explicit_nonce();
        let Parted { version, write: Keys { sequence, iv, .. }, .. } = &mut self.parted;
        // The last ones are for alerts.
        let records_max = if kind == ALERT { RECORDS_MAX + 2 } else { RECORDS_MAX };
        if *sequence >= records_max {
            return Err(Failure::Worn);
        }
        let nonce = nonce_of(iv, *sequence);
        let (explicit, inner) = match *version {
            Version::Tls12 if is_explicit => (&nonce[NONCE_LEN - EXPLICIT_LEN..], None),
            Version::Tls12 => (&[][..], None),
            Version::Tls13 => (&[][..], Some(kind)),
        };
        let outer = inner.map_or(kind, |_| DATA);
        let len = content.len() + usize::from(inner.is_some()) + TAG_LEN + explicit.len();
        let [high, low] = (len as u16).to_be_bytes();
        let head = [outer, 3, 3, high, low];
        let aad = additional_data(*version, *sequence, kind, content.len(), &head);
        *sequence += 1;
        out.extend_from_slice(&head);
        out.extend_from_slice(explicit);
        let start = out.len();
        out.extend_from_slice(content);
        out.extend(inner);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.write.seal_in_place_separate_tag(nonce, Aad::from(aad), &mut out[start..]);
        out.extend_from_slice(tag.map_err(|_| Failure::Broken)?.as_ref());
        Ok(())
    }
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::Chacha20Poly1305 => &CHACHA20_POLY1305,
        }
    }
}

/// RFC 8446, 5.3; the same in RFC 7905, and what rustls does for AES-GCM in TLS 1.2.
fn nonce_of(iv: &[u8; NONCE_LEN], sequence: u64) -> [u8; NONCE_LEN] {
    let mut nonce = *iv;
    for (byte, of_sequence) in nonce[NONCE_LEN - 8..].iter_mut().zip(sequence.to_be_bytes()) {
        *byte ^= of_sequence;
    }
    nonce
}

/// RFC 8446, 5.2, or RFC 5246, 6.2.3.3.
fn additional_data(version: Version, sequence: u64, kind: u8, len: usize, head: &[u8]) -> Vec<u8> {
    match version {
        Version::Tls13 => head.to_vec(),
        Version::Tls12 => {
            let [high, low] = (len as u16).to_be_bytes();
            [&sequence.to_be_bytes()[..], &[kind, 3, 3, high, low]].concat()
        }
    }
}
