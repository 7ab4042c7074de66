//! The proxy against an outside of the test's own: names, addresses and servers as it says.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpunion_protocol::egress::Contacts;
use gpunion_protocol::time::Millis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::decide::Policy;
use super::gate::Gate;
use super::ledger::Ledger;
use super::outside::Outside;
use super::proxy::Proxy;
use crate::config::clock;

const PUBLIC: &str = "93.184.216.34";
const LIMIT: Duration = Duration::from_secs(20);

/// Answers of each name, one after the other, the last again and again; and who was connected.
#[derive(Default)]
struct Script {
    names: Mutex<BTreeMap<String, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
    connected: Mutex<Vec<SocketAddr>>,
    /// The servers' ends of what was connected.
    servers: Mutex<Vec<DuplexStream>>,
}

struct Twin(Arc<Script>);

impl Outside for Twin {
    type Stream = DuplexStream;

    fn look_up(&self, name: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send {
        self.0.asked.lock().unwrap().push(name.to_owned());
        let mut names = self.0.names.lock().unwrap();
        let answer = names
            .get_mut(name)
            .map(|answers| if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() });
        std::future::ready(answer.ok_or_else(|| io::Error::other("no such name")))
    }

    fn own(&self) -> io::Result<Vec<IpAddr>> {
        Ok(vec![IpAddr::from([93, 184, 216, 99])])
    }

    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<DuplexStream>> + Send {
        self.0.connected.lock().unwrap().push(to);
        let (ours, theirs) = tokio::io::duplex(4096);
        self.0.servers.lock().unwrap().push(theirs);
        std::future::ready(Ok(ours))
    }
}

struct World {
    script: Arc<Script>,
    proxy: Arc<Proxy<Twin>>,
}

impl World {
    fn new(asked: &[&str], rule: &str) -> Self {
        let script = Arc::new(Script::default());
        let gate = Arc::new(Gate::default());
        gate.open_until(clock::boot() + Millis::from_secs(600));
        let proxy = Proxy {
            policy: Policy {
                asked: asked.iter().map(|name| name.parse().unwrap()).collect(),
                rule: rule.parse().unwrap(),
            },
            outside: Twin(Arc::clone(&script)),
            gate,
            ledger: Mutex::new(Ledger::from(&Contacts::default())),
        };
        Self { script, proxy: Arc::new(proxy) }
    }

    /// `answers`: addresses with commas between, one text for each look-up.
    fn name(&self, name: &str, answers: &[&str]) {
        let parse = |text: &&str| text.split(',').map(|ip| ip.parse().unwrap()).collect();
        self.script.names.lock().unwrap().insert(name.to_owned(), answers.iter().map(parse).collect());
    }

    /// A connection of the guest's.
    fn client(&self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(4096);
        tokio::spawn(Arc::clone(&self.proxy).serve(theirs, ()));
        ours
    }

    fn server(&self) -> DuplexStream {
        self.script.servers.lock().unwrap().pop().unwrap()
    }

    fn connected(&self) -> Vec<String> {
        self.script.connected.lock().unwrap().iter().map(ToString::to_string).collect()
    }

    fn books(&self) -> Contacts {
        self.proxy.ledger().contacts(clock::wall())
    }
}

/// Reads until the text ends so.
async fn until(stream: &mut DuplexStream, end: &str) -> String {
    let read = async {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let byte = stream.read_u8().await;
            text.push(byte.unwrap_or_else(|e| panic!("{e} after {:?}", String::from_utf8_lossy(&text))));
        }
        String::from_utf8(text).unwrap()
    };
    tokio::time::timeout(LIMIT, read).await.unwrap()
}

async fn ask(stream: &mut DuplexStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    until(stream, "\r\n\r\n").await
}

