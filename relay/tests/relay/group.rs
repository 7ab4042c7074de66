//! Joining, tokens, roles, revocation.

use gpunion_protocol::http::{DeviceView, Event, Me, MemberView, NewInvite, Role};
use gpunion_protocol::problem::Code;
use gpunion_relay::Config;
use reqwest::Method;

use crate::common::*;

#[tokio::test]
async fn the_first_link_makes_an_operator_once() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let link = relay.started.operator_invite.as_ref().unwrap().link().to_owned();
    let olga = Client::join(&link, "Olga", "laptop").await.unwrap();
    assert_eq!(olga.joined().role, Role::Operator);
    let me: Me = olga.get("/v1/me").await.unwrap();
    assert_eq!((me.member_name.as_str(), me.device_name.as_str()), ("Olga", "laptop"));
    assert_eq!(code(Client::join(&link, "Eve", "box").await.map(|_| ())), Code::InviteGone);
    relay.stop().await;

    // The key, and with it the pin, outlives a restart; so does the token; no new invite is made.
    let relay = Relay::start(dir.path()).await;
    assert!(relay.started.operator_invite.is_none());
    let olga = relay.stranger().being(&olga);
    assert_eq!(olga.get::<Me>("/v1/me").await.unwrap(), me);
    relay.stop().await;
}

#[tokio::test]
async fn a_relay_with_another_key_is_not_talked_to() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let client = Client::new(&relay.address(), [0; 32]);
    client.request(Method::GET, "/healthz").send().await.unwrap_err();
    relay.stop().await;
}

#[tokio::test]
async fn an_invite_ends_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let wanted = NewInvite { role: Role::Member, member: None, valid_s: 1 };
    let made: gpunion_protocol::http::MadeInvite = olga.post("/v1/invites", &wanted).await.unwrap();
    let wall = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
    soon("its end", async {
        while wall() <= made.expires.0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(code(Client::join(&made.link, "Ada", "box").await.map(|_| ())), Code::InviteGone);
    let forever = NewInvite { valid_s: u64::MAX, ..wanted };
    assert_eq!(code(olga.post::<()>("/v1/invites", &forever).await), Code::BadRequest);
    relay.stop().await;
}

#[tokio::test]
async fn nothing_but_health_and_joining_answers_without_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let mut wrong = relay.operator().await;
    wrong.joined.as_mut().unwrap().token = "0".repeat(64);
    let mut seen = 0;
    for client in [relay.stranger(), wrong] {
        for (method, path, open) in gpunion_relay::routes() {
            let path = path.replace("{id}", &"a".repeat(64));
            let request = client.request(method.parse().unwrap(), &path);
            // The code alone, since HEAD has no body.
            let status = request.json(&serde_json::json!({})).send().await.unwrap().status().as_u16();
            assert_eq!(status == 401, !open, "{method} {path} gave {status}");
            seen += 1;
        }
        for path in ["/", "/v1", "/v1/nothing", "/v1/packs"] {
            assert_eq!(code(client.get::<()>(path).await), Code::Unauthorized, "{path}");
        }
        assert_eq!(client.socket().await.map(|_| ()).unwrap_err(), 401);
    }
    assert!(seen > 30);
    relay.stop().await;
}

#[tokio::test]
async fn errors_of_the_framework_are_problems_too() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    assert_eq!(code(olga.get::<()>("/v1/nothing").await), Code::NotFound);
    let problem = olga.get::<()>("/v1/invites").await.unwrap_err();
    assert_eq!((problem.status, problem.code), (405, Code::BadRequest));
    let problem = relay.stranger().get::<()>("/v1/join").await.unwrap_err();
    assert_eq!(problem.status, 405);
    assert_eq!(code(olga.get::<()>("/v1/jobs/nonsense").await), Code::NotFound);
    assert_eq!(code(olga.get::<()>("/v1/jobs?limit=x").await), Code::BadRequest);
    assert_eq!(code(olga.get::<()>("/v1/session").await), Code::BadRequest);
    let text = olga.request(Method::POST, "/v1/invites").body("{");
    assert_eq!(code(olga.send(text).await.map(|_| ())), Code::BadRequest);
    let broken = olga.request(Method::POST, "/v1/invites").header("content-type", "application/json");
    assert_eq!(code(olga.send(broken.body("{")).await.map(|_| ())), Code::BadRequest);
    let long = olga.request(Method::POST, "/v1/invites").json(&"x".repeat(5 << 20));
    assert_eq!(code(olga.send(long).await.map(|_| ())), Code::TooLarge);
    relay.stop().await;
}

