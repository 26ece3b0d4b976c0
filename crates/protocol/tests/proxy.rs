//! The PROXY protocol's header: the examples of its specification, and what is none.

use std::net::{IpAddr, SocketAddr};

use cashew_protocol::proxy::{HEADER_SIZE_MAX, Header, Malformed, local_packet, parse};
use proptest::prelude::*;

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn binary(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([command, family]);
    bytes.extend((block.len() as u16).to_be_bytes());
    bytes.extend(block);
    bytes
}

fn passed(client: &str, to: &str) -> Header {
    Header::Passed { client: client.parse().unwrap(), to: to.parse().unwrap() }
}

#[test]
fn lines_are_read() {
    for (line, header) in [
        (
            "PROXY TCP4 192.168.0.1 10.0.0.11 56324 443",
            passed("192.168.0.1:56324", "10.0.0.11:443"),
        ),
        (
            "PROXY TCP4 255.255.255.255 0.0.0.0 65535 0",
            passed("255.255.255.255:65535", "0.0.0.0:0"),
        ),
        ("PROXY TCP6 2001:db8::1 ::1 1 2", passed("[2001:db8::1]:1", "[::1]:2")),
        ("PROXY UNKNOWN", Header::Own),
        ("PROXY UNKNOWN ffff::1 ffff::2 65535 65535", Header::Own),
    ] {
        let bytes = format!("{line}\r\nGET a\r\n").into_bytes();
        assert_eq!(parse(&bytes), Ok(Some((header, line.len() + 2))), "{line}");
    }
}

#[test]
fn a_connection_of_the_proxy_itself_says_so() {
    assert_eq!(local_packet(), binary(0x20, 0, &[]));
    assert_eq!(parse(&local_packet()), Ok(Some((Header::Own, 16))));
}

#[test]
fn what_is_no_line_is_refused() {
    for line in [
        "GET a",
        "PROXY",
        "PROXY  TCP4 1.2.3.4 1.2.3.4 1 2",
        "PROXY TCP4",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3",
        "PROXY TCP4 1.2.3.4 1.2.3.4 1 65536",
        "PROXY TCP4 1.2.3.4 1.2.3.4 +1 2",
        "PROXY TCP4 1.2.3.4 1.2.3.4  2",
        "PROXY TCP4 ::1 ::2 1 2",
        "PROXY TCP6 1.2.3.4 1.2.3.4 1 2",
        "PROXY UDP4 1.2.3.4 1.2.3.4 1 2",
        "proxy TCP4 1.2.3.4 1.2.3.4 1 2",
    ] {
        assert_eq!(parse(format!("{line}\r\n").as_bytes()), Err(Malformed), "{line}");
    }
    assert_eq!(parse(b"PROXY UNKNOWN\n"), Err(Malformed), "the line ends with CR and LF");
    let endless = [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat();
    assert_eq!(parse(&endless), Err(Malformed));
    assert_eq!(parse(&endless[..106]), Ok(None));
}

#[test]
fn binary_headers_are_read() {
    let four = [1, 2, 3, 4, 5, 6, 7, 8, 0x12, 0x34, 0, 80];
    let header = passed("1.2.3.4:4660", "5.6.7.8:80");
    assert_eq!(parse(&binary(0x21, 0x11, &four)), Ok(Some((header, 28))));
    // Additional fields: a name that was asked for.
    let with_fields = [&four[..], &[2, 0, 3, b'a', b'.', b'b']].concat();
    let mut bytes = binary(0x21, 0x11, &with_fields);
    bytes.extend(b"*1\r\n$4\r\nPING\r\n");
    assert_eq!(parse(&bytes), Ok(Some((header, 34))));
    let mut six = [0; 36];
    (six[15], six[31], six[33], six[35]) = (1, 2, 9, 10);
    assert_eq!(parse(&binary(0x21, 0x21, &six)), Ok(Some((passed("[::1]:9", "[::2]:10"), 52))));
    for (command, family, block) in [
        (0x20, 0x00, &[][..]),
        (0x20, 0x11, &four),
        (0x21, 0x00, &[]),
        (0x21, 0x12, &four),
        (0x21, 0x31, &[0; 216]),
    ] {
        let bytes = binary(command, family, block);
        assert_eq!(parse(&bytes), Ok(Some((Header::Own, bytes.len()))), "{command:x} {family:x}");
    }
}

#[test]
fn what_is_no_binary_header_is_refused() {
    let four = [0; 12];
    for bytes in [
        binary(0x11, 0x11, &four),
        binary(0x22, 0x11, &four),
        binary(0x21, 0x41, &four),
        binary(0x21, 0x13, &four),
        binary(0x21, 0x11, &four[1..]),
        binary(0x21, 0x21, &[0; 35]),
        binary(0x21, 0x11, &vec![0; HEADER_SIZE_MAX]),
        b"\r\n\r\n\0\r\nQUIT\r".to_vec(),
        [SIGNATURE, &[0x31]].concat(),
    ] {
        assert_eq!(parse(&bytes), Err(Malformed), "{bytes:?}");
    }
}

fn header() -> impl Strategy<Value = (Vec<u8>, Header)> {
    let address = any::<(IpAddr, u16)>().prop_map(|(ip, port)| SocketAddr::new(ip, port));
    (
        any::<bool>(),
        address,
        any::<(u16, [u8; 16])>(),
        proptest::collection::vec(any::<u8>(), 0..40),
    )
        .prop_map(|(is_line, client, (port, octets), fields)| {
            let to_ip = match client.ip() {
                IpAddr::V4(_) => IpAddr::from(octets.first_chunk::<4>().copied().unwrap()),
                IpAddr::V6(_) => IpAddr::from(octets),
            };
            let to = SocketAddr::new(to_ip, port);
            let header = Header::Passed { client, to };
            let name = if client.is_ipv4() { "TCP4" } else { "TCP6" };
            if is_line {
                let (from, ports) = (client.ip(), (client.port(), port));
                let line = format!("PROXY {name} {from} {to_ip} {} {}\r\n", ports.0, ports.1);
                return (line.into_bytes(), header);
            }
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            let ports = [client.port().to_be_bytes(), port.to_be_bytes()].concat();
            let block = [octets(client.ip()), octets(to_ip), ports, fields].concat();
            (binary(0x21, if client.is_ipv4() { 0x11 } else { 0x21 }, &block), header)
        })
}

proptest! {
    /// Whatever is split or follows.
    #[test]
    fn a_header_is_found_when_it_is_whole((bytes, header) in header(), rest: Vec<u8>) {
        for len in 0..bytes.len() {
            prop_assert_eq!(parse(&bytes[..len]), Ok(None));
        }
        let all = [&bytes[..], &rest].concat();
        prop_assert_eq!(parse(&all), Ok(Some((header, bytes.len()))));
    }

    /// What is refused stays so, and what is waited for is short.
    #[test]
    fn any_bytes_are_judged(start in 0..4_usize, tail in proptest::collection::vec(any::<u8>(), 0..300)) {
        let start = [&b""[..], b"PROXY ", b"PROXY TCP4 ", SIGNATURE][start];
        let bytes = [start, &tail].concat();
        let mut was_refused = false;
        for len in 0..=bytes.len() {
            match parse(&bytes[..len]) {
                Ok(Some((_, end))) => {
                    prop_assert!(end == len && !was_refused);
                    return Ok(());
                }
                Ok(None) => prop_assert!(!was_refused && len < HEADER_SIZE_MAX),
                Err(Malformed) => was_refused = true,
            }
        }
    }
}
