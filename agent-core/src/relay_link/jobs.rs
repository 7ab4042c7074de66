//! Lists of the member's jobs, as the relay filters them.

use gpunion_protocol::job::JobView;
use gpunion_protocol::problem::Problem;

use super::client::RelayClient;

/// Jobs in one answer, at most; a relay gives no more either.
pub const JOBS_MAX: usize = 1_000;

/// Which jobs are asked for; all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only those that are not over.
    pub open: bool,
    pub name: Option<String>,
}

impl JobFilter {
    fn holds(&self, job: &JobView) -> bool {
        !(self.open && job.state.is_final()) && self.name.as_ref().is_none_or(|name| job.spec.name == *name)
    }
}

impl RelayClient {
    /// The newest of them, at most `JOBS_MAX`.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobView>, Problem> {
        let mut path = format!("/v1/jobs?limit={JOBS_MAX}");
        if filter.open {
            path.push_str("&state=open");
        }
        if let Some(name) = &filter.name {
            path.push_str("&name=");
            path.push_str(&escaped(name));
        }
        let mut jobs: Vec<JobView> = self.get(&path).await?;
        // An older relay answers with all of them.
        jobs.retain(|job| filter.holds(job));
        Ok(jobs)
    }
}

/// For a query: all but letters, digits and `-_.~` as %XX.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte))
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_query_is_one_word() {
        assert_eq!(escaped("a b&c=d/é-_.~"), "a%20b%26c%3Dd%2F%C3%A9-_.~");
    }
}
