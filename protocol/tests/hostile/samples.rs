//! One valid text at least of each message, written as it crosses the wire and not by the types:
//! so it is also what an older version sends, and a field that lost its default is seen here.

pub(crate) const LINK: &str = "gpunion://join/0123456789abcdef0123456789abcdef?group=lab%207&at=relay.example:7443&at=[fe80::1]:7443&pin=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

pub(crate) const SPEC_TOML: &str = r#"
name = "digits"
image = "python:3.12-slim"
command = ["python", "train.py"]
writable_root = true
[resources]
gpus = 1
gpu_memory = "10 GiB"
cpus = 4
memory = "8 GiB"
disk = "20 GiB"
[checkpoint]
every = "5 min"
signal = "SIGTERM"
grace = "60 s"
stop_max = "2 s"
[env]
EPOCHS = "20"
[secrets]
HF_TOKEN = {}
[[data]]
path = "dataset/"
at = "/data"
"#;

pub(crate) const SPEC_JSON: &str = r#"{"name":"digits","image":"python:3.12-slim","command":["python","train.py"],"resources":{"gpus":1,"gpu_memory":"10 GiB","cpus":4,"memory":"8 GiB","disk":"20 GiB"},"checkpoint":{"every":"5 min","signal":"SIGTERM","grace":"60 s","stop_max":"2 s"},"network":{"egress":[]},"env":{"EPOCHS":"20"},"secrets":{"HF_TOKEN":{}},"data":[{"path":"dataset/","at":"/data"}],"writable_root":true}"#;

