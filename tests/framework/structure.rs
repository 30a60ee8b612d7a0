//! Structure of the source: no import cycles between modules, and a limit on file length.
//!
//! Cargo rules out cycles between packages.

use std::fs;

use crate::support::{
    import_graph::{ImportGraph, circles, import_graph},
    sources::{PACKAGES, code, files, root},
};

/// Modules that may be in an import cycle. Compositions of operators are expressions, whose methods and operations stand for
/// operators; and a gradient contains operators of other families.
const EXEMPT: [(&str, &str); 4] =
    [("ops", "math"), ("ops", "index"), ("ops", "sort"), ("autobwd/core", "operators")];

/// Folders whose files may import each other in a cycle, each with the reason.
const EXEMPT_FILES: [(&str, &str, &str); 9] = [
    ("autobwd/core", "graph_builder/", "an expression holds its builder, which makes expressions"),
    ("autobwd/core", "op/", "a registry entry holds gradient rules, which look into the registry"),
    ("autobwd/core", "tensor/", "a slot may hold a tensor array, which takes its elements from slots"),
    ("autobwd/parallel", "operators/", "two operators are each other's gradient"),
    ("ops", "", "a gradient contains operators of other families"),
    ("ops/onnx", "export/", "a graph contains the graphs of its nodes' blocks"),
    ("ops/onnx", "import/", "the table of rules, and rules that import the nodes of a block by it"),
    ("ops/xla", "lower/", "the lowering of a block, and of operators with blocks"),
    ("ops/xla", "pjrt/", "a client makes buffers and executables, which hold their client"),
];

/// Maximum lines of code in a file, without documentation and blank lines.
const LINES: usize = 500;

/// The graph of a package's folders and files at the top of its sources.
fn top_level(graph: &ImportGraph) -> ImportGraph {
    let module = |file: &str| file.split('/').next().unwrap().to_string();
    let mut modules = ImportGraph::new();
    for (file, imports) in graph {
        let own = module(file);
        let others = imports.iter().map(|import| module(import)).filter(|other| *other != own);
        modules.entry(own.clone()).or_default().extend(others);
    }
    modules
}

/// The graph without the imports of a folder's files from the file that declares the folder: as `lib.rs` does for the
/// package, it may contain what they share.
fn without_parents(mut graph: ImportGraph) -> ImportGraph {
    for (file, imports) in &mut graph {
        imports.retain(|import| {
            let folder = import.strip_suffix("/mod").unwrap_or(import);
            !file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        });
    }
    graph
}

#[test]
fn modules_import_each_other_in_no_circle() {
    for package in PACKAGES {
        let graph = import_graph(&root().join(package).join("src"));
        let mut modules = top_level(&graph);
        modules.retain(|module, _| !EXEMPT.contains(&(package, module)));
        assert_eq!(circles(&modules), [] as [Vec<&str>; 0], "{package}: {modules:#?}");

        let mut graph = without_parents(graph);
        graph.retain(|file, _| {
            !EXEMPT.iter().any(|(of, m)| *of == package && file.split('/').next() == Some(m))
        });
        let mut found = circles(&graph);
        for (_, folder, reason) in EXEMPT_FILES.iter().filter(|(of, ..)| *of == package) {
            let all = found.len();
            found.retain(|circle| !circle.iter().all(|file| file.starts_with(folder)));
            assert!(found.len() < all, "{package}, `{folder}` ({reason}): no circle, take it off the list");
        }
        assert_eq!(found, [] as [Vec<&str>; 0], "{package}: {graph:#?}");
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

#[test]
fn tests_import_from_support_and_not_from_each_other() {
    for folder in ["tests/allocations", "tests/framework", "tests/onnx", "tests/xla", "ops/tests/training"] {
        let (folder, mut all) = (root().join(folder), vec![]);
        files(&folder, &["rs"], &mut all);
        all.retain(|file| !file.starts_with(folder.join("support")));
        for file in all {
            // A path in a string is no import.
            let code: String = code(&file).lines().filter(|line| !line.contains('"')).collect();
            let others = code.split("crate::").skip(1).filter(|path| !path.starts_with("support"));
            let own = file.parent() == Some(&folder) && code.contains("super::");
            assert!(others.count() == 0 && !own, "{}: helpers of tests are in `support`", file.display());
        }
    }
}

/// Lists that `.ci/update` rewrites, hashes, and data of the reference.
const GENERATED: [&str; 8] = [
    "ops/OPERATORS.md",
    "ops/paddle/src/reference.json",
    "ops/xla/tests/operators.txt",
    "tests/bits/hashes.txt",
    "tests/framework/messages/sources.txt",
    "tests/onnx/operators.txt",
    "tests/ops.txt",
    "tests/reference_gradients.txt",
];

/// The last operator that was added with a composition reaches every backend, without a word about it elsewhere.
#[test]
fn new_operator_is_written_in_three_files() {
    let mut all = vec![];
    for folder in ["autobwd", "autobwd-macros", "ops", "tests", "benches"] {
        files(&root().join(folder), &["rs", "md", "txt", "json", "mlir"], &mut all);
    }
    all.push(root().join("CHANGELOG.md"));
    let names = ["temporal_shift", "TemporalShift"];
    let named = all.iter().filter(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        names.iter().any(|name| text.contains(name))
    });
    let paths = named.map(|file| file.strip_prefix(root()).unwrap().display().to_string());
    let is_test = |path: &str| path.contains("/tests/") || path.starts_with("tests/framework/structure");
    let mut written: Vec<String> =
        paths.filter(|path| !GENERATED.contains(&&**path) && !is_test(path)).collect();
    written.sort();
    // The family declares the file of the operator.
    assert_eq!(written, ["CHANGELOG.md", "ops/src/image/mod.rs", "ops/src/image/temporal_shift.rs"]);
}
