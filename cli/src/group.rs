//! Joining, leaving, inviting.

use std::io::Read as _;
use std::process::ExitCode;

use gpunion_agent_core::config::{GroupFile, TokenStore};
use gpunion_protocol::http::{MadeInvite, MemberView, NewInvite, Role};
use gpunion_protocol::local::{JoinRequest, Left, Snapshot};
use gpunion_protocol::problem::{Code, Problem};

use crate::api::Api;
use crate::args::{Invite, Join, Place};
use crate::failure::Failure;
use crate::out::Out;
use crate::show;

pub(crate) async fn join(place: &Place, asked: Join, out: &Out) -> Result<ExitCode, Failure> {
    let link = if asked.link == "-" {
        let mut link = String::new();
        std::io::stdin()
            .take(8 << 10)
            .read_to_string(&mut link)
            .map_err(|error| Failure::usage(format!("no link on stdin ({error})")))?;
        link
    } else {
        asked.link
    };
    let request =
        JoinRequest { link: link.trim().to_owned(), member_name: asked.name, device_name: asked.device_name };
    let group: GroupFile = Api::new(place)?.post("/v1/join", &request).await?;
    out.answer(&group, |group| {
        format!(
            "{} is now in the group {} as {}",
            clean(&group.device_name),
            clean(&group.group),
            clean(&group.member_name)
        )
    })?;
    if let (TokenStore::File, Some(why)) = (group.token_in, &group.no_keyring) {
        out.say(&format!("! {why}: this device's token is kept in a file that only you can read"));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn leave(place: &Place, out: &Out) -> Result<ExitCode, Failure> {
    let left: Left = Api::new(place)?.post("/v1/leave-group", &serde_json::json!({})).await?;
    out.answer(&left, |left| match &left.trouble {
        None => "left the group; this device's token is revoked".to_owned(),
        Some(trouble) => format!("left the group, but {}", clean(trouble)),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn invite(place: &Place, asked: Invite, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let member = if asked.mine {
        let snapshot: Snapshot = api.get("/v1/snapshot").await?;
        let group =
            snapshot.group.ok_or_else(|| Problem::new(Code::NoGroup, "this machine belongs to no group"))?;
        Some(group.member)
    } else {
        None
    };
    let invite = wanted(&asked, member);
    let made: MadeInvite = api.post("/v1/group/invites", &invite).await?;
    tell(&made, out)
}

pub(crate) fn wanted(asked: &Invite, member: Option<gpunion_protocol::ids::MemberId>) -> NewInvite {
    NewInvite { role: asked.role.into(), member, valid_s: (asked.valid.0.0 / 1_000).max(1) }
}

pub(crate) fn tell(made: &MadeInvite, out: &Out) -> Result<ExitCode, Failure> {
    out.answer(made, |made| made.link.clone())?;
    out.say(&format!("for one use, until {}; then: gpunion join 'LINK'", show::time(made.expires)));
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn members(place: &Place, out: &Out) -> Result<ExitCode, Failure> {
    let members: Vec<MemberView> = Api::new(place)?.get("/v1/group/members").await?;
    list(&members, out)
}

pub(crate) fn list(members: &Vec<MemberView>, out: &Out) -> Result<ExitCode, Failure> {
    out.answer(members, |members| {
        let rows: Vec<Vec<String>> = members
            .iter()
            .map(|member| {
                let role = match member.role {
                    Role::Member => "member",
                    Role::Operator => "operator",
                };
                let devices: Vec<String> = member
                    .devices
                    .iter()
                    .filter(|device| !device.revoked)
                    .map(|device| format!("{}{}", device.name, if device.connected { "" } else { " (away)" }))
                    .collect();
                vec![member.name.clone(), role.to_owned(), devices.join(", ")]
            })
            .collect();
        show::table(&["MEMBER", "ROLE", "DEVICES"], &rows)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn clean(text: &str) -> String {
    show::clean(text)
}
