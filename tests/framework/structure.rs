//! Structure of the source: no import cycles between modules, and a limit on file length.
//!
//! Cargo rules out cycles between packages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const PACKAGES: [&str; 17] = [
    "autobwd/core",
    "autobwd/plan",
    "autobwd/backward",
    "autobwd/exec",
    "autobwd/eager",
    "autobwd/net",
    "autobwd/parallel",
    "autobwd/mpi",
    "autobwd/check",
    "autobwd/data",
    "autobwd/viewer",
    "autobwd-macros",
    "ops",
    "ops/onnx",
    "ops/paddle",
    "ops/xla",
    "ops/cli",
];

/// Modules that may be in an import cycle. Compositions of operators use the methods of expressions, and each method
/// stands for an operator.
const EXEMPT: [(&str, &str); 1] = [("ops", "math")];

/// Maximum lines of code in a file, without documentation and blank lines.
const LINES: usize = 500;

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files with one of these extensions.
pub(crate) fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            files(&path, extensions, found);
        } else if extensions.iter().any(|extension| path.extension().is_some_and(|e| e == *extension)) {
            found.push(path);
        }
    }
}

/// The code of a file, without comments and without its tests.
pub(crate) fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.take_while(|line| !line.starts_with("mod tests {")).collect::<Vec<_>>().join("\n")
}

/// The first segments of a tree of imports: `a` and `b` of `{a::{x, y}, b}`.
fn heads(tree: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if !tree.starts_with('{') {
        return vec![tree.chars().take_while(|c| is_name(*c)).collect()];
    }
    let (mut found, mut depth, mut is_head) = (vec![], 0, true);
    for c in tree.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => is_head = true,
            c if depth == 1 && is_head && is_name(c) => {
                found.push(c.to_string());
                is_head = false;
            }
            c if depth == 1 && is_name(c) && found.last().is_some_and(|head| !head.ends_with(':')) => {
                found.last_mut().unwrap().push(c);
            }
            ':' | ' ' if depth == 1 && !is_head => found.last_mut().unwrap().push(':'),
            _ => {}
        }
    }
    found.iter().map(|head| head.trim_end_matches(':').to_string()).collect()
}

/// For each module of a package: the other modules that it imports, also through re-exports of `lib.rs`.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = vec![];
    files(source, &["rs"], &mut all);
    let module = |file: &Path| {
        let first = file.strip_prefix(source).unwrap().components().next().unwrap();
        first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_string()
    };
    let modules: BTreeSet<String> = all.iter().map(|file| module(file)).filter(|m| m != "lib").collect();
    let mut exported: BTreeMap<String, String> = BTreeMap::new();
    for statement in code(&source.join("lib.rs")).split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let Some((from, names)) = path.trim().trim_start_matches("crate::").split_once("::") else {
            continue;
        };
        if modules.contains(from) {
            exported.extend(heads(names).into_iter().map(|name| (name, from.to_string())));
        }
    }
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in &all {
        let (own, text) = (module(file), code(file));
        let nested = file.strip_prefix(source).unwrap().components().count();
        let is_mod = file.file_name().is_some_and(|name| name == "mod.rs");
        let up = "super::".repeat(if is_mod { nested - 1 } else { nested });
        for prefix in ["crate::", &up] {
            for (at, _) in text.match_indices(prefix) {
                if text[..at].ends_with("super::") || text[..at].ends_with('$') {
                    continue;
                }
                for head in heads(&text[at + prefix.len()..]) {
                    let target = modules.get(&head).or_else(|| exported.get(&head)).filter(|m| **m != own);
                    if let Some(target) = target.filter(|_| own != "lib") {
                        found.entry(own.clone()).or_default().insert(target.clone());
                    }
                }
            }
        }
    }
    found
}

/// A cycle of imports, if there is one.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<&str>> {
    // Remove modules that only import removed ones, until nothing changes.
    let mut left: BTreeSet<&str> = imports.keys().map(String::as_str).collect();
    loop {
        let stays = |module: &&str| imports[*module].iter().any(|import| left.contains(import.as_str()));
        let next: BTreeSet<&str> = left.iter().copied().filter(|module| stays(module)).collect();
        if next.len() == left.len() {
            return (!left.is_empty()).then(|| left.into_iter().collect());
        }
        left = next;
    }
}

