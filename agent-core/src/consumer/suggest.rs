//! An image that fits what lies in a folder. Pure: it is shown names, it opens nothing.

use std::collections::BTreeSet;

/// By the names at the top of the folder; the first that fits is suggested.
const SIGNS: &[(&[&str], &str)] = &[
    (&["environment.yml", "environment.yaml"], "mambaorg/micromamba:2"),
    (&["requirements.txt", "pyproject.toml", "setup.py", "uv.lock", "Pipfile"], "python:3.12-slim"),
    (&["Cargo.toml"], "rust:1-slim"),
    (&["package.json"], "node:22-slim"),
    (&["go.mod"], "golang:1"),
    (&["Project.toml"], "julia:1"),
    (&["renv.lock", "DESCRIPTION"], "r-base:latest"),
    (&["CMakeLists.txt", "Makefile"], "gcc:14"),
];
const ENDINGS: &[(&str, &str)] = &[
    (".py", "python:3.12-slim"),
    (".jl", "julia:1"),
    (".R", "r-base:latest"),
    (".js", "node:22-slim"),
    (".sh", "debian:stable-slim"),
];

pub fn image(names: &BTreeSet<String>) -> Option<&'static str> {
    let sign = SIGNS.iter().find(|(signs, _)| signs.iter().any(|sign| names.contains(*sign)));
    let by_ending = || ENDINGS.iter().find(|(ending, _)| names.iter().any(|name| name.ends_with(ending)));
    sign.map(|(_, image)| *image).or_else(|| by_ending().map(|(_, image)| *image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_suggests_its_image() {
        let of = |names: &[&str]| image(&names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(of(&["train.py", "requirements.txt"]), Some("python:3.12-slim"));
        assert_eq!(of(&["environment.yml", "setup.py"]), Some("mambaorg/micromamba:2"));
        assert_eq!(of(&["Cargo.toml"]), Some("rust:1-slim"));
        assert_eq!(of(&["train.py"]), Some("python:3.12-slim"));
        assert_eq!(of(&["data.bin"]), None);
    }
}
