//! Text for messages: Rust tokens formatted as source code, and lists of names.
//!
//! Must not know the use of the text.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

/// Tokens as source text, `Vec<i64>` and not `Vec < i64 >`.
pub(crate) fn of_tokens(tokens: impl ToTokens) -> String {
    let mut text = String::new();
    write(tokens.into_token_stream(), &mut text);
    text
}

fn write(tokens: TokenStream, text: &mut String) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                text.push_str(open);
                write(group.stream(), text);
                text.push_str(close);
            }
            TokenTree::Punct(punct) => {
                text.push(punct.as_char());
                if matches!(punct.as_char(), ',' | ';') {
                    text.push(' ');
                }
            }
            word => {
                // Separates adjacent words.
                if text.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                    text.push(' ');
                }
                text.push_str(&word.to_string());
            }
        }
    }
}

/// `` `a`, `b` and `c` ``
pub(crate) fn list<S: AsRef<str>>(names: &[S]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    match quoted.as_slice() {
        [] => "none".to_string(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The known name most similar to a misspelt one.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|k| (strsim::osa_distance(name, k), *k));
    distances.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= 2).map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::{list, nearest, of_tokens};

    #[test]
    fn tokens_read_as_written() {
        assert_eq!(of_tokens(quote!(Vec<i64>)), "Vec<i64>");
        assert_eq!(of_tokens(quote!(-1.0)), "-1.0");
        assert_eq!(of_tokens(quote!([1, 2])), "[1, 2]");
        assert_eq!(of_tokens(quote!(f32::MAX as f64)), "f32::MAX as f64");
    }

    #[test]
    fn names_in_messages() {
        assert_eq!(list(&["a", "b", "c"]), "`a`, `b` and `c`");
        assert_eq!(nearest("gard", &["grad", "name"]), Some("grad"));
        assert_eq!(nearest("gradient", &["grad", "name"]), None);
    }
}
