//! The relay's key: made at the first start, kept for ever; its certificate is made anew at each.
//!
//! Devices pin SHA-256 of the SubjectPublicKeyInfo, so a new certificate (another address, a
//! later year) of the same key does not lose the group. Losing the key file does.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData as _};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

pub(crate) struct Identity {
    key: KeyPair,
    pin: [u8; 32],
}

impl Identity {
    /// Reads the key, or makes it when there is none.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, Error> {
        let path = state_dir.join("key.pem");
        let key = match File::open(&path) {
            Ok(mut file) => {
                let mut pem = String::new();
                file.read_to_string(&mut pem).map_err(Error::io("read the relay's key", &path))?;
                KeyPair::from_pem(&pem)
                    .map_err(|e| Error::BadKey { path: path.clone(), reason: e.to_string() })?
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => make(state_dir, &path)?,
            Err(e) => return Err(Error::io("read the relay's key", &path)(e)),
        };
        let pin = Sha256::digest(key.subject_public_key_info()).into();
        Ok(Self { key, pin })
    }

    /// SHA-256 of the key's SubjectPublicKeyInfo, as invite links carry it.
    pub(crate) fn pin(&self) -> [u8; 32] {
        self.pin
    }

    /// TLS with a certificate for these names (`host` of each announced `host:port`).
    pub(crate) fn server_config(&self, addresses: &[String]) -> Result<ServerConfig, Error> {
        let tls = |e: rcgen::Error| Error::Tls(e.to_string());
        let mut names: Vec<String> = addresses.iter().filter_map(|a| host_of(a)).collect();
        names.push("localhost".to_owned());
        names.sort();
        names.dedup();
        let mut params = CertificateParams::new(names).map_err(tls)?;
        params.distinguished_name.push(DnType::CommonName, "GPUnion relay");
        let cert = params.self_signed(&self.key).map_err(tls)?;
        let chain = vec![CertificateDer::from(cert.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::Tls(e.to_string()))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| Error::Tls(e.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// Written whole and synced before it takes its name: a crash leaves no half key.
fn make(state_dir: &Path, path: &Path) -> Result<KeyPair, Error> {
    let key = KeyPair::generate().map_err(|e| Error::Tls(e.to_string()))?;
    let part = state_dir.join("key.pem.new");
    let _ = std::fs::remove_file(&part);
    let failed = |e| Error::io("write the relay's key", path)(e);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(failed)?;
    file.write_all(key.serialize_pem().as_bytes()).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&part, path).map_err(failed)?;
    File::open(state_dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
    Ok(key)
}

fn host_of(address: &str) -> Option<String> {
    let (host, _) = address.rsplit_once(':')?;
    Some(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_outlives_restarts_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::open(dir.path()).unwrap();
        let second = Identity::open(dir.path()).unwrap();
        assert_eq!(first.pin(), second.pin());
        let mode = std::fs::metadata(dir.path().join("key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        second.server_config(&["relay.example:7443".to_owned(), "[fe80::1]:1".to_owned()]).unwrap();
    }

    #[test]
    fn a_damaged_key_is_named_and_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key.pem"), "nonsense").unwrap();
        assert!(matches!(Identity::open(dir.path()), Err(Error::BadKey { .. })));
        assert_eq!(std::fs::read_to_string(dir.path().join("key.pem")).unwrap(), "nonsense");
    }
}