async fn connect(world: &World, to: &str) -> (DuplexStream, String) {
    let mut client = world.client();
    let answer = ask(&mut client, &format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")).await;
    (client, answer)
}

#[tokio::test]
async fn what_is_asked_for_and_allowed_is_tunnelled_both_ways_and_on_the_books() {
    let world = World::new(&["github.com"], "asked");
    world.name("github.com", &[PUBLIC]);
    let (mut client, answer) = connect(&world, "GitHub.com:443").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.connected(), [format!("{PUBLIC}:443")]);
    let mut server = world.server();
    client.write_all(b"hello").await.unwrap();
    assert_eq!(until(&mut server, "hello").await, "hello");
    server.write_all(b"good day").await.unwrap();
    assert_eq!(until(&mut client, "good day").await, "good day");
    // One side has said all; the other may still speak.
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
    server.write_all(b"!").await.unwrap();
    until(&mut client, "!").await;
    let books = world.books();
    let contact = &books.list[0];
    assert_eq!((contact.name.as_str(), contact.port, contact.up, contact.down), ("github.com", 443, 5, 9));
    assert_eq!((books.up, books.down, &contact.refused), (5, 9, &None));
}

#[tokio::test]
async fn every_way_to_what_is_near_the_owner_is_refused_with_a_sentence_and_connects_nothing() {
    let world = World::new(&["*.example.org", "inside.example.org:22"], "*.example.org,*.example.org:22");
    world.name("local.example.org", &["127.0.0.1"]);
    world.name("meta.example.org", &["169.254.169.254"]);
    world.name("lan.example.org", &["10.1.2.3"]);
    world.name("six.example.org", &["::ffff:192.168.0.1"]);
    world.name("both.example.org", &["93.184.216.34,10.0.0.1"]);
    world.name("own.example.org", &["93.184.216.99"]);
    world.name("other.com", &[PUBLIC]);
    for (to, sentence) in [
        ("local.example.org:443", "127.0.0.1, a loopback address"),
        ("meta.example.org:80", "169.254.169.254, a link-local address"),
        ("lan.example.org:443", "10.1.2.3, a private address"),
        ("six.example.org:443", "a private address"),
        ("both.example.org:443", "10.0.0.1, a private address"),
        ("own.example.org:443", "an address of the provider's own"),
        ("local.example.org:8080", "not in this job's [network] egress"),
        ("other.com:443", "other.com:443 is not in this job's"),
        ("10.1.2.3:443", "is an address"),
        ("[::1]:443", "is an address"),
        ("2130706433:80", "is an address"),
        ("localhost:80", "in full"),
        ("none.example.org:443", "was not reached"),
    ] {
        let (_client, answer) = connect(&world, to).await;
        assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 502"), "{to}: {answer}");
        assert!(answer.lines().next().unwrap().contains(sentence), "{to}: {answer}");
        assert!(answer.contains("application/problem+json"));
        let refused =
            world.books().list.iter().any(|c| c.refused.as_ref().is_some_and(|why| why.contains(sentence)));
        assert!(refused, "{to} is on the books: {:?}", world.books());
    }
    assert!(world.connected().is_empty());
    let asked = world.script.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|name| name.ends_with(".example.org")), "nothing else is looked up: {asked:?}");
}

#[tokio::test]
async fn a_name_that_changes_its_answer_is_looked_up_once_and_the_judged_address_is_connected() {
    let world = World::new(&["rebind.org"], "asked");
    world.name("rebind.org", &[PUBLIC, "127.0.0.1"]);
    let (_client, answer) = connect(&world, "rebind.org:443").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(world.connected(), [format!("{PUBLIC}:443")]);
    assert_eq!(world.script.asked.lock().unwrap().len(), 1);
    let (_client, answer) = connect(&world, "rebind.org:443").await;
    assert!(answer.contains("loopback"), "the next request is judged by the next answer: {answer}");
    assert_eq!(world.connected().len(), 1);
}

