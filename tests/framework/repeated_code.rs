//! The library says nothing twice: no two functions and no two types are the same but for their names.
//!
//! The shape of an item is its tokens. A name counts by the place where it first occurs, so that copies with other names
//! have one shape; what is called keeps its name.

use std::{collections::BTreeMap, fs};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::support::sources::{root, sources};

/// Tokens of the smallest item that is compared with items of other files, and with items of its own file, where the eye
/// meets both.
const SMALLEST: [usize; 2] = [50, 90];

/// Items that have one shape, by file and name, each with the reason.
const EXEMPT: &[(&[&str], &str)] = &[
    (
        &["ops/src/image/unfold.rs: run", "ops/src/image/unfold.rs: run"],
        "gradients of `unfold` and `fold`, each the kernel of the other one",
    ),
    (
        &["ops/src/matmul/dot.rs: run", "ops/src/matmul/batched.rs: run"],
        "operators of the reference with one kernel",
    ),
    (&["ops/src/min_max_pow.rs: eval", "ops/src/min_max_pow.rs: eval"], "the larger and the smaller operand"),
    (&["autobwd/exec/src/monitor.rs: fmt", "autobwd/viewer/src/lib.rs: fmt"], "two fields for `Debug`"),
    (
        &[
            "autobwd/core/src/operators/elementwise.rs: emit",
            "autobwd/core/src/operators/elementwise.rs: emit",
        ],
        "second derivatives of a sum and a difference",
    ),
    (
        &[
            "autobwd/parallel/src/operators/all_gather.rs: emit",
            "autobwd/parallel/src/operators/reduce_scatter.rs: emit",
        ],
        "each is the gradient of the other one",
    ),
    (&["ops/src/conv/conv3d.rs: conv3d", "ops/src/conv/forward.rs: conv2d"], "samples of two operators"),
    (
        &["ops/src/update/adam.rs: infer", "ops/src/update/layerwise.rs: infer"],
        "Adam and LAMB have the same slots, and other updates",
    ),
    (
        &["autobwd/core/src/desc/draw.rs: name", "ops/xla/src/lower/hlo/types.rs: name"],
        "a text for each of ten variants",
    ),
];

/// A word that means something by itself.
fn is_keyword(word: &str) -> bool {
    syn::parse_str::<syn::Ident>(word).is_err()
}

/// The tokens of an item, with names numbered in the order in which they occur.
#[derive(Default)]
struct Shape {
    text: String,
    tokens: usize,
    names: BTreeMap<String, usize>,
}

impl Shape {
    fn push(&mut self, part: &str) {
        self.text += part;
        self.text.push(' ');
        self.tokens += 1;
    }

    fn add(&mut self, tokens: &TokenStream) {
        let mut tokens = tokens.clone().into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                // Documentation and attributes.
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                }
                TokenTree::Punct(punct) => self.push(&punct.as_char().to_string()),
                TokenTree::Literal(_) => self.push("value"),
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    let is_called = match tokens.peek() {
                        Some(TokenTree::Group(group)) => group.delimiter() == Delimiter::Parenthesis,
                        Some(TokenTree::Punct(punct)) => punct.as_char() == '!',
                        _ => false,
                    };
                    if is_called || is_keyword(&name) {
                        self.push(&name);
                    } else {
                        let next = self.names.len();
                        let number = *self.names.entry(name).or_insert(next);
                        self.push(&format!("name{number}"));
                    }
                }
                TokenTree::Group(group) => {
                    self.push(&format!("{:?}", group.delimiter()));
                    self.add(&group.stream());
                    self.push("end");
                }
            }
        }
    }
}

/// The functions and types of a file: the name of each, and its shape.
fn items(tokens: TokenStream, found: &mut Vec<(String, Shape)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        let name = match (&tokens[at], tokens.get(at + 1)) {
            (TokenTree::Ident(kind), Some(TokenTree::Ident(name)))
                if ["fn", "struct", "enum"].contains(&kind.to_string().as_str()) =>
            {
                Some(name.to_string())
            }
            _ => None,
        };
        if let Some(name) = name {
            let is_body = |token: &TokenTree| match token {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => punct.as_char() == ';',
                _ => false,
            };
            if let Some(length) = tokens[at..].iter().position(is_body) {
                let mut shape = Shape::default();
                shape.add(&tokens[at + 2..=at + length].iter().cloned().collect());
                found.push((name, shape));
            }
        }
        if let TokenTree::Group(group) = &tokens[at] {
            items(group.stream(), found);
        }
        at += 1;
    }
}

#[test]
fn functions_and_types_differ_in_more_than_names() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        let mut found = vec![];
        items(text.parse().unwrap_or_else(|e| panic!("{file}: {e}")), &mut found);
        for (name, shape) in found {
            let place = format!("{file}: {name}");
            let [among_files, in_file] = SMALLEST.map(|smallest| shape.tokens >= smallest);
            let list = if among_files { places.entry(shape.text).or_default() } else { continue };
            let is_new_file = !list.iter().any(|known| known.starts_with(&format!("{file}: ")));
            if is_new_file || in_file {
                list.push(place);
            }
        }
    }
    let mut repeated: Vec<Vec<String>> = places.into_values().filter(|places| places.len() > 1).collect();
    for (exempt, _) in EXEMPT {
        let known = repeated.iter().position(|places| places[..] == exempt[..]);
        repeated.remove(known.unwrap_or_else(|| panic!("{exempt:?} differ, and need no exemption")));
    }
    let repeated: Vec<String> = repeated.iter().map(|places| places.join("\n  ")).collect();
    let count = repeated.len();
    assert!(repeated.is_empty(), "{count} shapes stand in several places:\n{}", repeated.join("\n"));
}
