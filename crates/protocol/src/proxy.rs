//! The header of HAProxy's PROXY protocol, versions 1 and 2, with which a connection may begin. A proxy tells with it
//! whose connection it passes on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How version 2 begins.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// How version 1 begins.
const WORD: &[u8] = b"PROXY ";
/// The longest line of version 1, with its end.
const LINE_MAX: usize = 107;
/// What comes before the addresses of version 2.
const FIXED_SIZE: usize = SIGNATURE.len() + 4;

/// The longest header that is taken. Version 2 could have 64 KiB of additional fields; those that are in use take a
/// few hundred bytes, unless a certificate is among them.
pub const HEADER_SIZE_MAX: usize = FIXED_SIZE + 8 * 1024;

/// What a header tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The connection is the proxy's own, as when it looks whether somebody listens, or it does not know whose.
    Own,
    /// It is of this client, who connected to that address.
    Passed { client: SocketAddr, to: SocketAddr },
}

/// This is no such header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The header at the start of what came, and its length; `None` if more has to come.
///
/// # Errors
/// If it cannot become one.
pub fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, Malformed> {
    match bytes.first() {
        None => Ok(None),
        Some(b'\r') => parse_binary(bytes),
        Some(_) => parse_line(bytes),
    }
}

/// Whether one is the beginning of the other.
fn agree(bytes: &[u8], with: &[u8]) -> bool {
    let len = bytes.len().min(with.len());
    bytes[..len] == with[..len]
}

fn parse_line(bytes: &[u8]) -> Result<Option<(Header, usize)>, Malformed> {
    if !agree(bytes, WORD) {
        return Err(Malformed);
    }
    let start = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(end) = memchr::memchr(b'\n', start) else {
        return if start.len() < LINE_MAX { Ok(None) } else { Err(Malformed) };
    };
    let line = start[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let line = str::from_utf8(line).map_err(|_| Malformed)?;
    let mut words = line.split(' ').skip(1);
    let header = match words.next() {
        // Whatever follows is to be ignored.
        Some("UNKNOWN") => Header::Own,
        Some("TCP4") => addresses::<Ipv4Addr>(words)?,
        Some("TCP6") => addresses::<Ipv6Addr>(words)?,
        _ => return Err(Malformed),
    };
    Ok(Some((header, end + 1)))
}

/// Both addresses, then both ports.
fn addresses<'a, A: std::str::FromStr + Into<IpAddr>>(
    words: impl Iterator<Item = &'a str>,
) -> Result<Header, Malformed> {
    let words: Vec<&str> = words.take(5).collect();
    let [client, to, client_port, to_port] = words[..] else { return Err(Malformed) };
    let address = |text: &str, port: &str| {
        let address: A = text.parse().map_err(|_| Malformed)?;
        let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_number).ok_or(Malformed)?;
        Ok(SocketAddr::new(address.into(), port))
    };
    Ok(Header::Passed { client: address(client, client_port)?, to: address(to, to_port)? })
}

/// The header as a line of text, of version 1.
pub fn line(header: Header) -> Vec<u8> {
    let Header::Passed { client, to } = header else { return b"PROXY UNKNOWN\r\n".to_vec() };
    let (client, to) = of_one_family(client, to);
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    let (hosts, ports) = ((client.ip(), to.ip()), (client.port(), to.port()));
    format!("PROXY {family} {} {} {} {}\r\n", hosts.0, hosts.1, ports.0, ports.1).into_bytes()
}

/// The header in binary, of version 2.
pub fn packet(header: Header) -> Vec<u8> {
    let mut packet = SIGNATURE.to_vec();
    let Header::Passed { client, to } = header else {
        // Whose it is, is not known.
        packet.extend_from_slice(&[0x21, 0, 0, 0]);
        return packet;
    };
    let (client, to) = of_one_family(client, to);
    let mut block = Vec::new();
    for host in [client.ip(), to.ip()] {
        match host {
            IpAddr::V4(host) => block.extend_from_slice(&host.octets()),
            IpAddr::V6(host) => block.extend_from_slice(&host.octets()),
        }
    }
    block.extend_from_slice(&client.port().to_be_bytes());
    block.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&[0x21, if client.is_ipv4() { 0x11 } else { 0x21 }]);
    packet.extend_from_slice(&(block.len() as u16).to_be_bytes());
    packet.extend_from_slice(&block);
    packet
}

