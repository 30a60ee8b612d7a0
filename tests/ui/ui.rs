//! Compiler errors for mistakes in operators: each directory is a mistake, each file a case.
//!
//! `TRYBUILD=overwrite cargo test -p autobwd-ui` rewrites the expected errors, which are those of the pinned toolchain
//! without `rust-src`.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    entries("cases").into_iter().for_each(|mistake| cases.compile_fail(mistake.join("*.rs")));
}

#[test]
fn every_message_has_a_case() {
    let said: Vec<String> = expected().into_iter().map(|(_, text)| text).collect();
    let is_said = |template: &String| said.iter().flat_map(|text| text.lines()).any(|l| fits(template, l));
    let missing: Vec<String> = templates().into_iter().filter(|template| !is_said(template)).collect();
    assert!(missing.is_empty(), "no .stderr has these messages: {missing:#?}");
}

/// Errors are about the author's code, not about the registration of operators.
#[test]
fn messages_are_about_the_authors_code() {
    // Forged entries name themselves, and the compiler shows the bound on values sent between threads where it stands.
    let may_name_entry = |case: &Path| {
        case.starts_with("cases/forged_registration") || case.ends_with("not_between_threads.stderr")
    };
    for (case, text) in expected() {
        for line in text.lines().filter(|line| !is_excerpt(line)) {
            let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            for inside in ["inventory", "syn", "__private", "OpInfo"] {
                // A case that uses what packages share gets messages about it.
                let is_used = inside == "__private" && case.ends_with("shared_memory/place.stderr");
                let allowed = is_used || inside == "OpInfo" && may_name_entry(&case);
                assert!(allowed || !words.contains(&inside), "{}: {line}", case.display());
            }
        }
    }
}

fn entries(directory: impl AsRef<Path>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn with_extension(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let below = entries(directory)
        .into_iter()
        .flat_map(|path| if path.is_dir() { with_extension(&path, extension) } else { vec![path] });
    below.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// All expected errors, with their files.
fn expected() -> Vec<(PathBuf, String)> {
    let files = with_extension(Path::new("cases"), "stderr").into_iter();
    files.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// Whether a line quotes source code.
fn is_excerpt(line: &str) -> bool {
    let text = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    ["|", "+ ", "- ", "--> ", "::: "].iter().any(|mark| text.starts_with(mark))
}

/// All message templates in the sources: of the macro, of the contract between operator and gradient, of traits.
fn templates() -> Vec<String> {
    let mut templates = Vec::new();
    for path in with_extension(Path::new("../../autobwd-macros/src"), "rs") {
        let source = fs::read_to_string(path).unwrap();
        if ["cx.error(", "cx.missing(", "Error::new"].iter().any(|call| source.contains(call)) {
            templates.extend(literals(&source));
        }
    }
    assert!(templates.len() > 30, "the macro's messages are elsewhere: {templates:#?}");
    for path in ["op/contract.rs", "schema/inherit.rs"] {
        let source = fs::read_to_string(Path::new("../../autobwd/core/src").join(path)).unwrap();
        templates.extend(literals(&source));
    }
    for path in with_extension(Path::new("../../autobwd/core/src"), "rs") {
        let source = fs::read_to_string(path).unwrap();
        let attributes = source.split("#[diagnostic::on_unimplemented(").skip(1);
        let attributes = attributes.map(|text| text.split(")]\n").next().unwrap());
        // A type that is not a gradient rule has the same error for every reason.
        for attribute in attributes.filter(|text| !text.contains("grad = Derived")) {
            templates.extend(literals(attribute));
        }
    }
    // Single words are names and keys; `autobwd bug` marks panics that must not occur.
    templates.retain(|text| text.contains(' ') && !text.starts_with("autobwd bug"));
    templates
}

/// The string literals of a source file, without its comments and tests.
fn literals(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let code: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n").replace("\\\"", "\u{1}");
    let quoted = code.split('"').skip(1).step_by(2);
    quoted.map(|text| text.replace('\u{1}', "\"")).collect()
}

/// Whether a line contains the fixed pieces of a template in order.
fn fits(template: &str, line: &str) -> bool {
    let template = template.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut rest = line;
    template.split('{').enumerate().all(|(i, piece)| {
        let fixed = if i == 0 { piece } else { piece.split_once('}').map_or(piece, |(_, fixed)| fixed) };
        let fixed = fixed.replace('\u{1}', "{").replace('\u{2}', "}");
        let found = rest.find(&fixed);
        rest = found.map_or("", |at| &rest[at + fixed.len()..]);
        found.is_some()
    })
}
