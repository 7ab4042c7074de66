//! What the demo says: steps as they happen, for people; one object at the end, for scripts.

use std::process::ExitCode;
use std::time::Instant;

use gpunion_protocol::receipt::Receipt;
use serde_json::{Map, Value, json};

#[derive(Debug)]
pub(crate) struct Report {
    json: bool,
    began: Instant,
    step_began: Instant,
    timeline: Map<String, Value>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) finished_elsewhere: bool,
    failures: Vec<String>,
}

impl Report {
    #[expect(clippy::disallowed_methods, reason = "the time line of a run on a real machine")]
    pub(crate) fn new(json: bool) -> Self {
        let now = Instant::now();
        Self {
            json,
            began: now,
            step_began: now,
            timeline: Map::new(),
            accuracy: None,
            receipt: None,
            finished_elsewhere: false,
            failures: Vec::new(),
        }
    }

    /// For people: stdout, or stderr when stdout is a script's.
    pub(crate) fn say(&self, text: impl std::fmt::Display) {
        if self.json {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    }

    pub(crate) fn heading(&self, text: &str) {
        self.say(format_args!("\n== {text}"));
    }

    /// Closes a step of the time line.
    #[expect(clippy::disallowed_methods, reason = "the time line of a run on a real machine")]
    pub(crate) fn step(&mut self, name: &str) {
        let now = Instant::now();
        let seconds = now.duration_since(self.step_began).as_secs_f64();
        self.step_began = now;
        self.timeline.insert(name.to_owned(), json!((seconds * 1000.0).round() / 1000.0));
    }

    pub(crate) fn failed(&mut self, text: String) {
        self.say(format_args!("FAILED: {text}"));
        self.failures.push(text);
    }

    /// Holds or is a failure of the demo.
    pub(crate) fn check(&mut self, holds: bool, what: &str) {
        if holds {
            self.say(format_args!("   ok: {what}"));
        } else {
            self.failed(format!("does not hold: {what}"));
        }
    }

    pub(crate) fn close(self) -> ExitCode {
        let seconds = self.began.elapsed().as_secs_f64();
        let ok = self.failures.is_empty();
        self.say("\n== Time line (seconds)");
        for (name, value) in &self.timeline {
            self.say(format_args!("   {:<28} {:>8.3}", name, value.as_f64().unwrap_or(0.0)));
        }
        if ok {
            self.say(format_args!(
                "\nDemo: all of it holds. Trained to {:.1} % on one provider; its GPU (a stand-in) was taken back {}; \
                 the job ended on the other with the same bytes ({seconds:.0} s).",
                self.accuracy.unwrap_or(0.0) * 100.0,
                self.receipt.as_ref().and_then(|r| r.verified_ms).map_or("unverified".to_owned(), |ms| format!("in {ms} ms, verified")),
            ));
        } else {
            self.say(format_args!(
                "\nDemo: {} part(s) did not hold: {}",
                self.failures.len(),
                self.failures.join("; ")
            ));
        }
        if self.json {
            println!("{}", self.object(ok));
        }
        if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn object(&self, ok: bool) -> Value {
        let receipt = self.receipt.as_ref().map(|r| {
            let sum = |get: fn(&gpunion_protocol::receipt::GpuReceipt) -> Option<u64>| -> Option<u64> {
                r.gpus.iter().map(get).sum()
            };
            json!({
                "verified": r.verified, "how": r.how, "stopped_ms": r.stopped_ms, "ended_ms": r.ended_ms,
                "verified_ms": r.verified_ms, "memory_before": sum(|g| g.memory_before),
                "memory_after": sum(|g| g.memory_after), "standin": r.gpus.iter().all(|g| g.standin),
            })
        });
        json!({
            "ok": ok, "accuracy": self.accuracy, "timeline": self.timeline, "receipt": receipt,
            "finished_elsewhere": self.finished_elsewhere, "failures": self.failures,
        })
    }
}
