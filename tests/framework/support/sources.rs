//! The source files of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) const PACKAGES: [&str; 22] = [
    "autobwd/core",
    "autobwd/plan",
    "autobwd/backward",
    "autobwd/exec",
    "autobwd/eager",
    "autobwd/net",
    "autobwd/parallel",
    "autobwd/record",
    "autobwd/mpi",
    "autobwd/check",
    "autobwd/data",
    "autobwd/viewer",
    "autobwd-macros",
    "ops",
    "ops/models",
    "ops/onnx",
    "ops/paddle",
    "ops/xla",
    "ops/cli",
    "ops/http",
    "ops/python",
    "ops/web",
];

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
