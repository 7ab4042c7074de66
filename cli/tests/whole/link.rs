//! The link between an agent and a real relay: joining, the session, its breaks.

use crate::support::{Half, LIMIT, Relay};
use gpunion_agent_core::relay_link::{LinkStatus, RelayClient, SessionEvent};
use gpunion_protocol::http::{NewInvite, Role};
use gpunion_protocol::ids::Epoch;
use gpunion_protocol::invite::Invite;
use gpunion_protocol::local::JoinRequest;
use gpunion_protocol::problem::Code;

async fn up(half: &mut Half) -> Epoch {
    loop {
        match tokio::time::timeout(LIMIT, half.session.incoming.recv()).await.unwrap().unwrap() {
            SessionEvent::Up { epoch, .. } => return epoch,
            SessionEvent::Message(_) | SessionEvent::Down { .. } => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f70_a_session_comes_up_breaks_and_comes_back_by_itself() {
    let home = tempfile::tempdir().unwrap();
    let (state, data) = (home.path().join("relay"), home.path().join("agent"));
    let relay = Relay::start(&state).await;
    let mut half = Half::start(&data);
    assert_eq!(*half.session.status.borrow(), LinkStatus::NoGroup);
    half.join(relay.link.as_ref().unwrap()).await;
    let first = up(&mut half).await;
    let address = relay.address;
    relay.stop().await;
    loop {
        let event = tokio::time::timeout(LIMIT, half.session.incoming.recv()).await.unwrap().unwrap();
        if matches!(event, SessionEvent::Down { .. }) {
            break;
        }
    }
    let relay = Relay::start_at(&state, address).await;
    let second = up(&mut half).await;
    assert!(second > first, "the epoch grows with each start of the relay");
    // The session outlives several of its own silences.
    let mut status = half.session.status.clone();
    let quiet = tokio::time::timeout(
        std::time::Duration::from_millis(2_000),
        status.wait_for(|s| *s != LinkStatus::Up),
    );
    assert!(quiet.await.is_err(), "heartbeats keep it up");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_membership_outlives_the_agent_and_ends_with_leaving() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let data = home.path().join("agent");
    let half = Half::start(&data);
    half.join(relay.link.as_ref().unwrap()).await;
    let again = JoinRequest { link: relay.link.clone().unwrap(), member_name: None, device_name: None };
    assert_eq!(half.pairing.join(again).await.unwrap_err().code, Code::Conflict);
    drop(half);

    std::fs::remove_file(data.join("run/agent.sock")).unwrap();
    let mut half = Half::start(&data);
    up(&mut half).await;
    let member = half.pairing.current().unwrap();
    assert_eq!(member.client.me().await.unwrap().device, member.group.device);
    assert_eq!(half.pairing.leave().await.unwrap(), None);
    assert_eq!(member.client.me().await.unwrap_err().code, Code::Unauthorized, "its token is revoked");
    assert_eq!(half.pairing.current().unwrap_err().code, Code::NoGroup);
    assert!(!data.join("identity.json").exists() && !data.join("group.json").exists());
    half.session.status.wait_for(|status| *status == LinkStatus::NoGroup).await.unwrap();
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invite_is_for_one_use_and_another_key_is_not_trusted() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("one"));
    let link = relay.link.clone().unwrap();
    half.join(&link).await;
    let other = Half::start(&home.path().join("two"));
    let request = |link: String| JoinRequest { link, member_name: None, device_name: None };
    assert_eq!(other.pairing.join(request(link.clone())).await.unwrap_err().code, Code::InviteGone);

    let member = half.pairing.current().unwrap();
    let made =
        member.client.invite(&NewInvite { role: Role::Member, member: None, valid_s: 60 }).await.unwrap();
    let mut invite: Invite = made.link.parse().unwrap();
    invite.pin = Some([7; 32]);
    let refused = other.pairing.join(request(invite.to_string())).await.unwrap_err();
    assert_eq!(refused.code, Code::RelayAway);
    assert!(refused.to_string().contains("pins"), "{refused}");
    other.pairing.join(request(made.link)).await.unwrap();
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_tried_in_order() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let pin = relay.link.as_ref().unwrap().parse::<Invite>().unwrap().pin;
    // Nobody listens at the first.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = RelayClient::new(vec![free.to_string(), relay.address.to_string()], pin, None).unwrap();
    assert_eq!(client.me().await.unwrap_err().code, Code::Unauthorized);
    assert_eq!(client.address(), relay.address.to_string());
    relay.stop().await;
}

/// Passes on what a client says, and what the relay says until the client has been greeted; the
/// relay's answers are swallowed. Ends when it is told to.
async fn deaf_line(
    relay: std::net::SocketAddr,
    end: tokio::sync::oneshot::Receiver<()>,
) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_relay, mut to_relay) =
            tokio::net::TcpStream::connect(relay).await.unwrap().into_split();
        let (greeted, mut is_greeted) = tokio::sync::watch::channel(false);
        let asking = async {
            let mut bytes = vec![0; 16 << 10];
            for flight in 0.. {
                let read = from_client.read(&mut bytes).await.unwrap_or(0);
                // Only after it has read the relay's greeting does a client say a second thing.
                if flight == 1 {
                    greeted.send_replace(true);
                }
                if read == 0 || to_relay.write_all(&bytes[..read]).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let answering = async {
            let mut bytes = vec![0; 16 << 10];
            loop {
                let read = tokio::select! {
                    read = from_relay.read(&mut bytes), if !*is_greeted.borrow() => read.unwrap_or(0),
                    _ = is_greeted.wait_for(|greeted| *greeted) => break,
                };
                to_client.write_all(&bytes[..read]).await.unwrap();
            }
            while from_relay.read(&mut bytes).await.unwrap_or(0) > 0 {}
            std::future::pending::<()>().await;
        };
        tokio::select! {
            _ = end => {}
            () = async { tokio::join!(asking, answering); } => {}
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn f96_joining_is_not_repeated_when_its_answer_is_lost() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("one"));
    half.join(relay.link.as_ref().unwrap()).await;
    let operator = half.pairing.current().unwrap().client.clone();
    let made = operator.invite(&NewInvite { role: Role::Member, member: None, valid_s: 60 }).await.unwrap();
    let mut invite: Invite = made.link.parse().unwrap();
    let (cut, end) = tokio::sync::oneshot::channel();
    invite.addresses = vec![deaf_line(relay.address, end).await.to_string(), relay.address.to_string()];
    let other = Half::start(&home.path().join("two"));
    let request = JoinRequest { link: invite.to_string(), member_name: None, device_name: None };
    let pairing = std::sync::Arc::clone(&other.pairing);
    let joining = tokio::spawn(async move { pairing.join(request).await });
    // The relay has taken it; its answer never comes.
    let taken = async {
        while operator.members().await.unwrap().len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, taken).await.unwrap();
    cut.send(()).unwrap();
    let problem = tokio::time::timeout(LIMIT, joining).await.unwrap().unwrap().unwrap_err();
    assert_eq!(problem.code, Code::RelayAway, "the second address was not asked: {problem}");
    assert!(problem.to_string().contains("did not say whether this device has joined"), "{problem}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_can_not_keep_its_token_does_not_stay_in_the_group() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("one"));
    half.join(relay.link.as_ref().unwrap()).await;
    let operator = half.pairing.current().unwrap().client.clone();
    let made = operator.invite(&NewInvite { role: Role::Member, member: None, valid_s: 60 }).await.unwrap();
    let other = Half::start(&home.path().join("two"));
    // Nothing can be written there.
    std::fs::create_dir(other.dirs.group()).unwrap();
    let request = JoinRequest { link: made.link, member_name: Some("Bob".to_owned()), device_name: None };
    let problem = other.pairing.join(request).await.unwrap_err();
    assert!(problem.to_string().contains("the link is used up"), "{problem}");
    let members = operator.members().await.unwrap();
    let bob = members.iter().find(|member| member.name == "Bob").unwrap();
    assert!(bob.devices.iter().all(|device| device.revoked), "{bob:?}");
    assert!(!other.dirs.identity().exists() && other.pairing.current().is_err());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f105_a_token_that_can_not_be_had_stops_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let data = home.path().join("agent");
    let half = Half::start(&data);
    half.join(relay.link.as_ref().unwrap()).await;
    drop(half);
    std::fs::remove_file(data.join("run/agent.sock")).unwrap();
    // As if it were in a keyring: none here has it.
    std::fs::remove_file(data.join("identity.json")).unwrap();
    let group = std::fs::read_to_string(data.join("group.json")).unwrap();
    std::fs::write(data.join("group.json"), group.replace("\"file\"", "\"keyring\"")).unwrap();

    let half = Half::start(&data);
    let share = half.gpunion(&["share", "status"]).await;
    assert_eq!(share.code, 0, "{share:?}");
    let jobs = half.gpunion(&["jobs"]).await;
    assert!(jobs.code == 4 && jobs.stderr.contains("unlock the keyring"), "{jobs:?}");
    let again = JoinRequest { link: relay.link.clone().unwrap(), member_name: None, device_name: None };
    assert_eq!(half.pairing.join(again).await.unwrap_err().code, Code::Conflict);
    let left = half.gpunion(&["leave-group"]).await;
    assert!(
        left.code == 0 && left.stdout.contains("ask the operator to remove the device laptop"),
        "{left:?}"
    );
    assert!(!data.join("group.json").exists());
    assert_eq!(half.pairing.current().unwrap_err().code, Code::NoGroup);
    relay.stop().await;
}
