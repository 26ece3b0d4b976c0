//! Two streams that speak with each other, and what may go wrong between them.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cashew_tls::{
    Acceptor, Certificate, Ciphers, ClientAuth, ClientNames, ClientUser, Connector, Failure,
    Identity, ListenerTls, Security, ServerTls, Stream, TicketSecret, Version,
};

#[path = "../../../tests/rust/certificates.rs"]
mod certificates;

use certificates::{Authority, Pair};

fn identity(pair: &Pair) -> Identity {
    let Certificate { names, expires_at, .. } = Certificate::of_pem(&pair.certificate).unwrap();
    Identity {
        file: "leaf.crt".to_owned(),
        key_file: "leaf.key".to_owned(),
        chain: pair.certificate.clone(),
        key: pair.key.clone(),
        names,
        expires_at,
    }
}

fn listener(pairs: &[Pair]) -> ListenerTls {
    ListenerTls {
        identities: pairs.iter().map(identity).collect(),
        client_ca: None,
        client_auth: ClientAuth::None,
        client_user: ClientUser::Off,
        client_names: ClientNames::default(),
        min_version: Version::Tls12,
        ciphers: Ciphers::Default,
        handshake_timeout_ms: 10_000,
        hand_over: true,
    }
}

fn server(authority: &Authority) -> ServerTls {
    ServerTls {
        ca: authority.certificate(),
        server_name: None,
        identity: None,
        verify: true,
        min_version: Version::Tls12,
        ciphers: Ciphers::Default,
        mark: 0,
        trust_mark: 0,
    }
}

/// One end, with what it has received and not read yet, and what it has read.
struct End {
    stream: Stream,
    input: Vec<u8>,
    plain: Vec<u8>,
    out: Vec<u8>,
    is_ended: bool,
}

impl End {
    fn new(stream: Stream) -> Self {
        Self { stream, input: vec![], plain: vec![], out: vec![], is_ended: false }
    }

    fn process(&mut self) -> Result<(), Failure> {
        let progress = self.stream.process(&mut self.input, &mut self.plain, &mut self.out)?;
        self.input.drain(..progress.consumed);
        self.is_ended = progress.is_ended;
        Ok(())
    }

    fn say(&mut self, plain: &[u8]) {
        self.stream.encrypt(plain, &mut self.input, &mut self.out).unwrap();
    }
}

struct Pipe {
    gateway: End,
    peer: End,
}

impl Pipe {
    fn new(acceptor: &Acceptor, connector: &Connector, host: &str) -> Self {
        Self {
            gateway: End::new(Stream::accept(acceptor).unwrap()),
            peer: End::new(Stream::connect(connector, Some(host)).unwrap()),
        }
    }

    /// Until both have nothing to say; what each failed with. Bytes go in pieces of this size.
    fn run(&mut self, piece: usize) -> (Option<Failure>, Option<Failure>) {
        let (mut gateway, mut peer) = (None, self.peer.process().err());
        while !(self.gateway.out.is_empty() && self.peer.out.is_empty()) {
            let len = self.peer.out.len().min(piece);
            self.gateway.input.extend(self.peer.out.drain(..len));
            gateway = gateway.or(self.gateway.process().err());
            let len = self.gateway.out.len().min(piece);
            self.peer.input.extend(self.gateway.out.drain(..len));
            peer = peer.or(self.peer.process().err());
        }
        (gateway, peer)
    }
}

impl Pipe {
    /// The gateway's end goes on elsewhere, in the form that another process gets.
    fn move_gateway(&mut self) {
        let other = Stream::accept(&acceptor(&listener(&[]))).unwrap();
        let stream = std::mem::replace(&mut self.gateway.stream, other);
        let parted = stream.part().expect("it may go");
        let json = serde_json::to_vec(&parted).unwrap();
        let parted = serde_json::from_slice(&json).unwrap();
        self.gateway.stream = Stream::resume(parted).unwrap();
    }
}

