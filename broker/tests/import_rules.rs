//! The dependency rules of ARCHITECTURE.md, read off the sources: imports point one way, each foreign crate has one
//! room, what decides cannot act, and files stay small enough to read.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What each module of the broker may name of the broker, the upper ones first. `contract`, `codec` and `core` are crates
/// of their own.
const MODULES: &[(&str, &[&str])] = &[
    ("main", &["assembly", "config_file", "log_command"]),
    (
        "assembly",
        &[
            "admin",
            "app",
            "cluster",
            "config_file",
            "log",
            "mailbox",
            "metrics",
            "owner",
            "registry",
            "router",
        ],
    ),
    (
        "app",
        &[
            "admin",
            "cluster",
            "connection",
            "listener",
            "log",
            "metrics",
            "owner",
            "registry",
            "router",
            "sys",
        ],
    ),
    ("config_file", &[]),
    ("log_command", &["log"]),
    ("admin", &["admission", "cluster", "metrics", "router"]),
    ("sys", &["metrics", "router"]),
    ("listener", &["connection"]),
    ("connection", &["cluster", "mailbox", "metrics", "owner", "registry", "router"]),
    ("router", &["cluster", "log", "mailbox", "metrics"]),
    ("registry", &["mailbox", "metrics", "owner"]),
    ("mailbox", &["metrics"]),
    // These two name each other, but only what CONTRACTS says.
    ("owner", &["cluster", "log"]),
    ("cluster", &["admission", "owner"]),
    ("log", &[]),
    ("metrics", &[]),
    ("admission", &[]),
];

/// `(module, other)`: `module` may name the traits and values in the root of `other`, none of its rooms.
const CONTRACTS: &[(&str, &str)] = &[("owner", "cluster"), ("cluster", "owner")];

/// Crates that only some files may name.
const ROOMS: &[(&str, &[&str])] = &[
    ("rmqtt_codec", &["broker/codec/"]),
    ("rdkafka", &["broker/src/log/kafka", "operator/src/clients/kafka", "e2e/"]),
    ("kube", &["broker/src/cluster/lease", "operator/", "crds/", "e2e/"]),
    ("k8s_openapi", &["broker/src/cluster/lease", "operator/", "crds/", "e2e/"]),
    ("fjall", &["broker/src/log/embedded"]),
];

/// What pure code must not name: `(files, words)`.
const PURE: &[(&str, &[&str])] = &[
    (
        "broker/core/src/",
        &[
            "tokio",
            "std::time::Instant",
            "Instant::now",
            "SystemTime",
            "std::fs",
            "std::net",
            "std::env",
            "std::thread",
            "rand::",
        ],
    ),
    (
        "operator/src/controller/plan",
        &["kube::", "tokio", "std::fs", "std::net", "rdkafka", "SystemTime", "Instant::now"],
    ),
    (
        "operator/src/controller/build",
        &[
            "kube::Client",
            "kube::api",
            "tokio",
            "std::fs",
            "std::net",
            "rdkafka",
            "SystemTime",
            "Instant::now",
        ],
    ),
    (
        "operator/src/controller/validate",
        &["kube::Client", "kube::api", "tokio", "std::fs", "std::net", "rdkafka"],
    ),
];

/// Dependencies that `core` may have.
const CORE_DEPENDENCIES: &[&str] = &["arcstr", "bytes", "bytestring", "thiserror", "xxhash-rust"];

const LINES_MAX: usize = 400;

