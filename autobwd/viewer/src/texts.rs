//! Texts of a page, each once, and texts of types.

use rustc_hash::FxHashMap;

use autobwd_core::{VarDesc, VarKind};

/// The longest text of an attribute or an operator, in characters; tables of constants can be long.
const LONGEST: usize = 400;

/// Texts, each once.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    pub(crate) list: Vec<String>,
    known: FxHashMap<String, usize>,
}

impl Texts {
    pub(crate) fn id(&mut self, text: &str) -> usize {
        if let Some(id) = self.known.get(text) {
            return *id;
        }
        self.list.push(text.to_string());
        self.known.insert(text.to_string(), self.list.len() - 1);
        self.list.len() - 1
    }
}

/// A text without its end if that is far.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} … ({} bytes)", &text[..end], text.len()),
        None => text.to_string(),
    }
}

/// `float32 [2, 3]`
pub(crate) fn type_text(desc: &VarDesc) -> String {
    match desc.kind {
        VarKind::TensorArray => format!("array of {}", desc.dtype),
        VarKind::StepScopes => "step scopes".into(),
        _ => desc.meta().to_string(),
    }
}