#[test]
fn a_connection_goes_on_elsewhere() {
    let authority = Authority::new();
    let pair = authority.sign("DNS:localhost", 10);
    let options = &server(&authority);
    for ciphers in [Ciphers::Default, Ciphers::Strong] {
        for piece in [1, 1000, usize::MAX] {
            let acceptor = ListenerTls { ciphers, ..listener(std::slice::from_ref(&pair)) };
            let connector = Connector::new(options).unwrap();
            let mut pipe = Pipe::new(&self::acceptor(&acceptor), &connector, "localhost");
            assert_eq!(pipe.run(piece), (None, None));
            let mut heard = Vec::new();
            let value: Vec<u8> = (0..40_000_u32).map(|it| it as u8).collect();
            for round in 0..5 {
                pipe.gateway.say(&value);
                pipe.peer.say(&value);
                assert_eq!(pipe.run(piece), (None, None), "{round}");
                heard.extend(std::mem::take(&mut pipe.gateway.plain));
                if round != 3 {
                    // In the middle of a record, too.
                    pipe.peer.say(b"across");
                    let len = pipe.peer.out.len() / 2;
                    pipe.gateway.input.extend(pipe.peer.out.drain(..len));
                    pipe.gateway.process().unwrap();
                    pipe.move_gateway();
                    assert_eq!(pipe.run(piece), (None, None), "{round}");
                    assert_eq!(std::mem::take(&mut pipe.gateway.plain), b"across");
                }
            }
            assert!(heard == value.repeat(5) && pipe.peer.plain == value.repeat(5));
            pipe.peer.say(b"last");
            let End { stream, input, out, .. } = &mut pipe.peer;
            stream.close(input, out);
            assert_eq!(pipe.run(piece), (None, None));
            assert!(pipe.gateway.is_ended && pipe.gateway.plain == b"last");
            pipe.move_gateway();
            pipe.gateway.say(b"words");
            let End { stream, input, out, .. } = &mut pipe.gateway;
            stream.close(input, out);
            assert_eq!(pipe.run(piece), (None, None));
            assert!(pipe.peer.plain.ends_with(b"words") && pipe.peer.is_ended);
        }
    }
}

