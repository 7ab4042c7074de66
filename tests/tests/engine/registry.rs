//! The smallest registry that an engine pulls from: one image, over plain HTTP on loopback. It
//! answers every tag and digest with that image, as a broken or hostile one would.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::json;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

pub(crate) struct Registry {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    pub(crate) digest: String,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Registry {
    /// Its image: busybox, and a volume at `/vol` with a file in it.
    pub(crate) fn start(home: &Path) -> Self {
        let stage = home.join("stage");
        fs::create_dir_all(stage.join("vol")).unwrap();
        fs::copy("/bin/busybox", stage.join("busybox")).unwrap();
        fs::write(stage.join("vol/given"), "GIVEN\n").unwrap();
        let layer = home.join("layer.tar");
        let made = Command::new("tar")
            .arg("-cf")
            .arg(&layer)
            .arg("-C")
            .arg(&stage)
            .args(["busybox", "vol"])
            .status();
        assert!(made.unwrap().success());
        let layer = fs::read(&layer).unwrap();
        let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {
                "Entrypoint": ["/busybox"], "Cmd": ["echo", "HELLO"], "WorkingDir": "/vol", "Volumes": {"/vol": {}},
            },
            "rootfs": {"type": "layers", "diff_ids": [sha256(home, &layer)]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": config.len(), "digest": sha256(home, &config),
            },
            "layers": [{
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": layer.len(), "digest": sha256(home, &layer),
            }],
        });
        let manifest = manifest.to_string().into_bytes();
        let digest = sha256(home, &manifest);
        let blobs = BTreeMap::from([(sha256(home, &config), config), (sha256(home, &layer), layer)]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let ends = Arc::new(AtomicBool::new(false));
        let (ended, named) = (Arc::clone(&ends), digest.clone());
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                // An engine first tries TLS, which is answered as nonsense, and goes on in plain.
                let _ = stream.and_then(|stream| answer(stream, &manifest, &named, &blobs));
            }
        });
        Self { address, digest, ends, thread: Some(thread) }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(&self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn answer(
    stream: TcpStream,
    manifest: &[u8],
    digest: &str,
    blobs: &BTreeMap<String, Vec<u8>>,
) -> std::io::Result<()> {
    let mut read = BufReader::new(stream.try_clone()?);
    let mut bytes = Vec::new();
    read.read_until(b'\n', &mut bytes)?;
    let line = String::from_utf8_lossy(&bytes).into_owned();
    let mut header = String::new();
    while line.starts_with(['G', 'H']) && read.read_line(&mut header)? > 2 {
        header.clear();
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    let (status, kind, body): (_, _, &[u8]) = match blobs.get(last) {
        Some(blob) => ("200 OK", "application/octet-stream", blob),
        None if path.contains("/manifests/") => ("200 OK", MANIFEST, manifest),
        None if path == "/v2/" => ("200 OK", "application/json", b"{}"),
        None => ("400 Bad Request", "text/plain", b""),
    };
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {digest}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if !line.starts_with("HEAD") {
        stream.write_all(body)?;
    }
    Ok(())
}

fn sha256(home: &Path, bytes: &[u8]) -> String {
    let file = home.join("to-hash");
    fs::write(&file, bytes).unwrap();
    let out = Command::new("sha256sum").arg(&file).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    format!("sha256:{}", text.split(' ').next().unwrap())
}
