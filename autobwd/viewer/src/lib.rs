//! Programs as self-contained HTML pages: a training step as rows of operators, with the story of every gradient and the
//! memory plan.
//!
//! Must not run anything. Steps, in call order: `layout` (the column and row of every operator) → `tables` (with
//! `compare`: differences from an older program) → `memory` → `stories` → `tree` (rows that fold, with `repeats`) → `data`,
//! and the page itself.

mod compare;
mod data;
mod layout;
mod memory;
mod repeats;
mod stories;
mod tables;
mod texts;
mod tree;

use std::fmt;

use autobwd_core::{Error, Meta, Program, Result};

use data::Data;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(
    include_str!("page/model.js"),
    include_str!("page/lanes.js"),
    include_str!("page/rows.js"),
    include_str!("page/memory.js"),
    include_str!("page/story.js"),
    include_str!("page/main.js"),
);

/// A program as one self-contained HTML page.
///
/// Forward operators stand on the left, their gradient operators in the same rows on the right, and updates below. The
/// page folds, searches, and tells what a value is and how a gradient is computed ([`explain`](autobwd_backward::explain)).
/// It loads nothing and sends nothing: its Content-Security-Policy forbids everything but its own script and style. A
/// button saves the rows as SVG.
///
/// ```
/// # use autobwd::{Backward, Builder, DType, append_backward};
/// # use autobwd_ops::{Init, Math};
/// use autobwd::{Meta, viewer::Page};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3]);
/// let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(3.0).emit(w, 0));
/// let loss = (&x * &w).square().mean();
/// let model = net.program()?.clone();
/// let mut program = model.clone();
/// append_backward(&mut program, &loss.name(), &Backward::default())?;
///
/// let feeds = [("x", Meta::new(DType::F32, [100, 3]))];
/// let html = Page::new(&program).title("A small model").feeds(&feeds).compare_with(&model).to_html()?;
/// assert!(html.starts_with("<!doctype html>"));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[must_use]
pub struct Page<'a> {
    program: &'a Program,
    title: &'a str,
    feeds: Option<&'a [(&'a str, Meta)]>,
    old: Option<&'a Program>,
}

impl fmt::Debug for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Page");
        text.field("title", &self.title).field("feeds", &self.feeds).finish_non_exhaustive()
    }
}

impl<'a> Page<'a> {
    /// The page of a program.
    pub fn new(program: &'a Program) -> Page<'a> {
        Page { program, title: "Program", feeds: None, old: None }
    }

    /// Sets the title.
    pub fn title(self, title: &'a str) -> Page<'a> {
        Page { title, ..self }
    }

    /// Shows the memory plan for feeds of these dtypes and shapes. Variables of the scope have their declared shapes;
    /// where those are not known, they are given here, too.
    ///
    /// If the program cannot be planned, because its operators are not linked for example, the page says why.
    pub fn feeds(self, feeds: &'a [(&'a str, Meta)]) -> Page<'a> {
        Page { feeds: Some(feeds), ..self }
    }

    /// Marks the differences from an older program: operators that were added, removed and changed. Operators are matched
    /// by the variables they write; their order is not compared.
    pub fn compare_with(self, old: &'a Program) -> Page<'a> {
        Page { old: Some(old), ..self }
    }

    /// The page.
    ///
    /// # Errors
    /// A program whose blocks are malformed: cyclic, missing, or nested too deep.
    pub fn to_html(&self) -> Result<String> {
        let data = serde_json::to_string(&Data::of(self)?).map_err(Error::internal)?;
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            source_hash(SCRIPT),
            source_hash(STYLE)
        );
        let parts = [
            ("policy", policy),
            ("title", escaped(self.title)),
            ("style", STYLE.into()),
            // `<` ends no script and begins no comment then.
            ("data", data.replace('<', "\\u003c")),
            ("script", SCRIPT.into()),
        ];
        let mut html =
            String::with_capacity(parts.iter().map(|(_, text)| text.len()).sum::<usize>() + HTML.len());
        let mut rest = HTML;
        while let Some((before, (name, after))) = next_part(rest) {
            html += before;
            let part = parts.iter().find(|(known, _)| *known == name);
            html += part.map_or("", |(_, text)| text);
            rest = after;
        }
        html += rest;
        Ok(html)
    }
}

/// The text before the next `{{name}}`, the name, and the text after it.
fn next_part(text: &str) -> Option<(&str, (&str, &str))> {
    let (before, after) = text.split_once("{{")?;
    Some((before, after.split_once("}}")?))
}

/// Programs that can be shown.
pub trait ToHtml {
    /// The program as a [`Page`].
    ///
    /// ```
    /// use autobwd::prelude::*;
    ///
    /// assert!(Program::new().to_html()?.contains("<title>Program</title>"));
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Page::to_html`].
    fn to_html(&self) -> Result<String>;
}

impl ToHtml for Program {
    fn to_html(&self) -> Result<String> {
        Page::new(self).to_html()
    }
}

/// A source of a Content-Security-Policy: `sha256-…`.
fn source_hash(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::from("sha256-");
    for bytes in hmac_sha256::Hash::hash(text.as_bytes()).chunks(3) {
        let group = (0..3).fold(0, |group, i| group << 8 | u32::from(bytes.get(i).copied().unwrap_or(0)));
        for i in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * i) & 63) as usize];
            encoded.push(if i <= bytes.len() { char::from(digit) } else { '=' });
        }
    }
    encoded
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
    }
    escaped
}
