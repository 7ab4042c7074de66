//! What an operator does on the relay's own machine.

use std::os::unix::fs::PermissionsExt as _;

use gpunion_protocol::http::{NewInvite, Role};
use gpunion_protocol::job::JobView;
use gpunion_protocol::problem::Code;
use gpunion_relay::admin::{Backup, client};
use gpunion_relay::{Config, Error, launch};
use reqwest::Method;

use crate::common::*;
use crate::jobs::{job, submit};

#[tokio::test]
async fn a_second_relay_on_a_folder_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let second = launch(Config::new(dir.path()), listener, std::future::pending()).await;
    let error = second.unwrap_err();
    assert!(matches!(&error, Error::StateInUse { .. }));
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    relay.stop().await;
    Relay::start(dir.path()).await.stop().await;
}

#[tokio::test]
async fn the_operators_door_invites_lists_and_backs_up() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("relay.sock"), 0o600);
    let wanted = NewInvite { role: Role::Operator, member: None, valid_s: 60 };
    let made = client::invite(dir.path(), &wanted).await.unwrap();
    let olga = Client::join(&made.link, "Olga", "laptop").await.unwrap();
    assert_eq!(client::members(dir.path()).await.unwrap()[0].name, "Olga");
    submit(&olga, "k", &job(1)).await.unwrap();

    let copies = tempfile::tempdir().unwrap();
    let backup = Backup { path: copies.path().join("relay.sqlite") };
    let done = client::backup(dir.path(), &backup).await.unwrap();
    assert!(done.copy_too.contains(&dir.path().join("packs")));
    assert!(!done.copy_too.contains(&dir.path().join("relay.toml")), "there is none");
    std::fs::write(dir.path().join("relay.toml"), "lease = \"2 min\"\n").unwrap();
    let with_settings = Backup { path: copies.path().join("second.sqlite") };
    let done = client::backup(dir.path(), &with_settings).await.unwrap();
    assert!(done.copy_too.contains(&dir.path().join("relay.toml")));
    assert_eq!(client::backup(dir.path(), &backup).await.unwrap_err().code, Code::Conflict);
    assert_eq!(backup.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    submit(&olga, "later", &job(2)).await.unwrap();
    relay.stop().await;
    assert_eq!(client::members(dir.path()).await.unwrap_err().code, Code::RelayAway);

    // Restored elsewhere: the same key, the tokens still count, the later job is unknown.
    std::fs::copy(dir.path().join("key.pem"), copies.path().join("key.pem")).unwrap();
    let restored = Relay::start(copies.path()).await;
    let olga = restored.stranger().being(&olga);
    let jobs: Vec<JobView> = olga.get("/v1/jobs").await.unwrap();
    assert_eq!(jobs.iter().map(|view| view.id.clone()).collect::<Vec<_>>(), [job(1).job]);
    restored.stop().await;
}

#[tokio::test]
async fn a_lost_laptop_is_revoked_and_a_member_removed_on_the_relays_machine() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let ada = invited(&olga, Role::Member, "ada").await;
    let bob = invited(&olga, Role::Member, "bob").await;
    let mut session = ada.session().await;
    let device = ada.joined().device.to_string();
    client::revoke_device(dir.path(), &device).await.unwrap();
    assert!(session.end().await.contains("revoked"));
    assert_eq!(code(ada.get::<Vec<JobView>>("/v1/jobs").await), Code::Unauthorized);
    client::revoke_device(dir.path(), &device).await.unwrap();

    client::remove_member(dir.path(), bob.joined().member.as_str()).await.unwrap();
    assert_eq!(code(bob.get::<Vec<JobView>>("/v1/jobs").await), Code::Unauthorized);
    let last = client::remove_member(dir.path(), olga.joined().member.as_str()).await.unwrap_err();
    assert_eq!(last.code, Code::Conflict);
    assert!(
        last.detail.unwrap().contains("relay invite --role operator"),
        "the fix is a command that exists"
    );
    assert_eq!(client::remove_member(dir.path(), "nobody").await.unwrap_err().code, Code::NotFound);
    relay.stop().await;
}

