//! Lists, calls and numbers in the text of an optimizer.

use std::str::FromStr;

use autobwd::Result;

use super::refuse;

/// The longest text that is read, in bytes.
const LIMIT: usize = 4096;

/// Splits a text at a separator outside of parentheses.
pub(super) fn split(text: &str, separator: char) -> Result<Vec<&str>> {
    if text.len() > LIMIT {
        return Err(refuse(format!("the text has more than {LIMIT} bytes")));
    }
    let (mut parts, mut start, mut depth) = (vec![], 0, 0_usize);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Err(unbalanced(text)),
            ')' => depth -= 1,
            c if c == separator && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(unbalanced(text));
    }
    parts.push(&text[start..]);
    Ok(parts)
}

fn unbalanced(text: &str) -> autobwd::Error {
    refuse(format!("the parentheses of `{text}` do not match"))
}

/// The name and the arguments of a call, `cosine(0.1,0,100)`.
pub(super) fn call(text: &str) -> Result<(&str, Vec<&str>)> {
    let inside = text.split_once('(').and_then(|(name, rest)| Some((name, rest.strip_suffix(')')?)));
    let Some((name, arguments)) = inside else {
        return Err(refuse(format!("`{text}` has no arguments in parentheses, such as `cosine(0.1,0,100)`")));
    };
    Ok((name, split(arguments, ',')?))
}

/// A finite number.
pub(super) fn number<T: FromStr + Copy + Into<f64>>(text: &str) -> Result<T> {
    let number = text.parse::<T>().ok().filter(|x| (*x).into().is_finite());
    number.ok_or_else(|| refuse(format!("`{text}` is not a finite number")))
}

/// A number of steps.
pub(super) fn whole(text: &str) -> Result<u64> {
    text.parse().map_err(|_| refuse(format!("`{text}` is not a number of steps")))
}
