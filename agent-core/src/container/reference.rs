//! Names of images, as people write them and as an engine calls them.

/// `[host/]path[:tag][@sha256:…]`, cut apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// Host and path, without tag and digest, as written.
    pub(super) repository: String,
    pub(super) tag: Option<String>,
    /// `sha256:` and 64 hex digits.
    pub(super) digest: Option<String>,
}

impl Reference {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let bad = |why: &str| Err(format!("{text:?} is not the name of an image: {why}"));
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) if is_digest(digest) => (name, Some(digest.to_owned())),
            Some(_) => return bad("what follows @ must be sha256: and 64 hex digits"),
            None => (text, None),
        };
        // A colon before the last slash belongs to the port of a host.
        let (repository, tag) = match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag.to_owned())),
            Some(_) | None => (name, None),
        };
        if repository.split('/').any(|part| part == "." || part == "..") {
            return bad("it leads out of itself");
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
        if repository.is_empty() || !repository.chars().all(fits) || repository.contains("//") {
            return bad("it has letters that no image has");
        }
        if tag
            .as_deref()
            .is_some_and(|tag| tag.is_empty() || !tag.chars().all(|c| fits(c) && c != '/' && c != ':'))
        {
            return bad("its tag has letters that no tag has");
        }
        Ok(Self { repository: repository.to_owned(), tag, digest })
    }

    pub(super) fn by_digest(&self, digest: &str) -> String {
        format!("{}@{digest}", self.repository)
    }

    /// As an engine writes it in `RepoDigests`, so that `python` and `docker.io/library/python`
    /// are one.
    pub(super) fn full_repository(&self) -> String {
        full(&self.repository)
    }
}

/// `repository@digest`, as an engine finds exactly that one by; `None` for what is no name.
pub fn by_digest(reference: &str, digest: &str) -> Option<String> {
    Some(Reference::parse(reference).ok()?.by_digest(digest))
}

fn full(repository: &str) -> String {
    match repository.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => {
            match repository.strip_prefix("index.docker.io/") {
                Some(path) => format!("docker.io/{path}"),
                None => repository.to_owned(),
            }
        }
        Some(_) => format!("docker.io/{repository}"),
        None => format!("docker.io/library/{repository}"),
    }
}

/// Names go into the path of a request: nothing that is neither name nor id may get there.
pub(super) fn is_name_or_id(text: &str) -> bool {
    is_digest(text) || Reference::parse(text).is_ok()
}

pub(super) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

/// The digest that `repo_digests` gives for this image's repository.
pub(super) fn digest_for(reference: &Reference, repo_digests: &[String]) -> Option<String> {
    let wanted = reference.full_repository();
    repo_digests.iter().find_map(|entry| {
        let (repository, digest) = entry.split_once('@')?;
        (full(repository) == wanted && is_digest(digest)).then(|| digest.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_cut_where_an_engine_cuts_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let port = Reference::parse("localhost:5000/lab/digits").unwrap();
        assert_eq!((port.repository.as_str(), port.tag), ("localhost:5000/lab/digits", None));
        let both = Reference::parse(&format!("localhost:5000/digits:v1@{digest}")).unwrap();
        assert_eq!((both.tag.as_deref(), both.digest.as_deref()), (Some("v1"), Some(digest.as_str())));
        assert_eq!(both.by_digest(&digest), format!("localhost:5000/digits@{digest}"));
        for bad in ["", ":tag", "a b", "x@sha256:short", "a//b", "x:", "../containers", "a/../b"] {
            assert!(Reference::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_digest_is_only_taken_from_its_own_repository() {
        let digest = format!("sha256:{}", "b".repeat(64));
        let python = Reference::parse("python:3.12").unwrap();
        assert_eq!(digest_for(&python, &[format!("other@{digest}")]), None);
        assert_eq!(
            digest_for(&python, &[format!("docker.io/library/python@{digest}")]),
            Some(digest.clone())
        );
        assert_eq!(digest_for(&python, &[format!("python@{digest}")]), Some(digest));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,80}") {
            let _ = Reference::parse(&text);
        }
    }
}
