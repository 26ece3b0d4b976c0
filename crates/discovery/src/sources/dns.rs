//! A name in DNS, whose records are asked for again when their time is over.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use cashew_config::server_at;
use cashew_config::snapshot::{Address, DnsSource, Endpoint, Server};

use super::Source;
use super::dns_message::{Data, Kind, Record, Reply, UDP_SIZE, question, reply};

/// How long each server has to answer, each time. All of them are asked twice.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(750);
const ROUNDS: usize = 2;
const SERVERS_MAX: usize = 3;
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(600);
const DNS_PORT: u16 = 53;

pub(super) struct Dns {
    config: DnsSource,
    id: u16,
    /// When it is to be asked again.
    until: Instant,
}

impl Dns {
    pub(super) fn new(config: DnsSource) -> Self {
        Self { config, id: 0, until: Instant::now() }
    }

    /// Whom to ask.
    fn servers(&self) -> Result<Vec<SocketAddr>, String> {
        if let Some(Address { host, port }) = &self.config.server {
            let found = (host.as_str(), *port).to_socket_addrs();
            let found = found.map_err(|error| format!("{host}: {error}"))?;
            return Ok(found.take(SERVERS_MAX).collect());
        }
        let text = fs::read_to_string("/etc/resolv.conf");
        let found = name_servers(&text.map_err(|error| format!("/etc/resolv.conf: {error}"))?);
        // As the system's resolver does.
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        Ok(if found.is_empty() { vec![SocketAddr::new(local, DNS_PORT)] } else { found })
    }

    fn ask(&mut self, kind: Kind) -> Result<Vec<Record>, String> {
        let servers = self.servers()?;
        let mut why = "there is no server to ask".to_owned();
        for server in servers.iter().cycle().take(servers.len() * ROUNDS) {
            // Different ones at least; who can send us answers unseen can do worse.
            self.id = random_id(self.id);
            match ask_one(*server, self.id, &self.config.name, kind) {
                Ok(Reply { error: 0, records, .. }) => return Ok(records),
                Ok(Reply { error, .. }) => why = format!("{server} answers {}", name_of(error)),
                Err(error) => why = format!("{server}: {error}"),
            }
        }
        Err(why)
    }

    fn addresses(&mut self, port: u16) -> Result<(Vec<Server>, Duration), String> {
        let mut records = self.ask(Kind::A)?;
        records.extend(self.ask(Kind::Aaaa)?);
        let ttl = ttl_of(&records);
        let address = |record: Record| match record.data {
            Data::Address(address) => Some(SocketAddr::new(address, port)),
            Data::Service { .. } => None,
        };
        let server = |address: SocketAddr| {
            let (name, host) = (address.to_string(), address.ip().to_string());
            Server { name, endpoint: Endpoint::Tcp { host, port }, weight: 1, zone: None }
        };
        let found: BTreeMap<SocketAddr, Server> =
            records.into_iter().filter_map(address).map(|it| (it, server(it))).collect();
        Ok((found.into_values().collect(), ttl))
    }

    fn services(&mut self) -> Result<(Vec<Server>, Duration), String> {
        let records = self.ask(Kind::Srv)?;
        let ttl = ttl_of(&records);
        servers_of(records).map(|servers| (servers, ttl))
    }
}

impl Source for Dns {
    fn list(&mut self) -> Result<Vec<Server>, String> {
        let (servers, ttl) = match self.config.port {
            Some(port) => self.addresses(port)?,
            None => self.services()?,
        };
        if servers.is_empty() {
            // Also where the name is one of others' records.
            return Err(format!("{} has no such records", self.config.name));
        }
        self.until = Instant::now() + ttl;
        Ok(servers)
    }

    fn wait(&mut self) -> Result<Option<Vec<Server>>, String> {
        std::thread::sleep(self.until.saturating_duration_since(Instant::now()));
        Ok(None)
    }
}

/// Those of the lowest priority.
fn servers_of(records: Vec<Record>) -> Result<Vec<Server>, String> {
    let service = |record: Record| match record.data {
        // Without a target there is no such service.
        Data::Service { priority, weight, port, target } if !target.is_empty() => {
            Some((priority, weight, port, target))
        }
        Data::Service { .. } | Data::Address(_) => None,
    };
    let services: Vec<_> = records.into_iter().filter_map(service).collect();
    let lowest = services.iter().map(|(priority, ..)| *priority).min();
    let mut found = BTreeMap::new();
    for (_, weight, port, target) in services.into_iter().filter(|it| Some(it.0) == lowest) {
        // Servers of DNS may write a name in other letters each time, and it is the server's.
        let address = format!("{}:{port}", target.to_ascii_lowercase());
        let name = Some(address.clone());
        found.insert(address.clone(), server_at(&address, name, Some(weight.max(1).into()), None)?);
    }
    Ok(found.into_values().collect())
}

