//! Sentinels that are none, say too much, or say nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_discovery::{Members, News, ServerMaintenances, Watch, ask_once};

fn snapshot(ports: &[u16]) -> Snapshot {
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let yaml = format!(
        "alpha:\n  listen: 127.0.0.1:1\n  redis: true\n  sentinels: [{}]\n  servers:\n   - {{name: \
         s1, sentinel: mymaster}}\n",
        addresses.join(", ")
    );
    let context = cashew_config::Context::of_system();
    let loaded = cashew_config::parse("t.yml", &yaml, &context);
    loaded.unwrap_or_else(|errors| panic!("{errors}")).snapshot
}

/// Serves each connection in a thread of its own until the test ends.
fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(client));
        }
    });
    port
}

/// Waits for what is said of a Sentinel that fails.
fn failure(port: u16) -> String {
    let mut watch = Watch::new(&snapshot(&[port]), Instant::now());
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        watch.advance(Instant::now());
        while let Some(news) = watch.poll_news() {
            if let News::Sentinel { failure: Some(why), .. } = news {
                return why;
            }
        }
        watch.wait((&Members::default(), &ServerMaintenances::default()), &[], None).unwrap();
    }
    panic!("nothing is said");
}

/// Answers everything with this, for ever.
fn endless(text: &'static [u8]) -> impl Fn(TcpStream) + Clone + Send + 'static {
    move |mut client| {
        let mut buf = [0; 4096];
        while client.read(&mut buf).is_ok_and(|read| read > 0) {
            while client.write_all(text).is_ok() {}
        }
    }
}

#[test]
fn who_says_too_much_is_closed() {
    for text in [&b"*1000000\r\n$1\r\nx\r\n"[..], b"$2000000\r\nx", b"+xxxxxxxxxxxxxxxx"] {
        assert_eq!(failure(server(endless(text))), "answers with more than 1 MiB");
    }
}

#[test]
fn who_speaks_something_else_is_closed() {
    let port = server(endless(b"HTTP/1.1 400 Bad Request\r\n\r\n"));
    assert_eq!(failure(port), "does not speak Redis's protocol");
}

#[test]
fn who_says_nothing_is_given_up() {
    let port = server(|mut client| _ = client.read_to_end(&mut Vec::new()));
    assert_eq!(failure(port), "does not answer");
    // As a server that is stopped, whose kernel accepts.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(failure(listener.local_addr().unwrap().port()), "does not answer");
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert_eq!(failure(port), "refuses connections");
}

#[test]
fn who_closes_connections_is_not_connected_to_all_the_time() {
    // With an answer before, and without.
    for answer in [&b""[..], b"*-1\r\n-ERR No\r\n*0\r\n"] {
        let (accepted, count) = (Arc::new(AtomicU32::new(0)), Duration::from_secs(2));
        let seen = Arc::clone(&accepted);
        let port = server(move |mut client| {
            seen.fetch_add(1, Ordering::Relaxed);
            if !answer.is_empty() {
                let _ = client.read(&mut [0; 4096]);
                let _ = client.write_all(answer);
            }
        });
        ask_once(&mut snapshot(&[port]), count);
        // Two at a time, after 50 ms, 100, 200, 400, 800, and 1 s.
        let accepted = accepted.load(Ordering::Relaxed);
        assert!((4..=20).contains(&accepted), "{accepted}");
    }
}

#[test]
fn answers_that_make_no_sense_name_nothing() {
    let answers: [&[u8]; 5] =
        [b"+OK\r\n", b"*2\r\n$1\r\na\r\n$3\r\n999\r\n", b":1\r\n", b"*-1\r\n", b"*1\r\n*0\r\n"];
    for answer in answers {
        let port = server(move |mut client| {
            let mut buf = [0; 4096];
            while client.read(&mut buf).is_ok_and(|read| read > 0) {
                if client.write_all(&answer.repeat(3)).is_err() {
                    break;
                }
            }
        });
        let mut snapshot = snapshot(&[port]);
        let lines = ask_once(&mut snapshot, Duration::from_millis(300));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(snapshot.groups().all(|(.., endpoint)| endpoint.is_unknown()));
    }
}

#[test]
fn a_majority_is_found_at_once_though_others_are_silent_or_gone() {
    let names = |client: TcpStream| {
        let mut client = client;
        let mut buf = [0; 4096];
        while client.read(&mut buf).is_ok_and(|read| read > 0) {
            let answer = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n*2\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n*0\r\n";
            if client.write_all(answer).is_err() {
                break;
            }
        }
    };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let ports =
        [server(names), silent.local_addr().unwrap().port(), server(names), gone, server(names)];
    let mut snapshot = snapshot(&ports);
    let start = Instant::now();
    let lines = ask_once(&mut snapshot, Duration::from_secs(20));
    assert!(lines.is_empty(), "{lines:?}");
    assert!(start.elapsed() < Duration::from_secs(10));
    let (_, group, endpoint) = snapshot.groups().next().unwrap();
    assert_eq!((group.config_epoch, endpoint.to_string()), (Some(7), "127.0.0.1:6379".into()));
}

/// What is said of the only Sentinel in a minute of which each second takes some 20 ms.
fn told_in_a_minute(port: u16) -> Vec<Option<String>> {
    let start = Instant::now();
    let mut watch = Watch::new(&snapshot(&[port]), start);
    let mut told = Vec::new();
    for step in 0..1200 {
        watch.advance(start + Duration::from_millis(50) * step);
        while let Some(news) = watch.poll_news() {
            if let News::Sentinel { failure, .. } = news {
                told.push(failure);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    told
}

#[test]
fn a_connection_that_the_kernel_accepts_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let told = told_in_a_minute(listener.local_addr().unwrap().port());
    assert_eq!(told, [Some("does not answer".to_owned())]);
}

#[test]
fn who_answers_once_on_each_connection_is_told_of_once() {
    let answered = Arc::new(AtomicU32::new(0));
    let counter = answered.clone();
    let port = server(move |mut client| {
        let mut buf = [0; 4096];
        let read = client.read(&mut buf).unwrap_or(0);
        if buf[..read].windows(10).any(|word| word == b"GET-MASTER") {
            let _ = client.write_all(b"*-1\r\n-ERR No such master\r\n-ERR No such master\r\n");
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let _ = client.read_to_end(&mut Vec::new());
    });
    let told = told_in_a_minute(port);
    assert!(answered.load(Ordering::Relaxed) > 3, "{answered:?}");
    assert_eq!(told.iter().filter(|failure| failure.is_some()).count(), 1, "{told:?}");
    assert!(told.last().unwrap().is_some(), "{told:?}");
}
