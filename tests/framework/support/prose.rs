//! Words of the prose.

/// What the prose does without, and what it says instead.
pub(crate) const WORDS: &[(&str, &str)] = &[
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
    ("region", "`fused kernel`"),
    ("regions", "`fused kernels`"),
    ("weave", "`insert recomputation`"),
    ("woven", "`recomputation`"),
    ("station", "`cut point`"),
    ("stations", "`cut points`"),
    ("whole number", "`integer`"),
    ("whole numbers", "`integers`"),
    ("whole tensor", "`dense tensor`"),
    ("numbers of rows", "`row indices`"),
    ("what steps leave", "`saved step state`"),
    ("in proportion to", "`ratio to`"),
    ("has arrived", "`reaches`"),
    ("attains", "`achieves`"),
];

/// A line without its code spans.
pub(crate) fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

pub(crate) fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + word.len()..].chars().next())
    })
}
