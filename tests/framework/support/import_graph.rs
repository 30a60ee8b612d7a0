//! The import graph of a package: which source file uses an item that another file defines.
//!
//! Paths are resolved as the compiler does: through `use` declarations, re-exports and globs, to the file with the
//! definition. Methods are not paths, so a call of one is not an import.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::sources::{code, files, root};

/// The files of a package by name, `schema/slot`, each with the files that it imports from.
pub(crate) type ImportGraph = BTreeMap<String, BTreeSet<String>>;

/// A module that has a file: its names, and the paths in its code.
#[derive(Default)]
struct Module {
    children: BTreeMap<String, Vec<String>>,
    /// Imported names with their paths.
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
    paths: Vec<Vec<String>>,
}

/// The modules of a package, by path.
struct Modules(BTreeMap<Vec<String>, Module>);

/// Chains of imports longer than this are taken to be endless.
const MAX_CHAIN: usize = 8;

impl Modules {
    /// The module that defines the item, if the package has one: the path is read in the module `from`.
    fn definition(&self, from: &[String], path: &[String], depth: usize) -> Option<Vec<String>> {
        let (mut at, mut names) = (from.to_vec(), path);
        while let Some((name, rest)) = names.split_first() {
            match name.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                _ => match self.member(&at, name, depth)? {
                    Member::Module(module) => at = module,
                    Member::Item(module) => return Some(module),
                    Member::Import(path) => {
                        let path: Vec<String> = path.iter().chain(rest).cloned().collect();
                        return self.definition(&at, &path, depth + 1);
                    }
                },
            }
            names = rest;
        }
        self.0.contains_key(&at).then_some(at)
    }

    /// The meaning of a name in a module.
    fn member(&self, at: &[String], name: &str, depth: usize) -> Option<Member<'_>> {
        let module = self.0.get(at).filter(|_| depth < MAX_CHAIN)?;
        if let Some(child) = module.children.get(name) {
            return Some(Member::Module(child.clone()));
        }
        if module.defined.contains(name) {
            return Some(Member::Item(at.to_vec()));
        }
        if let Some(path) = module.imported.get(name) {
            return Some(Member::Import(path));
        }
        module.globs.iter().find_map(|glob| {
            let module = self.definition(at, glob, depth + 1)?;
            let path: Vec<String> = module.into_iter().chain([name.to_string()]).collect();
            self.definition(&[], &path, depth + 1).map(Member::Item)
        })
    }
}

/// What a name in a module stands for.
enum Member<'a> {
    Module(Vec<String>),
    /// An item that this module defines.
    Item(Vec<String>),
    Import(&'a [String]),
}

/// The import graph of a package with this source folder. `lib.rs` has no entry: it declares the modules.
pub(crate) fn import_graph(source: &Path) -> ImportGraph {
    let mut sources = vec![];
    files(source, &["rs"], &mut sources);
    let mut modules = Modules(BTreeMap::new());
    let mut names = BTreeMap::new();
    for file in &sources {
        let name = file.strip_prefix(source).unwrap().with_extension("");
        let mut path: Vec<String> = name.iter().map(|part| part.to_str().unwrap().to_string()).collect();
        names.insert(path.clone(), path.join("/"));
        if matches!(path.last().unwrap().as_str(), "lib" | "main" | "mod") {
            let name = path.join("/");
            path.pop();
            names.insert(path.clone(), name);
        }
        // Tests next to the code may import anything.
        if path.last().is_some_and(|name| name == "tests") {
            continue;
        }
        modules.0.insert(path, parse(&code(file)));
    }
    for path in modules.0.keys().cloned().collect::<Vec<_>>() {
        if let Some((name, parent)) = path.split_last()
            && let Some(parent) = modules.0.get_mut(parent)
        {
            parent.children.insert(name.clone(), path.clone());
        }
    }
    let mut graph = ImportGraph::new();
    for (at, module) in modules.0.iter().filter(|(at, _)| !at.is_empty()) {
        let imports = graph.entry(names[at].clone()).or_default();
        let globs = module.globs.iter().chain(module.imported.values());
        for path in globs.chain(&module.paths) {
            let target = modules.definition(at, path, 0).filter(|target| target != at && !target.is_empty());
            imports.extend(target.map(|target| names[&target].clone()));
        }
    }
    graph
}

