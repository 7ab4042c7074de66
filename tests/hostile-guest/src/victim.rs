//! Another guest of the same machine, which others must not reach. It opens all that one can
//! open, tries it on itself, so that it is known to be there, and waits.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;
use std::time::Duration;

use crate::{Outcome, reach, say, words};

pub(crate) const PORT: u16 = 47_011;

pub(crate) fn be(token: &str) {
    match open(token) {
        Ok(()) => say("victim ready"),
        Err(error) => say(&format!("victim failed: {error}")),
    }
    thread::sleep(Duration::from_secs(600));
}

fn open(token: &str) -> Result<(), String> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(words)?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"victim");
        }
    });
    let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).map_err(words)?;
    thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok((read, from)) = datagrams.recv_from(&mut bytes) {
            let _ = datagrams.send_to(&bytes[..read], from);
        }
    });
    let name = SocketAddr::from_abstract_name(token).map_err(words)?;
    let hidden = UnixListener::bind_addr(&name).map_err(words)?;
    let open = UnixListener::bind(format!("/workspace/{token}.sock")).map_err(words)?;
    for listener in [hidden, open] {
        thread::spawn(move || for _stream in listener.incoming() {});
    }
    for folder in ["/workspace", "/tmp", "/dev/shm"] {
        fs::write(format!("{folder}/{token}"), token).map_err(words)?;
    }
    let itself: [(&str, Outcome); 5] = [
        ("tcp", reach::tcp(&format!("127.0.0.1:{PORT}"))),
        ("udp", reach::udp(&format!("127.0.0.1:{PORT}"))),
        ("abstract", reach::abstract_socket(token)),
        ("find", reach::find(token, "/")),
        ("sockets", reach::sockets("/workspace", "")),
    ];
    for (what, outcome) in itself {
        outcome.map_err(|error| format!("{what}: {error}"))?;
    }
    Ok(())
}
