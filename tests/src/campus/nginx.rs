//! A real nginx in front of a relay, run by its operator: TLS ends there, with a certificate that a
//! root of the campus signed. Set as tight as one finds it in the field.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::lab::{User, wait_for};

/// In a user's home: the roots that the system of a device of theirs trusts, in place of those of
/// this machine.
pub const ROOTS: &str = "system-roots.pem";

#[derive(Debug)]
pub struct Nginx {
    command: Vec<String>,
    /// Its operator's folder.
    dir: PathBuf,
    /// Where devices reach it.
    pub address: String,
    /// The root that signed its certificate, as PEM.
    pub root: String,
    child: Option<Child>,
}

impl Nginx {
    /// `behind`: where the relay listens. Silence is cut after 10 s, bodies are at most 1 MiB (its
    /// default), answers are buffered, HTTP/1.1 is all it speaks.
    pub fn make(operator: &User, address: String, behind: &str) -> Result<Self> {
        let dir = operator.home().join("nginx");
        fs::create_dir_all(&dir)?;
        let root = certificates(&dir)?;
        fs::write(dir.join("nginx.conf"), config(&dir.to_string_lossy(), &address, behind))?;
        for path in [dir.clone(), dir.join("key.pem"), dir.join("cert.pem"), dir.join("nginx.conf")] {
            std::os::unix::fs::chown(path, Some(operator.uid()), Some(operator.gid()))?;
        }
        let configured = dir.join("nginx.conf").to_string_lossy().into_owned();
        let command = ["nginx", "-p", &dir.to_string_lossy(), "-c", &configured].map(str::to_owned).to_vec();
        Ok(Self { command, dir, address, root, child: None })
    }

    pub fn start(&mut self, operator: &User) -> Result<()> {
        let out = File::options().create(true).append(true).open(self.dir.join("out.log"))?;
        let mut command: Command = operator.command(&self.command[0]);
        command.args(&self.command[1..]);
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let mut child = command.spawn().context("starting nginx")?;
        let address = self.address.clone();
        let ready = wait_for("nginx", Duration::from_secs(30), || {
            if let Some(status) = child.try_wait()? {
                bail!("nginx ended with {status}");
            }
            Ok(std::net::TcpStream::connect(&address).ok().map(drop))
        });
        self.child = Some(child);
        ready.with_context(|| fs::read_to_string(self.dir.join("out.log")).unwrap_or_default())
    }

    /// All that goes through it is cut, without a word.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The requests it saw: method, path, status, bytes of the body that came.
    pub fn seen(&self) -> Result<Vec<(String, String, u16, u64)>> {
        let text = fs::read_to_string(self.dir.join("access.log")).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
            Some((method, path, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    /// Makes its root one that this user's devices trust.
    pub fn trusted_by(&self, user: &User) -> Result<()> {
        let roots = user.home().join(ROOTS);
        fs::write(&roots, &self.root)?;
        std::os::unix::fs::chown(&roots, Some(user.uid()), Some(user.gid()))?;
        Ok(())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// A root, and a key with a certificate for this machine in the folder; answers the root.
fn certificates(dir: &std::path::Path) -> Result<String> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let cert = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &root)?;
    fs::write(dir.join("key.pem"), key.serialize_pem())?;
    fs::write(dir.join("cert.pem"), cert.pem())?;
    Ok(root.pem())
}

fn config(dir: &str, address: &str, behind: &str) -> String {
    format!(
        "daemon off;
master_process off;
pid {dir}/pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    log_format short '$request_method $request_uri $status $request_length';
    access_log {dir}/access.log short;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen {address} ssl;
        ssl_certificate {dir}/cert.pem;
        ssl_certificate_key {dir}/key.pem;
        client_max_body_size 1m;
        location / {{
            proxy_pass https://{behind};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_read_timeout 10s;
            proxy_send_timeout 10s;
            proxy_buffering on;
        }}
    }}
}}
"
    )
}
