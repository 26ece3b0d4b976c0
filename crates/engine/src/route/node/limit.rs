//! `limit`: so many requests per second.

use super::super::answer::{Verdict, Word};
use crate::base::bucket::Bucket;
use crate::base::time::Time;

pub(super) fn begin(bucket: &Bucket, now: Time) -> Verdict {
    match bucket.take(now) {
        true => Verdict::ask([0]),
        false => Verdict::Say(Word::Overloaded),
    }
}
