//! The test's own request, with a unique reply: when it comes, all earlier requests have been
//! answered.
//! asked before is answered.

use crate::generate::{Protocol, binary};
use crate::random::Random;

pub(crate) struct Fence {
    pub(crate) question: Vec<u8>,
    pub(crate) answer: Vec<u8>,
}

impl Fence {
    pub(crate) fn new(protocol: Protocol, random: &mut Random) -> Self {
        let token = format!("{:016x}", random.number());
        match protocol {
            Protocol::Redis => Self {
                question: format!("*2\r\n$4\r\nPING\r\n$16\r\n{token}\r\n").into_bytes(),
                answer: format!("$16\r\n{token}\r\n").into_bytes(),
            },
            // The reply contains the missing key and the opaque.
            Protocol::Text => Self {
                question: format!("md {token} O{token} k\r\n").into_bytes(),
                answer: format!("NF O{token} k{token}\r\n").into_bytes(),
            },
            Protocol::Binary => {
                let opaque = random.number() as u32;
                let mut answer = binary::packet(0x0a, b"", b"", b"", opaque, 0);
                answer[0] = 0x81;
                Self { question: binary::packet(0x0a, b"", b"", b"", opaque, 0), answer }
            }
        }
    }
}