#[tokio::test]
async fn a_revoked_device_is_out_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let ada = invited(&olga, Role::Member, "ada").await;
    let bob = invited(&olga, Role::Member, "bob").await;
    let mut socket = ada.session().await;
    let mut events = ada.sse("/v1/events", None).await.unwrap();
    let device = format!("/v1/devices/{}", ada.joined().device);
    assert_eq!(code(bob.delete(&device).await), Code::Forbidden);
    let views: Vec<DeviceView> = bob.get("/v1/devices").await.unwrap();
    assert!(views.iter().any(|v| v.id == ada.joined().device && v.connected && !v.revoked));

    olga.delete(&device).await.unwrap();
    assert_eq!(code(ada.get::<Me>("/v1/me").await), Code::Unauthorized);
    assert!(socket.end().await.contains("revoked"));
    while events.next::<Event>().await.is_some() {}
    assert_eq!(ada.socket().await.map(|_| ()).unwrap_err(), 401);
    let views: Vec<DeviceView> = bob.get("/v1/devices").await.unwrap();
    assert!(views.iter().any(|v| v.id == ada.joined().device && !v.connected && v.revoked));
    relay.stop().await;
}

#[tokio::test]
async fn a_removed_member_is_out_with_all_devices() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let ada = invited(&olga, Role::Member, "ada").await;
    let own = NewInvite { role: Role::Member, member: Some(ada.joined().member.clone()), valid_s: 60 };
    let made: gpunion_protocol::http::MadeInvite = ada.post("/v1/invites", &own).await.unwrap();
    let second = Client::join(&made.link, "", "second").await.unwrap();
    assert_eq!(second.joined().member, ada.joined().member);
    // Without a session, so that only the token can tell.
    let mut events = second.sse("/v1/events", None).await.unwrap();
    assert_eq!(
        code(ada.post::<()>("/v1/invites", &NewInvite { member: None, ..own }).await),
        Code::Forbidden
    );
    assert_eq!(code(ada.get::<()>("/metrics").await), Code::Forbidden);
    assert_eq!(code(ada.get::<()>("/v1/jobs?all=true").await), Code::Forbidden);

    olga.delete(&format!("/v1/members/{}", ada.joined().member)).await.unwrap();
    for client in [&ada, &second] {
        assert_eq!(code(client.get::<Me>("/v1/me").await), Code::Unauthorized);
    }
    while events.next::<Event>().await.is_some() {}
    let members: Vec<MemberView> = olga.get("/v1/members").await.unwrap();
    assert_eq!(members.len(), 1);
    relay.stop().await;
}

#[tokio::test]
async fn a_loop_that_joins_is_slowed_down() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    config.limits.joins = 3;
    let relay = Relay::with(config).await;
    let link = relay.started.operator_invite.as_ref().unwrap().link().to_owned();
    let guess = link.replace(&link[15..47], &"0".repeat(32));
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(code(Client::join(&guess, "Eve", "box").await.map(|_| ())));
    }
    assert_eq!(codes[..3], [Code::InviteGone; 3]);
    assert_eq!(codes[4], Code::Busy);
    relay.stop().await;
}

#[test]
fn every_route_is_described() {
    let text = include_str!("../../../docs/protocol.md");
    for (method, path, _) in gpunion_relay::routes() {
        let line = format!("| `{method} {path}` |");
        assert!(text.contains(&line), "docs/protocol.md has no line that begins with {line}");
    }
}
