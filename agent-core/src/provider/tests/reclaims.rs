//! A reclaim: each way of ending a guest in its time, which of them ended it, who is answered and
//! when, and what the receipt says.

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::{ShareRequest, Wish};
use gpunion_protocol::receipt::{How, Receipt, Way};
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{Millis, WallMs};

use super::super::effect::{Effect, Word};
use super::super::event::{CallId, Event};
use super::super::record::Phase;
use super::super::wish_not_saved;
use super::super::word::{ReclaimWord, Wanted};
use super::flows::receipt;
use super::world::{BASELINE, GPU, PROCESS, World, assignment, attempt};

fn gpu() -> GpuUuid {
    GpuUuid(GPU.to_owned())
}

/// A guest that holds memory of its GPU.
fn running() -> World {
    let mut world = World::sharing();
    world.run(&attempt(1));
    held(&mut world);
    world.take();
    world
}

fn held(world: &mut World) {
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
}

fn click(world: &mut World, gpu: Option<GpuUuid>) -> CallId {
    let call = world.call();
    world.on(Event::Reclaim { call, gpu });
    call
}

fn answers(effects: &[Effect]) -> Vec<(CallId, Receipt)> {
    let answer = |effect: &Effect| match effect {
        Effect::ReclaimAnswer { call, answer: Ok(receipt) } => Some((*call, (**receipt).clone())),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

/// How it is being ended: by init's word, by the file, by the second way, by the engine.
fn ways(effects: &[Effect]) -> [bool; 4] {
    let any = |is: fn(&Effect) -> bool| effects.iter().any(is);
    [
        any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. })),
        any(|e| matches!(e, Effect::EndFile { .. })),
        any(|e| matches!(e, Effect::SecondWay { .. })),
        any(|e| matches!(e, Effect::EngineKill { .. })),
    ]
}

const WORD: [bool; 4] = [true, false, false, false];
const FILE: [bool; 4] = [true, true, true, false];
const ALL: [bool; 4] = [true; 4];
const NONE: [bool; 4] = [false; 4];

/// Each of these in turn comes after exactly so many milliseconds.
fn ladder(world: &mut World, rungs: &[(u64, [bool; 4])]) {
    for (wait, way) in rungs {
        world.take();
        world.pass(Millis(wait - 1));
        assert_eq!(ways(&world.take()), NONE, "not before {wait} ms");
        world.pass(Millis(1));
        assert_eq!(ways(&world.take()), *way, "after {wait} ms");
    }
}

#[test]
fn whoever_must_end_hears_one_word_then_finds_the_file_then_meets_the_engine() {
    let after_the_word = [(150, FILE), (150, ALL), (1_000, ALL), (1_000, ALL)];
    let mut world = running();
    click(&mut world, None);
    assert_eq!(ways(&world.effects), NONE, "first it stands still");
    ladder(&mut world, &[(20, WORD)]);
    ladder(&mut world, &after_the_word);

    let mut world = running();
    world.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    assert_eq!(ways(&world.effects), WORD);
    ladder(&mut world, &after_the_word);

    let mut world = running();
    world.share(false);
    world.pass(Millis(60_000));
    assert_eq!(ways(&world.effects), WORD, "its grace is over");
    ladder(&mut world, &after_the_word);
}

#[test]
fn a_word_that_all_stands_still_ends_it_at_once_and_a_late_one_changes_nothing() {
    let stopped = FromInit::Stopped { seq: 0, processes: 3, running: 0, took_us: 1 };
    let mut world = running();
    click(&mut world, None);
    world.take();
    world.init(&attempt(1), stopped.clone());
    assert_eq!(ways(&world.take()), WORD);
    world.init(&attempt(1), stopped);
    assert_eq!(ways(&world.take()), NONE, "it has been told");
    ladder(&mut world, &[(150, FILE)]);
}

#[test]
fn the_receipt_names_what_ended_the_guest() {
    for (rungs, way) in [
        (&[][..], Way::Init),
        (&[20][..], Way::Init),
        (&[20, 150], Way::EndFile),
        (&[20, 150, 150], Way::Engine),
        (&[20, 150, 150, 1_000], Way::Engine),
    ] {
        let mut world = running();
        click(&mut world, None);
        for wait in rungs {
            world.pass(Millis(*wait));
        }
        world.gone(&attempt(1));
        world.now.boot = world.now.boot + Millis(100);
        world.gpu(BASELINE, &[]);
        let receipt = receipt(&world.take()).unwrap();
        assert!(receipt.verified);
        assert_eq!(receipt.guests[0].way, way, "{rungs:?}");
    }
}