#[test]
fn imports_between_the_brokers_modules_point_one_way() {
    let mut broken = Vec::new();
    for (path, text) in sources("broker/src/") {
        let module = module_of(&path);
        if module == "lib" {
            continue;
        }
        let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
            broken.push(format!("{path}: module '{module}' has no rule"));
            continue;
        };
        for named in modules_named(&code_of(&text)) {
            if named != module && !allowed.contains(&named.as_str()) {
                broken.push(format!("{path}: {module} must not name {named}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn owner_and_cluster_know_each_other_by_contract_only() {
    let mut broken = Vec::new();
    for (path, text) in sources("broker/src/") {
        let module = module_of(&path);
        for (_, other) in CONTRACTS.iter().filter(|(from, _)| *from == module) {
            for room in rooms_named(&code_of(&text), other) {
                broken.push(format!("{path}: {module} must not name {other}::{room}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn each_foreign_crate_is_named_only_in_its_room() {
    let mut broken = Vec::new();
    for (path, text) in all_sources() {
        for (foreign, rooms) in ROOMS {
            if names_crate(&text, foreign) && !rooms.iter().any(|room| path.starts_with(room)) {
                broken.push(format!("{path} names {foreign}, which belongs to {rooms:?}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn what_decides_cannot_act() {
    let mut broken = Vec::new();
    for (path, text) in all_sources() {
        let code = code_of(&text);
        for (files, words) in PURE {
            if path.starts_with(files) {
                broken.extend(
                    words
                        .iter()
                        .filter(|word| code.contains(**word))
                        .map(|word| format!("{path} names {word}")),
                );
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn core_depends_on_nothing_that_performs_io() {
    let manifest = std::fs::read_to_string(root().join("broker/core/Cargo.toml")).unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let dependencies: BTreeSet<_> = section
        .lines()
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect();

    assert_eq!(dependencies, CORE_DEPENDENCIES.iter().copied().collect());
}

#[test]
fn no_source_file_is_longer_than_400_lines_before_its_tests() {
    let long: Vec<_> = all_sources()
        .into_iter()
        .filter(|(path, _)| !path.contains("/tests/") && !path.ends_with("/tests.rs"))
        .map(|(path, text)| (path, text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .collect();
    assert!(long.is_empty(), "{long:?}");
}

#[test]
fn the_checker_sees_what_it_must_see() {
    let code = "use crate::router::Router;\nuse crate::{log::Log, mailbox};\nfn f() { crate::admin::g(); crate::m!() }";

    assert_eq!(modules_named(code), ["admin", "log", "mailbox", "router"].map(String::from).into());
    assert_eq!(rooms_named("use crate::owner::{HostSide, parts::P};", "owner"), ["parts".to_owned()].into());
    assert_eq!(rooms_named("crate::owner::group::f()", "owner"), ["group".to_owned()].into());
    assert!(rooms_named("use crate::owner::OwnerSide;", "owner").is_empty());
    assert!(names_crate("use kube::Client;", "kube"));
    assert!(names_crate("let x = rdkafka::util::get_rdkafka_version();", "rdkafka"));
    assert!(!names_crate("// kube::Client is elsewhere\nuse minikube::x;", "kube"));
    assert_eq!(code_of("a // std::fs\n#[cfg(test)]\nmod tests { std::fs }"), "a \n");
    assert_eq!(module_of("broker/src/log/kafka/topics.rs"), "log");
    assert_eq!(module_of("broker/src/app.rs"), "app");
}

/// The modules that `crate::…` paths name, groups included.
fn modules_named(code: &str) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => named.extend(group_members(group)),
            None => named.extend(identifier(rest)),
        }
    }
    named
}

/// The modules inside `module` that `crate::<module>::…` paths name, groups included.
fn rooms_named(code: &str, module: &str) -> BTreeSet<String> {
    let path = format!("crate::{module}::");
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices(&path) {
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{') {
            Some(group) => named.extend(group_members(group)),
            None => named.extend(identifier(rest)),
        }
    }
    named
}

/// The first identifier of each member of `a::b, c::{d, e}, f}`.
fn group_members(group: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut members = vec![String::new()];
    for character in group.chars() {
        match character {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => members.push(String::new()),
            _ => {}
        }
        if depth == 0 && character != ',' {
            members.last_mut().unwrap().push(character);
        }
    }
    members.iter().filter_map(|member| identifier(member.trim())).collect()
}

fn identifier(text: &str) -> Option<String> {
    let name: String =
        text.chars().take_while(|character| character.is_ascii_alphanumeric() || *character == '_').collect();
    // A capital is an item of the root, a lower-case letter a module or a macro.
    let is_macro = text[name.len()..].starts_with('!');
    (name.starts_with(|first: char| first.is_ascii_lowercase()) && !is_macro).then_some(name)
}

fn names_crate(text: &str, foreign: &str) -> bool {
    let code = code_of(text);
    let path = format!("{foreign}::");
    code.match_indices(&path).any(|(at, _)| {
        !code[..at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_' || before == ':')
    })
}

/// Everything before the file's tests, without line comments.
fn code_of(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

/// `broker/src/log/kafka.rs` -> `log`.
fn module_of(path: &str) -> String {
    let inner = path.trim_start_matches("broker/src/");
    inner.split(['/', '.']).next().unwrap_or_default().to_owned()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn all_sources() -> Vec<(String, String)> {
    ["broker/", "operator/src/", "crds/src/", "e2e/"].iter().flat_map(|folder| sources(folder)).collect()
}

/// Rust files below `folder`, with paths relative to the repository.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
                // This file names everything.
                if !relative.ends_with("import_rules.rs") {
                    found.push((relative, std::fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {folder}");
    found
}
