//! The device's token in a real Secret Service: taken there, found there by the next agent, gone
//! with the group (F105 is the other half: without one, a file and a warning).

use anyhow::{Result, ensure};
use system_tests::campus::{Campus, login};

/// A session of its own: a bus, a keyring that was unlocked as a login does, and in it what a
/// person does.
const SESSION: &str = r#"
agent
gp join "$LINK" --name ada >/dev/null
connected
echo "stored: $(secret-tool search --all service gpunion 2>&1 | grep -c '^secret = ')"
echo "files: $(ls "$HOME/gp" | grep -c '^identity' || true)"
grep -rl "$(secret-tool lookup service gpunion username "$HOME/gp" | sed 's/.*"token":"\([0-9a-f]*\)".*/\1/')" "$HOME/gp" && echo leaked || echo "not on disk"
kill -9 $pid; wait $pid || true
agent
connected
echo "found again"
gp doctor || true
gp leave-group >/dev/null
echo "left: $(secret-tool search --all service gpunion 2>&1 | grep -c '^secret = ' || true)"
kill $pid; wait $pid || true
"#;

#[test]
fn f105_the_token_is_in_the_keyring_and_nowhere_else() -> Result<()> {
    let campus = Campus::new()?;
    let relay = campus.relay(campus.lab.user("op")?)?;
    let ada = campus.lab.user("ada")?;
    let wanted = ["stored: 1", "files: 0", "not on disk", "found again", "left: 0"];
    let said = login::session(&campus, &relay, &ada, SESSION, &wanted)?;
    ensure!(!said.contains("leaked"), "{said}");
    Ok(())
}
