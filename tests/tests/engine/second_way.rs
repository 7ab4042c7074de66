//! The second way on both versions of cgroups: an init that does not answer, an engine that stands
//! still, and an ordinary user who wants the GPU back.

use std::time::Duration;

use gpunion_agent_core::container::{Engine, SecondWayPlan};
use gpunion_agent_core::second_way::{Cgroups, Rights, Told, ask, cgroups_with};
use gpunion_protocol::second_way::ToSecondWay;
use system_tests::campus::processes_of;
use system_tests::lab::wait_for;

use crate::harness::{Inner, LIMIT, both};

const DEAF: &str = "(/busybox setsid /busybox sh -c 'trap \"\" TERM HUP INT; while true; do /busybox sleep 1; done' &) ; \
                    while true; do :; done";

async fn told(inner: &Inner, question: ToSecondWay) -> Told {
    let folder = inner.home.join("second-way");
    tokio::task::spawn_blocking(move || ask(&folder, &question, Duration::from_secs(5)).unwrap())
        .await
        .unwrap()
}

/// As the agent's keeper does it. What it needs to be allowed is told by the version.
async fn start(inner: &Inner, engine: &Engine, cgroups: Cgroups) {
    let talk = inner.home.join("second-way");
    std::fs::create_dir(&talk).unwrap();
    std::fs::set_permissions(&talk, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let image = engine.helper_image(&inner.programs.join("gpunion-helper")).await.unwrap();
    let owner = nix::unistd::geteuid().as_raw();
    let plan = SecondWayPlan { cgroups, talk: talk.clone(), owner };
    assert!(!engine.has_second_way(&image, &plan).await.unwrap());
    engine.start_second_way(&image, &plan).await.unwrap();
    assert!(engine.has_second_way(&image, &plan).await.unwrap());
    wait_for("the second way to listen", LIMIT, || {
        Ok(ask(&talk, &ToSecondWay::End { containers: Vec::new() }, LIMIT).ok().map(drop))
    })
    .unwrap();
}

async fn ends_a_guest(inner: Inner, engine: &'static str, rights: Rights) {
    let api = inner.engine(engine);
    let facts = api.probe(&[], Some(&inner.standin)).await.unwrap();
    let cgroups = cgroups_with(&inner.device, &facts);
    assert_eq!((cgroups.rights(), facts.cgroup_version == 2), (rights, engine == "v2"));
    let guest = contained(&inner, engine, &cgroups, DEAF);
    let other = contained(&inner, engine, &cgroups, "while true; do /busybox sleep 1; done");
    start(&inner, &api, cgroups).await;
    inner.ask(&format!("stop-process {engine} {}", guest.first));
    inner.ask(&format!("freeze {engine}"));
    let (mine, theirs) = (processes_of(&guest.id).len(), processes_of(&other.id).len());
    assert!(mine >= 2 && theirs >= 2, "{mine} {theirs}");

    let told = told_end(&inner, &guest.id).await;
    let end = &told.answer.guests[0];
    assert!(end.found && end.trouble.is_none() && end.killed as usize >= mine, "{end:?}");
    let (stopped, ended) = (end.stopped_us.unwrap(), end.ended_us.unwrap());
    println!("{engine}: stopped after {stopped} us, ended after {ended} us, engine and init stopped");
    assert!(stopped <= ended && ended < 2_000_000, "{end:?}");
    gone(&guest.id);
    assert!(processes_of(&other.id).len() >= 2, "another guest is left alone");
    // Again, and one that was never here.
    let again = told_end(&inner, &guest.id).await;
    assert_eq!((again.answer.guests[0].killed, again.answer.guests[0].ended_us.is_some()), (0, true));
    let nobody = told_end(&inner, &"0".repeat(64)).await;
    assert!(!nobody.answer.guests[0].found && nobody.answer.guests[0].ended_us.is_none());

    // All of them, and not itself.
    let all = self::told(&inner, ToSecondWay::EndAll).await;
    assert_eq!(all.answer.guests.iter().filter(|end| end.killed > 0).count(), 1, "{all:?}");
    gone(&other.id);
    self::told(&inner, ToSecondWay::End { containers: Vec::new() }).await;

    inner.ask(&format!("thaw {engine}"));
    api.remove_second_way().await.unwrap();
    api.remove_second_way().await.unwrap();
}

/// Something that runs where guests do. Not made as guests are: the machine with cgroup v2 has no
/// limits to give them.
struct Contained {
    id: String,
    first: u32,
}

fn contained(inner: &Inner, engine: &str, cgroups: &Cgroups, script: &str) -> Contained {
    let id = inner.ask(&format!("make-contained {engine} {} {script}", cgroups.parent_of_guests()));
    wait_for("all of its processes", LIMIT, || Ok((processes_of(&id).len() >= 2).then_some(()))).unwrap();
    let first = processes_of(&id).into_iter().min().unwrap();
    Contained { id, first }
}

/// A process that has left its cgroup may be seen for a moment more.
fn gone(id: &str) {
    wait_for("its processes to be gone", LIMIT, || Ok(processes_of(id).is_empty().then_some(()))).unwrap();
}

async fn told_end(inner: &Inner, id: &str) -> Told {
    told(inner, ToSecondWay::End { containers: vec![id.to_owned()] }).await
}

#[test]
fn on_cgroup_v1_it_ends_a_guest_whose_init_and_engine_stand_still() {
    both("second_way::on_cgroup_v1_it_ends_a_guest_whose_init_and_engine_stand_still", &["one"], |inner| {
        ends_a_guest(inner, "one", Rights::KillOnHost)
    });
}

#[test]
fn on_cgroup_v2_it_does_so_without_any_capability() {
    both("second_way::on_cgroup_v2_it_does_so_without_any_capability", &["v2"], |inner| {
        ends_a_guest(inner, "v2", Rights::None)
    });
}
