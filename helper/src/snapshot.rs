//! Takes a snapshot of the workspace: packs go out as they are full, the manifest at the end.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use gpunion_snapshot::helper_wire::{Answer, Done, Failure, Order, Part};
use gpunion_snapshot::{
    ChunkIndex, ChunkKey, FileCache, FolderSnapshot, JobKey, Manifest, PackRecord, Progress, SealedPack,
    SystemRandomness, Taken, WalkOptions, Watch, Writer, snapshot_id,
};

use crate::conversation::{Conversation, Whole};
use crate::progress::Throttle;
use crate::unexpected;

pub(crate) fn take(
    talk: &mut Conversation,
    root: OwnedFd,
    leave_out: Vec<String>,
    sync: bool,
) -> Result<Done, Failure> {
    let leave_out = left_out(leave_out)?;
    let (job_key, chunk_key) = talk.keys()?;
    let (parts, mut order) = talk.parts()?;
    let base = Base::read(&job_key, chunk_key, parts)?;
    let cancel = talk.cancel().clone();
    let talk = RefCell::new(talk);
    let mut throttle = Throttle::default();
    let watch = Watch {
        cancel,
        progress: Box::new(|progress: Progress| {
            if throttle.lets() {
                // A broken connection shows at the next pack or at the end of stdin.
                drop(talk.borrow_mut().answer(Answer::Progress(progress)));
            }
        }),
    };
    let sink = |pack: SealedPack| talk.borrow_mut().send_pack(pack);
    let writer = Writer::new(base.index, sink, SystemRandomness, watch)?;
    let options =
        WalkOptions { leave_out: Box::new(move |path, _| leave_out.iter().any(|out| out == path)), sync };
    let mut folder = FolderSnapshot::new(root, writer, base.parent, options);
    let taken = loop {
        if order == Order::PassTwo {
            break folder.pass_two(&job_key)?;
        }
        if order != Order::PassOne {
            return Err(unexpected("a pass was due"));
        }
        let report = folder.pass_one()?;
        let mut talk = talk.borrow_mut();
        talk.settle()?;
        talk.answer(Answer::PassOneDone { report })?;
        order = talk.order()?;
    };
    tell(&mut talk.borrow_mut(), taken)
}

fn tell(talk: &mut Conversation, taken: Taken) -> Result<Done, Failure> {
    talk.settle()?;
    let sealed = taken.finished.sealed;
    talk.send_whole(Part::Manifest, &sealed.bytes)?;
    talk.send_whole(Part::Cache, &taken.cache.encode())?;
    let (id, report) = (sealed.id, taken.report);
    Ok(Done::Snapshot { id, report })
}

fn left_out(hex: Vec<String>) -> Result<Vec<Vec<u8>>, Failure> {
    let paths = hex.iter().map(hex::decode);
    paths.collect::<Result<_, _>>().map_err(|_| unexpected("a path to leave out is not hexadecimal"))
}

/// What the snapshot may build on.
struct Base {
    index: ChunkIndex,
    parent: Option<(Manifest, FileCache)>,
}

impl Base {
    fn read(job_key: &JobKey, chunk_key: Option<ChunkKey>, parts: Vec<Whole>) -> Result<Self, Failure> {
        let (mut manifests, mut cache, mut records) = (Vec::new(), None, Vec::new());
        for (of, bytes) in parts {
            match of {
                Part::Manifest => manifests.push((snapshot_id(&bytes), Manifest::open(job_key, &bytes)?)),
                // A cache of another version only costs time.
                Part::Cache => cache = FileCache::decode(&bytes).ok(),
                Part::Record => records.push(PackRecord::decode(&bytes)?),
            }
        }
        let chunk_key = chunk_key
            .or_else(|| manifests.first().map(|(_, parent)| parent.chunk_key.clone()))
            .ok_or_else(|| unexpected("neither a chunk key nor a parent came"))?;
        let mut index = ChunkIndex::new(chunk_key);
        for (_, manifest) in &manifests {
            index.add_manifest(manifest)?;
        }
        for record in &records {
            index.add_record(record);
        }
        let parent = cache.and_then(|cache| {
            let at = manifests.iter().position(|(id, _)| *id == cache.snapshot())?;
            Some((manifests.swap_remove(at).1, cache))
        });
        Ok(Self { index, parent })
    }
}