#[test]
fn what_is_forged_ends_a_connection_that_has_moved() {
    let authority = Authority::new();
    let options = listener(&[authority.sign("DNS:localhost", 10)]);
    let connector = Connector::new(&server(&authority)).unwrap();
    let mut forgeries = vec![
        vec![23, 3, 3, 0, 0],
        vec![23, 3, 3, 0, 15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        vec![23, 9, 3, 0, 0],
        vec![23, 3, 3, 255, 255],
        vec![20, 3, 3, 0, 1, 1],
    ];
    for at in 0..27 {
        forgeries.push(vec![255; at]);
    }
    for forgery in forgeries {
        let mut pipe = Pipe::new(&acceptor(&options), &connector, "localhost");
        assert_eq!(pipe.run(usize::MAX), (None, None));
        pipe.move_gateway();
        pipe.peer.say(b"x");
        let mut record = std::mem::take(&mut pipe.peer.out);
        match forgery.first() {
            // A bit of a record that was right.
            Some(255) | None => *record.get_mut(forgery.len()).unwrap_or(&mut 0) ^= 64,
            Some(_) => record = forgery.clone(),
        }
        pipe.gateway.input = record;
        match pipe.gateway.process() {
            // One that was made longer is waited for.
            Ok(()) => assert!(pipe.gateway.plain.is_empty() || forgery.len() >= 23, "{forgery:?}"),
            Err(why) => {
                assert_eq!(why, Failure::Broken);
                assert_eq!(pipe.gateway.process(), Err(why));
            }
        }
    }
}

fn acceptor(options: &ListenerTls) -> Acceptor {
    Acceptor::new(options, TicketSecret::random().as_ref()).unwrap()
}

#[test]
fn bytes_come_through_however_they_are_split() {
    let authority = Authority::new();
    let pair = authority.sign("DNS:localhost", 10);
    for version in [Version::Tls12, Version::Tls13] {
        for piece in [1, 7, 1000, usize::MAX] {
            let acceptor = acceptor(&listener(std::slice::from_ref(&pair)));
            let connector = match version {
                Version::Tls13 => ServerTls { min_version: version, ..server(&authority) },
                Version::Tls12 => server(&authority),
            };
            let mut pipe = Pipe::new(&acceptor, &Connector::new(&connector).unwrap(), "localhost");
            assert_eq!(pipe.run(piece), (None, None));
            assert!(!pipe.gateway.stream.is_handshaking() && !pipe.peer.stream.is_handshaking());
            let value: Vec<u8> = (0..70_000_u32).map(|it| it as u8).collect();
            pipe.peer.say(b"question");
            pipe.gateway.say(&value);
            pipe.gateway.say(b"");
            assert_eq!(pipe.run(piece), (None, None));
            assert_eq!(pipe.gateway.plain, b"question");
            assert!(pipe.peer.plain == value, "the value is whole");
            // Each side can still say something when the other has ended.
            let End { stream, input, out, .. } = &mut pipe.peer;
            stream.close(input, out);
            assert_eq!(pipe.run(piece), (None, None));
            assert!(pipe.gateway.is_ended && !pipe.peer.is_ended);
            pipe.gateway.say(b"last words");
            let End { stream, input, out, .. } = &mut pipe.gateway;
            stream.close(input, out);
            assert_eq!(pipe.run(piece), (None, None));
            assert!(pipe.peer.plain.ends_with(b"last words") && pipe.peer.is_ended);
        }
    }
}

#[test]
fn certificates_that_are_not_to_be_trusted_are_told_apart() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (names, days, host, by, why) in [
        ("DNS:localhost", 10, "localhost", &authority, None),
        ("DNS:*.cache.test", 10, "a.cache.test", &authority, None),
        ("IP:127.0.0.1", 10, "127.0.0.1", &authority, None),
        ("IP:::1", 10, "::1", &authority, None),
        ("DNS:localhost", 10, "127.0.0.1", &authority, Some(Failure::WrongName)),
        ("DNS:elsewhere", 10, "localhost", &authority, Some(Failure::WrongName)),
        ("DNS:localhost", 10, "localhost", &other, Some(Failure::Untrusted)),
        ("DNS:localhost", -1, "localhost", &authority, Some(Failure::Expired)),
    ] {
        let acceptor = acceptor(&listener(&[by.sign(names, days)]));
        let mut pipe = Pipe::new(&acceptor, &Connector::new(&server(&authority)).unwrap(), host);
        let (gateway, peer) = pipe.run(usize::MAX);
        assert_eq!(peer, why, "{names}, {days}, {host}");
        // The other side hears of it.
        let heard = why.is_some().then_some(());
        assert_eq!(gateway.map(|_| ()), heard, "{names}, {days}, {host}");
        let options = ServerTls { verify: false, ca: String::new(), ..server(&authority) };
        let mut pipe = Pipe::new(&acceptor, &Connector::new(&options).unwrap(), host);
        assert_eq!(pipe.run(usize::MAX), (None, None));
    }
    let named = ServerTls { server_name: Some("elsewhere".to_owned()), ..server(&authority) };
    let acceptor = acceptor(&listener(&[authority.sign("DNS:elsewhere", 10)]));
    let mut pipe = Pipe::new(&acceptor, &Connector::new(&named).unwrap(), "10.0.0.1");
    assert_eq!(pipe.run(usize::MAX), (None, None));
}

#[test]
fn a_client_shows_a_certificate_where_one_is_wanted() {
    let (authority, other) = (Authority::new(), Authority::new());
    let pair = authority.sign("DNS:localhost", 10);
    let own = |by: &Authority, days| Some(identity(&by.sign("DNS:client", days)));
    use ClientAuth::{Optional, Required};
    for (wanted, shown, why) in [
        (Required, own(&authority, 10), None),
        (Required, None, Some(Failure::NoCertificate)),
        (Required, own(&other, 10), Some(Failure::Untrusted)),
        (Required, own(&authority, -1), Some(Failure::Expired)),
        (Optional, None, None),
        (Optional, own(&authority, 10), None),
        (Optional, own(&other, 10), Some(Failure::Untrusted)),
    ] {
        let options = ListenerTls {
            client_ca: Some(authority.certificate()),
            client_auth: wanted,
            ..listener(std::slice::from_ref(&pair))
        };
        let what = format!("{wanted:?}, {shown:?}");
        let connector = ServerTls { identity: shown, ..server(&authority) };
        let connector = Connector::new(&connector).unwrap();
        let mut pipe = Pipe::new(&acceptor(&options), &connector, "localhost");
        let (gateway, peer) = pipe.run(usize::MAX);
        assert_eq!(gateway, why, "{what}");
        assert_eq!(peer, why.map(|_| Failure::Refused), "{what}");
    }
}