#[tokio::test]
async fn strangers_from_one_address_hold_few_places_and_not_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    (config.limits.strangers, config.limits.stranger.0) = (4, 4_000);
    let relay = Relay::with(config).await;
    let olga = relay.operator().await;
    // One connection whose device is known, kept open.
    let mut session = olga.session().await;
    let ends = |mut stream: tokio::net::TcpStream| async move {
        use tokio::io::AsyncReadExt as _;
        soon("the end of a silent connection", stream.read(&mut [0; 1])).await.map_or(0, |n| n)
    };
    let mut silent = Vec::new();
    for _ in 0..16 {
        silent.push(tokio::net::TcpStream::connect(relay.address()).await.unwrap());
    }
    // Those beyond the places are cut at once, and none of the others stays.
    let started = tokio::time::Instant::now();
    let over = silent.split_off(8);
    for stream in over {
        assert_eq!(ends(stream).await, 0);
    }
    assert!(started.elapsed().as_secs() < 4, "cut, not waited for");
    for stream in silent {
        assert_eq!(ends(stream).await, 0);
    }
    session.say(&gpunion_protocol::session::ToRelay::Renew { seq: 7, attempts: vec![] }).await;
    let renewed = |m: &_| matches!(m, gpunion_protocol::session::ToAgent::Renewed { seq: 7, .. });
    session.until("the answer to a member, after that long", renewed).await;
    olga.get::<Vec<JobView>>("/v1/jobs").await.unwrap();
    relay.stop().await;
}

#[tokio::test]
async fn health_and_metrics_tell_how_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let stranger = relay.stranger();
    let health = stranger.send(stranger.request(Method::GET, "/healthz")).await.unwrap();
    assert_eq!(health.text().await.unwrap(), "ok\n");
    submit(&olga, "k", &job(1)).await.unwrap();
    let _session = olga.session().await;
    let text = olga.send(olga.request(Method::GET, "/metrics")).await.unwrap().text().await.unwrap();
    for line in ["gpunion_jobs{state=\"queued\"} 1", "gpunion_devices_connected 1", "gpunion_packs_bytes 0"] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn the_database_holds_no_token_and_no_code() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let made = olga.invite(Role::Member).await;
    let invite: gpunion_protocol::invite::Invite = made.link.parse().unwrap();
    relay.stop().await;
    let mut files = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            for secret in [&olga.joined().token, &invite.code] {
                assert!(
                    !bytes.windows(secret.len()).any(|w| w == secret.as_bytes()),
                    "in {}",
                    path.display()
                );
            }
            files += 1;
        }
    }
    assert!(files >= 3);
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    config.terms.lease.0 = config.terms.renew.0;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = launch(config, listener, std::future::pending()).await;
    assert!(matches!(refused.unwrap_err(), Error::BadSettings { .. }));
}

#[tokio::test]
async fn what_can_not_be_written_is_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut session = olga.session().await;
    // Somebody else holds the database, so that no commit can succeed.
    let other = rusqlite::Connection::open(dir.path().join("relay.sqlite")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(code(submit(&olga, "k", &job(1)).await), Code::Busy);
    let jobs: Vec<JobView> = olga.get("/v1/jobs").await.unwrap();
    assert_eq!(jobs, [], "memory is not ahead of the disk");
    assert!(session.end().await.contains("disk"), "the agent tells anew what it holds");
    other.execute_batch("ROLLBACK").unwrap();
    submit(&olga, "k", &job(1)).await.unwrap();
    relay.stop().await;
    let relay = Relay::start(dir.path()).await;
    let jobs: Vec<JobView> = relay.stranger().being(&olga).get("/v1/jobs").await.unwrap();
    assert_eq!(jobs.len(), 1);
    relay.stop().await;
}

/// Keeps every line that is logged.
#[derive(Clone, Default)]
struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn f104_no_secret_is_in_a_log_or_an_answer() {
    let (lines, dir) = (Lines::default(), tempfile::tempdir().unwrap());
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    // Of the whole process. With one for this thread alone, a line that another test's thread
    // meets first is taken for one that nobody wants, and is never logged in this one either
    // (tracing keeps one verdict a line while there is one subscriber). Those that were met
    // between the subscriber's making and its setting are asked again.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    tracing::callsite::rebuild_interest_cache();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let made = olga.invite(Role::Member).await;
    let invite: gpunion_protocol::invite::Invite = made.link.parse().unwrap();
    let ada = Client::join(&made.link, "Ada", "box").await.unwrap();
    let _session = ada.session().await;
    code(Client::join(&made.link, "Eve", "box").await.map(|_| ()));
    submit(&ada, "k", &job(1)).await.unwrap();
    let mut said = String::new();
    for path in ["/v1/me", "/v1/members", "/v1/devices", "/v1/jobs?all=true", "/metrics"] {
        let answer = olga.send(olga.request(Method::GET, path)).await.unwrap();
        said.push_str(&answer.text().await.unwrap());
    }
    olga.delete(&format!("/v1/devices/{}", ada.joined().device)).await.unwrap();
    relay.stop().await;
    let logged = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for word in ["a device joined", "session began"] {
        let device = ada.joined().device.to_string();
        let said = logged.lines().any(|line| line.contains(word) && line.contains(&device));
        assert!(said, "no line says {word} of {device}");
    }
    let first = format!("{:?}", made);
    for secret in [&olga.joined().token, &ada.joined().token, &invite.code] {
        for text in [&logged, &said, &first] {
            assert!(!text.contains(secret.as_str()));
        }
    }
}
