//! Identifiers and paths that documents, comments and messages name in backticks exist.
//!
//! An identifier exists if it stands in code, in a string, in the registry, or is a word of the standard library or of
//! a format ([`FOREIGN`]). `Type::member`, `Type { field }`, and the first column of a table that is headed
//! `` `Type::…` `` or `` field of `Type` `` name members of a type of this project.

mod names;
mod spans;

use std::{collections::BTreeSet, fs, sync::LazyLock};

use autobwd::OpInfoMap;

use self::{
    names::Names,
    spans::{Span, is_word, of_comments, of_messages, of_page},
};
use crate::support::sources::{files, root};

/// Words of others, each with where it is from.
const FOREIGN: &[(&str, &[&str])] = &[
    (
        "commands and packages",
        &[
            "chrt",
            "perf",
            "tf2onnx",
            "libclang",
            "libopenmpi",
            "openmpi",
            "semver",
            "tensorboard",
            "logdir",
            "chrome",
            "hack",
        ],
    ),
    ("environment variables", &["NO_COLOR", "XLA_FLAGS"]),
    (
        "XLA, PJRT and their plugins",
        &[
            "CompileOptionsProto",
            "PJRT_Buffer_Type",
            "cuda",
            "cuda13",
            "jax_plugins",
            "lammps",
            "lammps_jax_pjrt_cpu",
            "pjrt_0_114",
            "pypjrt",
            "tpu",
            "xla_cuda13",
            "xla_cuda_plugin",
            "pjrt_c_api_cpu_plugin",
        ],
    ),
    ("PaddlePaddle", &["GradOpDescMaker", "GradScaler"]),
    ("PyTorch", &["Hardtanh", "ReduceLROnPlateau", "bias_hh", "bias_ih", "weight_hh", "weight_ih"]),
    ("the C library and ndarray", &["e_log", "e_pow", "general_mat_mul", "linalg", "slice_each_axis"]),
    ("symbols of equations", &["artanh", "cdf", "d2_x", "D2_X", "input_j", "polynomial", "vector_j"]),
    ("names that macros make", &["bump_grad", "derived_relu_grad", "hand_relu_grad", "hand_relu_out_grad"]),
    ("placeholders", &["MatmulV2Op", "OpGrad", "isru", "that_crate", "their_tanh"]),
];

/// Pages and sources whose names are others'.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("benches/peers", "programs of other libraries"),
    ("ops/examples/data", "text that a model is trained on"),
    ("ops/onnx/src/proto", "generated"),
    ("ops/paddle/src/proto", "generated"),
    ("tests/corpus", "descriptions as they were recorded with the cases"),
    ("tests/framework/identifiers", "examples of spans"),
    ("tests/ui/cases", "mistakes"),
];

/// What is wrong with a span.
fn fault(span: &Span, names: &Names) -> Option<String> {
    let code = span.code.as_str();
    if spans::is_path(code) {
        return (!names.has_path(code)).then(|| "no such file".into());
    }
    if let Some(ty) = &span.listed_of
        && let Some(member) = code.split(|c| !is_word(c)).find(|word| !word.is_empty())
        && names.has_member(ty, member) == Some(false)
    {
        return Some(format!("`{ty}` has no `{member}`"));
    }
    for (ty, member) in spans::member_paths(code).chain(spans::fields(code)) {
        if names.has_member(ty, member) == Some(false) {
            return Some(format!("`{ty}` has no `{member}`"));
        }
    }
    let unknown = code.split(|c| !is_word(c)).find(|word| !names.has(word));
    unknown.map(|word| format!("`{word}` does not exist"))
}

/// The names of the project and of others.
static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let mut names = Names::of_workspace(&root());
    OpInfoMap::linked().unwrap().iter().for_each(|info| names.add_operator(info));
    FOREIGN.iter().for_each(|(_, words)| words.iter().for_each(|word| names.add_words(word)));
    names
});

#[test]
fn names_that_do_not_exist_are_found() {
    let faults =
        |spans: Vec<Span>| -> Vec<String> { spans.iter().filter_map(|span| fault(span, &NAMES)).collect() };
    let page = "`Backward { no_grad, checkpoints }` of `Recompute::Forgotten`, in `tests/framework/gone.rs`,\n\
                as `un_heard_of` and `Scope::\n`. `Recompute::Named`, `w@GRAD`, `ops/src/optim` and `.ci/run` exist.\n\
                ```text\n`un_heard_of`\n```\n\n\
                | field of `Backward` | PaddlePaddle |\n|---|---|\n| `checkpoints` | `foreign_name` |\n";
    let found = faults(of_page("page.md", page, &mut vec![]));
    let expected = [
        "`Backward` has no `checkpoints`",
        "`Recompute` has no `Forgotten`",
        "no such file",
        "`un_heard_of` does not exist",
        "`Backward` has no `checkpoints`",
    ];
    assert_eq!(found, expected);
    let source = r#"
        /// Like [`Recompute::Forgotten`], see `program`.
        #[doc = "`un_heard_of`"]
        fn f() { Error::new(Kind, format!("`{name}_un_heard_of` and `Backward {{ checkpoints }}`")) }
    "#;
    assert_eq!(faults(of_comments(source, &mut vec![])), ["`Recompute` has no `Forgotten`"]);
    assert_eq!(faults(of_messages("ops/src/a.rs", source)), ["`Backward` has no `checkpoints`"]);
    let changes = "## Unreleased\n- `Forgotten`\n  - `Recompute` (`Forgotten`)\n## 0.0.1\n- `Forgotten`";
    assert_eq!(faults(of_page("CHANGELOG.md", changes, &mut vec![])), ["`Forgotten` does not exist"]);
}

#[test]
fn identifiers_and_paths_that_are_named_exist() {
    let root = root();
    let mut all = vec![];
    for folder in ["autobwd", "autobwd-macros", "ops", "templates", "tests", "benches"] {
        files(&root.join(folder), &["rs", "md"], &mut all);
    }
    let documents = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    all.extend(documents.map(|document| root.join(document)));
    let texts: Vec<_> = all.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let (mut spans, mut listings) = (vec![], vec![]);
    for (path, text) in all.iter().zip(&texts) {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        if EXCEPTIONS.iter().any(|(except, _)| name.starts_with(except)) {
            continue;
        }
        let found = match name.strip_suffix(".rs") {
            Some(_) => [of_comments(text, &mut listings), of_messages(&name, text)].concat(),
            None => of_page(&name, text, &mut listings),
        };
        spans.push((name, found));
    }
    // What a listing defines exists: the tests compile it.
    let mut names = NAMES.clone();
    listings.iter().for_each(|line| names.add_words(line));
    let (mut count, mut faults, mut used) = (0, vec![], BTreeSet::new());
    for (name, found) in spans {
        count += found.len();
        for span in found {
            used.extend(span.code.split(|c| !is_word(c)).map(String::from));
            let fault = fault(&span, &names);
            faults.extend(fault.map(|why| format!("{name}:{}: `{}`: {why}", span.line, span.code)));
        }
    }
    let listed = FOREIGN.iter().flat_map(|(_, words)| *words);
    let unused: Vec<_> = listed.filter(|word| !used.contains(**word)).collect();
    assert!(unused.is_empty(), "take these off the list of foreign words: {unused:?}");
    assert!(count > 5000, "only {count} code spans were found");
    assert!(faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}