#[test]
fn imports_are_understood() {
    assert_eq!(heads("{a, b_c::{d, e::f}, g::h as i};"), ["a", "b_c", "g"]);
    assert_eq!(heads("Tensor::zeros(1)"), ["Tensor"]);
    let of = |pairs: &[(&str, &[&str])]| {
        let set = |all: &[&str]| all.iter().map(|m| m.to_string()).collect();
        pairs.iter().map(|(from, to)| (from.to_string(), set(to))).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(circle(&of(&[("a", &["b"]), ("b", &["c"])])), None);
    assert_eq!(circle(&of(&[("a", &["b"]), ("b", &["a", "c"])])), Some(vec!["a", "b"]));
    let core = imports(&root().join("autobwd/core/src"));
    assert!(core["op"].contains("lanes") && core["lanes"].contains("schema"), "{core:?}");
}

#[test]
fn modules_import_each_other_in_no_circle() {
    for package in PACKAGES {
        let mut imports = imports(&root().join(package).join("src"));
        for (_, exempt) in EXEMPT.iter().filter(|(of, _)| *of == package) {
            imports.remove(*exempt);
        }
        assert_eq!(circle(&imports), None, "{package}: {imports:#?}");
    }
}

#[test]
fn no_file_is_long() {
    let mut all = vec![];
    for folder in ["autobwd", "autobwd-macros", "ops", "tests", "benches"] {
        files(&root().join(folder), &["rs"], &mut all);
    }
    for file in all {
        let text = fs::read_to_string(&file).unwrap();
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        let lines = text.lines().filter(is_code).count();
        assert!(lines <= LINES, "{}: {lines} lines of code", file.display());
    }
}

/// Types that may share a name, each with the reason.
const SHARED_NAMES: [(&str, &str); 2] = [
    ("Args", "every benchmark reads its command line into it"),
    ("Slot", "the trait and the private trait that seals it"),
];

/// The types that a file defines: structs, enums, traits and, outside of implementations, aliases.
pub(crate) fn types(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| {
        let item = line.trim_start();
        let item = match item.strip_prefix("pub") {
            Some(rest) => rest.split_once(' ')?.1,
            None => item,
        };
        let item = item.strip_prefix("unsafe ").unwrap_or(item);
        let (keyword, rest) = item.split_once(' ')?;
        let defines = matches!(keyword, "struct" | "enum" | "trait" | "union")
            || keyword == "type" && !line.starts_with(' ');
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
        (defines && !rest[..end].is_empty() && !rest[end..].starts_with('{')).then_some(&rest[..end])
    })
}

/// The sources of the packages, of the tests' library, and of the benchmarks.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut found = vec![];
    for package in PACKAGES {
        files(&root().join(package).join("src"), &["rs"], &mut found);
    }
    files(&root().join("tests/src"), &["rs"], &mut found);
    files(&root().join("benches"), &["rs"], &mut found);
    // Other libraries' programs, in a workspace of their own; generated messages, whose names are the reference's.
    let foreign = ["benches/peers/rust", "ops/onnx/src/proto", "ops/paddle/src/proto"]
        .map(|folder| root().join(folder));
    found
        .retain(|file| !foreign.iter().any(|folder| file.starts_with(folder)) && !file.ends_with("tests.rs"));
    found
}

#[test]
fn a_type_name_means_one_thing() {
    let mut found = BTreeMap::<String, Vec<PathBuf>>::new();
    for source in sources() {
        for name in types(&code(&source)) {
            found.entry(name.to_string()).or_default().push(source.clone());
        }
    }
    found.retain(|_, files| files.len() > 1);
    for (name, reason) in SHARED_NAMES {
        assert!(found.remove(name).is_some(), "`{name}` ({reason}) is defined once: take it off the list");
    }
    assert!(found.is_empty(), "these names are defined more than once: {found:#?}");
}
