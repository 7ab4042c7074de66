//! The job that a member would really bring: Python and numpy, in an image that only her own
//! engine has. Reclaimed in the middle, it ends on the other machine with the same bytes.

use gpunion_protocol::receipt::Receipt;
use system_tests::campus::{Pace, Pair};

const EPOCHS: u32 = 6;

#[test]
fn python_and_numpy_move_to_the_other_machine_and_lose_no_bit() {
    let pair = Pair::found([&["GPU-stand-in-7"], &["GPU-stand-in-3"]]).unwrap();
    pair.campus.python_image(&pair.engines[0]).unwrap();
    // At first only the machine lends whose engine has never seen the image.
    pair.providers[1].share().unwrap();
    let quick = pair.ada.python_folder("python", Pace { epochs: EPOCHS, epoch_seconds: 0.0 }).unwrap();
    let (job, image_sent, _) = pair.ada.submit(&quick).unwrap();
    let job = pair.succeeds(&job).unwrap();
    assert_eq!(job.attempts.len(), 1, "{job:#?}");
    let undisturbed = pair.ada.fetch("python", "python-results").unwrap();
    let result: serde_json::Value = serde_json::from_slice(&undisturbed[1].1).unwrap();
    assert!(result["accuracy"].as_f64().unwrap() > 0.9, "{result}");

    pair.providers[0].share().unwrap();
    let slow = pair.ada.python_folder("python-slow", Pace { epochs: EPOCHS, epoch_seconds: 1.5 }).unwrap();
    let (job, sent, reused) = pair.ada.submit(&slow).unwrap();
    assert!(sent < 1 << 20 && reused > image_sent / 2, "the image is there: {sent} sent, {reused} reused");
    let at = pair.in_the_middle(&job).unwrap();
    let ran = pair.providers[at].run(["--json", "reclaim"]).unwrap();
    let receipt: Receipt = ran.json().unwrap();
    assert!(receipt.verified && ran.code == Some(0), "{receipt:#?}");
    let job = pair.succeeds(&job).unwrap();
    assert!(job.attempts.len() == 2 && pair.at(&job).unwrap() != at, "{job:#?}");
    let log = pair.ada.run(["logs", job.id.as_str()]).unwrap().ok().unwrap();
    assert!(log.out.contains("resuming"), "{}", log.out);
    assert!(pair.ada.fetch("python-slow", "python-slow-results").unwrap() == undisturbed);
    pair.is_clean().unwrap();
}