#[test]
fn who_clicks_twice_is_answered_twice_from_the_first_click_on() {
    let mut world = running();
    let first = click(&mut world, None);
    world.now.boot = world.now.boot + Millis(5);
    world.take();
    let second = click(&mut world, None);
    let stops = |e: &Effect| matches!(e, Effect::Say { word: Word::Plain(ToInit::Stop { .. }), .. });
    assert!(!world.effects.iter().any(stops), "it is told once");
    // For one GPU it is another question, and another answer.
    let third = click(&mut world, Some(gpu()));
    world.now.boot = world.now.boot + Millis(5);
    world.gone(&attempt(1));
    world.now.boot = world.now.boot + Millis(10);
    world.gpu(BASELINE, &[]);
    let told: Vec<_> = answers(&world.take()).iter().map(|(call, r)| (*call, r.ended_ms)).collect();
    assert_eq!(told, [(first, Some(10)), (second, Some(10)), (third, Some(5))]);
}

#[test]
fn who_clicks_again_after_an_answer_is_answered_again() {
    let mut world = running();
    let first = click(&mut world, None);
    world.gone(&attempt(1));
    let not_before = |world: &mut World, call| {
        world.take();
        world.pass(Millis(9_999));
        assert_eq!(answers(&world.take()), []);
        world.pass(Millis(1));
        let told = answers(&world.take());
        assert_eq!(told.iter().map(|(call, _)| *call).collect::<Vec<_>>(), [call]);
        assert!(!told[0].1.verified, "the GPU was not seen free");
    };
    not_before(&mut world, first);
    let second = click(&mut world, None);
    not_before(&mut world, second);
    world.gpu(BASELINE, &[]);
    assert_eq!(answers(&world.take()), [], "each was answered");
    assert!(world.provider.last_receipt().unwrap().verified, "and what was found out since is kept");
}

#[test]
fn lending_again_forgets_no_reclaim_whose_guest_lives_or_that_nobody_was_answered() {
    let lend = |world: &mut World| {
        world.take();
        world.share(true);
        world.take().contains(&Effect::WatchGpus { fast: false })
    };
    let under_way = |world: &World| world.provider.share_status().why == "A reclaim is under way";
    let mut world = running();
    assert!(!lend(&mut world), "there is none");
    click(&mut world, None);
    world.pass(Millis(10_000));
    assert!(!lend(&mut world) && under_way(&world), "its guest lives");
    world.gone(&attempt(1));
    assert!(lend(&mut world) && !under_way(&world), "answered, and only the GPU is waited for");

    let mut world = running();
    let call = click(&mut world, None);
    world.gone(&attempt(1));
    assert!(!lend(&mut world) && under_way(&world), "somebody waits for the answer");
    world.pass(Millis(10_000));
    assert_eq!(answers(&world.take())[0].0, call);
}

#[test]
fn what_is_not_the_gpu_s_own_list_is_called_by_its_name() {
    let mut world = World::new();
    world.gpu_as(BASELINE, &[], |sample| sample.processes = None);
    world.share(true);
    world.run(&attempt(1));
    click(&mut world, None);
    world.now.boot = world.now.boot + Millis(5);
    world.gone(&attempt(1));
    world.now.boot = world.now.boot + Millis(5);
    world.gpu_as(BASELINE, &[], |sample| sample.processes = None);
    let told = receipt(&world.take()).unwrap();
    assert_eq!((told.verified, told.how), (true, How::DeviceTotalOnly));

    let mut world = World::sharing();
    world.run_this(assignment(&attempt(1), &[]));
    click(&mut world, None);
    world.gone(&attempt(1));
    let told = receipt(&world.take()).unwrap();
    assert_eq!((told.verified, told.how), (true, How::ProcessesOnly), "no GPU was lent");
}

