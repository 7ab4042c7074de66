//! Stdin and stdout as a conversation: frames in through a thread that notices the end of stdin
//! at once, frames out with a window, so that neither side ever holds more than a few packs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Stdin};
use std::sync::mpsc::{Receiver, sync_channel};

use gpunion_snapshot::helper_wire::{Answer, BadFrame, Failure, Frame, Order, Part, Pieces, WINDOW, pieces};
use gpunion_snapshot::{Cancel, ChunkKey, JobKey, PackId, PackSource, SealedPack};

use crate::output::Output;
use crate::unexpected;

/// Frames that may wait here: an agent that keeps to the window never fills it.
const WAITING: usize = 2 * WINDOW + 2;

/// A long byte string that came in pieces.
pub(crate) type Whole = (Part, Vec<u8>);

pub(crate) struct Conversation {
    frames: Receiver<Result<Frame, BadFrame>>,
    out: Output,
    cancel: Cancel,
    unanswered: usize,
}

impl Conversation {
    pub(crate) fn start() -> Self {
        let (to, frames) = sync_channel(WAITING);
        let cancel = Cancel::default();
        let ended = cancel.clone();
        std::thread::spawn(move || {
            let mut stdin: Stdin = io::stdin();
            loop {
                let next = match Frame::read(&mut stdin) {
                    Ok(Some(frame)) => Ok(frame),
                    Ok(None) => break,
                    Err(error) => Err(error),
                };
                let broken = next.is_err();
                if to.send(next).is_err() || broken {
                    break;
                }
            }
            ended.cancel();
        });
        Self { frames, out: Output::new(cancel.clone()), cancel, unanswered: 0 }
    }

    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    pub(crate) fn order(&mut self) -> Result<Order, Failure> {
        let Frame::Order(order) = self.next()? else {
            return Err(unexpected("an order was due"));
        };
        Ok(order)
    }

    /// Between two orders the end of stdin means that all is done.
    pub(crate) fn order_or_end(&mut self) -> Result<Option<Order>, Failure> {
        let Ok(frame) = self.frames.recv() else { return Ok(None) };
        let Frame::Order(order) = frame.map_err(broken)? else {
            return Err(unexpected("an order was due"));
        };
        Ok(Some(order))
    }

    pub(crate) fn keys(&mut self) -> Result<(JobKey, Option<ChunkKey>), Failure> {
        let Frame::Keys { job, chunk } = self.next()? else {
            return Err(unexpected("keys were due"));
        };
        Ok((job, chunk))
    }

    /// Whole byte strings, until the order that closes them.
    pub(crate) fn parts(&mut self) -> Result<(Vec<Whole>, Order), Failure> {
        let mut parts = Vec::new();
        let mut open = Pieces::default();
        loop {
            let frame = self.next()?;
            if let Frame::Order(order) = frame {
                return Ok((parts, order));
            }
            let Frame::Piece { of, last, bytes } = frame else {
                return Err(unexpected("a piece was due"));
            };
            let whole = open.add(of, last, &bytes).map_err(broken)?;
            parts.extend(whole.map(|whole| (of, whole)));
        }
    }

    pub(crate) fn answer(&mut self, answer: Answer) -> Result<(), Failure> {
        self.send(&Frame::Answer(answer))
    }

    pub(crate) fn send_whole(&mut self, of: Part, bytes: &[u8]) -> Result<(), Failure> {
        pieces(of, bytes).try_for_each(|piece| self.send(&piece))
    }

    /// Sends a pack once fewer than [`WINDOW`] are unanswered.
    pub(crate) fn send_pack(&mut self, pack: SealedPack) -> io::Result<()> {
        while self.unanswered >= WINDOW {
            self.pack_taken()?;
        }
        let SealedPack { id, bytes, record } = pack;
        let record = Some(record);
        let frame = Frame::Pack { id, record, bytes };
        self.send(&frame).map_err(into_io)?;
        self.unanswered += 1;
        Ok(())
    }

    /// Waits until every pack was taken: what is told next may rely on them.
    pub(crate) fn settle(&mut self) -> Result<(), Failure> {
        while self.unanswered > 0 {
            self.pack_taken().map_err(|error| unexpected(&error.to_string()))?;
        }
        Ok(())
    }

    fn pack_taken(&mut self) -> io::Result<()> {
        if self.order().map_err(into_io)? != Order::PackTaken {
            return Err(io::Error::other("another order came in the midst of packs"));
        }
        self.unanswered -= 1;
        Ok(())
    }

    fn pack(&mut self) -> io::Result<(PackId, Vec<u8>)> {
        let Frame::Pack { id, bytes, .. } = self.next().map_err(into_io)? else {
            return Err(io::Error::other("a pack was due"));
        };
        Ok((id, bytes))
    }

    fn next(&mut self) -> Result<Frame, Failure> {
        match self.frames.recv() {
            Ok(frame) => frame.map_err(broken),
            Err(_) => Err((&gpunion_snapshot::Error::Cancelled).into()),
        }
    }

    fn send(&mut self, frame: &Frame) -> Result<(), Failure> {
        frame.write(&mut self.out).map_err(broken)
    }
}

/// Asks the agent for packs, [`WINDOW`] ahead of what is needed.
pub(crate) struct Asked<'a, 'b> {
    talk: &'a RefCell<&'b mut Conversation>,
    /// What was not asked for yet, in order.
    plan: VecDeque<PackId>,
    /// What was asked for and not handed on yet.
    asked: BTreeSet<PackId>,
    /// What came before its turn.
    early: BTreeMap<PackId, Vec<u8>>,
}

impl<'a, 'b> Asked<'a, 'b> {
    pub(crate) fn new(talk: &'a RefCell<&'b mut Conversation>) -> Self {
        Self { talk, plan: VecDeque::new(), asked: BTreeSet::new(), early: BTreeMap::new() }
    }

    fn ask(&mut self, pack: PackId) -> io::Result<()> {
        self.asked.insert(pack);
        let need = Answer::Need { pack };
        self.talk.borrow_mut().answer(need).map_err(into_io)
    }
}

impl PackSource for Asked<'_, '_> {
    fn plan(&mut self, order: &[PackId]) {
        self.plan = order.iter().copied().collect();
    }

    fn pack(&mut self, id: &PackId) -> io::Result<Vec<u8>> {
        if !self.asked.contains(id) {
            self.plan.retain(|planned| planned != id);
            self.ask(*id)?;
        }
        while self.asked.len() < WINDOW
            && let Some(next) = self.plan.pop_front()
        {
            self.ask(next)?;
        }
        loop {
            if let Some(bytes) = self.early.remove(id) {
                self.asked.remove(id);
                return Ok(bytes);
            }
            let (came, bytes) = self.talk.borrow_mut().pack()?;
            if !self.asked.contains(&came) {
                return Err(io::Error::other(format!("pack {came} came and nobody asked for it")));
            }
            self.early.insert(came, bytes);
        }
    }
}

fn broken(error: BadFrame) -> Failure {
    unexpected(&error.to_string())
}

fn into_io(failure: Failure) -> io::Error {
    io::Error::other(failure.reason)
}
