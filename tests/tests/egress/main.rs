//! Egress of real guests, by a real engine, to an outside of the test's own: what a job asks for and
//! the owner allows is reached by name, and nothing near the owner is, in whatever way.

#![expect(clippy::unwrap_used, reason = "tests")]

mod outside;

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use gpunion_protocol::egress::Contacts;
use gpunion_protocol::job::{AttemptState, JobState, JobView, StopWhy};
use gpunion_protocol::receipt::HistoryEntry;
use outside::{Outside, SERVER};
use serde_json::Value;
use system_tests::campus::{Campus, Device, PATIENCE, Relay};
use system_tests::lab::{Engine, User, wait_for};

/// Short enough to see a lease end.
const TERMS: &str = "lease = \"8 s\"\nrenew = \"1 s\"\nmargin = \"1 s\"\nheartbeat = \"1 s\"\n";
const RULE: &str = "egress = [\"*.example.org\"]\n";

struct World {
    // Devices and relay end before the engine, that before the lab.
    ada: Device,
    lab: Device,
    relay: Relay,
    engine: Engine,
    _campus: Campus,
    outside: Outside,
}

fn write_as(user: &User, path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    chown(path, Some(user.uid()), Some(user.gid())).unwrap();
}

impl World {
    fn new() -> Self {
        let outside = Outside::enter().unwrap();
        let campus = Campus::new().unwrap();
        let engine = campus.lab.engine("a").unwrap();
        campus.python_image(&engine).unwrap();
        let mut relay = campus.relay(campus.lab.user("op").unwrap()).unwrap();
        relay.kill().unwrap();
        write_as(&relay.user, &relay.user.home().join("relay/relay.toml"), TERMS);
        relay.start_again().unwrap();
        let device = |name: &str, user: &str| {
            let device = campus.device(name, campus.lab.user(user).unwrap(), &engine.socket(), None).unwrap();
            device.join(&relay.invite("member").unwrap(), user).unwrap();
            device
        };
        let (lab, ada) = (device("lab-7", "grace"), device("laptop", "ada"));
        lab.share().unwrap();
        Self { ada, lab, relay, engine, _campus: campus, outside }
    }

    fn submit(&self, name: &str, script: &str, egress: &str, urls: &[&str]) -> String {
        let urls = serde_json::to_string(urls).unwrap();
        let spec = format!(
            "name = \"{name}\"\nimage = \"digits-python:latest\"\ncommand = [\"python3\", \"job.py\"]\n\
             [resources]\ngpus = 0\nmemory = \"256 MiB\"\ndisk = \"1 GiB\"\n{egress}[env]\nURLS = '{urls}'\n"
        );
        let folder = self.ada.job_folder(name, &spec).unwrap();
        self.ada.write_in(&folder, "job.py", script).unwrap();
        self.ada.write_in(&folder, "root.pem", &self.outside.root).unwrap();
        self.ada.submit(&folder).unwrap().0
    }

    fn ends_well(&self, id: &str) -> JobView {
        let job = self.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final());
        let job = job.unwrap_or_else(|error| panic!("{error:#}\n{}", self.lab.log()));
        let log = self.ada.run(["logs", id]).unwrap();
        assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}\n{}", log.out, self.lab.log());
        job
    }

    fn report(&self, name: &str) -> Value {
        let into = format!("{name}-result");
        self.ada.run(["fetch", name, &into]).unwrap().ok().unwrap();
        serde_json::from_slice(&fs::read(self.ada.user.home().join(into).join("report.json")).unwrap())
            .unwrap()
    }

    /// What the owner sees of the one guest.
    fn contacts(&self) -> Option<Contacts> {
        self.lab.snapshot().unwrap().guests.first().and_then(|guest| guest.contacts.clone())
    }

    /// The owner writes a line into the settings, and the agent is started with it.
    fn allow(&mut self, settings: &str) {
        self.lab.kill_agent().unwrap();
        write_as(&self.lab.user, &self.lab.data().join("settings.toml"), settings);
        self.lab.start_agent().unwrap();
    }
}

const REACH: &str = include_str!("reach.py");
const EGRESS: &str = "[network]\negress = [\"*.example.org\"]\n";

