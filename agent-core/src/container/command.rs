//! What init runs: the spec's command or the image's own, with its whole environment. Pure.

use gpunion_protocol::guest::{Begin, EGRESS_PORT, WORKSPACE};
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::spec::JobSpec;

use super::error::EngineError;
use super::image::ImageConfig;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The first word to init. A spec's command stands for the image's ENTRYPOINT and CMD both, and
/// starts in the workspace: what it writes beside itself must survive a move. The image's own
/// command starts where the image says, since it may be named relative to that place.
pub fn begin(
    spec: &JobSpec,
    image: &ImageConfig,
    attempt: &AttemptRef,
    resumed: bool,
    secrets: &[(String, String)],
    gpus: &[GpuUuid],
) -> Result<Begin, EngineError> {
    Ok(Begin {
        command: command(spec, image)?,
        env: environment(spec, image, attempt, resumed, secrets, gpus),
        directory: directory(spec, image),
        egress_deadline: None,
        disk_limit: spec.resources.disk.0,
    })
}

fn command(spec: &JobSpec, image: &ImageConfig) -> Result<Vec<String>, EngineError> {
    if !spec.command.is_empty() {
        return Ok(spec.command.clone());
    }
    let own: Vec<String> = image.entrypoint.iter().chain(&image.cmd).cloned().collect();
    if own.is_empty() {
        return Err(EngineError::refused(
            "finding the job's command",
            "the image has no command of its own; name one in the spec (command = [\"…\"])",
        ));
    }
    Ok(own)
}

fn directory(spec: &JobSpec, image: &ImageConfig) -> String {
    if spec.command.is_empty() && image.workdir.starts_with('/') && image.workdir != "/" {
        return image.workdir.clone();
    }
    WORKSPACE.to_owned()
}

/// Later ones win: image, spec, secrets, then what the provider promises.
fn environment(
    spec: &JobSpec,
    image: &ImageConfig,
    attempt: &AttemptRef,
    resumed: bool,
    secrets: &[(String, String)],
    gpus: &[GpuUuid],
) -> Vec<(String, String)> {
    let mut env = std::collections::BTreeMap::from([("PATH".to_owned(), DEFAULT_PATH.to_owned())]);
    env.extend(image.env.iter().filter_map(|entry| {
        let (name, value) = entry.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    }));
    env.extend([("HOME".to_owned(), format!("{WORKSPACE}/.home"))]);
    // Over the image's own: those are of wherever it was built.
    env.extend(proxies(spec));
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env.extend(secrets.iter().cloned());
    let list: Vec<&str> = gpus.iter().map(|gpu| gpu.0.as_str()).collect();
    let visible = if list.is_empty() { "void".to_owned() } else { list.join(",") };
    env.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), visible);
    env.insert("GPUNION_JOB".to_owned(), attempt.job.to_string());
    env.insert("GPUNION_ATTEMPT".to_owned(), attempt.token.attempt.to_string());
    if resumed {
        env.insert("GPUNION_RESUMED".to_owned(), "1".to_owned());
    }
    env.into_iter().collect()
}

