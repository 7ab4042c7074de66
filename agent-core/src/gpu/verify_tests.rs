//! When a GPU may be called free, on samples made by hand and by chance.

use proptest::prelude::*;

use super::*;

const GUEST: &str = "guest";
const MIB: u64 = 1 << 20;

pub(in super::super) fn sample(used: u64, processes: Vec<GpuProcess>) -> GpuSample {
    GpuSample {
        uuid: GpuUuid("GPU-1".into()),
        name: "stand-in".into(),
        standin: true,
        mig: false,
        memory_total: Some(1 << 40),
        memory_used: Some(used),
        utilisation: Some(0),
        power_mw: None,
        power_limit_mw: None,
        temperature_c: None,
        processes: Some(processes),
        state: GpuState::Ok,
        taken_at: BootMs(100),
    }
}

fn process(pid: u32, memory: Option<u64>, container: Option<&str>) -> GpuProcess {
    let container = container.map(str::to_owned);
    GpuProcess { pid, start_time: Some(u64::from(pid) * 10), memory, container, draws_only: false }
}

fn verification(before: &GpuSample, seen: &[u32]) -> Verification {
    let mut guest = GuestTraces::new(Some(GUEST.into()));
    let ids = seen.iter().map(|pid| ProcessId { pid: *pid, start_time: u64::from(*pid) * 10 });
    guest.seen.extend(ids);
    let before = BeforeGuest::of(before).unwrap_or_else(|| unreachable!("the sample is fresh"));
    Verification::new(before, guest, BootMs(50))
}

fn free(how: How) -> Verdict {
    Verdict::Free { how, telemetry_latch: false }
}

#[test]
fn free_when_list_and_memory_are_as_before() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    assert_eq!(question.observe(&sample(5, vec![])), free(How::ProcessList));
}

#[test]
fn f01_an_orphan_in_the_guests_container_counts_though_never_seen() {
    let mut question = verification(&sample(5, vec![]), &[]);
    let orphan = process(9, Some(22), Some(GUEST));
    let verdict = question.observe(&sample(27, vec![orphan.clone()]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::GuestListed { pids: vec![9] }));
    // It counts on after its cgroup is gone.
    let moved = GpuProcess { container: None, ..orphan };
    let verdict = question.observe(&sample(27, vec![moved]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::GuestListed { pids: vec![9] }));
}

#[test]
fn a_guest_that_makes_process_after_process_is_remembered_in_bounds() {
    let mut guest = GuestTraces::new(Some(GUEST.into()));
    let stays = process(1, Some(5), Some(GUEST));
    for pid in 2..5_000 {
        let new = guest.learn([&sample(9, vec![stays.clone(), process(pid, Some(4), Some(GUEST))])]);
        assert!(new, "{pid} is news");
        assert!(!guest.learn([&sample(5, vec![stays.clone()])]), "nothing to save");
    }
    assert!(guest.seen.len() <= SEEN_MAX + 1, "{}", guest.seen.len());
    assert!(guest.owns(&GpuProcess { container: None, ..stays }), "who is on the list is never forgotten");
    assert!(guest.owns(&process(4_999, None, None)), "nor the youngest");
}

#[test]
fn f04_latched_utilisation_is_free_and_said() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    let latched = GpuSample { utilisation: Some(100), ..sample(5, vec![]) };
    let verdict = question.observe(&latched);
    assert_eq!(verdict, Verdict::Free { how: How::ProcessList, telemetry_latch: true });
}

#[test]
fn f06_an_old_sample_decides_nothing() {
    let mut question = verification(&sample(5, vec![]), &[]);
    let old = GpuSample { taken_at: BootMs(49), ..sample(5, vec![]) };
    assert_eq!(question.observe(&old), Verdict::NotYet(NotYet::NoFreshSample));
    let other = GpuSample { uuid: GpuUuid("GPU-2".into()), ..sample(5, vec![]) };
    assert_eq!(question.observe(&other), Verdict::NotYet(NotYet::NoFreshSample));
    let lost = GpuSample { state: GpuState::Lost { since: BootMs(0) }, ..sample(5, vec![]) };
    assert_eq!(question.observe(&lost), Verdict::NotYet(NotYet::NoAnswer));
}