/// The names and paths of a file's code.
fn parse(code: &str) -> Module {
    let mut module = Module::default();
    let tokens = tokens(code);
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            "use" => at = use_tree(&tokens, at + 1, &[], &mut module),
            keyword @ ("struct" | "enum" | "union" | "trait" | "fn" | "const" | "static" | "type")
                if tokens.get(at + 1).is_some_and(|name| is_name(name)) =>
            {
                let name = tokens[at + 1];
                if !(keyword == "const" && name == "fn") {
                    module.defined.insert(name.to_string());
                }
                at += 1;
            }
            "macro_rules" => {
                module.defined.extend(tokens.get(at + 2).map(|name| name.to_string()));
                at += 1;
            }
            name if is_name(name) => {
                let mut path = vec![name.to_string()];
                while tokens.get(at + 1) == Some(&"::") && tokens.get(at + 2).is_some_and(|n| is_name(n)) {
                    path.push(tokens[at + 2].to_string());
                    at += 2;
                }
                if path.len() > 1 {
                    module.paths.push(path);
                }
                at += 1;
            }
            // A path of another package or of a macro's caller.
            "::" | "$" => at += 2,
            _ => at += 1,
        }
    }
    module
}

/// Reads a tree of imports that starts at a token; returns the position after it.
fn use_tree(tokens: &[&str], mut at: usize, prefix: &[String], module: &mut Module) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(at) {
        match *token {
            "::" => at += 1,
            "*" => {
                module.globs.push(path);
                return at + 1;
            }
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| *token != "}") {
                    at = use_tree(tokens, at, &path, module);
                    at += usize::from(tokens.get(at) == Some(&","));
                }
                return at + 1;
            }
            "as" => {
                module.imported.insert(tokens[at + 1].to_string(), path);
                return at + 2;
            }
            name if is_name(name) => {
                if name != "self" || path.is_empty() {
                    path.push(name.to_string());
                }
                at += 1;
            }
            _ => break,
        }
    }
    if let Some(name) = path.last().cloned() {
        module.imported.insert(name, path);
    }
    at
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names and marks of code; texts in quotes are left out.
fn tokens(code: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (vec![], code);
    while let Some(first) = rest.chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else if first == '"' {
            text_length(rest)
        } else if rest.starts_with("'\"'") {
            3
        } else {
            first.len_utf8()
        };
        let (token, next) = rest.split_at(length);
        if !first.is_whitespace() && first != '"' && !token.starts_with("//") {
            tokens.push(token);
        }
        rest = next;
    }
    tokens
}

/// The length of a text in quotes, with its quotes.
fn text_length(code: &str) -> usize {
    let mut escaped = false;
    let end = code[1..].find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    });
    end.map_or(code.len(), |end| end + 2)
}

/// The circles of a graph: groups of files that import each other, directly or through others of the group.
pub(crate) fn circles(graph: &ImportGraph) -> Vec<Vec<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|file| (file.as_str(), reachable(graph, file))).collect();
    let mut found: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (file, targets) in &reached {
        let circle: Vec<&str> =
            targets.iter().copied().filter(|target| reached[target].contains(file)).collect();
        if !circle.is_empty() {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

/// The files that a file imports from, directly or through others.
fn reachable<'a>(graph: &'a ImportGraph, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(file) = open.pop() {
        for import in graph.get(file).into_iter().flatten().filter(|import| graph.contains_key(*import)) {
            if reached.insert(import.as_str()) {
                open.push(import);
            }
        }
    }
    reached
}

#[test]
fn paths_lead_to_definitions() {
    let module = parse("use crate::a::{b, c_d::{E, f as g}, h::*};\nfn x(y: super::Z) -> i::J {}\nstruct K;");
    let path = |text: &str| text.split("::").map(str::to_string).collect::<Vec<_>>();
    assert_eq!(module.imported["E"], path("crate::a::c_d::E"));
    assert_eq!(module.imported["g"], path("crate::a::c_d::f"));
    assert_eq!(module.imported.len(), 3);
    assert_eq!(module.globs, [path("crate::a::h")]);
    assert_eq!(module.paths, [path("super::Z"), path("i::J")]);
    assert!(module.defined.contains("x") && module.defined.contains("K"));

    let core = import_graph(&root().join("autobwd/core/src"));
    // Through a re-export of `lib.rs`, and through a module's.
    assert!(core["verify"].contains("desc/program"), "{:?}", core["verify"]);
    assert!(core["op/registry"].contains("schema/mod"), "{:?}", core["op/registry"]);
}

#[test]
fn circles_are_found() {
    let graph = |pairs: &[(&str, &[&str])]| {
        let set = |all: &[&str]| all.iter().map(|file| file.to_string()).collect();
        pairs.iter().map(|(from, to)| (from.to_string(), set(to))).collect::<ImportGraph>()
    };
    assert_eq!(circles(&graph(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])), [] as [Vec<&str>; 0]);
    let three = graph(&[("a", &["b"]), ("b", &["c"]), ("c", &["a", "d"]), ("d", &[]), ("e", &["a"])]);
    assert_eq!(circles(&three), [["a", "b", "c"]]);
}
