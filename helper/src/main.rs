//! `gpunion-helper`: the one program that opens, writes and removes what a guest may have made.
//!
//! It runs for the orders of one task in a container that holds nothing else: no network, one
//! workspace at `/workspace`, root with CHOWN, DAC_OVERRIDE and FOWNER alone. The agent talks to it over stdin
//! and stdout (`gpunion_snapshot::helper_wire`); keys come in a frame, never in argv or the
//! environment. Nothing is said on stderr but a panic. As `second-way` it is another thing
//! altogether, in a container of another kind: see `second_way`.

mod conversation;
mod output;
mod progress;
mod restore;
mod second_way;
mod snapshot;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;

use gpunion_snapshot::helper_wire::{Answer, Done, Failure, FailureKind, Order};
use gpunion_snapshot::{clear, open_root, prepare, usage};

use crate::conversation::Conversation;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|word| word == "second-way") {
        return second_way::run(args);
    }
    let mut talk = Conversation::start();
    loop {
        let answer = match talk.order_or_end() {
            Ok(None) => return ExitCode::SUCCESS,
            Ok(Some(order)) => serve(&mut talk, order),
            Err(failure) => Err(failure),
        };
        let well = answer.is_ok();
        // Nobody listens any more when this fails; the exit code still says how it went.
        let told = talk.answer(answer.map_or_else(Answer::Failed, Answer::Done)).is_ok();
        if !well || !told {
            return ExitCode::FAILURE;
        }
    }
}

fn serve(talk: &mut Conversation, order: Order) -> Result<Done, Failure> {
    let root = root()?;
    match order {
        Order::Snapshot { leave_out, sync } => snapshot::take(talk, root, leave_out, sync),
        Order::Restore { uid, gid, max_bytes, update } => {
            restore::restore_into(talk, &root, (uid, gid), max_bytes, update)
        }
        Order::Usage => Ok(Done::Usage(usage(&root, talk.cancel())?)),
        Order::Clear => {
            clear(&root, talk.cancel())?;
            Ok(Done::Cleared)
        }
        Order::Prepare { uid, gid } => {
            prepare(&root, uid, gid)?;
            Ok(Done::Prepared)
        }
        Order::PassOne | Order::PassTwo | Order::PackTaken | Order::Go => {
            Err(unexpected("nothing has begun that this order could go on with"))
        }
    }
}

/// `/workspace`, or what `--root` names, for tests without a container.
fn root() -> Result<OwnedFd, Failure> {
    let mut args = std::env::args_os().skip(1);
    let path = match (args.next(), args.next()) {
        (None, _) => PathBuf::from("/workspace"),
        (Some(flag), Some(path)) if flag == "--root" => PathBuf::from(path),
        (Some(_), _) => return Err(unexpected("the only argument is --root DIR")),
    };
    Ok(open_root(&path)?)
}

fn unexpected(reason: &str) -> Failure {
    Failure { kind: FailureKind::Conversation, path: None, reason: reason.to_owned() }
}
