//! The few calls that a lab makes to an engine, as HTTP 1.0 over its unix socket.
//!
//! HTTP 1.0 since its answers end where the connection ends: no chunks to put together. What the
//! product says to engines is tested through the product's own client, never through this.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

#[derive(Clone, Debug)]
pub struct EngineReply {
    pub status: u16,
    pub body: String,
}

impl EngineReply {
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {}", self.body))
    }

    /// The same, if the engine was content.
    pub fn ok(self) -> Result<Self> {
        match self.status {
            200..=299 | 304 => Ok(self),
            status => bail!("the engine answered {status}: {}", self.body.trim()),
        }
    }
}

pub(super) enum Body<'a> {
    None,
    Json(&'a serde_json::Value),
    Tar(&'a Path),
}

pub(super) fn call(
    socket: &Path,
    method: &str,
    path: &str,
    body: Body<'_>,
    limit: Duration,
) -> Result<EngineReply> {
    let doing = || format!("{method} {path} to {}", socket.display());
    let answer = exchange(socket, method, path, body, limit).with_context(doing)?;
    parse(&answer).with_context(doing)
}

fn exchange(socket: &Path, method: &str, path: &str, body: Body<'_>, limit: Duration) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: engine\r\n");
    let sent = match body {
        Body::None => {
            head.push_str("\r\n");
            stream.write_all(head.as_bytes())
        }
        Body::Json(value) => {
            let text = value.to_string();
            let length = text.len();
            head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"));
            stream.write_all(format!("{head}\r\n{text}").as_bytes())
        }
        Body::Tar(path) => {
            let mut file = File::open(path).with_context(|| path.display().to_string())?;
            let length = file.metadata()?.len();
            head.push_str(&format!("Content-Type: application/x-tar\r\nContent-Length: {length}\r\n\r\n"));
            stream.write_all(head.as_bytes()).and_then(|()| io::copy(&mut file, &mut stream).map(drop))
        }
    };
    // An engine that refuses early closes its end; its answer says more than the broken pipe.
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        sent?;
        read?;
    }
    Ok(answer)
}

fn parse(answer: &[u8]) -> Result<EngineReply> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").context("the answer has no head")?;
    let status = head.split(' ').nth(1).context("the answer has no status")?;
    Ok(EngineReply { status: status.parse()?, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_status_and_a_body() {
        let reply = parse(b"HTTP/1.0 404 Not Found\r\nA: b\r\n\r\n{\"message\":\"no\"}").unwrap();
        assert_eq!(reply.status, 404);
        assert_eq!(reply.json().unwrap()["message"], "no");
        assert!(reply.ok().unwrap_err().to_string().contains("404"));
    }
}