/// The header in binary of a connection that the proxy makes for itself, as to look whether a server is there: the
/// command LOCAL. In text there is no such word but that of [`line`] for [`Header::Own`].
pub fn local_packet() -> Vec<u8> {
    let mut packet = SIGNATURE.to_vec();
    packet.extend_from_slice(&[0x20, 0, 0, 0]);
    packet
}

/// Both of IPv4, or both of IPv6: a header has one family.
fn of_one_family(client: SocketAddr, to: SocketAddr) -> (SocketAddr, SocketAddr) {
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let (client, to) = (canonical(client), canonical(to));
    let wide = |it: SocketAddr| match it.ip() {
        IpAddr::V4(host) => SocketAddr::new(host.to_ipv6_mapped().into(), it.port()),
        IpAddr::V6(_) => it,
    };
    match client.is_ipv4() == to.is_ipv4() {
        true => (client, to),
        false => (wide(client), wide(to)),
    }
}

fn parse_binary(bytes: &[u8]) -> Result<Option<(Header, usize)>, Malformed> {
    if !agree(bytes, &SIGNATURE) {
        return Err(Malformed);
    }
    let Some(&[command, family, high, low]) = bytes.get(SIGNATURE.len()..FIXED_SIZE) else {
        // The version is to be known at once: others are not waited for.
        let is_other = bytes.get(SIGNATURE.len()).is_some_and(|command| command >> 4 != 2);
        return if is_other { Err(Malformed) } else { Ok(None) };
    };
    let end = FIXED_SIZE + usize::from(u16::from_be_bytes([high, low]));
    if command >> 4 != 2 || end > HEADER_SIZE_MAX {
        return Err(Malformed);
    }
    let Some(block) = bytes.get(FIXED_SIZE..end) else { return Ok(None) };
    let header = match (command & 0xf, family) {
        (0, _) => Header::Own,
        // TCP, of each family. What follows the addresses are additional fields.
        (1, 0x11) => passed::<4>(block)?,
        (1, 0x21) => passed::<16>(block)?,
        // Families that have no addresses of hosts, or protocols other than TCP, do not concern us.
        (1, family) if family >> 4 <= 3 && family & 0xf <= 2 => Header::Own,
        _ => return Err(Malformed),
    };
    Ok(Some((header, end)))
}

/// Both addresses, each of so many bytes, then both ports.
fn passed<const SIZE: usize>(block: &[u8]) -> Result<Header, Malformed>
where
    IpAddr: From<[u8; SIZE]>,
{
    let (client, rest) = block.split_first_chunk::<SIZE>().ok_or(Malformed)?;
    let (to, rest) = rest.split_first_chunk::<SIZE>().ok_or(Malformed)?;
    let &[a, b, c, d] = rest.first_chunk::<4>().ok_or(Malformed)?;
    let address = |bytes: [u8; SIZE], port| SocketAddr::new(bytes.into(), u16::from_be_bytes(port));
    Ok(Header::Passed { client: address(*client, [a, b]), to: address(*to, [c, d]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let pairs = [
            ("10.1.2.3:4567", "192.168.0.1:80"),
            ("[2001:db8::1]:4567", "[2001:db8::2]:80"),
            ("[2001:db8::1]:4567", "192.168.0.1:80"),
            ("[::ffff:10.1.2.3]:1", "10.0.0.1:65535"),
        ];
        for (client, to) in pairs {
            let header =
                Header::Passed { client: client.parse().unwrap(), to: to.parse().unwrap() };
            let (line, packet) = (line(header), packet(header));
            let (as_line, len) = parse(&line).unwrap().unwrap();
            assert_eq!(len, line.len());
            let (as_packet, len) = parse(&packet).unwrap().unwrap();
            assert_eq!(len, packet.len());
            assert_eq!(as_line, as_packet);
            let Header::Passed { client: read, .. } = as_line else { panic!("{as_line:?}") };
            let canonical = |it: SocketAddr| (it.ip().to_canonical(), it.port());
            assert_eq!(canonical(read), canonical(client.parse().unwrap()));
        }
        assert_eq!(line(Header::Own), b"PROXY UNKNOWN\r\n");
        assert_eq!(parse(&packet(Header::Own)).unwrap().unwrap(), (Header::Own, 16));
        let header = Header::Passed {
            client: "10.1.2.3:4567".parse().unwrap(),
            to: "192.168.0.1:80".parse().unwrap(),
        };
        assert_eq!(line(header), b"PROXY TCP4 10.1.2.3 192.168.0.1 4567 80\r\n");
        let expected =
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\x01\x02\x03\xc0\xa8\0\x01\x11\xd7\0\x50";
        assert_eq!(packet(header), expected);
    }
}