#[test]
fn what_is_no_tls_or_an_old_version_is_refused() {
    let authority = Authority::new();
    let pair = authority.sign("DNS:localhost", 10);
    let options = ListenerTls { min_version: Version::Tls13, ..listener(&[pair]) };
    let old_hello =
        [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 1][..], &[7; 32], &[0, 0, 2, 0, 47, 1, 0]].concat();
    for (bytes, why) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], Failure::NotTls),
        (b"get a\r\n", Failure::NotTls),
        (&[0x80, 0, 0, 0, 0, 0, 0, 0], Failure::NotTls),
        (&[22, 3, 1, 0, 4, 9, 9, 9, 9], Failure::Broken),
        (&old_hello, Failure::NothingInCommon),
    ] {
        let mut end = End::new(Stream::accept(&acceptor(&options)).unwrap());
        end.input = bytes.to_vec();
        assert_eq!(end.process(), Err(why), "{bytes:?}");
        // If it is told, then by an alert; and the stream stays broken.
        assert!(end.out.first().is_none_or(|first| *first == 21), "{bytes:?}");
        assert_eq!(end.process(), Err(why));
        assert_eq!(end.stream.encrypt(b"x", &mut [], &mut end.out), Err(why));
    }
}

#[test]
fn a_session_is_resumed_by_whoever_has_the_secret() {
    let authority = Authority::new();
    let options = listener(&[authority.sign("DNS:localhost", 10)]);
    let secret = TicketSecret::random().unwrap();
    let one = Acceptor::new(&options, Some(&secret)).unwrap();
    let other = Acceptor::new(&options, Some(&secret)).unwrap();
    let stranger = Acceptor::new(&options, TicketSecret::random().as_ref()).unwrap();
    let without = Acceptor::new(&options, None).unwrap();
    let connector = Connector::new(&server(&authority)).unwrap();
    let resumes = |acceptor| {
        let mut pipe = Pipe::new(acceptor, &connector, "localhost");
        assert_eq!(pipe.run(usize::MAX), (None, None));
        let facts = [&pipe.gateway, &pipe.peer].map(|end| end.stream.facts().unwrap());
        assert_eq!(facts.map(|it| it.version), [Version::Tls13; 2]);
        assert_eq!(facts[0].is_resumed, facts[1].is_resumed);
        facts[0].is_resumed
    };
    assert!(!resumes(&one));
    assert!(resumes(&other) && resumes(&one));
    assert!(!resumes(&stranger) && !resumes(&without));
}