fn ttl_of(records: &[Record]) -> Duration {
    let lowest = records.iter().map(|record| record.ttl).min().unwrap_or_default();
    Duration::from_secs(lowest.into()).clamp(TTL_MIN, TTL_MAX)
}

fn ask_one(server: SocketAddr, id: u16, name: &str, kind: Kind) -> io::Result<Reply> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    let question = question(id, name, kind);
    let any = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(server)?;
    socket.send(&question)?;
    let mut bytes = vec![0; usize::from(UDP_SIZE)];
    loop {
        socket.set_read_timeout(Some(left(until)?))?;
        let size = socket.recv(&mut bytes)?;
        match reply(&bytes[..size], id, name, kind) {
            Some(Reply { is_truncated: true, .. }) => break,
            Some(reply) => return Ok(reply),
            // Of an earlier question, or somebody else's.
            None => {}
        }
    }
    ask_by_tcp(server, &question, until + ANSWER_TIMEOUT)
        .map(|bytes| reply(&bytes, id, name, kind))?
        .filter(|reply| !reply.is_truncated)
        .ok_or_else(|| io::Error::other("its answer is not understood"))
}

fn ask_by_tcp(server: SocketAddr, question: &[u8], until: Instant) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, left(until)?)?;
    stream.set_write_timeout(Some(left(until)?))?;
    let mut message = (question.len() as u16).to_be_bytes().to_vec();
    message.extend(question);
    stream.write_all(&message)?;
    let mut size = [0; 2];
    read_until(&mut stream, &mut size, until)?;
    let mut bytes = vec![0; usize::from(u16::from_be_bytes(size))];
    read_until(&mut stream, &mut bytes, until)?;
    Ok(bytes)
}

fn read_until(stream: &mut TcpStream, mut room: &mut [u8], until: Instant) -> io::Result<()> {
    while !room.is_empty() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(room)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            size => room = &mut room[size..],
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")),
        false => Ok(left),
    }
}

/// From what hash maps are keyed by, which the system has at random.
fn random_id(before: u16) -> u16 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(before) as u16
}

fn name_servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
        address.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, DNS_PORT))
    };
    text.lines().filter_map(server).take(SERVERS_MAX).collect()
}

fn name_of(error: u8) -> String {
    match error {
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        3 => "NXDOMAIN".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        error => format!("error {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_those_of_the_system() {
        let text = "# nameserver 9.9.9.9\nsearch a.b\nnameserver 10.0.0.1\n nameserver  ::1 # x\nnameserver x\n";
        let expected = ["10.0.0.1:53", "[::1]:53"].map(|it| it.parse().unwrap());
        assert_eq!(name_servers(text), expected);
    }

    #[test]
    fn services_of_the_lowest_priority_are_servers() {
        let record = |priority, weight, target: &str| Record {
            ttl: 0,
            data: Data::Service { priority, weight, port: 6379, target: target.to_owned() },
        };
        let records =
            vec![record(2, 1, "c.d"), record(1, 0, "a.b"), record(1, 3, "b.b"), record(0, 1, "")];
        assert_eq!(ttl_of(&records), TTL_MIN);
        let servers = servers_of(records).unwrap();
        let shown: Vec<_> = servers.iter().map(|it| (&*it.name, it.weight)).collect();
        assert_eq!(shown, [("a.b:6379", 1), ("b.b:6379", 3)]);
    }

    #[test]
    fn letters_of_targets_make_no_other_servers() {
        let shown = |targets: [&str; 2]| {
            let records = targets.map(|target| Record {
                ttl: 0,
                data: Data::Service { priority: 1, weight: 1, port: 6379, target: target.into() },
            });
            let servers = servers_of(records.into()).unwrap();
            servers.iter().map(|it| format!("{} {}", it.name, it.endpoint)).collect::<Vec<_>>()
        };
        assert_eq!(shown(["s1.A.b", "S2.a.B"]), shown(["S1.a.b", "s2.a.b"]));
        assert_eq!(shown(["s1.a.b", "S1.A.B"]), ["s1.a.b:6379 s1.a.b:6379"]);
    }

    #[test]
    fn who_does_not_answer_is_not_waited_for() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let server = Some(Address { host: "127.0.0.1".to_owned(), port });
        let mut dns = Dns::new(DnsSource { name: "a.b".to_owned(), port: Some(1), server });
        let start = Instant::now();
        assert!(dns.list().is_err());
        assert!(start.elapsed() >= ANSWER_TIMEOUT * 2);
    }
}
