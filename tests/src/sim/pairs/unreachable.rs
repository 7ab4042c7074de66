//! Pairs that nothing can bring about, each with the reason: a rule stands for all its states with
//! all its events. When one is reached all the same the rule is wrong, and the run fails.

pub(super) struct Rule {
    pub(super) states: &'static [&'static str],
    pub(super) events: &'static [&'static str],
    why: &'static str,
}

pub(super) type Rules = &'static [Rule];

/// Why this pair can't be, if it can't.
pub(super) fn why(rules: Rules, state: &str, event: &str) -> Option<&'static str> {
    let fits = |rule: &&Rule| rule.states.contains(&state) && rule.events.contains(&event);
    rules.iter().find(fits).map(|rule| rule.why)
}

/// All that an init says of a program that was begun.
const WORDS: &[&str] = &[
    "init: hello, begun",
    "init: started",
    "init: not started",
    "init: exited",
    "init: stopped",
    "init: some not stopped",
    "init: going on",
    "init: saved",
    "init: too much disk",
    "cannot begin",
];

pub(super) const AGENT: Rules = &[
    Rule {
        states: &["none"],
        events: &["done", "done: away", "done: refused"],
        why: "an answer is waited for by an attempt on the books alone, and none is forgotten while it waits",
    },
    Rule {
        states: &["none"],
        events: &["agent starts", "not found"],
        why: "what is not on the books is neither loaded nor looked for",
    },
    Rule {
        states: &["none", "pull", "stage", "create", "start"],
        events: WORDS,
        why: "no init of it has been started, or its channel went with its container before it was forgotten",
    },
    Rule {
        states: &["none", "pull"],
        events: &["init: hello, not begun"],
        why: "no init of it has been started, or its channel went with its container before it was forgotten",
    },
    Rule {
        states: &["started, not told"],
        events: &[
            "init: hello, begun",
            "init: started",
            "init: not started",
            "init: exited",
            "init: stopped",
            "init: some not stopped",
            "init: going on",
            "init: saved",
            "init: too much disk",
            "cannot begin",
        ],
        why: "init is told nothing but its end before `running` is on the disk",
    },
    Rule {
        states: &["leaving, init lives", "leaving"],
        events: &["init: not started"],
        why: "only what has begun is told to leave, and an init that comes back says in one piece that it did not",
    },
    Rule {
        states: &["pass two"],
        events: &["init: not started"],
        why: "init answers a stop when the program is there or is known not to start, and begins none while it is held",
    },
    Rule {
        states: &["running", "stopping", "publishing", "finishing, init lives", "ending"],
        events: &["done", "done: away", "done: refused"],
        why: "no operation runs in this state",
    },
    Rule {
        states: &["start"],
        events: &["done", "done: away", "done: refused"],
        why: "the operation that starts it is what makes it `started, not told`",
    },
    Rule {
        states: &["pass one", "stopping", "pass two", "uploading", "publishing"],
        events: &["agent starts"],
        why: "a restart keeps no step of a checkpoint",
    },
    Rule {
        states: &["finishing", "leaving"],
        events: &["agent starts"],
        why: "after a restart an init may live until it is known that none does",
    },
    Rule {
        states: &["start"],
        events: &["agent starts"],
        why: "after a restart what was to be started may have been",
    },
];

pub(super) const BROKER: Rules = &[
    Rule {
        states: &["unknown"],
        events: &[
            "hello",
            "offer, open",
            "offer, closed",
            "renew without it",
            "wrapped",
            "connected",
            "disconnected",
            "device revoked",
            "submit again",
            "cancel",
            "timeout",
            "relay starts",
            "stood still",
        ],
        why: "an event that names no attempt comes to those that are known",
    },
    Rule {
        states: &["older, device has it", "older", "ahead"],
        events: &["wrapped", "submit again", "cancel"],
        why: "an event of a job comes to its newest attempt",
    },
    Rule {
        states: &["lapsed"],
        events: &["relay starts"],
        why: "after its own start the relay gives every attempt a whole lease",
    },
];
