//! The assembly of a self-contained page from its parts.

use serde::Serialize;

use autobwd_core::{__private::internals::*, Error, Result};

/// The parts of a page that do not depend on its data. `html` has the places of all parts, such as `{{style}}`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    pub(crate) html: &'static str,
    pub(crate) style: &'static str,
    pub(crate) script: &'static str,
}

impl Template {
    /// The page with this title and data. Its Content-Security-Policy forbids everything but its own script and style.
    pub(crate) fn fill(self, title: &str, data: &impl Serialize) -> Result<String> {
        let data = serde_json::to_string(data).map_err(Error::internal)?;
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            source_hash(self.script),
            source_hash(self.style)
        );
        let parts = [
            ("policy", policy),
            ("title", escaped(title)),
            ("style", self.style.into()),
            // `<` ends no script and begins no comment then.
            ("data", data.replace('<', "\\u003c")),
            ("script", self.script.into()),
        ];
        let length = parts.iter().map(|(_, text)| text.len()).sum::<usize>() + self.html.len();
        let mut html = String::with_capacity(length);
        let mut rest = self.html;
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