#[test]
fn a_certificate_is_chosen_by_the_name_that_a_client_asks_for() {
    let authority = Authority::new();
    let names = ["DNS:a.test", "DNS:b.test,DNS:*.b.test"];
    let pairs = names.map(|names| authority.sign(names, 10));
    let acceptor = acceptor(&listener(&pairs));
    let connector = Connector::new(&server(&authority)).unwrap();
    for (host, fits) in [
        ("a.test", true),
        ("B.test", true),
        ("x.b.test", true),
        ("x.y.b.test", false),
        ("c.test", false),
    ] {
        let mut pipe = Pipe::new(&acceptor, &connector, host);
        let why = (!fits).then_some(Failure::WrongName);
        assert_eq!(pipe.run(usize::MAX).1, why, "{host}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused() {
    let authority = Authority::new();
    let (one, other) = (authority.sign("DNS:a", 10), authority.sign("DNS:b,IP:10.0.0.1", 10));
    assert_eq!(Certificate::of_pem(&other.certificate).unwrap().names, ["b", "10.0.0.1"]);
    let refusal = |chain: &str, key: &str| {
        let pair = Pair { certificate: one.certificate.clone(), key: key.to_owned() };
        let mut options = listener(&[pair]);
        options.identities[0].chain = chain.to_owned();
        Acceptor::new(&options, None).unwrap_err()
    };
    let reasons: HashSet<String> = [
        refusal(&one.key, &one.key),
        refusal(&one.certificate, &one.certificate),
        refusal(&one.certificate, &other.key),
    ]
    .into();
    let expected = [
        "leaf.crt has no certificate in PEM form",
        "leaf.key has no private key in PEM form, or only one with a passphrase",
        "leaf.key is not the key of the certificate",
    ];
    assert_eq!(reasons, expected.map(str::to_owned).into());
    let wanted = ListenerTls { client_auth: ClientAuth::Required, ..listener(&[one]) };
    assert_eq!(Acceptor::new(&wanted, None).unwrap_err(), "client_auth needs client_ca");
    let nobody = ServerTls { ca: "x".to_owned(), ..server(&authority) };
    assert_eq!(Connector::new(&nobody).unwrap_err(), "ca has no certificate in PEM form");
}

/// A server that says all it hears once more, until its client has left.
fn echo(acceptor: &Acceptor, mut socket: UnixStream) {
    let mut end = End::new(Stream::accept(acceptor).unwrap());
    let mut chunk = [0; 7000];
    loop {
        let Ok(read @ 1..) = socket.read(&mut chunk) else { return };
        end.input.extend_from_slice(&chunk[..read]);
        let failed = end.process().is_err();
        if !end.plain.is_empty() {
            let plain = std::mem::take(&mut end.plain);
            end.say(&plain);
        }
        if socket.write_all(&end.out).is_err() || failed {
            return;
        }
        end.out.clear();
    }
}

fn echoed(security: &Security, acceptor: &Acceptor, waits: bool) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(!waits).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| echo(acceptor, theirs));
        let mut secured = security.secure(ours, Some("server")).unwrap();
        let said: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        // Before the handshake, and after it.
        for said in [&said[..10], &said[..], &said[..1]] {
            let (mut heard, mut chunk) = (Vec::new(), [0; 5000]);
            secured.write_all(said).unwrap();
            while heard.len() < said.len() {
                match secured.read(&mut chunk) {
                    Ok(read) => heard.extend_from_slice(&chunk[..read]),
                    Err(error) if !waits && error.kind() == ErrorKind::WouldBlock => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(heard == said);
            assert!(!secured.is_writing());
        }
        let _ = secured.socket().shutdown(std::net::Shutdown::Both);
    });
}

#[test]
fn a_secured_socket_reads_and_writes_as_one_without_tls() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&listener(&[authority.sign("DNS:server", 10)]), None).unwrap();
    let security = Security::new(server(&authority));
    echoed(&security, &acceptor, true);
    echoed(&security, &acceptor, false);
}

#[test]
fn a_secured_socket_says_what_is_wrong_and_sends_nothing_before() {
    let authority = Authority::new();
    let acceptor = Acceptor::new(&listener(&[authority.sign("DNS:server", 10)]), None).unwrap();
    let security = Security::new(server(&Authority::new()));
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&acceptor, theirs));
        let mut secured = security.secure(ours, Some("server")).unwrap();
        secured.write_all(b"AUTH secret").unwrap();
        let error = secured.read(&mut [0; 10]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "has a certificate that is not signed by a trusted authority"
        );
        drop(secured);
    });
    // A peer without TLS sees no word of it either.
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut secured = security.secure(ours, Some("server")).unwrap();
    secured.write_all(b"AUTH secret").unwrap();
    theirs.write_all(b"-ERR what?\r\n").unwrap();
    let error = secured.read(&mut [0; 10]).unwrap_err();
    assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::InvalidData, "does not speak TLS"));
    drop(secured);
    let mut heard = Vec::new();
    theirs.read_to_end(&mut heard).unwrap();
    assert!(!heard.windows(6).any(|word| word == b"secret"));
}
