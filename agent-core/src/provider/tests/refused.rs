//! What is refused, with a sentence: a GPU that is not there, figures that are old, more than the
//! owner's caps, a guest that can't be begun.

use std::collections::BTreeSet;

use gpunion_protocol::gpu::{GpuSource, GpuView};
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::job::{DataInput, EndCause};
use gpunion_protocol::local::{ShareRequest, Wish};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;

use super::super::effect::Effect;
use super::super::event::Event;
use super::flows::{ended, receipt};
use super::world::{BASELINE, GPU, World, assignment, attempt, caps, snapshot};

fn refusal(effects: &[Effect]) -> Option<Problem> {
    effects.iter().find_map(|effect| match effect {
        Effect::ReclaimAnswer { answer: Err(problem), .. } => Some(problem.clone()),
        _ => None,
    })
}

fn reclaim(world: &mut World, gpu: &str) {
    let call = world.call();
    world.take();
    world.on(Event::Reclaim { call, gpu: Some(GpuUuid(gpu.to_owned())) });
}

fn no_gpus() -> Event {
    let source = GpuSource::Ready { version: None };
    Event::Gpus(Box::new(GpuView { source, ..GpuView::none("") }))
}

#[test]
fn a_mistyped_gpu_is_not_told_as_taken_back_and_not_remembered() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    reclaim(&mut world, "GPU-b");
    let problem = refusal(&world.take()).unwrap();
    assert_eq!(problem.code, Code::NotFound);
    assert!(problem.detail.unwrap().contains(GPU), "it names those that are there");
    assert!(world.provider.wishes().gpus.is_empty(), "{:?}", world.provider.wishes());
    assert!(world.provider.attempt(&name).unwrap().may_live() && world.provider.is_open());
    reclaim(&mut world, GPU);
    assert_eq!(refusal(&world.take()), None);
}

#[test]
fn an_owner_who_comes_before_the_driver_is_believed_and_nothing_unseen_is_called_free() {
    let mut world = World::sharing();
    world.crash();
    reclaim(&mut world, GPU);
    assert_eq!((refusal(&world.effects), receipt(&world.effects)), (None, None));
    assert_eq!(world.provider.wish_of(&GpuUuid(GPU.to_owned())), Wish::NotSharing);
    world.on(no_gpus());
    world.pass(Millis::from_secs(10));
    let told = receipt(&world.take()).unwrap();
    assert!(!told.verified && told.troubles[0].contains("does not list"), "{told:?}");
    world.gpu(BASELINE, &[]);
    assert!(world.provider.last_receipt().unwrap().verified, "it is there after all");
}

#[test]
fn a_gpu_that_fell_off_can_be_taken_back_as_long_as_a_guest_is_known_of_it() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.on(no_gpus());
    let refused = |world: &World| world.provider.refuses_reclaim(Some(&GpuUuid(GPU.to_owned()))).is_some();
    assert!(!refused(&world), "one has it");
    world.gone(&name);
    world.work(&name);
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    assert!(!refused(&world), "what it left has not been seen gone");
    world.pass(Millis::from_secs(60));
    assert!(world.provider.attempt(&name).is_none() && refused(&world));
}

#[test]
fn f06_a_driver_that_hangs_is_not_a_gpu_that_is_well() {
    let mut world = World::sharing();
    let offered = |world: &World| world.provider.offer(world.now).gpus[0].free_for_guests;
    assert!(offered(&world));
    world.take();
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(5_001), "it is looked at in time");
    world.pass(Millis(5_001));
    assert!(!offered(&world));
    let told = |effect: &Effect| matches!(effect, Effect::ToRelay(ToRelay::Offer { .. }));
    assert!(world.take().iter().any(told), "the relay hears of it");
    world.assign(&attempt(1));
    let (cause, _) = ended(&world.take()).unwrap();
    assert!(
        matches!(&cause, EndCause::CouldNotStart { reason } if reason.contains("does not answer")),
        "{cause:?}"
    );
    world.gpu(BASELINE, &[]);
    assert!(offered(&world));
}

#[test]
fn inputs_count_against_the_owner_s_disk_once() {
    let input = |n: u8, bytes: u64| DataInput { at: "/data".to_owned(), snapshot: snapshot(n), bytes };
    let disk = caps().disk.0;
    let wants = |n: u32, data: Vec<DataInput>| {
        let mut assignment = assignment(&attempt(n), &[]);
        assignment.spec.resources.disk = Bytes(disk / 4);
        assignment.data = data;
        assignment
    };
    let mut world = World::sharing();
    let mut taken = |assignment| {
        world.assign_this(assignment);
        ended(&world.take()).is_none()
    };
    assert!(!taken(wants(1, vec![input(1, disk)])), "more than there is");
    assert!(taken(wants(2, vec![input(1, disk / 2)])));
    assert!(!taken(wants(3, vec![input(2, 1)])), "its own input is one byte too many");
    assert!(taken(wants(4, vec![input(1, disk / 2)])), "the same one lies here once");
    let on_the_books: BTreeSet<u32> = world.provider.attempts().map(|a| a.name().token.attempt.0).collect();
    assert_eq!(on_the_books, BTreeSet::from([2, 4]));
}

#[test]
fn a_guest_that_can_not_be_begun_ends_and_one_that_was_begun_does_not() {
    for begun in [false, true] {
        let mut world = World::sharing();
        let name = attempt(1);
        world.assign(&name);
        for _ in 0..4 {
            world.work(&name);
        }
        if begun {
            world.init(&name, FromInit::Started { pid: 2 });
        }
        world.take();
        let reason = "its image is gone".to_owned();
        world.on(Event::CannotBegin { attempt: name.clone(), reason: reason.clone() });
        world.gone(&name);
        let (cause, _) = ended(&world.take()).unwrap();
        assert_eq!(cause == EndCause::CouldNotStart { reason }, !begun, "{cause:?}");
    }
}

#[test]
fn to_lend_nothing_or_a_gpu_that_is_not_there_is_refused_and_changes_nothing() {
    let nothing = ShareRequest::default;
    let refused = [
        (
            ShareRequest { on: Some(true), gpu: Some(GpuUuid("GPU-b".to_owned())), ..nothing() },
            Code::NotFound,
        ),
        (ShareRequest { cpus: Some(0), ..nothing() }, Code::BadRequest),
        (ShareRequest { memory: Some(Bytes(0)), ..nothing() }, Code::BadRequest),
        (ShareRequest { disk: Some(Bytes(0)), ..nothing() }, Code::BadRequest),
    ];
    for (request, code) in refused {
        let mut world = World::new();
        let before = world.provider.wishes().clone();
        let call = world.call();
        world.on(Event::Share { call, request });
        let answer = world.take().into_iter().find_map(|effect| match effect {
            Effect::ShareAnswer { answer, .. } => Some(answer),
            _ => None,
        });
        assert_eq!(answer.unwrap().unwrap_err().code, code);
        assert_eq!(world.provider.wishes(), &before);
    }
}
