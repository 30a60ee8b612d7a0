//! The prose of the repository uses the field's words: a plain scan of comments and documents.

use std::{fs, path::Path};

use crate::support::{
    prose::{WORDS, contains_word, without_code},
    sources::{files, root},
};

/// Files whose words are not ours to choose, or are about these words.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("tests/framework/support/prose.rs", "the list itself"),
    ("ops/examples/data", "text that a model is trained on"),
    ("ops/xla/src/lower/hlo", "operations of StableHLO, some of which have regions"),
    ("tests/corpus/INDEX.md", "descriptions as they were recorded with the cases"),
];

/// The comment of a line of Rust.
fn comment(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    // An address in a string is no comment.
    (!line[..at].ends_with(':')).then(|| &line[at..])
}

#[test]
fn prose_uses_standard_terms() {
    let (root, mut all, mut faults) = (root(), vec![], vec![]);
    for folder in ["autobwd", "autobwd-macros", "ops", "templates", "tests", "benches"] {
        files(&root.join(folder), &["rs", "md"], &mut all);
    }
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        all.push(root.join(document));
    }
    for path in all {
        let name = path.strip_prefix(&root).unwrap_or(&path);
        if EXCEPTIONS.iter().any(|(except, _)| name.starts_with(Path::new(except))) {
            continue;
        }
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let text = fs::read_to_string(&path).unwrap().to_lowercase();
        let mut in_code = false;
        for (number, line) in text.lines().enumerate() {
            let Some(prose) = (if is_rust { comment(line) } else { Some(line) }) else { continue };
            in_code ^= prose.trim_start_matches(['/', '!', ' ']).starts_with("```");
            if in_code {
                continue;
            }
            let prose = without_code(prose);
            for (word, instead) in WORDS.iter().filter(|(word, _)| contains_word(&prose, word)) {
                faults.push(format!("{}:{}: \"{word}\"; {instead}", name.display(), number + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{} places:\n{}", faults.len(), faults.join("\n"));
}

/// Names of types, and of files of the library, that the field has other words for.
const NAMES: &[(&str, &str)] = &[
    ("beside", "horizontal_fusion"),
    ("copies", "copy_elision"),
    ("join", "peephole"),
    ("group", "fusion"),
    ("place", "memory_planning"),
    ("enter", "captures"),
    ("late", "dynamic_shapes"),
    ("graph", "value_graph"),
    ("body", "bound_block"),
    ("stretch", "segment"),
    ("finite", "anomaly"),
    ("spread", "broadcast_map"),
    ("single", "scalar_path"),
    ("loops", "dispatch"),
    ("origin", "provenance"),
    ("operand", "load_store"),
    ("frame", "kernel_binding"),
    ("cx", "runtime"),
    ("words", "op_key"),
    ("content", "slot_values"),
    ("reach", "reachability"),
    ("path", "relevance"),
    ("keep", "preserve_overwritten"),
    ("higher", "higher_order"),
    ("trips", "trip_count"),
    ("emit", "gradient_ops"),
    ("stations", "cut_points"),
    ("pick", "gather"),
    ("places", "scatter"),
    ("lookup", "embedding"),
    ("binary", "binary_cross_entropy"),
    ("extremum", "min_max_pow"),
    ("division", "floor_division"),
    ("vectors", "simd_loops"),
    ("common", "kernel_helpers"),
    ("cut", "tiling"),
    ("halves", "max_pool_2x2"),
    ("side", "image_layout"),
    ("second", "double_backward"),
    ("choice", "cond"),
    ("branch", "conditional_block"),
    ("repeat", "while_op"),
    ("build", "graph_builder"),
    ("Compose", "Decompose"),
    ("Spot", "Location"),
    ("Words", "OpKey"),
    ("Content", "SlotValues"),
    ("Notes", "AttrRecorder"),
    ("Ready", "PreparedOp"),
    ("Reach", "AccessMode"),
    ("Home", "OperandLocation"),
    ("Node", "TapeNode"),
    ("Given", "a noun"),
    ("Held", "a noun"),
    ("Found", "a noun"),
    ("Kept", "a noun"),
    ("Made", "a noun"),
    ("Built", "a noun"),
    ("Bound", "a noun"),
    ("Done", "a noun"),
    ("Joined", "a noun"),
    ("Woven", "a noun"),
    ("Entered", "a noun"),
    ("Called", "a noun"),
    ("Late", "a noun"),
];

/// Files that have such a name in its usual sense.
const NAME_EXCEPTIONS: &[(&str, &str)] = &[
    ("ops/src/norm/group.rs", "group normalisation"),
    ("autobwd/core/src/op/registry/lookup.rs", "the look-up of operators"),
    ("autobwd-macros/src/group.rs", "a group of attributes"),
    ("autobwd-macros/src/expand/group.rs", "a group of attributes"),
];

#[test]
fn files_and_types_use_standard_terms() {
    let (root, mut faults) = (root(), vec![]);
    for source in crate::support::sources::sources() {
        let name = source.strip_prefix(&root).unwrap_or(&source);
        let stem = source.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folders = name.components().filter_map(|part| part.as_os_str().to_str());
        let outside = name.starts_with("benches") || name.starts_with("tests");
        let excepted = outside || NAME_EXCEPTIONS.iter().any(|(except, _)| name == Path::new(except));
        let code = crate::support::sources::code(&source);
        let named = folders.chain([stem]).filter(|_| !excepted).chain(crate::support::sources::types(&code));
        for word in named {
            let instead = NAMES.iter().filter(|(old, _)| *old == word);
            faults.extend(instead.map(|(old, new)| format!("{}: `{old}`; {new}", name.display())));
        }
    }
    assert!(faults.is_empty(), "{} names:\n{}", faults.len(), faults.join("\n"));
}
