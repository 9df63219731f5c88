//! The architecture, as a test.
//!
//! It reads the manifests and the sources and asserts what ARCHITECTURE.md draws:
//! which crate may see which, who may name sled and openraft, where `unsafe` may
//! stand, what the core must not touch, and that the pages keep up with the code.
//! Every failure says what to do about it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What each of our crates may depend on. An arrow that is not here is forbidden;
/// a new one is a design decision: draw it in ARCHITECTURE.md, then add it here.
const ARROWS: &[(&str, &[&str])] = &[
    ("quorate-mutants", &[]),
    ("quorate-core", &[]),
    ("quorate-proto", &[]),
    ("quorate-storage", &[]),
    (
        "quorate-raft",
        &["quorate-core", "quorate-proto", "quorate-storage"],
    ),
    ("quorate-node", &["quorate-core", "quorate-proto", "quorate-raft"]),
    ("quorate-gateway-grpc", &["quorate-node", "quorate-proto"]),
    ("quorate-gateway-http", &["quorate-node"]),
    ("quorate-client", &["quorate-proto"]),
    ("quorate-cli", &["quorate-client"]),
    ("quorate-load", &["quorate-client"]),
    ("quorate-test-cluster", &["quorate-client", "quorate-disk-shim"]),
    ("quorate-disk-shim", &[]),
    ("jepsen-lite-core", &[]),
    ("jepsen-lite-mutants", &["jepsen-lite-core"]),
    ("jepsen-lite-report", &["jepsen-lite-core"]),
    (
        "jepsen-lite-processes",
        &[
            "jepsen-lite-core",
            "quorate-client",
            "quorate-disk-shim",
            "quorate-test-cluster",
        ],
    ),
    ("jepsen-lite-workload", &["jepsen-lite-core", "quorate-client"]),
    (
        "jepsen-lite-sim",
        &[
            "jepsen-lite-core",
            "jepsen-lite-workload",
            "quorate-client",
            "quorate-disk-shim",
            "quorate-gateway-grpc",
            "quorate-node",
            "quorate-raft",
            "quorate-storage",
        ],
    ),
    (
        "jepsen-lite",
        &[
            "jepsen-lite-core",
            "jepsen-lite-workload",
            "jepsen-lite-sim",
            "jepsen-lite-processes",
            "jepsen-lite-report",
            "jepsen-lite-mutants",
            "quorate-test-cluster",
        ],
    ),
    (
        "quorate-server",
        &[
            "quorate-node",
            "quorate-gateway-grpc",
            "quorate-gateway-http",
            "quorate-client",
            "quorate-cli",
            "quorate-load",
            "quorate-test-cluster",
        ],
    ),
    (
        "quorate-tests",
        &[
            "quorate-client",
            "quorate-proto",
            "quorate-test-cluster",
            "quorate-disk-shim",
            "jepsen-lite-core",
            "jepsen-lite-workload",
            "jepsen-lite-processes",
            "jepsen-lite-workload",
        ],
    ),
];

/// What all may see: it is a constant unless deliberate faults are compiled in.
const SEEN_BY_ALL: &[&str] = &["quorate-mutants"];

/// Arrows that only tests of a crate may use.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("quorate-storage", &["quorate-disk-shim"]),
    ("quorate-raft", &["quorate-disk-shim"]),
    // A whole node, from its client to its disk, in one thread.
    ("quorate-gateway-grpc", &["quorate-client"]),
    // Workloads in front of real processes where nothing is wrong.
    ("jepsen-lite-workload", &["quorate-test-cluster"]),
    // The named scenarios, with their load, on processes.
    ("jepsen-lite-processes", &["jepsen-lite-workload"]),
    ("jepsen-lite-sim", &["quorate-proto"]),
    // Its examples measure what `quorate bench` measures, and do harm meanwhile.
    ("quorate-tests", &["quorate-load"]),
];

/// Libraries that exactly one crate may name, so that replacing one touches one crate.
const OWNED_LIBRARIES: &[(&str, &str)] = &[("sled", "quorate-storage"), ("openraft", "quorate-raft")];

/// All that the core may use from outside: nothing here can do IO, read a clock or draw a number.
const CORE_LIBRARIES: &[&str] = &[
    "serde",
    "postcard",
    "xxhash-rust",
    "bytes",
    "thiserror",
    "quorate-mutants",
];

/// Files that may hold `unsafe`: path from the root, or a folder.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/storage/src/hook.rs",
    "crates/storage/tests/",
    "jepsen-lite/disk-shim/",
];

