//! What a job is and what it would send, in words for the member. Pure.

use gpunion_protocol::local::Preview;
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::units::Bytes;

use crate::show;

/// All that leaves this machine: what the relay and the provider come to see, too.
/// `known` says which secrets have a value without asking.
pub(crate) fn describe(preview: &Preview, known: impl Fn(&str) -> bool) -> String {
    let spec = &preview.spec;
    let image = if spec.image.is_empty() { "(none)" } else { &spec.image };
    let mut text = format!("job      {}\nimage    {}", show::clean(&spec.name), show::clean(image));
    if !preview.image_from.is_empty() {
        text.push_str(&format!("\n         from {}", preview.image_from));
    }
    let command = if spec.command.is_empty() { "the image's own".to_owned() } else { spec.command.join(" ") };
    text.push_str(&format!("\ncommand  {}", show::clean(&command)));
    text.push_str(&format!("\nneeds    {}", needs(spec)));
    for (name, value) in &spec.env {
        text.push_str(&format!("\nenv      {}={}", show::clean(name), show::clean(value)));
    }
    for name in spec.secrets.keys() {
        let from = if known(name) { "from your environment" } else { "will be asked for" };
        text.push_str(&format!("\nsecrets  {} ({from})", show::clean(name)));
    }
    if !spec.network.egress.is_empty() {
        text.push_str(&format!("\nreaches  {}", show::clean(&spec.network.egress.join(", "))));
    }
    for data in &preview.data {
        text.push_str(&format!(
            "\ndata     {} -> {} ({} files, {})",
            show::clean(&data.from.display().to_string()),
            show::clean(&data.at),
            data.files,
            Bytes(data.bytes)
        ));
    }
    text.push_str(&format!(
        "\nsends    {} files, {} ({} left out)",
        preview.files,
        Bytes(preview.bytes),
        preview.left_out
    ));
    for (path, size) in &preview.largest {
        text.push_str(&format!("\n         {:>10}  {}", Bytes(*size).to_string(), show::clean(path)));
    }
    for warning in &preview.warnings {
        text.push_str(&format!("\n! {}", show::clean(warning)));
    }
    text
}

fn needs(spec: &JobSpec) -> String {
    let r = &spec.resources;
    let gpus = match (r.gpus, r.gpu_memory.0) {
        (0, _) => "no GPU".to_owned(),
        (count, 0) => format!("{count} GPU"),
        (count, _) => format!("{count} GPU with {}", r.gpu_memory),
    };
    format!("{gpus}, {} CPU, {} memory, {} disk", r.cpus, r.memory, r.disk)
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::local::DataPreview;

    use super::*;

    #[test]
    fn all_that_leaves_the_machine_is_shown() {
        let mut spec = JobSpec::of_image("a:1");
        spec.env.insert("EPOCHS".to_owned(), "20".to_owned());
        spec.secrets.insert("HF_TOKEN".to_owned(), Default::default());
        spec.secrets.insert("OTHER".to_owned(), Default::default());
        let preview = Preview {
            spec,
            secrets_missing: Vec::new(),
            image_suggested: None,
            image_from: String::new(),
            files: 2,
            bytes: 3,
            largest: Vec::new(),
            left_out: 0,
            warnings: vec!["lies outside".to_owned()],
            data: vec![DataPreview {
                from: "/home/ada/.ssh".into(),
                at: "/data".to_owned(),
                files: 1,
                bytes: 2_048,
            }],
            digest: String::new(),
        };
        let text = describe(&preview, |name| name == "HF_TOKEN");
        for wanted in [
            "env      EPOCHS=20",
            "secrets  HF_TOKEN (from your environment)",
            "secrets  OTHER (will be asked for)",
            "data     /home/ada/.ssh -> /data (1 files, 2 KiB)",
            "! lies outside",
        ] {
            assert!(text.contains(wanted), "{wanted:?} in {text}");
        }
    }
}
