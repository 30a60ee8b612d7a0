//! Error messages: all of the sources (`messages/sources.txt`), and representative ones as a user sees them
//! (`messages/rendered.txt`).
//!
//! A message is any string literal that has words: of several pieces, each is one. No analysis of where a literal goes
//! can miss one.

use std::{fs, path::Path};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::support::{
    compare,
    prose::{WORDS, contains_word, without_code},
    sources::{files, root},
};

mod rendered;

const FOLDERS: [&str; 5] = ["autobwd", "autobwd-macros", "ops/onnx/src", "ops/paddle/src", "ops/src"];

/// Files without messages: what they print is a report, a drawing or documentation.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("autobwd-macros/src/docs.rs", "documentation of operators"),
    ("autobwd/core/src/desc/diff.rs", "the comparison of programs"),
    ("autobwd/core/src/desc/draw.rs", "drawings of programs"),
    ("autobwd/core/src/desc/text.rs", "the text of programs"),
    ("autobwd/core/src/lanes/equation.rs", "equations"),
    ("autobwd/core/src/op/registry/reference.rs", "the reference page of an operator"),
    ("autobwd/net/src/draw.rs", "drawings of nets"),
    ("autobwd/net/src/text.rs", "the text of nets"),
    ("autobwd/plan/src/report.rs", "the table and the drawing of a plan"),
    ("ops/xla/src/lower/hlo", "the text of StableHLO modules"),
    ("ops/src/control/samples.rs", "sample rows"),
];

/// Words of this project where the field has a term, in addition to [`WORDS`].
const HOME_MADE: &[(&str, &str)] = &[
    ("backward part", "`backward pass`"),
    ("backward parts", "`backward passes`"),
    ("forward part", "`forward pass`"),
    ("list of tensors", "`tensor array`"),
    ("whole number", "`integer`"),
    ("whole numbers", "`integers`"),
    ("whole tensor", "`dense tensor`"),
    ("numbers of rows", "`row indices`"),
    ("frame", "`kernel`, `instruction`"),
    ("frames", "`kernels`, `instructions`"),
    ("computed again", "`recomputed`"),
    ("booleans", "`bool`"),
];

/// Whether a literal reads as a message: it has a space, and words besides its placeholders.
fn is_message(text: &str) -> bool {
    let mut depth = 0;
    let own: String = text
        .chars()
        .filter(|c| {
            depth += i32::from(*c == '{');
            let is_own = depth == 0;
            depth -= i32::from(*c == '}');
            is_own
        })
        .collect();
    own.contains(' ') && own.split(|c: char| !c.is_alphabetic()).any(|word| word.len() > 1)
}

/// The text between the quotes of a string literal, as it is written, on one line.
fn text_of(literal: &str) -> Option<String> {
    let text = literal.trim_start_matches(['r', '#']).trim_end_matches('#');
    let text = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut lines = text.split("\\\n");
    let first = lines.next()?.to_string();
    Some(lines.fold(first, |text, line| text + line.trim_start()).replace("\\\"", "\""))
}

/// The messages of some source code, in its order: those of tests, sample rows, documentation and attributes are left
/// out, except for the attributes that set a message of the compiler.
fn messages(tokens: TokenStream, found: &mut Vec<String>) {
    let mut tokens = tokens.into_iter().peekable();
    let (mut is_macro_of_samples, mut is_test) = (false, false);
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                tokens.next_if(|next| matches!(next, TokenTree::Punct(p) if p.as_char() == '!'));
                let is_attribute = |next: &TokenTree| matches!(next, TokenTree::Group(g) if g.delimiter() == Delimiter::Bracket);
                if let Some(TokenTree::Group(attribute)) = tokens.next_if(is_attribute) {
                    is_test |=
                        ["cfg (test)", "cfg(test)", "test"].contains(&&*attribute.stream().to_string());
                    if attribute.stream().to_string().starts_with("diagnostic") {
                        messages(attribute.stream(), found);
                    }
                }
            }
            // `samples!` and `macro_rules! broadcast_samples`.
            TokenTree::Ident(ident) => is_macro_of_samples = ident.to_string().ends_with("samples"),
            TokenTree::Punct(punct) => {
                is_macro_of_samples &= punct.as_char() == '!';
                is_test &= punct.as_char() != ';';
            }
            TokenTree::Group(group) => {
                let skipped = is_macro_of_samples || is_test;
                is_test &= group.delimiter() != Delimiter::Brace;
                is_macro_of_samples = false;
                if !skipped {
                    messages(Group::stream(&group), found);
                }
            }
            TokenTree::Literal(literal) => {
                found.extend(text_of(&literal.to_string()).filter(|text| is_message(text)));
            }
        }
    }
}

/// Each file with its messages.
fn all() -> Vec<(String, Vec<String>)> {
    let (root, mut paths) = (root(), vec![]);
    FOLDERS.iter().for_each(|folder| files(&root.join(folder), &["rs"], &mut paths));
    paths.sort();
    let mut all = vec![];
    for path in paths {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        let is_source = name.contains("/src/") && !name.ends_with("/tests.rs") && !name.contains("/book/");
        if !is_source || EXCEPTIONS.iter().any(|(except, _)| Path::new(&name).starts_with(except)) {
            continue;
        }
        let mut found = vec![];
        messages(fs::read_to_string(&path).unwrap().parse().unwrap(), &mut found);
        if !found.is_empty() {
            all.push((name, found));
        }
    }
    all
}

#[test]
fn literals_are_read_as_they_are_written() {
    let mut found = vec![];
    let source = r##"
        /// A comment of words.
        #[must_use = "not a message"]
        #[diagnostic::on_unimplemented(message = "`{Self}` is not a slot")]
        fn f() { Error::new(Kind, format!("a \"quote\" and \
            {name}")); "{name} {}"; "word"; r#"raw "words" here"# }
        samples! { row.fails("an expected message") }
        #[cfg(test)]
        mod tests { fn f() { panic!("of a test") } }
        #[cfg(test)]
        use a::b;
        const TEXT: &str = "after the tests";
    "##;
    messages(source.parse().unwrap(), &mut found);
    let expected =
        ["`{Self}` is not a slot", "a \"quote\" and {name}", "raw \"words\" here", "after the tests"];
    assert_eq!(found, expected);
}

#[test]
fn all_messages_are_listed() {
    let mut text = String::new();
    for (file, messages) in all() {
        text += &format!("{file}\n");
        messages.iter().for_each(|message| text += &format!("  {message}\n"));
    }
    compare("framework/messages/sources.txt", &text);
}

#[test]
fn messages_use_standard_terms() {
    let mut faults = vec![];
    for (file, messages) in all() {
        for message in messages {
            let prose = without_code(&message.to_lowercase());
            for (word, instead) in
                WORDS.iter().chain(HOME_MADE).filter(|(word, _)| contains_word(&prose, word))
            {
                faults.push(format!("{file}: \"{word}\" in \"{message}\"; {instead}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} places:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn excepted_files_exist() {
    for (file, _) in EXCEPTIONS {
        assert!(Path::new(&root().join(file)).exists(), "{file}");
    }
}
