//! The same hands on a machine with cgroup v2 alone, whose controllers are missing.

use std::path::PathBuf;

use gpunion_agent_core::channel::Watched;
use gpunion_agent_core::container::cgroup::Cgroup;
use gpunion_agent_core::container::limits;
use gpunion_agent_core::gpu::{container_of, process_identity};
use gpunion_protocol::guest::ToInit;
use system_tests::lab::wait_for;

use crate::harness::{LIMIT, both};

#[test]
fn a_guest_on_v2_is_told_apart_stopped_frozen_and_ended_and_its_missing_limits_are_refused() {
    both(
        "cgroup2::a_guest_on_v2_is_told_apart_stopped_frozen_and_ended_and_its_missing_limits_are_refused",
        &["v2"],
        |inner| async move {
            let engine = inner.engine("v2");
            let facts = engine.probe(&[], Some(&inner.standin)).await.unwrap();
            assert_eq!(facts.cgroup_version, 2);
            for limit in ["memory", "CPU time", "the number of processes"] {
                let found = facts.troubles.iter().find(|trouble| trouble.what.ends_with(limit));
                assert!(found.is_some_and(|trouble| trouble.blocks), "{limit}: {:?}", facts.troubles);
            }

            // Made all the same, with init as everywhere.
            let mut guest =
                inner.guest("v2", 1, "(busybox sleep 1000 &); echo READY; busybox sleep 1000").await;
            guest.output_until("READY");
            let init = guest.channel.init().unwrap();
            assert_eq!(container_of(init.pid).as_deref(), Some(guest.id.as_str()));
            assert_eq!(process_identity(init.pid), (Some(init.start_time), Some(guest.id.clone())));
            let cgroup = Cgroup::of(init.pid).unwrap();
            let processes = cgroup.processes().unwrap();
            assert!(processes.contains(&init) && processes.len() >= 3, "{processes:?}");
            for process in &processes {
                assert_eq!(container_of(process.pid).as_deref(), Some(guest.id.as_str()), "{process:?}");
            }

            // Each limit that no controller holds is refused, with what is missing.
            let found = cgroup.limits().unwrap();
            let error = limits::check(&guest.plan, &found).unwrap_err().to_string();
            assert!(error.contains("the limit on memory") && error.contains("dropped"), "{error}");
            assert_eq!((found.memory, found.pids, found.milli_cpus), (None, None, None), "{found:?}");

            assert!(guest.stop(1).await >= 1);
            guest.go_on(2).await;

            // Frozen by its cgroup, it can be ended all the same.
            let own = std::fs::read_to_string(format!("/proc/{}/cgroup", init.pid)).unwrap();
            let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
            let events = PathBuf::from("/sys/fs/cgroup").join(path).join("cgroup.events");
            let frozen = |word: &'static str| {
                wait_for(word, LIMIT, || Ok(std::fs::read_to_string(&events)?.contains(word).then_some(())))
            };
            inner.ask(&format!("pause v2 {}", guest.id));
            frozen("frozen 1").unwrap();
            inner.ask(&format!("unpause v2 {}", guest.id));
            frozen("frozen 0").unwrap();
            inner.ask(&format!("pause v2 {}", guest.id));
            inner.ask(&format!("kill v2 {}", guest.id));
            for process in processes {
                let watched = Watched::open(process).unwrap();
                assert!(watched.is_none_or(|it| it.wait(LIMIT).unwrap()), "{process:?}");
            }
            guest.remove().await;

            // By one word to init, while the engine stands still.
            let guest = inner.guest("v2", 2, "echo READY; while true; do :; done").await;
            guest.output_until("READY");
            inner.ask("freeze v2");
            let init = guest.channel.init().unwrap();
            let watched = Watched::open(init).unwrap().unwrap();
            guest.channel.send(&ToInit::End { seq: 3 }).unwrap();
            assert!(watched.wait(LIMIT).unwrap());
            inner.ask("thaw v2");
            guest.remove().await;
        },
    );
}
