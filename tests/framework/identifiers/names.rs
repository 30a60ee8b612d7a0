//! The names that exist: of code, of operators, of files.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
};

use autobwd::op::OpInfo;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::spans::{is_word, without_spans};

/// Extensions of files, besides Rust's, whose words are names.
const WRITTEN_IN: [&str; 8] = ["toml", "py", "js", "mjs", "css", "html", "sh", "proto"];

/// What the compiler derives or the standard library implements for types of this project.
const DERIVED: [&str; 12] =
    ["clone", "default", "eq", "cmp", "hash", "fmt", "to_string", "from", "into", "try_from", "drop", "next"];

/// Files and folders below a folder, without build outputs.
fn entries(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let is_output = ["target", ".git"].iter().any(|name| entry.file_name() == *name);
        if !is_output && entry.file_type().unwrap().is_dir() {
            entries(&entry.path(), found);
        }
        found.push(entry.path());
    }
}

/// The struct of an operator: `RootUnit` for `root_unit`.
fn camel(name: &str) -> String {
    let capital = |part: &str| part[..1].to_uppercase() + &part[1..];
    name.split('_').filter(|part| !part.is_empty()).map(capital).collect()
}

#[derive(Clone, Default)]
pub(super) struct Names {
    words: HashSet<String>,
    /// The types and traits of this project.
    types: HashSet<String>,
    /// What a type, trait or module has: fields, variants, functions, constants.
    members: HashMap<String, HashSet<String>>,
    /// What any trait has, and functions of macros, which may be in a trait.
    of_traits: HashSet<String>,
    /// Files and folders, without `src/`.
    paths: Vec<String>,
}

impl Names {
    /// The names of all code and files below a folder.
    pub(super) fn of_workspace(root: &Path) -> Names {
        let mut names = Names::default();
        let mut all = vec![];
        entries(root, &mut all);
        for path in all {
            let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
            let is_reference = path.ends_with("ops/paddle/src/reference.json");
            if path.ends_with("framework/identifiers.rs") {
                // Its lists are words of others.
            } else if extension == "rs" {
                // The compiler's messages are tested on code that does not parse.
                let tokens: Option<TokenStream> = fs::read_to_string(&path).unwrap().parse().ok();
                tokens.into_iter().for_each(|tokens| names.add_code(tokens));
            } else if WRITTEN_IN.contains(&extension) || is_reference {
                names.add_words(&fs::read_to_string(&path).unwrap());
            }
            names.add_words(path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default());
            let path = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            names.paths.push(format!("/{path}/").replace("/src/", "/"));
        }
        names.members.retain(|ty, _| names.types.contains(ty));
        names
    }

    fn add(&mut self, word: &str) {
        self.words.insert(word.into());
    }

