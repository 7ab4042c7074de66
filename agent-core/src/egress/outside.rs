//! The outside as the host has it: its resolver, its own addresses, its connections.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

const LOOK_UP: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(10);

/// What the proxy asks of the outside; the tests have one of their own.
pub(super) trait Outside: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn look_up(&self, name: &str) -> impl Future<Output = io::Result<Vec<IpAddr>>> + Send;

    /// Every address of this machine.
    fn own(&self) -> io::Result<Vec<IpAddr>>;

    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

#[derive(Debug)]
pub(super) struct Host;

impl Outside for Host {
    type Stream = TcpStream;

    async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        // With a dot at the end, so that no domain of the owner's own network is put behind it.
        let looked = tokio::net::lookup_host((format!("{name}."), 0));
        let found = tokio::time::timeout(LOOK_UP, looked).await??;
        Ok(found.map(|address| address.ip()).collect())
    }

    fn own(&self) -> io::Result<Vec<IpAddr>> {
        let addresses = getifaddrs()?.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
        });
        Ok(addresses.collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = tokio::time::timeout(CONNECT, TcpStream::connect(to)).await??;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
