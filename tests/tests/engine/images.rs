//! Images: carried from engine to engine, pulled by digest.

use futures_util::StreamExt;
use gpunion_agent_core::container::{PullProgress, command};
use gpunion_protocol::spec::JobSpec;

use crate::harness::{IMAGE, attempt, both};
use crate::registry::Registry;

#[test]
fn an_image_that_no_registry_has_goes_from_engine_to_engine_as_itself() {
    both(
        "images::an_image_that_no_registry_has_goes_from_engine_to_engine_as_itself",
        &["one", "two"],
        |inner| async move {
            let (from, to) = (inner.engine("one"), inner.engine("two"));
            let image = from.image(IMAGE).await.unwrap().unwrap();
            assert_eq!(image.repo_digests, Vec::<String>::new());
            // The other owner has an image of that very name.
            let theirs = to.image(IMAGE).await.unwrap().unwrap();
            assert_ne!(theirs.id, image.id);
            let archive: Vec<_> = from.export(IMAGE).await.unwrap().collect().await;
            let archive: Vec<_> = archive.into_iter().map(Result::unwrap).collect();
            let pieces = archive.clone().into_iter().map(Ok::<_, std::io::Error>);
            let wrong = to
                .import(
                    futures_util::stream::iter(pieces.clone()),
                    &theirs.id.replace(&theirs.id[10..14], "0000"),
                )
                .await;
            assert!(wrong.unwrap_err().to_string().contains("the image archive holds"));
            let there = to.import(futures_util::stream::iter(pieces), &image.id).await.unwrap();
            assert_eq!(there.id, image.id);
            assert_eq!(
                to.image(IMAGE).await.unwrap().unwrap().id,
                theirs.id,
                "the owner's name stays the owner's"
            );
            let guest = inner.guest_of("two", &there.id, 1, "echo HELLO; busybox sleep 1000").await;
            assert!(guest.output_until("HELLO").contains("HELLO"));
            guest.remove().await;
        },
    );
}

#[test]
fn an_image_is_pulled_by_digest_and_a_wrong_one_is_refused() {
    both("images::an_image_is_pulled_by_digest_and_a_wrong_one_is_refused", &["one"], |inner| async move {
        let registry = Registry::start(&inner.home);
        let engine = inner.engine("one");
        let name = format!("{}/lab/digits:v1", registry.address);
        let mut seen = PullProgress::default();
        let pulled = engine.pull(&name, None, &mut |now| seen = now).await.unwrap();
        assert_eq!(pulled.digest, registry.digest, "the first preparation fixes the digest");
        assert!(seen.total > 0 && seen.done == seen.total, "{seen:?}");
        assert_eq!(pulled.image.config.entrypoint, ["/busybox"]);

        // Its own command, and a volume that it asks for: in memory, not on the disk.
        let own = JobSpec::of_image(&name);
        let begin = command::begin(&own, &pulled.image.config, &attempt(1), false, &[], &[]).unwrap();
        assert_eq!((begin.command.len(), begin.directory.as_str()), (3, "/vol"));
        let guest = inner
            .guest_of(
                "one",
                &pulled.image.id,
                1,
                "touch /vol/x && busybox ls /vol; busybox grep /vol /proc/mounts; echo READY; sleep 1000",
            )
            .await;
        let output = guest.output_until("READY");
        assert!(output.contains("x\ntmpfs /vol tmpfs"), "{output}");
        guest.remove().await;
        assert_eq!(inner.ask("volumes one"), "0", "a nameless volume goes with its guest");

        let again = engine.pull(&name, Some(&registry.digest), &mut |_| panic!("it is here")).await.unwrap();
        assert_eq!(again.image, pulled.image);
        let wrong = format!("sha256:{}", "0".repeat(64));
        let error = engine.pull(&name, Some(&wrong), &mut |_| {}).await.unwrap_err();
        assert!(!error.is_away(), "{error}");
        drop(registry);
        let error = engine.pull(&name.replace("digits", "other"), None, &mut |_| {}).await.unwrap_err();
        assert!(!error.is_away() && error.to_string().contains("pulling the image"), "{error}");
    });
}