/// How programs find init's loopback, in both spellings, where neither is the spec's own.
fn proxies(spec: &JobSpec) -> Vec<(String, String)> {
    if spec.network.egress.is_empty() {
        return Vec::new();
    }
    let proxy = format!("http://127.0.0.1:{EGRESS_PORT}");
    let wanted = [
        ("HTTP_PROXY", proxy.clone()),
        ("HTTPS_PROXY", proxy.clone()),
        ("ALL_PROXY", proxy),
        ("NO_PROXY", "localhost,127.0.0.1,::1".to_owned()),
    ];
    let own =
        |name: &str| spec.env.keys().chain(spec.secrets.keys()).any(|known| known.eq_ignore_ascii_case(name));
    let free = wanted.into_iter().filter(|(name, _)| !own(name));
    free.flat_map(|(name, value)| [(name.to_owned(), value.clone()), (name.to_ascii_lowercase(), value)])
        .collect()
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::{AttemptNo, Epoch, JobId, Token};

    use super::*;

    fn attempt() -> AttemptRef {
        AttemptRef { job: JobId::new(1, [1; 10]), token: Token { epoch: Epoch(1), attempt: AttemptNo(2) } }
    }

    fn image() -> ImageConfig {
        ImageConfig {
            entrypoint: vec!["/bin/entry".to_owned()],
            cmd: vec!["--help".to_owned()],
            env: vec![
                "PATH=/opt/bin".to_owned(),
                "A=image".to_owned(),
                "NVIDIA_VISIBLE_DEVICES=all".to_owned(),
            ],
            workdir: "/app".to_owned(),
        }
    }

    #[test]
    fn the_spec_s_command_stands_for_the_image_s_whole_command() {
        let mut spec = JobSpec::of_image("x");
        let own = begin(&spec, &image(), &attempt(), false, &[], &[]).unwrap();
        assert_eq!(own.command, ["/bin/entry", "--help"]);
        assert_eq!(own.directory, "/app");
        spec.command = vec!["python".to_owned(), "train.py".to_owned()];
        assert_eq!(begin(&spec, &image(), &attempt(), false, &[], &[]).unwrap().command, spec.command);
        assert_eq!(begin(&spec, &image(), &attempt(), false, &[], &[]).unwrap().directory, WORKSPACE);
        spec.command.clear();
        let error = begin(&spec, &ImageConfig::default(), &attempt(), false, &[], &[]).unwrap_err();
        assert!(error.to_string().contains("no command of its own"), "{error}");
    }

    #[test]
    fn a_job_with_egress_is_told_the_proxy_and_the_spec_s_own_wins() {
        let mut image = image();
        image.env.push("http_proxy=http://proxy.builder:3128".to_owned());
        let mut spec = JobSpec::of_image("x");
        let get = |spec: &JobSpec, name: &str| {
            let begun = begin(spec, &image, &attempt(), false, &[], &[]).unwrap();
            begun.env.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
        };
        assert_eq!(get(&spec, "HTTPS_PROXY"), None, "without egress there is none");
        spec.network.egress.push("github.com".to_owned());
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            assert_eq!(get(&spec, name).as_deref(), Some("http://127.0.0.1:20080"), "{name}");
        }
        assert!(get(&spec, "no_proxy").unwrap().contains("127.0.0.1"));
        spec.env.insert("https_proxy".to_owned(), "http://mine:1".to_owned());
        assert_eq!(get(&spec, "https_proxy").as_deref(), Some("http://mine:1"));
        assert_eq!(get(&spec, "HTTPS_PROXY"), None, "the two spellings do not contradict each other");
    }

    #[test]
    fn the_provider_s_own_names_win_and_only_given_gpus_are_named() {
        let mut spec = JobSpec::of_image("x");
        spec.env.insert("A".to_owned(), "spec".to_owned());
        let secrets = [("HF_TOKEN".to_owned(), "s3cret".to_owned())];
        let begun =
            begin(&spec, &image(), &attempt(), true, &secrets, &[GpuUuid("GPU-7".to_owned())]).unwrap();
        let get = |name: &str| begun.env.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(get("PATH"), Some("/opt/bin"));
        assert_eq!(get("A"), Some("spec"));
        assert_eq!(get("HF_TOKEN"), Some("s3cret"));
        assert_eq!(get("HOME"), Some("/workspace/.home"));
        assert_eq!(get("NVIDIA_VISIBLE_DEVICES"), Some("GPU-7"));
        assert_eq!((get("GPUNION_ATTEMPT"), get("GPUNION_RESUMED")), (Some("2"), Some("1")));
        assert!(!format!("{begun:?}").contains("s3cret"));
        let cpu = begin(&spec, &image(), &attempt(), false, &[], &[]).unwrap();
        assert!(cpu.env.contains(&("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned())));
    }
}