#[test]
fn memory_that_nobody_explains_is_not_free() {
    let mut question = verification(&sample(5 * MIB, vec![]), &[]);
    let verdict = question.observe(&sample(8 * MIB, vec![]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::MemoryHeld { bytes: 3 * MIB }));
    let Verdict::NotYet(why) = verdict else { unreachable!() };
    assert!(why.to_string().starts_with("3.0 MiB more than before"), "{why}");
}

#[test]
fn the_owners_own_new_program_does_not_hinder() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    let own = process(9, Some(40), None);
    assert_eq!(question.observe(&sample(45, vec![own])), free(How::ProcessList));
}

#[test]
fn a_process_that_cannot_be_looked_at_explains_nothing() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    let unknown = GpuProcess { start_time: None, ..process(9, Some(40), None) };
    let verdict = question.observe(&sample(45, vec![unknown.clone()]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::MemoryHeld { bytes: 40 }));
    // One that was there before is the owner's.
    let mut question = verification(&sample(45, vec![unknown.clone()]), &[7]);
    assert_eq!(question.observe(&sample(45, vec![unknown])), free(How::ProcessList));
}

#[test]
fn a_guests_pid_without_start_time_counts_as_the_guests() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    let gone = GpuProcess { start_time: None, ..process(7, Some(0), None) };
    let verdict = question.observe(&sample(5, vec![gone]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::GuestListed { pids: vec![7] }));
    // The same pid with another start time is somebody else.
    let reused = GpuProcess { start_time: Some(999), ..process(7, Some(0), None) };
    assert_eq!(question.observe(&sample(5, vec![reused])), free(How::ProcessList));
}

#[test]
fn f22_without_a_list_the_device_total_decides_and_says_so() {
    let before = GpuSample { processes: None, ..sample(5, vec![]) };
    let mut question = verification(&before, &[7]);
    let held = GpuSample { processes: None, ..sample(6, vec![]) };
    assert_eq!(question.observe(&held), Verdict::NotYet(NotYet::MemoryHeld { bytes: 1 }));
    assert_eq!(question.observe(&before), free(How::DeviceTotalOnly));
    // A list that appears later is heeded, but explains nothing.
    let guest = sample(5, vec![process(7, None, None)]);
    let verdict = question.observe(&guest);
    assert_eq!(verdict, Verdict::NotYet(NotYet::GuestListed { pids: vec![7] }));
}

#[test]
fn a_list_that_is_missing_now_is_not_an_empty_one() {
    let mut question = verification(&sample(5, vec![]), &[7]);
    let blind = GpuSample { processes: None, ..sample(5, vec![]) };
    assert_eq!(question.observe(&blind), Verdict::NotYet(NotYet::ListMissing));
    let no_memory = GpuSample { memory_used: None, ..sample(5, vec![]) };
    assert_eq!(question.observe(&no_memory), Verdict::NotYet(NotYet::MemoryUnknown));
}

#[test]
fn f22_a_foreign_process_of_untold_size_hides_no_leak() {
    let foreign = process(9, None, None);
    let mut question = verification(&sample(50, vec![foreign]), &[7]);
    // The driver tells its size now; ten bytes of the guest's have leaked.
    let told = process(9, Some(45), None);
    let verdict = question.observe(&sample(60, vec![told]));
    assert_eq!(verdict, Verdict::NotYet(NotYet::MemoryHeld { bytes: 10 }));
}

#[test]
fn traces_survive_their_text_form() -> Result<(), serde_json::Error> {
    let mut guest = GuestTraces::new(Some(GUEST.into()));
    assert!(guest.learn([&sample(5, vec![process(7, None, Some(GUEST)), process(8, None, None)])]));
    assert!(!guest.learn([&sample(5, vec![process(7, None, Some(GUEST))])]));
    let again: GuestTraces = serde_json::from_str(&serde_json::to_string(&guest)?)?;
    assert_eq!(again, guest);
    assert_eq!(again.seen.len(), 1);
    Ok(())
}