macro_rules! job {
    () => {
        r#""job_01m8qfkhe2r9xwn04gv94p9d7z""#
    };
}
macro_rules! dev {
    () => {
        r#""dev_01m8qfkhe2r9xwn04gv94p9d7z""#
    };
}
macro_rules! mem {
    () => {
        r#""mem_01m8qfkhe2r9xwn04gv94p9d7z""#
    };
}
macro_rules! hash {
    () => {
        r#""00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff""#
    };
}
macro_rules! attempt {
    () => {
        concat!(r#"{"job":"#, job!(), r#","token":{"epoch":7,"attempt":2}}"#)
    };
}
macro_rules! checkpoint {
    () => {
        concat!(r#"{"snapshot":"#, hash!(), r#","quality":"quiet","token":{"epoch":7,"attempt":2},"bytes":1048576,"new_bytes":4096,"stopped":37,"at":1764000000000}"#)
    };
}
macro_rules! spec {
    () => {
        r#"{"name":"n","image":"i:latest","command":["run"],"resources":{"gpus":1,"gpu_memory":"1 GiB"},"env":{"A":"b"}}"#
    };
}
macro_rules! layers {
    () => {
        concat!(
            r#"{"from":"layers","reference":"digits:latest","image_id":"sha256:00","snapshot":"#,
            hash!(),
            "}"
        )
    };
}
macro_rules! offer {
    () => {
        r#"{"open":true,"why":null,"gpus":[{"uuid":"GPU-1","name":"stand-in","memory":"8 GiB","free_for_guests":true,"standin":true}],"cpus":2,"memory":"4 GiB","disk":"10 GiB","time_left":3600000,"architecture":"amd64"}"#
    };
}
macro_rules! receipt {
    () => {
        concat!(
            r#"{"at":1764000000000,"gpus":[{"uuid":"GPU-1","name":"stand-in","memory_baseline":1,"memory_before":2,"memory_after":1,"standin":true}],"guests":[{"attempt":"#,
            attempt!(),
            r#","name":"n","member":"ada","processes":2,"stopped_ms":1,"ended_ms":2,"way":"init"}],"stopped_ms":1,"ended_ms":2,"verified_ms":128,"verified":true,"how":"process_list","troubles":["x"],"wish_saved":true}"#
        )
    };
}
macro_rules! problem {
    () => {
        r#"{"type":"about:blank","title":"no","status":409,"code":"stale","detail":"a newer attempt counts"}"#
    };
}
macro_rules! data_input {
    () => {
        concat!(r#"{"at":"/data","snapshot":"#, hash!(), r#","bytes":258}"#)
    };
}
macro_rules! preview_request {
    () => {
        r#""thing":{"kind":"folder","value":"/home/ada/digits"},"image":null,"name":"n","args":["a"],"secrets":{"HF_TOKEN":"x"}"#
    };
}

/// (name of its type, text)
pub(crate) const SAMPLES: &[(&str, &str)] = &[
    ("ToRelay", r#"{"say":"hello","wire":1,"agent":"0.1.0"}"#),
    ("ToRelay", concat!(r#"{"say":"offer","offer":"#, offer!(), "}")),
    ("ToRelay", concat!(r#"{"say":"renew","seq":9,"attempts":["#, attempt!(), "]}")),
    (
        "ToRelay",
        concat!(
            r#"{"say":"state","attempt":"#,
            attempt!(),
            r#","state":{"state":"stopped","why":"checkpoint"},"note":"pulling, 40 %"}"#
        ),
    ),
    ("ToRelay", concat!(r#"{"say":"image_digest","attempt":"#, attempt!(), r#","digest":"sha256:00"}"#)),
    (
        "ToRelay",
        concat!(r#"{"say":"publish","attempt":"#, attempt!(), r#","checkpoint":"#, checkpoint!(), "}"),
    ),
    (
        "ToRelay",
        concat!(
            r#"{"say":"ended","attempt":"#,
            attempt!(),
            r#","cause":{"kind":"exited","code":0},"result":"#,
            hash!(),
            "}"
        ),
    ),
    (
        "ToRelay",
        concat!(
            r#"{"say":"log","attempt":"#,
            attempt!(),
            r#","offset":18446744073709551615,"bytes":"aGVsbG8="}"#
        ),
    ),
    (
        "ToRelay",
        concat!(
            r#"{"say":"wrapped","job":"#,
            job!(),
            r#","key":{"device":"#,
            dev!(),
            r#","wrapped":"AAAA"}}"#
        ),
    ),
    ("ToRelay", r#"{"say":"beat"}"#),
    (
        "ToAgent",
        concat!(
            r#"{"say":"welcome","wire":1,"relay":"0.1.0","epoch":7,"terms":{"lease":45000,"renew":10000,"margin":5000,"heartbeat":10000},"device":"#,
            dev!(),
            "}"
        ),
    ),
    (
        "ToAgent",
        concat!(
            r#"{"say":"assign","attempt":"#,
            attempt!(),
            r#","member_name":"ada","spec":"#,
            spec!(),
            r#","image":"#,
            layers!(),
            r#","gpus":["GPU-1"],"input":"#,
            hash!(),
            r#","from":null,"data":["#,
            data_input!(),
            r#"],"key":"AAAA","sealed":"AAAA","resumed":true,"previous":1}"#
        ),
    ),
    ("ToAgent", concat!(r#"{"say":"renewed","seq":9,"counting":["#, attempt!(), r#"],"stale":[]}"#)),
    ("ToAgent", concat!(r#"{"say":"end","attempt":"#, attempt!(), r#","cause":{"kind":"stale"}}"#)),
    ("ToAgent", concat!(r#"{"say":"published","attempt":"#, attempt!(), r#","snapshot":"#, hash!(), "}")),
    (
        "ToAgent",
        concat!(
            r#"{"say":"publish_refused","attempt":"#,
            attempt!(),
            r#","snapshot":"#,
            hash!(),
            r#","reason":"stale"}"#
        ),
    ),
    ("ToAgent", concat!(r#"{"say":"end_seen","attempt":"#, attempt!(), "}")),
    ("ToAgent", concat!(r#"{"say":"log_kept","attempt":"#, attempt!(), r#","offset":5}"#)),
    (
        "ToAgent",
        concat!(r#"{"say":"wrap_for","job":"#, job!(), r#","device":"#, dev!(), r#","public_key":"AAAA"}"#),
    ),
    (
        "Assignment",
        concat!(
            r#"{"attempt":"#,
            attempt!(),
            r#","member_name":"ada","spec":"#,
            spec!(),
            r#","image":{"from":"registry","reference":"a:b","digest":null},"gpus":[],"input":null,"from":null,"data":[],"key":"","sealed":"","resumed":false}"#
        ),
    ),
    (
        "ToInit",
        r#"{"say":"begin","command":["/digits"],"env":[["A","b"]],"directory":"/workspace","egress_deadline":null,"disk_limit":1073741824}"#,
    ),
    ("ToInit", r#"{"say":"adopt","egress_deadline":5}"#),
    ("ToInit", r#"{"say":"stop","seq":1}"#),
    ("ToInit", r#"{"say":"leave","seq":1,"signal":15,"deadline":99}"#),
    ("FromInit", r#"{"say":"hello","version":1,"begun":false}"#),
    ("FromInit", r#"{"say":"stopped","seq":1,"processes":3,"took_us":120}"#),
    ("FromInit", r#"{"say":"exited","how":"signal","signal":9}"#),
    ("FromInit", r#"{"say":"usage","bytes":4096,"files":2}"#),
    ("FromInit", r#"{"say":"saved","at_ns":-1}"#),
    (
        "Join",
        r#"{"code":"0123456789abcdef0123456789abcdef","member_name":"ada","device_name":"laptop","public_key":"AAAA"}"#,
    ),
    (
        "Joined",
        concat!(
            r#"{"group":"lab","member":"#,
            mem!(),
            r#","member_name":"ada","role":"member","device":"#,
            dev!(),
            r#","token":"00"}"#
        ),
    ),
    (
        "Me",
        concat!(
            r#"{"group":"lab","member":"#,
            mem!(),
            r#","member_name":"ada","role":"operator","device":"#,
            dev!(),
            r#","device_name":"laptop"}"#
        ),
    ),
    ("NewInvite", r#"{"role":"member","valid_s":86400}"#),
    (
        "MadeInvite",
        r#"{"id":"inv_01m8qfkhe2r9xwn04gv94p9d7z","link":"gpunion://join/x","expires":1764000000000}"#,
    ),
    ("MemberView", concat!(r#"{"id":"#, mem!(), r#","name":"ada","role":"member","devices":[]}"#)),
    (
        "DeviceView",
        concat!(
            r#"{"id":"#,
            dev!(),
            r#","member":"#,
            mem!(),
            r#","name":"lab-7","public_key":"AAAA","connected":true,"offer":"#,
            offer!(),
            "}"
        ),
    ),
    (
        "Submit",
        concat!(
            r#"{"job":"#,
            job!(),
            r#","spec":"#,
            spec!(),
            r#","image":"#,
            layers!(),
            r#","input":"#,
            hash!(),
            r#","data":["#,
            data_input!(),
            r#"],"keys":[{"device":"#,
            dev!(),
            r#","wrapped":"AAAA"}],"sealed":"AAAA"}"#
        ),
    ),
    ("Submitted", concat!(r#"{"job":"#, job!(), r#","state":"queued","why":"all are lent"}"#)),
    ("HavePacks", concat!(r#"{"packs":["#, hash!(), "]}")),
    ("MissingPacks", concat!(r#"{"missing":["#, hash!(), "]}")),
    (
        "Event",
        concat!(
            r#"{"event":"job","job":"#,
            job!(),
            r#","state":"failed","cause":{"kind":"memory_limit"},"at":1764000000000}"#
        ),
    ),
    ("Event", r#"{"event":"group"}"#),
    ("LogPiece", r#"{"log":"bytes","next":5,"bytes":"aGVsbG8="}"#),
    ("LogPiece", r#"{"log":"attempt","next":5,"number":2,"device_name":"lab-7"}"#),
    (
        "Snapshot",
        concat!(
            r#"{"version":4,"agent":{"version":"0.1.0","pid":1,"device_name":"lab-7","data":"/home/a/gpunion","token_in":"file"},"group":{"name":"lab","member":"#,
            mem!(),
            r#","member_name":"ada","role":"member","device":"#,
            dev!(),
            r#","relay":"r:1","connected":true,"trouble":null},"share":{"wish":{"wish":"sharing","until":null},"gpus":{"GPU-1":{"wish":"not_sharing"}},"caps":{"cpus":2,"memory":"1 GiB","disk":"1 GiB"},"open":true,"why":"lent"},"engine":{"engine":"ready","name":"docker","version":"26","gpu":"cdi"},"gpus_absent":null,"gpus":[],"guests":[],"last_receipt":"#,
            receipt!(),
            "}"
        ),
    ),
    (
        "ShareRequest",
        r#"{"on":true,"gpu":"GPU-1","until":1764000000000,"cpus":2,"memory":"1 GiB","disk":"2 GiB"}"#,
    ),
    ("ReclaimRequest", r#"{"gpu":"GPU-1"}"#),
    ("JoinRequest", r#"{"link":"gpunion://join/x","member_name":"ada"}"#),
    ("Left", r#"{"trouble":"the relay was not told"}"#),
    ("LogEvent", concat!(r#"{"problem":"#, problem!(), "}")),
    ("LogEvent", r#"{"log":"gap","next":5,"bytes":9}"#),
    ("PreviewRequest", concat!("{", preview_request!(), "}")),
    ("SubmitRequest", concat!("{", preview_request!(), r#","accepted":true}"#)),
    (
        "Preview",
        concat!(
            r#"{"spec":"#,
            spec!(),
            r#","secrets_missing":[],"image_suggested":null,"image_from":"registry","files":1,"bytes":2,"largest":[["a",2]],"left_out":0,"warnings":["w"]}"#
        ),
    ),
    ("SubmitProgress", concat!(r#"{"step":"submitted","job":"#, job!(), r#","sent":1,"reused":2}"#)),
    ("SubmitProgress", concat!(r#"{"step":"failed","problem":"#, problem!(), "}")),
    ("FetchRequest", r#"{"into":"/home/ada/out","checkpoint":true}"#),
    ("FetchProgress", r#"{"step":"done","into":"/home/ada/out","files":2,"bytes":9}"#),
    ("Finding", r#"{"about":"engine","grade":"bad","what":"none","fix":"install one"}"#),
    (
        "JobView",
        concat!(
            r#"{"id":"#,
            job!(),
            r#","member":"#,
            mem!(),
            r#","member_name":"ada","spec":"#,
            spec!(),
            r#","image":"#,
            layers!(),
            r#","state":"running","submitted":1764000000000,"attempts":[{"number":1,"device":"#,
            dev!(),
            r#","device_name":"lab-7","state":{"state":"ended","cause":{"kind":"broken","reason":"x"}},"started":1,"ended":2,"standin":true}],"checkpoints":["#,
            checkpoint!(),
            r#"],"result":null}"#
        ),
    ),
    ("JobSpec", SPEC_JSON),
    ("Image", layers!()),
    ("EndCause", r#"{"kind":"could_not_start","reason":"no image"}"#),
    ("Checkpoint", checkpoint!()),
    ("Offer", offer!()),
    ("Problem", problem!()),
    ("Receipt", receipt!()),
    (
        "HistoryEntry",
        concat!(
            r#"{"attempt":"#,
            attempt!(),
            r#","name":"n","member":"ada","gpus":["GPU-1"],"from":1,"until":2,"lasted":1,"ended":"The program finished","receipt":"#,
            receipt!(),
            "}"
        ),
    ),
    ("Invite", r#""gpunion://join/0123456789abcdef0123456789abcdef?group=lab&at=relay.example:7443""#),
    ("JobId", job!()),
    ("MemberId", mem!()),
    ("DeviceId", dev!()),
    ("SnapshotId", hash!()),
    ("PackId", hash!()),
    ("GpuUuid", r#""GPU-1""#),
    ("Token", r#"{"epoch":7,"attempt":2}"#),
    ("AttemptRef", attempt!()),
    ("Blob", r#""aGVsbG8=""#),
    ("Bytes", r#""1.5 GiB""#),
    ("Span", r#""5 min""#),
];
