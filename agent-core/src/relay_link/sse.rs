//! Server-sent events, read from any stream of bytes. Bounded: one event is at most `EVENT_MAX`.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

/// No event of ours is longer: the local API's whole snapshot is the largest.
pub const EVENT_MAX: usize = 4 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    pub id: Option<String>,
    pub data: String,
}

/// Cuts events from bytes as they come.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    id: Option<String>,
    data: Option<String>,
    ready: VecDeque<SseEvent>,
}

#[derive(Debug, thiserror::Error)]
pub enum BadStream {
    #[error("an event of the stream is over {EVENT_MAX} bytes")]
    TooLong,
    #[error("the stream broke off: {0}")]
    Broken(String),
    #[error("the stream stalled")]
    Stalled,
}

impl SseDecoder {
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BadStream> {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
            } else {
                let line = std::mem::take(&mut self.line);
                self.line(String::from_utf8_lossy(&line).trim_end_matches('\r'));
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > EVENT_MAX {
                return Err(BadStream::TooLong);
            }
        }
        Ok(())
    }

    pub fn take(&mut self) -> Option<SseEvent> {
        self.ready.pop_front()
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            let id = self.id.take();
            if let Some(data) = self.data.take() {
                self.ready.push_back(SseEvent { id, data });
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "id" => self.id = Some(value.to_owned()),
            // Comments keep the connection alive; other fields are nobody's here.
            _ => {}
        }
    }
}

/// Events of a byte stream; ends after the first error.
pub fn events<E>(
    bytes: impl Stream<Item = Result<Bytes, E>> + Send + Unpin,
) -> impl Stream<Item = Result<SseEvent, BadStream>> + Send + Unpin
where
    E: std::fmt::Display + Send,
{
    let state = (bytes, SseDecoder::default(), false);
    Box::pin(futures_util::stream::unfold(state, |(mut bytes, mut decoder, over)| async move {
        if over {
            return None;
        }
        loop {
            if let Some(event) = decoder.take() {
                return Some((Ok(event), (bytes, decoder, false)));
            }
            let error = match bytes.next().await? {
                Ok(piece) => match decoder.feed(&piece) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) => BadStream::Broken(error.to_string()),
            };
            return Some((Err(error), (bytes, decoder, true)));
        }
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_are_cut_from_lines() {
        let mut decoder = SseDecoder::default();
        decoder.feed(b": hello\n\nid: 7\r\ndata: {\"a\":\r\ndata:1}\r\n\r\nevent: x\n\ndata: y\n\n").unwrap();
        let first = SseEvent { id: Some("7".to_owned()), data: "{\"a\":\n1}".to_owned() };
        assert_eq!(decoder.take(), Some(first));
        assert_eq!(decoder.take(), Some(SseEvent { id: None, data: "y".to_owned() }));
        assert_eq!(decoder.take(), None);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut decoder = SseDecoder::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..6).any(|_| decoder.feed(&piece).is_err());
        assert!(refused);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_events(texts in proptest::collection::vec("[a-z ]{1,20}", 1..8), cut in 1usize..9) {
            let stream: String = texts.iter().map(|text| format!("data: {text}\n\n")).collect();
            let mut decoder = SseDecoder::default();
            let mut got = Vec::new();
            for piece in stream.as_bytes().chunks(cut) {
                decoder.feed(piece).unwrap();
                got.extend(std::iter::from_fn(|| decoder.take()).map(|event| event.data));
            }
            prop_assert_eq!(got, texts);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let _ = SseDecoder::default().feed(&bytes);
        }
    }
}