#[test]
fn guests_reach_what_they_ask_for_and_the_owner_allows_and_nothing_else() {
    let mut world = World::new();
    nothing_is_reached_without_being_asked_for(&world);
    an_owner_must_allow_it_first(&mut world);
    each_way_is_judged_and_the_owner_sees_it(&world);
    the_end_of_the_lease_stops_and_cuts_and_a_renewal_lets_it_go_on(&mut world);
}

fn nothing_is_reached_without_being_asked_for(world: &World) {
    world.outside.name("ok.example.org", &["11.0.0.5"]);
    let id = world.submit("plain", REACH, "", &["http://ok.example.org/hello"]);
    world.ends_well(&id);
    let report = world.report("plain");
    assert_eq!(report["variables"], Value::Array(Vec::new()), "{report}");
    assert_eq!(report["mount"], false, "{report}");
    assert_eq!(report["interfaces"], "['lo']", "{report}");
    for way in ["proxy", "direct", "past init", "http://ok.example.org/hello"] {
        let outcome = report[way].as_str().unwrap();
        assert!(!outcome.contains("hello") && !outcome.contains("listens"), "{way}: {report}");
    }
    assert!(world.outside.seen().is_empty(), "{:?}", world.outside.seen());
}

fn an_owner_must_allow_it_first(world: &mut World) {
    let id = world.submit("asks", REACH, EGRESS, &["http://ok.example.org/hello"]);
    let because = |job: &JobView| matches!(&job.state, JobState::Queued { why } if why.contains("*.example.org") && why.contains("reach"));
    world.ada.wait_job(&id, "the reason", PATIENCE, because).unwrap();
    let status = world.lab.run(["share", "status"]).unwrap().ok().unwrap().out;
    assert!(status.contains("jobs may reach: nothing outside"), "{status}");
    world.allow(RULE);
    world.ends_well(&id);
    assert_eq!(world.report("asks")["http://ok.example.org/hello"], "hello from outside");
}

/// What is asked for, and what must come of it: the body, or a part of the sentence.
fn ways(outside: &Outside) -> Vec<(&'static str, &'static str)> {
    outside.name("rebind.example.org", &["11.0.0.5", "127.0.0.1"]);
    outside.name("local.example.org", &["127.0.0.1"]);
    outside.name("meta.example.org", &["169.254.169.254"]);
    outside.name("lan.example.org", &["10.0.0.7"]);
    outside.name("own.example.org", &[Outside::own()]);
    outside.name("other.example.net", &["11.0.0.5"]);
    outside.name("gone.example.org.inside.example", &["11.0.0.5"]);
    vec![
        ("http://ok.example.org/hello", "hello from outside"),
        ("https://ok.example.org/secure", "hello from outside"),
        ("http://ok.example.org/to-self", "hello from outside"),
        ("http://rebind.example.org/first", "hello from outside"),
        ("http://rebind.example.org/second", "127.0.0.1, a loopback address"),
        ("https://local.example.org/", "127.0.0.1, a loopback address"),
        ("http://local.example.org/", "127.0.0.1, a loopback address"),
        ("http://meta.example.org/", "169.254.169.254, a link-local address"),
        ("http://lan.example.org/", "10.0.0.7, a private address"),
        ("http://own.example.org/", "an address of the provider's own"),
        ("http://ok.example.org/to-lan", "10.0.0.7, a private address"),
        ("http://ok.example.org/to-literal", "10.0.0.7 is an address"),
        ("http://ok.example.org/to-meta", "169.254.169.254 is an address"),
        ("http://10.0.0.7/", "10.0.0.7 is an address"),
        ("http://11.0.0.5/", "11.0.0.5 is an address"),
        ("https://11.0.0.5/", "11.0.0.5 is an address"),
        ("http://other.example.net/", "other.example.net:80 is not in this job's [network] egress"),
        ("http://ok.example.org:8080/", "ok.example.org:8080 is not in this job's [network] egress"),
        ("http://gone.example.org/", "gone.example.org:80 was not reached"),
        ("http://ok.example.org/wait", "you may go"),
    ]
}