/// A GPU with everything that may be on it; the driver tells the truth about what it lists.
#[derive(Debug, Clone)]
struct World {
    idle: u64,
    foreign_before: Vec<(u32, u64)>,
    foreign_now: Vec<(u32, u64)>,
    guest: Vec<(u32, u64)>,
    guest_has_cgroup: bool,
    leaked: u64,
    lists: bool,
    utilisation: u32,
}

fn world() -> impl Strategy<Value = World> {
    let people = |from: u32| prop::collection::btree_map(from..from + 20, 0..1000_u64, 0..4);
    let truth = (0..100_u64, people(100), people(100), people(200), any::<bool>());
    (truth, prop_oneof![Just(0), 0..50_u64], any::<bool>(), 0..=100_u32).prop_map(
        |((idle, before, now, guest, guest_has_cgroup), leaked, lists, utilisation)| World {
            idle,
            foreign_before: before.into_iter().collect(),
            foreign_now: now.into_iter().collect(),
            guest: guest.into_iter().collect(),
            guest_has_cgroup,
            leaked,
            lists,
            utilisation,
        },
    )
}

fn seen_on(world: &World, foreign: &[(u32, u64)], guest: &[(u32, u64)], leaked: u64) -> GpuSample {
    let container = world.guest_has_cgroup.then_some(GUEST);
    let foreign_listed = foreign.iter().map(|(pid, m)| process(*pid, Some(*m), None));
    let guest_listed = guest.iter().map(|(pid, m)| process(*pid, Some(*m), container));
    let used = sum(foreign.iter().chain(guest).map(|(_, m)| *m)) + world.idle + leaked;
    let listed = foreign_listed.chain(guest_listed).collect();
    let mut sample = sample(used, listed);
    sample.utilisation = Some(world.utilisation);
    if !world.lists {
        sample.processes = None;
    }
    sample
}

proptest! {
    /// With a list: free exactly when nothing of the guest is left, whatever the owner does.
    #[test]
    fn free_exactly_when_nothing_of_the_guest_is_left(world in world()) {
        let before = seen_on(&world, &world.foreign_before, &[], 0);
        let seen: Vec<u32> = world.guest.iter().map(|(pid, _)| *pid).collect();
        let mut question = verification(&before, &seen);
        let now = seen_on(&world, &world.foreign_now, &world.guest, world.leaked);
        let verdict = question.observe(&now);
        let left = world.leaked > 0 || !world.guest.is_empty();
        match (&verdict, world.lists) {
            (Verdict::Free { how, .. }, true) => {
                prop_assert!(!left);
                prop_assert_eq!(*how, How::ProcessList);
            }
            (Verdict::NotYet(_), true) => prop_assert!(left),
            (Verdict::Free { how, .. }, false) => {
                prop_assert_eq!(*how, How::DeviceTotalOnly);
                prop_assert!(now.memory_used <= before.memory_used);
            }
            (Verdict::NotYet(_), false) => prop_assert!(now.memory_used > before.memory_used),
        }
    }

    /// Figures that make no sense never panic, and never free a GPU with a guest on its list.
    #[test]
    fn senseless_figures_free_nothing(
        used in any::<Option<u64>>(), before_used in any::<Option<u64>>(),
        sizes in prop::collection::vec(any::<Option<u64>>(), 0..5), started in any::<bool>(),
    ) {
        let before = GpuSample { memory_used: before_used, ..sample(0, vec![process(1, Some(u64::MAX), None)]) };
        let mut question = verification(&before, &[50]);
        let mut listed: Vec<GpuProcess> =
            sizes.iter().zip(1..).map(|(m, pid)| process(pid, *m, None)).collect();
        listed.push(GpuProcess { start_time: started.then_some(500), ..process(50, None, None) });
        let now = GpuSample { memory_used: used, ..sample(0, listed) };
        prop_assert_eq!(question.observe(&now), Verdict::NotYet(NotYet::GuestListed { pids: vec![50] }));
    }
}