#[tokio::test]
async fn plain_requests_are_carried_as_a_server_expects_them_each_judged_by_itself() {
    let world = World::new(&["a.org", "b.org"], "asked");
    world.name("a.org", &[PUBLIC]);
    world.name("b.org", &["10.0.0.1"]);
    let mut client = world.client();
    let request = "POST http://user:word@a.org/x?y=1 HTTP/1.1\r\nHost: evil.org\r\nProxy-Connection: keep-alive\r\n\
                   Proxy-Authorization: Basic x\r\nConnection: X-Own\r\nX-Own: 1\r\nX-Kept: 2\r\nContent-Length: 4\r\n\r\nbody";
    client.write_all(request.as_bytes()).await.unwrap();
    let mut server = tokio::time::timeout(LIMIT, async {
        loop {
            if let Some(server) = world.script.servers.lock().unwrap().pop() {
                return server;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let seen = until(&mut server, "body").await.to_ascii_lowercase();
    assert!(seen.starts_with("post /x?y=1 http/1.1\r\n") && seen.contains("\r\nhost: a.org\r\n"), "{seen}");
    assert!(seen.contains("x-kept: 2") && !seen.contains("x-own") && !seen.contains("proxy-"), "{seen}");
    // A redirect is the program's to follow: the next request, on the same connection.
    server
        .write_all(b"HTTP/1.1 302 Found\r\nLocation: http://b.org/\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
        .await
        .unwrap();
    let answer = until(&mut client, "no").await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 302") && answer.contains("location: http://b.org/"), "{answer}");
    assert!(!answer.contains("connection: close"), "{answer}");
    let answer = ask(&mut client, "GET http://b.org/ HTTP/1.1\r\nHost: b.org\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("10.0.0.1, a private"), "{answer}");
    assert_eq!(world.connected(), [format!("{PUBLIC}:80")]);
}

#[tokio::test]
async fn what_is_no_request_to_a_proxy_is_told_so() {
    let world = World::new(&["a.org"], "asked");
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a.org\r\n\r\n", "400"),
        ("GET https://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n", "400"),
        ("CONNECT a.org HTTP/1.1\r\nHost: a.org\r\n\r\n", "400"),
        ("\x16\x03\x01 no HTTP at all\r\n\r\n", "400"),
    ] {
        let answer = ask(&mut world.client(), request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request:?}: {answer}");
    }
    assert!(world.connected().is_empty());
}

#[tokio::test]
async fn a_head_without_end_is_refused_in_bounded_memory() {
    let world = World::new(&["a.org"], "asked");
    let mut client = world.client();
    let line = format!("X-{}: 1\r\n", "a".repeat(1000));
    let writing = async {
        client.write_all(b"GET http://a.org/ HTTP/1.1\r\n").await?;
        for _ in 0..1_000_000 {
            client.write_all(line.as_bytes()).await?;
        }
        Ok::<_, io::Error>(())
    };
    assert!(tokio::time::timeout(LIMIT, writing).await.unwrap().is_err(), "the proxy hangs up");
}

#[tokio::test]
async fn the_end_of_the_lease_cuts_what_is_connected_and_refuses_until_it_is_renewed() {
    let world = World::new(&["a.org"], "asked");
    world.name("a.org", &[PUBLIC]);
    let (mut client, _) = connect(&world, "a.org:443").await;
    let mut server = world.server();
    // The very moment, before anybody has looked at the gate: no byte passes any more.
    world.proxy.gate.open_until(clock::boot());
    let _ = client.write_all(b"late").await;
    assert_eq!(server.read(&mut [0; 8]).await.unwrap_or(0), 0);
    let ended = tokio::time::timeout(LIMIT, client.read(&mut [0; 8])).await.unwrap();
    assert_eq!(ended.unwrap_or(0), 0);
    let (_client, answer) = connect(&world, "a.org:443").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("lease"), "{answer}");
    world.proxy.gate.open_until(clock::boot() + Millis::from_secs(60));
    assert!(connect(&world, "a.org:443").await.1.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn one_that_reads_nothing_holds_up_only_itself() {
    let world = World::new(&["a.org"], "asked");
    world.name("a.org", &[PUBLIC]);
    let (_slow, _) = connect(&world, "a.org:443").await;
    let mut flood = world.server();
    // As much as the buffers hold, and no more: then the server waits.
    let bytes = [7; 4096];
    let mut taken = 0;
    while tokio::time::timeout(Duration::from_millis(200), flood.write_all(&bytes)).await.is_ok() {
        taken += bytes.len();
        assert!(taken < 256 << 10, "{taken} bytes were taken for a reader that takes none");
    }
    let (mut quick, _) = connect(&world, "a.org:443").await;
    world.server().write_all(b"at once").await.unwrap();
    assert_eq!(until(&mut quick, "at once").await, "at once");
}
