//! Whether who answers at the relay's addresses is the relay, for `doctor`.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::client::RelayClient;

/// A relay that is there has shown its key by then.
const GREETING: Duration = Duration::from_secs(10);

impl RelayClient {
    /// The address at which somebody shows a key that is not trusted.
    pub async fn other_key(&self) -> Option<String> {
        for address in self.addresses() {
            if shows_other_key(address, self.tls()).await {
                return Some(address.to_owned());
            }
        }
        None
    }
}

/// Whether whoever answers there holds a key that is not trusted. Silence is no answer.
async fn shows_other_key(address: &str, config: Arc<ClientConfig>) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']).to_owned();
    let Ok(name) = ServerName::try_from(host) else { return false };
    let greeting = async {
        let tcp = TcpStream::connect(address).await.ok()?;
        TlsConnector::from(config).connect(name, tcp).await.err()
    };
    let failed = tokio::time::timeout(GREETING, greeting).await.ok().flatten();
    let cause =
        failed.as_ref().and_then(|error| error.get_ref()).and_then(|cause| cause.downcast_ref::<Error>());
    matches!(cause, Some(Error::InvalidCertificate(_)))
}
