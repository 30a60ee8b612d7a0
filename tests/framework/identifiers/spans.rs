//! Code spans, the text between backticks, of pages, comments and messages.

use proc_macro2::{TokenStream, TokenTree};

#[derive(Clone)]
pub(super) struct Span {
    /// The line in its file, from 1; 0 for messages.
    pub(super) line: usize,
    pub(super) code: String,
    /// The type whose members the first column of a table lists.
    pub(super) listed_of: Option<String>,
}

/// Whether a character is part of an identifier.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The text outside of code spans.
pub(super) fn without_spans(text: &str) -> String {
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// A column of a table.
#[derive(Clone)]
enum Column {
    /// Members of a type: its header is `` `Type::…` `` or `` field of `Type` ``.
    Members(String),
    /// Words of another library, which its header names.
    Foreign,
    Other,
}

impl Column {
    fn new(header: &str) -> Column {
        match header.split('`').nth(1) {
            Some(code) if code.ends_with("::…") => Column::Members(code.trim_end_matches("::…").into()),
            Some(code) if header.contains(" of `") => Column::Members(code.into()),
            None if LIBRARIES.iter().any(|library| header.contains(library)) => Column::Foreign,
            _ => Column::Other,
        }
    }
}

/// Libraries whose words some tables compare with the words of this project.
const LIBRARIES: [&str; 7] = ["scikit-learn", "PaddlePaddle", "MiniTorch", "PyTorch", "Keras", "JAX", "burn"];

/// The lines of a text with their numbers, without fenced blocks; the lines of listings in Rust go to `listings`.
fn unfenced<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
    listings: &mut Vec<&'a str>,
) -> Vec<(usize, &'a str)> {
    let (mut found, mut fence) = (vec![], None);
    for (line, text) in lines {
        match (text.trim().strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(language),
            (Some(_), Some(_)) => fence = None,
            (None, None) => found.push((line, text)),
            (None, Some(language)) => {
                let is_rust =
                    ["rust", "standalone_crate", "no_run"].iter().any(|rust| language.starts_with(rust));
                if is_rust || language.is_empty() {
                    listings.push(text);
                }
            }
        }
    }
    found
}

/// The spans of lines of text without fenced blocks. A span may continue on the next line of its paragraph.
fn of_lines(lines: &[(usize, &str)]) -> Vec<Span> {
    let mut spans = vec![];
    let mut open: Option<(usize, String)> = None;
    let mut columns: Option<Vec<Column>> = None;
    for &(line, text) in lines {
        let text = text.trim();
        if let Some(row) = text.strip_prefix('|') {
            let cells = row.split('|');
            let Some(columns) = &columns else {
                columns = Some(cells.map(Column::new).collect());
                continue;
            };
            for (column, cell) in columns.iter().zip(cells) {
                let listed_of = match column {
                    Column::Foreign => continue,
                    Column::Members(ty) => Some(ty.clone()),
                    Column::Other => None,
                };
                let codes = cell.split('`').skip(1).step_by(2);
                spans.extend(codes.map(|code| Span {
                    line,
                    code: code.into(),
                    listed_of: listed_of.clone(),
                }));
            }
            continue;
        }
        columns = None;
        if text.is_empty() {
            open = None;
            continue;
        }
        for (i, piece) in text.replace("``", "").split('`').enumerate() {
            if i > 0 {
                match open.take() {
                    None => open = Some((line, String::new())),
                    Some((line, code)) => spans.push(Span { line, code, listed_of: None }),
                }
            }
            open.iter_mut().for_each(|(_, code)| code.push_str(piece));
        }
        open.iter_mut().for_each(|(_, code)| code.push(' '));
    }
    spans
}

/// The spans of a page; of the changelog, those that are not released, without the old names of what was renamed,
/// which are in parentheses.
pub(super) fn of_page<'a>(name: &str, text: &'a str, listings: &mut Vec<&'a str>) -> Vec<Span> {
    let lines = unfenced(text.lines().enumerate().map(|(i, line)| (i + 1, line)), listings);
    if !name.ends_with("CHANGELOG.md") {
        return of_lines(&lines);
    }
    let start = lines.iter().position(|(_, line)| line.starts_with("## Unreleased")).unwrap_or(lines.len());
    let unreleased = lines[start..].iter().enumerate();
    let unreleased = unreleased.take_while(|(i, (_, line))| *i == 0 || !line.starts_with("## "));
    let current: Vec<_> = unreleased.map(|(_, (i, line))| (*i, without_old_names(line))).collect();
    of_lines(&current.iter().map(|(i, line)| (*i, line.as_str())).collect::<Vec<_>>())
}