    pub(super) fn add_words(&mut self, text: &str) {
        text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).for_each(|word| self.add(word));
    }

    pub(super) fn add_operator(&mut self, info: &OpInfo) {
        let schema = info.schema();
        self.add(schema.name);
        schema.inputs.iter().chain(schema.outputs).for_each(|slot| self.add(slot.name));
        schema.attrs.iter().for_each(|attr| self.add(attr.name));
    }

    fn add_code(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        // The type, trait or module that the next braces belong to, and the keyword that says so.
        let mut owner: Option<(String, Vec<String>)> = None;
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => {
                    let ident = ident.to_string();
                    let word = ident.trim_start_matches("r#");
                    match word {
                        "struct" | "enum" | "trait" | "mod" | "impl" | "union" | "macro_rules" => {
                            owner = Some((word.into(), vec![]));
                        }
                        "fn" | "let" | "use" | "static" | "const" | "match" | "where" if word != "where" => {
                            owner = None;
                        }
                        _ => owner.iter_mut().for_each(|(_, names)| names.push(word.into())),
                    }
                    self.add(word);
                }
                TokenTree::Group(group) => {
                    if group.delimiter() != Delimiter::Bracket
                        && let Some((keyword, names)) = &owner
                    {
                        self.add_members(keyword, names, &group);
                    }
                    if group.delimiter() == Delimiter::Brace {
                        owner = None;
                    }
                    self.add_code(group.stream());
                }
                TokenTree::Punct(punct) => {
                    if punct.as_char() == ';' {
                        owner = None;
                    }
                    // `'static` is no keyword.
                    if punct.as_char() == '\'' {
                        tokens.next();
                    }
                    if punct.as_char() == '#' {
                        tokens.next_if(|next| matches!(next, TokenTree::Punct(p) if p.as_char() == '!'));
                        if let Some(TokenTree::Group(attribute)) =
                            tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                        {
                            let is_doc = matches!(attribute.stream().into_iter().next(),
                                Some(TokenTree::Ident(ident)) if ident == "doc");
                            if !is_doc {
                                self.add_code(attribute.stream());
                            }
                        }
                    }
                }
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    if text.contains('"') {
                        self.add_words(&without_spans(&text));
                    }
                }
            }
        }
    }

    /// Adds what a definition or an implementation has to all types that its head names.
    fn add_members(&mut self, keyword: &str, heads: &[String], body: &Group) {
        if keyword == "macro_rules" {
            return self.add_functions(body.stream());
        }
        let mut found = vec![];
        let mut previous = String::new();
        let mut tokens = body.stream().into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
                }
                TokenTree::Ident(ident) => {
                    let ident = ident.to_string();
                    let is_item = ["fn", "const", "type", "mod", "struct", "enum", "trait", "static"]
                        .contains(&previous.as_str());
                    let is_field = matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                    if is_item || is_field || matches!(keyword, "enum" | "mod") {
                        found.push(ident.trim_start_matches("r#").to_string());
                    }
                    previous = ident;
                }
                // Fields of variants.
                TokenTree::Group(group) if keyword == "enum" => {
                    let mut inner = group.stream().into_iter().peekable();
                    while let Some(token) = inner.next() {
                        let is_field =
                            matches!(inner.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                        if let TokenTree::Ident(ident) = token
                            && is_field
                        {
                            found.push(ident.to_string());
                        }
                    }
                }
                _ => {}
            }
        }
        if matches!(keyword, "struct" | "enum" | "trait" | "union") {
            self.types.extend(heads.first().cloned());
        }
        if keyword == "trait" {
            self.of_traits.extend(found.iter().cloned());
        }
        let heads = if keyword == "impl" { heads } else { &heads[..heads.len().min(1)] };
        for head in heads {
            self.members.entry(head.clone()).or_default().extend(found.iter().cloned());
        }
    }

    fn add_functions(&mut self, tokens: TokenStream) {
        let mut is_function = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if is_function => _ = self.of_traits.insert(name.to_string()),
                TokenTree::Group(group) => self.add_functions(group.stream()),
                TokenTree::Ident(word) if word == "fn" => {
                    is_function = true;
                    continue;
                }
                _ => {}
            }
            is_function = false;
        }
    }

    /// Whether a word exists. A short one stands for a variable, one in capitals for an argument of a command; counted
    /// names such as `mean_0` are made of names of operators, symbols such as `dvalue` of names of slots.
    pub(super) fn has(&self, word: &str) -> bool {
        let base = word.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_');
        let symbol = base.trim_start_matches('d');
        let is_argument = word.chars().all(|c| c.is_ascii_uppercase());
        symbol.len() <= 2
            // A number, or the end of a name that starts with a placeholder.
            || word.starts_with(|c: char| c.is_ascii_digit() || c == '_')
            || [word, base, symbol].iter().any(|word| self.words.contains(*word))
            || self.words.contains(&camel(word))
            || is_argument && self.words.contains(&word.to_lowercase())
    }

    /// Whether a type of this project has a member; `None` for other types.
    pub(super) fn has_member(&self, ty: &str, member: &str) -> Option<bool> {
        let members = self.members.get(ty)?;
        Some(members.contains(member) || self.of_traits.contains(member) || DERIVED.contains(&member))
    }

    /// Whether a file or folder exists whose path ends so.
    pub(super) fn has_path(&self, path: &str) -> bool {
        let path = path.trim_start_matches("../").trim_start_matches("./").trim_end_matches('/');
        let path = format!("/{path}/").replace("/src/", "/");
        self.paths.iter().any(|known| known.ends_with(&path))
    }
}
