//! What guests contacted, in words for the owner. Pure.

use gpunion_protocol::egress::{Contact, Contacts};
use gpunion_protocol::units::Bytes;

use crate::show;

/// One paragraph a guest; nothing for one that contacted nobody.
pub(crate) fn describe(job: &str, member: &str, contacts: &Contacts) -> String {
    if contacts.list.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "{} of {}: {} sent, {} received\n",
        show::clean(job),
        show::clean(member),
        Bytes(contacts.up),
        Bytes(contacts.down)
    );
    for contact in &contacts.list {
        text.push_str(&format!("  {}\n", line(contact)));
    }
    if contacts.left_out > 0 {
        text.push_str(&format!("  and {} contacts to more places than are kept\n", contacts.left_out));
    }
    text
}

fn line(contact: &Contact) -> String {
    let place = format!("{}:{}", show::clean(&contact.name), contact.port);
    let when = format!("{} to {}", show::time(contact.first), show::time(contact.last));
    match &contact.refused {
        Some(why) => format!("REFUSED {place}, {} times, {when}: {}", contact.times, show::clean(why)),
        None => format!(
            "{place}, {} times, {} sent, {} received, {when}",
            contact.times,
            Bytes(contact.up),
            Bytes(contact.down)
        ),
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::time::WallMs;

    use super::*;

    #[test]
    fn what_was_reached_and_what_was_refused_are_told_and_steer_no_terminal() {
        let contact = |name: &str, refused: Option<&str>| Contact {
            name: name.to_owned(),
            port: 443,
            up: 1 << 20,
            down: 2 << 20,
            times: 3,
            first: WallMs(0),
            last: WallMs(1),
            refused: refused.map(str::to_owned),
        };
        let list = vec![contact("github.com", None), contact("evil\u{1b}[2J.org", Some("not asked for"))];
        let text = describe("digits", "ada", &Contacts { list, left_out: 9, up: 1 << 20, down: 2 << 20 });
        assert!(text.contains("github.com:443, 3 times, 1 MiB sent, 2 MiB received"), "{text}");
        assert!(text.contains("REFUSED evil") && text.contains("not asked for"), "{text}");
        assert!(text.contains("9 contacts") && !text.contains('\u{1b}'), "{text}");
        assert!(describe("digits", "ada", &Contacts::default()).is_empty());
    }
}
