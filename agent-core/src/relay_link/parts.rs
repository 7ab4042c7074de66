//! Putting a pack or snapshot: whole where that passes, else in parts.
//!
//! A proxy before the relay may take no body as large as a pack (nginx: 1 MiB unless it is told
//! otherwise). It then refuses the whole, and from there on this client sends in parts that are
//! small enough. The relay says after each how far it has it, so a part that was lost in a cut costs
//! no more than itself (F96, F97).

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use gpunion_protocol::http::UPLOAD_OFFSET;
use gpunion_protocol::problem::{Code, Problem};
use reqwest::{Method, header};

use super::client::{RelayClient, read_body};

/// The largest part, what nginx takes by default; it is halved as long as that is refused, down to
/// the smallest.
const LARGEST: usize = 1 << 20;
const SMALLEST: usize = 64 << 10;
/// Answers in a row that leave the offset where it was.
const STANDSTILL: u32 = 8;

/// The largest body that is known to pass, or not known to be refused. One for each client.
#[derive(Debug)]
pub(super) struct PartSize(AtomicUsize);

impl Default for PartSize {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl PartSize {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A body of so many bytes was refused. False when smaller ones are of no use.
    fn refused(&self, bytes: usize) -> bool {
        let smaller = if bytes > LARGEST { LARGEST } else { bytes.next_power_of_two() / 2 };
        if smaller < SMALLEST {
            return false;
        }
        self.0.fetch_min(smaller, Ordering::Relaxed);
        true
    }
}

impl RelayClient {
    /// Safe to repeat: what is put is named by its bytes.
    pub(super) async fn put(&self, path: &str, bytes: &Bytes) -> Result<(), Problem> {
        loop {
            let size = self.part_size().get();
            let (sent, tried) = if bytes.len() <= size {
                (self.put_whole(path, bytes).await, bytes.len())
            } else {
                (self.put_parts(path, bytes, size).await, size)
            };
            match sent {
                Err(problem) if problem.code == Code::TooLarge && self.part_size().refused(tried) => {
                    tracing::info!(
                        bytes = tried,
                        "too large for something before the relay; sending in parts"
                    );
                }
                Err(problem) if problem.code == Code::TooLarge => return Err(too_small(problem)),
                other => return other,
            }
        }
    }

    async fn put_whole(&self, path: &str, bytes: &Bytes) -> Result<(), Problem> {
        self.repeat(|| async {
            let response = self.send(Method::PUT, path, &[], Some(bytes.clone())).await?;
            read_body(response, 1 << 20).await.map(drop)
        })
        .await
    }

    async fn put_parts(&self, path: &str, bytes: &Bytes, size: usize) -> Result<(), Problem> {
        let (mut from, mut still) = (0usize, 0);
        while still < STANDSTILL {
            let to = from.saturating_add(size).min(bytes.len());
            match self.repeat(|| self.put_part(path, bytes, from, to)).await? {
                None => return Ok(()),
                Some(offset) if offset < bytes.len() => {
                    still = if offset == from { still + 1 } else { 0 };
                    from = offset;
                }
                Some(_) => break,
            }
        }
        Err(Problem::new(Code::RelayAway, "the relay takes no more of an upload")
            .with_detail("it is tried again; if it stays so, its operator's log tells more"))
    }

    /// How much the relay has after it; absent: all, and it is kept.
    async fn put_part(
        &self,
        path: &str,
        bytes: &Bytes,
        from: usize,
        to: usize,
    ) -> Result<Option<usize>, Problem> {
        let range = format!("bytes {from}-{}/{}", to.saturating_sub(1), bytes.len());
        let headers = [(header::CONTENT_RANGE.as_str(), range)];
        let response = self.send(Method::PUT, path, &headers, Some(bytes.slice(from..to))).await?;
        let offset =
            response.headers().get(UPLOAD_OFFSET).and_then(|value| value.to_str().ok()?.parse().ok());
        read_body(response, 1 << 20).await?;
        Ok(offset)
    }
}

fn too_small(problem: Problem) -> Problem {
    let detail = format!(
        "a proxy before the relay takes no body of {} KiB; its operator should let more pass (nginx: \
         client_max_body_size)",
        SMALLEST >> 10
    );
    problem.with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_smaller_until_they_pass_and_never_larger_again() {
        let size = PartSize::default();
        assert!(size.refused(8 << 20));
        assert_eq!(size.get(), 1 << 20);
        assert!(size.refused(900 << 10));
        assert_eq!(size.get(), 512 << 10);
        assert!(size.refused(8 << 20), "of another upload that had begun before");
        assert_eq!(size.get(), 512 << 10);
        assert!(size.refused(512 << 10) && size.refused(256 << 10) && size.refused(128 << 10));
        assert_eq!(size.get(), SMALLEST);
        assert!(!size.refused(SMALLEST));
    }
}
