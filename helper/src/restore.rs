//! Restores a snapshot into the workspace, which must be empty, or hold an older one that is brought
//! up to it; what did not work out is removed again, so that no guest ever starts on half a
//! workspace.

use std::cell::RefCell;
use std::os::fd::OwnedFd;

use gpunion_snapshot::helper_wire::{Answer, Done, Failure, FailureKind, Order, Part};
use gpunion_snapshot::{
    Cancel, Manifest, Progress, RestoreOptions, Usage, Watch, clear, keep_only, restore, usage,
};

use crate::conversation::{Asked, Conversation};
use crate::progress::Throttle;
use crate::unexpected;

pub(crate) fn restore_into(
    talk: &mut Conversation,
    root: &OwnedFd,
    owner: (u32, u32),
    max_bytes: Option<u64>,
    update: bool,
) -> Result<Done, Failure> {
    let (job_key, _) = talk.keys()?;
    let (parts, order) = talk.parts()?;
    if order != Order::Go {
        return Err(unexpected("the word to go was due"));
    }
    let [(Part::Manifest, sealed)] = parts.as_slice() else {
        return Err(unexpected("one manifest was due"));
    };
    let manifest = Manifest::open(&job_key, sealed)?;
    if update {
        keep_only(root, &manifest, talk.cancel())?;
    } else if usage(root, talk.cancel())? != Usage::default() {
        return Err(Failure {
            kind: FailureKind::Workspace,
            path: None,
            reason: "the workspace is not empty: clear it first".to_owned(),
        });
    }
    let options = RestoreOptions { owner: Some(owner), max_bytes, resume: update };
    match fill(talk, &manifest, root, options) {
        Ok(progress) => Ok(Done::Restored(progress)),
        Err(failure) => {
            // Goes on to its end even when the agent is gone.
            clear(root, &Cancel::default())?;
            Err(failure)
        }
    }
}

fn fill(
    talk: &mut Conversation,
    manifest: &Manifest,
    root: &OwnedFd,
    options: RestoreOptions,
) -> Result<Progress, Failure> {
    let cancel = talk.cancel().clone();
    let talk = RefCell::new(talk);
    let mut throttle = Throttle::default();
    let mut watch = Watch {
        cancel,
        progress: Box::new(|progress: Progress| {
            if throttle.lets() {
                // A broken connection shows at the next pack or at the end of stdin.
                drop(talk.borrow_mut().answer(Answer::Progress(progress)));
            }
        }),
    };
    let mut source = Asked::new(&talk);
    Ok(restore(manifest, &mut source, root, options, &mut watch)?)
}
