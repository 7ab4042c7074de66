//! The helper on a real workspace.

use std::collections::BTreeMap;
use std::time::Duration;

use gpunion_agent_core::config::clock;
use gpunion_agent_core::container::{Engine, HelperImage, HelperSession, guest_uid};
use gpunion_protocol::time::Millis;
use gpunion_snapshot::helper_wire::{Answer, Decoder, Done, Frame, Order, Part, Pieces, pieces};
use gpunion_snapshot::{ChunkKey, JobKey, SystemRandomness};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{LIMIT, attempt, both};

#[test]
fn a_helper_fills_snapshots_and_restores_a_workspace_that_the_guest_then_writes() {
    both(
        "workspace::a_helper_fills_snapshots_and_restores_a_workspace_that_the_guest_then_writes",
        &["one"],
        |inner| async move {
            let engine = inner.engine("one");
            let helper = engine.helper_image(&inner.programs.join("gpunion-helper")).await.unwrap();
            assert_eq!(engine.helper_image(&inner.programs.join("gpunion-helper")).await.unwrap(), helper);
            let uid = guest_uid(&inner.device).unwrap();
            let (first, second) = (attempt(1), attempt(2));
            let volume = engine.create_workspace(&first).await.unwrap();
            let mut talk = Talk::begin(&engine, &helper, &volume, false, "prepare").await;
            talk.say(&Frame::Order(Order::Prepare { uid, gid: uid })).await;
            assert_eq!(talk.done().await, Done::Prepared);

            // The guest writes as the uid that the workspace was given to.
            let mut guest = inner
            .guest("one", 1, "mkdir /workspace/d && echo saved > /workspace/d/state && busybox ls -ldn /workspace /workspace/.home && echo READY; busybox sleep 1000")
            .await;
            assert!(guest.output_until("READY").contains(&uid.to_string()));
            let key = JobKey::generate(&mut SystemRandomness).unwrap();
            let chunk = ChunkKey::generate(&mut SystemRandomness).unwrap();
            let mut talk = Talk::begin(&engine, &helper, &volume, true, "snapshot").await;
            talk.say(&Frame::Order(Order::Snapshot { leave_out: Vec::new(), sync: true })).await;
            talk.say(&Frame::Keys { job: key.clone(), chunk: Some(chunk) }).await;
            talk.say(&Frame::Order(Order::PassTwo)).await;
            let (mut packs, mut whole, mut manifest) = (BTreeMap::new(), Pieces::default(), None);
            loop {
                match talk.hear().await {
                    Frame::Pack { id, bytes, .. } => {
                        packs.insert(id, bytes);
                        talk.say(&Frame::Order(Order::PackTaken)).await;
                    }
                    Frame::Piece { of: Part::Manifest, last, bytes } => {
                        manifest = whole.add(Part::Manifest, last, &bytes).unwrap();
                    }
                    Frame::Answer(Answer::Done(Done::Snapshot { .. })) => break,
                    Frame::Answer(Answer::Failed(failure)) => panic!("{failure:?}"),
                    _ => {}
                }
            }
            let ended = talk.session.close(LIMIT).await.unwrap();
            assert_eq!((ended.code, ended.complaints.as_str()), (0, ""));
            assert!(guest.stop(1).await >= 1, "the guest went on");
            guest.remove().await;

            let volume = engine.create_workspace(&second).await.unwrap();
            let mut talk = Talk::begin(&engine, &helper, &volume, false, "restore").await;
            talk.say(&Frame::Order(Order::Restore { uid, gid: uid, max_bytes: None, update: false })).await;
            talk.say(&Frame::Keys { job: key, chunk: None }).await;
            for piece in pieces(Part::Manifest, &manifest.unwrap()) {
                talk.say(&piece).await;
            }
            talk.say(&Frame::Order(Order::Go)).await;
            loop {
                match talk.hear().await {
                    Frame::Answer(Answer::Need { pack }) => {
                        talk.say(&Frame::Pack { id: pack, record: None, bytes: packs[&pack].clone() }).await;
                    }
                    Frame::Answer(Answer::Done(Done::Restored(_))) => break,
                    Frame::Answer(Answer::Failed(failure)) => panic!("{failure:?}"),
                    _ => {}
                }
            }
            drop(talk);
            let guest = inner.guest("one", 2, "cat /workspace/d/state; echo more >> /workspace/d/state && echo READY; busybox sleep 1000").await;
            assert!(guest.output_until("READY").starts_with("saved\n"));
            guest.remove().await;
            // A session that was dropped takes its container along.
            let deadline = clock::boot() + Millis::from_secs(30);
            while !engine.list_ours().await.unwrap().is_empty() {
                assert!(clock::boot() < deadline);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        },
    );
}

/// A conversation with the helper, as the agent's driver leads it.
struct Talk {
    session: HelperSession,
    decoder: Decoder,
}

impl Talk {
    async fn begin(engine: &Engine, image: &HelperImage, volume: &str, read_only: bool, verb: &str) -> Self {
        let session = engine.helper(image, volume, read_only, verb).await.unwrap();
        Self { session, decoder: Decoder::default() }
    }

    async fn say(&mut self, frame: &Frame) {
        let (head, tail) = frame.encode().unwrap();
        self.session.input.write_all(&[&head[..], tail].concat()).await.unwrap();
        self.session.input.flush().await.unwrap();
    }

    async fn hear(&mut self) -> Frame {
        let mut buffer = vec![0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let read =
                tokio::time::timeout(LIMIT, self.session.output.read(&mut buffer)).await.unwrap().unwrap();
            assert!(read > 0, "the helper ended: {}", self.session.complaints());
            self.decoder.feed(&buffer[..read]);
        }
    }

    async fn done(mut self) -> Done {
        match self.hear().await {
            Frame::Answer(Answer::Done(done)) => {
                assert_eq!(self.session.close(LIMIT).await.unwrap().code, 0);
                done
            }
            other => panic!("{other:?}: {}", self.session.complaints()),
        }
    }
}
