//! Replies of fragments, dealt out to the positions of the keys that they answer.

use std::collections::{HashMap, VecDeque};

use cashew_protocol::memcached;
use cashew_protocol::resp::{self, encode};

use crate::base::id::RequestId;
use crate::request::slab::Requests;
use crate::request::{Gather, Role};

impl Requests {
    /// The replies of a request's fragments, in their order.
    pub(crate) fn replies(&self, first: RequestId) -> impl Iterator<Item = &[u8]> + Clone {
        let mut at = first;
        std::iter::from_fn(move || {
            if at == RequestId::NONE {
                return None;
            }
            let fragment = &self[at];
            if let Role::Fragment { next, .. } = fragment.role {
                at = next;
            }
            Some(fragment.reply.as_slice())
        })
    }

    /// The fragment behind this one, or [`RequestId::NONE`].
    pub(crate) fn next_fragment(&self, at: RequestId) -> RequestId {
        match self[at].role {
            Role::Fragment { next, .. } => next,
            _ => RequestId::NONE,
        }
    }

    /// Where to begin in each fragment's reply.
    fn places(
        &self,
        first: RequestId,
        start: impl Fn(&[u8]) -> Option<usize>,
        out: &mut Vec<Place>,
    ) {
        let mut at = first;
        while let Role::Fragment { next, .. } = self[at].role {
            let start = start(&self[at].reply).unwrap_or(usize::MAX);
            out.push(Place { fragment: at, at: start });
            if next == RequestId::NONE {
                return;
            }
            at = next;
        }
    }

    /// What of a fragment's reply is not dealt out yet.
    #[inline]
    fn undealt(&self, place: Place) -> Option<&[u8]> {
        self[place.fragment].reply.get(place.at..)
    }

    /// Deals the elements of the fragments' arrays to the positions of the keys.
    pub(crate) fn merge_elements(
        &self,
        fragments: RequestId,
        gather: &Gather,
        places: &mut Vec<Place>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        // A lane's scanner has found each reply whole, so that only its elements' ends are looked
        // for, and none missing or left over at the end shows that their number was right.
        let start = |reply: &[u8]| {
            let is_array = reply.starts_with(b"*");
            reply.iter().position(|&byte| is_array && byte == b'\n').map(|end| end + 1)
        };
        self.places(fragments, start, places);
        encode::write_array_header(out, gather.owners.len());
        for &owner in &gather.owners {
            let place = &mut places[owner as usize];
            let element = first_element(self.undealt(*place)?)?;
            out.extend_from_slice(element);
            place.at += element.len();
        }
        places.iter().all(|&place| self.undealt(place) == Some(b"")).then_some(())
    }

    /// Puts the VALUE blocks of the fragments' replies in the order of the keys. A server names
    /// its hits in the order it was asked, so a key that is not the next hit is a miss, if all hits
    /// are found so.
    pub(crate) fn merge_values(
        &self,
        fragments: RequestId,
        gather: &Gather,
        places: &mut Vec<Place>,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let start = out.len();
        self.places_of_values(fragments, gather, places);
        let dealt = gather.dealt as usize;
        for (key, &owner) in gather.keys[dealt..].iter().zip(&gather.owners[dealt..]) {
            let place = &mut places[owner as usize];
            let block = block_of(key.of(&gather.text), self.undealt(*place)?);
            out.extend_from_slice(block);
            place.at += block.len();
        }
        for &place in &*places {
            let rest = self.undealt(place)?;
            if gather.is_part && memcached::is_error(rest) {
                continue;
            }
            if memcached::is_error(rest) {
                // The server broke off behind its first hits.
                out.truncate(start);
                out.extend_from_slice(rest);
                return Some(());
            }
            if rest != b"END\r\n" {
                out.truncate(start);
                return self.merge_values_by_key(fragments, gather, out);
            }
        }
        if !gather.is_part {
            out.extend_from_slice(b"END\r\n");
        }
        Some(())
    }

    /// The same where a server names its hits in another order, as a proxy in its place may. `None` if
    /// it names what it was not asked for. What has been dealt out in part cannot be put right.
    #[cold]
    fn merge_values_by_key(
        &self,
        fragments: RequestId,
        gather: &Gather,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        if gather.is_part || gather.dealt > 0 {
            return None;
        }
        let mut hits: HashMap<(u32, &[u8]), VecDeque<&[u8]>> = HashMap::new();
        for (owner, reply) in (0..).zip(self.replies(fragments)) {
            let mut values = memcached::Values::new(reply);
            for hit in values.by_ref() {
                hits.entry((owner, hit.key)).or_default().push_back(hit.block);
            }
            if values.rest() != b"END\r\n" {
                return None;
            }
        }
        for (key, &owner) in gather.keys.iter().zip(&gather.owners) {
            let found = hits.get_mut(&(owner, key.of(&gather.text)));
            out.extend_from_slice(found.and_then(VecDeque::pop_front).unwrap_or_default());
        }
        out.extend_from_slice(b"END\r\n");
        hits.values().all(VecDeque::is_empty).then_some(())
    }

    /// Where the values that are not dealt out begin in each fragment's reply.
    pub(crate) fn places_of_values(&self, first: RequestId, gather: &Gather, out: &mut Vec<Place>) {
        let mut at = first;
        while let Role::Fragment { next, .. } = self[at].role {
            let start = gather.places.get(out.len()).copied().unwrap_or_default();
            out.push(Place { fragment: at, at: start });
            if next == RequestId::NONE {
                return;
            }
            at = next;
        }
    }
}

/// How far a fragment's reply is dealt out.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) fragment: RequestId,
    pub(crate) at: usize,
}

/// The element at the start of what is left of an array.
fn first_element(buf: &[u8]) -> Option<&[u8]> {
    if let Some((element, _)) = resp::plain_reply(buf) {
        return Some(element);
    }
    match resp::ReplyScanner::default().scan(buf) {
        resp::Scan::Complete(len) => Some(&buf[..len]),
        resp::Scan::Partial | resp::Scan::Invalid => None,
    }
}

/// The value of this key at the start of what is left of a reply, or nothing.
fn block_of<'r>(key: &[u8], rest: &'r [u8]) -> &'r [u8] {
    if let Some((block, _)) = memcached::plain_block(key, rest) {
        return block;
    }
    let next = memcached::Values::new(rest).next();
    next.filter(|hit| hit.key == key).map_or(b"", |hit| hit.block)
}