fn each_way_is_judged_and_the_owner_sees_it(world: &World) {
    let ways = ways(&world.outside);
    let urls: Vec<&str> = ways.iter().map(|(url, _)| *url).collect();
    let id = world.submit("reach", REACH, EGRESS, &urls);
    let waits = format!("{SERVER}:80 /wait");
    wait_for("the last request", PATIENCE, || Ok(world.outside.has_seen(&waits).then_some(()))).unwrap();
    let container = world.engine.guest().unwrap();
    assert_eq!(world.engine.inspect(&container).unwrap()["HostConfig"]["NetworkMode"], "none");
    // The picture is told a moment later.
    let told = |contacts: &Contacts| contacts.list.iter().any(|contact| contact.name == "gone.example.org");
    wait_for("the owner's picture", PATIENCE, || Ok(world.contacts().filter(told))).unwrap();
    let shown = world.lab.run(["gpus"]).unwrap().ok().unwrap().out;
    world.outside.release();
    world.ends_well(&id);

    let report = world.report("reach");
    for (url, expected) in &ways {
        let outcome = report[url].as_str().unwrap();
        assert!(outcome.contains(expected), "{url}: {outcome:?}\n{}", world.lab.log());
    }
    assert_eq!(report["interfaces"], "['lo']", "{report}");
    let past = report["past init"].as_str().unwrap();
    assert!(past == "b''" || past.contains("Error"), "only init is let in: {past}");
    assert!(!report["direct"].as_str().unwrap().contains("socket"), "{report}");
    let near: Vec<String> =
        world.outside.seen().into_iter().filter(|seen| !seen.starts_with(&SERVER.to_string())).collect();
    assert!(near.is_empty(), "nothing near the owner was reached: {near:?}");

    let history: Vec<HistoryEntry> = world.lab.json(&["history"]).unwrap();
    let entry = history.iter().find(|entry| entry.name == "reach").unwrap();
    let contacts = entry.contacts.as_ref().unwrap();
    let find = |name: &str, port: u16, refused: bool| {
        let found = contacts
            .list
            .iter()
            .find(|c| (c.name.as_str(), c.port, c.refused.is_some()) == (name, port, refused));
        found.unwrap_or_else(|| panic!("{name}:{port} {refused}: {contacts:#?}"))
    };
    let ok = find("ok.example.org", 80, false);
    assert!(ok.up > 500 && ok.down > 100 && ok.times >= 6 && ok.last >= ok.first, "{ok:?}");
    assert!(find("ok.example.org", 443, false).down > 500, "a certificate came by");
    assert!(find("lan.example.org", 80, true).refused.as_ref().unwrap().contains("private"));
    assert!(find("10.0.0.7", 80, true).times >= 2);
    let history = world.lab.run(["history"]).unwrap().ok().unwrap().out;
    for text in [shown, history] {
        for word in ["ok.example.org:443", "REFUSED lan.example.org:80", "REFUSED other.example.net:80"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    }
}

fn the_end_of_the_lease_stops_and_cuts_and_a_renewal_lets_it_go_on(world: &mut World) {
    let id = world.submit("drip", include_str!("drip.py"), EGRESS, &[]);
    let drips = format!("{SERVER}:80 /drip");
    wait_for("the drip", PATIENCE, || Ok(world.outside.has_seen(&drips).then_some(()))).unwrap();
    world.relay.kill().unwrap();
    let over = AttemptState::Stopped { why: StopWhy::LeaseOver };
    wait_for("the guest to stop by itself", PATIENCE, || {
        Ok(world.lab.snapshot()?.guests.iter().any(|guest| guest.state == over).then_some(()))
    })
    .unwrap();
    wait_for("the connection to be cut", PATIENCE, || {
        Ok(world.outside.has_seen("the drip was cut").then_some(()))
    })
    .unwrap();
    assert!(!world.outside.has_seen(&format!("{SERVER}:80 /again")), "{:?}", world.outside.seen());
    world.relay.start_again().unwrap();
    let job = world.ends_well(&id);
    assert_eq!(job.attempts.len(), 1, "{job:#?}");
}