#[test]
fn a_receipt_says_once_that_the_wish_was_not_saved() {
    let mut world = World::sharing();
    click(&mut world, None);
    let mut told = receipt(&world.take()).unwrap();
    wish_not_saved(&mut told);
    wish_not_saved(&mut told);
    assert!(!told.wish_saved);
    assert_eq!(told.troubles.iter().filter(|trouble| trouble.contains("disk")).count(), 1);
}

#[test]
fn what_a_receipt_says_of_a_guest_that_lives_is_that_it_is_tried_again() {
    let mut world = running();
    click(&mut world, None);
    world.pass(Millis(10_000));
    let told = receipt(&world.take()).unwrap();
    assert_eq!((told.stopped_ms, told.ended_ms, told.verified_ms), (None, None, None));
    assert!(told.troubles[0].contains("tried again each second"), "{told:?}");
    assert!(told.troubles.iter().any(|trouble| trouble.contains(GPU)), "{told:?}");
}

#[test]
fn a_gpu_of_which_something_is_known_can_be_taken_back_also_when_it_fell_off() {
    let refused = |world: &World| world.provider.refuses_reclaim(Some(&gpu())).is_some();
    let mut world = World::sharing();
    world.no_gpu();
    assert!(refused(&world));
    assert!(world.provider.refuses_reclaim(None).is_none());
    world.gpu(BASELINE, &[]);
    let call = world.call();
    let request = ShareRequest { on: Some(false), gpu: Some(gpu()), ..ShareRequest::default() };
    world.on(Event::Share { call, request });
    world.no_gpu();
    assert!(!refused(&world), "the owner has said something of it");
}

#[test]
fn what_a_gpu_may_still_hold_is_not_looked_for_after_a_minute() {
    let vestige = |world: &World| world.provider.vestiges.contains_key(&gpu());
    let mut world = running();
    world.pass(Millis(1));
    world.gone(&attempt(1));
    world.pass(Millis(59_999));
    assert!(vestige(&world));
    world.pass(Millis(1));
    assert!(!vestige(&world));

    let mut world = running();
    world.pass(Millis(1));
    world.gone(&attempt(1));
    assert!(vestige(&world), "it was read before that");
    held(&mut world);
    assert!(vestige(&world), "its process is listed");
    world.gpu(BASELINE, &[]);
    assert!(!vestige(&world), "it was seen free");
}

#[test]
fn an_attempt_stays_on_the_books_while_its_gpu_may_hold_something_of_it() {
    let mut world = running();
    world.pass(Millis(1));
    world.gone(&attempt(1));
    world.work(&attempt(1));
    world.relay(ToAgent::EndSeen { attempt: attempt(1) });
    assert!(world.provider.attempt(&attempt(1)).is_some(), "told and cleaned away, but not seen gone");
    world.gpu(BASELINE, &[]);
    assert!(world.provider.attempt(&attempt(1)).is_none());
}

#[test]
fn a_reclaim_by_hand_of_one_gpu_is_no_word_about_the_rest() {
    let mut world = running();
    world.run_this(assignment(&attempt(2), &[]));
    let word = ReclaimWord { wanted: Wanted::These([gpu()].into()), at: WallMs(1) };
    world.take();
    world.on(Event::ReclaimedByHand { word: word.clone() });
    assert!(world.take().contains(&Effect::WordHeard { word }));
    let phase = |world: &World, n| world.provider.attempt(&attempt(n)).unwrap().record.phase.clone();
    assert_eq!(phase(&world, 1), Phase::Ending { cause: EndCause::Reclaimed });
    assert_eq!(phase(&world, 2), Phase::Running);
    assert_eq!(world.provider.wish_of(&gpu()), Wish::NotSharing);
    assert!(world.provider.is_open());
}

#[test]
fn after_a_restart_the_last_receipt_is_the_newest_wherever_it_was() {
    let mut world = World::sharing();
    let mut made = Vec::new();
    for n in 1..=2 {
        world.share(true);
        world.run(&attempt(n));
        click(&mut world, None);
        world.gone(&attempt(n));
        world.pass(Millis(1_000));
        world.gpu(BASELINE, &[]);
        made.extend(answers(&world.take()));
    }
    assert_eq!(made.len(), 2);
    world.crash();
    assert_eq!(world.provider.last_receipt(), Some(&made[1].1));
}