/// What would make two nodes differ, or make the core wait.
const BANNED_IN_CORE: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "HashMap",
    "HashSet",
    "std::fs",
    "std::net",
    "std::thread",
    "std::env",
    "tokio",
    "tracing::",
    "rand::",
    "async fn",
    ".await",
    "println!",
];

#[test]
fn arrows_between_our_crates_are_the_drawn_ones() {
    let mut faults = Vec::new();
    for manifest in manifests() {
        let Some(allowed) = lookup(ARROWS, &manifest.name) else {
            faults.push(format!(
                "{} is a new crate: draw it in ARCHITECTURE.md and add its arrows to ARROWS",
                manifest.name
            ));
            continue;
        };
        let for_tests = lookup(TEST_ARROWS, &manifest.name).unwrap_or(&[]);
        for dependency in manifest
            .dependencies
            .iter()
            .filter(|d| d.name.starts_with("quorate-"))
        {
            let name = dependency.name.as_str();
            let fine = SEEN_BY_ALL.contains(&name)
                || allowed.contains(&name)
                || (dependency.only_tests && for_tests.contains(&name));
            if !fine {
                faults.push(format!(
                    "{} must not depend on {name} ({}): move the code to where the arrow allows it, \
                     or decide on the new arrow in ARCHITECTURE.md and list it in ARROWS",
                    manifest.name,
                    manifest.path.display()
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn sled_and_openraft_have_one_owner_each() {
    let mut faults = Vec::new();
    for manifest in manifests() {
        for (library, owner) in OWNED_LIBRARIES {
            if manifest.name != *owner && manifest.dependencies.iter().any(|d| d.name == *library) {
                faults.push(format!(
                    "{} names {library}: only {owner} may; add what you need to its interface instead",
                    manifest.name
                ));
            }
        }
    }
    for file in rust_files() {
        let owner_folder = |owner: &str| format!("crates/{}/", owner.trim_start_matches("quorate-"));
        for (library, owner) in OWNED_LIBRARIES {
            if !file.path.starts_with(&owner_folder(owner)) {
                for (line, code) in file.code() {
                    if has_word(code, &format!("{library}::")) {
                        faults.push(format!("{}:{line} uses {library}: only {owner} may", file.path));
                    }
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_core_is_a_pure_function() {
    let mut faults = Vec::new();
    let manifest = manifests()
        .into_iter()
        .find(|m| m.name == "quorate-core")
        .expect("crates/core exists");
    for dependency in manifest.dependencies.iter().filter(|d| !d.only_tests) {
        if !CORE_LIBRARIES.contains(&dependency.name.as_str()) {
            faults.push(format!(
                "quorate-core depends on {}: the core does no IO and reads no clock; pass what it needs \
                 in the command, or return an effect. A harmless library is added to CORE_LIBRARIES",
                dependency.name
            ));
        }
    }
    for file in rust_files()
        .into_iter()
        .filter(|f| f.path.starts_with("crates/core/src/"))
    {
        for (line, code) in file.code() {
            for banned in BANNED_IN_CORE {
                if has_word(code, banned) {
                    faults.push(format!(
                        "{}:{line} uses {banned}: every node must compute the same from the same log; use an \
                         ordered map, a field of the command (time, ids) or an effect",
                        file.path
                    ));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn deliberate_faults_are_compiled_in_for_nobody_who_did_not_ask() {
    let mut faults = Vec::new();
    for manifest in manifests() {
        let text = read(&manifest.path);
        for (number, line) in text.lines().enumerate() {
            let on_for_all = line.starts_with("default =") || line.contains("features = [");
            if on_for_all && line.contains("mutants") {
                faults.push(format!(
                    "{}:{} turns the feature `mutants` on for whoever depends on it: ask for it with \
                     --features where a suite is built that looks for faults",
                    manifest.path.display(),
                    number + 1
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn unsafe_stands_only_where_it_is_allowed() {
    let mut faults = Vec::new();
    for file in rust_files() {
        if UNSAFE_ALLOWED
            .iter()
            .any(|allowed| file.path.starts_with(allowed))
        {
            continue;
        }
        for (line, code) in file.code_with_tests() {
            if [
                "unsafe {",
                "unsafe fn",
                "unsafe impl",
                "unsafe extern",
                "unsafe(",
                "allow(unsafe_code)",
            ]
            .iter()
            .any(|form| has_word(code, form))
            {
                faults.push(format!(
                    "{}:{line} is unsafe: only {UNSAFE_ALLOWED:?} may be; look for a safe interface (nix, bytes) first",
                    file.path
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn nothing_is_left_to_do_in_the_sources() {
    let mut faults = Vec::new();
    for file in rust_files() {
        for (line, code) in file.code_with_tests() {
            for left in ["todo!", "unimplemented!", "dbg!"] {
                if has_word(code, left) {
                    faults.push(format!("{}:{line} has {left}: finish it or remove it", file.path));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn every_crate_opens_with_prose() {
    let mut faults = Vec::new();
    for manifest in manifests() {
        let folder = manifest.path.parent().expect("a manifest is in a folder");
        let root = ["src/lib.rs", "src/main.rs"]
            .iter()
            .map(|name| folder.join(name))
            .find(|path| root_of_repository().join(path).exists());
        let Some(root) = root else {
            faults.push(format!(
                "{} has neither src/lib.rs nor src/main.rs",
                manifest.name
            ));
            continue;
        };
        let text = read(&root);
        let prose = text
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .collect::<Vec<_>>();
        let length: usize = prose.iter().map(|line| line.len()).sum();
        if length < 80 {
            faults.push(format!(
                "{} must open with `//!` prose: what it promises, what it leaves out, how it fits",
                root.display()
            ));
        }
    }
    assert_none(&faults);
}

#[test]
fn no_file_names_a_place_on_somebodys_machine() {
    let mut faults = Vec::new();
    // Spelled in two halves, or this file would find itself.
    let places = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"]].map(|halves| halves.concat());
    for path in text_files() {
        for (number, line) in read(&path).lines().enumerate() {
            for place in &places {
                if let Some(at) = line.find(place.as_str()) {
                    // `target/work/` and the like are relative and fine.
                    let before = line[..at].chars().next_back();
                    if !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}')) {
                        faults.push(format!(
                            "{}:{} names {place}…: use a path relative to the repository, or a temporary folder",
                            path.display(),
                            number + 1
                        ));
                    }
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_map_of_crates_is_complete() {
    let page = read(Path::new("ARCHITECTURE.md"));
    let mut faults = Vec::new();
    for manifest in manifests() {
        let folder = manifest
            .path
            .parent()
            .expect("a manifest is in a folder")
            .display()
            .to_string();
        if !page.contains(&format!("`{folder}`")) {
            faults.push(format!(
                "ARCHITECTURE.md does not mention `{folder}`: add it to the map of crates"
            ));
        }
    }
    assert_none(&faults);
}

#[test]
fn every_reason_is_explained_to_users() {
    let proto = read(Path::new("proto/quorate/v1/broker.proto"));
    let page = read(Path::new("docs/errors.md"));
    let reasons: BTreeSet<&str> = proto
        .lines()
        .filter_map(|line| line.trim().strip_prefix("REASON_"))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "UNSPECIFIED")
        .collect();
    assert!(
        reasons.len() > 15,
        "found only {} reasons in broker.proto: has the enum moved?",
        reasons.len()
    );
    let faults: Vec<String> = reasons
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")))
        .map(|name| format!("docs/errors.md does not explain `{name}`: add a row"))
        .collect();
    assert_none(&faults);
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut faults = Vec::new();
    for path in text_files()
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
    {
        let folder = path.parent().unwrap_or(Path::new(""));
        for target in links(&read(&path)) {
            if target.contains("://") || target.starts_with('#') || target.starts_with("mailto:") {
                continue;
            }
            let file = target.split('#').next().unwrap_or_default();
            if !root_of_repository().join(folder).join(file).exists() {
                faults.push(format!(
                    "{} links to {target}, which does not exist",
                    path.display()
                ));
            }
        }
    }
    assert_none(&faults);
}

// ------------------------------------------------------------------- manifests

struct Manifest {
    name: String,
    /// From the root of the repository.
    path: PathBuf,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    only_tests: bool,
}

/// All members of the workspace.
fn manifests() -> Vec<Manifest> {
    let workspace = parse(Path::new("Cargo.toml"));
    let members = workspace["workspace"]["members"]
        .as_array()
        .expect("members is a list");
    let mut paths = Vec::new();
    for member in members {
        let member = member.as_str().expect("a member is a string");
        match member.strip_suffix("/*") {
            Some(parent) => {
                let folder = root_of_repository().join(parent);
                let entries = std::fs::read_dir(&folder).expect("a folder of members can be listed");
                for entry in entries {
                    let path = Path::new(parent).join(entry.expect("a folder entry can be read").file_name());
                    if root_of_repository().join(&path).join("Cargo.toml").exists() {
                        paths.push(path);
                    }
                }
            }
            None => paths.push(PathBuf::from(member)),
        }
    }
    paths.sort();
    assert!(
        paths.len() > 10,
        "found only {} members: has the workspace moved?",
        paths.len()
    );
    paths
        .iter()
        .map(|path| manifest(&path.join("Cargo.toml")))
        .collect()
}

fn manifest(path: &Path) -> Manifest {
    let document = parse(path);
    let name = document["package"]["name"]
        .as_str()
        .expect("a package has a name")
        .to_owned();
    let mut found = BTreeMap::new();
    collect(&document, &mut found);
    if let Some(targets) = document.get("target").and_then(toml::Value::as_table) {
        for section in targets.values() {
            collect(section, &mut found);
        }
    }
    let dependencies = found
        .into_iter()
        .map(|(name, only_tests)| Dependency { name, only_tests })
        .collect();
    Manifest {
        name,
        path: path.to_owned(),
        dependencies,
    }
}

/// Adds what one table of a manifest depends on; a renamed dependency counts under its real name.
fn collect(section: &toml::Value, found: &mut BTreeMap<String, bool>) {
    for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
        let Some(table) = section.get(kind).and_then(toml::Value::as_table) else {
            continue;
        };
        for (key, value) in table {
            let name = value
                .get("package")
                .and_then(toml::Value::as_str)
                .unwrap_or(key)
                .to_owned();
            let only_tests = kind == "dev-dependencies";
            found
                .entry(name)
                .and_modify(|known| *known &= only_tests)
                .or_insert(only_tests);
        }
    }
}

fn parse(path: &Path) -> toml::Value {
    let text = read(path);
    let table: toml::Table = text
        .parse()
        .unwrap_or_else(|e| panic!("{} is not TOML: {e}", path.display()));
    toml::Value::Table(table)
}

fn lookup<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|(_, arrows)| *arrows)
}

// --------------------------------------------------------------------- sources

struct RustFile {
    /// From the root of the repository, with forward slashes.
    path: String,
    text: String,
}

impl RustFile {
    /// Numbered lines without comments, up to the unit tests at the end of a file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code_with_tests()
            .take_while(|(_, code)| !code.contains("#[cfg(test)]"))
    }

    fn code_with_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(number, line)| (number + 1, without_comment(line)))
    }
}

/// All Rust sources but this one, which spells out what it forbids.
fn rust_files() -> Vec<RustFile> {
    let files: Vec<RustFile> = text_files()
        .into_iter()
        .filter(|path| {
            path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests/architecture.rs")
        })
        .map(|path| RustFile {
            text: read(&path),
            path: path.display().to_string(),
        })
        .collect();
    assert!(
        files.len() > 20,
        "found only {} sources: is this the repository?",
        files.len()
    );
    files
}

/// A line up to `//`; one inside a string is kept only when a colon stands before it (an URL).
fn without_comment(line: &str) -> &str {
    let mut from = 0;
    while let Some(at) = line[from..].find("//") {
        let at = from + at;
        if !line[..at].ends_with(':') {
            return &line[..at];
        }
        from = at + 2;
    }
    line
}

/// Whether `code` has `form` with no letter of a longer word before it.
fn has_word(code: &str, form: &str) -> bool {
    code.match_indices(form).any(|(at, _)| {
        !code[..at]
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Targets of Markdown links outside code.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let mut rest = line;
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let Some(end) = rest.find(')') else { break };
            found.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
    }
    found
}

/// Every text file of the project, from the root of the repository, in a fixed order.
fn text_files() -> Vec<PathBuf> {
    const KINDS: &[&str] = &[
        "rs", "toml", "md", "proto", "yaml", "yml", "sh", "json", "txt", "service",
    ];
    const BY_NAME: &[&str] = &["justfile", "Dockerfile", "run"];
    const SKIPPED: &[&str] = &["target", ".git", "quorate-data", "node_modules"];
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root_of_repository().join(&folder)).expect("a folder can be listed");
        for entry in entries {
            let entry = entry.expect("a folder entry can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            let kind = entry.file_type().expect("a folder entry has a type");
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file() {
                let known = path.extension().is_some_and(|e| KINDS.iter().any(|k| e == *k));
                if known || BY_NAME.contains(&name.as_str()) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    let full = root_of_repository().join(path);
    std::fs::read_to_string(&full).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

fn root_of_repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is a folder of the repository")
}

#[track_caller]
fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}
