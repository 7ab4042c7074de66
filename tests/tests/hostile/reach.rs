//! Looking for what is not the guest's, and asking for rights that it has not.

use gpunion_protocol::job::{EndCause, JobState};

use crate::shared::world;
use crate::world::{Attempts, Services, Who, host_socket};

/// Port that the victim listens on, in its own network (`hostile-guest/src/victim.rs`).
const VICTIM: u16 = 47_011;

const TCP: [(&str, &str); 3] =
    [("loopback", "tcp-loopback"), ("loopback6", "tcp-loopback6"), ("lan", "tcp-lan")];
const UDP: [(&str, &str); 3] =
    [("loopback", "udp-loopback"), ("loopback6", "udp-loopback6"), ("lan", "udp-lan")];

/// All that the attacker tries, in one go; each test looks at its own.
pub(crate) fn attempts(services: &Services, token: &str) -> Attempts {
    let mut all = Attempts::default();
    for (verb, places, names) in [("tcp", &services.tcp, TCP), ("udp", &services.udp, UDP)] {
        for (place, address) in places {
            let (_, name) = names.iter().find(|(known, _)| known == place).unwrap();
            all.add(name, Who::Owner, format!("{verb} {address}"));
        }
    }
    all.add("relay", Who::Owner, format!("tcp {}", services.relay));
    all.add("interfaces", Who::Owner, "interfaces");
    all.add("routes", Who::Owner, "routes");
    all.add("packets", Who::Root, "packets");
    all.add("abstract-host", Who::Owner, format!("abstract {}", host_socket(token)));

    let (engine, lab) = (services.engine.display(), services.lab.display());
    all.add("engine", Who::Owner, format!("engine {engine}"));
    all.differ("engine-usual", Who::Owner, "engine /var/run/docker.sock", format!("engine {engine}"));
    all.differ("engine-run", Who::Owner, "engine /run/docker.sock", format!("engine {engine}"));
    // Its own channel is there, and what it may say on it is a test of its own.
    all.differ("sockets", Who::Owner, "sockets / /run/gpunion-ctl/init.sock", format!("sockets {lab} none"));

    let home = services.home.display();
    all.add("home-file", Who::Owner, format!("read {home}/{token}-home"));
    all.differ("home-find", Who::Owner, format!("find {token}-home /"), format!("find {token}-home {lab}"));
    all.add("shadow", Who::Root, "read /etc/shadow");
    // PID 1 of the guest is not the host's; outside, the path alone is tried.
    all.differ(
        "pid1-root",
        Who::Owner,
        format!("read /proc/1/root{home}/{token}-home"),
        format!("read /proc/self/root{home}/{token}-home"),
    );
    all.differ("gpu-find", Who::Owner, "find GPU-stand-in-3 /", format!("find GPU-stand-in-3 {lab}"));
    all.differ("write-root", Who::Root, "write /harm", format!("write {lab}/harm"));
    all.differ(
        "write-init",
        Who::Root,
        "write /run/gpunion-init",
        format!("write {}.harm", services.init.display()),
    );
    all.add("devices", Who::Owner, "devices");
    all.differ("mknod", Who::Root, "mknod /workspace/disk", format!("mknod {lab}/disk"));
    all.differ("mknod-tmp", Who::Root, "mknod /tmp/disk", format!("mknod {lab}/disk"));

    for right in ["capabilities", "setuid", "mount", "namespace", "chroot", "host-name"] {
        all.add(right, Who::Root, right);
    }

    all.add("dockerd", Who::Owner, "process dockerd");
    all.add("agent", Who::Owner, "process agent");
    all.differ("victim-process", Who::Root, format!("process {token}"), format!("process {token}"));
    all.add("victim-tcp", Who::Victim, format!("tcp 127.0.0.1:{VICTIM}"));
    all.add("victim-udp", Who::Victim, format!("udp 127.0.0.1:{VICTIM}"));
    all.add("victim-abstract", Who::Victim, format!("abstract {token}"));
    all.add("victim-find", Who::Victim, format!("find {token} /"));
    all.add("victim-sockets", Who::Victim, "sockets /workspace none");
    crate::channel::attempts(&mut all, &lab.to_string());
    crate::fill::attempts(&mut all);
    all
}

#[test]
fn services_of_the_host_on_loopback_are_not_reached() {
    let world = world();
    world.refuses(&["tcp-loopback", "udp-loopback", "relay"]);
    for name in ["tcp-loopback6", "udp-loopback6"] {
        if world.was_tried(name) {
            world.refuses(&[name]);
        }
    }
}

#[test]
fn services_of_the_host_on_its_lan_address_are_not_reached() {
    world().refuses(&["tcp-lan", "udp-lan"]);
}

#[test]
fn there_is_no_network_to_look_into() {
    world().refuses(&["interfaces", "routes", "packets"]);
}

#[test]
fn sockets_without_a_file_are_not_reached() {
    world().refuses(&["abstract-host"]);
}

#[test]
fn the_engine_s_socket_is_not_there() {
    world().refuses(&["engine", "engine-usual", "engine-run", "sockets"]);
}

#[test]
fn no_file_of_the_host_is_read() {
    world().refuses(&["home-file", "home-find", "shadow", "pid1-root"]);
}

#[test]
fn nothing_is_written_but_the_guest_s_own() {
    world().refuses(&["write-root", "write-init"]);
}

#[test]
fn no_device_is_there_or_can_be_made() {
    world().refuses(&["devices", "mknod", "mknod-tmp", "gpu-find"]);
}

#[test]
fn no_right_is_held_or_gained() {
    world().refuses(&["capabilities", "setuid", "mount", "namespace", "chroot", "host-name"]);
}

#[test]
fn processes_of_the_host_are_not_seen() {
    world().refuses(&["dockerd", "agent"]);
}

#[test]
fn another_guest_on_the_same_machine_is_not_reached() {
    let world = world();
    let machine = |job: &gpunion_protocol::job::JobView| job.attempts.last().unwrap().device_name.clone();
    let [before, after] = &world.victim;
    assert_eq!(machine(before), machine(&world.attacker), "they were not beside each other");
    assert_eq!(
        (&after.state, &after.attempts),
        (&JobState::Running, &before.attempts),
        "the victim was disturbed"
    );
    world.refuses(&["victim-tcp", "victim-udp", "victim-abstract", "victim-find", "victim-sockets"]);
    // The victim has ended by now, so this has no outside any more; `dockerd` shows that it is seen.
    assert!(world.said("victim-process").starts_with("refused "), "{}", world.said("victim-process"));
}

/// It forged a report that its program ended with 0, and tried to end init; it ended with 7.
#[test]
fn a_job_ends_as_its_program_does_and_not_as_it_says() {
    let world = world();
    let failed = JobState::Failed { cause: EndCause::Exited { code: 7 } };
    assert_eq!(world.attacker.state, failed, "{:#?}", world.attacker);
    assert_eq!(world.attacker.attempts.len(), 1, "{:#?}", world.attacker);
}
