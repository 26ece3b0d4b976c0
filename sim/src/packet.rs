//! Packets of memcached's binary protocol, written and read without the tested code.

pub(crate) const HEADER_SIZE: usize = 24;
pub(crate) const TEMPORARY_FAILURE: u16 = 0x86;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opcode {
    Get,
    GetK,
    Set,
    Add,
    Replace,
    Delete,
    Increment,
    Append,
    Prepend,
    Quit,
    Noop,
}

impl Opcode {
    const ALL: [(Self, u8, u8); 11] = [
        (Self::Get, 0x00, 0x09),
        (Self::GetK, 0x0c, 0x0d),
        (Self::Set, 0x01, 0x11),
        (Self::Add, 0x02, 0x12),
        (Self::Replace, 0x03, 0x13),
        (Self::Delete, 0x04, 0x14),
        (Self::Increment, 0x05, 0x15),
        (Self::Append, 0x0e, 0x19),
        (Self::Prepend, 0x0f, 0x1a),
        (Self::Quit, 0x07, 0x17),
        (Self::Noop, 0x0a, 0x0a),
    ];

    /// Of its loud form.
    pub(crate) fn of(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, loud, _)| *loud == byte).map(|&(opcode, ..)| opcode)
    }

    fn bytes(self) -> (u8, u8) {
        let found = Self::ALL.iter().find(|(opcode, ..)| *opcode == self);
        found.map(|&(_, loud, quiet)| (loud, quiet)).expect("all are there")
    }

    pub(crate) fn byte(self) -> u8 {
        self.bytes().0
    }

    pub(crate) fn quiet(self) -> u8 {
        self.bytes().1
    }

    /// Whether its quiet form omits a reply with that status.
    fn leaves_out(self, status: u16) -> bool {
        match self {
            Self::Get | Self::GetK => status == 1,
            _ => status == 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) magic: u8,
    pub(crate) opcode: u8,
    pub(crate) status: u16,
    pub(crate) opaque: u32,
    pub(crate) unique: u64,
    pub(crate) extras: &'a [u8],
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl<'a> Packet<'a> {
    pub(crate) const REQUEST: Self = Self {
        magic: 0x80,
        opcode: 0,
        status: 0,
        opaque: 0,
        unique: 0,
        extras: b"",
        key: b"",
        value: b"",
    };
    pub(crate) const REPLY: Self = Self { magic: 0x81, ..Self::REQUEST };

    /// The packet at the start of `bytes`, and its length, if it is complete.
    pub(crate) fn read(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let header = bytes.get(..HEADER_SIZE)?;
        let number = |at: usize, len: usize| {
            header[at..at + len].iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        let len = HEADER_SIZE + number(8, 4) as usize;
        let body = bytes.get(HEADER_SIZE..len)?;
        let (extras, rest) = body.split_at(header[4].into());
        let (key, value) = rest.split_at(number(2, 2) as usize);
        let packet = Self {
            magic: header[0],
            opcode: header[1],
            status: number(6, 2) as u16,
            opaque: number(12, 4) as u32,
            unique: number(16, 8),
            extras,
            key,
            value,
        };
        Some((packet, len))
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.magic, self.opcode];
        bytes.extend((self.key.len() as u16).to_be_bytes());
        bytes.extend([self.extras.len() as u8, 0]);
        bytes.extend(self.status.to_be_bytes());
        let body = self.extras.len() + self.key.len() + self.value.len();
        bytes.extend((body as u32).to_be_bytes());
        bytes.extend(self.opaque.to_be_bytes());
        bytes.extend(self.unique.to_be_bytes());
        [&bytes, self.extras, self.key, self.value].concat()
    }
}

/// The tag by which the oracle tracks all packets of a request.
pub(crate) fn tag_of(opaque: u32) -> [u8; 3] {
    let [a, b, c, _] = opaque.to_be_bytes();
    [a, b, c]
}

/// What a server must receive of a packet, of the many that a request may have for one key.
pub(crate) fn payload(opcode: u8, opaque: u32, value: &[u8]) -> Vec<u8> {
    [&[opcode, opaque.to_be_bytes()[3]], value].concat()
}

/// What a client gets for this reply if it sent the request quietly.
pub(crate) fn quieten(reply: &[u8]) -> Vec<u8> {
    let (packet, _) = Packet::read(reply).expect("models send packets");
    let opcode = Opcode::of(packet.opcode).expect("models know what they answer");
    match opcode.leaves_out(packet.status) {
        true => Vec::new(),
        false => Packet { opcode: opcode.quiet(), ..packet }.bytes(),
    }
}

/// What a client gets if it sent the packet of the payload quietly, and the gateway has read this.
pub(crate) fn shown(payload: &[u8], reply: &[u8]) -> Vec<u8> {
    let (packet, _) = Packet::read(reply).expect("it was read whole");
    quieten(&Packet { opcode: payload[0], ..packet }.bytes())
}