/// A line without what is in parentheses, if it is in a list of renamed items.
fn without_old_names(line: &str) -> String {
    let is_renamed = line.starts_with("  - ");
    let mut depth = 0;
    let kept = line.chars().filter(|c| {
        depth += i32::from(*c == '(');
        let is_kept = depth == 0 || !is_renamed;
        depth -= i32::from(*c == ')');
        is_kept
    });
    kept.collect()
}

/// The spans of the comments of some source code.
pub(super) fn of_comments<'a>(source: &'a str, listings: &mut Vec<&'a str>) -> Vec<Span> {
    let comments = source.lines().enumerate().map(|(i, line)| {
        let comment = line.trim_start().strip_prefix("//").unwrap_or_default();
        (i + 1, comment.trim_start_matches(['/', '!']))
    });
    of_lines(&unfenced(comments, listings))
}

/// The spans of the strings of some source code, without placeholders.
pub(super) fn of_messages(name: &str, source: &str) -> Vec<Span> {
    let mut found = vec![];
    if name.contains("/src/") && !name.starts_with("tests/") && !name.ends_with("tests.rs") {
        source.parse().into_iter().for_each(|tokens| add_messages(tokens, &mut found));
    }
    found
}

fn add_messages(tokens: TokenStream, found: &mut Vec<Span>) {
    let mut is_attribute = false;
    for token in tokens {
        match token {
            TokenTree::Punct(punct) => {
                is_attribute = punct.as_char() == '#' || is_attribute && punct.as_char() == '!';
            }
            TokenTree::Group(group) => {
                if !is_attribute {
                    add_messages(group.stream(), found);
                }
                is_attribute = false;
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string().replace("{{", "\u{1}").replace("}}", "\u{2}");
                // A word next to a placeholder is a part of a name.
                let mut depth = 0;
                let text: String = text
                    .chars()
                    .filter_map(|c| {
                        let was = depth;
                        depth += i32::from(c == '{') - i32::from(c == '}' && depth > 0);
                        match c {
                            '{' if was == 0 => Some('_'),
                            _ if was > 0 => None,
                            '\u{1}' => Some('{'),
                            '\u{2}' => Some('}'),
                            c => Some(c),
                        }
                    })
                    .collect();
                let codes = text.split('`').skip(1).step_by(2).filter(|code| !code.starts_with(' '));
                found.extend(codes.map(|code| Span { line: 0, code: code.into(), listed_of: None }));
            }
            TokenTree::Ident(_) => is_attribute = false,
        }
    }
}

/// Whether a span is the path of a file of the project.
pub(super) fn is_path(code: &str) -> bool {
    let is_plain = code.chars().all(|c| is_word(c) || "/.-".contains(c));
    let first = code.split('/').next().unwrap_or_default();
    is_plain
        && (code.ends_with(".rs")
            || code.ends_with(".md")
            || code.contains('/')
                && ["autobwd", "autobwd-macros", "ops", "tests", "benches", ".ci"].contains(&first))
}

/// `Type` and `member` of each `Type::member`.
pub(super) fn member_paths(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.match_indices("::").filter_map(|(at, _)| {
        let ty = code[..at].rsplit(|c| !is_word(c)).next()?;
        let member = code[at + 2..].split(|c| !is_word(c)).next()?;
        (ty.starts_with(char::is_uppercase) && !member.is_empty()).then_some((ty, member))
    })
}

/// `Type` and `field` of each field in `Type { field, field: value }`.
pub(super) fn fields(code: &str) -> impl Iterator<Item = (&str, &str)> {
    code.split_once('{').into_iter().flat_map(|(before, rest)| {
        let ty = before.trim_end().rsplit(|c| !is_word(c)).next().unwrap_or_default();
        let fields = rest.split(['}', '(']).next().unwrap_or_default().split("..").next().unwrap_or_default();
        let fields = fields.split(',');
        let names = fields.filter_map(|field| field.trim().split(|c| !is_word(c)).next());
        names
            .filter(move |name| !name.is_empty() && ty.starts_with(char::is_uppercase))
            .map(move |name| (ty, name))
    })
}
