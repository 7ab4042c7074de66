//! A little internet in namespaces of the test's own: names that answer as the test says, a server
//! on a made-up public address, and things near the owner that nobody may reach.
//!
//! All addresses lead to this machine, by routes that exist in the namespace alone; the servers
//! write down which address was reached for. Whatever this thread starts is inside too.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The server of the outside, and the provider's own address on the public internet.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(11, 0, 0, 5);
const OWN: &str = "11.9.9.9";
const DRIP: Duration = Duration::from_millis(20);

type Names = Arc<Mutex<BTreeMap<String, Vec<Ipv4Addr>>>>;

#[derive(Debug)]
pub(crate) struct Outside {
    shared: Arc<Shared>,
    names: Names,
    /// Of the authority that the HTTPS server's certificate is from.
    pub(crate) root: String,
    _folder: tempfile::TempDir,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Address and path of every request, and what became of a drip.
    seen: Vec<String>,
    released: bool,
}

impl Outside {
    /// From here on this thread, and all that it starts, is inside.
    pub(crate) fn enter() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).context("namespaces take root")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        ip("link set lo up")?;
        // By routes, and not by addresses: these are nobody's own.
        for route in ["11.0.0.0/24", "10.0.0.0/24", "169.254.169.254/32"] {
            ip(&format!("route add local {route} dev lo"))?;
        }
        ip(&format!("address add {OWN}/32 dev lo"))?;
        let folder = tempfile::tempdir()?;
        let resolver = folder.path().join("resolv.conf");
        std::fs::write(&resolver, "nameserver 127.0.0.1\nsearch inside.example\noptions attempts:1\n")?;
        let etc = Path::new("/etc/resolv.conf");
        mount(Some(&resolver), etc, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        let names = Names::default();
        let resolving = (UdpSocket::bind("127.0.0.1:53")?, Arc::clone(&names));
        std::thread::spawn(move || resolve(&resolving.0, &resolving.1));
        let shared = Arc::<Shared>::default();
        let (config, root) = certificate()?;
        for (port, config) in [(80, None), (443, Some(config))] {
            let (listener, shared) = (TcpListener::bind(("0.0.0.0", port))?, Arc::clone(&shared));
            std::thread::spawn(move || serve(&listener, config.as_ref(), &shared));
        }
        Ok(Self { shared, names, root, _folder: folder })
    }

    /// Each look-up has the next answer, and the last one again and again.
    pub(crate) fn name(&self, name: &str, answers: &[&str]) {
        let answers = answers.iter().map(|ip| ip.parse().unwrap()).collect();
        self.names.lock().unwrap().insert(name.to_owned(), answers);
    }

    pub(crate) fn own() -> &'static str {
        OWN
    }

    /// Lets go who asked for `/wait`.
    pub(crate) fn release(&self) {
        self.shared.state.lock().unwrap().released = true;
        self.shared.changed.notify_all();
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.shared.state.lock().unwrap().seen.clone()
    }

    pub(crate) fn has_seen(&self, what: &str) -> bool {
        self.seen().iter().any(|seen| seen == what)
    }
}

impl Shared {
    fn see(&self, what: String) {
        self.state.lock().unwrap().seen.push(what);
    }

    fn wait(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.released).unwrap());
    }
}

fn ip(words: &str) -> Result<()> {
    let done = Command::new("ip").args(words.split(' ')).output().context("starting ip (iproute2)")?;
    ensure!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

/// Answers for IPv4 alone. What is not known does not exist.
fn resolve(socket: &UdpSocket, names: &Names) {
    let mut query = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut query) {
        let Some((name, end)) = question(&query[..length]) else { continue };
        let is_v4 = query[end - 4..end - 2] == [0, 1];
        let mut names = names.lock().unwrap();
        let known = names.get_mut(&name);
        let exists = known.is_some();
        let answer = known.filter(|_| is_v4).and_then(|answers| {
            if answers.len() > 1 { Some(answers.remove(0)) } else { answers.first().copied() }
        });
        let mut reply = query[..2].to_vec();
        reply.extend([
            0x81,
            if exists { 0x80 } else { 0x83 },
            0,
            1,
            0,
            u8::from(answer.is_some()),
            0,
            0,
            0,
            0,
        ]);
        reply.extend(&query[12..end]);
        if let Some(address) = answer {
            reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            reply.extend(address.octets());
        }
        let _sent = socket.send_to(&reply, from);
    }
}

/// The name that is asked for, and where the question ends.
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    (at + 4 <= query.len()).then(|| (labels.join("."), at + 4))
}

fn certificate() -> Result<(Arc<ServerConfig>, String)> {
    let mut authority = rcgen::CertificateParams::new(Vec::new())?;
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    // Another name than the server's, or its certificate looks signed by itself.
    authority.distinguished_name.push(rcgen::DnType::CommonName, "the outside");
    authority.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    let authority_key = rcgen::KeyPair::generate()?;
    let root = authority.self_signed(&authority_key)?.pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate()?;
    let mut server = rcgen::CertificateParams::new(vec!["ok.example.org".to_owned()])?;
    // Python is strict about it.
    server.use_authority_key_identifier_extension = true;
    let certificate = server.signed_by(&key, &issuer)?;
    let private = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], private)?;
    Ok((Arc::new(config), root))
}

fn serve(listener: &TcpListener, config: Option<&Arc<ServerConfig>>, shared: &Arc<Shared>) {
    for stream in listener.incoming().flatten() {
        let (config, shared) = (config.cloned(), Arc::clone(shared));
        std::thread::spawn(move || {
            let Ok(at) = stream.local_addr() else { return };
            let place = at.to_string();
            let _ended = match config.and_then(|config| ServerConnection::new(config).ok()) {
                Some(tls) => answer(StreamOwned::new(tls, stream), &place, &shared),
                None => answer::<TcpStream>(stream, &place, &shared),
            };
        });
    }
}

fn answer<S: Read + Write>(stream: S, place: &str, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or("?").to_owned();
    while stream.read_line(&mut line)? > 2 {
        if line.ends_with("\r\n\r\n") {
            break;
        }
    }
    shared.see(format!("{place} {path}"));
    let stream = stream.get_mut();
    let body = match path.as_str() {
        "/to-lan" => return redirect(stream, "http://lan.example.org/"),
        "/to-literal" => return redirect(stream, "http://10.0.0.7/"),
        "/to-meta" => return redirect(stream, "http://169.254.169.254/latest/meta-data/"),
        "/to-self" => return redirect(stream, "http://ok.example.org/hello"),
        "/drip" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            while stream.write_all(b".").and_then(|()| stream.flush()).is_ok() {
                std::thread::sleep(DRIP);
            }
            shared.see("the drip was cut".to_owned());
            return Ok(());
        }
        "/wait" => {
            shared.wait();
            "you may go"
        }
        _ => "hello from outside",
    };
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    stream.flush()
}

fn redirect(stream: &mut impl Write, to: &str) -> io::Result<()> {
    write!(stream, "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n")?;
    stream.flush()
}
