//! The prose of the repository uses the field's words: a plain scan of comments and documents.

use std::{fs, path::Path};

use crate::structure::{files, root};

/// What the prose does without, and what it says instead.
const WORDS: &[(&str, &str)] = &[
    ("nobody", "`no operator`, `none`"),
    ("somebody", "who it is"),
    ("whoever", "who it is"),
    ("of which", "a sentence of its own"),
    ("beside", "`next to`, `besides`, `alongside`"),
    ("at once", "`eagerly`, `immediately`, `together`"),
    ("going back", "`the backward pass`"),
    ("goes back", "`the backward pass`"),
    ("slope", "`gradient`, `derivative`"),
    ("slopes", "`gradients`, `derivatives`"),
    ("lines of memory", "`buffers`"),
    ("lets go of", "`frees`"),
];

/// Files whose words are not ours to choose, or are about these words.
const EXCEPTIONS: &[(&str, &str)] = &[
    ("tests/framework/words.rs", "the list itself"),
    ("ops/examples/data", "text that a model is trained on"),
    ("tests/corpus/INDEX.md", "descriptions as they were recorded with the cases"),
];

/// The comment of a line of Rust.
fn comment(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    // An address in a string is no comment.
    (!line[..at].ends_with(':')).then(|| &line[at..])
}

/// A line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}

#[test]
fn prose_uses_the_words_of_the_field() {
    let (root, mut all, mut faults) = (root(), vec![], vec![]);
    for folder in ["autobwd", "autobwd-macros", "ops", "tests", "benches"] {
        files(&root.join(folder), &["rs", "md"], &mut all);
    }
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
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
