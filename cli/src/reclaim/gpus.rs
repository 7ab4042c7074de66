//! What the GPUs say, asked without an agent: whether each is free of its guest.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpunion_agent_core::config::clock;
use gpunion_agent_core::gpu::{BeforeGuest, GuestTraces, ProcessId, Reader, Verdict, Verification};
use gpunion_protocol::gpu::GpuSample;
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::receipt::{GpuReceipt, How};

use super::guests::Facts;

/// So long is waited for the GPUs; they are asked 10 times a second.
const FREES: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
/// What the GPUs hold at the click belongs into the receipt; a driver that takes longer to tell
/// does not hold up the end of the guests.
const GLANCE: Duration = Duration::from_millis(100);

/// The GPUs as they are now, if they say so at once.
pub(super) async fn glance(library: Option<PathBuf>) -> Vec<GpuSample> {
    let (tell, told) = tokio::sync::oneshot::channel();
    // A thread of its own: one that hangs in the driver must not hold up the end of this command.
    std::thread::spawn(move || {
        let _ = tell.send(Reader::open(library.as_deref()).map(|reader| reader.read()).unwrap_or_default());
    });
    tokio::time::timeout(GLANCE, told).await.ok().and_then(Result::ok).unwrap_or_default()
}

pub(super) struct Checked {
    pub(super) gpus: Vec<GpuReceipt>,
    pub(super) how: Option<How>,
    pub(super) troubles: Vec<String>,
}

/// Asks the GPUs until each is free of its guest, or for long enough. Blocks.
pub(super) fn check(
    guests: &[Facts],
    gpu: Option<&GpuUuid>,
    library: Option<&Path>,
    ended: bool,
    at_click: &[GpuSample],
) -> Checked {
    let wanted: BTreeSet<&GpuUuid> = guests
        .iter()
        .flat_map(|guest| &guest.gpus)
        .filter(|uuid| gpu.is_none_or(|gpu| gpu == *uuid))
        .chain(gpu)
        .collect();
    if wanted.is_empty() {
        return Checked { gpus: Vec::new(), how: ended.then_some(How::ProcessesOnly), troubles: Vec::new() };
    }
    let reader = match Reader::open(library) {
        Ok(reader) => reader,
        Err(error) => return Checked { gpus: Vec::new(), how: None, troubles: vec![error.to_string()] },
    };
    let mut open: Vec<Question> = guests
        .iter()
        .flat_map(|guest| guest.before.iter().map(move |before| (guest, before)))
        .filter(|(_, before)| wanted.contains(&before.gpu))
        .map(|(guest, before)| Question::new(guest, before, at_click))
        .collect();
    let held: BTreeSet<&GpuUuid> = guests.iter().flat_map(|guest| &guest.gpus).collect();
    let mut troubles: Vec<String> = wanted
        .iter()
        .filter(|uuid| held.contains(**uuid))
        .filter(|uuid| !open.iter().any(|question| question.before.gpu == ***uuid))
        .map(|uuid| format!("what {uuid} held before the guest came was not written down"))
        .collect();
    troubles.extend(unlisted(&wanted, &reader.read()));
    let whole = troubles.is_empty();
    let until = clock::boot();
    loop {
        let samples = reader.read();
        for question in &mut open {
            question.see(&samples);
        }
        let waited = Duration::from_millis((clock::boot() - until).0);
        if open.iter().all(|question| question.free.is_some()) || waited > FREES {
            break;
        }
        std::thread::sleep(POLL);
    }
    troubles
        .extend(open.iter().filter(|question| question.free.is_none()).map(|question| question.why.clone()));
    let all = whole && ended && open.iter().all(|question| question.free.is_some());
    if open.is_empty() {
        return Checked { gpus: Vec::new(), how: all.then_some(How::ProcessesOnly), troubles };
    }
    let by_total = open.iter().any(|question| question.free == Some(How::DeviceTotalOnly));
    let how = if by_total { How::DeviceTotalOnly } else { How::ProcessList };
    Checked { gpus: open.into_iter().map(Question::receipt).collect(), how: all.then_some(how), troubles }
}

/// Of what the driver does not list nothing can be said.
fn unlisted(wanted: &BTreeSet<&GpuUuid>, samples: &[GpuSample]) -> Vec<String> {
    let known: Vec<&str> = samples.iter().map(|sample| sample.uuid.0.as_str()).collect();
    let here = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let missing = wanted.iter().filter(|uuid| !known.contains(&uuid.0.as_str()));
    missing.map(|uuid| format!("the driver lists no GPU {uuid}; GPUs of this machine: {here}")).collect()
}

/// Whether one GPU is free of one guest.
struct Question {
    before: BeforeGuest,
    verification: Verification,
    name: String,
    standin: bool,
    at_click: Option<u64>,
    last: Option<u64>,
    free: Option<How>,
    why: String,
}

impl Question {
    fn new(guest: &Facts, before: &BeforeGuest, at_click: &[GpuSample]) -> Self {
        let seen = at_click.iter().find(|sample| sample.uuid == before.gpu);
        let mut traces = GuestTraces::new(Some(guest.container.clone()));
        traces.seen.insert(ProcessId { pid: guest.pid, start_time: guest.start_time });
        Self {
            verification: Verification::new(before.clone(), traces, clock::boot()),
            before: before.clone(),
            name: String::new(),
            standin: false,
            at_click: seen.and_then(|sample| sample.memory_used),
            last: None,
            free: None,
            why: format!("{} does not answer", before.gpu),
        }
    }

    fn see(&mut self, samples: &[GpuSample]) {
        let Some(sample) = samples.iter().find(|sample| sample.uuid == self.before.gpu) else { return };
        self.name.clone_from(&sample.name);
        self.standin = sample.standin;
        self.last = sample.memory_used;
        match self.verification.observe(sample) {
            Verdict::Free { how, .. } => self.free = Some(how),
            Verdict::NotYet(why) => {
                self.free = None;
                self.why = why.to_string();
            }
        }
    }

    fn receipt(self) -> GpuReceipt {
        GpuReceipt {
            uuid: self.before.gpu,
            name: self.name,
            memory_baseline: self.before.memory_used,
            memory_before: self.at_click,
            memory_after: self.last,
            standin: self.standin,
        }
    }
}
