//! Guests: hardened, controlled, ended; and what is not ours.

use gpunion_agent_core::channel::Watched;
use gpunion_agent_core::container::cgroup::Cgroup;
use gpunion_agent_core::container::{Engine, Kind, limits};
use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::DeviceId;

use crate::harness::{LIMIT, both};

/// One letter, as the kernel has it.
fn state(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("gone", |(_, after)| after);
    after.split_whitespace().next().unwrap_or_default().to_owned()
}

#[test]
fn a_guest_is_hardened_and_stands_still_when_told() {
    both("guests::a_guest_is_hardened_and_stands_still_when_told", &["one"], |inner| async move {
        let mut guest = inner.guest("one", 1, "cat /proc/self/status; echo NET; cat /proc/net/dev; echo ROOT; \
            touch /x; touch /tmp/x && echo TMP; ls /dev/gpunion-standin; echo VISIBLE $NVIDIA_VISIBLE_DEVICES; \
            (setsid busybox sh -c 'trap \"\" TERM HUP INT; while true; do busybox sleep 1; done' &) ; \
            echo READY; while true; do :; done").await;
        let output = guest.output_until("READY");
        let field = |name: &str| {
            let line = output
                .lines()
                .find(|line| line.starts_with(name))
                .unwrap_or_else(|| panic!("{name}: {output}"));
            line[name.len()..].split_whitespace().next().unwrap().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
        assert_eq!(field("Uid:"), guest.plan.uid.to_string());
        assert_eq!(field("Gid:"), guest.plan.uid.to_string());
        let net: Vec<&str> = output
            .split("NET")
            .nth(1)
            .unwrap()
            .split("ROOT")
            .next()
            .unwrap()
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.trim())
            .collect();
        assert_eq!(net, ["lo"], "{output}");
        assert!(output.contains("Read-only file system") && output.contains("TMP"), "{output}");
        assert!(output.contains("GPU-standin-1") && !output.contains("GPU-standin-2"), "{output}");

        let pid = guest.init_pid();
        limits::check(&guest.plan, &Cgroup::of(pid).unwrap().limits().unwrap()).unwrap();
        let processes = Cgroup::of(pid).unwrap().processes().unwrap();
        assert!(processes.len() >= 3, "{processes:?}");

        // A pause, as for a checkpoint, while the engine stands still.
        inner.ask("freeze one");
        assert!(guest.stop(1).await >= 2);
        let states = processes.iter().map(|process| state(process.pid));
        let running = states.filter(|state| state != "T").count();
        assert_eq!(running, 1, "all but init stand still");
        guest.go_on(2).await;
        assert!(processes.iter().all(|process| state(process.pid) != "T"));
        inner.ask("thaw one");
        guest.remove().await;
    });
}

#[test]
fn out_of_memory_is_told_from_the_cgroup() {
    both("guests::out_of_memory_is_told_from_the_cgroup", &["one"], |inner| async move {
        let mut guest = inner.guest("one", 1, "x=0123456789abcdef; while true; do x=$x$x$x$x; done").await;
        let exit = guest
            .wait_for(|said| match said {
                FromInit::Exited(exit) => Some(*exit),
                _ => None,
            })
            .await;
        assert_eq!(exit, Exit::Signal { signal: 9 });
        let cgroup = Cgroup::of(guest.init_pid()).unwrap();
        assert!(cgroup.killed_at_its_limit().unwrap());
        let init = guest.channel.init().unwrap();
        guest.channel.send(&ToInit::ExitSeen).unwrap();
        if let Some(watched) = Watched::open(init).unwrap() {
            tokio::time::timeout(LIMIT, watched.ended()).await.unwrap().unwrap();
        }
        guest.remove().await;
    });
}

/// The machine ran out of memory, and the guest went first: that is its owner's doing.
#[test]
fn a_kill_for_the_machine_s_sake_is_not_the_guest_s_limit() {
    both("guests::a_kill_for_the_machine_s_sake_is_not_the_guest_s_limit", &["poor"], |inner| async move {
        let script = "echo READY; read x < /dev/zero & busybox sleep 1; x=0123456789abcdef; while true; do x=$x$x$x$x; done";
        let mut guest = inner.guest("poor", 1, script).await;
        inner.ask(&format!("shrink poor {}", 48 << 20));
        let exit = guest
            .wait_for(|said| match said {
                FromInit::Exited(exit) => Some(*exit),
                _ => None,
            })
            .await;
        assert_eq!(exit, Exit::Signal { signal: 9 });
        assert!(!Cgroup::of(guest.init_pid()).unwrap().killed_at_its_limit().unwrap());
        guest.remove().await;
    });
}

#[test]
fn f02_what_is_not_ours_is_never_touched_and_what_is_ours_is_found() {
    both(
        "guests::f02_what_is_not_ours_is_never_touched_and_what_is_ours_is_found",
        &["one"],
        |inner| async move {
            let foreign = inner.ask("make-foreign one");
            let engine = inner.engine("one");
            for answer in [engine.kill_guest(&foreign).await, engine.remove_guest(&foreign).await] {
                let error = answer.unwrap_err();
                assert!(!error.is_away() && error.to_string().contains("not this device's"), "{error}");
            }
            let theirs = engine.remove_volume("somebodys").await.unwrap_err();
            assert!(theirs.to_string().contains("not this device's"), "{theirs}");
            let guest = inner.guest("one", 1, "busybox sleep 1000").await;
            let ours = engine.list_ours().await.unwrap();
            assert_eq!(ours.len(), 1, "{ours:?}");
            assert_eq!((ours[0].kind, ours[0].attempt.as_ref()), (Kind::Guest, Some(&guest.plan.attempt)));
            assert_eq!(
                engine.create_guest(&guest.plan).await.unwrap(),
                guest.id,
                "making it twice makes one"
            );
            // Another device on the same engine sees none of it.
            let other = Engine::connect(engine.socket(), &DeviceId::new(9, [9; 10]));
            assert_eq!(other.list_ours().await.unwrap(), []);
            assert!(other.remove_guest(&guest.id).await.is_err());
            engine.kill_guest(&guest.id).await.unwrap();
            let state = engine.inspect_guest(&guest.id).await.unwrap().unwrap();
            assert_eq!((state.running, state.exit_code), (false, Some(137)));
            guest.remove().await;
            assert_eq!(engine.list_ours().await.unwrap(), []);
            assert_eq!(engine.list_volumes().await.unwrap(), []);
            assert_eq!(inner.ask(&format!("is-there one {foreign}")), "yes");
        },
    );
}
