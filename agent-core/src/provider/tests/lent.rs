//! What is lent, until when, and how that is told to the owner and to the relay.

use gpunion_protocol::gpu::{GpuSample, GpuState};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::{ShareRequest, Wish};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{Millis, WallMs};

use super::super::effect::Effect;
use super::super::event::Event;
use super::world::{BASELINE, GPU, World, assignment, attempt};

fn gpu() -> GpuUuid {
    GpuUuid(GPU.to_owned())
}

fn ask(world: &mut World, request: ShareRequest) {
    let call = world.call();
    world.on(Event::Share { call, request });
}

fn until(world: &World, left: i64) -> ShareRequest {
    let until = Some(WallMs(world.now.wall.0 + left));
    ShareRequest { on: Some(true), until, ..ShareRequest::default() }
}

fn why(world: &World) -> String {
    world.provider.share_status().why
}

#[test]
fn hours_end_on_the_millisecond_and_the_wish_is_on_disk() {
    let mut world = World::new();
    let lent = until(&world, 20_000);
    ask(&mut world, lent);
    world.pass(Millis(19_999));
    assert!(world.provider.is_open());
    world.pass(Millis(1));
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing);
    world.crash();
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing);
}

#[test]
fn the_soonest_end_is_the_one_that_is_told() {
    let mut world = World::new();
    let left = |world: &World| world.provider.offer(world.now).time_left;
    assert_eq!(left(&world), None);
    let machine = until(&world, 90_000);
    ask(&mut world, machine);
    assert_eq!(left(&world), Some(Millis(90_000)));
    let one = ShareRequest { gpu: Some(gpu()), ..until(&world, 40_000) };
    ask(&mut world, one);
    assert_eq!(left(&world), Some(Millis(40_000)));
    world.pass(Millis(1_000));
    assert_eq!(left(&world), Some(Millis(39_000)));
}

#[test]
fn a_gpu_is_offered_when_it_is_lent_works_and_tells_its_size() {
    let offered = |change: fn(&mut GpuSample)| {
        let mut world = World::sharing();
        world.gpu_as(BASELINE, &[], change);
        world.provider.offer(world.now).gpus[0].free_for_guests
    };
    assert!(offered(|_| {}));
    assert!(!offered(|sample| sample.memory_total = None));
    assert!(!offered(|sample| sample.state = GpuState::Suspended));
    let mut world = World::sharing();
    ask(&mut world, ShareRequest { on: Some(false), gpu: Some(gpu()), ..ShareRequest::default() });
    assert!(!world.provider.offer(world.now).gpus[0].free_for_guests);
    assert!(!world.provider.is_shared(&gpu()) && world.provider.is_open());
}

#[test]
fn one_gpu_may_be_lent_alone() {
    let mut world = World::new();
    assert!(!world.provider.is_shared(&gpu()));
    ask(&mut world, ShareRequest { on: Some(true), gpu: Some(gpu()), ..ShareRequest::default() });
    assert!(world.provider.is_shared(&gpu()) && world.provider.is_open());
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing, "the rest is not");
    assert_eq!(why(&world), "Lending 1 of 1 GPUs to 0 jobs");
    world.share(false);
    assert!(!world.provider.is_shared(&gpu()), "a word about all is one about each");
}

#[test]
fn the_owner_reads_what_is_lent_to_how_many_and_who_is_leaving() {
    let mut world = World::sharing();
    assert_eq!(why(&world), "Lending 1 of 1 GPUs to 0 jobs");
    world.run(&attempt(1));
    world.run_this(assignment(&attempt(2), &[]));
    assert_eq!(why(&world), "Lending 1 of 1 GPUs to 2 jobs");
    world.gone(&attempt(2));
    assert_eq!(why(&world), "Lending 1 of 1 GPUs to 1 jobs");
    ask(&mut world, ShareRequest { on: Some(false), gpu: Some(gpu()), ..ShareRequest::default() });
    assert_eq!(why(&world), "Lending 0 of 1 GPUs to 1 jobs. 1 guest is leaving");
    world.no_gpu();
    assert_eq!(why(&world), "Lending CPU only to 1 jobs. no GPU is here. 1 guest is leaving");
    world.share(false);
    assert_eq!(why(&world), "Nothing is lent: sharing is off. 1 guest is leaving");
}

#[test]
fn caps_are_what_the_owner_says_and_no_more_than_the_machine_has() {
    let mut world = World::sharing();
    let offer = world.provider.offer(world.now);
    assert_eq!((offer.cpus, offer.memory.0 >> 30, offer.disk.0 >> 30), (8, 64, 100));
    let request =
        ShareRequest { cpus: Some(99), disk: Some(gpunion_protocol::units::Bytes(1)), ..Default::default() };
    ask(&mut world, request);
    let offer = world.provider.offer(world.now);
    assert_eq!((offer.cpus, offer.memory.0 >> 30, offer.disk.0), (8, 64, 1), "one that is not named stays");
}

#[test]
fn an_offer_is_told_when_it_changes_and_only_to_a_relay_that_is_there() {
    let told = |world: &mut World| {
        world.take().iter().filter(|e| matches!(e, Effect::ToRelay(ToRelay::Offer { .. }))).count()
    };
    let mut world = World::sharing();
    assert!(told(&mut world) > 0);
    world.gpu(BASELINE + 7, &[]);
    assert_eq!(told(&mut world), 0, "what a GPU holds is no part of it");
    world.share(false);
    assert_eq!(told(&mut world), 1);
    world.on(Event::LinkDown { why: "cut".to_owned() });
    world.share(true);
    assert_eq!(told(&mut world), 0);
}
